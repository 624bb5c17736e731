"""Amounts: range, bins, losses and scores, worked out by hand."""

import numpy as np
import pytest
import torch

import fedclust
from fedclust.data.targets import Amounts

# The tenths of 0…1000 are 100, 200, … 900: the range is 800 wide, the middle 500.
AMOUNTS = Amounts.agreed(np.arange(1001.0))


def test_range_and_bins_are_tenths() -> None:
    assert (AMOUNTS.low, AMOUNTS.high, AMOUNTS.edges) == (100, 900, tuple(range(100, 901, 100)))
    np.testing.assert_array_equal(np.bincount(AMOUNTS.bins(np.arange(1000))), np.full(10, 100))
    assert AMOUNTS.within == 160  # a fifth of 800
    assert Amounts(0, 10, (), unit="days").right == "predicted within 2 days"


def test_equal_quantiles_make_fewer_bins() -> None:
    values = np.concatenate([np.zeros(550), np.arange(1, 451)])  # more than half are 0
    target = Amounts.agreed(values)
    # Five tenths are 0. The sixth is at place 0.6 · 999 = 599.4, where 50 and 51 stand: 50.4.
    assert target.low == 0
    assert target.edges[0] == pytest.approx(50.4)
    assert np.bincount(target.bins(values)).tolist() == [600, 100, 100, 100, 100]


def test_amounts_that_are_all_alike() -> None:
    with pytest.raises(ValueError, match="target.low must be < target.high, got 7 and 7"):
        Amounts.agreed(np.full(20, 7.0))


def test_outputs_and_amounts() -> None:
    # 2.5 units are the range: 500 + 800/2.5 per unit.
    np.testing.assert_allclose(AMOUNTS.amounts(np.array([[0.0], [1.0], [-1.25]])), [500, 820, 100])
    np.testing.assert_allclose(AMOUNTS.scaled(np.array([500.0, 820.0])), [0, 1])
    np.testing.assert_allclose(AMOUNTS.amounts(np.zeros((1, 1)), np.array([0.5])), [660])


@pytest.mark.parametrize(
    ("error", "losses"),
    # Of 820 by 0, 2 and 7 units away: the last one's amount counts as 6 units, so it is 5 away from 1.
    [("squared", [0.5, 2, 12.5]), ("absolute", [1, 2, 5]), ("huber", [0.5, 1.5, 4.5])],
)
def test_losses(error: str, losses: list[float]) -> None:
    target = Amounts(100, 900, (), error=error)
    outputs, values = torch.tensor([[0.0], [-1.0], [1.0]]), torch.tensor([820.0, 820.0, 500 + 20 * 320.0])
    assert target.loss(outputs, values).tolist() == pytest.approx(losses)


def test_scores_are_squared_errors_within_the_range() -> None:
    outputs = AMOUNTS.scaled(np.array([[500.0], [2000.0], [0.0]]))
    # 500 of 900: 2·(400/800)²; 2000 counts as 900, of 500 the same; 0 counts as 100, and so does −50.
    np.testing.assert_allclose(AMOUNTS.scores(outputs, [1000.0, 500.0, -50.0]), [0.5, 0.5, 0.0])


def test_figures_by_hand() -> None:
    outputs = AMOUNTS.scaled(np.array([[300.0], [500.0], [700.0]]))
    found = AMOUNTS.figures(outputs, [200.0, 500.0, 1100.0])
    # Errors 100, 0, −400; the mean of the amounts is 600, their variance (400² + 100² + 500²)/3.
    assert found == pytest.approx(
        {"rmse": np.sqrt((100**2 + 400**2) / 3), "mae": 500 / 3, "r2": 1 - 170_000 / 420_000}
    )
    assert np.isnan(AMOUNTS.figures(outputs[:1], [200.0])["r2"])  # of one row


@pytest.mark.parametrize(
    ("residuals", "correction"),
    [
        ([1.0], 0.0),  # one row says nothing of its error
        ([0.5, 1.5], 0.75),  # mean 1, variance of the mean 0.5/2: 1 − 0.25
        ([-1.0, 1.2], 0.0),  # mean 0.1, variance of the mean 2.42/2: more than its square
    ],
)
def test_a_correction_counts_as_far_as_it_exceeds_its_error(
    residuals: list[float], correction: float
) -> None:
    values = AMOUNTS.amounts(np.array(residuals)[:, None])
    found = AMOUNTS.correction(np.zeros((len(residuals), 1)), values)
    assert found == pytest.approx([correction])


def mirrored(number: int, size: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw clients whose amounts rise with an input, and as many whose amounts fall."""
    draws, clients = np.random.default_rng(seed), []
    for client in range(number):
        inputs = draws.normal(size=(size, 4)).astype(np.float32)
        sign = 1 if 2 * client < number else -1
        clients.append((inputs, 100 + sign * 20 * inputs[:, 0] + draws.normal(0, 5, size)))
    return clients


def test_auto_finds_the_groups_of_mirrored_amounts() -> None:
    training = fedclust.LocalTraining(learning_rate=0.05, batch_size=16, steps=8)
    clients = mirrored(12, 100, seed=11)
    result = fedclust.simulate(
        "auto", torch.nn.Linear(4, 1), clients, rounds=20, training=training, proof=True, seed=3
    )
    assert result.assignment.tolist() == [0] * 6 + [1] * 6
    assert result.summary["rmse"] == pytest.approx(5, abs=1)  # the noise's
    assert result.summary["verdict"]["grouped"]
