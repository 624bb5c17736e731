"""Pictures from the folders of a sweep, written by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from fedclust.data.targets import CLASSES
from fedclust.results.charts import comparison
from fedclust.results.comparison import Row, compare, find_runs
from fedclust.runs.compare import main

from .data import layers, lines, rows

SPLIT = [{"round": 0, "assignment": [0, 0, 0]}, {"round": 1, "assignment": [0, 0, 1]}]


def write(folder: Path, strategy: str, alpha: float, seed: int, accuracies: list[float]) -> None:
    folder.mkdir(parents=True)
    mean = float(np.mean(accuracies))
    summary = {"strategy": strategy, "seed": seed, "mean_client_accuracy": mean}
    config = {"choices": {"strategy": strategy}, "partition": {"alpha": alpha}, "seed": seed}
    lines = [{"round": place, "mean_client_accuracy": mean * place / 2} for place in (1, 2)]
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    changes = SPLIT if strategy == "fedgwc" else SPLIT[:1]
    (folder / "clusters.json").write_text(json.dumps(changes))
    table = {"client": [0, 1, 2], "cluster": changes[-1]["assignment"], "accuracy": accuracies}
    pd.DataFrame(table).to_parquet(folder / "clients.parquet")
    if strategy == "fedgwc":
        np.savez(folder / "matrices.npz", distances=[[0.0, 1, 3], [1, 0, 2], [3, 2, 0]])


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three methods, two settings and two seeds; fedgwc is best in all four federations, local the worst."""
    for alpha in (0.1, 10):
        for seed in (0, 1):
            for strategy, accuracy in (("fedgwc", 0.9), ("ifca", 0.6), ("local", 0.3)):
                values = [accuracy - 0.1, accuracy, accuracy + 0.1 * seed]
                write(tmp_path / "sweep" / f"{strategy}{alpha}{seed}", strategy, alpha, seed, values)
    return tmp_path / "sweep"


def pictures(sweep: Path, into: Path, **options) -> dict[str, comparison.Drawn]:
    drawn = comparison.draw_comparison(compare(find_runs([sweep])[0]), into, **options)
    return {picture.name: picture for picture in drawn if picture.files}


def test_all_that_the_folders_allow(sweep: Path, tmp_path: Path, capsys) -> None:
    into = tmp_path / "made" / "here"
    assert main([str(sweep), "--plots", str(into), "--format", "svg"]) == 0
    said = capsys.readouterr().out.splitlines()
    drawn = [line.partition(": ") for line in said if " not drawn" not in line]
    shows = {Path(path).name: text for path, _, text in drawn}
    assert sorted(shows) == sorted(path.name for path in into.iterdir())
    names = [
        "accuracy_over_rounds", "accuracy_over_clients", "ranks", "map_of_mean_client_accuracy",
        "cluster_tree_FedGWC_alpha_0.1", "cluster_tree_FedGWC_alpha_10",
        "client_map_FedGWC_alpha_0.1", "client_map_FedGWC_alpha_10",
    ]  # fmt: skip
    assert list(dict.fromkeys(name.rpartition(".")[0] for name in shows)) == names
    assert shows["accuracy_over_rounds.svg"] == (
        "mean client accuracy over the rounds, 3 methods, 2 settings; mean over 2 seeds; "
        "band: ± sample standard deviation"
    )
    assert shows["cluster_tree_FedGWC_alpha_10.svg"].endswith(
        "FedGWC, alpha 10, seed 0, which changed 1 time"
    )
    # Ranks 1, 2, 3 in all of 4: Friedman's statistic is 12 · 4 / (3 · 4) · (1 + 4 + 9) − 3 · 4 · 4 = 8, whose
    # p-value with 2 degrees of freedom is exp(−8 / 2) = 0.018.
    assert shows["ranks.svg"].endswith("Friedman's p 0.018")
    left_out = [line for line in said if " not drawn: " in line]
    assert left_out == [
        "cluster_tree not drawn: the clusters did not change in IFCA, alpha 0.1; local, alpha 0.1; IFCA, "
        "alpha 10; and 1 more",
        "client_map not drawn: the method leaves no matrix over all pairs of clients in IFCA, alpha 0.1; "
        "local, alpha 0.1; IFCA, alpha 10; and 1 more",
    ]


