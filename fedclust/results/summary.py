"""Make the table of a run's clients and the figures of its summary."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedclust import metrics
from fedclust.data.targets import CLASSES, Target, from_values
from fedclust.data.targets.base import NORMAL
from fedclust.metrics import Outcomes, decisions, intervals, pooled_confusion
from fedclust.personal.layers import NONE, PRIOR, Personal
from fedclust.privacy import OF_ALL
from fedclust.proof import GroupingProof, counted
from fedclust.proof.figure import NEGLIGIBLE
from fedclust.proof.paired import LARGEST_BRIER, most_rows, num_set_aside
from fedclust.settings.run_options import KEEP, NO_BETTER_THAN
from fedclust.support.checks import few
from fedclust.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from fedclust.federation import Measured
    from fedclust.federation.questions import Layered


MOST_CLIENTS = 500
"""With more clients, a float64 matrix takes more than 2 MB, and a run of FedGWC leaves five."""


def without_large(
    arrays: Mapping[str, ArrayLike], keep: bool | str, num_clients: int
) -> tuple[dict[str, ArrayLike], list[str]]:
    """Leave out large client-by-client matrices, unless they are wanted.

    Parameters
    ----------
    arrays
        Arrays by name.
    keep
        Whether to keep matrices of shape (K, K, …); ``"auto"`` for those of up to 500 clients.
    num_clients
        Number of clients K.

    Returns
    -------
    The arrays that are kept, and the names of the others.
    """
    if keep is True or (keep == KEEP and num_clients <= MOST_CLIENTS):
        return dict(arrays), []
    large = [name for name, array in arrays.items() if np.shape(array)[:2] == (num_clients, num_clients)]
    return {name: array for name, array in arrays.items() if name not in large}, large


_MOST_CLASSES = 100  # for intervals, and for counts of each pair of classes
_MOST_CLUSTERS = 50
_MOST_LINES = 5  # about sites, in a report
_LEARNT = 0.02


def of_classes(outcomes: Mapping[int, Outcomes]) -> dict[int, Outcomes]:
    """Return the counts that are of classes, by client."""
    return {client: each for client, each in outcomes.items() if each.sums is None}


def client_decisions(outcomes: Mapping[int, Outcomes], num_clients: int) -> dict[str, Any]:
    """Make the columns of decisions in ``clients.parquet``.

    Parameters
    ----------
    outcomes
        Counts of each client that has any.
    num_clients
        Number of clients K.

    Returns
    -------
    By name, a value per client: ``sensitivity`` and ``specificity`` (of the second class if there are two,
    else the mean over classes, each against the rest), ``brier``, ``calibration_error``; ``accuracy_low`` and
    ``accuracy_high``, the ends of a 95 % interval, and with two classes also those of
    ``sensitivity`` and ``specificity``; and ``confusion``, the C·C counts of labels and predictions row by
    row, or None. Of numbers, ``confusion`` and ``sums`` alone, those of :class:`fedclust.metrics.Outcomes`.
    Empty without counts.
    """
    confusion: list[Any] = [None] * num_clients
    sums: list[Any] = [None] * num_clients
    for client, each in outcomes.items():
        if each.confusion is not None:
            confusion[client] = each.confusion.ravel().tolist()
        if each.sums is not None:
            sums[client] = each.sums.ravel().tolist()
    counted = {"confusion": confusion} | ({"sums": sums} if any(sums) else {})
    if not (outcomes := of_classes(outcomes)):
        return counted if any(confusion) else {}
    clients, counts = list(outcomes), list(outcomes.values())
    found = decisions([[each] for each in counts])
    accuracy, sensitivity, specificity = intervals(
        *np.stack([(each.there, each.predicted, each.hits) for each in counts], axis=1)
    )
    columns = {name: _means(getattr(found, name)) for name in ("sensitivity", "specificity")}
    columns |= {"brier": found.brier, "calibration_error": found.calibration_error}
    ends = {"accuracy": accuracy}
    if found.sensitivity.shape[1] == 2:
        ends |= {"sensitivity": sensitivity[:, 1], "specificity": specificity[:, 1]}
    for name, interval in ends.items():
        columns |= {f"{name}_low": interval[:, 0], f"{name}_high": interval[:, 1]}
    table = np.full((len(columns), num_clients), np.nan)
    table[:, clients] = list(columns.values())
    return dict(zip(columns, table, strict=True)) | counted


def summarise_decisions(
    outcomes: Mapping[int, Outcomes], assignment: IntArray, class_names: Sequence[str]
) -> dict[str, Any] | None:
    """Make ``decisions`` of ``summary.json``, for all clients' test rows together and for each cluster's.

    Parameters
    ----------
    outcomes
        Counts of each client that has any, for the model that serves it.
    assignment
        Cluster of each client, shape (K,).
    class_names
        Names of the classes, shape (C,); their numbers if empty.

    Returns
    -------
    The figures; None without counts.
    """
    if not (outcomes := of_classes(outcomes)):
        return None
    everyone = list(outcomes.values())
    num_classes = len(everyone[0].there)
    names = class_names if len(class_names) == num_classes else list(map(str, range(num_classes)))
    clusters: dict[int, list[Outcomes]] = {}
    for client, counts in outcomes.items():
        clusters.setdefault(int(assignment[client]), []).append(counts)
    shown = sorted(clusters) if 1 < len(clusters) <= _MOST_CLUSTERS else []
    groups = [everyone, *(clusters[cluster] for cluster in shown)]
    found, classes, accuracy = decisions(groups), [], None
    if num_classes <= _MOST_CLASSES:
        counts = np.sum([(each.there, each.predicted, each.hits) for each in everyone], axis=0)
        overall, *of_rates = intervals(*counts)
        accuracy = _numbers(overall)
        for label, name in enumerate(names):
            one: dict[str, Any] = {"name": name, "rows": int(counts[0, label])}
            for rate, interval in zip(("sensitivity", "specificity"), of_rates, strict=True):
                one[rate] = _number(getattr(found, rate)[0, label])
                one[f"{rate}_interval"] = _numbers(interval[label])
            classes.append(one)
    values = {
        "rows": int(found.rows[0]),
        "positive": names[1] if num_classes == 2 else None,
        "accuracy_interval": accuracy,
        "brier": _number(found.brier[0]),
        "calibration_error": _number(found.calibration_error[0]),
        "classes": classes,
        "confusion": _matrix(pooled_confusion(everyone)),
    }
    if shown:
        values["clusters"] = [
            {
                "cluster": cluster,
                "rows": int(found.rows[group]),
                "sensitivity": _numbers(found.sensitivity[group]),
                "specificity": _numbers(found.specificity[group]),
                "brier": _number(found.brier[group]),
                "calibration_error": _number(found.calibration_error[group]),
                "confusion": _matrix(pooled_confusion(groups[group])),
            }
            for group, cluster in enumerate(shown, start=1)
        ]
    return values


def decision_lines(summary: Mapping[str, Any]) -> list[str]:
    """Report in a line or two what the final table leaves out; no lines for a run without counts."""
    values = summary.get("decisions")
    if not values:
        return []
    shown = [each for each in values["classes"] if each["sensitivity"] is not None]
    lines = []
    if values["positive"] is not None and shown and shown[-1]["name"] == values["positive"]:
        rates = ("sensitivity", "specificity")
        known = [f"{name} {_rate(shown[-1], name)}" for name in rates if shown[-1][name] is not None]
        lines.append(f"{values['positive']}, all test rows: {', '.join(known)}")
    elif shown:
        weakest = min(shown, key=lambda each: each["sensitivity"])
        text = _rate(weakest, "sensitivity")
        lines.append(f"least sensitivity: {weakest['name']}, {text}, of {weakest['rows']:,} test rows")
    if values["brier"] is not None:
        text = f"Brier score {values['brier']:.3f}, calibration error {values['calibration_error']:.3f}"
        lines.append(f"{text} (0 is best; brackets: 95% intervals)" if lines else f"{text} (0 is best)")
    return lines


def never_predicted_line(summary: Mapping[str, Any]) -> str | None:
    """Report in one line the classes with test rows that no row is predicted as; None if there are none."""
    values = summary.get("decisions") or {}
    if not values.get("confusion"):
        return None
    counts = np.array(values["confusion"])
    rows, total = counts.sum(axis=1), counts.sum()
    never = np.flatnonzero((counts.sum(axis=0) == 0) & (rows > 0))
    if not never.size:
        return None
    names = [str(each["name"]) for each in values["classes"]]
    shown = few((f"{names[label]} ({rows[label]:,} of {total:,} test rows)" for label in never), 3)
    most = names[int(rows.argmax())]
    accuracy, guess = counts.trace() / total, rows.max() / total
    right = f"accuracy over all test rows {accuracy:.3f}, and {guess:.3f} by always answering {most}"
    return f"Never predicted: {shown}; {right}"


def left_out_lines(summary: Mapping[str, Any]) -> list[str]:
    """Name the sites that could not take part, with the reason, a line each."""
    left = summary.get("sites_left_out") or {}
    return _first_lines([f"Left out: {site}: {reason}" for site, reason in left.items()])


def rules_lines(summary: Mapping[str, Any]) -> list[str]:
    """List what each site lets leave it, by the rules of its operator, a line each."""
    return _first_lines(
        [f"Rules of {site}, as it joined: {line}" for site, line in (summary.get("site_rules") or {}).items()]
    )


def warning_lines(summary: Mapping[str, Any]) -> list[str]:
    """List what the sites' keepers should look at in their data, a line each; sites with the same share one.

    Examples
    --------
    >>> warning_lines({"data_warnings": ["north: x: one value", "east: x: one value"]})
    ['Check the data of north, east: x: one value']
    """
    sites: dict[str, list[str]] = {}
    for line in summary.get("data_warnings") or ():
        site, _, what = str(line).partition(": ")
        sites.setdefault(what, []).append(site)
    return _first_lines([f"Check the data of {few(each)}: {what}" for what, each in sites.items()])


def collapsed_line(summary: Mapping[str, Any]) -> str | None:
    """Say in one line that the models that serve are no better than class shares; None if they are.

    Examples
    --------
    >>> collapsed_line({"collapsed": True, "few_passes": "1 round of 3 steps: 0.1 passes"})
    'The models have learnt too little. 1 round of 3 steps: 0.1 passes'
    >>> collapsed_line({"collapsed": False})
    """
    if not summary.get("collapsed"):
        return None
    passes, words = summary.get("few_passes"), target_of(summary).words
    return f"The models have learnt too little. {passes}" if passes else f"{NO_BETTER_THAN} {words.guess}"


def target_of(summary: Mapping[str, Any]) -> Target:
    """Return what a run predicts, from its summary."""
    return from_values(summary.get("target"))


def decision_line(summary: Mapping[str, Any]) -> str | None:
    """Explain in one line what the clusters follow from, without what a verdict of sites says already.

    Examples
    --------
    >>> found = {"decision": "2 of 3 sites train together", "cross_fitting": "Cross-fitted: 7 coalitions"}
    >>> decision_line(found)
    '2 of 3 sites train together. Cross-fitted: 7 coalitions'
    >>> decision_line({**found, "verdict": {"text": "2 of 3 sites train together"}})
    'Cross-fitted: 7 coalitions'
    """
    said = "cross_fitting" in summary and summary.get("verdict")
    given = (None if said else summary.get("decision"), summary.get("cross_fitting"))
    return ". ".join(filter(None, given)) or None


def leaving_line(summary: Mapping[str, Any]) -> str | None:
    """Report in one line what left the clients; None for a run that does not know."""
    left = summary.get("left_clients")
    return left and f"Left the clients: {'; '.join(left.values())} (docs/SECURITY.md)"


def _first_lines(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return lines[:_MOST_LINES] + [f"and {more} more in summary.json"] * (more > 0)


def collapsed(clients: pd.DataFrame, outcomes: Mapping[int, Outcomes], target: Target = CLASSES) -> bool:
    """Return whether the models that serve predict test rows no better than each client's class shares.

    Neither by their Brier score nor by their balanced accuracy. The score, as for a verdict
    (:func:`fedclust.proof.figure.measure`): better by no more than 0.01, without the most and the least
    favourable tenth of ten clients or more; scores that are not finite count as the worst. Balanced accuracy,
    in the same way, of clients whose test rows have several classes: their most frequent one has 1/classes,
    and more than 0.02 above that, and two standard errors of as many coins, is better. Where one class makes
    up nearly all of a client's rows, as with few classes each, its share alone has a good score, and this
    still tells.

    Of amounts and times, the figure of :attr:`fedclust.data.targets.Target.tells` is compared in the same way
    with its value without inputs.

    Parameters
    ----------
    clients
        Table of :func:`client_table`.
    outcomes
        Counts of each client's test rows, by client; without any, or without label counts, nothing is known.
    target
        What is predicted.
    """

    def mean(of: FloatArray, some: BoolArray, weights: FloatArray) -> float:
        order = np.flatnonzero(some)[np.argsort(of[some])]
        aside = num_set_aside(len(order))
        middle = order[aside : len(order) - aside]
        return float(np.average(of[middle], weights=weights[middle])) if len(middle) else 0.0

    if target.tells is not None:
        name, of_nothing = target.tells
        tested = clients["num_test"].to_numpy(float)
        values = clients[name].to_numpy(float) if name in clients else np.full(len(clients), np.nan)
        known = np.isfinite(values) & (tested > 0)
        chance = max(_LEARNT, of_nothing / math.sqrt(max(1.0, tested[known].sum())))
        above = np.clip(values - of_nothing, -1.0, 1.0)
        return bool(known.any()) and mean(above, known, np.minimum(tested, most_rows(tested))) <= chance
    rows = [client for client, each in outcomes.items() if each.there.any()]
    if not rows or "label_counts" not in clients:
        return False
    train = np.stack(clients["label_counts"].to_list())[rows].astype(float)
    train[~train.any(axis=1)] = 1.0
    shares = train / train.sum(axis=1, keepdims=True)
    there = np.stack([outcomes[each].there for each in rows])
    # The mean over test rows y of Σ_c (p_c − [c = y])² is 1 + Σ_c p_c² − 2 Σ_c p_c n_c/n.
    by_shares = 1 + np.square(shares).sum(axis=1) - 2 * (shares * there).sum(axis=1) / there.sum(axis=1)
    gains = by_shares - np.nan_to_num(clients["brier"].to_numpy(float)[rows], nan=LARGEST_BRIER)
    classes, counts = (there > 0).sum(axis=1), there.sum(axis=1)
    balanced = np.nan_to_num(clients["balanced_accuracy"].to_numpy(float)[rows]) - 1 / classes
    weights = np.minimum(counts, most_rows(counts))
    several = classes > 1
    chance = max(_LEARNT, 1 / math.sqrt(max(1, counts[several].sum())))
    return mean(gains, counts > 0, weights) <= NEGLIGIBLE and mean(balanced, several, weights) <= chance


def _means(rates: FloatArray) -> list[float] | FloatArray:
    """Return the rates of the second class of two; else the mean over the classes that have one."""
    if rates.shape[1] == 2:
        return rates[:, 1]
    known = [each[np.isfinite(each)] for each in rates]
    return [float(each.mean()) if each.size else np.nan for each in known]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _numbers(values: FloatArray) -> list[float | None]:
    return [_number(value) for value in values]


def _matrix(counts: IntArray | None) -> list[list[int]] | None:
    return None if counts is None or len(counts) > _MOST_CLASSES else counts.tolist()


def _rate(found: Mapping[str, Any], name: str) -> str:
    """Format a rate with its interval."""
    low, high = found[f"{name}_interval"]
    return f"{found[name]:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def attended_summary(clients: pd.DataFrame) -> dict[str, Any]:
    """List the clients that joined and those that left, for ``summary.json``.

    Returns
    -------
    ``joined``: the round of each client that joined after the start, by id as text. ``left``: for each client
    that has left, the last round and accuracy that it measured, 0 and None if it measured none. Neither key
    if the table lacks its column.
    """
    summary: dict[str, Any] = {}
    if "joined" in clients:
        later = clients[clients["joined"] > 0]
        summary["joined"] = dict(zip(later["client"].astype(str), later["joined"].tolist(), strict=True))
    if "left" in clients:
        gone = clients.loc[clients["left"], ["client", "last_round", "last_accuracy"]]
        summary["left"] = [
            one if math.isfinite(one["last_accuracy"]) else one | {"last_accuracy": None}
            for one in gone.to_dict("records")
        ]
    return summary


_MEANS = ("balanced_accuracy", "share_weighted_accuracy", "macro_f1", "auc")
_POOLED = ("pooled_macro_f1", "pooled_auc")
SERVED_FIGURES = ("global_accuracy", "mean_client_accuracy", *_MEANS, *_POOLED, "ad", "sdad")
"""Keys of ``summary.json`` that depend on the serving models; ``serve_cluster`` has the cluster models'."""
OF_SERVED = (*SERVED_FIGURES, "intervals", "decisions", "collapsed")
"""All keys of a summary that tell how well the models that serve predict."""

