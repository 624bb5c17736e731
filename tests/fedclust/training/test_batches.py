"""Batches: order, sizes, padding, and independence of the cohort."""

import numpy as np
import pytest

from fedclust.support.rng import generator
from fedclust.training.cohort import draw_batches, num_steps, steps_to_see, total_seen
from fedclust.training.parameters import LocalTraining


def literal(rows: np.ndarray, batch_size: int, steps: int, draws: np.random.Generator) -> list[list[int]]:
    """Cut one permutation after another into slices until there are enough of them."""
    batches: list[list[int]] = []
    while len(batches) < steps:
        order = rows[draws.permutation(len(rows))]
        batches += [order[first : first + batch_size].tolist() for first in range(0, len(rows), batch_size)]
    return batches[:steps]


def training(**changes: int | None) -> LocalTraining:
    values: dict[str, int | None] = {"batch_size": 4, "epochs": 2}
    return LocalTraining(learning_rate=0.1, **{**values, **changes})  # type: ignore[arg-type]


ROWS = [np.arange(100, 110), np.array([7]), np.arange(20, 25), np.arange(40, 44), np.arange(60, 65)]
CLIENTS = [3, 0, 8, 5, 11]


@pytest.mark.parametrize(("epochs", "steps"), [(2, None), (None, 7)])
def test_batches_are_slices_of_permutations(epochs: int | None, steps: int | None) -> None:
    batches = draw_batches(CLIENTS, ROWS, training(epochs=epochs, steps=steps), seed=1, server_round=6)
    # 10, 1, 5, 4 and 5 rows in batches of 4 make 3, 1, 2, 1 and 2 steps an epoch.
    expected_steps = [6, 2, 4, 2, 4] if epochs else [7] * 5
    assert batches.steps.tolist() == expected_steps
    assert batches.rows.shape == (5, max(expected_steps), 4)
    for index, client in enumerate(CLIENTS):
        draws = generator(1, "batches", 6, client)
        for step, expected in enumerate(literal(ROWS[index], 4, expected_steps[index], draws)):
            size = batches.sizes[index, step]
            assert batches.rows[index, step, :size].tolist() == expected
            # Padding repeats the batch's own first row.
            assert (batches.rows[index, step, size:] == expected[0]).all()
        assert (batches.sizes[index, expected_steps[index] :] == 0).all()


def test_width_is_that_of_the_largest_client() -> None:
    assert draw_batches([1], [np.arange(3)], training(), 0, 1).rows.shape == (1, 2, 3)


def test_batches_do_not_depend_on_the_cohort() -> None:
    together = draw_batches(CLIENTS, ROWS, training(), seed=1, server_round=2)
    alone = draw_batches([8], [ROWS[2]], training(), seed=1, server_round=2)
    sizes = alone.sizes[0]
    np.testing.assert_array_equal(together.sizes[2, :4], sizes)
    for step, size in enumerate(sizes):
        np.testing.assert_array_equal(together.rows[2, step, :size], alone.rows[0, step, :size])


def test_batches_change_with_round_client_and_seed() -> None:
    def order(client: int, seed: int, server_round: int) -> list[int]:
        batches = draw_batches([client], [np.arange(50)], training(batch_size=50), seed, server_round)
        return batches.rows[0, 0].tolist()

    assert len({tuple(order(*key)) for key in [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2)]}) == 4


def test_no_clients_make_no_batches() -> None:
    assert draw_batches([], [], training(), 0, 1).rows.shape == (0, 0, 0)


def test_a_client_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="rows must not be empty, got none for client 4"):
        draw_batches([2, 4], [np.arange(3), np.arange(0)], training(), 0, 1)


def test_num_steps() -> None:
    # 1 -> 1, 4 -> 1, 5 -> 2 batches of at most 4, twice.
    assert num_steps(np.array([1, 4, 5]), training()).tolist() == [2, 2, 4]
    assert num_steps(np.array([1, 4, 5]), training(epochs=None, steps=3)).tolist() == [3, 3, 3]


def test_some_clients_may_have_steps_of_their_own() -> None:
    own = [None, None, 3, None, 5]  # clients 8 and 11, which have five rows each
    batches = draw_batches(CLIENTS, ROWS, training(), seed=1, server_round=6, own_steps=own)
    assert batches.steps.tolist() == [6, 2, 3, 2, 5]
    usual = draw_batches(CLIENTS, ROWS, training(), seed=1, server_round=6)
    for index, steps in ((0, 6), (1, 2), (2, 3), (3, 2), (4, 4)):
        np.testing.assert_array_equal(batches.rows[index, :steps], usual.rows[index, :steps])
    draws = generator(1, "batches", 6, 11)
    expected = literal(ROWS[4], 4, 5, draws)
    assert [batches.rows[4, step, : batches.sizes[4, step]].tolist() for step in range(5)] == expected
    assert not batches.sizes[2, 3:].any()


@pytest.mark.parametrize(("epochs", "steps"), [(2, None), (None, 7), (None, 1)])
def test_how_many_samples_a_cohort_sees(epochs: int | None, steps: int | None) -> None:
    hyperparameters = training(epochs=epochs, steps=steps)
    batches = draw_batches(CLIENTS, ROWS, hyperparameters, seed=1, server_round=6)
    sizes = np.array([len(rows) for rows in ROWS])
    assert total_seen(sizes, hyperparameters) == batches.sizes.sum()
    assert total_seen(np.array([0, 10, 0]), hyperparameters) == batches.sizes[0].sum()


@pytest.mark.parametrize(
    ("samples", "expected"),
    # Ten examples in batches of four: 4, 4, 2, and again.
    [(1, 1), (4, 1), (5, 2), (9, 3), (10, 3), (11, 4), (20, 6), (27, 8)],
)
def test_steps_after_which_so_many_samples_are_seen(samples: int, expected: int) -> None:
    assert steps_to_see(samples, 10, training()) == expected
