"""Clients that come later, asked for the loss of each cluster's model: in the toy, |client − weight|."""

import io

import numpy as np
import pytest
import torch

from fedclust.clustering import clust_psi_pfl, fmcl
from fedclust.clustering.placement import DistanceRule, LabelRule, SubspaceRule
from fedclust.clustering.shared.placement import Placement
from fedclust.federation import Clusters, Federation
from fedclust.messages.models import from_state
from fedclust.newcomers.placing import against_common, by_rule, packed, place_newcomers, unpacked
from fedclust.strategies import ClusteredStrategy


def _clusters(*values: float, assignment=(0, 0, 2, 2)) -> Clusters:
    models = [from_state({"w": torch.full((2,), value)}) for value in values]
    return Clusters(np.array(assignment), tuple(models))


def test_newcomers_take_no_part_and_go_to_the_model_of_least_loss(toy) -> None:
    federation = Federation(toy().grid(), num_newcomers=2)
    assert federation.num_clients == 4
    assert federation.newcomers == (4, 5)
    # Cluster 1 has no clients, so its model, though the nearest, does not count. 4: |4−0| = 4, |4−7| = 3;
    # client 5: 5 and 2.
    found = ClusteredStrategy().place(_clusters(0.0, 4.0, 7.0), [4, 5], 3, federation)
    assert {client: each.cluster for client, each in found.items()} == {4: 2, 5: 2}
    assert found[4].evidence == {"losses": {"0": 4.0, "2": 3.0}}


def test_a_newcomer_whom_all_models_fail_is_in_no_cluster(toy) -> None:
    federation = Federation(toy().grid(), num_newcomers=2, least_loss=0.0)
    federation.describe()  # the toy's clients have 2 classes: a guess has ln 2 = 0.69 nats
    found = ClusteredStrategy().place(_clusters(4.5, 1.0, 7.0), [4, 5], 3, federation)
    assert {client: each.cluster for client, each in found.items()} == {4: 0, 5: 0}  # |4 − 4.5| = 0.5
    found = ClusteredStrategy().place(_clusters(3.0, 1.0, 8.0), [4, 5], 3, federation)
    assert [each.cluster for each in found.values()] == [None, None]
    assert found[4].reason.startswith("no cluster's model is better than guessing")


def test_one_model_for_all_needs_no_question_and_who_is_silent_has_none(toy) -> None:
    federation = Federation(toy(error=lambda k, _: "gone" if k == 4 else "").grid(), num_newcomers=2)
    one = ClusteredStrategy().place(_clusters(0.0, assignment=[0] * 4), [4, 5], 1, federation)
    assert [each.cluster for each in one.values()] == [0, 0]
    two = ClusteredStrategy().place(_clusters(0.0, 1.0, 4.0), [4, 5], 1, federation)
    assert (two[4].cluster, two[4].reason) == (None, "did not answer")
    assert two[5].cluster == 2


def test_a_federation_needs_a_client_that_trains(toy) -> None:
    with pytest.raises(ValueError, match="num_newcomers must be in 0 to 5, got 6"):
        Federation(toy().grid(), num_newcomers=6)


def test_newcomers_describe_themselves_apart_from_the_others(toy) -> None:
    federation = Federation(toy().grid(), num_newcomers=2)
    assert len(federation.describe().train_counts) == 4
    assert list(federation.describe_newcomers([5])) == [5]


def test_who_is_in_no_cluster_is_measured_with_the_model_for_all(toy) -> None:
    toys = toy(accuracy=lambda client, weight: (client + weight) / 100)
    federation = Federation(toys.grid(), num_newcomers=2)
    clusters, common = _clusters(10.0, 4.0, 20.0), from_state({"w": torch.full((2,), 50.0)})
    nowhere = {4: Placement(2, "near"), 5: Placement(None, "far")}
    placed = place_newcomers(lambda *_: nowhere, clusters, federation, 3)
    # Client 5 gets the largest cluster's model until there is one for all: 0 and 2 have two clients each.
    accuracy = placed.measured.figures["accuracy"]
    np.testing.assert_allclose(accuracy, [np.nan] * 4 + [0.24, 0.15])
    assert placed.served == {4: "cluster", 5: "cluster"}
    found = against_common(placed, clusters, common, federation, np.zeros(4, dtype=bool), 3)
    # Three rows prove nothing for client 4. The model for all has (5 + 50)/100 on client 5.
    assert found.served == {4: "cluster", 5: "common"}
    np.testing.assert_allclose(found.measured.figures["accuracy"], [np.nan] * 4 + [0.24, 0.55])
    assert found.placements[4].evidence["gain_of_common"] == pytest.approx(0.1)
    # One whose cluster is served the model for all gets it, too; and so does one for whom it is better.
    theirs = against_common(placed, clusters, common, federation, np.array([0, 0, 1, 1], dtype=bool), 3)
    assert theirs.served == {4: "common", 5: "common"}
    sure = against_common(placed, clusters, common, federation, np.zeros(4, dtype=bool), 3, level=1.0)
    assert (sure.placements[4].cluster, sure.served[4]) == (None, "common")
    assert sure.placements[4].reason.startswith(
        "one model for all is better on its rows than that of cluster 2"
    )
    one = _clusters(10.0, assignment=[0] * 4)
    alone = place_newcomers(lambda *_: {4: Placement(0, "one")}, one, federation, 3)
    kept = against_common(alone, one, common, federation, np.zeros(4, dtype=bool), 3, level=1.0)
    assert kept.placements[4].cluster == 0


def test_an_answer_that_does_not_fit_places_nobody_and_is_a_failure(toy) -> None:
    federation = Federation(toy().grid(), num_newcomers=2)  # prototypes of 2 classes with 2 numbers each
    rule = DistanceRule(np.zeros((2, 2, 3)), np.full((2, 2), 0.5), fmcl.Parameters())
    found = by_rule(rule, [4, 5], federation)
    assert [each.cluster for each in found.values()] == [None, None]
    assert found[5].reason.startswith("its answer cannot be used: ")
    failures = [(each["client"], each["phase"]) for each in federation.take_failures()]
    assert failures == [(4, "query.prototypes"), (5, "query.prototypes")]


COUNTS, CLUSTERS = np.array([[30, 10], [10, 30], [5, 5]]), np.array([0, 1, 1])
MEANS = np.array([[[0.0, 0.0], [10.0, 0.0]], [[10.0, 0.0], [0.0, 0.0]]])
BY_LABELS = (np.array([5, 1]),)
BY_PROTOTYPES = (MEANS[0] + 1, np.array([9, 9]))


@pytest.mark.parametrize(
    ("rule", "sent"),
    [
        (LabelRule(COUNTS, CLUSTERS, clust_psi_pfl.Parameters(1e-3, "add", max_clusters=None)), BY_LABELS),
        (DistanceRule(MEANS, np.full((2, 2), 0.5), fmcl.Parameters()), BY_PROTOTYPES),
        (
            SubspaceRule(np.eye(3)[:, None, :, None], CLUSTERS, "mean", "pixels"),
            (np.ones((1, 3, 1)) / 3**0.5,),
        ),
    ],
)
def test_a_rule_that_is_read_back_from_a_file_places_alike(rule, sent) -> None:
    file = io.BytesIO()
    np.savez(file, **packed(rule))
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        again = unpacked({name: arrays[name] for name in arrays.files})
    assert type(again) is type(rule)
    assert again.place(*sent) == rule.place(*sent)
    assert getattr(again, "paper", None) == getattr(rule, "paper", None)


def test_nothing_is_no_rule() -> None:
    assert unpacked({}) is None
