"""Every selection policy works inside every kind of method, on real digits, and is resumed to the bit."""

from pathlib import Path

import numpy as np
import pytest

import fedclust
from fedclust.federation import Federation
from fedclust.settings.composition import CONF, compose
from tests.strategies.helpers import Keeping, Lossy, assert_same_models, built, kept

SELECTIONS = sorted(path.stem for path in (CONF / "selection").glob("*.yaml"))
ASKING = ("haccs", "poc")
SMALL = "rounds=4 partition=dirichlet partition.num_clients=10 partition.alpha=0.3 training.steps=2"
TWO = ("fedavg", "clust_psi_pfl")


def _build(*overrides: str):
    return built(compose([*SMALL.split(), "participation=0.4", *overrides]))


@pytest.mark.parametrize(
    ("strategy", "selection"),
    [("fedgwc", "poc"), ("centralised", "own"), *((name, each) for name in TWO for each in SELECTIONS)],
)
def test_goes_on_from_a_checkpoint_on_other_nodes(selection: str, strategy: str, tmp_path: Path) -> None:
    chosen = [f"strategy={strategy}", f"selection={selection}"]
    whole, grid, initial = _build(*chosen)
    seen = Keeping(whole, tmp_path, 2)
    whole.start(grid, initial, 4)
    assert [record["round"] for record in seen.rounds] == [1, 2, 3, 4]
    sizes = {cluster: len(whole.clusters.members(cluster)) for cluster in range(len(whole.clusters.models))}
    if strategy == "clust_psi_pfl":  # two fifths of each cluster, rounded up
        expected = sum(-(-2 * size // 5) for size in sizes.values())
        assert {len(record["cohort"]) for record in seen.rounds} == {expected}
    resumed, grid, initial = _build(*chosen, "engine.num_nodes=3")
    again = Keeping(resumed, tmp_path)
    resumed.start(grid, initial, 4, resume=kept(tmp_path, 2))
    assert again.rounds == seen.rounds[2:]
    assert_same_models(whole, resumed)


@pytest.mark.parametrize("selection", ASKING)
def test_a_round_in_which_nobody_answers_trains_nobody(selection: str, watch) -> None:
    strategy, grid, initial = _build("strategy=fedavg", f"selection={selection}")
    strategy.observer = watch
    strategy.start(Lossy(grid, lambda _, kind, __: kind == "query.losses"), initial, 1)
    assert watch.rounds[0]["cohort"] == []
    assert watch.rounds[0]["loss"] is None
    for key, array in initial.items():
        np.testing.assert_array_equal(strategy.clusters.models[0][key].numpy(), array.numpy())


def _bytes(folder: Path, *overrides: str) -> tuple[dict, list[dict]]:
    run = fedclust.run(
        [*SMALL.split(), "participation=0.4", "compare=[]", "proof=false", *overrides, f"output_dir={folder}"]
    )
    return run.summary, run.rounds.to_dict("records")


def test_questions_are_counted_in_bytes(tmp_path: Path) -> None:
    found = {
        name: _bytes(tmp_path / name, "strategy=fedavg", f"selection={name}", "rounds=2", "participation=1")
        for name in ("uniform", "fedcls", "poc", "haccs")
    }
    up = {name: [line["bytes_up_unbundled"] for line in lines] for name, (_, lines) in found.items()}
    _, grid, initial = _build("strategy=fedavg")
    federation = Federation(grid)
    federation.describe()
    described = federation.description_traffic.totals()["bytes_up_unbundled"]
    assert described > 10 * 2 * 10 * 8  # ten clients' counts of ten classes, in training and in test parts
    before = grid.traffic
    federation.losses([initial], range(10))
    answers = grid.traffic.since(before).totals()["bytes_up_unbundled"]
    # Everyone takes part, so rounds are alike but for what is asked: label counts once, losses every round.
    assert up["fedcls"] == [up["uniform"][0] + described, up["uniform"][1]]
    asked = [up["uniform"][0] + described + answers, up["uniform"][1] + answers]
    assert up["haccs"] == up["poc"] == asked
    for summary, lines in found.values():
        assert sum(line["bytes_up_unbundled"] for line in lines) == summary["bytes_up_unbundled"]
