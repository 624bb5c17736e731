"""Check whether a run has the setting of its experiment, so that the paper's figures apply to it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedclust.results import published_for
from fedclust.settings.composition import compose, plain, with_strategy
from fedclust.settings.published import named_choices, row_of

__all__ = ["changed_settings", "published_beside"]

_OF_EVERY_METHOD = ("rounds", "participation", "partition", "model", "training", "dataset", "encoder")
# Only about speed, or about where files are and how they are read.
_FREE = {
    "partition.file", "partition.seed", "model.pretrained", "training.mode",
    "training.chunk", "training.compile", "training.precision", "training.evaluation_batch_size",
    "dataset.path", "dataset.hub",
    "dataset.hub_options", "dataset.image", "dataset.image_path", "dataset.label",
    "dataset.text", "strategy.parameters.pairs_per_batch",
}  # fmt: skip
_TABLES = {"strategy": "strategies", "aggregator": "aggregators", "selection": "selections"}
_UNSET = "unset"  # for a key that the experiment does not have


def published_beside(
    configs: Mapping[str, DictConfig],
) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """Select the published figures that apply to a run and to the strategies it is compared with.

    Parameters
    ----------
    configs
        The configuration of each strategy by name, the run's own first.

    Returns
    -------
    ``source`` and ``figures``, as :func:`~fedclust.results.published_for` returns them; None if no figure
    applies. And, by strategy, the :func:`changed_settings` because of which its figures were left out. If
    only some strategies have such changes, figures are by a strategy's whole name, not by its method's.

    Raises
    ------
    ConfigError
        If the experiment does not compose.
    ValueError
        If the experiment's tables of figures do not fit together.
    """
    found = published_for(plain(next(iter(configs.values()))))
    if found is None:
        return None, {}
    rows = {name: row for name in configs if (row := row_of(name, found["figures"])) is not None}
    changed = {name: changes for name in rows if (changes := changed_settings(configs[name]))}
    if not changed:
        return found, {}
    kept = {name: found["figures"][row] for name, row in rows.items() if name not in changed}
    others = {method: row for method, row in found["figures"].items() if method not in rows.values()}
    return ({**found, "figures": kept | others} if kept else None), changed


def changed_settings(config: DictConfig) -> dict[str, Any]:
    """List the settings in which a configuration differs from its experiment.

    Keys that ``published.settings`` names may have any value, as a table has a column for some of them; those
    of the strategy only if its figures are in such columns. Another method, aggregator or selection is not a
    difference; their options are, unless they have the values of ``published.strategies``,
    ``published.aggregators`` or ``published.selections`` (null: the paper does not say) or, for those that
    are not in there, of the experiment or of ``conf/``.

    Parameters
    ----------
    config
        The composed configuration.

    Returns
    -------
    Key to the experiment's value, for differences in rounds, participation, partition, model, training,
    dataset, encoder, strategy, aggregator and selection; empty if no experiment is chosen. An encoder or
    model in a local folder is assumed to be the paper's.

    Raises
    ------
    ConfigError
        If the experiment does not compose.
    """
    experiment = config.choices.get("experiment")
    if experiment is None:
        return {}
    searchpath, aggregator = config.get("searchpath") or (), str(config.choices.aggregator)
    selection = str(config.choices.get("selection", "own"))
    chosen = [f"experiment={experiment}", f"aggregator={aggregator}", f"selection={selection}"]
    original = compose(chosen, searchpath=searchpath)
    settings = OmegaConf.select(original, "published.settings") or []
    free = _FREE.union(*(setting.keys() for setting in settings))
    partitions = {original.choices.partition, *(setting.get("choices.partition") for setting in settings)}
    changed = {}
    if config.choices.get("dataset") != original.choices.dataset:
        changed["choices.dataset"] = original.choices.dataset
    if config.choices.get("encoder") != original.choices.encoder:
        changed["choices.encoder"] = original.choices.encoder
    if config.choices.get("partition") not in partitions:
        changed["choices.partition"] = original.choices.partition
    elif config.choices.partition != original.choices.partition:
        original = compose([*chosen, f"partition={config.choices.partition}"], searchpath=searchpath)
    replaced = tuple(key.removeprefix("choices.") + "." for key in changed)
    ours, theirs = (_opened(_values(each, _OF_EVERY_METHOD), free) for each in (config, original))
    changed |= _changed(ours, theirs, free, replaced)
    if not _in_columns(config):
        free = {key for key in free if not key.startswith("strategy.")} | _FREE
    strategy = str(config.choices.strategy)
    method = row_of(strategy, OmegaConf.select(original, "published.strategies") or {})
    for node, choice, like, place in (
        ("strategy", method or "", _like(original, config), "strategy.parameters"),
        ("aggregator", aggregator, original, "aggregator"),
        ("selection", selection, original, "selection"),
    ):
        said = _said(original, _TABLES[node], choice, place)
        unsaid = {key for key, value in said.items() if value is None}
        changed |= _changed(_values(config, [node]), _values(like, [node]) | said, free | unsaid)
    return changed


def _changed(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], free: Iterable[str], replaced: tuple[str, ...] = ()
) -> dict[str, Any]:
    changed = {}
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        value, our = theirs.get(key, _UNSET), ours.get(key, _UNSET)
        # Copied from another key, or chosen by the user.
        follows = any(isinstance(each, str) and each.startswith(("${", "???")) for each in (value, our))
        local = key == "encoder.path" and Path(str(our)).exists()
        if not (key in free or follows or local or key.startswith(replaced)) and our != value:
            changed[key] = value
    return changed


def _opened(values: Mapping[str, Any], free: Iterable[str]) -> dict[str, Any]:
    """Compare a node inside a node key by key if one of its keys is free, as ``partition.base.target``."""
    opened: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and any(name.startswith(f"{key}.") for name in free):
            opened |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            opened[key] = value
    return opened


def _like(original: DictConfig, config: DictConfig) -> DictConfig:
    """Get the experiment with the method of `config`: as the experiment sets it, or else at its defaults."""
    if original.strategy._target_ == config.strategy._target_:
        return original
    return with_strategy(original, str(config.choices.strategy))


def _said(original: DictConfig, table: str, choice: str, place: str) -> dict[str, Any]:
    """List the options that the paper gives for a choice, by key of the configuration."""
    options = (OmegaConf.select(original, f"published.{table}") or {}).get(choice) or {}
    return {f"{place}.{key}": value for key, value in options.items()}


def _in_columns(config: DictConfig) -> bool:
    """Whether the figures of the method, aggregator and selection are in columns, one per setting."""
    table = OmegaConf.select(config, "published.by_setting") or {}
    row = row_of(str(config.choices.strategy), [name.partition("/")[0] for name in table])
    return row is not None and "/".join((row, *named_choices(config.choices))) in table


def _values(config: DictConfig, names: Iterable[str]) -> dict[str, Any]:
    """List the values of some nodes by key, interpolations not resolved.

    A node inside a node counts as one value, except the strategy's ``parameters``.
    """
    values: dict[str, Any] = {}
    whole = OmegaConf.to_container(config, resolve=False)
    for name in names:
        node = whole[name]  # type: ignore[index, call-overload]
        inner = node.pop("parameters", None) if name == "strategy" and isinstance(node, dict) else None
        if isinstance(inner, dict):
            values |= {f"strategy.parameters.{key}": value for key, value in inner.items()}
        if isinstance(node, dict):
            values |= {f"{name}.{key}": value for key, value in node.items()}
        else:
            values[name] = node
    return values
