import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from torch import nn

import fedclust
from fedclust.data.targets import CLASSES
from fedclust.results import SavedRun
from fedclust.results.comparison import (
    ALL,
    ComparedRuns,
    Difference,
    Row,
    best,
    best_first,
    best_lines,
    compare,
    differences,
    find_runs,
    how_tested,
    of_one_kind,
    ranked,
    reference,
)


def run(
    folder: Path, strategy: str, seed: int, accuracy: float | None, config: dict | None = None, **more: Any
) -> Path:
    folder.mkdir(parents=True)
    summary = {"strategy": strategy, "seed": seed, "mean_client_accuracy": accuracy, "good": True, **more}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "rounds.jsonl").touch()
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"seed": seed}))
    return folder


def table(folder: Path) -> dict[tuple[str, ...], list[float]]:
    rows = compare(find_runs([folder])[0]).rows
    return {(row.strategy, *row.settings): row.values("mean_client_accuracy").tolist() for row in rows}


def test_seeds_are_gathered_per_strategy(tmp_path: Path) -> None:
    # As a Hydra sweep leaves it; the strategies' own keys, the default of row_cap and copies of
    # the seed are no settings.
    def capped(cap: float | None) -> dict[str, Any]:
        return {"row_cap": cap, "overrides": ["strategy=auto"]}

    for seed in (1, 0):
        shared = {"partition": {"seed": seed}}
        gwc = {"choices": {"strategy": "fedgwc"}, "strategy": {"kernel_width": 0.5}, **capped(3.0), **shared}
        avg = {"choices": {"strategy": "fedavg"}, "strategy": {}, **capped(None), **shared}
        run(tmp_path / "multirun" / f"gwc{seed}", "fedgwc", seed, 0.9 + seed / 100, gwc)
        run(tmp_path / "multirun" / f"avg{seed}", "fedavg", seed, 0.5, avg)
        beside = tmp_path / "multirun" / f"gwc{seed}" / "compare" / "fedavg"
        run(beside, "fedavg", seed, 0.4, avg | capped(3.0))  # counts once: by itself
    assert table(tmp_path) == {("fedavg",): [0.5, 0.5], ("fedgwc",): [0.9, 0.91]}


def test_settings_that_differ_make_rows_of_their_own(tmp_path: Path) -> None:
    for place, alpha in enumerate((10, 9, 0.1)):
        config = {"partition": {"alpha": alpha, "num_clients": 30}, "output_dir": f"o/{place}", "wait": place}
        run(tmp_path / str(place), "fedavg", 0, alpha, config)
    comparison = compare(find_runs([tmp_path])[0])
    assert comparison.settings == ("partition.alpha",)
    assert [row.settings for row in comparison.rows] == [("0.1",), ("9",), ("10",)]  # by size, not by letters


def test_what_changes_no_figure_does_not_part_methods(tmp_path: Path) -> None:
    # With compare=[], only FedAvg's own job has a verdict: FMCL is compared with it, 0.8 - 0.5 and 0.9 - 0.6.
    for name, proof, tracker, first in (("fedavg", True, "none", 0.5), ("fmcl", False, "mlflow", 0.8)):
        for seed in (0, 1):
            choices = {"choices": {"strategy": name, "tracker": tracker}, "tracker": {"run": tracker}}
            config = {**choices, "proof": proof, "keep_matrices": proof, "objective": name}
            run(tmp_path / f"{name}{seed}", name, seed, first + seed / 10, config)
    comparison = compare(find_runs([tmp_path])[0])
    assert comparison.settings == ()
    assert {pair: (each.mean, each.seeds) for pair, each in by_name(comparison).items()} == {
        ("fmcl", "fedavg"): (pytest.approx(0.3), 2)
    }


def test_a_cap_of_rows_is_a_setting_if_it_was_given(tmp_path: Path) -> None:
    for name, cap in (("auto", 3.0), ("fedavg", None), ("fedavg", 2.0)):
        given = ["seed=0"] if cap == 3 else ["seed=0", f"+row_cap={cap}"]
        config = {"choices": {"strategy": name}, "row_cap": cap, "overrides": given}
        run(tmp_path / f"{name}{cap}", name, 0, 0.5, config)
    comparison = compare(find_runs([tmp_path])[0])
    assert comparison.settings == ("row_cap",)
    assert len(comparison.rows) == 3


