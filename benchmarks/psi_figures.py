"""Draw Clust-PSI-PFL's Figures 3, 4 and 6: they need labels only, so no training.

    python benchmarks/psi_figures.py FOLDER                    all three
    python benchmarks/psi_figures.py FOLDER 3 4 --datasets digits --seeds 2     in seconds
    python benchmarks/psi_figures.py FOLDER 6 --clients 10 50 100

Writes FOLDER/figure_N….png and .svg, and figure_N.md with the numbers; published ones stand beside ours where
the paper's text has them (Figure 6). Figure 7 is `benchmarks/paper_table.py`.

Figure 4 uses scikit-learn's models: its gradient-boosted trees take the place of LightGBM. The paper does not
say how a model without importances of its own, such as a support vector machine, gets them; here all are the
loss of R² on held-out partitions when a feature is shuffled. The four measures follow each other closely, so
that a model can use one in place of another, and none then looks important. α is predicted by its logarithm.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from federations import DATA
from paper_charts import importances, levels, numbers_of_clusters
from results import table
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import permutation_importance
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedclust import metrics
from fedclust.clustering import clust_psi_pfl
from fedclust.data.partitioners import Dirichlet, Examples, Similarity
from fedclust.results.charts import save as save_chart
from fedclust.typing import FloatArray, IntArray

MEASURES: dict[str, Callable[[IntArray], float]] = {
    "WPSI": metrics.weighted_psi,
    "HD": metrics.hellinger,
    "JSD": metrics.jensen_shannon,
    "EMD": metrics.earth_movers,
}
# Eleven of each, as in Section IV-A c; the paper names six and three of them.
LEVELS = {
    "Dirichlet": (50, 10, 5, 2, 1, 0.7, 0.5, 0.3, 0.2, 0.09, 0.05),
    "Similarity": (1, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.06, 0.03, 0.01, 0),
}
LETTERS = {"Dirichlet": "α", "Similarity": "S"}
TWO_CLASSES = 0.3  # α below which two classes are "infeasible", Section IV-A c
# Section IV-B a, EQ1: ACSIncome, K = 10, 50 and 100.
SIZES = (10, 50, 100)
FIGURE_6 = {"Dirichlet, α = 0.3": (3, 4, 3), "Similarity, S = 0": (3, 3, 3)}
SETTINGS_6 = {"Dirichlet, α = 0.3": ("Dirichlet", 0.3), "Similarity, S = 0": ("Similarity", 0.0)}
RULE = clust_psi_pfl.Parameters(max_clusters=None)  # the paper's: up to K − 1


def labels_of(dataset: str) -> IntArray:
    """Read the labels of a dataset's training part.

    Raises
    ------
    ValueError
        If it is not there.
    """
    if dataset == "digits":
        from sklearn.datasets import load_digits

        return np.asarray(load_digits().target, dtype=np.int64)
    import pandas as pd

    path = DATA / dataset / "train.parquet"
    if not path.is_file():
        raise ValueError(f"--datasets must be digits or folders of {DATA}, got {dataset}")
    _, labels = np.unique(pd.read_parquet(path, columns=["label"])["label"], return_inverse=True)
    return labels.astype(np.int64)


def counts_of(labels: IntArray, protocol: str, level: float, num_clients: int, seed: int) -> IntArray:
    """Partition labels and count each client's, shape (K, C)."""
    partitioner: Dirichlet | Similarity
    if protocol == "Dirichlet":  # conf/partition/dirichlet_fedartml
        least = 10 if len(labels) >= 200 * num_clients else 1
        partitioner = Dirichlet(num_clients, level, min_samples=least, self_balancing=True)
    else:
        partitioner = Similarity(num_clients, level)
    classes = int(labels.max()) + 1
    counts = np.zeros((num_clients, classes), dtype=np.int64)
    np.add.at(counts, (partitioner.assignment(Examples.of(labels), seed).clients, labels), 1)
    return counts


def levels_of(labels: IntArray, protocol: str) -> list[float]:
    """List the levels that can be drawn for this many classes."""
    few = protocol == "Dirichlet" and labels.max() < 2
    return [level for level in LEVELS[protocol] if not few or level >= TWO_CLASSES]


