"""How benchmarks/bench.py and proof.py read their runs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = "bench"
MANY = "conventions-three"


@pytest.fixture
def proof(scripts: Callable[[str], ModuleType]) -> ModuleType:
    return scripts("proof")


def _cells(script: ModuleType, folder: Path, seeds: list[int], *partitions: str) -> list:
    return [cell for cell in script.cells(folder, ["digits"], seeds) if cell.partition in partitions]


def _leave(folder: Path, accuracy: float, layers: dict[str, float], rand: float | None = None) -> None:
    folder.mkdir(parents=True)
    figures = {name: {"mean_client_accuracy": value} for name, value in layers.items()}
    summary = {
        "mean_client_accuracy": accuracy, "personal": {"figures": figures}, "adjusted_rand_index": rand,
        "num_clusters": 2, "num_clients": 10, "bytes_down_unbundled": 60_000, "bytes_up_unbundled": 40_000,
        "seconds": 3.0, "compare": {},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def test_every_choice_of_the_grid_exists(script: ModuleType, proof: ModuleType) -> None:
    from fedclust.settings.checks import check
    from fedclust.settings.composition import compose

    for module in (script, proof):
        cells = module.cells(Path("runs"), ["digits"], [1])
        assert {cell.partition for cell in cells} == set(module.PARTITIONS)
    bench = _cells(script, Path("runs"), [1], *script.PARTITIONS)
    # Every kind of federation with FedAvg, and one with all methods, of which the proof has some.
    for cell in [*bench, *_cells(proof, Path("runs"), [1], MANY)]:
        for name in cell.methods if cell.partition == MANY and cell in bench else ("fedavg",):
            check(compose(cell.overrides(name, None)))


def test_methods_are_told_the_number_of_groups(script: ModuleType) -> None:
    assert "strategy.parameters.num_clusters=3" in script.methods(3)["ifca"].overrides
    assert "strategy.parameters.num_clusters=2" in script.methods(1)["ifca"].overrides
    assert script.methods(3)["ifca"].told == "number of groups, 3"
    assert script.methods(3)["auto"].told == ""
    assert "known_groups" not in script.methods(1)


def test_the_best_layer_is_the_one_with_the_highest_mean(script: ModuleType, tmp_path: Path) -> None:
    cells = _cells(script, tmp_path, [1, 2], "iid")
    # prior: 0.8 and 0.9, finetune: 0.7 and 0.95: means 0.85 and 0.825.
    _leave(cells[0].folder / "fedavg", 0.6, {"none": 0.6, "prior": 0.8, "finetune": 0.7})
    _leave(cells[1].folder / "fedavg", 0.8, {"none": 0.8, "prior": 0.9, "finetune": 0.95})
    _leave(cells[0].folder / "auto", 0.7, {"none": 0.7})
    found = script.read(cells)[("digits", "iid")]
    assert found["fedavg"].best_layer == ("prior", [0.8, 0.9])
    assert found["auto"].best_layer == ("–", [])
    lines = script.method_table("iid", found, times=True)
    # 100 kB of 10 clients are 10 kB each; 0.6 and 0.8 are 0.7 ± 0.141, 0.8 and 0.9 are 0.85 ± 0.071.
    assert "| fedavg | 0.700 ± 0.141 | 0.850 ± 0.071 (prior) | – | 2.0 | 10 | – | 1.0 × | – |" in lines
    untimed = script.method_table("iid", found, times=False)
    assert "| fedavg | 0.700 ± 0.141 | 0.850 ± 0.071 (prior) | – | 2.0 | 10 | – | – |" in untimed


def test_the_clients_that_train_in_a_round_are_a_mean_over_rounds_and_seeds(
    script: ModuleType, tmp_path: Path
) -> None:
    cells = _cells(script, tmp_path, [1, 2], "iid")
    for cell, cohorts in zip(cells, ([[0, 1, 2], [4]], [[0, 1, 2, 3, 4]]), strict=True):
        _leave(cell.folder / "fedavg", 0.6, {})
        lines = [json.dumps({"round": number, "cohort": each}) for number, each in enumerate(cohorts, 1)]
        (cell.folder / "fedavg" / "rounds.jsonl").write_text("\n".join(lines), encoding="utf-8")
    # (3 + 1) / 2 = 2 with one seed, 5 with the other.
    found = script.read(cells)[("digits", "iid")]
    assert found["fedavg"].trained == [2.0, 5.0]
    table = script.method_table("iid", found, times=True).splitlines()
    (row,) = (line for line in table if line.startswith("| fedavg "))
    assert row.endswith("| 10 | 3.5 | 1.0 × | – |")


def test_none_is_named_where_none_beats_fedavg(script: ModuleType, tmp_path: Path) -> None:
    cells = _cells(script, tmp_path, [1], "iid", "rotation")
    for cell in cells:
        _leave(cell.folder / "fedavg", 0.9, {})
        _leave(cell.folder / "ifca", 0.99, {})  # is told the number of groups
    _leave(cells[0].folder / "cfl", 0.905, {})
    _leave(cells[1].folder / "cfl", 0.95, {})
    first, second = script.first_screen(script.read(cells)).splitlines()[2:]
    assert "| none beats FedAvg by 0.01 |" in first
    assert "| cfl 0.950 |" in second


def test_cells_short_of_the_bar_are_named(proof: ModuleType, tmp_path: Path) -> None:
    cells = _cells(proof, tmp_path, [1, 2], "rotation")
    for cell, common, auto in zip(cells, (0.80, 0.90), (0.86, 0.96), strict=True):
        _leave(cell.folder / "fedavg", common, {})
        _leave(cell.folder / "known_groups", common + 0.1, {}, 1.0)
        _leave(cell.folder / "auto", auto, {}, 0.9)
        _leave(cell.folder / "fmcl", 0.5, {}, 0.0)
    cells += (alike := _cells(proof, tmp_path, [1, 2], "iid"))
    for cell, auto in zip(alike, (0.79, 0.87), strict=True):
        _leave(cell.folder / "fedavg", auto + (0.01 if auto < 0.8 else 0.03), {})
        _leave(cell.folder / "auto", auto, {})
    text = "\n".join(proof.page(cells))
    # auto − FedAvg: −0.01 and −0.03: mean −0.02, standard error 0.0141/√2 = 0.010.
    assert "auto, IID: 0.020 below FedAvg (standard error 0.010)" in text
    assert "fmcl" not in text.split("below FedAvg")[1]  # a paper's method is not judged
    # auto gains 0.06 of the 0.10 that the known groups gain.
    assert "auto, half of the clients' images rotated: 60 % of the known groups' gain" in text
    assert "auto, half of the clients' images rotated: adjusted Rand index 0.90" in text
    assert "auto, half of the clients' images rotated: 0" not in text


@pytest.mark.skipif(sys.platform == "win32", reason="paths")
def test_a_finished_run_is_not_made_again(script: ModuleType, tmp_path: Path, monkeypatch) -> None:
    import federations

    import fedclust

    (cell,) = _cells(script, tmp_path, [1], "iid")
    made = []
    monkeypatch.setattr(fedclust, "run", lambda overrides: made.append(overrides[-1]) or 1 / 0)
    _leave(cell.folder / "fedavg", 0.6, {})
    failed = federations._run_cell(cell, None)
    assert len(made) == len(cell.methods) - 1 == len(failed)
    assert not any(text.endswith("/fedavg") for text in made)