def test_a_baseline_that_was_capped_is_not_the_one_that_was_not(tmp_path: Path) -> None:
    # FedAvg beside auto has auto's cap; with seed 1 a client has more rows than that.
    for seed in (0, 1):
        config = {"choices": {"strategy": "fedavg"}, "overrides": ["strategy=x"]}
        more = {"capped": [4]} if seed else {}
        folder = run(tmp_path / f"auto{seed}", "auto", seed, 0.7, config | {"row_cap": 3.0}, **more)
        run(folder / "compare" / "fedavg", "fedavg", seed, 0.6 + seed / 10, config | {"row_cap": 3.0}, **more)
        run(tmp_path / f"alone{seed}", "fedavg", seed, 0.8, config | {"row_cap": None})
        run(tmp_path / f"ifca{seed}", "ifca", seed, 0.5, config | {"row_cap": None})
    comparison = compare(find_runs([tmp_path])[0])
    assert comparison.settings == ("strategy.row_cap",)
    found = {
        (row.strategy, *row.settings): row.values("mean_client_accuracy").tolist() for row in comparison.rows
    }
    assert found == {
        ("auto", "3.0"): [0.7, 0.7],
        ("fedavg", "3.0"): [0.6, 0.7],
        ("fedavg", ""): [0.8, 0.8],
        ("ifca", ""): [0.5, 0.5],
    }
    pairs = differences(comparison, "mean_client_accuracy")
    gaps = {(row.strategy, *row.settings): each.mean for (row, _), each in pairs.items()}
    # auto is 0.1 and 0 from the capped one; IFCA, without a cap, 0.3 and 0.3 from the other.
    assert gaps == {("auto", "3.0"): pytest.approx(0.05), ("ifca", ""): pytest.approx(-0.3)}


def test_a_run_that_failed_makes_its_method_no_better(tmp_path: Path) -> None:
    # FMCL is 0.04 or 0.05 ahead at each of the six seeds that both have; seed 6 is hard, and FedGWC's failed.
    theirs = (0.86, 0.86, 0.85, 0.87, 0.87, 0.85)
    for seed, value in enumerate((0.90, 0.91, 0.89, 0.91, 0.92, 0.90, 0.20)):
        run(tmp_path / f"fmcl{seed}", "fmcl", seed, value)
    for seed, value in enumerate(theirs):
        run(tmp_path / f"fedgwc{seed}", "fedgwc", seed, value)
    run(tmp_path / "fedavg0", "fedavg", 0, 0.99)  # fewer than half: its one seed decides nothing
    comparison = compare(find_runs([tmp_path])[0])
    key = "mean_client_accuracy"
    assert [row.strategy for row in ranked(comparison.rows, key)] == ["fmcl", "fedgwc", "fedavg"]
    assert {row.strategy for row in best(comparison, key)} == {"fmcl"}
    # 5.43/6 and 5.16/6; by signs 2 of 2^6: 0.03125, once for the one pair that can be tested.
    (line,) = best_lines(comparison)
    first, second = (
        "FMCL has the highest accuracy over 6 seeds that both have, 0.905 ± 0.010",
        "next FedGWC, 0.860",
    )
    assert line == f"{first}; {second} ± 0.009, p 0.031"


def test_the_next_is_not_one_that_another_leads(tmp_path: Path) -> None:
    # FMCL has the three easy seeds alone; with each of the five that both have it is 0.01 behind FedAvg, and
    # IFCA is ahead of both with the two that all have.
    for seed in range(8):
        run(tmp_path / f"fedavg{seed}", "fedavg", seed, 0.6)
    for seed in (0, 1, 2, 3, 4, 8, 9, 10):
        run(tmp_path / f"fmcl{seed}", "fmcl", seed, 0.59 if seed < 8 else 0.99)
    for seed in (0, 1, 8, 9):
        run(tmp_path / f"ifca{seed}", "ifca", seed, 0.65 if seed < 8 else 0.995)
    comparison = compare(find_runs([tmp_path])[0])
    names = [row.strategy for row in ranked(comparison.rows, "mean_client_accuracy")]
    assert names == ["ifca", "fedavg", "fmcl"]
    assert "; next FedAvg, 0.600" in best_lines(comparison)[0]


