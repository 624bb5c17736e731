"""Settings of a run: composed by Hydra, checked, and passed on to servers and nodes."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.settings.allowed import (
        NodeSettings,
        SiteSettings,
        from_run_config,
        node_settings,
        site_settings,
    )
    from fedclust.settings.checks import run_settings
    from fedclust.settings.composition import (
        ConfigError,
        build,
        build_strategy,
        compose,
        join_overrides,
        options,
        plain,
        split_overrides,
        to_run_config,
        with_choices,
        with_strategy,
    )
    from fedclust.settings.run_options import RunSettings
    from fedclust.support.layout import CONF
else:
    __getattr__, __dir__ = lazily(__name__)

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
