"""Take the defaults of a configuration node from the dataclass that the node builds.

A default is written once, in the dataclass. A YAML file lists the dataclass among its defaults and names only
what it changes::

    defaults:
      - /defaults_of/fedclust.clustering.fmcl.Parameters@parameters
      - _self_
    parameters:
      max_clusters: 4

This works for any importable dataclass, in ``conf/`` and in a user's own folders. Hydra sees all of its
fields: ``--cfg job`` shows them, overrides may name them, and a wrong key is refused.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.utils import get_object
from omegaconf import OmegaConf

from fedclust.settings.declared import REQUIRED, declared_fields

__all__ = ["GROUP", "defaults_of", "register"]

GROUP = "defaults_of"
_REQUIRED = "???"  # OmegaConf's sign for a mandatory value


def defaults_of(target: str) -> dict[str, Any]:
    """List the fields of a dataclass with their defaults, as a configuration node has them.

    Parameters
    ----------
    target
        Its dotted path, such as ``"fedclust.clustering.fmcl.Parameters"``.

    Returns
    -------
    ``_target_`` and every argument of the constructor; ``???`` for a mandatory one. Arguments whose
    default is not a number, text, list or mapping, such as a function, are left out.

    Raises
    ------
    ImportError
        If it does not exist.
    TypeError
        If it is not a dataclass.
    """
    declared = declared_fields(target)
    if declared is not None:
        read = {name: _REQUIRED if value is REQUIRED else value for name, value in declared.items()}
        return {"_target_": target} | {
            name: _listed(value) for name, value in read.items() if _is_plain(value)
        }
    found = get_object(target)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise TypeError(f"{GROUP} must name a dataclass, got {target}")
    node: dict[str, Any] = {"_target_": target}
    for field in dataclasses.fields(found):
        value: Any = _REQUIRED
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            value = field.default
        if field.init and _is_plain(value):
            node[field.name] = _listed(value)
    return node


def register() -> None:
    """Add the group ``defaults_of`` to Hydra's search path, once."""
    plugins = Plugins.instance()
    plugins.register(_Dataclasses)
    plugins.register(_AddDataclasses)


class _Dataclasses(ConfigSource):
    """Configurations ``defaults_of/<dotted path>``."""

    @staticmethod
    def scheme() -> str:
        return "dataclass"

    def load_config(self, config_path: str) -> ConfigResult:
        target = _target(config_path)
        try:
            node = defaults_of(target or config_path)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigLoadError(f"{config_path}: {error}") from error
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://",
            config=OmegaConf.create(node),
            header={"package": None},
        )

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") == GROUP

    def is_config(self, config_path: str) -> bool:
        return _target(config_path) is not None  # loading raises if it cannot be imported

    def list(
        self,
        config_path: str,  # noqa: ARG002
        results_filter: ObjectType | None,  # noqa: ARG002
    ) -> list[str]:
        return []  # too many to list: every importable dataclass


class _AddDataclasses(SearchPathPlugin):
    """Adds them to every search path of Hydra."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("fedclust", f"{_Dataclasses.scheme()}://")


def _target(config_path: str) -> str | None:
    group, _, name = config_path.strip("/").partition("/")
    name = name.removesuffix(".yaml")
    return name if group == GROUP and "." in name and "/" not in name else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _listed(each) for key, each in value.items()}
    return value
