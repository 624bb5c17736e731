"""Plots of a run, drawn only from the files in its folder.

Not imported by :mod:`fedclust.results`, because importing matplotlib takes half a second.
"""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

from fedclust.results.plots.client_map import client_map
from fedclust.results.plots.clients import accuracy_ecdf, label_counts_per_client, labels_per_cluster
from fedclust.results.plots.cluster_tree import cluster_tree
from fedclust.results.plots.confusion import answers_between_clusters
from fedclust.results.plots.fedgwc import gaussian_rewards, interaction_convergence, splits_in_embedding
from fedclust.results.plots.matrices import matrix
from fedclust.results.plots.methods import (
    error_ratio_curve,
    loss_trace,
    outputs_along_chains,
    separations,
    silhouette_curve,
)
from fedclust.results.plots.over_runs import accuracy_bands, accuracy_over_clients, sweep_map
from fedclust.results.plots.ranks import rank_diagram
from fedclust.results.plots.rounds import accuracy_per_round, loss_per_round
from fedclust.results.saved_run import SavedRun

__all__ = [
    "accuracy_bands",
    "accuracy_ecdf",
    "accuracy_over_clients",
    "accuracy_per_round",
    "answers_between_clusters",
    "client_map",
    "cluster_tree",
    "draw",
    "error_ratio_curve",
    "gaussian_rewards",
    "interaction_convergence",
    "label_counts_per_client",
    "labels_per_cluster",
    "loss_per_round",
    "loss_trace",
    "matrix",
    "outputs_along_chains",
    "rank_diagram",
    "save_figure",
    "separations",
    "silhouette_curve",
    "splits_in_embedding",
    "sweep_map",
]


def draw(folder: Path) -> list[Path]:
    """Draw all plots that the files of a run allow, into its ``plots/``.

    Parameters
    ----------
    folder
        The run's folder.

    Returns
    -------
    The PNG files written, in the order drawn.

    Raises
    ------
    FileNotFoundError
        If the folder does not hold a run.
    ValueError
        If a file in it cannot be read.
    """
    run = SavedRun(folder)
    files = []

    def save(name: str, figure: Figure | None) -> None:
        if figure is not None:
            files.append(save_figure(figure, folder / "plots" / f"{name}.png"))

    save("accuracy_per_round", accuracy_per_round(run))
    save("accuracy_ecdf", accuracy_ecdf(run))
    save("interaction_convergence", interaction_convergence(run))
    small: dict[str, NDArray] = {}
    affinities: dict[int, NDArray] = {}
    for name, values in run.matrices():
        if name.startswith("affinity_round_"):
            affinities[int(name.removeprefix("affinity_round_"))] = values
        if name.startswith("cohort_"):  # may have as many rows and columns as there are clients
            small[name] = values
        elif run.assignment is not None and values.shape == 2 * run.assignment.shape:
            save(name, matrix(name, values, run.assignment, run.groups))
        else:
            small[name] = values
    save("splits_in_embedding", splits_in_embedding(affinities, run.changes))
    if "cohort_losses" in small:
        clients = small["cohort_clients"].astype(int)
        save("rewards", gaussian_rewards(small["cohort_losses"], clients, int(small["cohort_round"])))
    if run.label_counts is not None and run.assignment is not None:
        names = [str(name) for name in small["class_names"]] if "class_names" in small else None
        save("labels_per_cluster", labels_per_cluster(run.label_counts, run.assignment, names))
        counts = label_counts_per_client(run.label_counts, run.groups, names, run.client_names)
        save("labels_per_client", counts)
    if "confusion" in small:
        names = [str(name) for name in small["class_names"]] if "class_names" in small else None
        figure = answers_between_clusters(small["confusion"], small["confusion_clusters"], names)
        save("answers_between_clusters", figure)
    numbers, scores = small.get("silhouette_numbers"), small.get("silhouette_scores")
    if numbers is not None and scores is not None and np.isfinite(scores).any():
        save("silhouette", silhouette_curve(numbers, scores))
    numbers, ratios = small.get("error_ratio_numbers"), small.get("error_ratios")
    if numbers is not None and ratios is not None and ratios.size:
        save("error_ratios", error_ratio_curve(numbers, ratios, float(small["error_ratio_limit"])))
    tests = small.get("separations")
    if tests is not None and np.isfinite(tests[:, 3]).any():
        save("separations", separations(tests))
    for name, values in small.items():
        if name.startswith("loss_trace") and len(values):
            cluster, _, split = name.removeprefix("loss_trace_").replace("_", " ").partition(" round ")
            until = f", up to its split in round {split}" if split else ", never split"
            save(name, loss_trace(values, f"Losses in {cluster}{until}"))
    pairs = small.get("curve_pairs")
    if pairs is not None and len(pairs):
        points, curve, line = (small[name] for name in ("curve_points", "curve_losses", "line_losses"))
        save("outputs_along_chains", outputs_along_chains(points, curve, line, pairs, run.assignment))
    return files


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the file's ending, creating the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".png":
        figure.savefig(path)
        return path
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # lays it out as well, for which `savefig` would draw it a second time
    imsave(path, canvas.buffer_rgba(), dpi=figure.dpi)
    return path
