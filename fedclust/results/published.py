"""Which of a paper's figures belong beside a run."""

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

__all__ = ["published_for"]

_PLAIN = "fedavg"  # the aggregator of a method that is named alone


def published_for(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Select the published figures of the setting that a configuration has.

    The node ``published`` of an experiment holds a table of its paper, laid out as there::

        published:
          source: Clust-PSI-PFL, Tables III and IV; five seeds
          settings: [{partition.alpha: 0.3}, {partition.alpha: 0.05}]   # the table's columns
          figures:
            clust_psi_pfl: {global_accuracy: [[0.80, 0.01], [0.83, 0.01]], ad: [0.18, 0.20]}
            fedavg/fedavgm: {global_accuracy: [[0.80, 0.01], null]}

    A setting maps keys of the configuration, with dots, to the values it has; the first one whose keys all
    agree counts. Without ``settings``, figures are those of every run. Figures are by method, which may be
    followed by the ``aggregator`` it had where that is not FedAvg, and by key of ``summary.json``, in
    fractions where ours are: a number, a pair of mean and standard deviation, or null; with ``settings`` a
    list with one of these per setting.

    Parameters
    ----------
    config
        The whole configuration, as plain dictionaries and lists.

    Returns
    -------
    ``source`` and the ``figures`` by method and key, as :func:`~fedclust.results.summarise` takes them; None
    where the paper has no figures for this setting.

    Raises
    ------
    ValueError
        If ``published`` is not laid out as above.
    """
    published = config.get("published")
    if published is None:
        return None
    settings = published.get("settings")
    places = range(len(settings)) if settings is not None else ()
    place = next((place for place in places if _holds(settings[place], config)), None)
    if settings is not None:
        _check_lists(published.get("figures", {}), len(settings))
        if place is None:
            return None
    aggregator = str((config.get("choices") or {}).get("aggregator", _PLAIN))
    figures: dict[str, dict[str, Any]] = {}
    for name, row in published.get("figures", {}).items():
        method, _, own = str(name).partition("/")
        chosen = {key: value if place is None else value[place] for key, value in row.items()}
        chosen = {key: value for key, value in chosen.items() if value is not None}
        if (own or _PLAIN) == aggregator and chosen:
            figures[method] = chosen
    return {"source": published.get("source"), "figures": figures} if figures else None


def _holds(setting: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return all(_equal(value, _get(config, key)) for key, value in setting.items())


def _get(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _equal(one: Any, other: Any) -> bool:
    """Compare values as a reader of YAML would: 1 is 1.0."""
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(_equal, one, other))
    if _is_number(one) and _is_number(other):
        return isclose(one, other)
    return type(one) is type(other) and one == other


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_lists(figures: Mapping[str, Mapping[str, Any]], length: int) -> None:
    for name, row in figures.items():
        for key, values in row.items():
            if not isinstance(values, Sequence) or len(values) != length:
                raise ValueError(
                    f"published.figures.{name}.{key} must have one entry for each of the {length} settings, "
                    f"got {values}"
                )
