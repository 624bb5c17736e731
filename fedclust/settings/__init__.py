"""Settings of a run: composed by Hydra, checked, and passed on to servers and nodes."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.settings.allowed import (
        NodeSettings as NodeSettings,
        SiteSettings as SiteSettings,
        from_run_config as from_run_config,
        node_settings as node_settings,
        site_settings as site_settings,
    )
    from fedclust.settings.checks import run_settings as run_settings
    from fedclust.settings.composition import (
        ConfigError as ConfigError,
        build as build,
        build_strategy as build_strategy,
        compose as compose,
        join_overrides as join_overrides,
        options as options,
        plain as plain,
        split_overrides as split_overrides,
        to_run_config as to_run_config,
        with_choices as with_choices,
        with_strategy as with_strategy,
    )
    from fedclust.settings.run_options import RunSettings as RunSettings
    from fedclust.support.layout import CONF as CONF
else:
    NAMES = {
        "fedclust.settings.allowed": "NodeSettings SiteSettings from_run_config node_settings site_settings",
        "fedclust.settings.checks": "run_settings",
        "fedclust.settings.composition": (
            "ConfigError build build_strategy compose join_overrides "
            "options plain split_overrides to_run_config with_choices "
            "with_strategy"
        ),
        "fedclust.settings.run_options": "RunSettings",
        "fedclust.support.layout": "CONF",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
