"""How benchmarks/paper_table.py turns a paper's table into commands, and its folders into a table."""

import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

from fedclust.settings import folders

SCRIPT = "paper_table"

ROOT = Path(__file__).parents[2]


def options(experiment: str, **given: object) -> Namespace:
    usual = {
        "experiment": experiment, "rows": None, "columns": None, "clients": None, "seeds": [0],
        "data": None, "set": [],
    }  # fmt: skip
    return Namespace(**usual | given)


def test_columns_are_the_settings_that_the_paper_could_draw(script: ModuleType) -> None:
    titles = [column.title for column in script.columns_of(script.tables_of("clust_psi_pfl_acs_income"))]
    # Two classes: the columns α = 0.2, 0.09 and 0.05 have "—" in every row of Tables III and IV.
    assert titles == ["alpha=50", "alpha=0.7", "alpha=0.3", "similarity=1", "similarity=0.03", "similarity=0"]
    # FMCL's settings are of its own method: its table has rows only.
    assert [column.title for column in script.columns_of(script.tables_of("fmcl_imagenette"))] == [""]


def test_a_command_for_each_row_column_size_and_seed(script: ModuleType, tmp_path: Path) -> None:
    given = options(
        "clust_psi_pfl_fmnist",
        rows=["HACCS", "FedYogi"], columns=["similarity=0.03", "alpha=50"], clients=[10, 50], seeds=[3, 4],
    )  # fmt: skip
    runs = script.runs_of(given, "dataset.path=there", tmp_path)
    assert len(runs) == 2 * 2 * 2 * 2
    assert len({run.folder for run in runs}) == len(runs)
    last = runs[-1]
    assert (last.row, last.column.title, last.clients, last.seed) == ("HACCS", "similarity=0.03", 50, 4)
    for wanted in ("partition=similarity", "partition.similarity=0.03", "partition.num_clients=50", "seed=4",
                   "strategy=fedavg", "selection=haccs", "compare=[]", "dataset.path=there"):  # fmt: skip
        assert wanted in last.overrides
    assert not any(character in str(run.folder.relative_to(tmp_path)) for run in runs for character in "=[ (")


def test_the_folder_of_a_row_with_greek_letters_can_be_typed(script: ModuleType, tmp_path: Path) -> None:
    (run,) = script.runs_of(options("fedgwc_cifar100", rows=["FedGWC (β = 0.1)"]), "dataset.path=.", tmp_path)
    typed = [*run.overrides, f"output_dir={run.folder}"]
    assert script.compose(typed).output_dir == str(tmp_path / "table/clients-own/FedGWC-0.1-/seed-0")


def test_every_round_is_scored_where_the_paper_has_the_best_one(script: ModuleType, tmp_path: Path) -> None:
    for experiment, every in (("fmcl_imagenette", "1"), ("clust_psi_pfl_fmnist", "${rounds}")):
        given = options(experiment, set=["evaluate_every=5"])
        (run, *_) = script.runs_of(given, "dataset.path=there", tmp_path)
        scored = [each for each in run.overrides if each.startswith("evaluate_every=")]
        assert scored == [f"evaluate_every={every}", "evaluate_every=5"]  # the last one counts


@pytest.mark.parametrize(("seeds", "best"), [([0], "0.800"), ([0, 1], "0.700 ± 0.141"), ([0, 2], "–")])
def test_the_best_round_of_the_mean_has_a_column(
    script: ModuleType, tmp_path: Path, seeds: list[int], best: str
) -> None:
    given = options("fmcl_imagenette", rows=["FMCL"], seeds=seeds)
    runs = script.runs_of(given, "dataset.path=there", tmp_path)
    # By seed and round: seeds 0 and 1 are best in round 2 together; of seed 2 only the last was scored.
    scored = {0: {1: 0.2, 2: 0.8, 3: 0.6}, 1: {1: 0.4, 2: 0.6, 3: 0.7}, 2: {3: 0.9}}
    for run in runs:
        run.folder.mkdir(parents=True)
        lines = [{"round": at, "global_accuracy": value} for at, value in scored[run.seed].items()]
        (run.folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        summary = {"global_accuracy": scored[run.seed][3], "num_clients": 30, "compare": {}}
        (run.folder / "summary.json").write_text(json.dumps(summary))
        (run.folder / "config.yaml").write_text("{}")
    text = script.write(given, runs, tmp_path / "out")
    assert "| global accuracy | global accuracy, best round | published |" in text
    (line,) = [each for each in text.splitlines() if each.startswith("| FMCL ")]
    assert line.split(" | ")[4] == best  # after the clusters' two columns and the last round's figure


def test_a_row_with_a_note_is_marked(script: ModuleType, tmp_path: Path) -> None:
    given = options("clust_psi_pfl_fmnist", rows=["FedAvg", "PoC"], columns=["alpha=50"])
    text = script.write(given, script.runs_of(given, "dataset.path=there", tmp_path), tmp_path / "out")
    assert "\n\\* PoC: with 8 candidates (Table II) losses choose nobody in cohorts of 8 or more," in text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][1:] == [
        "| ---", "| FedAvg", "| PoC \\*"
    ]  # fmt: skip


def test_a_missing_dataset_in_one_line(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "DATA", tmp_path)
    with pytest.raises(ValueError, match="needs the dataset serengeti: give its folder with --data$"):
        script.data_of(options("clust_psi_pfl_serengeti"))


