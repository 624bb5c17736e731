"""Runs with a choice of privacy, as a user starts them."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import fedclust
from fedclust.federation import Federation, FederationError
from fedclust.privacy.accountant import epsilon_of, epsilon_of_steps
from fedclust.results import SavedRun
from fedclust.results.charts.run import pictures
from fedclust.results.page import write_page
from fedclust.settings.checks import run_settings
from fedclust.settings.composition import ConfigError, compose
from fedclust.settings.folders import expand
from fedclust.strategies import ClusteredStrategy, KnownGroups
from fedclust.support.reasons import RunFailed
from fedclust.training import LocalTraining

SMALL = ["partition.num_clients=6", "partition.groups=[4,2]", "rounds=3", "compare=[]", "training.steps=2"]
PATIENTS = [*SMALL, "privacy=patient_dp", "privacy.sampling=0.5"]
PRIVATE = [*SMALL, "privacy=client_dp", "privacy.delta=1e-3", "participation=0.5"]


TRAINING = LocalTraining(learning_rate=0.1, batch_size=2, epochs=1)


def _weights(result) -> np.ndarray:
    models = (result.model_for(client) for client in range(6))
    return np.concatenate([p.detach().numpy().ravel() for model in models for p in model.parameters()])


@pytest.mark.parametrize("strategy", ["fedavg", "known_groups"])
def test_same_seed_same_result_on_any_number_of_nodes(strategy: str, tmp_path: Path) -> None:
    found = [
        fedclust.run([*PRIVATE, f"strategy={strategy}", *more, f"output_dir={tmp_path / str(place)}"])
        for place, more in enumerate(
            (["privacy.adaptive=true"], ["privacy.adaptive=true", "engine.num_nodes=3"])
        )
    ]
    np.testing.assert_allclose(_weights(found[0]), _weights(found[1]), rtol=1e-5, atol=1e-6)
    table = found[0].clients
    counts = np.zeros(6, dtype=int)
    for line in SavedRun(tmp_path / "0").rounds:
        counts[line["cohort"]] += 1
        # z = 1, and counts with noise 10 of sensitivity 1/2.
        spent = epsilon_of([(1.0, counts.max()), (20.0, counts.max())], 1e-3)
        assert line["privacy"]["epsilon"] == pytest.approx(spent)
        assert line["loss"] is None
    expected = [epsilon_of([(1.0, n), (20.0, n)], 1e-3) for n in counts]
    np.testing.assert_allclose(table["epsilon"], expected)
    assert found[0].summary["epsilon"] == pytest.approx(max(expected))
    assert "label_counts" not in table
    assert found[0].summary["macro_f1"] is None
    assert "protects nobody" in found[0].summary["privacy"]["noise_from"]
    assert "from a published seed it protects nobody" in write_page(found[0].folder).read_text()


def test_a_run_that_goes_on_spends_what_one_run_would(tmp_path: Path) -> None:
    options = [*PRIVATE, "strategy=fedavg", "privacy.adaptive=true", "checkpoint_every=1"]
    whole = fedclust.run([*options, f"output_dir={tmp_path / 'whole'}"])
    part = tmp_path / "part"
    fedclust.run([*options, "rounds=2", f"output_dir={part}"])
    fedclust.run(expand([f"resume={part}", "rounds=3"]))
    again = fedclust.load(part)
    np.testing.assert_array_equal(_weights(again), _weights(whole))
    assert again.summary["epsilon"] == whole.summary["epsilon"]
    assert again.summary["privacy"] == whole.summary["privacy"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["strategy=ifca"],
            "privacy=client_dp does not support strategy ifca: it uses more than",
        ),
        (["strategy=fedgwc"], "privacy=client_dp does not support strategy fedgwc: it uses more than"),
        (
            ["strategy=auto"],
            "privacy=client_dp does not support proof=true, which asks .* "
            "strategy=private_groups decides by a noisy vote instead$",
        ),
        (["strategy=fedavg", "holdout_clients=0.2"], "holdout_clients must be 0 with privacy=client_dp"),
        (["strategy=fedavg", "save_predictions=true"], "save_predictions must be false with privacy=clie"),
        (["strategy=fedavg", "drift_every=2"], "drift_every must be 0 with privacy=client_dp, got 2"),
        (
            ["strategy=fedavg", "loss=weighted_cross_entropy"],
            "training.loss.class_weights must be numbers with privacy=client_dp, got balanced",
        ),
        (["strategy=fedavg", "proof=true"], "privacy=client_dp does not support proof=true, which"),
        (["strategy=fedavg", "selection=poc"], "privacy=client_dp does not support selection PowerOfChoice"),
        (["strategy=fedavg", "aggregator=krum"], "privacy=client_dp does not support aggregator"),
        (["strategy=fedavg", "personal=finetune"], "personal must be none with privacy=client_dp"),
        (["strategy=fedavg", "compare=[known_groups]"], "compare must be .. with privacy=client_dp, got"),
        (
            ["strategy=fedavg", "privacy.noise_multiplier=0"],
            "privacy.noise_multiplier must be > 0 and finite, got 0",
        ),
        (["strategy=fedavg", "privacy.delta=0.5"], "privacy.delta must be below one over"),
        (
            ["strategy=clust_psi_pfl", "privacy=none", "~privacy.delta", "privacy.label_counts=false"],
            "privacy.label_counts=false does not support clust_psi_pfl: ClustPSIPFL needs label counts",
        ),
        (
            ["strategy=fmcl", "privacy=none", "~privacy.delta", "privacy.label_counts=false"],
            "privacy.label_counts=false does not support fmcl: its prototypes come with the number of rows",
        ),
    ],
)
def test_what_cannot_hold_it_is_refused_before_round_1(
    overrides: list[str], said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    changed = {text.partition("=")[0].lstrip("~") for text in overrides}
    own = [text for text in PRIVATE if text.partition("=")[0] not in changed]
    overrides = [text for text in overrides if not text.startswith("~")]
    with pytest.raises(ConfigError, match=f"^{said}"):
        fedclust.run([*own, *overrides, f"output_dir={folder}"])
    assert not (folder / "rounds.jsonl").exists() or not (folder / "rounds.jsonl").read_text()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["strategy=ifca"], "privacy=patient_dp does not support strategy ifca: it asks sites for more than"),
        (["strategy=fedgwc"], "privacy=patient_dp does not support strategy fedgwc: it asks sites for"),
        (["strategy=centralised"], "privacy=patient_dp does not support strategy centralised"),
        (
            ["strategy=auto"],
            "privacy=patient_dp does not support proof=true, which asks .*; strategy=fedavg with compare=..",
        ),
        (["strategy=auto", "proof=false"], "strategy=auto must have proof=true"),
        (["strategy=fedavg", "proof=true"], "privacy=patient_dp does not support proof=true, which"),
        (
            ["strategy=fedavg", "compare=[local]"],
            "compare must be .. with privacy=patient_dp, got .'local'.:",
        ),
        (["strategy=fedavg", "holdout_clients=0.2"], "holdout_clients must be 0 with privacy=patient_dp"),
        (["strategy=fedavg", "save_predictions=true"], "save_predictions must be false with privacy=patient"),
        (["strategy=fedavg", "drift_every=2"], "drift_every must be 0 with privacy=patient_dp, got 2"),
        (["strategy=fedavg", "selection=poc"], "privacy=patient_dp does not support selection PowerOfChoice"),
        (["strategy=fedavg", "personal=prior"], "personal must be none with privacy=patient_dp, got prior"),
        (
            ["strategy=fedavg", "loss=weighted_cross_entropy"],
            "training.loss.class_weights must be numbers with privacy=patient_dp, got balanced",
        ),
        (
            ["strategy=fedavg", "training.augmentation=crop_flip"],
            "training.augmentation must be none with privacy=patient_dp, got crop_flip",
        ),
        (["strategy=fedavg", "privacy.sampling=0"], r"privacy.sampling must be in \(0, 1\], got 0"),
        (
            ["strategy=fedavg", "privacy.noise_multiplier=1"],
            "one of epsilon and noise_multiplier must be given, the other null, got 3.0 and 1",
        ),
    ],
)
def test_what_cannot_protect_patients_is_refused_before_round_1(
    overrides: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        fedclust.run([*PATIENTS, *overrides, f"output_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_patients_spend_what_was_printed_and_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path) -> None:
    noise = ["privacy.epsilon=null", "privacy.noise_multiplier=1.5", "privacy.evaluation=noised"]
    options = [*PATIENTS, *noise, "strategy=known_groups", "participation=0.5", "checkpoint_every=1"]
    printed = Console(file=io.StringIO(), width=400)
    whole = fedclust.run([*options, f"output_dir={tmp_path / 'whole'}"], printed)
    # Three rounds of two steps; the noise of three accuracies is such that they cost the same ε.
    planned = epsilon_of_steps(1.5, 0.5, 6, 1e-5)
    assert f"each patient spends at most ε = {planned:.3g} at δ = 1e-05" in printed.file.getvalue()
    private = whole.summary["privacy"]
    assert epsilon_of([(private["evaluation_noise"], 3)], 1e-5) == pytest.approx(planned, rel=1e-3)
    counts = np.zeros(6, dtype=int)
    for line in SavedRun(tmp_path / "whole").rounds:
        counts[line["cohort"]] += 1
        assert line["loss"] is None
    assert whole.clients["rounds_trained"].tolist() == counts.tolist()
    # Everybody measured thrice, which costs at least as much as the rounds that a client trained in.
    np.testing.assert_allclose(whole.clients["epsilon"], planned, rtol=1e-3)
    assert whole.clients["balanced_accuracy"].isna().all()
    assert not whole.clients["num_train"].any()
    part = tmp_path / "part"
    fedclust.run([*options, "rounds=2", f"output_dir={part}"])
    fedclust.run(expand([f"resume={part}", "rounds=3"]))
    again = fedclust.load(part)
    np.testing.assert_array_equal(_weights(again), _weights(whole))
    trained = epsilon_of_steps(1.5, 0.5, 2 * int(counts.max()), 1e-5)
    assert again.summary["epsilon"] >= trained
    assert "protects nobody" in whole.summary["privacy"]["noise_from"]
    card = (whole.export(tmp_path / "served") / "README.md").read_text()
    assert "had the noise been secret; it is from the published seed and protects nobody" in card
    assert "from a published seed it protects nobody" in write_page(whole.folder).read_text()


def test_noise_that_follows_from_epsilon_is_for_one_number_of_rounds(tmp_path: Path) -> None:
    options = [*PATIENTS, "strategy=fedavg", "participation=1", "rounds=2", f"output_dir={tmp_path}"]
    summary = fedclust.run(options).summary
    assert 3 * (1 - 1e-3) <= summary["epsilon"] <= 3
    assert summary["privacy"]["epsilon_planned"] == summary["epsilon"]
    with pytest.raises(RunFailed, match="a private run must be resumed with the noise it began with"):
        fedclust.run(expand([f"resume={tmp_path}", "rounds=3"]))


@pytest.mark.parametrize("strategy", ["fedavg", "local", "known_groups"])
def test_what_is_made_of_private_models_costs_patients_nothing(strategy: str, tmp_path: Path) -> None:
    options = [*PATIENTS, f"strategy={strategy}", "participation=1", "aggregator=fedmedian"]
    noise = ["privacy.epsilon=null", "privacy.noise_multiplier=2"]
    result = fedclust.run([*options, *noise, f"output_dir={tmp_path / 'run'}"])
    assert result.summary["epsilon"] == pytest.approx(epsilon_of_steps(2.0, 0.5, 6, 1e-5))
    assert "models trained with noise" in result.summary["left_clients"]["train"]
    card = (result.export(tmp_path / "served") / "README.md").read_text()
    assert f"- privacy: ε = {result.summary['epsilon']:.3g} at δ = 1e-05 (patient_dp)" in card
    assert "| client | cluster | test rows | accuracy |" in card  # of training rows nothing is known
    rows = np.zeros((2, 1, 8, 8), np.uint8)
    assert fedclust.load_export(tmp_path / "served").predict(rows, site=0).shape == (2, 10)


@pytest.mark.parametrize("tracks", [True, False])
def test_networks_that_mix_rows_cannot_protect_patients(tracks: bool) -> None:
    network = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=tracks), nn.Linear(2, 2))
    rows = [(np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]))] * 2
    said = "privacy=patient_dp does not support a network with batch statistics, 0 is a BatchNorm1d"
    with pytest.raises(ValueError, match=f"^{said}"):
        fedclust.simulate("fedavg", network, rows, rounds=1, training=TRAINING, privacy="patient_dp")


def test_a_class_derived_from_one_that_holds_it_must_say_so_itself() -> None:
    assert vars(KnownGroups)["holds_client_dp"] is not None

    class Derived(ClusteredStrategy):
        pass

    rows = [(np.ones((4, 2), np.float32) * k, np.array([0, 1, 0, 1])) for k in range(2)]
    with pytest.raises(ValueError, match="^privacy=client_dp does not support strategy derived"):
        fedclust.simulate(Derived(), nn.Linear(2, 2), rows, rounds=1, training=TRAINING, privacy="client_dp")


def test_no_question_but_the_first_is_asked(toy) -> None:
    federation = Federation(toy().grid(), disclosed="nothing")
    with pytest.raises(
        FederationError, match="^privacy=client_dp and patient_dp allow no question but to train, got"
    ):
        federation.losses([toy.model()], [0])


def test_without_label_counts_the_rest_of_the_run_is_the_same(tmp_path: Path) -> None:
    options = [*SMALL, "strategy=fedavg", "proof=false"]
    asked = fedclust.run([*options, f"output_dir={tmp_path / 'asked'}"])
    quiet = fedclust.run([*options, "privacy.label_counts=false", f"output_dir={tmp_path / 'quiet'}"])
    np.testing.assert_array_equal(_weights(asked), _weights(quiet))
    assert quiet.summary["mean_client_accuracy"] == asked.summary["mean_client_accuracy"]
    assert quiet.clients["num_train"].tolist() == asked.clients["num_train"].tolist()
    assert "label_counts" in asked.clients
    assert "label_counts" not in quiet.clients
    assert quiet.summary["weighted_psi"] is None
    assert "labels_per_cluster" not in {each.name for each in pictures(SavedRun(tmp_path / "quiet"))}


def test_the_proof_gives_way_to_what_is_withheld() -> None:
    assert compose(["strategy=known_groups"]).proof is True
    config = compose(["strategy=known_groups", "privacy.label_counts=false"])
    assert run_settings(config).proof is False


def test_noised_evaluations_are_all_that_is_recorded_of_accuracies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = [*PRIVATE, "strategy=fedavg", "privacy.evaluation=noised", "evaluate_every=3"]
    found = fedclust.run([*options, f"output_dir={folder}"])
    assert found.clients["accuracy"].nunique() == 1
    assert found.clients["loss"].isna().all()
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert ["mean_client_accuracy" in line for line in lines] == [False, False, True]
    counts = found.clients["rounds_trained"]
    expected = [epsilon_of([(1.0, n), (10.0, 1)], 1e-3) for n in counts]
    np.testing.assert_allclose(found.clients["epsilon"], expected)
