import pytest
from flwr.app import Context, RecordDict

from fedclust.clients.node import Node
from fedclust.settings.composition import ConfigError, compose, to_run_config


def _context(*overrides: str, node: int = 0) -> Context:
    run_config = to_run_config(compose(overrides))
    return Context(1, 2, {"partition-id": node, "num-partitions": 2}, RecordDict(), run_config)


def test_nodes_of_one_process_share_data_and_trainer() -> None:
    first, second = Node.of(_context(node=0)), Node.of(_context(node=1))
    assert first.data is second.data
    assert first.trainer is second.trainer
    assert sorted([*first.clients, *second.clients]) == list(range(30))


def test_what_only_the_server_reads_prepares_nothing_anew() -> None:
    first = Node.of(_context())
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