def test_what_is_drawn_are_the_runs_figures(sweep: Path, tmp_path: Path, monkeypatch) -> None:
    figures = {}

    def save(figure, path, **options):
        return figures.setdefault(path.stem, figure) and path

    monkeypatch.setattr(comparison.drawing, "save", save)
    pictures(sweep, tmp_path)
    # fedgwc: 0.8, 0.9 and 0.9 or 1.0: means 2.6 / 3 and 2.7 / 3, so 2.65 / 3 over seeds; half in round 1.
    assert lines(figures["accuracy_over_rounds"])["FedGWC"] == pytest.approx([2.65 / 6, 2.65 / 3])
    found = [one["x"] for one in rows(figures["accuracy_over_clients"], "point") if one["method"] == "FedGWC"]
    np.testing.assert_allclose(np.sort(found), [0.8, 0.8, 0.9, 0.9, 0.9, 1.0])
    assert {"FedGWC (1.00)", "IFCA (2.00)", "local (3.00)"} <= written(figures["ranks"])
    shown = rows(figures["map_of_mean_client_accuracy"], "rect")
    np.testing.assert_allclose(shown, 2 * [2.65 / 3, 1.75 / 3, 0.85 / 3], atol=1e-4)
    first, second, _ = rows(figures["client_map_FedGWC_alpha_10"], "point")  # clients 0 and 1 are together
    assert np.hypot(first["x"] - second["x"], first["y"] - second["y"]) == pytest.approx(1, abs=0.01)


def written(chart) -> set[str]:
    texts = [each for each in layers(chart) if each["mark"]["type"] == "text"]
    return {row["text"] for each in texts for row in each["data"]["values"]}


def test_one_run_has_no_ranks_and_no_map(sweep: Path, tmp_path: Path, capsys) -> None:
    assert main([str(sweep / "fedgwc100"), "--plots", str(tmp_path / "plots"), "--format", "png"]) == 0
    said = capsys.readouterr().out
    assert "ranks not drawn: ranks need three methods and two federations" in said
    assert "map_of_mean_client_accuracy not drawn: a map needs runs of at least two settings" in said
    assert (
        "accuracy_over_rounds.png: mean client accuracy over the rounds, 1 method, 1 setting; one seed\n"
        in said
    )


INTO = ["--plots", "{into}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*INTO, "--format", "csv"], "--format with --plots must be among svg, pdf, png, got 'csv'"),
        (["--format", "svg"], "--format must be one of text, markdown, latex, csv, got 'svg'"),
        (["--width", "page"], "--width must be given with --plots, it is the width of pictures"),
        ([*INTO, "--width", "wide"], "argument --width: invalid choice: 'wide'"),
    ],
)
def test_wrong_options_are_refused(sweep: Path, tmp_path: Path, capsys, arguments, message) -> None:
    into = tmp_path / "plots"
    with pytest.raises(SystemExit, match="2"):
        main([str(sweep), *(argument.format(into=into) for argument in arguments)])
    assert message in capsys.readouterr().err
    assert not into.exists()


def test_a_folder_that_cannot_be_made_is_one_line(sweep: Path, tmp_path: Path, run) -> None:
    (tmp_path / "file").touch()
    code, _, complained = run("compare", str(sweep), "--plots", str(tmp_path / "file"))
    assert code == 2
    assert complained.startswith("fedclust compare: ")
    assert complained.count("\n") == 1


ROUNDS = np.array([1, 2, 3])
FIRST, SECOND = (ROUNDS, np.array([0.2, 0.4, 0.6])), (ROUNDS[1:], np.array([0.6, 1.0]))


def seeded(
    seed: int, curve: tuple = (np.zeros(0, int), np.zeros(0)), clients: Any = None, auc: Any = None
) -> Any:
    found = {"clients": clients, "summary": {"seed": seed, "auc": auc}, "target": CLASSES}
    return SimpleNamespace(series=lambda _: curve, **found)


def row(*curves: tuple, accuracies: Sequence[float] = (), auc: Sequence[float] = ()) -> Row:
    """Make a row: a run per curve, one with the clients' accuracies, or one per seed's AUC."""
    tables = [pd.DataFrame({"accuracy": accuracies})] * bool(len(accuracies))
    runs = [seeded(seed, curve) for seed, curve in enumerate(curves)]
    runs += [seeded(seed, clients=table) for seed, table in enumerate(tables)]
    runs += [seeded(seed, auc=value) for seed, value in enumerate(auc)]
    return Row("", (), tuple(runs))


