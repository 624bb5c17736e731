from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAdam
from torch import nn

from fedclust.clustering.fedgmcc import Parameters
from fedclust.messages.models import from_state
from fedclust.strategies import FedGMCC

FEW = Parameters(num_inputs=16, steps=2, batch_size=8, num_points=5)


class Vector(nn.Module):
    """A network whose two weights are what the toy clients move: logits x·w0 and x·w1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.sum(dim=1, keepdim=True) * self.w


def _strategy(**options) -> FedGMCC:
    usual = {"input_shape": [3], "device": "cpu", "parameters": FEW}
    return FedGMCC(network=Vector(), **{**usual, **options})


MODEL = from_state(Vector().state_dict())


def test_a_cohort_of_one_model_stays_one_cluster(started, watch) -> None:
    strategy = started(_strategy(), 2, 2, move=lambda *_: 1.0, model=MODEL)
    assert watch.rounds[0]["strategy"]["overflowing"] == []
    # All clients return the same model: chains between them are flat, and their mean is that model.
    assert len(strategy.clusters.models) == 1
    np.testing.assert_allclose(strategy.clusters.models[0]["w"].numpy(), [2.0, 2.0], rtol=1e-5)
    told = watch.rounds[0]["strategy"]
    assert len(told["pairs"]) == len(told["curve_finding_losses"]) == 15  # 6 * 5 / 2
    np.testing.assert_allclose(told["curve_finding_losses"], np.zeros(15), atol=1e-6)
    assert told["components"] == [[0, 1, 2, 3, 4, 5]]
    # The median, and 5 lower after a round with one cluster.
    assert [each["strategy"]["percentile"] for each in watch.rounds] == [50.0, 45.0]


@pytest.mark.parametrize("connect", ["budget", "slope", "absolute_slope"])
def test_a_round_reports_its_budget_and_what_it_connected(connect, started, watch) -> None:
    parameters = replace(FEW, connect=connect, percentile_step=10.0)
    started(_strategy(parameters=parameters), 3, move=lambda client, _: [0.5 * client, 0.0], model=MODEL)
    percentile = 50.0
    for each in watch.rounds:
        told = each["strategy"]
        assert told["percentile"] == percentile
        assert told["epsilon"] == pytest.approx(np.percentile(told["curve_finding_losses"], percentile))
        assert (told["pair_scores"] == told["curve_finding_losses"]) == (connect == "budget")
        assert told["num_connected"] == sum(score <= told["epsilon"] for score in told["pair_scores"])
        percentile += 10 if len(told["components"]) > 1 else -10


def test_the_summary_counts_the_groupings_of_the_last_ten_rounds(started, watch) -> None:
    # Two groups of three clients with one model each: 6 pairs of loss 0, 9 of one loss L > 0. The percentiles
    # 50 and 45 of 15 losses are L, which connects everyone; 40 lies between the sixth, 0, and the seventh, L.
    # So it is 50, 45, 40, 45, 40, ...: from round 3 on there are two clusters in every second round.
    def move(client: int, _: int) -> list[float]:
        return [2.0, 0.0] if client < 3 else [0.0, 2.0]

    strategy = started(_strategy(), 12, move=move, model=MODEL)
    assert [each["strategy"]["percentile"] for each in watch.rounds[:4]] == [50.0, 45.0, 40.0, 45.0]
    counted = strategy.findings(strategy.clusters).summary["groupings_of_last_rounds"]
    assert counted == [{"rounds": 5, "assignment": each} for each in ([0] * 6, [0, 0, 0, 1, 1, 1])]
    # A client that joins was in none of them.
    grown = strategy.grown(strategy.clusters, np.array([0])).groupings
    np.testing.assert_array_equal(grown[-1], [0, 0, 0, 0, 0, 0, -1])


def test_a_client_whose_model_overflows_is_alone_and_named(started, toy, watch) -> None:
    # Weights of 1e38 are finite, so the reply is valid. Times the sum of an input, here of twelve numbers
    # from U(0, 1), near 6, they are beyond float32.
    federation = toy(move=lambda client, *_: 1e38 if client == 3 else 1.0)
    sound = _strategy(input_shape=[12], update_norm_cap=None)
    strategy = started(sound, 1, clients=federation, model=MODEL)
    told = watch.rounds[0]["strategy"]
    assert told["overflowing"] == [3]
    assert told["components"] == [[0, 1, 2, 4, 5], [3]]
    np.testing.assert_allclose(strategy.clusters.models[0]["w"].numpy(), [1.0, 1.0], rtol=1e-5)
    for pair, loss in zip(told["pairs"], told["curve_finding_losses"], strict=True):
        assert (loss == np.inf) == (3 in pair)
    found = strategy.findings(strategy.clusters).arrays
    assert 3 not in found["curve_pairs"]
    assert np.isfinite(found["curve_losses"]).all()


def test_clients_outside_the_cohort_keep_their_models(started, watch) -> None:
    strategy = started(_strategy(participation=0.5), 1, move=lambda *_: 1.0, model=MODEL)
    cohort = watch.rounds[0]["cohort"]
    assert len(cohort) == 3
    for client in range(6):
        weight = float(strategy.clusters.models[int(strategy.assignment[client])]["w"].numpy()[0])
        assert weight == pytest.approx(1.0 if client in cohort else 0.0)
    assert sorted(watch.rounds[0]["cluster_sizes"]) == [3, 3]


def test_nobody_answering_changes_nothing(started) -> None:
    strategy = started(_strategy(), 1, error=lambda *_: "down", model=MODEL)
    np.testing.assert_array_equal(strategy.clusters.models[0]["w"].numpy(), [0.0, 0.0])
    assert strategy.clusters.report == {}


def test_findings_hold_the_curves_of_the_last_round(started) -> None:
    strategy = started(_strategy(), 2, model=MODEL)
    found = strategy.findings(strategy.clusters).arrays
    assert found["pair_scores"].shape == (6, 6)
    assert found["curve_pairs"].shape == (4, 2)
    assert found["curve_losses"].shape == found["line_losses"].shape == (4, len(found["curve_points"]))
    # The loss is the distance to the outputs of the model at u = 1, so it ends at 0 on either path.
    np.testing.assert_allclose(found["curve_losses"][:, -1], np.zeros(4), atol=1e-6)
    np.testing.assert_allclose(found["line_losses"][:, -1], np.zeros(4), atol=1e-6)


def test_an_aggregator_that_cannot_apply_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="aggregator must be fedavg or fedprox .*, got fedadam") as error:
        _strategy(aggregator=FedAdam)
    assert "\n" not in str(error.value)
