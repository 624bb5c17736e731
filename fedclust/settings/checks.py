"""Check a configuration as far as possible without its data and its nodes."""

import difflib
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedclust.settings.compose import ConfigError, build, options, plain, with_strategy
from fedclust.settings.declared import declared_types
from fedclust.settings.option_types import hints_of, wrong_type
from fedclust.settings.own_data import is_own
from fedclust.settings.ranges import out_of_range
from fedclust.settings.server import run_settings

__all__ = ["check", "check_built", "check_num_clients"]


_CLIENT_DP = "fedclust.privacy.ClientDP"


def check(config: DictConfig) -> None:
    """Check names, types and ranges; builds nothing.

    Raises
    ------
    ConfigError
        If a setting has the wrong type or is outside its range, or a strategy to compare with does not
        exist.
    """
    settings = run_settings(config)
    # What needs an import comes last: a wrong value should not wait for PyTorch.
    if (
        problem := wrong_type(config, [declared_types])
        or out_of_range(config)
        or wrong_type(config, [hints_of])
    ):
        raise ConfigError(problem)
    later = is_own(config) or settings.min_clients is not None
    if later and str(config.get("privacy", {}).get("_target_")) == _CLIENT_DP:
        raise ConfigError(
            "privacy=client_dp needs all clients from the start and their encoding without asking them: it "
            "must not be used with partition=own or min_clients"
        )
    if str(config.get("privacy", {}).get("_target_")) == _CLIENT_DP:
        if settings.holdout_clients:
            raise ConfigError(
                f"holdout_clients must be 0 with privacy=client_dp, whose noise is not for what newcomers "
                f"measure, got {settings.holdout_clients}"
            )
        if OmegaConf.select(config, "training.loss.class_weights") == "balanced":
            raise ConfigError(
                "training.loss.class_weights must be numbers with privacy=client_dp, got balanced: it weighs "
                "classes by all clients' label counts"
            )
        if settings.save_predictions:
            raise ConfigError(
                "save_predictions must be false with privacy=client_dp: they are of single rows"
            )
    if later and settings.holdout_clients:
        raise ConfigError("holdout_clients must be 0 where clients may join later, those are newcomers")
    existing = options("strategy", config.get("searchpath") or ())
    for name in settings.compare:
        if name not in existing:
            near = difflib.get_close_matches(name, existing, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ConfigError(f"compare must name strategies, of {', '.join(existing)}, got {name!r}{hint}")


def check_built(config: DictConfig) -> None:
    """Build what a server builds before round 1, to find arguments that the constructors refuse.

    For a run that is sent to another machine, where an error would come minutes later. The dataset and the
    encoder are left out: the files that they read are on that machine.

    Raises
    ------
    ConfigError
        If a constructor refuses its arguments, or a value that must be given is not.
    """
    own = is_own(config)
    if not own:
        plain(config)  # raises for missing values
    settings = run_settings(config)
    build(config.aggregator)
    if config.get("selection"):
        build(config.selection)
    build(config.training)
    if not own:  # else its sizes are not known before the sites have agreed
        build(config.model)
    if config.get("personal"):
        build(config.personal)
    chosen = str(config.choices.strategy)
    for name in (chosen, *settings.compare):
        node = config.strategy if name == chosen else with_strategy(config, name).strategy
        if not (own and _refers_to_data(node)):
            build(node, participation=settings.participation, seed=settings.seed)


def _refers_to_data(node: DictConfig) -> bool:
    return "${dataset." in str(OmegaConf.to_container(node, resolve=False))


def check_num_clients(strategies: Mapping[str, Any], num_clients: int) -> None:
    """Check that no strategy is set to find more clusters than there are clients.

    Parameters
    ----------
    strategies
        The ``strategy`` node of the configuration, by name.
    num_clients
        Number of clients.

    Raises
    ------
    ConfigError
        If ``strategy.parameters.num_clusters`` is larger than that.
    """
    for name, node in strategies.items():
        asked = OmegaConf.select(node, "parameters.num_clusters")
        if isinstance(asked, int) and asked > num_clients:
            raise ConfigError(
                f"strategy.parameters.num_clusters must be <= {num_clients}, the number of clients, "
                f"got {asked} for {name}"
            )
