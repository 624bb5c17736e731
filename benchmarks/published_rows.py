"""The figures of papers' tables, in ``benchmarks/published_figures/`` by experiment.

A file is laid out as the paper's table is::

    base: shared/clust_psi_pfl     # another file that this one adds to
    source: A paper, Tables 1 and 2; five seeds
    figures:                       # of every setting
      fedavg: {global_accuracy: [0.41, 0.02]}
      fedavg/fedavgm: {global_accuracy: [0.42, 0.01]}
      fedavg/haccs: {global_accuracy: [0.43, 0.01]}
    settings: [{partition.alpha: 0.3}, {partition.alpha: 0.05}]   # the columns of by_setting
    by_setting:
      fmcl: {global_accuracy: [[0.80, 0.01], null], ad: [0.18, 0.20]}
    rows:                                 # the paper's names: what to type for each
      FedAvgM: [strategy=fedavg, aggregator=fedavgm, aggregator.server_momentum=0.7]
    notes: {FedAvgM: what a reader must know of a row}
    best_round: true               # figures are of the round with the best mean over the seeds

Figures are by method, followed by its ``aggregator`` if that is not FedAvg and by its ``selection`` if that
is not the method's own, and by key of ``summary.json``, as fractions like ours: a number, a pair of mean and
standard deviation, or null. ``by_setting`` holds a list with one of these per setting. A setting maps keys of
the configuration, with dots, to values; the first setting whose values all agree is used.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedclust.settings.composition import compose, plain

_FOLDER = Path(__file__).parent / "published_figures"
_GROUPS = (("strategy", ("",)), ("aggregator", ("fedavg",)), ("selection", ("own", "uniform")))
# What a paper's run fixes; not where data lie, nor how fast the same is computed.
_FIXED = (
    "strategy", "aggregator", "selection", "personal", "privacy", "loss", "dataset", "partition", "model",
    "training", "features", "encoder", "rounds", "participation", "update_norm_cap", "update_pull_cap",
    "row_cap", "drift_every",
)  # fmt: skip
_FOLLOWS = (".path", ".mode", ".schedule_rounds")
# What a dataset or a network gives to others.
_REPEATED = (
    "strategy.network.", "strategy.input_shape", "strategy.vocabulary_size", "encoder.input_shape",
    "features.input_shape", "features.vocabulary_size",
)  # fmt: skip


def tables_of(experiment: str) -> dict[str, Any]:
    """Read the tables of an experiment's paper; empty if there are none."""
    tables: Any = OmegaConf.to_container(_merged(experiment), resolve=True)
    return dict(tables)


def _merged(name: str) -> Any:
    path = _FOLDER / f"{name}.yaml"
    own = OmegaConf.load(path) if path.is_file() else OmegaConf.create({})
    return OmegaConf.merge(_merged(own.base), own) if "base" in own else own


def published_for(config: Mapping[str, Any]) -> dict[str, Any]:
    """Select the published figures for the setting of a configuration.

    Parameters
    ----------
    config
        The whole configuration, as plain dictionaries and lists.

    Returns
    -------
    ``source``; ``figures`` by method and key; and ``changes``, what the configuration has otherwise than the
    paper's run of its strategy, by key: its value and the paper's. Empty if the paper has none for this
    setting.
    """
    figures, setting, tables = figures_for(config)
    if not figures:
        return {}
    flat, choices = _flat(config), config.get("choices") or {}
    theirs = _of_paper(choices, tables.get("rows", {}).values(), setting)
    named = {group: [choices.get(group), theirs.get(f"choices.{group}")] for group in ("dataset", "model")}
    others = {group: pair for group, pair in named.items() if pair[0] != pair[1]}
    follows = (*(f"{group}." for group in others), *(_REPEATED if others else ()))  # a name says it all
    changes = others | {
        key: [value, theirs.get(key)]
        for key, value in flat.items()
        if key.partition(".")[0] in _FIXED
        and not key.endswith(_FOLLOWS)
        and not key.startswith(follows)
        and theirs.get(key) != value
    }
    return {"source": tables["source"], "figures": figures, "changes": changes}


def figures_for(config: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any], dict[str, Any]]:
    """Return the published figures by method and key, the setting that they are of, and all tables."""
    flat, choices = _flat(config), config.get("choices") or {}
    tables = tables_of(str(choices.get("experiment")))
    rows = {method: dict(row) for method, row in tables.get("figures", {}).items()}
    settings = tables.get("settings", [])
    holds = [all(flat.get(key) == value for key, value in setting.items()) for setting in settings]
    setting: Mapping[str, Any] = {}
    if any(holds):
        setting = settings[place := holds.index(True)]
        for method, row in tables["by_setting"].items():
            rows.setdefault(method, {}).update((key, values[place]) for key, values in row.items())
    wanted = [name for group, usual in _GROUPS[1:] if (name := choices.get(group, usual[0])) not in usual]
    figures = {
        method: known
        for (method, *own), row in ((name.split("/"), row) for name, row in rows.items())
        if own == wanted and (known := {key: value for key, value in row.items() if value is not None})
    }
    return figures, setting, tables


def _of_paper(
    choices: Mapping[str, str], rows: Iterable[Sequence[str]], setting: Mapping[str, Any]
) -> dict[str, Any]:
    """Compose the paper's run of a strategy in a setting: its row of the table, or its choices alone."""
    chosen = [(group, choices[group], usual) for group, usual in _GROUPS if group in choices]
    named = {f"{group}={name}" for group, name, usual in chosen if name not in usual}
    own = [row for row in rows if {each for each in row if "." not in each.partition("=")[0]} == named]
    row = own[0] if own else [f"{group}={name}" for group, name, _ in chosen]
    column = [f"{key.removeprefix('choices.')}={json.dumps(value)}" for key, value in setting.items()]
    experiment = str(choices["experiment"])
    return _flat(plain(compose([f"experiment={experiment}", *lookup(experiment), *row, *column])))


def lookup(experiment: str, given: Iterable[str] = ()) -> tuple[str, ...]:
    """List what a configuration needs beside what is given, to be composed where nothing is encoded."""
    encoder = any(each.startswith(("encoder=", "encoder.path=")) for each in given)
    return ("encoder.path=.",) if experiment.startswith("fmcl") and not encoder else ()


def row_of(strategy: str, methods: Iterable[str]) -> str | None:
    """Find the method of a strategy, that of ``fedgwc_released`` being ``fedgwc``; or None."""
    names = [name for name in methods if strategy == name or strategy.startswith(f"{name}_")]
    return max(names, key=len, default=None)


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """List values by their keys with dots."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return flat