def test_mean_and_band_by_hand() -> None:
    # Both runs have rounds 2 and 3: means 0.5 and 0.8; two values d apart have sample deviation d / sqrt(2).
    panels = {"α 0.1": {"fmcl": row(FIRST, SECOND), "fedavg": row(FIRST)}, "α 1": {"fedavg": row(SECOND)}}
    drawn, shows = comparison.accuracy_over_rounds(panels, "column")
    assert lines(drawn) == {"fmcl": [0.5, 0.8], "fedavg": [0.2, 0.4, 0.6]}
    ((band, *others),) = [each["data"]["values"] for each in layers(drawn) if each["mark"]["type"] == "area"]
    assert not others  # only the method with two seeds
    assert band["x"] == [2, 3]
    assert band["low"] == pytest.approx([0.5 - 0.2 / 2**0.5, 0.8 - 0.4 / 2**0.5], abs=1e-5)
    assert band["high"] == pytest.approx([0.5 + 0.2 / 2**0.5, 0.8 + 0.4 / 2**0.5], abs=1e-5)
    # One method looks the same in both panels, another one differs in colour and dashes.
    domains = {tuple(each["encoding"]["color"]["scale"]["domain"]) for each in layers(drawn)}
    assert domains == {("fmcl", "fedavg")}
    assert shows.endswith("2 methods, 2 settings; mean over 1 to 2 seeds; band: ± sample standard deviation")


def test_of_many_clients_only_those_outside_the_whiskers_are_points() -> None:
    accuracies = [0.0, 0.25, 0.5, 0.75, 1.0]
    rows_of = {"ifca": row(accuracies=accuracies), "fmcl": row(accuracies=accuracies[:1])}
    drawn, _ = comparison.accuracy_over_clients({"": rows_of}, "column")
    assert [each["x"] for each in rows(drawn, "point")] == [*accuracies, 0.0]
    assert rows(drawn, "boxplot")[-1] == {"method": "fmcl", "x": 0.0, "by": -0.3}
    many = {"": {"ifca": row(accuracies=[0.9] * 500 + [0.1])}}
    found = layers(comparison.accuracy_over_clients(many, "column")[0])
    assert [each["mark"]["type"] for each in found] == ["boxplot", "point"]
    assert found[0]["mark"]["outliers"]


def test_runs_of_equal_ranks_by_hand() -> None:
    # Within 1: 1.0 and 1.8; 1.8 and 2.6; 2.6 alone reaches 3.6; 4.0 is alone.
    assert comparison.groups_alike(np.array([1.0, 1.8, 2.6, 4.0]), 1.0) == [(0, 1), (1, 2)]
    assert comparison.groups_alike(np.array([1.0, 1.2, 1.4]), 1.0) == [(0, 2)]
    assert comparison.groups_alike(np.array([1.0, 3.0]), 1.0) == []
    drawn = comparison.rank_diagram(["fedavg", "ifca", "auto"], np.array([2.5, 2.25, 1.25]), 0.8)
    assert {"auto (1.25)", "ifca (2.25)", "fedavg (2.50)", "critical difference 0.80"} <= written(drawn)


def test_a_map_has_the_mean_of_the_seeds() -> None:
    panels = {"alpha 0.1": {"fmcl": row(auc=[0.5, 0.7])}, "alpha 10": {"fmcl": row(auc=[0.9]), "ifca": row()}}
    drawn, shows = comparison.sweep_map(panels, "partition.alpha", "auc", "page")
    assert rows(drawn, "rect") == [0.6, "", 0.9, ""]
    assert layers(drawn)[0]["encoding"]["y"]["title"] == "alpha"
    assert shows == "auc, 2 methods, 2 settings; mean over up to 2 seeds"


# A rectangle of 3 by 4, whose diagonals are 5: it fits the plane.
CORNERS = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
RECTANGLE = np.linalg.norm(CORNERS[:, None] - CORNERS[None], axis=-1)


def between(found: np.ndarray) -> np.ndarray:
    return np.linalg.norm(found[:, None] - found[None], axis=-1)


def test_distances_that_fit_the_plane_are_kept() -> None:
    found, stress = comparison.places(RECTANGLE)
    np.testing.assert_allclose(between(found), RECTANGLE, atol=0.01)
    assert stress < 0.01
    np.testing.assert_array_equal(comparison.places(RECTANGLE)[0], found)
    found, stress = comparison.places(1.0 - np.eye(4))  # four points as far from each other
    off = between(found)[~np.eye(4, dtype=bool)]
    assert stress == pytest.approx(np.sqrt(((off - 1) ** 2).sum() / 12))  # 12 ordered pairs of distance 1
    assert stress > 0.1


def test_larger_is_more_alike_or_not() -> None:
    alike = np.array([[1.0, 0.75, 0.5], [0.25, 1.0, 0.5], [0.5, 0.5, 1.0]])
    # Off the diagonal the largest is 0.75; a pair is the mean of its two entries: (0 + 0.5) / 2.
    expected = [[0, 0.25, 0.25], [0.25, 0, 0.25], [0.25, 0.25, 0]]
    np.testing.assert_allclose(comparison.distances_of("affinity", alike), expected)
    cosines = np.array([[np.nan, -0.5, 1.0], [-0.5, np.nan, 0.0], [1.0, 0.0, np.nan]])
    assert comparison.distances_of("cosines", cosines).tolist() == [[0, 1.5, 0], [1.5, 0, 1], [0, 1, 0]]
    np.testing.assert_allclose(comparison.distances_of("distances", RECTANGLE), RECTANGLE)