def test_a_third_method_decides_nothing_between_two(tmp_path: Path) -> None:
    # CFL is 0.1 ahead with the seeds 10 to 19, and 0.001 behind with those that FedAvg has, too.
    for seed in range(20):
        run(tmp_path / f"ifca{seed}", "ifca", seed, 0.701 if seed > 9 else 0.802)
        run(tmp_path / f"cfl{seed}", "cfl", seed, 0.801)
        if seed < 10:
            run(tmp_path / f"fedavg{seed}", "fedavg", seed, 0.5 + seed / 1000)
    comparison, key = compare(find_runs([tmp_path])[0]), "mean_client_accuracy"
    assert [row.strategy for row in ranked(comparison.rows, key)] == ["cfl", "ifca", "fedavg"]
    (line,) = best_lines(comparison)
    # (0.802 + 0.701)/2, and 0.0505·√(20/19).
    assert line.startswith(
        "CFL has the highest accuracy over 20 seeds, 0.801 ± 0.000; next IFCA, 0.752 ± 0.052"
    )
    pairs = differences(comparison, key, ALL)
    assert {(one.strategy, other.strategy) for one, other in pairs} == {
        ("cfl", "ifca"),
        ("cfl", "fedavg"),
        ("ifca", "fedavg"),
    }
    assert min(each.mean for each in pairs.values()) > 0


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


def test_runs_that_stopped_early_are_of_one_setting(tmp_path: Path) -> None:
    for name, seed, rounds in (("fedavg", 0, 11), ("fedavg", 1, 14), ("fmcl", 0, 19), ("fmcl", 1, 60)):
        folder = run(tmp_path / f"{name}{seed}", name, seed, rounds / 100, {"rounds": 60})
        summary = json.loads((folder / "summary.json").read_text()) | {"rounds": rounds}
        (folder / "summary.json").write_text(json.dumps(summary))
    assert table(tmp_path) == {("fedavg",): [0.11, 0.14], ("fmcl",): [0.19, 0.6]}


def test_a_seed_of_something_else_is_a_setting(tmp_path: Path) -> None:
    for encoder in (0, 1):
        for seed in (0, 1):
            config = {"encoder": {"seed": encoder}, "partition": {"seed": (seed, None)[encoder]}}
            run(tmp_path / f"{encoder}{seed}", "fedavg", seed, encoder + seed / 2, config)
    assert compare(find_runs([tmp_path])[0]).settings == ("encoder.seed",)
    assert table(tmp_path) == {("fedavg", "0"): [0.0, 0.5], ("fedavg", "1"): [1.0, 1.5]}
    run(tmp_path / "fixed", "fedavg", 0, 9.0, {"encoder": {"seed": 0}, "partition": {"seed": 99}})
    assert table(tmp_path) == {
        ("fedavg", "0", ""): [0.0, 0.5],
        ("fedavg", "0", "99"): [9.0],
        ("fedavg", "1", ""): [1.0, 1.5],
    }


def test_a_split_that_is_the_same_for_all_seeds_is_one_setting(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path / str(seed), "fedavg", seed, seed / 10, {"partition": {"seed": 0}})
    assert table(tmp_path) == {("fedavg",): [0.0, 0.1, 0.2]}
    for seed in range(2):
        run(tmp_path / f"other{seed}", "fedavg", seed, 1 + seed / 10, {"partition": {"seed": 1}})
    assert table(tmp_path) == {("fedavg", "0"): [0.0, 0.1, 0.2], ("fedavg", "1"): [1.0, 1.1]}
    config = {"partition": {"seed": 0}, "strategy": {"kernel_width": 0.5}}
    run(tmp_path / "beside", "fedgwc", 0, 0.5, config)  # others show that it did not follow from its seed
    assert [0.5] in [values for setting, values in table(tmp_path).items() if "0" in setting[1:]]


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


