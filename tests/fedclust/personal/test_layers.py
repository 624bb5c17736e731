import math

import numpy as np
import pytest

from fedclust.personal.layers import Auto, Finetune, NoLayer, Prior, check_validation, choose, named

NAN = math.nan


def test_each_client_uses_the_layer_with_the_least_loss() -> None:
    losses = {
        "none": np.array([0.5, 0.5, 0.5]),
        "prior": np.array([0.4, 0.6, 0.4]),
        "finetune": np.array([0.3, 0.7, 0.45]),
    }
    assert choose(losses).tolist() == ["finetune", "none", "prior"]


def test_none_wins_a_tie_and_the_earlier_layer_one_among_the_others() -> None:
    losses = {
        "none": np.array([0.5, 0.5, 0.5]),
        "prior": np.array([0.5, 0.4, 0.6]),
        "finetune": np.array([0.5, 0.4, 0.5]),
    }
    assert choose(losses).tolist() == ["none", "prior", "none"]


def test_who_has_no_validation_rows_uses_none() -> None:
    # Client 0 has no rows, client 1's fine-tuning failed, and client 2's model diverged on its rows.
    losses = {
        "none": np.array([NAN, 0.5, 0.5]),
        "prior": np.array([0.1, 0.4, 0.4]),
        "finetune": np.array([0.1, NAN, NAN]),
    }
    before = {layer: values.copy() for layer, values in losses.items()}
    assert choose(losses).tolist() == ["none", "prior", "prior"]
    for layer, values in before.items():
        np.testing.assert_array_equal(losses[layer], values)


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
