"""Compose each combination of choices once: Hydra takes 0.1 s for what tests then set a few values of."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hydra._internal import config_loader_impl as loader, defaults_list as tree
from hydra._internal.defaults_list import Overrides
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins

from fedclust.support.layout import CONF

_MOST = 200  # kept at a time

active = True
"""Whether compositions are kept; tests of composing set it to False."""


@contextmanager
def each_choice_once() -> Iterator[None]:
    """Keep what Hydra makes of choices in ``conf/``, before it sets the values; other folders may change."""
    ours = loader.ConfigLoaderImpl
    listing, composing = loader.create_defaults_list, ours._compose_config_from_defaults_list
    lists: dict[Any, Any] = {}
    composed: dict[int, Any] = {}  # by the id of their list, which `lists` keeps alive

    def create(repo: Any, config_name: Any, overrides_list: Any, **options: Any) -> Any:
        places = [(each.scheme(), each.path) for each in repo.get_sources()]
        foreign = [path for scheme, path in places if scheme == "file" and path != str(CONF)]
        if not active or foreign:
            return listing(repo=repo, config_name=config_name, overrides_list=overrides_list, **options)
        given = Overrides(repo=repo, overrides_list=overrides_list).config_overrides
        values = {id(each) for each in given}
        chosen = tuple(each.input_line for each in overrides_list if id(each) not in values)
        key = (config_name, chosen, *places, *options.items())
        if key not in lists:
            lists[key] = listing(repo=repo, config_name=config_name, overrides_list=overrides_list, **options)
            for oldest in [*lists][:-_MOST]:
                composed.pop(id(lists.pop(oldest).defaults), None)
            composed[id(lists[key].defaults)] = None
        return replace(lists[key], config_overrides=given)

    def compose(self: Any, defaults: Any, repo: Any) -> Any:
        if id(defaults) not in composed:
            return composing(self, defaults=defaults, repo=repo)
        if composed[id(defaults)] is None:
            composed[id(defaults)] = pickle.dumps(composing(self, defaults=defaults, repo=repo))
        return pickle.loads(composed[id(defaults)])  # a third of deepcopy's time

    mapping = tree._create_interpolation_map

    def interpolations(overrides: Any, defaults: Any, self_added: bool) -> Any:
        if active and not any(each.is_interpolation() for each in defaults if not each.is_self()):
            return None  # a quarter of the time of the list, for what nothing refers to
        return mapping(overrides, defaults, self_added)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "create_defaults_list", create)
        patch.setattr(tree, "_create_interpolation_map", interpolations)
        patch.setattr(ours, "_compose_config_from_defaults_list", compose)
        Plugins.instance()  # registers the sources
        for source in map(SourcesRegistry.instance().resolve, ("file", "pkg")):
            patch.setattr(source, "load_config", _read_once(source.load_config))
        yield


def _read_once(reading: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Read each file of ``conf/`` and of Hydra's own folder once."""
    kept: dict[tuple[str, ...], bytes] = {}

    def read(self: Any, config_path: str) -> Any:
        if not active or self.path not in (str(CONF), "hydra.conf"):
            return reading(self, config_path)
        key = (self.provider, self.path, config_path)
        if key not in kept:
            kept[key] = pickle.dumps(reading(self, config_path))
        return pickle.loads(kept[key])

    return read