def test_runs_from_python_are_compared_like_others(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    clients = [(draws.normal(size=(20, 3)).astype("float32"), draws.integers(0, 2, 20)) for _ in range(6)]
    training = fedclust.LocalTraining(learning_rate=0.1, batch_size=10, epochs=1)
    for name in ("fedgwc", "fmcl"):  # the former selects clients in another way, and has other parameters
        for seed in (0, 1):
            folder, network = tmp_path / f"{name}{seed}", nn.Linear(3, 2)
            given = {"rounds": 1, "seed": seed, "training": training, "folder": folder}
            fedclust.simulate(name, network, clients, proof=name == "fmcl", **given)
    comparison = compare(find_runs([tmp_path])[0])
    assert comparison.settings == ()
    assert [(row.strategy, len(row.runs)) for row in comparison.rows] == [
        ("fedavg", 2),
        ("fedgwc", 2),
        ("fmcl", 2),
    ]
    # Other data with the same number of rows, with a seed of its own: not a third seed of the first.
    fedclust.simulate("fmcl", network, clients[::-1], **{**given, "seed": 2, "folder": tmp_path / "other"})
    other = compare(find_runs([tmp_path])[0])
    assert other.settings == ("content",)
    assert sorted(len(row.runs) for row in other.rows if row.strategy == "fmcl") == [1, 2]


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


def test_runs_that_predict_something_else_than_the_newest_are_left_out(tmp_path: Path) -> None:
    times = {"kind": "times", "cuts": [10.0], "last": 90.0}
    for place, (name, target) in enumerate([("a", None), ("b", times), ("c", None)]):
        summary = run(tmp_path / name, "fedavg", place, 0.5) / "summary.json"
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"target": target}))
        os.utime(summary, (place, place))
    kind, runs, others = of_one_kind(find_runs([tmp_path])[0])
    assert (kind, [each.folder.name for each in runs], [each.name for each in others]) == (
        "classes",
        ["a", "c"],
        ["b"],
    )


def test_other_data_are_told_by_where_they_are(tmp_path: Path) -> None:
    for name, personal in (("a", "none"), ("b", "prior")):
        config = {"choices": {"dataset": "csv", "personal": personal}, "dataset": {"path": f"{name}.csv"}}
        run(tmp_path / name, "fedavg", 0, 0.5, config)
    assert compare(find_runs([tmp_path])[0]).settings == ("dataset.path",)


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


def rows(figures: dict[str, Sequence[Any]], key: str = "mean_client_accuracy") -> ComparedRuns:
    """Make a comparison of strategies, with a value of a key for each seed."""
    made = []
    for strategy, values in figures.items():
        summaries = [{"seed": seed, key: value} for seed, value in enumerate(values)]
        made.append(
            Row(strategy, (), tuple(SimpleNamespace(summary=each, target=CLASSES) for each in summaries))
        )
    return ComparedRuns((), tuple(made), ())


def by_name(comparison: ComparedRuns, against: str | None = None) -> dict[tuple[str, str], Difference]:
    found = differences(comparison, "mean_client_accuracy", against)
    return {(row.strategy, other.strategy): each for (row, other), each in found.items()}


def two_tails(t: float) -> float:
    """Return the p-value of a t test with 4 degrees of freedom."""
    return 1 - 0.75 * t / (1 + t**2 / 4) ** 0.5 * (1 - t**2 / (12 + 3 * t**2))


def test_five_seeds_of_ten_methods_show_a_clear_difference() -> None:
    # +0.232 ± 0.034, as −1, −1, 0, 1, 1 has the sample deviation √(4/4) = 1; the others differ by as much
    # around 0. t = 0.232 · √5 / 0.034 = 15.3, and the least of nine p-values counts nine times.
    spread = np.array([-1, -1, 0, 1, 1])
    figures = {f"m{place}": 0.6 + 0.034 * np.roll(spread, place) for place in range(8)}
    comparison = rows({"fedavg": [0.6] * 5, "fmcl": 0.832 + 0.034 * spread} | figures)
    found = by_name(comparison)
    assert {other for _, other in found} == {"fedavg"}
    clear = found["fmcl", "fedavg"]
    assert (clear.mean, clear.spread) == (pytest.approx(0.232), pytest.approx(0.034))
    assert (clear.seeds, clear.tests, clear.by_signs) == (5, 9, False)
    assert clear.p_value == pytest.approx(9 * two_tails(0.232 * 5**0.5 / 0.034))
    assert 0.0009 < clear.p_value < 0.001
    assert all(found[name, "fedavg"].p_value == pytest.approx(1.0) for name in figures)
    # 9 · 2 / 2ⁿ <= 0.05 from n = 9 on: 18 / 512 = 0.035.
    told = how_tested(differences(comparison, "mean_client_accuracy"), "fedavg")
    assert "need 9 seeds" in told


