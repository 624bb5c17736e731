"""Measure what sets a federation's clients apart, and advise on settings for it: ``task=advise``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedclust import metrics
from fedclust.clustering import label_groups, prototype_groups
from fedclust.federation import Descriptions, Federation
from fedclust.federation.asking import unlike
from fedclust.federation.run import RunState
from fedclust.messages.description import PrototypesQuestion
from fedclust.messages.training import Projection
from fedclust.results.charts import run as charts
from fedclust.results.charts.chart import save
from fedclust.results.page.run import command_line
from fedclust.results.report import unwrapped
from fedclust.results.saved_run import SavedRun, evenly
from fedclust.runs import shifts
from fedclust.runs.shifts import Agreement, Looks
from fedclust.support.rng import generator, torch_seed
from fedclust.typing import IntArray

_SIZE = 512  # of a projected update
_MOST_ASKED = 100  # clients that are asked for updates
_MOST_DRAWN = 500  # clients on the map: it compares all pairs
_SAME = 0.95  # least adjusted Rand index at which two groupings count as the same
_SEEN = {True: "seen", False: "not seen", None: "not measured"}


@dataclass(frozen=True, eq=False)
class Seen:
    """What sets a federation's clients apart.

    Attributes
    ----------
    shifts
        Label, quantity, feature and concept shift, in this order.
    looks
        What prototypes show; None where there are none.
    prototypes
        The clients' class prototypes; None where there are none.
    label_groups
        Group of each client by label counts alone, shape (K,).
    updates
        How updates agree; None where fewer than two clients answered.
    answered
        The clients whose updates were compared, sorted.
    """

    shifts: tuple[shifts.Shift, ...]
    looks: Looks | None
    prototypes: prototype_groups.Prototypes | None
    label_groups: IntArray
    updates: Agreement | None
    answered: IntArray


@dataclass(frozen=True)
class Advice:
    """Settings advised for a federation.

    Attributes
    ----------
    strategy
        For ``strategy=``.
    personal
        For ``personal=``.
    reason
        Why, in one or two sentences.
    """

    strategy: str
    personal: str
    reason: str

    @property
    def overrides(self) -> list[str]:
        """The overrides to add to the command."""
        personal = [] if self.personal == "none" else [f"personal={self.personal}"]
        return [f"strategy={self.strategy}", *personal]


def look(federation: Federation, model: ArrayRecord, server_round: int, seed: int) -> Seen:
    """Measure what sets the clients apart.

    Label counts are known already; one message asks everyone for class prototypes, and two ask up to 100
    clients for what one round of training changes in the model, each time from different batches. Clients
    that do not answer are left out.

    Parameters
    ----------
    federation
        The clients.
    model
        The model that updates start from; a partly trained one shows more than an untrained one.
    server_round
        The last round that was trained.
    seed
        The run's seed.
    """
    described = federation.describe()
    counts = described.train_counts
    having = np.flatnonzero(counts.sum(axis=1))
    by_labels: IntArray = np.zeros(len(counts), dtype=np.int64)
    drawn = torch_seed(seed, "assign") % 2**32
    by_labels[having], _ = label_groups.assign(counts[having], label_groups.Parameters(), drawn)
    prototypes, looks, why = _looks(federation, described)
    kinds = [shifts.Shift(kind, None, None, None, f"not measured: {why}") for kind in ("feature", "concept")]
    if looks is not None:
        kinds = [looks.feature, looks.concept]
    draws = generator(seed, "advise")
    asked = np.sort(draws.choice(having, min(_MOST_ASKED, len(having)), replace=False))
    updates, answered = _agreement(federation, model, server_round, asked, seed)
    found_shifts = shifts.label_shift(counts[having]), shifts.quantity_skew(counts.sum(axis=1)), *kinds
    return Seen(found_shifts, looks, prototypes, by_labels, updates, answered)


def advise(
    seen: Seen, verdict: Mapping[str, Any], assignment: IntArray, sites: Sequence[Mapping[str, Any]] = ()
) -> Advice:
    """Choose a strategy and a personal layer.

    Parameters
    ----------
    seen
        What sets the clients apart.
    verdict
        Of a short run of ``strategy=auto``, as in ``summary.json``.
    assignment
        Cluster of each client at its end, shape (K,).
    sites
        What each site chose in it; empty if sites chose nothing.
    """
    label, _, feature, concept = seen.shifts
    if sites:
        return Advice("auto", "none", "each site chooses for itself, on its own rows. " + verdict["text"])
    personal = "prior" if label.seen else "auto" if feature.seen and not verdict["grouped"] else "none"
    if not verdict["grouped"] and concept.seen:
        reason = (
            "the same classes go by other names on some clients, so one model for all would learn neither; "
        )
        reason += "no grouping was shown to be better yet, and auto goes on testing in a longer run"
        return Advice("auto", personal, reason)
    if not verdict["grouped"]:
        reason = "no grouping was shown to be better on held-out rows, so all clients train one model"
        if label.seen:
            reason += "; their class shares differ, which the prior correction takes care of without training"
        elif personal == "auto":
            reason += "; the same classes look different, which training on each client may make up for"
        return Advice("fedavg", personal, reason)
    if seen.looks is not None and _same(assignment, seen.looks.groups):
        what = "go by other names" if concept.seen and not feature.seen else "look different"
        reason = f"classes {what} between the groups, and one question before round 1 finds them"
        return Advice("fmcl", personal, reason)
    if _same(assignment, seen.label_groups):
        reason = "the groups differ in their labels, and the label counts find them before round 1"
        return Advice("clust_psi_pfl", personal, reason)
    reason = (
        "neither label counts nor prototypes show the groups that proved themselves: they are in how clients "
        "train, which auto tests before it keeps them"
    )
    return Advice("auto", personal, reason)


def summarise(seen: Seen, advice: Advice) -> dict[str, object]:
    """List what was seen and advised, for ``summary.json``."""
    agreed, updates = seen.updates, None
    if agreed is not None:
        ratio = agreed.ratio if np.isfinite(agreed.ratio) else None
        updates = {"ratio": ratio, "own": agreed.own, "others": agreed.others, "clients": len(seen.answered)}
    return {
        "shifts": [asdict(shift) for shift in seen.shifts],
        "update_agreement": updates,
        "advice": {**asdict(advice), "overrides": advice.overrides},
    }


def agreement_text(seen: Seen) -> str:
    """Describe in one sentence how clients' updates agree."""
    agreed = seen.updates
    if agreed is None:
        return "not measured: fewer than two clients sent updates"
    if not np.isfinite(agreed.ratio):
        unrelated = "one client's updates from different batches have nothing in common"
        return f"{unrelated} (cosine {agreed.own:.2f}), so those of two clients cannot be compared"
    return (
        f"two clients' updates agree {agreed.ratio:.2f} times as much as two updates of one client (cosine "
        f"{agreed.others:.2f} against {agreed.own:.2f}); 0 means unrelated, below 0 opposed, near 1 of one "
        "kind, which clients with few examples never quite reach"
    )


