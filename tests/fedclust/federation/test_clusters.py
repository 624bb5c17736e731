import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvgM
from torch import nn

from fedclust.federation import Clusters, starting_models
from fedclust.messages.models import from_state


def _model(value: float = 0.0) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array([value]))})


def test_every_cluster_starts_from_the_model() -> None:
    model = _model()
    clusters = Clusters.of([0, 1, 1], model)
    assert clusters.models == (model, model)
    assert clusters.num_clients == 3
    assert clusters.members(1).tolist() == [1, 2]
    assert clusters.sizes.tolist() == [1, 2]


def test_an_empty_cluster_keeps_its_model() -> None:
    assert Clusters(np.array([0, 0]), (_model(1), _model(2))).sizes.tolist() == [2, 0]


def test_a_split_and_a_split_of_its_part() -> None:
    parent, other = _model(1), _model(2)
    momenta = tuple(FedAvgM(server_momentum=momentum) for momentum in (0.5, 0.1))
    before = Clusters(np.array([0, 1, 0, 0, 1]), (parent, other), aggregators=momenta)
    clusters = before.split(0, np.array([1, 0, 1]))
    # Members of 0 are clients 0, 2, 3: part 0 (client 2) keeps index 0, part 1 gets the new index 2.
    assert clusters.assignment.tolist() == [2, 1, 0, 2, 1]
    assert clusters.models == (parent, other, parent)
    assert clusters.aggregators[:2] == momenta
    assert clusters.reason == "cluster 0 split in 2"
    again = clusters.split(2, np.array([0, 1]), "size")
    assert again.assignment.tolist() == [2, 1, 0, 3, 1]
    # Every part has a server optimiser of its own, with the state of 0's.
    assert [each.server_momentum for each in again.aggregators] == [0.5, 0.1, 0.5, 0.5]
    assert len(set(map(id, again.aggregators))) == 4
    assert again.reason == "cluster 0 split in 2; size"


def test_values_stay_what_they_are() -> None:
    given_by_caller = np.array([0, 0])
    clusters = Clusters.of(given_by_caller, _model())
    given_by_caller[0] = 5
    assert clusters.assignment.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        clusters.assignment[0] = 1


@pytest.mark.parametrize(
    ("assignment", "models", "message"),
    [
        ([], 1, r"assignment must have an entry per client, got shape \(0,\)"),
        ([0, 1], 1, "assignment must name clusters 0 to 0, one per model, got 0 to 1"),
        ([-1, 0], 1, "assignment must name clusters 0 to 0, one per model, got -1 to 0"),
        ([0], 0, "assignment must name clusters 0 to -1, one per model, got 0 to 0"),
    ],
)
def test_what_is_no_clustering(assignment, models, message) -> None:
    with pytest.raises(ValueError, match=message):
        Clusters(np.array(assignment, dtype=int), (_model(),) * models)


@pytest.mark.parametrize("labels", [[0], [0, 2, 0], [1, 1, 1], [-1, 0, 1]])
def test_labels_that_are_no_split(labels) -> None:
    with pytest.raises(ValueError, match="labels must be 0, 1, … without gaps, one for each of the 3"):
        Clusters.of([0, 0, 0], _model()).split(0, np.array(labels))


def test_the_first_is_given_the_others_depend_on_the_seed_only() -> None:
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    given = from_state(network.state_dict())
    three, again, fewer = (starting_models(network, given, number, seed=5) for number in (3, 3, 2))
    assert three[0] is given
    for one, other in zip(three, again, strict=True):
        np.testing.assert_array_equal(one["weight"].numpy(), other["weight"].numpy())
    np.testing.assert_array_equal(three[1]["weight"].numpy(), fewer[1]["weight"].numpy())
    other_seed = starting_models(network, given, 2, seed=6)
    weights = [model["weight"].numpy().tobytes() for model in (*three, other_seed[1])]
    assert len(set(weights)) == 4
