"""Clients that lie in their votes: the others' groups stand or fall by their own."""

import numpy as np
import pytest

from fedclust.proof import compare, evidence, prove_grouping

TRUTH = np.repeat([0, 1], [20, 10])


def test_a_gain_that_one_vote_makes_is_none() -> None:
    # (−9 · 0.1 + 2)/10 = 0.11, and −0.1 without the extremes: not even with p = 1/2.
    rows = np.tile([-0.2, 0.0], 50)
    found = compare([*[evidence(rows)] * 9, evidence(np.full(100, 2.0))])
    assert found.gain == pytest.approx(0.11)
    assert found.gain_of_others == pytest.approx(-0.1)
    assert not found.gains
    assert found.p_value > 0.5


@pytest.mark.parametrize(("liars", "loss", "most"), [(1, 0.0, 0.12), (1, 0.04, 0.01), (3, 0.04, 0.05)])
def test_invented_votes_rarely_make_a_verdict(liars: int, loss: float, most: float) -> None:
    # 30 clients of 10 rows; some say that theirs is better by all there is, for certain. The others' gain has
    # a standard error of 0.3/√300 = 0.017. Three votes of +2 alone make a gain of 0.2.
    draws, fooled = np.random.default_rng(5), 0
    for _ in range(300):
        rows = draws.normal(-loss, 0.3, (30, 10))
        told = {client: evidence(each) for client, each in enumerate(rows)}
        told |= {client: evidence(np.full(10, 2.0)) for client in (0, 10, 25)[:liars]}
        fooled += prove_grouping(TRUTH, told, {}, method="FMCL").verdict.grouped
    assert fooled / 300 <= most


def test_a_client_with_a_thousand_rows_counts_for_three() -> None:
    # 29 clients of ten rows lose 0.1; one of 30 rows, which is all that count of its thousand, gains 2. With
    # as many as it has, the mean would be 1.5.
    found = compare([*[evidence(np.tile([-0.2, 0.0], 5))] * 29, evidence(np.full(30, 2.0))])
    assert found.gain == pytest.approx((-29 + 60) / 320)
    assert not found.gains


def test_two_wide_rows_hide_no_gain_of_the_others() -> None:
    # 29 clients of five rows gain 0.2; the last, of two rows, has differences of −2 and 2.
    honest = [evidence(0.2 + np.array([-0.3, -0.15, 0.0, 0.15, 0.3]))] * 29
    assert compare([*honest, evidence(np.array([-2.0, 2.0]))]).p_value < 1e-4