def measure(labels: IntArray, protocol: str, seeds: int) -> FloatArray:
    """Measure partitions over 100 clients, fewer of a small dataset; shape (levels, seeds, measures)."""
    num_clients = min(100, len(labels) // 60)
    return np.array(
        [
            [
                [of(counts) for of in MEASURES.values()]
                for seed in range(seeds)
                for counts in [counts_of(labels, protocol, level, num_clients, seed)]
            ]
            for level in levels_of(labels, protocol)
        ]
    )


def pairs(values: FloatArray) -> list[tuple[float, float]]:
    """Compute means and standard deviations over the second axis of shape (levels, seeds)."""
    spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))
    return list(zip(values.mean(axis=1).tolist(), spread.tolist(), strict=True))


def figure_3(dataset: str, labels: IntArray, measured: Mapping[str, FloatArray], folder: Path) -> str:
    """Draw the measures over the level of skew, and write their means."""
    at = {protocol: levels_of(labels, protocol) for protocol in measured}
    values = {
        protocol: {name: pairs(found[:, :, place]) for place, name in enumerate(MEASURES)}
        for protocol, found in measured.items()
    }
    names = {"Dirichlet": "concentration α", "Similarity": "similarity S"}
    title = f"Measures of label skew, {dataset}"
    save(levels(list(MEASURES), values, at, names, title), folder / f"figure_3_{dataset}")
    parts = []
    for protocol, by_name in values.items():
        rows = [
            [f"{level:g}", *(f"{by_name[name][place][0]:.3f}" for name in MEASURES)]
            for place, level in enumerate(at[protocol])
        ]
        parts.append(f"### {dataset}, {protocol}\n\n{table([LETTERS[protocol], *MEASURES], rows)}")
    return "\n".join(parts)


def models(seed: int) -> dict[str, object]:
    """Make the four models of Section III-C, with LightGBM's place taken by scikit-learn's boosted trees."""
    return {
        "boosted trees": HistGradientBoostingRegressor(min_samples_leaf=5, random_state=seed),
        "SVM": make_pipeline(StandardScaler(), SVR(C=10.0)),
        "MLP": make_pipeline(
            StandardScaler(),
            MLPRegressor(
                hidden_layer_sizes=(64, 64), solver="lbfgs", max_iter=1000, alpha=0.01, random_state=seed
            ),
        ),
        "regression tree": DecisionTreeRegressor(min_samples_leaf=3, random_state=seed),
    }


def importance_of(
    features: FloatArray, target: FloatArray, seed: int = 0
) -> dict[str, tuple[list[tuple[float, float]], float]]:
    """Fit each model on two thirds of the partitions and shuffle features of the others.

    Parameters
    ----------
    features
        Measures of each partition, shape (n, measures).
    target
        What to predict, shape (n,).
    seed
        Of the division, the models and the shuffling.

    Returns
    -------
    By model: mean and standard deviation of the loss of R² for each feature, and R² itself.
    """
    fit, held, wanted, real = train_test_split(features, target, test_size=1 / 3, random_state=seed)
    found = {}
    for name, model in models(seed).items():
        with threadpool_limits(1):  # tables of some hundred rows: threads would only wait for each other
            model.fit(fit, wanted)  # type: ignore[attr-defined]
            lost = permutation_importance(model, held, real, n_repeats=20, random_state=seed, scoring="r2")
        spread = list(zip(lost.importances_mean.tolist(), lost.importances_std.tolist(), strict=True))
        found[name] = spread, float(model.score(held, real))  # type: ignore[attr-defined]
    return found


