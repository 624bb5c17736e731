"""Settings of a run: composed by Hydra, checked, and passed on to servers and nodes."""

from fedclust.settings.compose import (
    CONF,
    ConfigError,
    build,
    build_strategy,
    compose,
    from_run_config,
    join_overrides,
    options,
    plain,
    split_overrides,
    to_run_config,
    with_choices,
    with_strategy,
)
from fedclust.settings.nodes import NodeSettings, SiteSettings, node_settings, site_settings
from fedclust.settings.server import RunSettings, run_settings

__all__ = [
    "CONF",
    "ConfigError",
    "NodeSettings",
    "RunSettings",
    "SiteSettings",
    "build",
    "build_strategy",
    "compose",
    "from_run_config",
    "join_overrides",
    "node_settings",
    "options",
    "plain",
    "run_settings",
    "site_settings",
    "split_overrides",
    "to_run_config",
    "with_choices",
    "with_strategy",
]
