"""What sites are instructed to do for their patients, and what it is said to cost."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedclust.federation import Clusters, Reply
from fedclust.federation.run import Round
from fedclust.layers.patient_dp import Ledger, PatientPrivacy, Planned, Took
from fedclust.messages.evaluation import Evaluation
from fedclust.messages.training import Instruction
from fedclust.privacy import PatientDP
from fedclust.privacy.accountant import epsilon_of, epsilon_of_steps
from fedclust.support.reasons import RunFailed

MODEL = ArrayRecord({"w": Array(np.zeros(2))})
SETTINGS = PatientDP(
    epsilon=None, noise_multiplier=2.0, clip=0.5, delta=1e-4, sampling=0.5, evaluation="noised"
)
PLANNED = Planned.of(SETTINGS, rounds=4, steps=3, evaluations=2)


def _layer(simulated: bool = True) -> PatientPrivacy:
    return PatientPrivacy(SETTINGS, PLANNED, simulated)


def _run() -> Any:
    federation = SimpleNamespace(evaluation={}, clients=SimpleNamespace(repeats={}))
    return SimpleNamespace(federation=federation, now=_round([]))


def _round(asked: list[int], clients: int = 3, **fields: Any) -> Round:
    clusters = Clusters.of(np.zeros(clients, dtype=np.int64), MODEL)
    return Round(1, clusters, asked=dict.fromkeys(asked, Instruction(MODEL)), **fields)


def test_a_plan_is_for_all_rounds_and_both_parts() -> None:
    assert PLANNED.epsilon == epsilon_of_steps(2.0, 0.5, 12, 1e-4)
    # Two accuracies cost test patients what twelve steps cost the others.
    assert epsilon_of([(PLANNED.evaluation_noise or 0, 2)], 1e-4) == pytest.approx(PLANNED.epsilon, rel=1e-6)
    of_epsilon = Planned.of(
        PatientDP(epsilon=2.0, sampling=1.0, delta=1e-4), rounds=4, steps=9, evaluations=0
    )
    assert of_epsilon.evaluation_noise is None
    assert epsilon_of([(of_epsilon.noise, 36)], 1e-4) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("simulated", [True, False])
def test_sites_are_instructed_and_losses_are_unknown(simulated: bool) -> None:
    layer, run = _layer(simulated), _run()
    layer.begin(run, None)
    noise = {"noise": PLANNED.evaluation_noise, "published_noise": simulated}
    assert run.federation.evaluation == noise
    asked = layer.instruct(run, _round([0, 2])).asked
    assert asked[0] is asked[2]
    said = asked[0].patient_clip, asked[0].patient_noise, asked[0].patient_sampling, asked[0].published_noise
    assert said == (0.5, 2.0, 0.5, simulated)
    reply = Reply(0, 0, MODEL, MODEL, 7, 0.0, np.zeros(1))
    (screened,) = layer.screen(run, _round([0], replies=[reply])).replies
    assert math.isnan(screened.loss)
    assert screened.num_examples == 7
    many = Reply(0, 0, MODEL, MODEL, 10_000, 0.0, np.zeros(1))
    with pytest.raises(RunFailed, match="^privacy.delta must be below one over a site's patients, 0.0001"):
        layer.screen(run, _round([0], replies=[many]))


def test_epsilon_is_that_of_the_rounds_and_figures_that_a_client_took_part_in() -> None:
    layer, run = _layer(), _run()
    layer.begin(run, None)
    layer.instruct(run, _round([0, 1]))
    layer.instruct(run, _round([0]))
    steps = [epsilon_of_steps(2.0, 0.5, number, 1e-4) for number in (6, 3, 0)]
    np.testing.assert_allclose(layer.epsilons(), steps)
    figures = Evaluation(0, {"accuracy": 0.5, "num-examples": 9, "loss": math.nan})
    now = layer.after_evaluation(run, _round([], online={0, 2}, evaluations=[figures]))
    # No patient is in both parts: the larger counts; of one accuracy ε is less than of two.
    one = epsilon_of([(PLANNED.evaluation_noise or 0, 1)], 1e-4)
    np.testing.assert_allclose(layer.epsilons(), [max(steps[0], one), steps[1], one])
    assert now.record["privacy"] == {"epsilon": max(steps[0], one), "delta": 1e-4}
    found = layer.findings(run)
    assert found.clients["rounds_trained"].tolist() == [2, 1, 0]
    assert found.summary["privacy"]["neighbours"] == "one patient's rows at one site are not there"
    assert "each site's accuracy, with noise" in found.summary["privacy"]["figures"]


def test_what_sites_are_asked_again_counts_where_their_noise_is_new() -> None:
    for simulated in (False, True):
        ledger = None if simulated else Ledger(None, lambda *_: None)
        layer, run = PatientPrivacy(SETTINGS, PLANNED, simulated, ledger), _run()
        repeats = run.federation.clients.repeats
        repeats["train", 0] = 5  # of another run over these clients
        layer.begin(run, None)
        layer.instruct(run, _round([0, 1]))
        repeats["train", 0] = 7
        layer.screen(run, _round([0, 1], replies=[]))
        repeats["evaluate", 2] = 1
        layer.after_evaluation(run, _round([], online={0, 2}))
        layer.after_evaluation(run, _round([], online={0}))
        took = layer.state(run)
        assert took.trained.tolist() == ([1, 1, 0] if simulated else [3, 1, 0])
        assert took.measured.tolist() == ([2, 0, 1] if simulated else [2, 0, 2])


def test_what_was_spent_since_the_checkpoint_stays_spent() -> None:
    kept: list[list[list[int]]] = []

    def write(trained: np.ndarray, measured: np.ndarray) -> None:
        kept.append([trained.tolist(), measured.tolist()])

    layer = PatientPrivacy(SETTINGS, PLANNED, False, Ledger(None, write))
    layer.begin(run := _run(), None)
    layer.instruct(run, _round([0, 1]))
    checkpoint = layer.state(run)
    layer.instruct(run, _round([0]))
    assert kept[-1] == [[2, 1, 0], [0, 0, 0]]  # before anybody is asked
    layer.before_evaluation(run, _round([]))
    assert kept[-1] == [[2, 1, 0], [1, 1, 1]]
    again = PatientPrivacy(
        SETTINGS, PLANNED, False, Ledger((np.array([2, 1, 0]), np.array([1, 1, 1])), write)
    )
    again.begin(run, checkpoint)
    again.instruct(run, _round([0], clients=4))  # one has joined
    assert again.state(run).trained.tolist() == [3, 1, 0, 0]
    # Three rounds of three steps.
    assert again.epsilons()[0] == epsilon_of_steps(2.0, 0.5, 9, 1e-4)
    again.after_evaluation(run, _round([], clients=4, online={3}))
    assert kept[-1] == [[3, 1, 0, 0], [1, 1, 1, 1]]


def test_what_was_spent_is_resumed_with_the_same_noise_only() -> None:
    layer, run = _layer(), _run()
    layer.begin(run, None)
    layer.instruct(run, _round([1]))
    state, again = layer.state(run), _layer()
    again.begin(run, state)
    np.testing.assert_array_equal(again.epsilons(), layer.epsilons())
    again.instruct(run, _round([1], clients=4))  # one has joined
    assert again.state(run).trained.tolist() == [0, 2, 0, 0]
    with pytest.raises(RunFailed, match="be resumed with the noise it began with, 1.9, got 2: privacy.eps"):
        _layer().begin(run, Took(1.9, None, state.trained, state.measured, simulated=True))
    with pytest.raises(RunFailed, match="be resumed with its clients simulated, as it began, got them depl"):
        _layer(simulated=False).begin(run, state)


def test_a_longer_run_keeps_the_noise_its_figures_began_with() -> None:
    # Twice the rounds and figures: the plan's noise for one figure differs, as few steps that draw patients
    # spend more than their number says. Of one figure with it and two with another ε would be wrong.
    layer, run = _layer(), _run()
    layer.begin(run, None)
    layer.instruct(run, _round([]))
    layer.after_evaluation(run, _round([], online={0}))
    longer = Planned.of(SETTINGS, rounds=8, steps=3, evaluations=4)
    assert longer.evaluation_noise != pytest.approx(PLANNED.evaluation_noise, rel=1e-3)
    again = PatientPrivacy(SETTINGS, longer, simulated=True)
    again.begin(run, layer.state(run))
    assert run.federation.evaluation["noise"] == PLANNED.evaluation_noise
    again.instruct(run, _round([]))
    again.after_evaluation(run, _round([], online={0}))
    assert again.epsilons()[0] == epsilon_of([(PLANNED.evaluation_noise or 0, 2)], 1e-4)


def test_exact_figures_are_for_simulated_clients() -> None:
    exact = PatientDP(evaluation="exact")
    assert PatientPrivacy(exact, PLANNED, simulated=True).exact
    with pytest.raises(ValueError, match="^privacy.evaluation must be noised unless all clients are simula"):
        PatientPrivacy(exact, PLANNED, simulated=False)
