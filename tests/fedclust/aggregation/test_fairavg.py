"""FairAvg: every client counts the same, whoever answers for it."""

import copy

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import nn

import fedclust
from fedclust.aggregation.flower import aggregate
from fedclust.federation import FairAvg, Reply
from fedclust.grids.local_grid import assume_identity
from fedclust.messages.codec import encode
from fedclust.messages.training import TrainAnswer, read_instruction
from fedclust.strategies import ClusteredStrategy, Local


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_the_mean_by_hand(toy, num_nodes: int) -> None:
    # Clients 0 to 5 add 0 to 5 and have 1 to 6 samples: 15/6 = 2.5; weighted by samples it would be 70/21.
    strategy = ClusteredStrategy(aggregator=FairAvg)
    strategy.start(toy().grid(num_nodes), toy.model(), num_rounds=1)
    np.testing.assert_array_equal(strategy.clusters.models[0]["w"].numpy(), [2.5, 2.5])


def _reply(client: int, num_examples: int, model: ArrayRecord) -> Reply:
    assume_identity()
    asked = Message(RecordDict(), dst_node_id=client, message_type="train")
    losses = np.ones(1)
    message = Message(encode(TrainAnswer(0, model, num_examples, losses)), reply_to=asked)
    return Reply(client, 0, model, model, num_examples, 1.0, losses, message)


def _model(weight: float, mean: float) -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.array([weight])), "mean": Array(np.array([mean]))})


@pytest.mark.parametrize("shared_means", [True, False])
def test_a_reply_counts_as_often_as_clients_share_it_and_so_do_buffers(shared_means: bool) -> None:
    one, of_two = _model(1.0, 10.0), _model(4.0, 40.0)
    replies = [_reply(0, 100, one), _reply(1, 1, of_two), _reply(2, 5, of_two)]
    aggregator = FairAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    made = aggregate(aggregator, 1, one, replies, frozenset({"mean"}), shared_means=shared_means)
    # (1 + 2 · 4) / 3 and (10 + 2 · 40) / 3
    assert made["weight"].numpy().item() == 3
    assert made["mean"].numpy().item() == 30


def test_nodes_are_told(toy) -> None:
    aggregator = FairAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    (message, *_) = aggregator.configure_train(1, toy.model(), ConfigRecord(), toy().grid())
    assert read_instruction(message.content).equal_weights


def _clients() -> list[tuple[np.ndarray, np.ndarray]]:
    draws = np.random.default_rng(0)
    sizes = [10, 20, 30, 80, 40, 160]
    labels = [draws.integers(0, 3, size) for size in sizes]
    return [(draws.normal(size=(len(held), 4)).astype(np.float32), held) for held in labels]


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_unequal_clients_on_one_node_and_on_three(num_nodes: int) -> None:
    """One round is the plain mean of the models that the clients train alone, buffers included."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    options = {
        "rounds": 1,
        "training": fedclust.LocalTraining(learning_rate=0.5, batch_size=8, epochs=2, mode="sequential"),
        "num_nodes": num_nodes,
    }
    apart = fedclust.simulate(Local(), copy.deepcopy(network), _clients(), **options)
    fair = ClusteredStrategy(aggregator=FairAvg)
    found = fedclust.simulate(fair, network, _clients(), **options).model_for(0).state_dict()
    alone = [apart.model_for(client).state_dict() for client in range(6)]
    for name, value in found.items():
        trained = torch.stack([state[name].double() for state in alone])
        expected = trained.mean(0) if value.is_floating_point() else trained.amax(0)
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)
    # It can fail: by samples the mean is another one.
    weights = torch.tensor([9.0, 18, 27, 72, 36, 144])
    first = torch.stack([state["0.weight"] for state in alone])
    weighted = (weights[:, None, None] * first).sum(0) / weights.sum()
    assert (weighted - found["0.weight"]).abs().max() > 1e-2