def figure_4(
    measured: Mapping[str, Mapping[str, FloatArray]], labels: Mapping[str, IntArray], folder: Path
) -> str:
    """Draw the importance of each measure for predicting the level, over all datasets, and write it."""
    values, fits, rows = {}, {}, []
    for protocol in LEVELS:
        features, target = [], []
        for dataset, by_protocol in measured.items():
            found = by_protocol[protocol]
            features.append(found.reshape(-1, found.shape[2]))
            target.append(np.repeat(levels_of(labels[dataset], protocol), found.shape[1]))
        wanted = np.concatenate(target)
        if protocol == "Dirichlet":
            wanted = np.log10(wanted)
        found_by_model = importance_of(np.concatenate(features), wanted)
        name = f"log₁₀ {LETTERS[protocol]}" if protocol == "Dirichlet" else LETTERS[protocol]
        values[name] = {model: spread for model, (spread, _) in found_by_model.items()}
        fits[name] = {model: fit for model, (_, fit) in found_by_model.items()}
        for model, (spread, fit) in found_by_model.items():
            first = list(MEASURES)[int(np.argmax([mean for mean, _ in spread]))]
            rows.append([f"{name}, {model}", *(f"{mean:.3f}" for mean, _ in spread), f"{fit:.3f}", first])
    title = f"Which measure tells the level of skew: {', '.join(measured)}"
    save(importances(list(MEASURES), values, fits, title), folder / "figure_4")
    headings = ["predicted, model", *MEASURES, "R²", "first"]
    return (
        f"### {', '.join(measured)}\n\n{table(headings, rows)}\n"
        "Published: WPSI is first for every model, the figure's values are not in the text.\n"
    )


def figure_6(dataset: str, labels: IntArray, sizes: Sequence[int], seeds: int, folder: Path) -> str:
    """Draw the number of clusters that the paper's rule chooses, and write it beside the published one."""
    ours, rows = {}, []
    for setting, (protocol, level) in SETTINGS_6.items():
        found = []
        for size in sizes:
            chosen = [
                clust_psi_pfl.assign(counts_of(labels, protocol, level, size, seed), RULE, seed)[0].max() + 1
                for seed in range(seeds)
            ]
            found.append(np.array(chosen, dtype=float))
            known = dict(zip(SIZES, FIGURE_6[setting], strict=True)).get(size)
            each = ", ".join(str(int(number)) for number in chosen)
            rows.append([f"{setting}, K = {size}", each, "–" if known is None else str(known)])
        ours[setting] = pairs(np.array(found))
    shown = FIGURE_6 if tuple(sizes) == SIZES else {}
    title = f"Number of clusters, {dataset}; the paper's is ACSIncome, also two classes"
    if labels.max() > 1:
        title = f"Number of clusters, {dataset}; the paper's is ACSIncome, which has two classes"
    save(numbers_of_clusters(sizes, ours, shown, title), folder / f"figure_6_{dataset}")
    return f"### {dataset}\n\n{table(['setting', 'clusters, one per seed', 'published, ACSIncome'], rows)}"


def save(figure: object, path: Path) -> None:
    """Write a figure as PNG and SVG."""
    for suffix in (".png", ".svg"):
        print(save_chart(figure, path.with_suffix(suffix)))  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if a dataset is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("figures", nargs="*", type=int, metavar="N", help="of 3, 4 and 6; all unless given")
    parser.add_argument(
        "--datasets",
        nargs="+",
        default=["adult", "fashion_mnist", "cifar10"],
        help="digits, or of the data folder",
    )
    parser.add_argument(
        "--clients",
        nargs="+",
        type=int,
        default=list(SIZES),
        help="of Figure 6; 3 and 4 take 100, or a client per 60 rows",
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.figures) - {3, 4, 6}):
        parser.error(f"N must be among 3, 4, 6, got {', '.join(map(str, unknown))}; 7 is paper_table.py")
    chosen = set(options.figures) or {3, 4, 6}
    try:
        labels = {dataset: labels_of(dataset) for dataset in options.datasets}
    except ValueError as error:
        print(f"psi_figures: {error}", file=sys.stderr)
        return 2
    texts: dict[int, list[str]] = {number: [] for number in sorted(chosen)}
    if chosen & {3, 4}:
        measured = {
            dataset: {protocol: measure(each, protocol, options.seeds) for protocol in LEVELS}
            for dataset, each in labels.items()
        }
        if 3 in chosen:
            texts[3] = [figure_3(name, labels[name], measured[name], options.folder) for name in labels]
        if 4 in chosen:
            texts[4] = [figure_4(measured, labels, options.folder)]
    if 6 in chosen:
        texts[6] = [
            figure_6(name, each, options.clients, options.seeds, options.folder)
            for name, each in labels.items()
        ]
    for number, parts in texts.items():
        text = f"## Clust-PSI-PFL, Figure {number}\n\n" + "\n".join(parts)
        (options.folder / f"figure_{number}.md").write_text(text, encoding="utf-8")
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
