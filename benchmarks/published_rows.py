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

Figures are by method, followed by its ``aggregator`` if that is not FedAvg and by its ``selection`` if that
is not the method's own, and by key of ``summary.json``, as fractions like ours: a number, a pair of mean and
standard deviation, or null. ``by_setting`` holds a list with one of these per setting. A setting maps keys of
the configuration, with dots, to values; the first setting whose values all agree is used.
"""

from collections.abc import Iterable, Mapping
from math import isclose
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

_FOLDER = Path(__file__).parent / "published_figures"
_PLAIN = (("aggregator", ("fedavg",)), ("selection", ("own", "uniform")))


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
    ``source``, and ``figures`` by method and key; empty if the paper has none for this setting.
    """
    choices = config.get("choices") or {}
    tables = tables_of(str(choices.get("experiment")))
    rows = {method: dict(row) for method, row in tables.get("figures", {}).items()}
    settings = enumerate(tables.get("settings", []))
    place = next((place for place, setting in settings if _holds(setting, config)), None)
    if place is not None:
        for method, row in tables["by_setting"].items():
            rows.setdefault(method, {}).update((key, values[place]) for key, values in row.items())
    wanted = [name for group, plain in _PLAIN if (name := choices.get(group, plain[0])) not in plain]
    figures = {
        method: known
        for (method, *own), row in ((name.split("/"), row) for name, row in rows.items())
        if own == wanted and (known := {key: value for key, value in row.items() if value is not None})
    }
    return {"source": tables["source"], "figures": figures} if figures else {}


def row_of(strategy: str, methods: Iterable[str]) -> str | None:
    """Find the method of a strategy, that of ``fedgwc_released`` being ``fedgwc``; or None."""
    names = [name for name in methods if strategy == name or strategy.startswith(f"{name}_")]
    return max(names, key=len, default=None)


def _holds(setting: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return all(_equal(value, _get(config, key)) for key, value in setting.items())


def _get(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _equal(one: Any, other: Any) -> bool:
    """Compare values as a reader of YAML would: 1 is 1.0."""
    if isinstance(other, list):
        return isinstance(one, list) and len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return isclose(one, other)
    return bool(one == other)
