import math

import numpy as np
import pytest

from fedclust.personal.layers import (
    Auto,
    Finetune,
    NoLayer,
    Prior,
    check_validation,
    choose,
    choose_together,
)
from fedclust.personal.staying import named

NAN = math.nan


def _losses(none: list[float], prior: list[float], finetune: list[float]) -> dict[str, np.ndarray]:
    return {"finetune": np.array(finetune), "none": np.array(none), "prior": np.array(prior)}


@pytest.mark.parametrize(
    ("prior", "chosen"),
    [
        # Best is fine-tuning, mean 0.5. None is above it by 0.5 on each row: no deviation, so too much.
        # The differences of prior are 0.1, 0.1, 0.1, 0.5: mean 0.2, variance (3 · 0.01 + 0.09)/3 = 0.04, and
        # a standard error of 0.2/√4 = 0.1: just within two.
        ([0.6, 0.6, 0.6, 1.0], "prior"),
        # 0.15, 0.15, 0.15, 0.55: mean 0.25, the same standard error of 0.1: too much.
        ([0.65, 0.65, 0.65, 1.05], "finetune"),
    ],
)
def test_the_first_layer_within_two_standard_errors_of_the_best(prior: list[float], chosen: str) -> None:
    assert choose(_losses([1.0] * 4, prior, [0.5] * 4)) == chosen


def test_prior_comes_before_none_and_none_before_finetune() -> None:
    # Prior's differences from none, the best, are 0 and 0.5: mean 0.25, deviation 0.5/√2 = 0.35, standard
    # error 0.25.
    assert choose(_losses([1.0, 1.0], [1.0, 1.5], [2.0, 2.0])) == "prior"
    assert choose(_losses([1.0, 1.0], [1.5, 1.5], [2.0, 2.0])) == "none"
    # A correction that corrects nothing is none.
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
    names = "none, prior, finetune, auto, fedper, fedrep, fedbn, ditto, apfl"
    with pytest.raises(ValueError, match=f"^personal must be one of {names}, or a"):
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


def of(none: list[float], **others: list[float]) -> dict[str, np.ndarray]:
    return {layer: np.array(values) for layer, values in {"none": none, **others}.items()}


def test_few_rows_choose_together() -> None:
    rows = np.array([5, 5, 10])
    # Finetune gains 0.4, 0.2 and loses 0.4, weighted (5·0.4 + 5·0.2 − 10·0.4)/20 = −0.05: worse than none.
    losses = of([1.0, 1.0, 1.0], prior=[1.1, 1.1, 1.1], finetune=[0.6, 0.8, 1.4])
    assert choose_together(losses, rows) == "none"
    # With as many rows each it gains 0.067 on average, of 0.4, 0.2 and −0.4. Prior is behind it by 0.5, 0.3
    # and −0.3: 0.167 on average, with a standard error of 0.24.
    assert choose_together(losses, np.array([5, 5, 5])) == "prior"
    # Gains of 0.4, 0.2 and 0.3 have a standard error of 0.058; prior gains 0.1 each.
    better = losses | {"finetune": np.array([0.6, 0.8, 0.7]), "prior": np.array([0.9, 0.9, 0.9])}
    assert choose_together(better, rows) == "finetune"
    # Prior gains 0.22 each, within two standard errors of finetune's 0.3.
    assert choose_together(better | {"prior": np.array([0.78, 0.78, 0.78])}, np.array([5, 5, 5])) == "prior"


def test_who_has_no_rows_or_no_loss_does_not_choose() -> None:
    better = of([1.0, 1.0, 1.0], prior=[0.8, 0.8, 0.7])
    assert choose_together(better, np.array([0, 0, 9])) == "none"
    assert choose_together(better | {"prior": np.array([np.nan, 0.8, 0.7])}, np.array([5, 5, 5])) == "none"
    # Of ten, one may be without: the least favourable tenth does not count.
    ten = of([1.0] * 10, prior=[np.nan, *[0.8] * 9])
    assert choose_together(ten, np.full(10, 5), aside=1) == "prior"
    assert choose_together(ten, np.full(10, 5)) == "none"
    # Of ten only two or three answered: nobody is set aside, and each gains 0.2.
    for answered in (2, 3):
        few = {layer: np.where(np.arange(10) < answered, each, np.nan) for layer, each in ten.items()}
        assert choose_together(few | {"prior": few["none"] - 0.2}, np.full(10, 5), aside=1) == "prior"