def mapped(groups: Sequence[int] | None = None, distances: np.ndarray = RECTANGLE) -> Any:
    known = None if groups is None else np.array(groups)
    found = {"assignment": np.array([0, 0, 5, 5][: len(distances)]), "groups": known, "summary": {"seed": 3}}
    run = SimpleNamespace(matrices=lambda: [("confusion", RECTANGLE), ("distances", distances)], **found)
    return comparison.client_map("fmcl", run, "column")  # type: ignore[arg-type]


def test_colours_are_clusters_and_shapes_are_known_groups() -> None:
    drawn, shows = mapped([0, 1, 1, 1])
    found = rows(drawn, "point")
    assert [(one["group"], one["known"]) for one in found] == [
        ("cluster 0 (2)", "group 0"), ("cluster 0 (2)", "group 1"), ("cluster 5 (2)", "group 1"),
        ("cluster 5 (2)", "group 1"),
    ]  # fmt: skip
    at = np.array([[one["x"], one["y"]] for one in found])
    np.testing.assert_allclose(between(at), RECTANGLE, atol=0.01)
    numbers = [(one["cluster"], one["x"], one["y"]) for one in rows(drawn, "text")]
    assert numbers == [(name, *np.median(at[two], axis=0)) for name, two in (("0", [0, 1]), ("5", [2, 3]))]
    alone, plain = mapped()
    assert [each["encoding"]["shape"]["field"] for each in layers(alone)] == ["group"]
    assert shows == f"{plain}, a marker for each known group"


ASSIGNMENTS = [0, 0, 0, 0, 0], [0, 1, 0, 1, 1], [0, 1, 0, 2, 1]
SPLITS = [{"round": 10 * place, "assignment": each} for place, each in enumerate(ASSIGNMENTS)]


def tree(changes: Sequence[dict], rounds: int) -> Any:
    run = SimpleNamespace(changes=changes, rounds=[{"round": rounds}], summary={"seed": 3})
    return comparison.cluster_tree("fmcl", run, "column")[0]  # type: ignore[arg-type]


def test_a_tree_has_a_bar_for_each_run_of_clients_that_share_a_model() -> None:
    drawn = tree(SPLITS, 40)
    # Clients 0 and 2 first, then 1 and 4, then 3: sorted by their clusters, so that splits leave one piece.
    assert [(bar["x"], bar["x2"], bar["y"], bar["y2"]) for bar in rows(drawn, "rect")] == [
        (0, 10, 0, 5), (10, 20, 0, 2), (10, 20, 2, 5), (20, 40, 0, 2), (20, 40, 2, 4), (20, 40, 4, 5),
    ]  # fmt: skip
    assert [each["text"] for each in rows(drawn, "text")] == ["0", "0", "1", "0", "1", "2"]
    # Of two changes in one round the later one lasted; a change after the last round has a bar.
    changes = [*SPLITS[:2], {"round": 10, "assignment": [1, 1, 1, 0, 0]}]
    assert [bar["y2"] for bar in rows(tree(changes, 12), "rect")] == [5, 2, 5]
    assert rows(tree(SPLITS, 20), "rect")[-1]["x2"] == 21


MANY = {str(place): {"a": row(FIRST)} for place in range(13)}
CHANGES = [{"round": moment, "assignment": [moment]} for moment in range(32)]


@pytest.mark.parametrize(
    ("draw", "arguments", "message"),
    [
        (comparison.accuracy_over_rounds, [MANY, "page"], "a page has room for 1 to 12 panels, got 13"),
        (
            comparison.accuracy_over_rounds,
            [{"": {"a": row()}}, "page"],
            "no run has an accuracy in its rounds",
        ),
        (comparison.accuracy_over_clients, [MANY, "page"], "no run has the clients' accuracies"),
        (comparison.sweep_map, [MANY, "", "auc", "page"], "got none for auc"),
        (mapped, [None, np.array([[0, np.nan], [1, 0]])], "fmcl has no matrix over all pairs of clients"),
        (mapped, [None, 1 - np.eye(2)], "must have 3 to 1500 clients, got 2"),
        (mapped, [None, np.zeros((3, 3))], "must not all be 0"),
        (tree, [[], 40], r"of one number of clients, got \[\]"),
        (tree, [[SPLITS[0], CHANGES[1]], 40], r"one number of clients, got \[1, 5\]"),
        (tree, [CHANGES, 40], "at most 30 to be drawn, got 31"),
    ],
)
def test_one_line_says_what_cannot_be_drawn(draw, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        draw(*arguments)
