"""What serves a handful of sites after one of them has left."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord
from torch import nn

from fedclust.data.input_encoders import TableEncoder
from fedclust.federation.questions import prior_shifts
from fedclust.layers.coalitions import CoalitionModels, chosen_without
from fedclust.personal.layers import NONE, PRIOR
from fedclust.proof.words import joined
from fedclust.serving.served import Served, with_margins

if TYPE_CHECKING:
    from fedclust.results import SavedRun


@dataclass(frozen=True, eq=False)
class Left:
    """What serves the other sites after one has left.

    Attributes
    ----------
    label
        Name or id of the site that left.
    served
        The models, of the coalitions that have trained without it.
    run
        The run, whose table of clients has only figures that still hold.
    lines
        With whom each site trains then, and what of the site remains where, a sentence each.
    """

    label: str
    served: Served
    run: "SavedRun"
    lines: tuple[str, ...]


def without(
    served: Served,
    run: "SavedRun",
    trained: CoalitionModels,
    built: Callable[[ArrayRecord], nn.Module],
    site: str | int,
) -> Left:
    """Choose for each of the other sites again, among the coalitions that have trained without one.

    By the cross-fitted scores of the run; nothing trains again.

    Parameters
    ----------
    served, run
        The models of a finished run, and the run.
    trained
        Its coalitions, after the sites' choice.
    built
        Builds the network of a model.
    site
        Name of the site that leaves, with all its clients; or name or id of one client.

    Raises
    ------
    ValueError
        If there is no such site, or the run's table of clients is missing.
    """
    # A site with its own data may have several clients, such as its wards.
    exact = any(str(each.name) == str(site) for each in served.sites)
    of_site = [] if exact else [each for each in served.sites if str(each.name).startswith(f"{site}/")]
    leaving = of_site or [served.site(site)]
    name, gone = str(site) if of_site else leaving[0].label, [each.client for each in leaving]
    counts, target = run.label_counts, served.target
    if counts is None:
        raise ValueError(f"{run.folder} must hold clients.parquet with label counts, it does not")
    label = {each.client: each.label for each in served.sites}
    choices = trained.chosen.choices if trained.chosen else ()
    before = {client: choice.arm for client, choice in enumerate(choices) if choice}
    clusters: dict[int, int] = {}
    sites, lines, same = [], [], set()
    fitted = target.fits_correction  # which only the site itself can do
    for client, arm in chosen_without(trained, gone, counts, target.words, fitted=fitted).items():
        own, members = served.site(client), trained.trained_with[arm.coalition]
        shift = own.prior_shift  # None, too, where a correction would change nothing
        tuned = own.personal not in (None, NONE, PRIOR)  # its figures and margins are those of its own model
        if arm == before[client] and not tuned:
            same.add(client)
        else:
            assignment = np.where(np.isin(np.arange(len(counts)), members), 0, -1)
            correct = arm.corrected and not fitted
            found = prior_shifts(counts, assignment)[client] if correct else np.zeros(1)
            shift = tuple(found.tolist()) if found.any() else None
        cluster = clusters.setdefault(arm.coalition, len(clusters))
        layer = NONE if shift is None else PRIOR
        sites.append(replace(own, cluster=cluster, prior_shift=shift, personal=layer, note=None))
        others = [label[other] for other in members if other != client] or ["nobody"]
        not_own = "; not the one fine-tuned to it" if tuned else ""
        had = own.prior_shift is not None or (tuned and before[client].corrected)
        unfit = fitted and len(members) > 1 and had and shift is None
        lost = f"; without its {target.words.own_correction}" if unfit else ""
        lines.append(f"{own.label}: the model that it trains with {joined(others)}{not_own}{lost}")
    lines += [
        f"{label[late]}: nothing, as it came after round 1 and trained only everyone's model"
        for late in range(len(trained.coalitions[0]), len(choices))
        if late not in gone
    ]
    of_others = _without_figures(run, name, {each.client: each.cluster for each in sites}, same)
    margins: dict[int, float] = {}
    if of_others.clients is not None:
        sites[:], margins = with_margins(sites, of_others.clients, target)
    coalition_of = {cluster: place for place, cluster in clusters.items()}
    encoder = served.encoder
    if isinstance(encoder, TableEncoder):
        encoder = encoder.without({name, *(each.label for each in leaving)})
    left = replace(
        served,
        encoder=encoder,
        sites=tuple(sites),
        clusters=tuple(coalition_of),
        network=lambda of: built(trained.on_all_rows(coalition_of[of.cluster])),
        margins=margins,
    )
    lines += [
        f"in these models nothing of {name} remains: none of them has trained with it",
        f"in how rows become inputs and {target.kind} outputs its rows remain, as in columns' scales",
        f"in {run.folder} its rows remain in the models that it trained: delete the folder if they must not",
    ]
    return Left(name, left, of_others, tuple(lines))


def _without_figures(
    run: "SavedRun", gone: str, clusters: Mapping[int, int], same: Collection[int]
) -> "SavedRun":
    """Return the run with those clients only, and figures only of those that are served as before.

    Nor has it a line about the data of the site that left, or that names it.
    """
    table = run.clients
    if table is None:
        return run
    table = table[table["client"].isin(list(clusters))].copy()
    table["cluster"] = table["client"].map(clusters)
    kept = {"client", "cluster", "name", "num_train", "num_test", "label_counts"}
    changed = ~table["client"].isin(list(same))
    for name in set(table.columns) - kept:
        table[name] = table[name].where(~changed, None)
    left = type(run)(run.folder)
    # Of models that no longer serve.
    about = {"verdict", "sites", "site_findings", "decision", "assignment", "cluster_sizes"}
    summary = {key: value for key, value in run.summary.items() if key not in about}
    named = re.compile(rf"(?<![\w-]){re.escape(gone)}(?![\w-])")
    warnings = [line for line in summary.get("data_warnings") or () if not named.search(line)]
    summary |= {"data_warnings": warnings, "num_clusters": len(set(clusters.values()))}
    summary["site_left"] = True  # for the card
    vars(left).update(clients=table, summary=summary)  # in place of what its properties would read
    return left
