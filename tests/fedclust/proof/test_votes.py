import numpy as np
import pytest

from fedclust.proof import compare, prove_grouping
from fedclust.proof.votes import LOSSES, vote


@pytest.mark.parametrize(
    ("losses", "margin", "mean"),
    [
        ((0.7, 0.2), 0.0, 2.0),
        ((0.2, 0.7), 0.0, -2.0),
        ((0.5, 0.5), 0.0, -2.0),  # equal losses are no reason for groups
        ((1.0, 0.995), 0.01, -2.0),  # lower by half a hundredth of A's
        ((1.0, 0.98), 0.01, 2.0),
        ((-1.0, -1.005), 0.01, -2.0),  # of a loss below 0, too
        ((-1.0, -1.02), 0.01, 2.0),
        ((np.inf, 0.5), 0.01, 2.0),
        ((0.5, np.nan), 0.0, -2.0),
    ],
)
def test_a_client_votes_for_the_lower_loss(losses: tuple[float, float], margin: float, mean: float) -> None:
    cast = vote(*losses, margin)
    assert (cast.count, cast.mean) == (1, mean)


def test_nobody_votes_on_two_losses_that_are_not_finite() -> None:
    assert compare([vote(np.nan, np.inf)]).num_clients == 0


@pytest.mark.parametrize(
    ("votes", "p_value"),
    [
        ((5, 0), 1 / 2**5),
        ((8, 1), (9 + 1) / 2**9),
        ((10, 0), 1 / 2**8),  # of ten, one at either end is set aside: 1/2**10 is smaller
        ((9, 1), (10 + 1) / 2**10),  # without the one against it is 1/2**8
        ((0, 4), 1.0),
    ],
)
def test_votes_are_counted(votes: tuple[int, int], p_value: float) -> None:
    cast = [vote(1.0, 0.5)] * votes[0] + [vote(0.5, 1.0)] * votes[1]
    assert compare(cast).p_value == pytest.approx(p_value)


def test_a_verdict_speaks_of_losses() -> None:
    votes = {client: vote(1.0, 0.5) for client in range(10)}
    assignment = np.arange(10) % 2
    proof = prove_grouping(assignment, votes, {}, method="CFL", words=LOSSES)
    said = "Train in 2 groups: on held-out rows their loss is lower for most clients, for 10 of 10 clients"
    assert proof.verdict.text == said
    # Holm: 3 · max(1/2**10, 1/2**8 without one vote at either end).
    assert proof.verdict.p_value == pytest.approx(3 / 2**8)
    undecided = {client: vote(1.0, 0.5 + (client < 4)) for client in range(10)}
    shown = prove_grouping(assignment, undecided, {}, method="CFL", words=LOSSES).verdict
    assert not shown.grouped
    assert shown.text.endswith("the loss of CFL's 2 clusters is lower for most clients")