@pytest.mark.parametrize(
    ("seeds", "methods", "by_signs"),
    [(5, 1, False), (6, 1, True), (6, 2, False), (7, 2, True), (8, 6, True), (8, 7, False)],
)
def test_signs_are_flipped_where_the_seeds_suffice(seeds: int, methods: int, by_signs: bool) -> None:
    # 2 · tests / 2ⁿ is 0.0625, 0.031, 0.0625, 0.031, 0.047 and 0.055.
    better = 0.1 + 0.001 * np.arange(seeds)
    comparison = rows({"fedavg": [0.0] * seeds} | {f"m{each}": better for each in range(methods)})
    found = by_name(comparison)
    assert {each.by_signs for each in found.values()} == {by_signs}
    told = how_tested(differences(comparison, "mean_client_accuracy"), "fedavg")
    assert ("flips, which" in told, "t test, which" in told) == (by_signs, not by_signs)
    if by_signs:  # all differences have one sign: 2 of 2ⁿ ways are as extreme
        assert {each.p_value for each in found.values()} == {methods * 2 / 2**seeds}


def test_with_fewer_than_five_seeds_in_common_nothing_is_tested() -> None:
    comparison = rows({"fedavg": [0.4] * 5, "fmcl": [0.8, 0.9, 1.0, 0.9, None], "ifca": [None] * 5})
    found = by_name(comparison)
    assert [*found] == [("fmcl", "fedavg")]
    few = found["fmcl", "fedavg"]
    assert (few.mean, few.seeds, few.tests) == (pytest.approx(0.5), 4, 0)
    assert np.isnan(few.p_value)
    told = how_tested(differences(comparison, "mean_client_accuracy"), "fedavg")
    assert told == "no p-values of each method against FedAvg: they need 5 seeds in common"
    # A fifth seed of another method is tested, as if the one with four were not there.
    comparison = rows({"fedavg": [0.4] * 5, "fmcl": [0.8, 0.9, 1.0, 0.9], "ifca": [0.5, 0.6, 0.6, 0.6, 0.7]})
    found = by_name(comparison)
    assert found["ifca", "fedavg"].p_value == pytest.approx(two_tails(40**0.5))
    assert found["fmcl", "fedavg"].tests == 1
    told = how_tested(differences(comparison, "mean_client_accuracy"), "fedavg")
    assert told.endswith("; none with fewer than 5 seeds in common")


def test_the_reference_does_not_depend_on_results() -> None:
    key = "mean_client_accuracy"
    assert reference(rows({"fmcl": [0.9], "fedavg": [0.1], "auto": [0.5]}), key) == "fedavg"
    assert reference(rows({"fmcl": [0.9], "ifca": [0.95], "fedavg": [None]}), key) == "fmcl"
    assert reference(rows({}), key) == "fedavg"
    both = by_name(rows({"fmcl": [0.9], "ifca": [0.95], "fedavg": [0.5]}), ALL)
    assert [*both] == [("ifca", "fmcl"), ("ifca", "fedavg"), ("fmcl", "fedavg")]  # the better one first
    with pytest.raises(ValueError, match="against must be one of fmcl, all, got 'fedavg'"):
        differences(rows({"fmcl": [0.9]}), key, "fedavg")


def test_of_a_strategys_own_settings_the_first_is_the_reference(tmp_path: Path) -> None:
    for name, strategy, width, accuracy in (
        ("a", "fedgwc", 4.0, 0.9), ("b", "fedgwc", 0.5, 0.2), ("c", "fedavg", None, 0.5)
    ):  # fmt: skip
        run(tmp_path / name, strategy, 0, accuracy, {"strategy": {"kernel_width": width} if width else {}})
    comparison = compare(find_runs([tmp_path])[0])
    ordered = best_first(comparison, "mean_client_accuracy")
    assert [row.settings for row in ordered.rows] == [("4.0",), ("",), ("0.5",)]
    for each in (comparison, ordered):
        found = differences(each, "mean_client_accuracy", "fedgwc")
        assert {(row.settings, other.settings) for row, other in found} == {
            (("4.0",), ("0.5",)),
            (("",), ("0.5",)),
        }


