from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedclust.results import Recorder
from fedclust.results.plots import accuracy_ecdf, accuracy_per_round, draw, save_figure
from fedclust.results.saved_run import SavedRun


def names(files: list[Path]) -> list[str]:
    return [path.stem for path in files]


def test_everything_a_finished_run_has(finished_run: Path) -> None:
    files = draw(finished_run)
    assert names(files) == [
        "accuracy_per_round", "accuracy_ecdf", "affinity", "labels_per_cluster", "labels_per_client",
    ]  # fmt: skip
    for path in files:
        assert path.parent == finished_run / "plots"
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert len(image.convert("L").getcolors()) > 20  # something is on it


def test_drawn_from_the_files_alone_and_drawn_again(finished_run: Path) -> None:
    first = {path.name: path.read_bytes() for path in draw(finished_run)}
    moved = finished_run.rename(finished_run.with_name("moved"))
    assert {path.name: path.read_bytes() for path in draw(moved)} == first


@pytest.mark.parametrize("plot", [accuracy_per_round, accuracy_ecdf])
def test_a_picture_is_that_of_matplotlibs_own_savefig(plot, finished_run: Path, tmp_path: Path) -> None:
    run = SavedRun(finished_run)
    plot(run).savefig(tmp_path / "expected.png")
    saved = save_figure(plot(run), tmp_path / "folder" / "saved.png")
    assert saved.read_bytes() == (tmp_path / "expected.png").read_bytes()
    assert save_figure(plot(run), tmp_path / "folder" / "saved.svg").read_text().startswith("<?xml")


def test_curves_of_the_methods(finished_run: Path) -> None:
    u = np.linspace(0, 1, 5)
    with np.load(finished_run / "matrices.npz") as arrays:
        affinity = arrays["affinity"]
    np.savez(
        finished_run / "matrices.npz",
        pair_scores=affinity,
        silhouette_numbers=[2, 3],
        silhouette_scores=[0.2, 0.1],
        error_ratio_numbers=[2, 3],
        error_ratios=[0.9, 0.8],
        error_ratio_limit=0.7,
        curve_points=u,
        curve_pairs=[[0, 1]],
        curve_losses=[u],
        line_losses=[2 * u],
        class_names=["cat", "dog"],
        confusion=np.ones((2, 2, 2, 2)),
        confusion_clusters=[0, 1],
        separations=[[6, 0, 2, 0.5, 0], [8, 0, 2, 1.1, 1]],
        loss_trace_cluster_0_round_9=[[2, 0, 0.1, 0], [2, 1, -0.1, 1]],
    )
    assert names(draw(finished_run))[2:] == [
        "pair_scores", "labels_per_cluster", "labels_per_client", "answers_between_clusters", "silhouette",
        "error_ratios", "separations", "loss_trace_cluster_0_round_9", "outputs_along_chains",
    ]  # fmt: skip


def test_curves_without_a_point_are_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.assignment(0, [0, 0, 0], "start")
        nothing = np.empty((0, 2))
        recorder.matrices(silhouette_numbers=[], silhouette_scores=[], loss_trace_cluster_0=np.empty((0, 4)))
        recorder.matrices(error_ratio_numbers=[], error_ratios=[], error_ratio_limit=0.7)
        recorder.matrices(separations=[[6, 0, 2, -np.inf, 0]])
        recorder.matrices(curve_points=[0.0, 1.0], curve_pairs=nothing)
        recorder.matrices(curve_losses=nothing, line_losses=nothing)
    assert draw(tmp_path) == []


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="folder must hold a run"):
        draw(tmp_path)
