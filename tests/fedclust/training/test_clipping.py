"""Clipping on a node, against a literal loop over clients and their parameters."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedclust.training import CohortUpdate
from fedclust.training.clipping import clip_updates

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
