import math

import numpy as np
import pytest

from fedclust.personal.layers import Auto, Finetune, NoLayer, Prior, check_validation, choose, named

NAN = math.nan


def _losses(none: list[float], prior: list[float], finetune: list[float]) -> dict[str, np.ndarray]:
    return {"finetune": np.array(finetune), "none": np.array(none), "prior": np.array(prior)}


@pytest.mark.parametrize(
    ("prior", "chosen"),
    [
        # Best is fine-tuning, mean 0.5. None is above it by 0.5 on each row: no deviation, so too much.
        # The differences of prior are 0, 0, 0, 0.4: mean 0.1, variance (3 · 0.01 + 0.09)/3 = 0.04, and
        # a standard error of 0.2/√4 = 0.1: just within.
        ([0.5, 0.5, 0.5, 0.9], "prior"),
        # 0.1, 0.1, 0.1, 0.5: mean 0.2, the same standard error of 0.1: too much.
        ([0.6, 0.6, 0.6, 1.0], "finetune"),
    ],
)
def test_the_simplest_layer_within_one_standard_error_of_the_best(prior: list[float], chosen: str) -> None:
    assert choose(_losses([1.0] * 4, prior, [0.5] * 4)) == chosen


def test_none_is_simpler_than_prior_and_prior_than_finetune() -> None:
    # None's differences from fine-tuning, the best, are −1 and 1.5: mean 0.25, deviation 2.5/√2 = 1.77,
    # standard error 1.25. Prior's mean is less, but none comes first.
    assert choose(_losses([0.0, 2.5], [1.0, 1.1], [1.0, 1.0])) == "none"
    assert choose(_losses([2.0, 2.0], [1.0, 1.0], [1.0, 1.0])) == "prior"
    assert choose(_losses([1.0, 1.0], [1.0, 1.0], [1.0, 1.0])) == "none"
    assert choose({"none": np.array([2.0, 2.0]), "finetune": np.array([1.0, 1.0])}) == "finetune"


def test_one_row_chooses_nothing_and_a_model_without_numbers_is_not_chosen() -> None:
    assert choose(_losses([2.0], [1.0], [0.5])) == "none"
    assert choose(_losses([2.0, 2.0], [1.0, 1.0], [NAN, 0.0])) == "prior"
    assert choose(_losses([math.inf, 2.0], [1.0, 1.0], [0.0, 0.0])) == "none"


def test_choices_by_name() -> None:
    assert named("none") == NoLayer()
    assert named("prior").asked == ("prior",)
    assert named("finetune") == Finetune(epochs=5, layers="all", learning_rate=None)
    assert named("auto").asked == ("prior", "finetune")
    assert named(Finetune(epochs=2)).finetune == Finetune(epochs=2)
    assert Prior().finetune is None
    with pytest.raises(ValueError, match="^personal must be one of none, prior, finetune, auto, or a"):
        named("fine_tune")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "^epochs must be a whole number >= 1, got 0$"),
        ({"epochs": True}, "^epochs must be a whole number >= 1, got True$"),
        ({"layers": "first"}, "^layers must be one of all, last, got 'first'$"),
        ({"learning_rate": 0.0}, "^learning_rate must be > 0 and finite or None, got 0.0$"),
        ({"learning_rate": math.inf}, "^learning_rate must be > 0 and finite or None, got inf$"),
    ],
)
def test_what_cannot_be(options: dict, message: str) -> None:
    for kind in (Finetune, Auto):
        with pytest.raises(ValueError, match=message):
            kind(**options)


def test_a_choice_needs_rows_to_choose_on() -> None:
    nobody = np.zeros(3, dtype=int)
    with pytest.raises(ValueError, match="^personal=auto must have validation rows to choose on"):
        check_validation(Auto(), nobody)
    check_validation(Auto(), np.array([0, 2, 0]))
    for personal in (NoLayer(), Prior(), Finetune()):
        check_validation(personal, nobody)