_TOO_FEW = "no held-out rows"


def trouble(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Describe in a few words in how many rounds a run's clients and models failed; empty if none did.

    Parameters
    ----------
    rounds
        The lines of ``rounds.jsonl``.
    """
    failed = Counter(
        client for line in rounds for client in {each["client"] for each in line.get("failures", ())}
    )
    parts = [f"client {client} failed in {number}" for client, number in failed.most_common(3)]
    if back := sum(bool(line.get("went_back")) for line in rounds):
        parts.append(f"it went back to an earlier model in {back}")
    return f"{', '.join(parts)} of {len(rounds)} rounds" if parts else ""


def proof_summary(
    proof: GroupingProof,
    silent: Mapping[int, str],
    names: Sequence[str] | None,
    traffic: Mapping[str, int],
) -> dict[str, Any]:
    """Summarise a proof for ``summary.json``.

    Parameters
    ----------
    proof
        The proof.
    silent
        Reason of each client that did not answer, by client id.
    names
        Name of each client in the data, or None.
    traffic
        Bytes sent and received for the proof.

    Returns
    -------
    ``clusters``, one test per cluster; ``did_not_vote``, clients with reasons; and the bytes.
    """
    reasons = dict.fromkeys(proof.too_few, _TOO_FEW) | {int(client): why for client, why in silent.items()}
    unheard = [{"client": client, "reason": reasons[client]} for client in sorted(reasons)]
    return {
        "clusters": [each.summary() for each in proof.clusters],
        "did_not_vote": named(unheard, names),
        "bytes_down": traffic["bytes_down"],
        "bytes_up": traffic["bytes_up"],
    }


def how_to_get_one(config: Mapping[str, Any]) -> str:
    """Explain in one line how to get a verdict, for a run without one."""
    if str((config.get("choices") or {}).get("strategy")) == "fedavg":
        return "No verdict: this is one model for all; strategy=auto looks for groups and tests them"
    return "No verdict on training in groups: proof=true compare=[fedavg] compares with one model for all"


def personal_summary(
    personal: Personal,
    layered: "Layered",
    none: Mapping[str, object],
    summarised: Callable[["Measured"], Mapping[str, object]],
    own_metrics: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Summarise personal layers for ``summary.json``.

    Parameters
    ----------
    personal
        The choice of layers.
    layered
        What clients measured.
    none
        The run's summary without a personal layer.
    summarised
        Makes a summary from the clients' measurements.
    own_metrics
        Names of the user's own metrics.

    Returns
    -------
    ``choice``; ``figures``, by choice, ``none`` first; ``clients``, the number that use each layer under
    `choice`; and ``failures``, the clients that could not make a layer, and why.
    """
    keys = (*SERVED_FIGURES, *own_metrics)
    figures = {NONE: {key: none.get(key) for key in keys}}
    for choice, measured in layered.measured.items():
        summary = summarised(measured)
        figures[choice] = {key: summary.get(key) for key in keys}
    used = layered.used[personal.choice].tolist()
    return {
        "choice": personal.choice,
        "figures": figures,
        "clients": {layer: used.count(layer) for layer in (NONE, *personal.asked)},
        "failures": [{"client": client, "reason": why} for client, why in layered.failures.items()],
    }


def validation_brier(
    losses: Mapping[str, FloatArray], used: Iterable[str] | None, rows: IntArray, silent: Collection[int]
) -> float | None:
    """Compute the mean Brier score of all clients' held-out rows.

    Parameters
    ----------
    losses
        By layer, the mean Brier score of each client's held-out rows, NaN if it is not finite, shape (K,).
    used
        The layer that serves each client, K of them; None if no layer does.
    rows
        Held-out rows of each client, shape (K,).
    silent
        Clients that failed; they do not count unless they have a score.

    Returns
    -------
    The mean over rows, in [0, 2], where a model without finite outputs has 2, the worst score; None if no
    client has a score.

    Examples
    --------
    >>> losses = {"none": np.array([0.25, 1.0, np.nan]), "prior": np.array([0.5, 0.5, np.nan])}
    >>> validation_brier(losses, ["none", "prior", "none"], np.array([3, 1, 0]), ())  # (3 · 0.25 + 0.5) / 4
    0.3125
    """
    layers = [NONE] * len(rows) if used is None else used
    scores = np.array([losses[layer][client] for client, layer in enumerate(layers)])
    counted = (rows > 0) & ~(np.isnan(scores) & np.isin(np.arange(len(rows)), list(silent)))
    if not counted.any():
        return None
    scores = np.where(np.isnan(scores), LARGEST_BRIER, scores)
    return float(np.average(scores[counted], weights=rows[counted]))


LAYERED = ("accuracy", "balanced_accuracy", "brier", "confusion")
"""Columns of the table of clients that are kept without a personal layer, too, as an export may lack it."""


def personal_table(
    table: pd.DataFrame, without: pd.DataFrame, personal: Personal, layered: "Layered"
) -> pd.DataFrame:
    """Add to the table of clients the layer that each uses, and its accuracy with each layer.

    Parameters
    ----------
    table
        The table, whose figures are those with the layer that the client uses.
    without
        The same table with the figures without a layer.
    personal, layered
        As for :func:`personal_summary`.

    Returns
    -------
    The table with the columns ``personal`` (the layer that the client uses); ``accuracy_none`` and the others
    of :data:`LAYERED` (without one); ``accuracy_<layer>`` and ``validation_brier_<layer>`` of each layer that
    was tried; and, if the label-prior correction was, ``prior_shift`` (lists: what it adds to the logits).
    """
    columns: dict[str, Any] = {"personal": layered.used[personal.choice].tolist()}
    columns |= {f"{key}_none": without[key] for key in LAYERED if key in without}
    unknown = np.full(len(table), np.nan)
    for layer in personal.asked:
        made = layered.used[layer] == layer
        measured = layered.measured[layer].figures.get("accuracy", unknown)
        columns[f"accuracy_{layer}"] = np.where(made, measured, np.nan)
    for layer, losses in layered.losses.items():
        columns[f"validation_brier_{layer}"] = losses
    if layered.shifts is not None and PRIOR in personal.asked:
        columns["prior_shift"] = layered.shifts.tolist()
    return table.assign(**columns)


def personal_line(summary: Mapping[str, Any]) -> str | None:
    """Report in one line how many clients use each layer, and which failed; None without layers."""
    if stays := summary.get("stays"):
        return f"Stays with clients: {stays['choice']} ({few(stays['entries']) or 'a model of their own'})"
    personal = summary.get("personal")
    if not personal:
        return None
    counts = {layer: number for layer, number in personal["clients"].items() if number}
    used = ", ".join(f"{number} {layer}" for layer, number in counts.items())
    line = f"Personal layer: {personal['choice']} (clients: {used})"
    if failures := personal.get("failures"):
        failed = [f"client {each['client']}: {each['reason']}" for each in failures]
        line += f"; failed: {listed(failed, 10)}"
    return line


def listed(names: Sequence[str], most: int) -> str:
    """List the first `most` texts, and how many more there are."""
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")


_TRAFFIC = ("bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled")

NUMBERS = (
    *("seed", "rounds", "num_clients", "num_clusters", *SERVED_FIGURES, "was", "wadb"),
    *("rand_index", "adjusted_rand_index", "weighted_psi", "seconds", "failed_replies", *_TRAFFIC),
    *("figures_of_round", "validation_brier", "best_round", "epsilon", "delta"),
    *("looks", "trial_trainings", "trial_rounds", "trial_bytes_down", "trial_bytes_up"),
    *("variation", "tau", "groups_guessed"),
)
"""Keys of ``summary.json`` with a number, but for a target's own figures and the user's metrics."""

_MOST_HISTORIES = 1_000  # clients whose accuracies are in rounds.jsonl; with more, it would grow too large


def client_table(
    assignment: ArrayLike,
    num_train: ArrayLike,
    num_test: ArrayLike,
    label_counts: ArrayLike | None,
    evaluation: Sequence[Mapping[str, float] | None],
    groups: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    outcomes: Mapping[int, Outcomes] | None = None,
    **columns: ArrayLike,
) -> pd.DataFrame:
    """Build the table of ``clients.parquet``.

    Parameters
    ----------
    assignment
        Cluster index of each client, shape (K,).
    num_train, num_test
        Samples in each client's training and test part, shape (K,).
    label_counts
        Training labels of each client, shape (K, C); None if unknown, then there is no such column.
    evaluation
        Per client, the scores of its cluster's model on its test part, K mappings with the keys ``loss``,
        ``accuracy``, ``balanced-accuracy``, ``macro-f1`` and ``auc``, and the user's own metrics; missing
        ones become NaN, and None stands for a client that did not answer.
    groups
        Known grouping, shape (K,), or None.
    names
        Name of each client in the data (a hospital, a writer, a user), K of them, or None.
    outcomes
        Counts of a full evaluation, by client, from which ``share_weighted_accuracy`` is computed, and the
        columns of :func:`fedclust.results.summary.client_decisions`.
    columns
        Further columns of the method, such as ``gaussian_weight``, each of shape (K,).

    Returns
    -------
    One row per client with the columns ``client``, ``name`` if there are names, ``cluster``, ``group``
    (missing values without a known grouping), ``num_train``, ``num_test``, ``label_counts`` (lists), the five
    figures, ``share_weighted_accuracy``, the user's own metrics, and ``columns``.

    Raises
    ------
    ValueError
        If an argument does not have one entry per client.
    """
    clusters = np.asarray(assignment, dtype=np.int64)
    counts = None if label_counts is None else np.asarray(label_counts, dtype=np.int64)
    table: dict[str, Any] = {
        "client": np.arange(len(clusters)),
        **({} if names is None else {"name": list(names)}),
        "cluster": clusters,
        "group": [None] * len(clusters) if groups is None else np.asarray(groups),
        "num_train": np.asarray(num_train),
        "num_test": np.asarray(num_test),
        **({} if counts is None else {"label_counts": counts.tolist()}),
    }
    for key in metrics.CLIENT_FIGURES[1:]:
        table[key.replace("-", "_")] = _scores(evaluation, key)
    table["share_weighted_accuracy"] = (
        np.full(len(clusters), np.nan)
        if counts is None
        else _share_weighted(counts, of_classes(outcomes or {}))
    )
    table |= client_decisions(outcomes or {}, len(clusters))
    own = {name for scores in evaluation if scores for name in scores} - {*metrics.CLIENT_FIGURES}
    for name in sorted(own):
        table[name] = _scores(evaluation, name)
    table.update({name: np.asarray(values) for name, values in columns.items()})
    for name, values in table.items():
        if len(values) != len(clusters):
            raise ValueError(f"{name} must have an entry per client, {len(clusters)}, got {len(values)}")
    return pd.DataFrame(table).astype({"group": "Int64"})


def _scores(evaluation: Sequence[Mapping[str, float] | None], key: str) -> list[float]:
    return [np.nan if scores is None else scores.get(key, np.nan) for scores in evaluation]


def means_by_cluster(values: ArrayLike, assignment: ArrayLike) -> list[float | None]:
    """Average clients' values over each cluster, to 4 digits.

    Parameters
    ----------
    values
        Shape (K,); NaN for a client that did not measure.
    assignment
        Cluster index of each client, shape (K,).

    Returns
    -------
    A mean per cluster, by its index; None where no client measured.
    """
    numbers, clusters = np.asarray(values, dtype=float), np.asarray(assignment)
    known = np.isfinite(numbers)
    measured = [numbers[known & (clusters == cluster)] for cluster in range(clusters.max() + 1)]
    return [round(float(each.mean()), 4) if each.size else None for each in measured]


def round_accuracies(accuracies: FloatArray, assignment: IntArray) -> dict[str, object]:
    """Return the clients' and clusters' accuracies in an evaluated round; empty for very many clients.

    Parameters
    ----------
    accuracies
        Shape (K,), in [0, 1]; NaN for a client that did not measure.
    assignment
        Cluster index of each client, shape (K,).
    """
    if len(accuracies) > _MOST_HISTORIES:
        return {}
    return {
        "client_accuracy": [round(value, 4) for value in accuracies.tolist()],
        "cluster_accuracy": means_by_cluster(accuracies, assignment),
    }


def named(failures: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> Sequence[Mapping[str, Any]]:
    """Add the ``name`` of each failed client, if clients have names.

    Parameters
    ----------
    failures
        As in ``rounds.jsonl``: mappings with ``client``, ``phase`` and ``reason``.
    names
        Name of each client, or None.
    """
    if names is None:
        return failures
    return [{"client": each["client"], "name": names[each["client"]], **each} for each in failures]


def summarise(
    clients: pd.DataFrame,
    *,
    strategy: str,
    seed: int,
    rounds: int,
    seconds: float,
    failed_replies: int = 0,
    outcomes: Collection[Outcomes] = (),
    own_metrics: Collection[str] = (),
    row_cap: float | None = None,
    traffic: Mapping[str, int] | None = None,
    compare: Mapping[str, Mapping[str, object]] | None = None,
    **details: object,
) -> dict[str, object]:
    """Compute the content of ``summary.json``.

    Means leave out clients without a value: those that did not reply to the last evaluation, and for AUC
    those whose test part has a single class.

    Parameters
    ----------
    clients
        Table of :func:`client_table`.
    strategy
        Name of the strategy.
    seed
        The run's seed.
    rounds
        Number of rounds of the run.
    seconds
        Wall-clock time of the run, in seconds.
    failed_replies
        Number of failed or missing replies, over all rounds.
    outcomes
        Counts of each client that answered the last evaluation, for the pooled figures.
    own_metrics
        Columns of `clients` with the user's own metrics; their means are reported.
    row_cap
        How many rows of a client count in the global accuracy, see :func:`fedclust.proof.counted`.
    traffic
        ``bytes_down``, ``bytes_up``, ``bytes_down_unbundled`` and ``bytes_up_unbundled`` of the whole run, as
        :class:`~fedclust.federation.Traffic` totals them; None if traffic was not counted.
    compare
        Summaries of the compared strategies, by name.
    details
        Further values of the method, such as ``silhouette``; written after the common keys.

    Returns
    -------
    The common keys in a fixed order, None for an undefined value, then `details`.

    Raises
    ------
    ValueError
        If the table has no rows, or a detail has the same name as a common key.
    """
    if clients.empty:
        raise ValueError("clients must have at least one row, got none")
    assignment = clients["cluster"].to_numpy(dtype=np.int64)
    counts = np.stack(clients["label_counts"].to_list()) if "label_counts" in clients else None
    sizes = np.bincount(assignment)
    answered = clients[np.isfinite(clients["accuracy"].to_numpy(dtype=float))]
    accuracy, weights = (answered[name].to_numpy(dtype=float) for name in ("accuracy", "num_test"))
    weights, outcomes = counted(weights, row_cap), [each for each in outcomes if each.sums is None]
    ad, sdad = metrics.fairness(accuracy) if accuracy.size else (None, None)
    shares = counts if np.count_nonzero(sizes) > 1 else None
    summary: dict[str, object] = {
        "strategy": strategy,
        "seed": seed,
        "rounds": rounds,
        "num_clients": len(clients),
        "num_clusters": int(np.count_nonzero(sizes)),
        "cluster_sizes": sizes.tolist(),
        "assignment": assignment.tolist(),
        "global_accuracy": float(metrics.global_accuracy(accuracy, weights)) if accuracy.size else None,
        "mean_client_accuracy": _mean(accuracy),
        **{name: _mean(clients[name]) for name in _MEANS},
        "pooled_macro_f1": _number(metrics.pooled_macro_f1(outcomes)),
        "pooled_auc": _number(metrics.pooled_auc(outcomes)),
        **{name: _mean(clients[name]) for name in own_metrics},
        **({"intervals": ends} if (ends := intervals_of(clients, own_metrics)) else {}),
        "ad": ad,
        "sdad": sdad,
        "was": None if shares is None else metrics.wasserstein_adjusted_silhouette(shares, assignment),
        "wadb": None if shares is None else metrics.wasserstein_adjusted_davies_bouldin(shares, assignment),
        "rand_index": _agreement(metrics.rand_index, clients),
        "adjusted_rand_index": _agreement(metrics.adjusted_rand_index, clients),
        "weighted_psi": None if counts is None else float(metrics.weighted_psi(counts)),
        "seconds": seconds,
        "failed_replies": failed_replies,
        **{key: (traffic or {}).get(key) for key in _TRAFFIC},
        "compare": dict(compare or {}),
    }
    if taken := summary.keys() & details.keys():
        raise ValueError(f"details must not use the common keys, got {sorted(taken)}")
    if of_all(details):
        summary |= dict.fromkeys(("ad", "sdad"))
    # The assignment does not say what clients chose.
    if isinstance(among := details.get("choose_among"), list):
        summary |= dict.fromkeys(("rand_index", "adjusted_rand_index", "was", "wadb"))
        summary["num_clusters"] = len(among)
    return summary | details


def of_all(summary: Mapping[str, Any]) -> bool:
    """Return whether clients' accuracies are one mean over all, as of a deployed private run."""
    privacy = summary.get("privacy")
    return isinstance(privacy, Mapping) and str(privacy.get("figures")).startswith(OF_ALL)


def intervals_of(clients: pd.DataFrame, names: Iterable[str]) -> dict[str, list[float]]:
    """Compute 95 % intervals of means over clients, by figure: these clients, with other test rows.

    Parameters
    ----------
    clients
        Table of clients; figures without a column of standard errors have no interval.
    names
        Keys of the figures.

    Examples
    --------
    >>> table = pd.DataFrame({"rmse": [1.0, 2.0], "rmse_error": [0.3, 0.4]})
    >>> intervals_of(table, ["rmse"])  # 1.5 ± 1.959964·√(0.3² + 0.4²)/2
    {'rmse': [1.010009, 1.989991]}
    """
    found = {}
    for name in names:
        if metrics.error_of(name) in clients:
            figures, errors = clients[[name, metrics.error_of(name)]].to_numpy(float).T
            figures, errors = figures[np.isfinite(figures)], errors[np.isfinite(figures + errors)]
            if len(errors):  # a client with a row or two may have no error: it counts with the mean one
                reach = NORMAL * math.sqrt(np.square(errors).mean() / len(figures))
                found[name] = [round(float(figures.mean()) + each, 6) for each in (-reach, reach)]
    return found


def _mean(column: ArrayLike) -> float | None:
    values = np.asarray(column, dtype=float)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _agreement(index: Callable[[IntArray, IntArray], float], clients: pd.DataFrame) -> float | None:
    """Compute the agreement of the clusters with the known grouping, if there is one."""
    if clients["group"].isna().any():
        return None
    return index(clients["group"].to_numpy(dtype=np.int64), clients["cluster"].to_numpy(dtype=np.int64))


def _share_weighted(train_counts: IntArray, outcomes: Mapping[int, Outcomes]) -> FloatArray:
    """Compute each client's accuracy weighted by its training shares; NaN without counts."""
    figures = np.full(len(train_counts), np.nan)
    if outcomes:
        clients = list(outcomes)
        hits = np.stack([outcomes[client].hits for client in clients])
        actual = np.stack([outcomes[client].there for client in clients])
        figures[clients] = metrics.share_weighted_accuracy(train_counts[clients], hits, actual)
    return figures
