import numpy as np
import pytest

from fedclust.clustering.prototype_groups import Parameters, Prototypes
from fedclust.runs.shifts import agreement, gini, label_shift, looks_shift, quantity_skew, renaming


def test_label_shift_by_hand() -> None:
    # Everybody's shares are 1/2 and 1/2. The clients' are (1, 0) and (0, 1): each is 1/2 away.
    # By chance, of 100 examples: ½ · 2 · √(2 · ¼ / (100 π)) = 0.0399.
    seen = label_shift(np.array([[100, 0], [0, 100]]))
    assert seen.size == pytest.approx(0.5 - 0.0399, abs=1e-4)
    assert seen.seen
    assert "46 % of a client's examples" in seen.text


def test_alike_clients_have_no_label_shift() -> None:
    draws = np.random.default_rng(0)
    counts = draws.multinomial(200, np.full(10, 0.1), size=30)
    told = label_shift(counts)
    assert not told.seen
    assert told.size < 0.02


def test_a_small_but_certain_label_shift_is_not_worth_the_name() -> None:
    # 51 % against 49 % of a million examples is certain, and 1 % of them would have to change class.
    told = label_shift(np.array([[510_000, 490_000], [490_000, 510_000]]))
    assert told.p_value < 1e-9
    assert told.size == pytest.approx(0.01, abs=1e-3)
    assert not told.seen


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([5, 5, 5, 5], 0.0),
        # Pairs (ordered) differ by 2 twice among 4 pairs: mean 1, half of it over the mean 2 is 1/4.
        ([1, 3], 0.25),
        ([0, 0, 0, 8], 0.75),  # 1 − 1/K
    ],
)
def test_gini_by_hand(numbers: list[int], expected: float) -> None:
    assert gini(np.array(numbers)) == pytest.approx(expected)


def test_quantity_skew_says_who_has_how_many() -> None:
    told = quantity_skew(np.array([10, 20, 1500]))
    assert told.seen
    assert "10 to 1,500 training examples, the median 20" in told.text
    assert not quantity_skew(np.array([90, 100, 110])).seen


def _groups(*means: list[float], number: float = 1e9) -> Prototypes:
    """Make groups with so many examples that chance makes nothing of their distance."""
    rows = np.array(means, dtype=float)[:, :, None]
    return Prototypes(rows, np.full(rows.shape[:2], number), np.ones(rows.shape[1]))


def test_names_that_changed_by_hand() -> None:
    # The second group calls 1 what the first calls 0, and the other way round: (0, 10, 20) and (10, 0, 20)
    # are 100 + 100 + 0 apart as named, and nothing when 0 and 1 are exchanged.
    found = renaming(_groups([0, 10, 20], [10, 0, 20]), 0, 1)
    assert found.explained == pytest.approx(1)
    assert found.pairs == ((0, 1), (1, 0))


def test_other_looks_are_no_other_names() -> None:
    # All moved by 4: 16 · 3 = 48 as named; every other naming is further apart.
    found = renaming(_groups([0, 10, 20], [4, 14, 24]), 0, 1)
    assert found.explained == 0
    assert found.pairs == ()


def test_chance_is_not_taken_for_other_names() -> None:
    # σ² = 1 and n = 2 each: chance alone makes prototypes 1/2 + 1/2 = 1 apart. (0, 3) and (1, 3) are 1 and 0
    # apart as named, so less than chance: nothing is left to explain.
    rows = np.array([[0.0, 3.0], [1.0, 3.0]])[:, :, None]
    found = renaming(Prototypes(rows, np.full((2, 2), 2.0), np.ones(2)), 0, 1)
    assert found.explained == 0


def test_classes_that_only_one_group_has_take_no_part() -> None:
    groups = _groups([0, 10, 20, 77], [10, 0, 20, 0])
    groups.counts[0, 3] = 0
    assert renaming(groups, 0, 1).pairs == ((0, 1), (1, 0))


def _prototypes(kind: str, seed: int, number: int = 12, classes: int = 6, width: int = 8):
    """Simulate clients of two kinds: half of them call classes by other names, or look different."""
    draws = np.random.default_rng(seed)
    centres = draws.normal(0, 3, (classes, width))
    names = np.roll(np.arange(classes), 1)
    counts = draws.integers(8, 20, (number, classes))
    means, scatter = np.zeros((number, classes, width)), np.zeros((number, classes))
    for client in range(number):
        other = client >= number // 2
        for label in range(classes):
            centre = centres[names[label]] if other and kind == "concept" else centres[label]
            centre = centre + 4 * (other and kind == "feature")
            rows = draws.normal(centre, 1, (counts[client, label], width))
            means[client, label], scatter[client, label] = rows.mean(axis=0), rows.var(axis=0, ddof=1).sum()
    return means.astype("f4"), counts, scatter


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("kind", "feature", "concept"),
    [("none", False, False), ("feature", True, False), ("concept", False, True)],
)
def test_looks_and_names_are_told_apart(kind: str, feature: bool, concept: bool, seed: int) -> None:
    looks = looks_shift(*_prototypes(kind, seed), Parameters())
    assert (looks.feature.seen, looks.concept.seen) == (feature, concept)
    known = np.repeat([0, 1], 6) if kind != "none" else np.zeros(12, dtype=int)
    assert looks.groups.tolist() == known.tolist()


def test_the_names_are_said() -> None:
    looks = looks_shift(*_prototypes("concept", 1), Parameters(), [*"abcdef"])
    # Label c of the second kind is what the first calls c − 1: what is "a" here is "b" there.
    assert (
        "group 0 and group 1: what group 0 calls a, group 1 calls b, and 5 more classes" in looks.concept.text
    )
    named = looks_shift(*_prototypes("concept", 1), Parameters(), (), [*"ABCDEFGHIJKL"]).concept.text
    assert "group 0 (A, B, C, D, E and 1 more) and group 1 (G, H, I, J, K and 1 more): what" in named


def test_two_classes_that_are_swapped_are_the_pair_and_one_more() -> None:
    means, counts, scatter = _prototypes("none", 2)
    means[6:, [0, 1]] = means[6:, [1, 0]]
    text = looks_shift(means, counts, scatter, Parameters(), [*"abcdef"]).concept.text
    assert text.endswith("what group 0 calls a, group 1 calls b, and 1 more class")


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
