"""Who answers for the clients: what one client's answer is does not touch the others', whoever is asked."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from torch import nn

from fedclust import LocalTraining
from fedclust.clients.app import answers, app
from fedclust.clients.node import Node, node_of_objects
from fedclust.data.arrays import from_arrays
from fedclust.federation import Federation
from fedclust.grids.client_grid import ClientGrid, WrappedGrid
from fedclust.grids.local_grid import LocalGrid
from fedclust.messages import codec
from fedclust.messages.evaluation import LossesQuestion
from fedclust.messages.models import from_state
from fedclust.runs.server import clients_here

ODD = 2
"""The client whose answers are odd, of four."""


@dataclass(frozen=True, eq=False)
class Brightness:
    mean: Annotated[float, codec.Real(0, 1)]
    rows: Annotated[int, codec.Whole(1)]


@dataclass(frozen=True, eq=False)
class BrightnessQuestion(codec.Question[Brightness]):
    kind = "query.mean_pixel"


GOOD = Brightness(0.5, 3)
_returned: Any = None  # by the function below, which can be registered once


@answers(BrightnessQuestion)
def brightness(node: Node, asked: Any) -> Any:
    replies, errors = _returned
    return {client: GOOD for client in asked if client != ODD} | replies, errors


@pytest.fixture(scope="module")
def node() -> Node:
    clients = [(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]))] * 4
    training = LocalTraining(learning_rate=0.1, batch_size=4, steps=1)
    return node_of_objects(from_arrays(clients, num_classes=2, seed=0), nn.Linear(2, 2), training, 0)


@pytest.fixture(params=["here", "flower"])
def federation(request: pytest.FixtureRequest, node: Node, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """The same clients, in this process and behind a grid."""
    if request.param == "here":
        return Federation(clients_here(node))
    monkeypatch.setattr(Node, "of", classmethod(lambda *_: node))
    monkeypatch.setattr(import_module("fedclust.clients.app"), "own_sites", lambda _: None)
    grid = ClientGrid(LocalGrid(app, {}))
    grid.connect()
    return Federation(grid)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Brightness(2.0, 3), "client 2: mean must be in [0, 1], got 2.0"),
        (Brightness(0.5, 0), "client 2: rows must be in [1, 281474976710656], got 0"),
        (Brightness(float("nan"), 3), "client 2: mean must be in [0, 1], got nan"),
        (Brightness(0.5, float("nan")), "ValueError: cannot convert float NaN to integer"),  # type: ignore[arg-type]
        (Brightness(2.0, float("inf")), "OverflowError: cannot convert float infinity to integer"),  # type: ignore[arg-type]
        (Brightness("low", 3), "ValueError: could not convert string to float: 'low'"),  # type: ignore[arg-type]
        (Brightness(None, 3), "client 2: no 'mean' in reply, keys are ['rows']"),  # type: ignore[arg-type]
        (BrightnessQuestion(), "client 2: no 'config' in reply, keys are []"),
        (None, "TypeError: must be called with a dataclass type or instance"),
    ],
)
def test_an_answer_that_cannot_be_used_is_its_clients_failure(
    federation: Federation, answer: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}._returned", ({ODD: answer}, {}))
    found = federation.ask(BrightnessQuestion())
    assert list(found.replies) == [0, 1, 3]
    assert found.failures == {ODD: reason}


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (({}, {}), "the node's reply lacks this client"),
        (({ODD: GOOD}, {ODD: "no camera"}), "no camera"),
        (({}, {ODD: ValueError("no camera")}), "no camera"),
        (({"2": GOOD}, {}), "the node's reply lacks this client"),
        (({ODD: GOOD, 9: GOOD}, {9: "unknown"}), None),
        (({np.int64(ODD): GOOD}, {}), None),
    ],
)
def test_each_client_that_is_asked_has_one_answer_or_one_error(
    federation: Federation, returned: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}._returned", returned)
    found = federation.ask(BrightnessQuestion())
    assert list(found.replies) == ([0, 1, 2, 3] if reason is None else [0, 1, 3])
    assert found.failures == ({} if reason is None else {ODD: reason})
    assert federation.take_failures() == [
        {"client": client, "phase": "query.mean_pixel", "reason": why}
        for client, why in found.failures.items()
    ]


def test_a_model_that_has_diverged_wins_no_row_and_costs_no_client_its_answer(federation: Federation) -> None:
    # One of the four rows is for the test; the model without weights has a loss of log 2 on the other three.
    zeros = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    models = [from_state(zeros | {"bias": torch.full((2,), float("nan"))}), from_state(zeros)]
    wins = federation.wins(models, range(4))
    assert {client: rows.tolist() for client, rows in wins.items()} == {client: [0, 3] for client in range(4)}
    losses = federation.losses(models, range(4))  # there, it is the last choice: log 2 + log 2 + 1
    assert np.array([*losses.values()]) == pytest.approx(np.tile([2 * np.log(2) + 1, np.log(2)], (4, 1)))
    assert federation.losses(models[:1], range(4)) == {}  # no loss is known


def test_work_that_raises_fails_all_its_clients_in_one_line(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}._returned", (_Lines(), {}))
    assert {*federation.ask(BrightnessQuestion()).failures.values()} == {"OSError: no camera"}


class _Lines(dict[int, Brightness]):
    """Answers that cannot be merged, for a reason in two lines."""

    def __ror__(self, other: Any) -> Any:
        raise OSError("no\ncamera")


class _Answering(WrappedGrid):
    """A user's own grid: its replies come in any order, twice, and from clients that were not asked."""

    num_clients = None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        replies = [*self._grid.send_and_receive(messages, timeout=timeout)]
        wrong = Message(Error(0, "nobody asked"), reply_to=Message(replies[0].content, 3, "query"))
        early = Message(Error(0, "too early"), reply_to=Message(replies[0].content, 1, "query"))
        return [early, wrong, *reversed(replies)]


def test_replies_count_once_for_each_client_that_was_asked(toy: Any) -> None:
    federation = Federation(_Answering(toy(num_clients=4).grid()))
    found = federation.ask(LossesQuestion((toy.model(),)), [0, 1, 2])
    assert (list(found.replies), dict(found.failures)) == ([0, 1, 2], {})
