"""Pictures from the folders of a sweep, written by hand."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fedclust.results.comparison import compare, find_runs
from fedclust.results.plots.comparison import Picture, draw_comparison
from fedclust.runs.compare import main

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


def pictures(sweep: Path, into: Path, **options) -> dict[str, Picture]:
    drawn = draw_comparison(compare(find_runs([sweep])[0]), into, **options)
    return {picture.name: picture for picture in drawn if picture.files}


def test_all_that_the_folders_allow(sweep: Path, tmp_path: Path, capsys) -> None:
    into = tmp_path / "made" / "here"
    assert main([str(sweep), "--plots", str(into), "--format", "svg"]) == 0
    said = capsys.readouterr().out.splitlines()
    shows = {
        Path(line.split(": ")[0]).name: line.partition(": ")[2] for line in said if " not drawn" not in line
    }
    assert sorted(shows) == sorted(path.name for path in into.iterdir())
    names = [
        "accuracy_over_rounds", "accuracy_over_clients", "ranks", "map_of_mean_client_accuracy",
        "cluster_tree_fedgwc_alpha_0.1", "cluster_tree_fedgwc_alpha_10",
        "client_map_fedgwc_alpha_0.1", "client_map_fedgwc_alpha_10",
    ]  # fmt: skip
    assert list(dict.fromkeys(name.rpartition(".")[0] for name in shows)) == names
    assert shows["accuracy_over_rounds.svg"] == (
        "mean client accuracy over the rounds, 3 methods, 2 settings; mean over 2 seeds; "
        "band: ± sample standard deviation"
    )
    assert shows["cluster_tree_fedgwc_alpha_10.svg"].endswith(
        "fedgwc, alpha 10, seed 0, which changed 1 time"
    )
    # Ranks 1, 2, 3 in all of 4: Friedman's statistic is 12 · 4 / (3 · 4) · (1 + 4 + 9) − 3 · 4 · 4 = 8, whose
    # p-value with 2 degrees of freedom is exp(−8 / 2) = 0.018.
    assert shows["ranks.svg"].endswith("Friedman's p 0.018")
    left_out = [line for line in said if " not drawn: " in line]
    assert left_out == [
        "cluster_tree not drawn: the clusters did not change in ifca, alpha 0.1; local, alpha 0.1; ifca, "
        "alpha 10 and 1 more",
        "client_map not drawn: the method leaves no matrix over all pairs of clients in ifca, alpha 0.1; "
        "local, alpha 0.1; ifca, alpha 10 and 1 more",
    ]


def test_what_is_drawn_are_the_runs_figures(sweep: Path, tmp_path: Path, monkeypatch) -> None:
    figures = {}
    monkeypatch.setattr(
        "fedclust.results.plots.comparison.save_paper_figure",
        lambda figure, path: figures.setdefault(path.stem, figure) and path,
    )
    pictures(sweep, tmp_path)
    upper, lower = figures["accuracy_over_rounds"].axes
    assert [axes.get_title(loc="left") for axes in (upper, lower)] == ["alpha 0.1", "alpha 10"]
    # fedgwc: 0.8, 0.9 and 0.9 or 1.0: means 2.6 / 3 and 2.7 / 3, so 2.65 / 3 over seeds; half in round 1.
    np.testing.assert_allclose(upper.get_lines()[0].get_ydata(), [2.65 / 6, 2.65 / 3])
    first = figures["accuracy_over_clients"].axes[0].get_lines()[0]
    np.testing.assert_allclose(np.sort(first.get_xdata()), [0.8, 0.8, 0.9, 0.9, 0.9, 1.0])
    texts = {text.get_text() for text in figures["ranks"].axes[0].texts}
    assert {"fedgwc (1.00)", "ifca (2.00)", "local (3.00)"} <= texts
    shown = figures["map_of_mean_client_accuracy"].axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, [np.array([2.65, 1.75, 0.85]) / 3] * 2)
    together = figures["client_map_fedgwc_alpha_10"].axes[0].get_lines()[0]  # clients 0 and 1
    first, second = np.array(together.get_data()).T
    assert np.linalg.norm(first - second) == pytest.approx(1, abs=0.01)


def test_files_are_the_same_on_every_run(sweep: Path, tmp_path: Path) -> None:
    first, again = (
        pictures(sweep / "fedgwc100", tmp_path / into, formats=["svg"]) for into in ("first", "again")
    )
    assert len(first) == 4
    for name, picture in first.items():
        contents = [path.read_bytes() for path in picture.files]
        assert contents == [path.read_bytes() for path in again[name].files]
        assert b"<dc:date>" not in contents[0]


def test_one_run_has_no_ranks_and_no_map(sweep: Path, tmp_path: Path, capsys) -> None:
    assert main([str(sweep / "fedgwc100"), "--plots", str(tmp_path / "plots"), "--format", "png"]) == 0
    said = capsys.readouterr().out
    assert "ranks not drawn: ranks need three methods and two federations" in said
    assert "map_of_mean_client_accuracy not drawn: a map needs runs of two settings" in said
    assert (
        "accuracy_over_rounds.png: mean client accuracy over the rounds, 1 method, 1 setting; one seed\n"
        in said
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--plots", "{into}", "--format", "csv"],
            "--format must with --plots be among svg, pdf, png, got csv",
        ),
        (["--format", "svg"], "--format must be one of text, markdown, csv, got svg"),
        (["--width", "page"], "--width is of pictures, --plots must be given with it"),
        (["--plots", "{into}", "--width", "wide"], "argument --width: invalid choice: 'wide'"),
    ],
)
def test_wrong_options_are_refused(sweep: Path, tmp_path: Path, capsys, arguments, message) -> None:
    into = tmp_path / "plots"
    with pytest.raises(SystemExit, match="2"):
        main([str(sweep), *(argument.format(into=into) for argument in arguments)])
    assert message in capsys.readouterr().err
    assert not into.exists()


def test_a_folder_that_cannot_be_made_is_one_line(sweep: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    assert main([str(sweep), "--plots", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedclust.runs.compare: ")
    assert error.count("\n") == 1
