"""Format a run's results, and print the table at its end."""

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from fedclust.personal.layers import FINETUNE, NONE
from fedclust.privacy import FROM_SEED
from fedclust.proof.sites import SERVED
from fedclust.proof.words import CLASSES, Words
from fedclust.results.names import paper_name
from fedclust.results.saved_run import SavedRun
from fedclust.results.summary import (
    collapsed_line,
    decision_line,
    decision_lines,
    how_to_get_one,
    leaving_line,
    left_out_lines,
    listed,
    never_predicted_line,
    personal_line,
    target_of,
    warning_lines,
)
from fedclust.settings.folders import of_sweep
from fedclust.support.checks import few, plural

_MOST_TRIALS, _MOST_CLUSTERS, _BRIEF_CLUSTERS = 12, 12, 5
_BRIEF = (
    *("adjusted_rand_index", "mean_client_accuracy", "balanced_accuracy"),
    *("epsilon", "newcomers.accuracy", "seconds"),
)


def known(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and value == value and abs(value) != float("inf")


MARK = "†"
"""Follows the name of a method that was not given the number of groups that it takes."""


def guess_note(guesses: Iterable[int], groups: Iterable[int]) -> str:
    """Explain the mark of methods that were not given their number of groups.

    Parameters
    ----------
    guesses
        The numbers of groups that they took.
    groups
        The numbers of groups that the data have, as far as known.

    Examples
    --------
    >>> guess_note([2, 2], [4])
    '† number of groups not given: 2 by default; the data have 4'
    """
    taken, there = (" or ".join(map(str, sorted({*each}))) for each in (guesses, groups))
    return f"{MARK} number of groups not given: {taken} by default" + (
        f"; the data have {there}" if there else ""
    )


def number(value: Any, digits: int = 3) -> str:
    """Format a number with a given number of decimals; – if it is unknown."""
    if not known(value):
        return "–"
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text  # no "-0.000"


def size(value: Any) -> str:
    """Format a number of bytes."""
    if not known(value):
        return "–"
    rest, units = float(value), ["B", "kB", "MB", "GB", "TB"]
    while rest >= 999.5 and len(units) > 1:
        rest /= 1000
        del units[0]
    return f"{float(f'{rest:.3g}'):g} {units[0]}"


def duration(value: Any) -> str:
    """Format a time in seconds."""
    if not known(value) or value < 60:
        return f"{number(value, 1)} s" if known(value) else "–"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds} s" if value < 3600 else f"{minutes // 60} h {minutes % 60} min"


def percent(value: Any) -> str:
    """Format a share as a percentage."""
    return f"{number(100 * value, 1 if 0 < value < 0.0995 else 0)} %" if known(value) else "–"


def span(pair: Any, digits: int = 3) -> str:
    """Format the two ends of an interval."""
    return f"{number(pair[0], digits)} to {number(pair[1], digits)}" if pair and known(pair[0]) else "–"


def some(values: Sequence[Any], most: int) -> str:
    """List at most the first `most` values."""
    return ", ".join(map(str, list(values)[:most])) + (", …" if len(values) > most else "")


def _chance(value: Any) -> str:
    return "< 0.001" if known(value) and value < 0.001 else number(value)


FORMS = {
    "number": number,
    "whole": lambda value: number(value, 0),
    "bytes": size,
    "seconds": duration,
    "percent": percent,
    "shade": percent,
    "tight": lambda value: f"{float(f'{value:.4g}'):g}" if known(value) else "–",
    "chance": _chance,
}
"""How to format a value, by kind."""


def written(value: Any, kind: str) -> str:
    """Format a value by its kind; leave a text as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) or kind not in FORMS:
        return "–" if value is None else str(value)
    return FORMS[kind](value)


def went_back_line(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Report in one line which clusters went back to earlier models, and how often; None if none did.

    Such a cluster's clients have trained in vain in that round; the run continues as long as they are no more
    than half of all clients.

    Parameters
    ----------
    rounds
        The lines of ``rounds.jsonl``.
    """
    by_cluster: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    for line in rounds:
        last = {each["cluster"]: each for each in line.get("went_back", ())}  # once, if twice in a round
        for cluster, each in last.items():
            by_cluster.setdefault(cluster, []).append((line["round"], each))
    if not by_cluster:
        return None
    named = []
    for cluster, times in sorted(by_cluster.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        last_round, each = times[-1]
        clients = f" with {each['clients']} clients" if each.get("clients", 1) > 1 else ""
        why = f"(round {last_round}{clients}: {each['reason']})"
        named.append(f"cluster {cluster} in {len(times)} of {len(rounds)} rounds {why}")
    return f"Went back to an earlier model: {listed(named, 5)}"


def drift_line(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Report in one line which clients have drifted; None if none have.

    Parameters
    ----------
    rounds
        The lines of ``rounds.jsonl``. A client that was named in several rounds counts in its last one.
    """
    last = {each["client"]: (line["round"], each) for line in rounds for each in line.get("drift", ())}
    if not last:
        return None
    named = [
        f"client {client} fits cluster {each['better']} better than {each['cluster']} (round {last_round}"
        f"{', moved' if each['moved'] else ''})"
        for client, (last_round, each) in last.items()
    ]
    return f"Drift: {listed(named, 10)}"


def votes(trial: Mapping[str, Any]) -> str:
    """Return how many clients voted for a grouping, of how many.

    Examples
    --------
    >>> votes({"better_for": 7, "voted": 10}), votes({})
    ('7 of 10', '–')
    """
    return f"{trial['better_for']} of {trial['voted']}" if trial.get("voted") else "–"


def trials_table(trials: Sequence[Mapping[str, Any]], voted: bool = False) -> Table:
    """List groupings that were tried for more than one round, those that were kept first.

    Parameters
    ----------
    trials
        ``trials`` of ``summary.json``, see :class:`fedclust.strategies.Auto`.
    voted
        Whether clients had one vote each; their number then takes the place of the gain.

    Returns
    -------
    A row each: its source, its gain on held-out rows, and the outcome. The other groupings are counted.
    """
    table = _table(
        *_right("look", "cluster"), "from", "sizes", *_right("votes" if voted else "gain", "p", "rounds"), ""
    )
    tested = sorted((each for each in trials if each["rounds"] > 1), key=lambda each: not each["kept"])
    for each in tested[:_MOST_TRIALS]:
        gain = votes(each) if voted else number(each.get("gain"))
        corrected = each.get("p_value_corrected")
        exact = corrected is not None and corrected >= 0.001
        chance = f"{corrected:.2g}" if exact else written(corrected, "chance")
        sizes, result = ", ".join(map(str, each["sizes"])), "kept" if each["kept"] else "dropped"
        first = str(each["look"]), str(each["cluster"]), each["source"], sizes
        table.add_row(*first, gain, chance, str(each["rounds"]), f"{result}: {each['why']}")
    left = len(trials) - len(tested[:_MOST_TRIALS])
    if left:
        table.caption = f"{left} more in summary.json, most of them dropped after one round"
    return table


_MEAN = "mean_client_accuracy"  # the row that is followed by the same figure without personal layers

_ROWS: tuple[tuple[str, str, int | None], ...] = (
    ("clusters", "num_clusters", 0),
    ("Rand index, known grouping", "rand_index", 3),
    ("Rand index, adjusted for chance", "adjusted_rand_index", 3),
    ("client {0.share}, mean", _MEAN, 3),
    ("client {0.share}, balanced", "balanced_accuracy", 3),
    ("macro F1", "macro_f1", 3),
    ("AUC", "auc", 3),
    ("AD ± SDAD (lower is better)", "ad sdad", 3),
    ("{0.score} of held-out rows (lower is better)", "validation_brier", 3),
    ("global {0.share}", "global_accuracy", 3),
    ("WAS (higher is better)", "was", 3),
    ("WADB (lower is better)", "wadb", 3),
    ("ε of a client, largest", "epsilon", 2),
    ("δ", "delta", 7),
    ("newcomers: {0.share}, mean", "newcomers.accuracy", 3),
    ("newcomers: Rand index, adjusted", "newcomers.adjusted_rand", 3),
    ("newcomers in no cluster", "newcomers.none", 0),
    ("failed replies", "failed_replies", 0),
    ("sent to clients", "bytes_down", None),
    ("received from clients", "bytes_up", None),
    ("seconds", "seconds", 1),
)  # title with words, the keys that it shows, the second one after ±, and its digits; None for bytes


def figures_of(
    summaries: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str, list[list[float]], list[str]]]:
    """Yield the rows of the table of figures for which some summary has a value.

    Yields
    ------
    The row's first key, its title, each summary's values, and each summary's cell.
    """
    words = target_of(summaries[0]).words if summaries else CLASSES
    place = 1 + [keys for _, keys, _ in _ROWS].index(_MEAN)
    own = [(title, key, digits) for key, title, digits in words.figures]
    rows = [(title.format(words), keys, digits) for title, keys, digits in _ROWS if keys not in words.without]
    for title, keys, digits in (*rows[:place], *own, *rows[place:]):
        values = [
            [value for key in keys.split() for value in np.ravel(figure(each, key)).tolist() if known(value)]
            for each in summaries
        ]
        if any(values):
            sources = (figure(each, "privacy.noise_from") for each in summaries)
            if keys == "epsilon" and FROM_SEED in sources:
                title = "ε with secret noise; from a published seed it protects nobody"
            write = size if digits is None else partial(number, digits=digits)
            ends = [(each.get("intervals") or {}).get(keys) for each in summaries]
            cells = [" ± ".join(map(write, each)) or "–" for each in values]
            cells = [
                f"{cell} ({span(pair)})" if pair else cell for cell, pair in zip(cells, ends, strict=True)
            ]
            yield keys.split()[0], title, values, cells


def newcomers_line(summary: Mapping[str, Any]) -> str | None:
    """Summarise in one line the results of clients that were left out; None if there were none."""
    newcomers = summary.get("newcomers")
    if not newcomers:
        return None
    accuracy = "unknown" if newcomers["accuracy"] is None else f"{newcomers['accuracy']:.3f}"
    bare = ", without personal layers" * ("personal" in summary)
    who = f"{plural(newcomers['clients'], 'client')} left out of training"
    parts = [f"{who}: {target_of(summary).words.share} {accuracy}{bare}"]
    if newcomers["adjusted_rand"] is not None:
        parts.append(f"their clusters agree with the known groups to {newcomers['adjusted_rand']:.2f}")
    if newcomers["none"]:
        parts.append(f"{newcomers['none']} fit no cluster")
    if newcomers["common"]:
        parts.append(f"{newcomers['common']} are served one model for all")
    return "Newcomers: " + ", ".join(parts)


def final_table(run: SavedRun, brief: bool = False) -> RenderableType:
    """Build the table of a run's results for the terminal.

    First the verdict, or how to get one; then the clusters with their sizes, and the figures next to those of
    the compared strategies.

    Parameters
    ----------
    run
        A run with its ``summary.json``.
    brief
        Whether to show the main figures only, in about 20 lines.

    Returns
    -------
    An object that a rich console prints.

    Raises
    ------
    ValueError
        If the run has no summary, or its summary names no strategy.
    """
    summary = run.summary
    if "strategy" not in summary:
        raise ValueError(f"summary.json must have the key strategy, got {list(summary)} in {run.folder}")
    numbers = plural(summary["num_clients"], "client"), plural(summary["rounds"], "round")
    details = f", {', '.join(numbers)}, seed {summary['seed']}"
    if (best := summary.get("best_round")) is not None:
        early = "stopped early, " if summary["stopped_early"] else ""
        details += f", {early}best on held-out rows in round {best}"
    words = run.target.words
    tables = not (brief and summary.get("sites"))  # which have a line each
    heading = Text(str(summary["strategy"]), style="bold").append(details, style="not bold")
    parts: list[RenderableType] = [*verdict_lines(run), heading]
    if run.clients is not None and tables:
        most = _BRIEF_CLUSTERS if brief else _MOST_CLUSTERS
        parts.append(_clusters(run.clients, most, words, among(summary)))
    if summary.get("sites") and tables:
        parts.append(_sites(summary["sites"], words))
    if line := decision_line(summary):
        parts.append(Text(line))
    if summary.get("trials") and not brief:
        parts.append(trials_table(summary["trials"], "votes" in summary))
    if tables:
        sides = (summary, *summary.get("compare", {}).values())
        failed = ["failed_replies"] * any(each.get("failed_replies") for each in sides)
        shown = (*_BRIEF, *run.target.figure_ranges, *failed) if brief else None
        parts += [Text(""), _figures(summary, shown)]
        if guesses := [each["groups_guessed"] for each in sides if "groups_guessed" in each]:
            groups = [] if run.groups is None else [len(np.unique(run.groups))]
            parts.append(Text(guess_note(guesses, groups)))
    lines = [] if brief else [*decision_lines(summary), personal_line(summary)]
    lines += [newcomers_line(summary), *warning_lines(summary)]
    lines += [drift_line(run.rounds), went_back_line(run.rounds), leaving_line(summary)]
    if run.clients is not None and (silent := int(run.clients["accuracy"].isna().sum())):
        lines.append(
            f"{silent} of {plural(len(run.clients), 'client')} without {words.share}: left out of the means"
        )
    return Group(*parts, *(Text(line) for line in lines if line))


def everyone(words: Words) -> str:
    """Explain the figures of everyone's model."""
    return (
        f"everyone: one model for all but sites whose {words.exchanged}, with the {words.own_correction} "
        "where that suits the site"
    )


def site_columns(summary: Mapping[str, Any]) -> list[str]:
    """Return the titles of the columns of :func:`site_rows`."""
    first, *others = (title for _, title in target_of(summary).words.columns)
    return ["site", "trains with", first, "95 % interval", *others, "the others lose without it"]


def site_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """List with whom each site trains, and how its choice, everyone's model and its own do on its test rows.

    Parameters
    ----------
    summary
        A run's summary; the list is empty if sites chose nothing in it.
    """
    rows, columns = [], target_of(summary).words.columns
    for each in summary.get("sites") or ():
        arms = [each.get(arm) or {} for arm in SERVED]
        figures = [" / ".join(number(arm.get(key), 2) for arm in arms) for key, _ in columns]
        ends = span((arms[0].get("accuracy_low"), arms[0].get("accuracy_high")), 2)
        what = ", ".join(each["train_with"]) or "nobody"
        what += " (prior)" if each["correction"] == "prior" else ""
        lost, reach = each.get("others_lose"), each.get("others_lose_interval") or (None, None)
        worth = "–" if lost is None else f"{number(lost, 2)} ({span(reach, 2)})"
        rows.append([each["name"], what, figures[0], ends, *figures[1:], worth])
    return rows


def print_report(
    run: SavedRun, console: Console | None = None, *, brief: bool = False, elsewhere: bool = False
) -> None:
    """Print the final table and the run's folder.

    Parameters
    ----------
    run
        A run with its ``summary.json``.
    console
        Where to print; standard output unless given. Lines are not wrapped unless it is a terminal.
    brief
        Whether to print the main figures only, and how to get the others; of a sweep's job, whose tables
        follow, one line.
    elsewhere
        Whether the reader's working folder is not this process's, as with a SuperLink's.

    Raises
    ------
    ValueError
        If the run has no summary.
    """
    console = unwrapped(console or Console())
    if brief and of_sweep(run.folder):
        console.print(job_line(run), markup=False, highlight=False, soft_wrap=True)
        return
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}  # paths can be copied
    console.print(final_table(run, brief))
    if brief:
        page = ", in a browser: report.html"
        if not (run.folder / "report.html").is_file():
            charts = "" if find_spec("altair") else ", after pip install 'fedclust[charts]'"
            page = f"; it writes the page, too{charts}"
        named = str(run.folder.resolve()) if elsewhere else os.path.relpath(run.folder)
        last = f"all figures: fedclust report {shlex.quote(named)}{page}"
        console.print(last, **plain)
    console.print(f"results: {run.folder.resolve()}", **plain)
    if line := collapsed_line(run.summary):
        console.print(line, **plain)


def job_line(run: SavedRun) -> str:
    """Report a sweep's job in one line: its folder, what it was given, and its main figures."""
    summary, words = run.summary, run.target.words
    given = [each for each in run.config.get("overrides") or () if not each.startswith("output_dir=")]
    figures = [
        f"mean client {words.share} {number(summary.get(_MEAN))}",
        plural(summary["num_clusters"], "cluster"),
    ]
    if (score := summary.get("validation_brier")) is not None:
        figures.append(f"{words.score} of held-out rows {number(score)}")
    figures.append(duration(summary["seconds"]))
    for name, each in summary.get("compare", {}).items():
        if "taken_from" in each:
            figures.append(
                f"{name} taken from {os.path.normpath(run.folder.name + '/' + each['taken_from'])}"
            )
    return f"{shlex.quote(os.path.relpath(run.folder))} ({' '.join(given)}): {', '.join(figures)}"


def unwrapped(console: Console) -> Console:
    """Return a console that wraps no lines, unless it is a terminal."""
    return console if console.is_terminal else Console(file=console.file, width=500)


def verdict_lines(run: SavedRun) -> list[Text]:
    """Report the proof's verdict, which models serve the clients, and which clients did not vote."""
    summary, words = run.summary, run.target.words
    verdict = summary.get("verdict")
    first = [line for line in (never_predicted_line(summary), *left_out_lines(summary)) if line]
    sites = [each["text"] for each in summary.get("sites") or ()]
    if not verdict:
        how = Text(how_to_get_one(run.config), style="dim")
        return [*map(Text, sites), how, *map(Text, first)]
    if sites and (summary.get("personal") or {}).get("choice") == FINETUNE:
        sites.append("The sites' figures are those before fine-tuning.")
    lines = [Text(f"{verdict['text']}.", style="bold"), *map(Text, [*first, *sites])]
    if verdict["gain"] is not None and not sites:  # whose sentences have no Brier score
        lines.append(
            Text(f"The verdict compares models with the {words.correction}. {words.scale}", style="dim")
        )
    if run.clients is not None and "served" in run.clients:
        own, everyone = int((run.clients["served"] == "cluster").sum()), len(run.clients)
        text = f"Served: {own} of {everyone} clients their cluster's model, the others one model for all"
        groups = summary.get("num_clusters", 0) > 1
        if own in (0, everyone):
            whose = "its cluster's model" if own and groups else "one model for all"
            text = f"Served: every client {whose}"
        text += _with_layers(summary)
        clustered = (summary.get("serve_cluster") or {}).get("mean_client_accuracy")
        if clustered is not None and own < everyone and groups:
            bare = " without layer" * ("without_layer" in summary)
            text += f"; with every cluster served its own, mean client {words.share}{bare} would be "
            text += number(clustered)
        text = f"{text} (serve={summary.get('serve')})"
        if (run.config.get("choices") or {}).get("strategy") != "auto" and own and groups:
            text += "; strategy=auto trains in groups only where that proves to be better"
        lines.append(Text(text))
    if silent := (summary.get("proof") or {}).get("did_not_vote"):
        named = [f"{each.get('name', each['client'])}: {each['reason']}" for each in silent]
        lines.append(Text(f"did not vote: client {listed(named, 10)}"))
    return [*lines, Text("")]


def _with_layers(summary: Mapping[str, Any]) -> str:
    """Describe the personal layers of the models that serve, and what they change."""
    used = (summary.get("personal") or {}).get("clients") or {}
    layers = [f"{count} {layer}" for layer, count in used.items() if count and layer != NONE]
    if not layers:
        return ""
    with_layer, without = (each.get(_MEAN) for each in (summary, summary.get("without_layer") or {}))
    figures = f": mean client {target_of(summary).words.share} {number(with_layer)}"
    if number(with_layer) != number(without):
        figures += f", without layer {number(without)}"
    return f", with a personal layer where it chose one ({', '.join(layers)}){figures}"


def _table(*columns: Column | str) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, show_edge=False)


def _right(*titles: str) -> list[Column]:
    return [Column(title, justify="right") for title in titles]


def _sites(sites: Sequence[Mapping[str, Any]], words: Words) -> Table:
    short = {"balanced accuracy": "balanced", "Brier score": "Brier"}
    first, *others = (short.get(title, title) for _, title in words.columns)
    table = _table("site", "model", first, "95 % interval", *others)
    table.caption = f"on test rows; {everyone(words)}"
    for each in sites:
        for name, arm in zip((escape(each["name"]), "", ""), SERVED, strict=True):
            given = each.get(arm) or {}
            figures = [number(given.get(key), 2) for key, _ in words.columns]
            ends = span((given.get("accuracy_low"), given.get("accuracy_high")), 2)
            table.add_row(name, arm, figures[0], ends, *figures[1:])
    return table


def among(summary: Mapping[str, Any]) -> str:
    """Name the clusters of which each client chose one for itself, which nothing records; empty if none did.

    Examples
    --------
    >>> among({"choose_among": [1, 2]})
    '1 or 2, as each chose'
    """
    chosen = " or ".join(map(str, summary.get("choose_among") or ()))
    return chosen and f"{chosen}, as each chose"


def _clusters(clients: pd.DataFrame, most: int, words: Words, chosen: str) -> RenderableType:
    grouped, named = bool(clients["group"].notna().all()), "name" in clients
    more = ["known groups (clients)"] * grouped + ["who"] * named
    table = _table(*_right("cluster", "clients", "samples", f"client {words.share}"), *more)
    sizes = clients["cluster"].value_counts().sort_index()
    shown = sizes if len(sizes) <= most else sizes.nlargest(most - 1)
    for cluster, size in shown.items():
        members = clients[clients["cluster"] == cluster]
        samples = members["num_train"].sum()
        cells = [f"{samples:,}" if samples else "–", number(float(members["accuracy"].mean()))]
        if grouped:
            counts = members["group"].value_counts()
            cells.append(few(f"{group} ({count})" for group, count in counts.items()))
        if named:
            cells.append(escape(few(members["name"])))
        table.add_row(chosen or str(cluster), str(size), *cells)
    if len(shown) < len(sizes):
        table.add_row("…", str(len(clients) - int(shown.sum())), *[""] * (2 + grouped + named))
        note = f"the {len(shown)} largest of {len(sizes)} clusters; … are the others together"
        return Group(table, Text(note, style="dim italic"))  # a caption is broken at the table's width
    return table


def _figures(summary: Mapping[str, Any], keys: Collection[str] | None = None) -> Table:
    """Tabulate figures, of some keys only if given.

    Figures are those of what is served, with its personal layer. Below the mean accuracy is that without a
    layer, where it differs, and in the long table that of each layer that some run has tried.
    """
    summaries = {str(summary["strategy"]): summary, **summary.get("compare", {})}
    layers = [(each.get("personal") or {}).get("figures") or {} for each in summaries.values()]
    chosen = [(each.get("personal") or {}).get("choice", NONE) for each in summaries.values()]
    names = [paper_name(name) + MARK * ("groups_guessed" in each) for name, each in summaries.items()]
    table = _table("", *_right(*names))
    if any("intervals" in each for each in summaries.values()):
        table.caption = "in brackets: 95 % intervals of the means"
    for key, title, _, cells in figures_of(list(summaries.values())):
        if keys is None or key in keys:
            table.add_row(title, *cells)
        if key == _MEAN:
            for choice in dict.fromkeys(choice for each in layers for choice in each):
                if choice == NONE or keys is None:
                    values = [
                        number(None if choice == own else each.get(choice, {}).get(key))
                        for each, own in zip(layers, chosen, strict=True)
                    ]
                    title = "without layer" if choice == NONE else f"with personal={choice}"
                    same = all(value in ("–", cell) for value, cell in zip(values, cells, strict=True))
                    if {*values} != {"–"} and not (keys is not None and same):
                        table.add_row(f"  {title}", *values)
    return table


def figure(figures: Mapping[str, Any], key: str) -> Any:
    """Get a value of a summary; a key with dots leads into nested mappings."""
    whole, _, rest = key.partition(".")
    value = figures.get(whole)
    return figure(value, rest) if rest and isinstance(value, Mapping) else None if rest else value
