"""Clients that are left out of training."""

import numpy as np
import pytest

from fedclust.data.arrays import from_arrays
from fedclust.data.dataset import newcomers_last, num_held_out, training_first


@pytest.mark.parametrize(
    ("held_out", "expected"),
    [(0, 0), (0.2, 2), (0.25, 2), (0.01, 1), (3, 3), (9, 9), (0.9, 9)],  # of ten; 2.5 rounds to even
)
def test_a_share_or_a_number_is_left_out(held_out, expected) -> None:
    assert num_held_out(10, held_out) == expected


@pytest.mark.parametrize("held_out", [10, 0.99])
def test_a_client_must_be_left_to_train(held_out) -> None:
    with pytest.raises(ValueError, match=f"must leave a client to train, got {held_out} for 10 clients"):
        num_held_out(10, held_out)


@pytest.mark.parametrize("held_out", [-1, 1.5, True, "0.2", float("nan")])
def test_anything_else_is_refused(held_out) -> None:
    with pytest.raises(ValueError, match="holdout_clients must be a share in"):
        num_held_out(10, held_out)


def test_who_is_left_out_comes_last_and_depends_on_the_seed_alone() -> None:
    order = training_first(10, 0.3, seed=4)
    assert sorted(order) == list(range(10))
    assert sorted(order[:7]) == list(order[:7])
    assert sorted(order[7:]) == list(order[7:])
    np.testing.assert_array_equal(order, training_first(10, 3, seed=4))
    assert len({tuple(training_first(10, 3, seed)) for seed in range(20)}) > 10
    # Every client is left out about as often: 400 draws of 3 of 10, mean 120, standard deviation 9.2.
    drawn = np.bincount(
        np.concatenate([training_first(10, 3, seed)[7:] for seed in range(400)]), minlength=10
    )
    assert (np.abs(drawn - 120) < 5 * 9.2).all()


def test_clients_keep_their_rows_and_names() -> None:
    data = from_arrays([(np.full((4, 1), client, np.float32), [0, 1, 0, 1]) for client in range(5)], seed=3)
    found = newcomers_last(data, 2, seed=1)
    order = training_first(5, 2, seed=1)
    for number, client in enumerate(order.tolist()):
        np.testing.assert_array_equal(found.train[number], data.train[client])
        assert (found.inputs[found.train[number]] == client).all()
        assert (found.inputs[found.test[number]] == client).all()
    assert found.fingerprint != data.fingerprint
    assert newcomers_last(data, 0, seed=1) is data
