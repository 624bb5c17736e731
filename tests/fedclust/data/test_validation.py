"""Rows held out for the proof."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedclust import data
from fedclust.data.arrays import from_arrays
from fedclust.data.protocols import hold_out, hold_out_client
from fedclust.settings import compose, plain


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


# -- Prepared data --------------------------------------------------------------------------------------


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


# -- A user's own arrays --------------------------------------------------------------------------------


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
