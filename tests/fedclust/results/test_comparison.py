import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedclust.results import SavedRun
from fedclust.results.comparison import ComparedRuns, compare, find_runs


def run(folder: Path, strategy: str, seed: int, accuracy: float | None, config: dict | None = None) -> Path:
    folder.mkdir(parents=True)
    summary = {"strategy": strategy, "seed": seed, "mean_client_accuracy": accuracy, "good": True}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "rounds.jsonl").touch()
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"seed": seed}))
    return folder


def table(folder: Path) -> dict[tuple[str, ...], list[float]]:
    rows = compare(find_runs([folder])[0]).rows
    return {(row.strategy, *row.settings): row.values("mean_client_accuracy").tolist() for row in rows}


def test_seeds_are_gathered_per_strategy(tmp_path: Path) -> None:
    # As a Hydra sweep leaves it; the strategies' own keys and copies of the seed are no settings.
    for seed in (1, 0):
        shared = {"partition": {"seed": seed}}
        gwc = {"choices": {"strategy": "fedgwc"}, "strategy": {"kernel_width": 0.5}, **shared}
        avg = {"choices": {"strategy": "fedavg"}, "strategy": {}, **shared}
        run(tmp_path / "multirun" / f"gwc{seed}", "fedgwc", seed, 0.9 + seed / 100, gwc)
        run(tmp_path / "multirun" / f"avg{seed}", "fedavg", seed, 0.5, avg)
    assert table(tmp_path) == {("fedavg",): [0.5, 0.5], ("fedgwc",): [0.9, 0.91]}


def test_settings_that_differ_make_rows_of_their_own(tmp_path: Path) -> None:
    for place, alpha in enumerate((10, 9, 0.1)):
        config = {"partition": {"alpha": alpha, "num_clients": 30}, "output_dir": f"o/{place}", "wait": place}
        run(tmp_path / str(place), "fedavg", 0, alpha, config)
    comparison = compare(find_runs([tmp_path])[0])
    assert comparison.settings == ("partition.alpha",)
    assert [row.settings for row in comparison.rows] == [("0.1",), ("9",), ("10",)]  # by size, not by letters


def test_one_column_for_keys_that_change_together(tmp_path: Path) -> None:
    for name, classes in (("digits", 10), ("adult", 2)):
        config = {
            "dataset": {"_target_": f"x.{name}", "num_classes": classes, "shape": [classes]},
            "model": {"num_classes": classes},
            "choices": {"dataset": name, "strategy": f"s_{name}"},
        }
        run(tmp_path / name, f"s_{name}", 0, 0.5, config)
    comparison = compare(find_runs([tmp_path])[0])
    assert comparison.settings == ("dataset",)


def test_a_strategys_own_setting_shows_only_where_its_runs_differ(tmp_path: Path) -> None:
    run(tmp_path / "a", "fedgwc", 0, 0.1, {"strategy": {"kernel_width": 0.5}})
    run(tmp_path / "b", "fedgwc", 0, 0.2, {"strategy": {"kernel_width": 4.0}})
    run(tmp_path / "c", "fedavg", 0, 0.3, {"strategy": {}})
    assert table(tmp_path) == {("fedavg", ""): [0.3], ("fedgwc", "0.5"): [0.1], ("fedgwc", "4.0"): [0.2]}


def test_runs_without_a_configuration_differ_by_their_size(tmp_path: Path) -> None:
    for clients in (10, 20):
        folder = run(tmp_path / str(clients), "fedavg", 0, 0.5)
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"num_clients": clients}))
    assert table(tmp_path) == {("fedavg", "10"): [0.5], ("fedavg", "20"): [0.5]}


def test_a_compared_strategy_counts_once(tmp_path: Path) -> None:
    config = {"partition": {"alpha": 0.1}, "strategy": {"kernel_width": 0.5}}
    main = run(tmp_path / "main", "fedgwc", 0, 0.9, config)
    beside = run(main / "compare" / "fedavg", "fedavg", 0, 0.4)
    assert table(tmp_path) == {("fedavg",): [0.4], ("fedgwc",): [0.9]}
    assert table(beside) == {("fedavg",): [0.4]}
    # Run by itself as well, with the same setting and seed: that one counts, although it is older.
    own = run(tmp_path / "own", "fedavg", 0, 0.5, {"partition": {"alpha": 0.1}, "strategy": {}})
    os.utime(own / "summary.json", (1, 1))
    assert table(tmp_path) == {("fedavg",): [0.5], ("fedgwc",): [0.9]}
    assert compare(find_runs([tmp_path])[0]).repeats == (beside.resolve(),)


def test_of_repeated_runs_the_newest_counts(tmp_path: Path) -> None:
    for age, name in enumerate("abc"):
        folder = run(tmp_path / name, "fedavg", 0, 0.1 * age, {})
        os.utime(folder / "summary.json", (1000 - age, 1000 - age))
    comparison = compare(find_runs([tmp_path, tmp_path / "a"])[0])
    assert [row.values("mean_client_accuracy").tolist() for row in comparison.rows] == [[0.0]]
    assert [path.name for path in comparison.repeats] == ["b", "c"]


def test_figures_that_some_seeds_lack(tmp_path: Path) -> None:
    run(tmp_path / "a", "fedavg", 0, None, {})
    run(tmp_path / "b", "fedavg", 1, 0.25, {})
    comparison = compare(find_runs([tmp_path])[0])
    np.testing.assert_array_equal(comparison.rows[0].values("mean_client_accuracy"), [0.25])
    assert comparison.rows[0].values("wadb").shape == (0,)
    assert comparison.metrics == ("seed", "mean_client_accuracy")


def test_unfinished_and_inspected_are_no_runs(tmp_path: Path) -> None:
    run(tmp_path / "done", "fedavg", 0, 0.5)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "rounds.jsonl").touch()
    (tmp_path / "inspected").mkdir()
    (tmp_path / "inspected" / "summary.json").write_text('{"task": "inspect", "seed": 0}')
    runs, unfinished = find_runs([tmp_path])
    assert [each.folder.name for each in runs] == ["done"]
    assert [folder.name for folder in unfinished] == ["cut"]
    for folder, more in (("inspected", ""), ("cut", r"; 1 run\(s\) there have not finished")):
        with pytest.raises(FileNotFoundError, match=f"at least one finished run, got .*{folder}.*{more}$"):
            find_runs([tmp_path / folder])
    with pytest.raises(FileNotFoundError, match="folder must exist, got .*absent"):
        find_runs([tmp_path / "absent"])


def test_summaries_that_say_too_little(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"seed": 0}')
    with pytest.raises(ValueError, match=r"must have the keys strategy and seed, got \['seed'\]"):
        compare([SavedRun(tmp_path)])


def test_nothing_to_compare() -> None:
    assert isinstance(compare([]), ComparedRuns)
    assert compare([]).rows == ()
