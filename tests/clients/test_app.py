import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAvg

from fedclust.clients.app import app
from fedclust.grids.client_grid import ClientGrid
from fedclust.grids.local_grid import LocalGrid
from fedclust.messages.description import Hosted, read_from_node
from fedclust.messages.models import from_state
from fedclust.models import construction
from fedclust.settings.composition import compose, plain, to_run_config
from fedclust.strategies import ClusteredStrategy

ALONE = {"clients": "2"}
SEVERAL = {"partition-id": 0, "num-partitions": 2}  # clients 0, 2 and 4 of 6
NO_MINIMA = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def test_a_node_says_which_clients_it_hosts(node) -> None:
    several, alone = (
        read_from_node(Hosted, node(config).ask("query.clients", RecordDict()).content)
        for config in (SEVERAL, {**ALONE, "name": "north"})
    )
    assert (several.clients, several.num_clients, several.name) == ((0, 2, 4), 6, "")
    assert (alone.clients, alone.num_clients, alone.name) == ((2,), 6, "north")
    assert several.data == alone.data != ""  # both hold one dataset


def test_a_plain_message_is_for_the_only_client(node, tell) -> None:
    for kind, content in (("train", tell()), ("evaluate", tell()), ("query.prototypes", RecordDict())):
        contents, _ = node(ALONE).ask_clients(kind, {2: content})
        assert node(ALONE).ask(kind, content).content == contents[2]


def test_a_plain_message_to_several_clients_is_refused(node, tell) -> None:
    with pytest.raises(ValueError, match=r"several clients must be sent bundles, this one hosts \[0, 2, 4\]"):
        node(SEVERAL).ask("train", tell())


def test_an_only_clients_failure_is_the_nodes(node, tell, broken) -> None:
    with pytest.raises(ValueError, match="loss"):
        node(ALONE).ask("train", tell(broken))


def test_a_client_of_another_node_gets_an_error_and_the_others_answers(node, tell) -> None:
    content = tell()
    contents, errors = node(SEVERAL).ask_clients("train", {0: content, 1: content, 4: content})
    assert contents.keys() == {0, 4}
    assert errors == {1: "client 1 must be hosted by this node, it hosts [0, 2, 4]"}


def test_stock_fedavg_needs_no_grid_of_ours() -> None:
    """One client per node is plain Flower: its own strategy serves without ClientGrid."""
    config = compose(["partition.num_clients=3", "partition.groups=[2,1]", "training.mode=sequential"])
    arrays = from_state(construction.build(plain(config.model), 0).state_dict())
    result = FedAvg(**NO_MINIMA).start(LocalGrid(app, to_run_config(config), 3), arrays, num_rounds=2)
    grid = ClientGrid(LocalGrid(app, to_run_config(config), 1))
    grid.connect()
    strategy = ClusteredStrategy()
    strategy.start(grid, arrays, num_rounds=2)
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), strategy.clusters.models[0][name].numpy(), atol=1e-6)
