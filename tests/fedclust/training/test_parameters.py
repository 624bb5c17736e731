"""LocalTraining: schedules and refusals."""

import math

import pytest

from fedclust.training import LocalTraining


def training(**changes) -> LocalTraining:
    values: dict = {"learning_rate": 0.1, "batch_size": 8, "epochs": 1}
    return LocalTraining(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "rounds", "rates"),
    [
        ({}, (1, 2, 500), [0.1, 0.1, 0.1]),
        ({"schedule": "exponential", "decay": 0.5}, (1, 2, 3), [0.1, 0.05, 0.025]),
        # Over 4 rounds: 0.1 (1 + cos 0) / 2 = 0.1; halfway (1 + cos(pi/2)) / 2 = 1/2; the end and after, 0.
        ({"schedule": "cosine", "schedule_rounds": 4}, (1, 3, 5, 9), [0.1, 0.05, 0.0, 0.0]),
    ],
)
def test_learning_rates(changes: dict, rounds: tuple[int, ...], rates: list[float]) -> None:
    assert [training(**changes).learning_rate_at(number) for number in rounds] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lion"}, r"optimizer must be one of sgd, adam, got 'lion'"),
        ({"schedule": "step"}, r"schedule must be one of constant, cosine, exponential, got 'step'"),
        ({"mode": "fast"}, r"mode must be one of auto, vectorised, sequential, got 'fast'"),
        ({"precision": "fp8"}, r"precision must be one of float32, tf32, bf16, got 'fp8'"),
        ({"batch_size": 0}, r"batch_size must be a whole number >= 1, got 0"),
        ({"batch_size": 2.0}, r"batch_size must be a whole number >= 1, got 2.0"),
        ({"batch_size": True}, r"batch_size must be a whole number >= 1, got True"),
        ({"evaluation_batch_size": -1}, r"evaluation_batch_size must be a whole number >= 1 or auto, got -1"),
        ({"epochs": 0}, r"epochs must be a whole number >= 1 or None, got 0"),
        ({"epochs": None, "steps": -2}, r"steps must be a whole number >= 1 or None, got -2"),
        ({"schedule_rounds": 0}, r"schedule_rounds must be a whole number >= 1 or None, got 0"),
        ({"chunk": 0}, r"chunk must be a whole number >= 1 or auto, got 0"),
        ({"chunk": "big"}, r"chunk must be a whole number >= 1 or auto, got 'big'"),
        ({"steps": 3}, r"exactly one of epochs and steps must be given, got epochs 1 and steps 3"),
        ({"epochs": None}, r"exactly one of epochs and steps must be given, got epochs None and steps None"),
        ({"learning_rate": 0.0}, r"learning_rate must be > 0 and finite, got 0.0"),
        ({"learning_rate": math.inf}, r"learning_rate must be > 0 and finite, got inf"),
        ({"learning_rate": math.nan}, r"learning_rate must be > 0 and finite, got nan"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"weight_decay": -0.1}, r"weight_decay must be >= 0 and finite, got -0.1"),
        ({"adam_epsilon": 0.0}, r"adam_epsilon must be > 0 and finite, got 0.0"),
        ({"decay": 1.5}, r"decay must be in \(0, 1\], got 1.5"),
        ({"proximal_mu": -1.0}, r"proximal_mu must be >= 0 and finite, got -1.0"),
        ({"clip_norm": 0.0}, r"clip_norm must be > 0 and finite or None, got 0.0"),
        ({"betas": (0.9,)}, r"betas must be two numbers in \[0, 1\), got \(0.9,\)"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        ({"optimizer": "adam", "momentum": 0.9}, r"momentum must be 0 with adam, which has betas, got 0.9"),
        ({"schedule": "cosine"}, r"schedule_rounds must be given with the cosine schedule, got None"),
    ],
)
def test_refusals(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training(**changes)


def test_round_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="server_round must be >= 1, got 0"):
        training().learning_rate_at(0)
