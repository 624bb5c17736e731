"""Sensitivity, specificity, calibration and intervals in a run's folder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclust.metrics import Outcomes
from fedclust.metrics.decisions import accuracy_interval, decisions, intervals, pooled_confusion
from fedclust.support.rng import generator
from fedclust.typing import FloatArray, IntArray

__all__ = ["client_decisions", "decision_lines", "summarise_decisions"]

_MOST_CLASSES = 100  # with intervals, and with counts of each pair of classes
_MOST_CLUSTERS = 50
_KEY = "decisions"


def client_decisions(outcomes: Mapping[int, Outcomes], num_clients: int, seed: int) -> dict[str, Any]:
    """Make the columns of ``clients.parquet``.

    Parameters
    ----------
    outcomes
        Counts of each client that has any.
    num_clients
        Number of clients K.
    seed
        The run's seed, for the intervals.

    Returns
    -------
    By name, a value per client: ``sensitivity`` and ``specificity`` (of the second class if there are two,
    else the mean over classes, each against the rest), ``brier``, ``calibration_error``; ``accuracy_low`` and
    ``accuracy_high``, and for two classes the same of the other two, the ends of 95% bootstrap intervals; and
    ``confusion``, the counts of labels and predictions, C·C of them row by row, or None. Empty without
    counts.
    """
    if not outcomes:
        return {}
    two = len(next(iter(outcomes.values())).there) == 2
    names = ["sensitivity", "specificity", "brier", "calibration_error", "accuracy_low", "accuracy_high"]
    if two:
        names += [f"{name}_{end}" for name in ("sensitivity", "specificity") for end in ("low", "high")]
    columns: dict[str, Any] = {name: np.full(num_clients, np.nan) for name in names}
    columns["confusion"] = [None] * num_clients
    for client, counts in outcomes.items():
        found = decisions([counts])
        values = [_one(found.sensitivity), _one(found.specificity), found.brier, found.calibration_error]
        rng = generator(seed, "bootstrap", client)
        if two:
            accuracy, sensitivity, specificity = intervals(counts.there, counts.predicted, counts.hits, rng)
            values += [*accuracy.tolist(), *sensitivity[1].tolist(), *specificity[1].tolist()]
        else:
            values += accuracy_interval(int(counts.hits.sum()), int(counts.there.sum()), rng).tolist()
        for name, value in zip(names, values, strict=True):
            columns[name][client] = value
        if counts.confusion is not None:
            columns["confusion"][client] = counts.confusion.ravel().tolist()
    return columns


def summarise_decisions(
    outcomes: Mapping[int, Outcomes], assignment: IntArray, class_names: Sequence[str], seed: int
) -> dict[str, Any] | None:
    """Make ``decisions`` of ``summary.json``: of all clients' test rows together, and of each cluster's.

    Parameters
    ----------
    outcomes
        Counts of each client that has any, of the model that serves it.
    assignment
        Cluster of each client, shape (K,).
    class_names
        Names of the classes, shape (C,); their numbers if empty.
    seed
        The run's seed, for the intervals.

    Returns
    -------
    None without counts.
    """
    if not outcomes:
        return None
    everyone = list(outcomes.values())
    num_classes = len(everyone[0].there)
    names = (
        list(class_names) if len(class_names) == num_classes else [str(each) for each in range(num_classes)]
    )
    there, predicted, hits = (
        np.sum([getattr(each, name) for each in everyone], axis=0) for name in ("there", "predicted", "hits")
    )
    found = decisions(everyone)
    classes: list[dict[str, Any]] = []
    accuracy = None
    if num_classes <= _MOST_CLASSES:
        overall, of_sensitivity, of_specificity = intervals(
            there, predicted, hits, generator(seed, "bootstrap all")
        )
        accuracy = _numbers(overall)
        classes = [
            {
                "name": names[label],
                "rows": int(there[label]),
                "sensitivity": _number(found.sensitivity[label]),
                "sensitivity_interval": _numbers(of_sensitivity[label]),
                "specificity": _number(found.specificity[label]),
                "specificity_interval": _numbers(of_specificity[label]),
            }
            for label in range(num_classes)
        ]
    values = {
        "rows": found.rows,
        "positive": names[1] if num_classes == 2 else None,
        "accuracy_interval": accuracy,
        "brier": _number(found.brier),
        "calibration_error": _number(found.calibration_error),
        "classes": classes,
        "confusion": _matrix(pooled_confusion(everyone)),
    }
    groups: dict[int, list[Outcomes]] = {}
    for client, counts in outcomes.items():
        groups.setdefault(int(assignment[client]), []).append(counts)
    if 1 < len(groups) <= _MOST_CLUSTERS:
        values["clusters"] = [_cluster(cluster, groups[cluster]) for cluster in sorted(groups)]
    return values


def decision_lines(summary: Mapping[str, Any]) -> list[str]:
    """Write what the final table leaves out in a line or two; none for a run without counts."""
    values = summary.get(_KEY)
    if not values:
        return []
    shown = [each for each in values["classes"] if each["sensitivity"] is not None]
    lines = []
    if values["positive"] is not None and shown and shown[-1]["name"] == values["positive"]:
        rates_of = [
            f"{name} {_with_interval(shown[-1][name], shown[-1][f'{name}_interval'])}"
            for name in ("sensitivity", "specificity")
            if shown[-1][name] is not None
        ]
        lines.append(f"{values['positive']}, all test rows: {', '.join(rates_of)}")
    elif shown:
        weakest = min(shown, key=lambda each: each["sensitivity"])
        text = _with_interval(weakest["sensitivity"], weakest["sensitivity_interval"])
        lines.append(f"least sensitivity: {weakest['name']}, {text}, of {weakest['rows']:,} test rows")
    if values["brier"] is not None:
        text = f"Brier score {values['brier']:.3f}, calibration error {values['calibration_error']:.3f}"
        lines.append(f"{text} (0 is best; brackets: 95% intervals)" if lines else f"{text} (0 is best)")
    return lines


def _cluster(cluster: int, members: list[Outcomes]) -> dict[str, Any]:
    found = decisions(members)
    return {
        "cluster": cluster,
        "rows": found.rows,
        "sensitivity": _numbers(found.sensitivity),
        "specificity": _numbers(found.specificity),
        "brier": _number(found.brier),
        "calibration_error": _number(found.calibration_error),
        "confusion": _matrix(pooled_confusion(members)),
    }


def _one(values: FloatArray) -> float:
    if len(values) == 2:
        return float(values[1])
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _numbers(values: FloatArray) -> list[float | None]:
    return [_number(value) for value in values]


def _matrix(counts: IntArray | None) -> list[list[int]] | None:
    return None if counts is None or len(counts) > _MOST_CLASSES else counts.tolist()


def _with_interval(value: float, interval: Sequence[float | None]) -> str:
    low, high = interval
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