def test_each_settings_rows_are_sorted_by_themselves(tmp_path: Path) -> None:
    accuracies = {
        (10, "ifca"): 0.9,
        (10, "fedavg"): 0.8,
        (9, "ifca"): 0.3,
        (9, "fedavg"): 0.4,
        (9, "cfl"): None,
    }
    for (alpha, strategy), accuracy in accuracies.items():
        run(tmp_path / f"{strategy}{alpha}", strategy, 0, accuracy, {"partition": {"alpha": alpha}})
    ordered = best_first(compare(find_runs([tmp_path])[0]), "mean_client_accuracy").rows
    assert [(row.settings, row.strategy) for row in ordered] == [
        *((("9",), name) for name in ("fedavg", "ifca", "cfl")),  # without the figure last
        *((("10",), name) for name in ("ifca", "fedavg")),
    ]


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("mean_client_accuracy", {"fmcl", "ifca"}),
        ("without_layer.mean_client_accuracy", {"fmcl", "ifca"}),
        ("without_layer.ad", {"fedavg"}),  # the least is the best
        ("seconds", set()),
        ("num_clusters", set()),
        ("my_own_metric", set()),
    ],
)
def test_the_best_and_those_that_are_not_significantly_worse(key: str, names: set[str]) -> None:
    # ifca is 0.01 ± 0.065 below fmcl: t = 0.34. fedavg is below fmcl by 0.2 ± 0.07: p = 0.0032, of at most 3.
    figures = {"fmcl": [0.5, 0.6, 0.6, 0.6, 0.7], "ifca": [0.55, 0.55, 0.6, 0.65, 0.6], "fedavg": [0.4] * 5}
    whole, _, rest = key.partition(".")
    comparison = rows(
        figures
        if not rest
        else {name: [{rest: value} for value in values] for name, values in figures.items()},
        whole,
    )
    assert {row.strategy for row in best(comparison, key)} == names


def test_nobody_is_the_best_alone() -> None:
    assert best(rows({"fmcl": [0.5] * 5}), "mean_client_accuracy") == set()
    # Always lower by as much, up to rounding, is worse.
    always = rows({"fmcl": np.arange(0.1, 0.6, 0.1), "ifca": np.arange(0.0, 0.5, 0.1)})
    assert {row.strategy for row in best(always, "mean_client_accuracy")} == {"fmcl"}
    # With one seed nothing is tested: only who has the same figure is as good.
    comparison = rows({"fmcl": [0.5], "ifca": [0.5], "fedavg": [0.49]})
    assert {row.strategy for row in best(comparison, "mean_client_accuracy")} == {"fmcl", "ifca"}


def test_figures_that_differ_in_the_last_bit_are_the_same() -> None:
    # 84 of 360 rows right are 7/30: as a mean over clients 0.2333333333333333 or 0.23333333333333336.
    comparison = rows({"fedsoft": [0.2333333333333333], "flux": [0.23333333333333336], "fmcl": [0.2]})
    assert {row.strategy for row in best(comparison, "mean_client_accuracy")} == {"fedsoft", "flux"}
    # Over seeds: 0.1 + 0.2 + 0.3 is 0.6000000000000001, and 0.3 + 0.2 + 0.1 is 0.6.
    several = rows({"fedsoft": [0.1, 0.2, 0.3], "flux": [0.3, 0.2, 0.1]})
    assert {row.strategy for row in best(several, "mean_client_accuracy")} == {"fedsoft", "flux"}
    for each, figure in ((comparison, "0.233"), (several, "over 3 seeds, 0.200 ± 0.100")):
        (line,) = best_lines(each)
        assert " share the highest accuracy" in line
        assert line.endswith(figure)


def test_amounts_of_several_ranges_have_one_heading(tmp_path: Path) -> None:
    for seed, high in enumerate((62.0, 62.0, 40.0)):
        summary = run(tmp_path / str(seed), "fedavg", seed, 0.5) / "summary.json"
        target = {"kind": "amounts", "low": 0.0, "high": high, "edges": [31.0], "unit": "mg/dl"}
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"target": target}))
    runs = find_runs([tmp_path])[0]
    assert compare(runs[:2]).words.share == "share within 12.4 mg/dl"  # a fifth of 62
    words = compare(runs).words
    assert words.share == "share within a fifth of a run's range"
    assert words.figures[0][1] == "root mean squared error, mg/dl"


def test_nothing_to_compare() -> None:
    assert isinstance(compare([]), ComparedRuns)
    assert compare([]).rows == ()
