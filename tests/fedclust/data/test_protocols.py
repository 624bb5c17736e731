"""Who is tested on what, on counts that can be worked out by hand."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from fedclust import data
from fedclust.data.arrays import from_arrays
from fedclust.data.protocols import hold_out, hold_out_client, holdout, matched, uniform
from fedclust.settings.composition import compose, plain


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cells(clients: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    """Count the rows of each class that each client holds."""
    shape = (int(clients.max()) + 1, int(labels.max()) + 1)
    counts = np.zeros(shape, dtype=int)
    np.add.at(counts, (clients[clients >= 0], labels[clients >= 0]), 1)
    return counts.tolist()


@pytest.mark.parametrize(
    ("held", "fraction", "expected"),
    [
        ([[10, 0], [5, 5]], 0.2, [[2, 0], [1, 1]]),
        ([[3, 0]], 0.2, [[1, 0]]),  # 0.6 rounds to 1
        ([[2, 0]], 0.2, [[1, 0]]),  # 0.4 would be none: at least one
        ([[2, 0]], 0.9, [[1, 0]]),  # 1.8 would be all: one is left
        ([[8, 2]], 0.25, [[2, 0]]),  # 2.5 rounds to 2, and class 0 is due 2.0 of it
    ],
)
def test_holdout_by_hand(held: list[list[int]], fraction: float, expected: list[list[int]]) -> None:
    clients = np.concatenate([np.full(sum(row), client) for client, row in enumerate(held)])
    labels = np.concatenate([np.repeat([0, 1], row) for row in held])
    held_out = holdout(clients, labels, fraction, draws())
    found = [
        [int((held_out & (clients == k) & (labels == c)).sum()) for c in (0, 1)] for k in range(len(held))
    ]
    assert found == expected


def test_holdout_breaks_ties_between_classes_at_random() -> None:
    # 7 and 3 rows, a quarter: 1.75 and 0.75, in all 2; one row is class 0's, the other is drawn.
    labels = np.repeat([0, 1], [7, 3])
    held_out = [holdout(np.zeros(10, dtype=int), labels, 0.25, draws(seed)) for seed in range(20)]
    assert {tuple(np.bincount(labels[rows], minlength=2)) for rows in held_out} == {(2, 0), (1, 1)}


def test_holdout_draws_rows_and_skips_those_without_a_client() -> None:
    clients = np.array([0, 0, 0, -1])
    labels = np.zeros(4, dtype=int)
    found = {tuple(holdout(clients, labels, 0.3, draws(seed))) for seed in range(30)}
    assert found == {(True, False, False, False), (False, True, False, False), (False, False, True, False)}


def test_holdout_refuses_single_rows_and_no_shares() -> None:
    with pytest.raises(ValueError, match="got 1 for 2 of 3 clients, the first is client 0"):
        holdout(np.array([0, 1, 1, 2]), np.zeros(4, dtype=int), 0.2, draws())
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match=rf"test_fraction must be in \(0, 1\), got {fraction}"):
            holdout(np.array([0, 0]), np.zeros(2, dtype=int), fraction, draws())


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 99),
)
def test_holdout_is_the_rounded_share_of_each_client_and_within_one_in_each_class(
    rows: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    _, clients = np.unique([client for client, _ in rows] * 2, return_inverse=True)  # at least two rows each
    labels = np.array([label for _, label in rows] * 2)
    held_out = holdout(clients, labels, fraction, draws(seed))
    for client in range(clients.max() + 1):
        size = int((clients == client).sum())
        assert held_out[clients == client].sum() == min(max(round(fraction * size), 1), size - 1)
        for label in range(4):
            mine = (clients == client) & (labels == label)
            assert abs(held_out[mine].sum() - fraction * mine.sum()) < 1 + 1e-6


def test_matched_gives_the_share_of_each_class() -> None:
    # Of 4 training rows of class 0 client 0 holds 3 and client 1 one; of 2 of class 1 client 1 holds both.
    clients = np.array([0, 0, 0, 1, 1, 1])
    labels = np.array([0, 0, 0, 0, 1, 1] + [0] * 8 + [1] * 5)
    assert cells(matched(clients, labels, draws()), labels[6:]) == [[6, 0], [2, 5]]


def test_matched_leaves_out_the_share_of_rows_nobody_trains_on() -> None:
    labels = np.array([0, 0, 1, 1] + [0] * 4 + [1] * 4)
    dealt = matched(np.array([0, -1, -1, -1]), labels, draws())
    assert cells(dealt, labels[4:]) == [[2, 0]]
    assert (dealt == -1).sum() == 6


def test_matched_rounds_so_that_totals_come_out() -> None:
    # Two clients, each with half of both classes; 3 and 1 test rows: 1.5 + 0.5 is due to each, 2 in all.
    # After one row of class 0 each, one row of each class is left, and each client gets one of them.
    clients = np.array([0, 1, 0, 1])
    labels = np.array([0, 0, 1, 1, 0, 0, 0, 1])
    assert sorted(cells(matched(clients, labels, draws()), labels[4:])) == [[1, 1], [2, 0]]


def test_matched_prefers_large_remainders() -> None:
    # Client 0 is due 0.8 of class 0 and 0.2 of class 1, client 1 the reverse: 1 row each, of its main class.
    clients = np.array([0] * 4 + [1] + [0] + [1] * 4)
    labels = np.array([0] * 5 + [1] * 5 + [0, 1])
    for seed in range(5):
        assert cells(matched(clients, labels, draws(seed)), labels[10:]) == [[1, 0], [0, 1]]


def test_matched_first_gives_rows_to_clients_that_would_have_none() -> None:
    # 20 + 4 + 1 training rows, 15 test rows: due 12, 2.4 and 0.6. Everyone is served, and no row is left.
    clients = np.repeat([0, 1, 2], [20, 4, 1])
    labels = np.zeros(25 + 15, dtype=int)
    assert np.bincount(matched(clients, labels, draws())).tolist() == [12, 2, 1]
    # 41 + 1 training rows, 21 test rows: due 20.5 and 0.5, which np.round takes for 20 and 0.
    clients = np.repeat([0, 1], [41, 1])
    labels = np.zeros(42 + 21, dtype=int)
    assert np.bincount(matched(clients, labels, draws())).tolist() == [20, 1]


def test_matched_refuses_a_client_without_test_rows() -> None:
    with pytest.raises(ValueError, match="which has 1, got none for 2 of 3 clients, .* with 1 training rows"):
        matched(np.array([0, 1, 2]), np.zeros(4, dtype=int), draws())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=4, max_size=40), st.integers(0, 99))
def test_matched_is_within_one_of_the_due_in_each_class(rows: list[tuple[int, int]], seed: int) -> None:
    _, clients = np.unique([client for client, _ in rows], return_inverse=True)
    train = np.array([label for _, label in rows])
    test = np.tile(train, 3)  # enough for all clients
    dealt = matched(clients, np.concatenate([train, test]), draws(seed))
    for client in range(clients.max() + 1):
        for label in range(3):
            due = 3 * ((clients == client) & (train == label)).sum()
            assert ((dealt == client) & (test == label)).sum() == due


def test_uniform_gives_everyone_the_same_mix() -> None:
    labels = np.array([0, 1, 0, 1, 2, 2])
    assert cells(uniform(labels, 2, draws()), labels) == [[1, 1, 1], [1, 1, 1]]


def test_uniform_differs_by_one_at_most() -> None:
    labels = np.random.default_rng(0).integers(0, 3, 50)
    counts = np.array(cells(uniform(labels, 4, draws()), labels))
    assert sorted(counts.sum(axis=1)) == [12, 12, 13, 13]
    assert (np.ptp(counts, axis=0) <= 1).all()


def test_uniform_refuses_more_clients_than_rows() -> None:
    with pytest.raises(ValueError, match="at most the 2 rows of the official test part, got 3"):
        uniform(np.array([0, 1]), 3, draws())


@pytest.mark.parametrize(
    ("num_rows", "fraction", "held"),
    [
        (30, 0.1, 3),
        (26, 0.1, 3),  # round(2.6)
        (16, 0.1, 2),  # round(1.6)
        (14, 0.1, 0),  # round(1.4) = 1, and one row proves nothing
        (3, 0.9, 2),  # round(2.7) = 3, but one must be left to train on
        (2, 0.9, 0),
        (30, 0.0, 0),
    ],
)
def test_so_many_rows_are_held_out(num_rows: int, fraction: float, held: int) -> None:
    assert len(hold_out_client(num_rows, fraction, 0, 0)) == held


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 5),
)
def test_rows_are_divided(sizes: list[int], fraction: float, seed: int) -> None:
    ends = np.cumsum([0, *sizes])
    train = [np.arange(first, last) for first, last in pairwise(ends)]
    kept, held = hold_out(train, fraction, seed)
    for rows, left, out in zip(train, kept, held, strict=True):
        assert sorted([*left, *out]) == rows.tolist()
        assert len(left) >= 1
        assert len(out) != 1


def test_a_client_draws_by_itself() -> None:
    train = [np.arange(40), np.arange(40, 90), np.arange(90, 130)]
    together = hold_out(train, 0.2, 3)[1]
    assert together[2].tolist() == (90 + hold_out_client(40, 0.2, 3, 2)).tolist()
    assert (together[2] - 90).tolist() != together[0].tolist()  # the same number of rows, another draw
    assert together[0].tolist() != hold_out(train, 0.2, 4)[1][0].tolist()


@pytest.mark.parametrize("fraction", [-0.1, 1.0, True, "auto"])
def test_a_share_must_be_one(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"validation_fraction must be in \[0, 1\), got"):
        hold_out_client(10, fraction, 0, 0)


def _load(tmp_path: Path, *overrides: str, **keys: object) -> data.FederatedData:
    config = compose(["partition=domains", "partition.num_clients=6", *overrides])
    return data.load(plain(config.dataset), {**plain(config.partition), **keys}, 0, tmp_path)


def test_only_training_rows_are_held_out(tmp_path: Path) -> None:
    without, with_rows = _load(tmp_path, "proof=false"), _load(tmp_path, "proof=true")
    assert without.validation == ()
    for client in range(6):
        assert with_rows.test[client].tolist() == without.test[client].tolist()
        both = [*with_rows.train[client], *with_rows.validation[client]]
        assert sorted(both) == sorted(without.train[client].tolist())
        assert len(with_rows.validation[client]) == round(0.1 * len(without.train[client])) >= 2
    # What is particular to a client, such as noise, is drawn as if nothing were held out.
    assert torch.equal(with_rows.inputs, without.inputs)


def test_without_the_proof_data_is_what_it_was(tmp_path: Path) -> None:
    off = _load(tmp_path, "proof=false")
    config = compose(["partition=domains", "partition.num_clients=6"])
    node = {key: value for key, value in plain(config.partition).items() if key != "validation_fraction"}
    before = data.load(plain(config.dataset), node, 0, tmp_path)
    assert before.fingerprint == off.fingerprint  # the same place in the cache
    on = [_load(tmp_path, "proof=true"), _load(tmp_path, "proof=true", validation_fraction=0.3)]
    assert len({off.fingerprint, *(each.fingerprint for each in on)}) == 3


def test_pairs_give_rows_by_the_same_rule_and_triples_bring_theirs() -> None:
    x, y = torch.arange(50.0).view(50, 1), torch.arange(50) % 2
    triple = ((x[:30], y[:30]), (x[30:34], y[30:34]), (x[34:], y[34:]))
    clients = [(x, y), triple, (triple[0], None, triple[2])]
    plain_data = from_arrays(clients, seed=1)
    proven = from_arrays(clients, seed=1, validation_fraction=0.1)
    assert [len(rows) for rows in plain_data.validation] == [0, 4, 0]
    # 50 rows: a fifth of them, 10, test; of the 40 left a tenth, 4, is held out.
    assert [len(rows) for rows in proven.validation] == [4, 4, 0]
    assert [len(rows) for rows in proven.train] == [36, 30, 30]

    def values(found: data.FederatedData, rows: np.ndarray) -> list[float]:
        return sorted(found.inputs[rows].flatten().tolist())

    assert values(proven, proven.test[0]) == values(plain_data, plain_data.test[0])
    held_out = np.concatenate([proven.train[0], proven.validation[0]])
    assert values(proven, held_out) == values(plain_data, plain_data.train[0])
