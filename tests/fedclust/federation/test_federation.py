import numpy as np
import pytest
import torch
from flwr.app import Message

from fedclust.federation import ClientGrid, CohortView, Federation, FederationError
from fedclust.grids.client_grid import WrappedGrid
from fedclust.messages.description import DescriptionQuestion
from fedclust.messages.evaluation import LossesQuestion
from fedclust.messages.models import from_state
from fedclust.messages.training import UpdateQuestion


class Counting(WrappedGrid):
    """A grid that counts messages by kind."""

    def __init__(self, grid) -> None:
        super().__init__(grid)
        self.sent: list[str] = []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.sent += [message.metadata.message_type for message in messages]
        return super().send_and_receive(messages, timeout=timeout)


def test_clients_describe_themselves_once_for_all_runs(toy) -> None:
    grid = Counting(toy(num_clients=4).grid())
    federation = Federation(grid)
    assert federation.describe().train_counts.tolist() == [[1, 1], [2, 1], [3, 1], [4, 1]]
    assert federation.describe() is federation.run(5, 10.0).describe()
    assert grid.sent == [DescriptionQuestion.kind] * 4


def test_a_failure_is_the_clients_own_and_recorded(toy) -> None:
    federation = Federation(
        toy(num_clients=4, error=lambda client, _: "disk full" if client == 2 else None).grid()
    )
    losses = federation.losses((toy.model(), toy.model()), [1, 2])
    assert list(losses) == [1]
    assert federation.take_failures() == [{"client": 2, "phase": "query.losses", "reason": "disk full"}]
    assert federation.take_failures() == []


class Hanging(WrappedGrid):
    """A grid of nodes one of which never answers one kind of question."""

    def __init__(self, grid, node: int, kind: str) -> None:
        super().__init__(grid)
        self.node, self.kind, self.waited = node, kind, []

    def send_and_receive(self, messages, *, timeout=None):
        for reply in super().send_and_receive(list(messages), timeout=timeout):
            if (reply.metadata.src_node_id, reply.metadata.message_type) == (self.node, self.kind):
                self.waited.append(timeout)
            else:
                yield reply


def test_a_node_that_hangs_excludes_its_clients_after_the_timeout(toy) -> None:
    nodes = toy(num_clients=4).grid(2)._grid  # of clients 0 and 2, and of 1 and 3
    first = min(nodes.get_node_ids())
    hanging = Hanging(nodes, first, LossesQuestion.kind)
    grid = ClientGrid(hanging)
    grid.connect()
    federation = Federation(grid, timeout=7.5)
    assert list(federation.losses((toy.model(),), range(4))) == [1, 3]
    assert hanging.waited == [7.5]
    assert federation.take_failures() == [
        {"client": client, "phase": "query.losses", "reason": "no reply within 7.5 s"} for client in (0, 2)
    ]


def test_several_models_in_one_message(toy) -> None:
    near, far = toy.model(), toy.model()
    far["w"] = from_state({"w": torch.full((2,), 3.0)})["w"]
    losses = Federation(toy(num_clients=3).grid(2)).losses((near, far), [0, 2])
    # The toy's loss is |client − first entry|: client 0 is at 0 and 3 from the models, client 2 at 2 and 1.
    np.testing.assert_array_equal(losses[0], [0.0, 3.0])
    np.testing.assert_array_equal(losses[2], [2.0, 1.0])


def test_an_answer_of_another_length_excludes_the_client(toy) -> None:
    federation = Federation(toy(num_clients=2, wins=lambda client: [1] * (1 + client)).grid())
    answers = federation.ask(LossesQuestion((toy.model(),)))
    assert list(answers.replies) == [0]
    assert answers.failures == {1: "client 1: wins must be 1 finite numbers, got [1, 1]"}


def test_what_all_must_answer(toy) -> None:
    federation = Federation(
        toy(num_clients=3, error=lambda client, _: "gone" if client == 1 else None).grid()
    )
    answers = federation.ask(LossesQuestion((toy.model(),)))
    assert list(answers.replies) == [0, 2]
    assert dict(answers.failures) == {1: "gone"}
    with pytest.raises(FederationError, match="client 1 must answer before round 1, it failed: gone"):
        answers.all()


def test_content_per_client(toy) -> None:
    one, two = toy.model(), toy.model()
    two["w"] = from_state({"w": torch.ones(2)})["w"]
    answers = Federation(toy(num_clients=2).grid()).ask(
        {0: LossesQuestion((one,)), 1: LossesQuestion((two,))}
    )
    assert [answer.losses.tolist() for answer in answers.all()] == [[0.0], [0.0]]


def test_a_grid_that_does_not_answer(toy) -> None:
    class Silent(WrappedGrid):
        def send_and_receive(self, messages, *, timeout=None) -> list[Message]:
            return []

    federation = Federation(Silent(toy(num_clients=2).grid()))
    assert dict(federation.ask(DescriptionQuestion()).failures) == {0: "no reply", 1: "no reply"}


def test_a_grid_of_anything_but_clients_is_refused(toy) -> None:
    with pytest.raises(ValueError, match=r"grid must know clients 0..K-1, it knows \[2, 3\]"):
        Federation(CohortView(toy().grid(), [3, 2]))


def test_wins_are_read_and_checked(toy) -> None:
    told = {0: [2, 1], 1: [0, 0], 2: [3], 3: None}
    federation = Federation(toy(num_clients=4, wins=told.get).grid(2))
    wins = federation.wins((toy.model(), toy.model()), range(4))
    assert {client: rows.tolist() for client, rows in wins.items()} == {0: [2, 1]}
    assert [failure["reason"] for failure in federation.take_failures()] == [
        "client 1: wins must add up to a number in [1, 281474976710656], got 0",
        "client 2: wins must be 2 finite numbers, got [3]",
        "client 3: no 'wins' in reply, keys are ['losses']",
    ]


def test_a_client_that_goes_offline_still_counts(toy) -> None:
    grid = toy(num_clients=4).grid()
    federation = Federation(grid)
    del grid._nodes.node_of[3]  # as when its node leaves; the grid asks again only when nodes change
    assert grid.get_node_ids() == [0, 1, 2]
    assert Federation(grid).num_clients == federation.run(3, 1.0).num_clients == 4


def test_updates_many_times_as_long_as_the_others_are_left_out(toy) -> None:
    # Of two equal numbers: lengths 1, 1, 1, 1 and 100 times the root of 2; the median is that root.
    moves = dict.fromkeys(range(4), 1.0) | {4: 100.0}
    federation = Federation(toy(num_clients=5, move=lambda client, _: moves[client]).grid())
    found = federation.updates(toy.model(), range(5), 1, names=["w"])
    assert list(found) == [0, 1, 2, 3]
    assert [update.norm for update in found.values()] == pytest.approx([2**0.5] * 4)
    (failure,) = federation.take_failures()
    assert (failure["client"], failure["phase"]) == (4, UpdateQuestion.kind)
    assert failure["reason"] == (
        "client 4: update must be at most 30 times as long as the median of 1.41, its length is 141"
    )
    assert list(federation.updates(toy.model(), range(5), 1, names=["w"], cap=None)) == [0, 1, 2, 3, 4]
