"""Averaging client models; clipping, against a literal loop over clients and their parameters."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from fedclust.training.cohort import CohortUpdate, ModelMean, clip_updates
from fedclust.typing import State


def update(failed: dict[int, str] | None = None) -> CohortUpdate:
    return CohortUpdate(
        clients=np.array([4, 7, 9]),
        state={"w": torch.tensor([[1.0, 2.0], [3.0, 6.0], [10.0, 10.0]]), "count": torch.tensor([1, 2, 8])},
        losses=(np.zeros(1),) * 3,
        num_examples=np.array([1, 3, 4]),
        failed=failed or {},
    )


def mean_of(cohort: CohortUpdate, clients: set[int] | None = None) -> State:
    total = ModelMean()
    total.add(cohort, clients)
    return total.state()


def test_mean_is_weighted_by_examples() -> None:
    mean = mean_of(update())
    # (1*1 + 3*3 + 4*10) / 8 = 6.25 and (1*2 + 3*6 + 4*10) / 8 = 7.5
    torch.testing.assert_close(mean["w"], torch.tensor([6.25, 7.5]))
    assert mean["count"].item() == 8  # the largest of 1, 2 and 8
    assert mean["count"].dtype == torch.int64
    assert mean["w"].dtype == torch.float32


def test_the_largest_counter_ignores_failures_and_other_clients() -> None:
    assert mean_of(update(failed={9: "diverged"}))["count"].item() == 2
    assert mean_of(update(), {4})["count"].item() == 1
    total = ModelMean()
    total.add(update(), clients=[9])
    total.add(update(), clients=[4, 7])
    exact = total.state()
    assert exact["count"].item() == 8
    assert exact["count"].dtype == torch.int64
    assert exact["w"].dtype == torch.float64
    assert [*exact] == ["w", "count"]


def test_failed_clients_do_not_count_whatever_they_hold() -> None:
    broken = update(failed={9: "diverged"})
    broken.state["w"][2] = float("nan")
    # (1*1 + 3*3) / 4 = 2.5 and (1*2 + 3*6) / 4 = 5
    torch.testing.assert_close(mean_of(broken)["w"], torch.tensor([2.5, 5.0]))


def test_mean_of_some_clients() -> None:
    # (1*1 + 4*10) / 5 = 8.2 and (1*2 + 4*10) / 5 = 8.4
    torch.testing.assert_close(mean_of(update(), {4, 9})["w"], torch.tensor([8.2, 8.4]))


def test_passes_add_up() -> None:
    total = ModelMean()
    total.add(update(), clients=[4])
    total.add(update(failed={4: "lost", 7: "lost", 9: "lost"}))
    total.add(update(), clients=[7, 9])
    assert total.weight == 8
    torch.testing.assert_close(total.state(), mean_of(update()), rtol=0, atol=0)


def test_sums_keep_what_float32_would_lose() -> None:
    # (2**24 + 1 + 1 + 2) / 4 = 2**22 + 1; float32 has no 2**24 + 1, so its sums would end half a unit lower.
    big = CohortUpdate(
        clients=np.arange(4),
        state={"w": torch.tensor([2.0**24, 1.0, 1.0, 2.0])[:, None]},
        losses=(np.zeros(1),) * 4,
        num_examples=np.ones(4, dtype=np.int64),
        failed={},
    )
    assert mean_of(big)["w"].item() == 2.0**22 + 1


def test_a_mean_of_no_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="a mean needs at least one client that trained, got none"):
        mean_of(update(failed={4: "a", 7: "b", 9: "c"}))


def test_a_plain_mean_counts_every_client_once() -> None:
    total = ModelMean(equal=True)
    total.add(update(), {4, 9})
    total.add(update(failed={4: "diverged", 9: "diverged"}))
    # Clients 4, 9 and 7: (1 + 10 + 3) / 3 and (2 + 10 + 6) / 3
    torch.testing.assert_close(total.state()["w"], torch.tensor([14 / 3, 6.0]))
    assert total.weight == 3


NAMES = ("weight", "bias")


def _pass(clients: int, seed: int, scale: float = 1.0, failed: dict[int, str] | None = None):
    """Make a pass of clients that started from one of two models, with a buffer that training changed."""
    draws = torch.Generator().manual_seed(seed)
    shapes = {"weight": (3, 2), "bias": (3,), "running": (2,)}
    models = [
        {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}
        | {"steps": torch.tensor(0)}
        for _ in range(2)
    ]
    starts = {client: models[client % 2] for client in range(clients)}
    state = {
        name: torch.stack(
            [starts[k][name] + scale * (k + 1) * torch.randn(shape, generator=draws) for k in range(clients)]
        )
        for name, shape in shapes.items()
    }
    state["steps"] = torch.arange(clients) + 5
    update = CohortUpdate(
        np.arange(clients),
        state,
        tuple(np.full(k + 1, 2.0) for k in range(clients)),
        np.arange(clients) + 10,
        failed or {},
    )
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
    clipped, within = clip_updates(update, starts, NAMES, clip)
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


def test_a_short_update_stays_what_it_is_to_the_bit() -> None:
    update, starts = _pass(3, 1)
    clipped, within = clip_updates(update, starts, NAMES, 1000.0)
    assert within.all()
    assert all(torch.equal(clipped.state[name], update.state[name]) for name in NAMES)


def test_nothing_else_is_left_that_says_something_of_a_client() -> None:
    update, starts = _pass(3, 1)
    clipped, _ = clip_updates(update, starts, NAMES, 0.5)
    for client in range(3):
        assert torch.equal(clipped.state["running"][client], starts[client]["running"])
        assert clipped.state["steps"][client] == 0
    assert [losses.tolist() for losses in clipped.losses] == [[0.0]] * 3
    assert clipped.num_examples.tolist() == [1, 1, 1]


def test_a_client_that_failed_has_an_update_of_zero() -> None:
    update, starts = _pass(2, 1, failed={1: "non-finite loss at step 3"})
    for name in NAMES:
        update.state[name][1] = starts[1][name]  # as the trainer leaves it
    clipped, within = clip_updates(update, starts, NAMES, 0.5)
    assert clipped.failed == {}
    assert _length(clipped, starts, 1) == 0.0
    assert within[1]


def test_a_clip_below_the_rounding_of_the_model_is_refused() -> None:
    update, starts = _pass(1, 0)
    starts[0]["weight"] += 1e6
    with pytest.raises(ValueError, match="^clip must be larger than the rounding of the model, got 0.01$"):
        clip_updates(update, starts, NAMES, 0.01)
