"""Groups that clients choose privately: the vote, what is published, and what it costs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.federation import Flower
from fedclust.privacy import ClientDP
from fedclust.privacy.accountant import epsilon_of
from fedclust.results import Checkpoints
from fedclust.settings.composition import ConfigError

DRAWS = np.random.default_rng(0)
LABELS = DRAWS.integers(0, 4, (12, 60))
ROWS = (2 * np.eye(4, 8)[LABELS] + 0.4 * DRAWS.normal(size=(12, 60, 8))).astype("float32")
LABELS[7:] = 3 - LABELS[7:]  # the last five name the classes backwards
GROUPS = [0] * 7 + [1] * 5
TRAINING = fedclust.LocalTraining(learning_rate=0.2, batch_size=16, epochs=2)
# Hardly any noise, and a clip that hardly clips: what is then found is what the method finds.
QUIET = ClientDP(noise_multiplier=1e-6, clip=10.0, delta=1e-3, count_noise=1e-6, evaluation_noise=1e-6)


def _simulate(privacy, rounds: int = 8, clients: int = 12, folder: Path | None = None):
    torch.manual_seed(0)
    network = nn.Linear(8, 4)
    data = list(zip(ROWS, LABELS, strict=True))[:clients]
    options = {"rounds": rounds, "training": TRAINING, "privacy": privacy, "folder": folder}
    return fedclust.simulate("private_groups", network, data, **options)


@pytest.mark.parametrize("privacy", ["none", QUIET])
def test_groups_are_found_and_kept_where_they_help(privacy) -> None:
    found = _simulate(privacy)
    assert found.summary["groups_kept"]
    assert found.assignment.min() == 1  # cluster 0 is the model for all
    assert found.summary["adjusted_rand_index"] is None  # nobody names a group
    assert len(set(zip(found.assignment.tolist(), GROUPS, strict=True))) == 2
    common = np.mean([_accuracy(found.model_of(0), client) for client in range(12)])
    assert found.summary["mean_client_accuracy"] > common + 0.2


def _accuracy(network: nn.Module, client: int) -> float:
    with torch.no_grad():
        predicted = network(torch.from_numpy(ROWS[client])).argmax(1).numpy()
    return float((predicted == LABELS[client]).mean())


def test_one_model_for_all_where_clients_are_alike() -> None:
    found = _simulate("none", clients=7)
    assert not found.summary["groups_kept"]
    assert found.assignment.tolist() == [0] * 7
    assert found.summary["decision"].startswith("groups are not shown to help: one model for all (gain ")


def test_all_releases_are_counted() -> None:
    # 5 rounds: 5 of the model for all and, after 3 of warm-up, 2 of the groups, with z = 1; 2 of sizes, with
    # noise 10 and sensitivity √(1/2); the vote, with noise 10.
    found = _simulate(ClientDP(delta=1e-3), rounds=5)
    spent = epsilon_of([(1.0, 7), (10 * math.sqrt(2), 2), (10.0, 1)], 1e-3)
    assert found.summary["epsilon"] == pytest.approx(spent)
    assert (found.clients["rounds_trained"] == 5).all()


SHORT = "strategy=private_groups partition.num_clients=12 partition.groups=[7,5] compare=[] rounds=8"
SHORT += " privacy=client_dp privacy.delta=1e-3 privacy.noise_multiplier=1e-6 privacy.clip=10"
SHORT += " privacy.count_noise=1e-6 privacy.evaluation_noise=1e-6 model=mlp model.hidden=[]"


def _run(folder: Path, *more: str):
    return fedclust.run(
        [*SHORT.split(), "evaluate_every=8", "participation=1", f"output_dir={folder}", *more]
    )


def test_deployed_clients_keep_what_they_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = _run(tmp_path / "simulated")
    assert sorted(simulated.summary["cluster_sizes"]) == [0, 5, 7]

    monkeypatch.setattr(Flower, "simulated", False)
    folder = tmp_path / "deployed"
    found = _run(folder, "engine.num_nodes=3", "privacy.evaluation_noise=1e-3")
    assert found.summary["groups_kept"]
    assert found.summary["choose_among"] == [1, 2]
    # Nothing that is written says who chose what: not tables, changes, checkpoints, sizes or bytes.
    assert found.summary["assignment"] == [0] * 12
    assert found.clients["cluster"].tolist() == [0] * 12
    changes = json.loads((folder / "clusters.json").read_text())
    assert [change["assignment"] for change in changes] == [[0] * 12]
    assert Checkpoints(folder / "checkpoints", 8).newest().assignment.tolist() == [0] * 12
    for line in found.saved.rounds:
        assert line["cluster_sizes"][0] == 12
        assert line["bytes_down"] == line["bytes_down_unbundled"]
        assert line["bytes_up"] == line["bytes_up_unbundled"]
    assert found.clients["bytes_up"].nunique() == 1
    # What is served is what each chose for itself: the noised accuracy is that of the groups.
    assert found.summary["mean_client_accuracy"] == pytest.approx(
        simulated.summary["mean_client_accuracy"], abs=0.1
    )
    assert found.clients["accuracy"].nunique() == 1
    # One mean has no spread, and clusters that are not recorded do not agree or disagree with groups.
    unknown = ("ad", "sdad", "rand_index", "adjusted_rand_index", "was", "wadb")
    assert [found.summary[name] for name in unknown] == [None] * 6
    assert (found.summary["num_clusters"], found.num_clusters) == (2, 2)
    assert not (folder / "plots" / "accuracy_ecdf.png").exists()
    with pytest.raises(ValueError, match=r"nothing records which of \[1, 2\] it chose: model_of\(assign\("):
        found.model_for(0)
    # Its last round's models are out: another noise on them, and on the vote, would not be in ε.
    with pytest.raises(ConfigError, match="rounds must be 8, as privacy=client_dp was finished with these"):
        fedclust.run([f"resume={folder}", "rounds=9"])
    assert fedclust.run([f"resume={folder}"]).summary["epsilon"] == found.summary["epsilon"]


def test_a_client_chooses_for_itself_by_the_results(tmp_path: Path) -> None:
    found = _simulate(QUIET, folder=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    clusters = found.assignment
    summary |= {"choose_among": [1, 2], "assignment": [0] * 12}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "run" / "clusters.json").write_text(
        json.dumps([{"round": 0, "assignment": [0] * 12, "reason": "before round 1"}])
    )
    hidden = fedclust.load(tmp_path / "run", nn.Linear(8, 4))
    for client in (0, 11):
        assert hidden.assign(ROWS[client], LABELS[client]) == clusters[client]