def _looks(
    federation: Federation, described: Descriptions
) -> tuple[prototype_groups.Prototypes | None, Looks | None, str]:
    """Ask for prototypes; return also why there are none, if so."""
    answers = federation.ask(PrototypesQuestion(min_examples=prototype_groups.MIN_EXAMPLES))
    sent_by = {client: each.all for client, each in answers.replies.items()}
    failures = dict(answers.failures)
    shapes = {client: means.shape for client, (means, *_) in sent_by.items()}
    for client, reason in unlike("shape of prototypes", shapes).items():
        failures[client] = reason
        del sent_by[client]
    if len(sent_by) < 2:
        client, why = next(iter(failures.items()), (0, "there is no other client"))
        return None, None, f"client {client} has no prototypes, {why}"
    shape = next(iter(sent_by.values()))[0].shape
    nothing = np.zeros(shape, np.float32), np.zeros(shape[0], np.int64), np.zeros(shape[0])
    everyone = [sent_by.get(client, nothing) for client in range(federation.num_clients)]
    means, counts, scatter = (np.stack(values) for values in zip(*everyone, strict=True))
    sent = prototype_groups.sent_counts(counts, prototype_groups.MIN_EXAMPLES)
    names = described.class_names, described.client_names or ()
    looks = shifts.looks_shift(means, sent, scatter, prototype_groups.Parameters(), *names)
    clients, _ = prototype_groups.measured(means, sent, scatter)
    return clients, looks, ""


