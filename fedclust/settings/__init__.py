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
