"""A node's preparation, its encoders, its clients' groups, and the number of its threads."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedclust.clients.node import (
    Node,
    _is_known,
    _operations,
    grouped,
    node_of_objects,
    together,
    worthwhile_threads,
)
from fedclust.data.arrays import from_arrays
from fedclust.models.class_prototypes import prototypes
from fedclust.models.encoders import PixelEncoder, RandomEncoder
from fedclust.settings.allowed import NotAllowed
from fedclust.settings.composition import COMPOSED, ConfigError, compose, to_run_config
from fedclust.training import LocalTraining

TRANSFORMERS = "fedclust.models.foundation.TransformersEncoder"


def _context(*overrides: str, node: int = 0) -> Context:
    run_config = to_run_config(compose(overrides))
    return Context(1, 2, {"partition-id": node, "num-partitions": 2}, RecordDict(), run_config)


def test_nodes_of_one_process_share_data_and_trainer() -> None:
    first, second = Node.of(_context(node=0)), Node.of(_context(node=1))
    assert first.data is second.data
    assert first.trainer is second.trainer
    assert sorted([*first.clients, *second.clients]) == list(range(30))


def test_what_only_the_server_reads_prepares_nothing_anew() -> None:
    first = Node.of(_context("strategy=fedgwc"))
    assert Node.of(_context("strategy=fedavg", "compare=[]", "wait=3")).trainer is first.trainer
    assert Node.of(_context("seed=1")).data is not first.data


def test_the_device_is_chosen_where_the_node_runs() -> None:
    assert Node.of(_context("device=cpu")).device == "cpu"
    assert Node.of(_context("device=auto")).device in ("cpu", "cuda")


def test_what_cannot_be_is_said_in_one_line() -> None:
    with pytest.raises(ConfigError, match="^learning_rate must be > 0"):
        Node.of(_context("training.learning_rate=0"))
    with pytest.raises(ValueError, match="add up to num_clients"):
        Node.of(_context("partition.num_clients=31"))


def test_the_encoder_of_objects_is_the_given_one_or_the_rows_themselves() -> None:
    data = from_arrays([(np.ones((4, 3), "f4"), np.array([0, 1, 0, 1]))] * 2)
    how, given = LocalTraining(learning_rate=0.1, batch_size=2, epochs=1), PixelEncoder((5,))
    plain = node_of_objects(data, nn.Linear(3, 2), how, seed=0)
    assert plain.clients == (0, 1)
    assert plain.encoder_for("encoder").dimension == 3
    assert node_of_objects(data, nn.Linear(3, 2), how, seed=0, encoder=given).encoder_for("encoder") is given
    with pytest.raises(ValueError, match="^input must be one of encoder, pixels, untrained, got 'nose'$"):
        plain.encoder_for("nose")


def test_rows_are_embedded_before_anything_reads_them() -> None:
    encoded = ["features=encoder", "encoder=random", "encoder.dimension=12", "model=linear"]
    plain, node = Node.of(_context("model=linear")), Node.of(_context(*encoded))
    encoder = RandomEncoder([1, 8, 8], 12, 0, None)
    by_hand = encoder.encode(plain.data.inputs[:256], plain.data.mean, plain.data.std)
    assert torch.equal(node.data.inputs[:256], by_hand)
    assert node.data.embedded_by == encoder.fingerprint
    assert node.data.input_encoder() == plain.data.input_encoder()  # of raw rows, before the embedding
    # Methods that ask for the encoder or the rows get the embeddings as they are.
    for name in ("encoder", "pixels"):
        assert torch.equal(node.encoder_for(name).encode(node.data.inputs[:5]), by_hand[:5])
    ours = prototypes(node.encoder_for("encoder"), node.data, node.data.train)
    theirs = prototypes(encoder, plain.data, plain.data.train)
    np.testing.assert_allclose(ours.means, theirs.means, atol=1e-6)
    np.testing.assert_array_equal(ours.counts, theirs.counts)


@pytest.mark.parametrize("allow", ["", "*"])
def test_an_encoder_that_the_operator_does_not_list_is_not_built(allow: str) -> None:
    context = _context("features=encoder", "encoder=random", "model=linear")
    sent = json.loads(context.run_config[COMPOSED])
    context.node_config["allow"] = allow
    sent["encoder"] = {"_target_": TRANSFORMERS, "path": "/nowhere", "pooling": "cls"}
    context.run_config[COMPOSED] = json.dumps(sent)
    context.node_config["encoder"] = "random"
    with pytest.raises(
        NotAllowed, match='^encoder must be one that this node.s operator lists .* "/nowhere"'
    ):
        Node.of(context)
    # Nor does anything else build it.
    sent |= {"features": {"encoded": False}, "model": {"input_shape": "${embedding_shape:}"}}
    context.run_config[COMPOSED] = json.dumps(sent)
    with pytest.raises(ConfigError, match="features.encoded must be true for"):
        Node.of(context)


# -- Clients together ---------------------------------------------------------------------------------------


def test_groups_are_in_the_order_of_their_first_clients() -> None:
    assert list(grouped({3: "b", 1: "a", 2: "b", 0: "a"}).items()) == [("b", [3, 2]), ("a", [1, 0])]


def test_only_a_client_on_whose_data_a_model_raises_fails() -> None:
    asked: list[list[int]] = []

    def halves(clients: list[int]) -> list[float]:
        asked.append(clients)
        return [1 / client for client in clients]

    assert together([4, 2], halves) == ({4: 0.25, 2: 0.5}, {})
    found, errors = together([4, 0, 2], halves)
    assert (found, list(errors)) == ({4: 0.25, 2: 0.5}, [0])
    assert "division by zero" in errors[0]
    assert asked == [[4, 2], [4, 0, 2], [4], [0], [2]]


# -- Threads ------------------------------------------------------------------------------------------------

SMALL = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
WIDE = nn.Linear(1000, 5000)  # 10 million operations per example: a multiplication and an addition each
DIGIT = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)


def test_layers_whose_products_are_not_counted_are_left_to_pytorch() -> None:
    assert all(map(_is_known, (nn.LayerNorm(3), nn.Linear(2, 2), nn.Embedding(4, 2), nn.Sequential())))
    assert not any(map(_is_known, (nn.RNN(2, 3), nn.Bilinear(2, 2, 2))))


def test_a_small_model_gets_one_thread() -> None:
    assert worthwhile_threads(SMALL, DIGIT, 32, most=16) == 1


@pytest.mark.parametrize(("batch_size", "threads"), [(1, 1), (10, 2), (14, 2), (15, 3), (1000, 8)])
def test_a_thread_per_fifty_million_operations(batch_size, threads) -> None:
    assert worthwhile_threads(WIDE, torch.zeros(1, 1000), batch_size, most=8) == threads


def test_tokens() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    assert worthwhile_threads(model, torch.zeros(1, 3, dtype=torch.int64), 8, most=4) == 1


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64))
    worthwhile_threads(model, DIGIT, 8, most=4)
    assert model.training
    assert model[1].num_batches_tracked == 0


class Twice(nn.Module):
    """A network with a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply twice."""
        return self.inner(inputs.flatten(1).float()) @ self.inner.weight


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (SMALL, 2 * (64 * 64 + 64 * 10)),
        # Six by six outputs of four channels from 3 × 3 pixels of one channel; then 2 × 2 from two of four.
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(3), nn.Conv2d(4, 6, 1, groups=2), nn.Flatten()),
            2 * (6 * 6 * 4 * 9 + 2 * 2 * 6 * 2),
        ),
        # A product per row of pixels.
        (nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Linear(8, 5)), 2 * 8 * 8 * 5),
        (Twice(), 2 * (64 * 64 + 64 * 64)),
    ],
)
def test_operations_are_those_that_pytorch_counts(network, expected) -> None:
    pixels = DIGIT.float()
    with FlopCounterMode(display=False) as counter:
        network(pixels)
    assert _operations(network, pixels) == counter.get_total_flops() == expected
    assert not any(module._forward_hooks for module in network.modules())
