"""The settings that a node reads of a run's configuration."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedclust.settings import allowed, own_data
from fedclust.settings.compose import COMPOSED, OVERRIDES, compose, from_run_config, plain, split_overrides

__all__ = ["NodeSettings", "SiteSettings", "known_of", "node_settings", "site_settings"]

_HELD_OUT = "holdout_clients"
_NODE_KEYS = ("dataset", "partition", "model", "training", "metrics", "encoder", "seed", "device", _HELD_OUT)


_READ = (*_NODE_KEYS, "loss", "rounds")  # with what these refer to


@dataclass(frozen=True)
class NodeSettings:
    """The settings from which a Flower node builds its data, model and trainer; hashable.

    Attributes
    ----------
    text
        The nodes of the configuration that it reads, as JSON.
    """

    text: str

    def __getitem__(self, key: str) -> Any:
        """Get one of the configuration nodes that Flower nodes use."""
        return json.loads(self.text)[key]


@dataclass(frozen=True)
class SiteSettings(NodeSettings):
    """What a site with its own data reads before all have agreed: ``dataset``, ``partition`` and ``seed``."""


def node_settings(
    run_config: Mapping[str, Any],
    allow: str = allowed.EVERYTHING,
    agreed: Mapping[str, Any] | None = None,
) -> NodeSettings:
    """Get a node's settings from ``context.run_config``; parsed once per process.

    Parameters
    ----------
    run_config
        What came with the run.
    allow
        What the node may build besides what is listed, see :mod:`fedclust.settings.allowed`.
    agreed
        What the sites with their own data have agreed on, by key of the ``dataset`` node.

    Raises
    ------
    NotAllowed
        If the run asks for anything else. Nothing of it has been imported or resolved by then.
    """
    return _node_settings(_sent(run_config), allow, json.dumps(dict(agreed or {}), sort_keys=True))


def site_settings(run_config: Mapping[str, Any], allow: str = allowed.EVERYTHING) -> SiteSettings | None:
    """Get the settings of a site with its own data, as far as they are known before all agree.

    Parameters
    ----------
    run_config, allow
        As for :func:`node_settings`.

    Returns
    -------
    The settings; None if the run is not one of ``partition=own``.

    Raises
    ------
    NotAllowed
        As for :func:`node_settings`.
    """
    return _site_settings(_sent(run_config), allow)


_Sent = tuple[tuple[str, Any], ...]


def _sent(run_config: Mapping[str, Any]) -> _Sent:
    return tuple((key, run_config[key]) for key in (COMPOSED, OVERRIDES) if key in run_config)


@lru_cache(maxsize=16)
def _node_settings(run_config: _Sent, allow: str, agreed: str) -> NodeSettings:
    config = _composed(run_config, allow)
    if values := json.loads(agreed):
        config = own_data.fill(config, values)
    chosen = {key: plain(config.get(key, 0) if key == _HELD_OUT else config[key]) for key in _NODE_KEYS}
    return NodeSettings(json.dumps(chosen, sort_keys=True))


@lru_cache(maxsize=16)
def _site_settings(run_config: _Sent, allow: str) -> SiteSettings | None:
    config = _composed(run_config, allow)
    if not own_data.is_own(config):
        return None
    return SiteSettings(json.dumps(known_of(config), sort_keys=True))


def known_of(config: DictConfig) -> dict[str, Any]:
    """Return ``dataset``, ``partition`` and ``seed`` as plain Python, without what is not known yet.

    Raises
    ------
    ConfigError
        If another mandatory value is missing.
    """
    dataset: Any = OmegaConf.to_container(config.dataset, resolve=True, throw_on_missing=False)
    left = {key: value for key, value in dataset.items() if key not in own_data.OPEN}
    given = {key: dataset[key] for key in own_data.OPEN if dataset.get(key) not in (None, own_data.MISSING)}
    plain(OmegaConf.create({"dataset": left}))  # raises for missing values
    return {"dataset": left | given, "partition": plain(config.partition), "seed": config.seed}


@lru_cache(maxsize=16)
def _composed(run_config: _Sent, allow: str) -> DictConfig:
    sent = dict(run_config)
    if allow.strip() == allowed.EVERYTHING:
        return from_run_config(sent)
    # As it was sent: resolving a text may already look something up.
    if COMPOSED in sent:
        config = OmegaConf.create(json.loads(str(sent[COMPOSED])))
    else:
        overrides = split_overrides(str(sent.get(OVERRIDES, "")))
        allowed.check_overrides(overrides, allow)
        config = compose(overrides)
    unresolved: Any = OmegaConf.to_container(config, resolve=False)
    allowed.check_allowed({key: unresolved.get(key) for key in _READ}, allow)
    return config
