"""Which measure of label skew tells how skewed a partition is? WPSI next to three others.

    python benchmarks/skew_measures.py [--write]

Clust-PSI-PFL, Figures 3 and 4 and Observation 1. Draws partitions of ten classes over 10, 50 and 100 clients
by both of the paper's protocols, at eleven levels of α and of S, and predicts log α and S from the measures.
Scikit-learn's histogram gradient boosting stands in for LightGBM. Where measures order partitions alike, a
tree takes one by the order of its columns: each set of partitions draws that order. One minute of a core.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from claims import interval, word
from common import arguments, over_seeds, show, table
from scipy.stats import spearmanr
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import permutation_importance
from sklearn.model_selection import KFold, cross_val_score, train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from fedclust.data.partitioners import ClientPartitioner, Dirichlet, Examples, Similarity
from fedclust.metrics import earth_movers, hellinger, jensen_shannon, weighted_psi
from fedclust.typing import FloatArray, IntArray

MEASURES: dict[str, Callable[[IntArray], float]] = {
    "WPSI": weighted_psi,
    "Hellinger": hellinger,
    "Jensen–Shannon": jensen_shannon,
    "EMD": earth_movers,
}
MODELS: dict[str, Callable[[int], Any]] = {  # by a seed
    "gradient boosting": lambda seed: HistGradientBoostingRegressor(random_state=seed),
    "regression tree": lambda seed: DecisionTreeRegressor(min_samples_leaf=3, random_state=seed),
    "support vector machine": lambda _: make_pipeline(StandardScaler(), SVR()),
    "multilayer perceptron": lambda seed: make_pipeline(
        StandardScaler(), MLPRegressor(hidden_layer_sizes=(32,), max_iter=2000, random_state=seed)
    ),
}
# Those of Tables III and IV, and values between them.
ALPHAS = (0.05, 0.09, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 20, 50)
SIMILARITIES = (0, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1)
PROTOCOLS: Mapping[str, tuple[tuple[float, ...], Callable[[int, float], ClientPartitioner]]] = {
    "log α": (
        ALPHAS,
        lambda clients, alpha: Dirichlet(
            num_clients=clients, alpha=alpha, min_samples=10, self_balancing=True
        ),
    ),
    "S": (SIMILARITIES, lambda clients, share: Similarity(num_clients=clients, similarity=share)),
}
CLIENTS, CLASSES, ROWS, SEEDS, DRAWS = (10, 50, 100), 10, 20_000, 5, 4


def counts_of(partitioner: ClientPartitioner, seed: int) -> IntArray:
    """Draw a partition of equally large classes; return the rows of each class on each client, (K, C)."""
    labels = np.arange(ROWS) % CLASSES
    drawn = partitioner.assignment(Examples(labels, CLASSES, lambda: np.zeros((ROWS, 1))), seed)
    counts = np.zeros((drawn.num_clients, CLASSES), dtype=np.int64)
    np.add.at(counts, (drawn.clients, labels), 1)
    return counts


def partitions(protocol: str, seed: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """Draw a set of partitions; return measures (n, 4), levels (n,) and numbers of clients (n,)."""
    levels, partitioner = PROTOCOLS[protocol]
    rows = []
    for level in levels:
        for clients in CLIENTS:
            for draw in range(DRAWS):
                counts = counts_of(partitioner(clients, level), DRAWS * seed + draw)
                known = np.log(level) if protocol == "log α" else level
                rows.append([*(measure(counts) for measure in MEASURES.values()), known, clients])
    found = np.array(rows)
    return found[:, :-2], found[:, -2], found[:, -1].astype(np.int64)


def importance(model: Any, measures: FloatArray, levels: FloatArray, seed: int) -> FloatArray:
    """Return each measure's share of the permutation importance, on half of the partitions."""
    order = np.random.default_rng(seed).permutation(measures.shape[1])
    halves = train_test_split(measures[:, order], levels, test_size=0.5, random_state=seed)
    trained, held, known, unknown = halves
    found = permutation_importance(model.fit(trained, known), held, unknown, n_repeats=10, random_state=seed)
    shares: FloatArray = np.maximum(found.importances_mean, 0)[np.argsort(order)]
    return shares / shares.sum()


def alone(model: Any, measures: FloatArray, levels: FloatArray, seed: int) -> list[float]:
    """Return R² of the level, predicted from each measure alone, on held-out partitions."""
    folds = KFold(5, shuffle=True, random_state=seed)
    columns = range(measures.shape[1])
    return [float(cross_val_score(model, measures[:, [at]], levels, cv=folds).mean()) for at in columns]


def along(
    statistic: Callable[[FloatArray, FloatArray], float],
    measures: FloatArray,
    levels: FloatArray,
    clients: IntArray,
) -> list[float]:
    """Return a statistic of each measure and the level, mean over the numbers of clients."""
    parts = [clients == number for number in CLIENTS]
    columns = range(measures.shape[1])
    return [float(np.mean([statistic(measures[part, at], levels[part]) for part in parts])) for at in columns]


def monotone(measure: FloatArray, level: FloatArray) -> float:
    """Return Spearman's correlation."""
    return float(spearmanr(measure, level)[0])


def straight(measure: FloatArray, level: FloatArray) -> float:
    """Return R² of a straight line."""
    return float(np.corrcoef(measure, level)[0, 1] ** 2)


def page() -> str:
    """Write the tables."""
    ranks, shapes, rows = [], [], []
    for protocol in PROTOCOLS:
        drawn = [partitions(protocol, seed) for seed in range(SEEDS)]
        order = np.array([along(monotone, *each) for each in drawn])
        ranks.append([protocol, *(over_seeds(values) for values in order.T.tolist())])
        line = np.array([along(straight, *each) for each in drawn])
        lead = (line[:, 1:3].min(axis=1) - line[:, 0]).tolist()
        low, high = interval(lead)
        ends = f"{np.mean(lead):+.3f} ({low:+.3f} to {high:+.3f})"
        shapes.append([protocol, *(over_seeds(values) for values in line.T.tolist()), ends, word(lead, 0)])
        for name, make in MODELS.items():
            single = np.mean([alone(make(seed), *each[:2], seed) for seed, each in enumerate(drawn)], axis=0)
            beside = np.array([importance(make(seed), *each[:2], seed) for seed, each in enumerate(drawn)])
            lead = (beside[:, 0] - beside[:, 1:].max(axis=1)).tolist()
            low, high = interval(lead)
            cells = [f"{r2:.2f}, {share:.2f}" for r2, share in zip(single, beside.mean(axis=0), strict=True)]
            ends = f"{np.mean(lead):+.2f} ({low:+.2f} to {high:+.2f})"
            rows.append([f"{protocol}, {name}", *cells, ends, word(lead, 0)])
    head = ["R² alone, importance", *MEASURES, "WPSI less the largest other (95 % interval)", "outcome"]
    parts = [
        f"Spearman's correlation with the level, {SEEDS} sets of partitions:",
        table(["level", *MEASURES], ranks),
        "R² of a straight line in the level:",
        table(
            [
                "level",
                *MEASURES,
                "the less of Hellinger and Jensen–Shannon less WPSI (95 % interval)",
                "outcome",
            ],
            shapes,
        ),
        "The level predicted from each measure alone, and its share of the importance beside the others:",
        table(head, rows),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    show("skew_measures", page(), arguments(__doc__, page="CLAIMS").parse_args().write)
