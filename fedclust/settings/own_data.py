"""Settings that are not known before the sites of ``partition=own`` have agreed on them."""

import json
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

__all__ = ["MISSING", "OPEN", "TARGET", "differing", "fill", "is_own", "leave_open", "still_open"]

TARGET = "fedclust.data.sites.Own"
"""The ``_target_`` of a ``partition`` node of sites with their own data."""

OPEN = ("num_classes", "input_shape", "category_sizes")
"""Keys of the ``dataset`` node that the agreement gives."""

MISSING = "???"
_UNKNOWN = (None, MISSING, "${classes_in_data:}")


def is_own(config: Mapping[str, Any] | DictConfig) -> bool:
    """Say whether every site holds its own data."""
    partition = config.get("partition")
    return isinstance(partition, Mapping | DictConfig) and partition.get("_target_") == TARGET


def leave_open(config: DictConfig) -> None:
    """Mark what is counted in pooled data as not known yet; changes `config` if its sites hold their own."""
    if not is_own(config) or "dataset" not in config:
        return
    given: Any = OmegaConf.to_container(config.dataset, resolve=False)
    for key in OPEN:
        if key in given and given[key] in _UNKNOWN:
            config.dataset[key] = MISSING


def still_open(config: DictConfig) -> str:
    """Write a configuration as JSON with what is not known yet, and what refers to it, as it is."""
    text = json.dumps(OmegaConf.to_container(config, resolve=False))
    return text.replace("${", "$\\u007b")  # what passes it on must not resolve it


def differing(config: DictConfig, agreed: Mapping[str, Any]) -> str | None:
    """Explain in one line what the configuration gives that is not so; None if nothing is."""
    given: Any = OmegaConf.to_container(config.dataset, resolve=False)
    for key, value in agreed.items():
        said = given.get(key)
        if said not in _UNKNOWN and said != value:
            return f"dataset.{key} must be {value}, as the sites' data has it, got {said}; or leave it out"
    return None


def fill(config: DictConfig, agreed: Mapping[str, Any]) -> DictConfig:
    """Copy a configuration with the values that the sites have agreed on.

    Parameters
    ----------
    config
        The composed configuration.
    agreed
        By key of the ``dataset`` node.
    """
    filled = OmegaConf.merge(config, {})
    assert isinstance(filled, DictConfig)
    for key, value in agreed.items():
        OmegaConf.update(filled, f"dataset.{key}", value, merge=False, force_add=True)
    return filled
