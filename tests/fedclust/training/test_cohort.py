"""Batches, cutting passes, averaging client models, and clipping: against literal loops."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from fedclust.support.rng import generator
from fedclust.training import cohort as module
from fedclust.training.parameters import LocalTraining
from fedclust.typing import State


def update(failed: dict[int, str] | None = None) -> module.CohortUpdate:
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0], [10.0, 10.0]])
    state, losses = {"w": values, "count": torch.tensor([1, 2, 8])}, (np.zeros(1),) * 3
    return module.CohortUpdate(np.array([4, 7, 9]), state, losses, np.array([1, 3, 4]), failed or {})


def mean_of(cohort: module.CohortUpdate, clients: set[int] | None = None) -> State:
    total = module.ModelMean()
    total.add(cohort, clients)
    return total.state()


@pytest.mark.parametrize(
    ("failed", "clients", "values", "counter"),
    [
        # (1*1 + 3*3 + 4*10) / 8 = 6.25 and (1*2 + 3*6 + 4*10) / 8 = 7.5; the largest of 1, 2 and 8
        ({}, None, [6.25, 7.5], 8),
        # (1*1 + 3*3) / 4 = 2.5 and (1*2 + 3*6) / 4 = 5
        ({9: "diverged"}, None, [2.5, 5.0], 2),
        # (1*1 + 4*10) / 5 = 8.2 and (1*2 + 4*10) / 5 = 8.4
        ({}, {4, 9}, [8.2, 8.4], 8),
        ({}, {4}, [1.0, 2.0], 1),
    ],
)
def test_a_mean_is_weighted_by_examples(failed, clients, values, counter) -> None:
    cohort = update(failed)
    cohort.state["w"][[client in failed for client in (4, 7, 9)]] = float("nan")
    mean = mean_of(cohort, clients)
    torch.testing.assert_close(mean["w"], torch.tensor(values, dtype=torch.float64))
    assert mean["count"].item() == counter
    assert mean["count"].dtype == torch.int64
    assert [*mean] == ["w", "count"]


def test_passes_add_up() -> None:
    total = module.ModelMean()
    total.add(update(), clients=[9])
    total.add(update({4: "lost", 7: "lost", 9: "lost"}))
    total.add(update(), clients=[4, 7])
    assert total.weight == 8
    torch.testing.assert_close(total.state(), mean_of(update()), rtol=0, atol=0)


def test_sums_keep_what_float32_would_lose() -> None:
    # (2**24 + 1 + 1 + 2) / 4 = 2**22 + 1; float32 has no 2**24 + 1, so its sums would end half a unit lower.
    state = {"w": torch.tensor([2.0**24, 1.0, 1.0, 2.0])[:, None]}
    big = module.CohortUpdate(np.arange(4), state, (np.zeros(1),) * 4, np.ones(4, dtype=np.int64), {})
    assert mean_of(big)["w"].item() == 2.0**22 + 1


def test_a_plain_mean_counts_every_client_once() -> None:
    total = module.ModelMean(equal=True)
    total.add(update(), {4, 9})
    total.add(update({4: "diverged", 9: "diverged"}))
    # Clients 4, 9 and 7: (1 + 10 + 3) / 3 and (2 + 10 + 6) / 3
    torch.testing.assert_close(total.state()["w"], torch.tensor([14 / 3, 6.0], dtype=torch.float64))
    assert total.weight == 3


NAMES = ("weight", "bias")


def _pass(clients: int, seed: int, scale: float = 1.0, failed: dict[int, str] | None = None):
    """Make a pass of clients that started from one of two models, with a buffer that training changed."""
    draws = torch.Generator().manual_seed(seed)
    shapes = {"weight": (3, 2), "bias": (3,), "running": (2,)}
    models = [{name: torch.randn(shape, generator=draws) for name, shape in shapes.items()} for _ in range(2)]
    models = [model | {"steps": torch.tensor(0)} for model in models]
    starts = {client: models[client % 2] for client in range(clients)}
    state = {
        name: torch.stack(
            [starts[k][name] + scale * (k + 1) * torch.randn(shape, generator=draws) for k in range(clients)]
        )
        for name, shape in shapes.items()
    }
    state["steps"] = torch.arange(clients) + 5
    losses, numbers = tuple(np.full(k + 1, 2.0) for k in range(clients)), np.arange(clients) + 10
    update = module.CohortUpdate(np.arange(clients), state, losses, numbers, failed or {})
    return update, starts


def _length(update, starts, client: int) -> float:
    total = 0.0
    for name in NAMES:
        change = update.state[name][client].double() - starts[client][name].double()
        total += float((change * change).sum())
    return total**0.5


@given(st.integers(1, 6), st.integers(0, 50), st.floats(0.01, 10), st.floats(0.01, 10))
def test_against_a_loop_over_clients(clients: int, seed: int, scale: float, clip: float) -> None:
    update, starts = _pass(clients, seed, scale)
    clipped, within = module.clip_updates(update, starts, NAMES, clip)
    for client in range(clients):
        length = _length(update, starts, client)
        for name in NAMES:
            start = starts[client][name].double()
            change = update.state[name][client].double() - start
            expected = start + change * min(1.0, clip / length)
            np.testing.assert_allclose(clipped.state[name][client], expected, rtol=1e-5, atol=1e-5)
        assert _length(clipped, starts, client) <= clip  # not only about: in the types that are sent
        if abs(length - clip) > 1e-4 * clip + 1e-4:
            assert within[client] == (length <= clip)


def test_a_short_update_stays_what_it_is_to_the_bit_and_nothing_else_is_left() -> None:
    update, starts = _pass(3, 1, failed={1: "non-finite loss at step 3"})
    for name in NAMES:
        update.state[name][1] = starts[1][name]  # as the trainer leaves it
    clipped, within = module.clip_updates(update, starts, NAMES, 1000.0)
    assert within.all()
    assert all(torch.equal(clipped.state[name], update.state[name]) for name in NAMES)
    for client in range(3):
        assert torch.equal(clipped.state["running"][client], starts[client]["running"])
        assert clipped.state["steps"][client] == 0
    assert [losses.tolist() for losses in clipped.losses] == [[0.0]] * 3
    assert clipped.num_examples.tolist() == [1, 1, 1]
    assert clipped.failed == {}
    assert _length(clipped, starts, 1) == 0.0


def test_a_clip_below_the_rounding_of_the_model_is_refused() -> None:
    update, starts = _pass(1, 0)
    starts[0]["weight"] += 1e6
    with pytest.raises(ValueError, match="^clip must be larger than the rounding of the model, got 0.01$"):
        module.clip_updates(update, starts, NAMES, 0.01)


def test_a_part_has_its_clients_and_no_more_steps_than_they_take() -> None:
    """Three clients of 3, 2 and 1 steps in batches of 2."""
    steps, rows = np.array([3, 2, 1]), np.arange(18).reshape(3, 3, 2)
    batches = module.Batches(rows, 2 * (np.arange(3) < steps[:, None]), steps)
    jobs = [module.Job(10 + index, np.arange(index), {}) for index in range(3)]
    work = module.Work(jobs, batches, torch.arange(9).view(3, 3), 0.1, 0.2)
    part = work.select([1, 2])
    assert [job.client for job in part.jobs] == [11, 12]
    assert part.batches.steps.tolist() == [2, 1]
    assert part.batches.rows.tolist() == [[[6, 7], [8, 9]], [[12, 13], [14, 15]]]
    assert part.batches.sizes.tolist() == [[2, 2], [2, 0]]
    assert part.keys.tolist() == [[3, 4], [6, 7]]
    assert (part.learning_rate, part.proximal_mu) == (0.1, 0.2)
    short = work.select(range(3), steps=2)
    assert short.batches.steps.tolist() == [2, 2, 1]
    assert short.batches.rows.shape == (3, 2, 2)
    assert work.select([2], steps=5).batches.rows.shape == (1, 1, 2)
    assert work.select([0, 2]).keys.tolist() == [[0, 1, 2], [6, 7, 8]]


@pytest.mark.parametrize(
    ("loss", "value", "why"),
    [
        (2.0, torch.inf, "non-finite parameters after the last step"),
        (2.0**24, 5.0, "loss above 2^24 nats at step 2"),
        (torch.inf, torch.nan, "non-finite loss at step 2"),
        (2.0, 5.0, None),
    ],
)
def test_who_diverged_goes_back_to_its_start(loss: float, value: float, why: str | None) -> None:
    # Of three clients the second may diverge, by one of its values; the third's sum alone overflows, and what
    # is written after its one step does not count.
    start = {"w": torch.zeros(2), "b": torch.zeros(1)}
    jobs = [module.Job(10 + index, np.arange(2), start) for index in range(3)]
    batches = module.Batches(np.zeros((3, 2, 2), dtype=np.int64), np.full((3, 2), 2), np.array([2, 2, 1]))
    work = module.Work(jobs, batches, torch.zeros(3, 2, dtype=torch.int64), 0.1, 0.0)
    state = {"w": torch.tensor([[1.0, 2], [3, 4], [3e38, 3e38]]), "b": torch.tensor([[1], [value], [2]])}
    losses = torch.tensor([[1.0, 2], [1, loss], [1, torch.nan]])
    found = module.collect(SimpleNamespace(changing=("w", "b")), work, state, losses, {})
    assert found.failed == ({} if why is None else {11: why})
    expected = [3, 4, value] if why is None else [0, 0, 0]
    assert [*found.state["w"][1], *found.state["b"][1]] == expected
    assert found.state["b"][[0, 2], 0].tolist() == [1, 2]
    assert [len(each) for each in found.losses] == [2, 2, 1]


# -- Batches ------------------------------------------------------------------------------------------------


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
    batches = module.draw_batches(CLIENTS, ROWS, training(epochs=epochs, steps=steps), seed=1, server_round=6)
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
    assert module.draw_batches([1], [np.arange(3)], training(), 0, 1).rows.shape == (1, 2, 3)


def test_some_clients_may_have_steps_of_their_own() -> None:
    own = [None, None, 3, None, 5]  # clients 8 and 11, which have five rows each
    batches = module.draw_batches(CLIENTS, ROWS, training(), seed=1, server_round=6, own_steps=own)
    assert batches.steps.tolist() == [6, 2, 3, 2, 5]
    usual = module.draw_batches(CLIENTS, ROWS, training(), seed=1, server_round=6)
    for index, steps in ((0, 6), (1, 2), (2, 3), (3, 2), (4, 4)):
        np.testing.assert_array_equal(batches.rows[index, :steps], usual.rows[index, :steps])
    draws = generator(1, "batches", 6, 11)
    expected = literal(ROWS[4], 4, 5, draws)
    assert [batches.rows[4, step, : batches.sizes[4, step]].tolist() for step in range(5)] == expected
    assert not batches.sizes[2, 3:].any()


@pytest.mark.parametrize(("epochs", "steps"), [(2, None), (None, 7), (None, 1)])
def test_how_many_samples_a_cohort_sees(epochs: int | None, steps: int | None) -> None:
    hyperparameters = training(epochs=epochs, steps=steps)
    batches = module.draw_batches(CLIENTS, ROWS, hyperparameters, seed=1, server_round=6)
    sizes = np.array([len(rows) for rows in ROWS])
    assert module.total_seen(sizes, hyperparameters) == batches.sizes.sum()
    assert module.total_seen(np.array([0, 10, 0]), hyperparameters) == batches.sizes[0].sum()


@pytest.mark.parametrize(
    ("samples", "expected"),
    # Ten examples in batches of four: 4, 4, 2, and again.
    [(1, 1), (4, 1), (5, 2), (9, 3), (10, 3), (11, 4), (20, 6), (27, 8)],
)
def test_steps_after_which_so_many_samples_are_seen(samples: int, expected: int) -> None:
    assert module.steps_to_see(samples, 10, training()) == expected
