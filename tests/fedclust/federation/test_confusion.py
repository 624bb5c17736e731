from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from fedclust.federation import Clusters, Federation
from fedclust.federation.questions import confuse_clusters
from fedclust.grids.local_grid import assume_identity
from fedclust.messages.codec import ARRAYS, encode
from fedclust.messages.evaluation import Confusion


class Nodes:
    """A grid whose client k counts k + 1 samples of class 0, answered with the number in the model."""

    def __init__(self, num_clients: int, silent: Iterable[int] = (), odd: Iterable[int] = ()) -> None:
        self.num_clients, self.silent, self.odd = num_clients, set(silent), set(odd)
        self.asked: list[list[int]] = []

    def get_node_ids(self) -> list[int]:
        return list(range(self.num_clients))

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        self.asked.append([message.metadata.dst_node_id for message in messages])
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        client = message.metadata.dst_node_id
        if client in self.silent:
            return Message(Error(1, "down"), reply_to=message)
        if client in self.odd:
            return Message(RecordDict(), reply_to=message)
        counts = np.zeros((3, 3), dtype=int)
        counts[0, int(message.content.array_records[ARRAYS]["w"].numpy()[0])] = client + 1
        return Message(encode(Confusion(counts)), reply_to=message)


def _clusters(assignment: np.ndarray, *answers: int) -> Clusters:
    models = []
    for answer in answers:
        models.append(ArrayRecord())
        models[-1]["w"] = Array(np.array([answer], dtype=np.float32))
    return Clusters(assignment, tuple(models))


@pytest.fixture(autouse=True)
def _identity() -> None:
    assume_identity()


def test_every_model_answers_for_every_cluster() -> None:
    found = confuse_clusters(Federation(Nodes(4)), _clusters(np.array([0, 1, 1, 0]), 0, 2))
    np.testing.assert_array_equal(found["confusion_clusters"], [0, 1])
    # Cluster 0 has clients 0 and 3, with 1 + 4 samples; cluster 1 clients 1 and 2, with 2 + 3. Model 0
    # answers 0, model 1 answers 2.
    assert found["confusion"].shape == (2, 2, 3, 3)
    for row in (0, 1):
        np.testing.assert_array_equal(found["confusion"][row, :, 0], [[5, 0, 0], [0, 0, 5]])
    assert not found["confusion"][..., 1:, :].any()


def test_a_client_that_does_not_answer_is_left_out() -> None:
    found = confuse_clusters(
        Federation(Nodes(4, silent=[0], odd=[1])), _clusters(np.array([0, 1, 1, 0]), 0, 2)
    )
    np.testing.assert_array_equal(found["confusion"].sum(axis=(2, 3)), [[4, 4], [3, 3]])


def test_no_confusion_if_a_cluster_does_not_answer_or_is_the_only_one() -> None:
    assert confuse_clusters(Federation(Nodes(2, silent=[1])), _clusters(np.array([0, 1]), 0, 1)) == {}
    grid = Nodes(2)
    assert confuse_clusters(Federation(grid), _clusters(np.array([0, 0]), 0)) == {}
    assert grid.asked == []


def test_the_four_largest_clusters_and_fifty_clients_of_each_are_asked() -> None:
    grid = Nodes(110)
    assignment = np.array([*[0] * 101, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    found = confuse_clusters(Federation(grid), _clusters(assignment, 0, 1, 2, 0, 1, 2))
    np.testing.assert_array_equal(found["confusion_clusters"], [0, 2, 3, 4])
    assert len(grid.asked) == 4
    assert all(len(set(asked)) == 50 + 2 + 2 + 2 for asked in grid.asked)
    assert {0, 100} <= set(grid.asked[0])