def _agreement(
    federation: Federation, model: ArrayRecord, server_round: int, asked: IntArray, seed: int
) -> tuple[Agreement | None, IntArray]:
    projection = Projection(_SIZE, torch_seed(seed, "projection"))
    rounds = server_round + 1, server_round + 2
    first, second = (federation.updates(model, asked, each, projection=projection) for each in rounds)
    rows = {}
    for client in first.keys() & second.keys():
        one, other = first[client].projected, second[client].projected
        if one is not None and other is not None:
            rows[client] = one.values, other.values
    answered: IntArray = np.array(sorted(rows), dtype=np.int64)
    if len(rows) < 2:
        return None, answered
    pairs = zip(*(rows[client] for client in answered.tolist()), strict=True)
    return shifts.agreement(*map(np.stack, pairs)), answered


def _same(first: IntArray, second: Sequence[int] | IntArray) -> bool:
    return metrics.adjusted_rand_index(np.asarray(first), np.asarray(second)) >= _SAME


def give_advice(
    federation: Federation, common: RunState, summary: Mapping[str, Any], seed: int, folder: Path
) -> dict[str, object]:
    """Measure what sets the clients apart after a short run, choose settings, and draw the findings.

    Parameters
    ----------
    federation
        The clients.
    common
        Last state of the run of one model for all; updates start from its model.
    summary
        Summary of the short run of ``strategy=auto``, with its verdict.
    seed
        The run's seed.
    folder
        The run's folder.

    Returns
    -------
    ``shifts``, ``update_agreement`` and ``advice`` for ``summary.json``.
    """
    seen = look(federation, common.models[0], common.server_round, seed)
    assignment: IntArray = np.asarray(summary["assignment"])
    described = federation.describe()
    _draw(seen, described, assignment, folder / "plots")
    sites = summary.get("sites") or ()
    findings = summarise(seen, advise(seen, summary["verdict"], assignment, sites))
    return {**findings, "update_agreement_text": agreement_text(seen)}


def print_advice(summary: Mapping[str, Any], folder: Path, console: Console) -> None:
    """Print the kinds of shift with their evidence, and the advice."""
    console = unwrapped(console)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for title in ("what sets the clients apart", "", "evidence"):
        table.add_column(title)
    for shift in summary["shifts"]:
        strong = "bold" if shift["seen"] else ""
        table.add_row(Text(shift["kind"], strong), Text(_SEEN[shift["seen"]], strong), Text(shift["text"]))
    table.add_row("updates", "", Text(summary["update_agreement_text"]))
    console.print(table)
    chosen = summary["advice"]
    console.print(Text("Advice: " + chosen["reason"] + ".", style="bold"))
    command = command_line([*_kept(SavedRun(folder).config.get("overrides") or ()), *chosen["overrides"]])
    console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"pictures: {folder.resolve() / 'plots'}", markup=False, highlight=False, soft_wrap=True)


def _kept(overrides: Sequence[object]) -> list[str]:
    """Return the overrides of the short run that the advised one keeps: its data, model and training."""
    given = [str(each) for each in overrides]
    short = ("task", "strategy", "personal", "compare", "proof", "rounds")
    return [each for each in given if each.partition("=")[0].lstrip("+").partition(".")[0] not in short]


def _draw(seen: Seen, described: Descriptions, assignment: IntArray, folder: Path) -> None:
    counts = described.train_counts
    names = described.class_names or None
    pictures = {
        "label_shift": charts.label_counts(counts, assignment, names, described.client_names),
        "quantity_skew": charts.client_sizes(counts.sum(axis=1)),
    }
    if seen.looks is not None and seen.prototypes is not None:
        shown = np.array(evenly(len(counts), _MOST_DRAWN))
        rows = seen.prototypes.rows(shown)
        distances = np.sqrt(np.maximum(prototype_groups.compare(rows, rows).distance(np.nan), 0))
        pictures["feature_and_concept_shift"] = charts.advice_map(distances, seen.looks.groups[shown], shown)
    if seen.updates is not None:
        drawn = "cosines_of_updates", seen.updates.cosines, assignment[seen.answered]
        pictures["update_agreement"] = charts.matrix_picture(*drawn)
    for name, picture in pictures.items():
        save(picture.chart, folder / f"{name}.png", title=picture.title)
