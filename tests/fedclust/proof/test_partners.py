import numpy as np
import pytest

from fedclust.proof.coalitions import Arm, Choice, Scores, coalitions
from fedclust.proof.partners import gained_by_groups, lost_without

LISTED = coalitions(3)  # (0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,)


def _scores(corrected: bool, *means: float) -> Scores:
    """Make a site's scores, of which those of arms with the other correction are 9, in everybody's order."""
    rows = [each for mean in means for each in ((9.0, mean) if corrected else (mean, 9.0))]
    of_row = np.array([0.0, 0.1, 0.0, 0.1])
    return Scores.of(np.array(rows)[:, None] + of_row)


def _choices(*corrected: bool) -> list[Choice | None]:
    return [Choice(Arm(0, each), Arm(0, each)) for each in corrected]


def test_what_the_others_lose_is_of_their_rows_and_of_the_correction_that_stands() -> None:
    # Site 1's coalitions: everyone, 01, 12, alone; site 2's: everyone, 02, 12, alone.
    scores = {1: _scores(True, 0.2, 0.3, 0.26, 0.4), 2: _scores(False, 0.3, 0.5, 0.34, 0.6)}
    lost = lost_without(0, LISTED, _choices(False, True, False), scores)
    assert lost is not None
    assert lost.mean == pytest.approx((0.06 + 0.04) / 2)  # coalition 12 minus everyone, 4 rows each
    assert lost.rows == 8
    assert lost.high - lost.low == pytest.approx(0, abs=1e-6)  # every row loses as much


def test_nothing_is_said_of_sites_that_did_not_answer_or_joined_late() -> None:
    scores = {1: _scores(True, 0.2, 0.3, 0.26, 0.4)}
    assert lost_without(1, LISTED, _choices(True, True, True), scores) is None
    assert lost_without(0, LISTED, [None, None, None], scores) is None
    assert gained_by_groups(["a", "a", "a"], LISTED, _choices(True, True, True), scores) is None


def test_groups_are_compared_with_everyone_and_a_lone_one_too() -> None:
    # Groups a: sites 0 and 2; b: site 1. Of site 0 coalitions everyone, 01, 02, alone.
    scores = {
        0: _scores(True, 0.5, 0.9, 0.4, 0.9),
        1: _scores(True, 0.5, 0.9, 0.9, 0.3),
        2: _scores(True, 0.5, 0.6, 0.9, 0.9),
    }
    gained = gained_by_groups(["a", "b", "a"], LISTED, _choices(True, True, True), scores)
    assert gained is not None
    assert gained.mean == pytest.approx((0.1 + 0.2 - 0.1) / 3)
