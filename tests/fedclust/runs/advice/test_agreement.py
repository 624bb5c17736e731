"""Do clients pull the model in the same direction?"""

import numpy as np
import pytest

from fedclust.runs.advice.agreement import agreement


def test_agreement_by_hand() -> None:
    # Own cosines 1 and 1; the two clients are at a right angle.
    told = agreement([[1, 0], [0, 2]], [[3, 0], [0, 1]])
    assert (told.own, told.others, told.ratio) == (1, 0, 0)
    # Opposed: −1.
    assert agreement([[1, 0], [-1, 0]], [[2, 0], [-5, 0]]).ratio == -1


def test_batches_are_taken_out() -> None:
    # Everybody's direction is e; each update adds as much noise, all at right angles to each other: every
    # cosine is 1/2, own and others alike, so the clients are of one kind.
    noise = np.eye(6)
    first = np.column_stack([np.ones(3), noise[:3]])
    second = np.column_stack([np.ones(3), noise[3:]])
    told = agreement(first, second)
    assert told.own == pytest.approx(0.5)
    assert told.others == pytest.approx(0.5)
    assert told.ratio == pytest.approx(1)


def test_updates_that_are_batches_only_tell_nothing() -> None:
    rows = np.eye(4)
    assert np.isnan(agreement(rows[:2], rows[2:]).ratio)


def test_clients_without_an_update_count_for_nothing() -> None:
    plain = agreement([[1, 0], [0, 2]], [[3, 0], [1, 1]])
    idle = agreement([[1, 0], [0, 0], [0, 2]], [[3, 0], [0, 1], [1, 1]])
    assert idle.ratio == pytest.approx(plain.ratio)
    assert idle.cosines.shape == (3, 3)


def test_the_numbering_and_the_lengths_do_not_matter() -> None:
    draws = np.random.default_rng(0)
    first, second = draws.normal(1, 1, (2, 7, 20))
    order, factors = draws.permutation(7), draws.uniform(0.1, 9, (7, 1))
    told, other = agreement(first, second), agreement((first * factors)[order], second[order])
    assert told.ratio == pytest.approx(other.ratio)
    np.testing.assert_allclose(told.cosines[np.ix_(order, order)], other.cosines)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([[1.0, 0]], [[1.0, 0]], "at least two clients must have updates, got 1"),
        ([[1.0, 0], [0, 0]], [[1.0, 0], [1, 1]], "at least two clients must have updates, got 1"),
        ([[1.0], [2.0]], [[1.0, 0], [1, 1]], "one shape"),
    ],
)
def test_what_cannot_be_compared_is_refused(first: list, second: list, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        agreement(first, second)