def test_another_dataset_is_read_from_its_own_folder(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adult").mkdir()
    monkeypatch.setattr(script, "DATA", tmp_path)
    asked = options("clust_psi_pfl_acs_income", set=["dataset=adult", "~dataset.only"])
    assert script.data_of(asked) == f"dataset.path={tmp_path / 'adult'}"


@pytest.mark.parametrize("given", [[], ["encoder=efficientnet_lite0"], ["encoder.path=models/vit-tiny"]])
def test_a_table_with_an_encoder_is_run_with_the_one_that_is_given(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    (tmp_path / "imagenette64").mkdir()
    monkeypatch.setattr(script, "DATA", tmp_path)
    asked = options("fmcl_imagenette", set=given)
    assert script.data_of(asked) == f"dataset.path={tmp_path / 'imagenette64'}"


def test_names_that_are_not_in_the_table(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--rows must be among CL, FedAvg, .*, got IFCA"):
        script.runs_of(options("clust_psi_pfl_fmnist", rows=["IFCA"]), "dataset.path=there", tmp_path)
    with pytest.raises(ValueError, match=r"--columns must be among alpha=50, .*, got alpha=1"):
        script.runs_of(options("clust_psi_pfl_fmnist", columns=["alpha=1"]), "dataset.path=there", tmp_path)
    with pytest.raises(ValueError, match=r"EXPERIMENT must have rows .*, got fedgwc_femnist"):
        script.runs_of(options("fedgwc_femnist"), "dataset.path=there", tmp_path)


def test_ours_stand_beside_the_published_figures(script: ModuleType, tmp_path: Path) -> None:
    given = options("clust_psi_pfl_fmnist", rows=["CL", "HACCS"], columns=["similarity=0.03"], seeds=[0, 1])
    runs = script.runs_of(given, "dataset.path=there", tmp_path)
    # HACCS has 0.2 and 0.4: mean 0.3, squared deviations 0.01 twice over n - 1 = 1: √0.02 = 0.141.
    for run in runs:
        if run.row == "HACCS":
            run.folder.mkdir(parents=True)
            figures = {"global_accuracy": [0.2, 0.4][run.seed], "ad": 0.7, "sdad": 0.1, "seed": run.seed}
            summary = {**figures, "num_clients": 100, "weighted_psi": 5.0, "compare": {}}
            (run.folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    text = script.write(given, runs, tmp_path / "out")
    assert "## similarity=0.03, K = 100, WPSI 5.00" in text
    assert "| HACCS | 0.300 ± 0.141 | 0.16 ± 0.04 | 0.700 ± 0.100 | 0.85 ± 0.22 |" in text
    assert "| CL | – | 0.90 ± 0.02 | – | – |" in text  # has not run
    assert (tmp_path / "out" / "clust_psi_pfl_fmnist.md").read_text(encoding="utf-8") == text


def test_a_panel_has_the_mean_skew_of_its_seeds(script: ModuleType) -> None:
    found = [
        {"seed": seed, "weighted_psi": psi, "num_clients": 10} for seed, psi in enumerate([1.0, 1.0, 4.0])
    ]
    panel = script._panel((None, script.Column("alpha=0.3", ())), {"FedAvg": found, "CFL": found[2:]})
    assert panel == "alpha=0.3, K = 10, WPSI 2.00"  # (1 + 1 + 4) / 3: CFL's run is of a seed that counts once


def test_another_number_of_clients_has_no_published_figure(script: ModuleType) -> None:
    columns = script.columns_of(script.tables_of("clust_psi_pfl_fmnist"))
    (column,) = (each for each in columns if each.title == "similarity=0")
    # Table III is for K = 100.
    assert script.figures_of("clust_psi_pfl_fmnist", "FedAvg", column, 100)["global_accuracy"] == [0.14, 0.04]
    assert script.figures_of("clust_psi_pfl_fmnist", "FedAvg", column, 10) == {}


def test_runs_of_other_settings_do_not_stand_for_those_asked(script: ModuleType, tmp_path: Path) -> None:
    script.check_settings(tmp_path, ["rounds=5"])  # no runs yet
    assert script.make([], tmp_path, 1, ["rounds=5", "evaluate_every=5"])
    script.check_settings(tmp_path, ["evaluate_every=1", "rounds=5"])  # scored more often: the same run
    for given in (["rounds=10"], [], ["rounds=5", "model=linear"]):
        with pytest.raises(script.CannotRun, match="that of the runs in .*, rounds=5, or FOLDER"):
            script.check_settings(tmp_path, given)


def test_a_run_that_was_interrupted_goes_on(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("fedclust.run", asked.append)
    column = script.Column("", ())
    run = script.Run("FedAvg", column, None, 0, ("strategy=fedavg",), tmp_path / "run")
    for name in ("rounds.jsonl", "checkpoints/round-000002.safetensors"):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("")
        assert script._make(run) == ""
    # Before its first checkpoint a run begins anew.
    assert asked == [["strategy=fedavg", f"output_dir={run.folder}"], [f"resume={run.folder}"]]
    (run.folder / "summary.json").write_text('{"compare": {}}')
    assert script._make(run) == ""
    assert len(asked) == 2


def test_a_run_of_another_process_is_left_alone(script: ModuleType, tmp_path: Path) -> None:
    run = script.Run("FedAvg", script.Column("", ()), None, 0, ("strategy=fedavg",), tmp_path / "run")
    with folders.locked(run.folder, resumed=False):
        (run.folder / "rounds.jsonl").write_text("its first round")
        assert "must be a folder that no other run is writing to" in script._make(run)
    assert (run.folder / "rounds.jsonl").exists()
