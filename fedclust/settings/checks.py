"""Check a configuration as far as possible without its data and its nodes."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

import fedclust.settings.choices as choices
import fedclust.settings.proof as proof
from fedclust.settings.composition import (
    CONF,
    ConfigError,
    build,
    build_strategy,
    check_given_once,
    is_own,
    options,
    plain,
    with_strategy,
)
from fedclust.settings.run_options import RunOptions, RunSettings

_CLIENT_DP = "fedclust.privacy.ClientDP"
_OURS = frozenset(path.stem for path in (CONF / "strategy").glob("*.yaml"))  # tested not to


def run_settings(config: DictConfig) -> RunSettings:
    """Read the server's settings.

    Raises
    ------
    ConfigError
        If a value has the wrong type or is outside its range.
    """
    compare = config.compare
    names = [compare] if isinstance(compare, str) else list(compare or ())
    values = {field.name: config[field.name] for field in fields(RunSettings) if field.name in config}
    values |= {"compare": [*map(str, names)], "hosts": config.hosts and str(config.hosts)}
    try:
        if problem := proof.problem(config) or choices.wrong_type("", values, RunSettings, null=False):
            raise ConfigError(problem)
        for field in fields(RunSettings):
            if field.type is float and field.name in values:
                values[field.name] = float(values[field.name])
        return RunSettings(**{**values, "compare": tuple(values["compare"])})
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check(config: DictConfig) -> None:
    """Check names, types and ranges; builds nothing.

    Raises
    ------
    ConfigError
        If a setting has the wrong type or is outside its range, or a strategy to compare with does not
        exist.
    """
    settings = run_settings(config)
    check_given_once(config.strategy)
    if problem := choices.wrong_option(config):
        raise ConfigError(problem)
    later = is_own(config) or settings.min_clients is not None
    private = OmegaConf.select(config, "privacy._target_") == _CLIENT_DP
    refused = (
        (
            private and later,
            "privacy=client_dp needs all clients from the start and their encoding without asking them: it "
            "must not be used with partition=own or min_clients",
        ),
        (
            private and settings.holdout_clients,
            "holdout_clients must be 0 with privacy=client_dp, whose noise is not for what newcomers "
            f"measure, got {settings.holdout_clients}",
        ),
        (
            private and OmegaConf.select(config, "training.loss.class_weights") == "balanced",
            "training.loss.class_weights must be numbers with privacy=client_dp, got balanced: it weighs "
            "classes by all clients' label counts",
        ),
        (
            private and settings.save_predictions,
            "save_predictions must be false with privacy=client_dp: they are of single rows",
        ),
        (
            later and settings.holdout_clients,
            "holdout_clients must be 0 where clients may join later, those are newcomers",
        ),
    )
    for wrong, message in refused:
        if wrong:
            raise ConfigError(message)
    existing = options("strategy", config.get("searchpath") or ())
    for name in settings.compare:
        if name not in existing:
            near = difflib.get_close_matches(name, existing, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ConfigError(f"compare must name strategies, of {', '.join(existing)}, got {name!r}{hint}")
        if name not in _OURS:
            check_given_once(with_strategy(config, name).strategy)


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
    # Of sites with their own data, sizes are not known before they have agreed.
    for name in ("aggregator", "selection", "training", "personal", *(() if own else ("model",))):
        if config.get(name):
            build(config[name])
    chosen = str(config.choices.strategy)
    for name in (chosen, *settings.compare):
        node = config.strategy if name == chosen else with_strategy(config, name).strategy
        if not (own and "${dataset." in str(OmegaConf.to_container(node, resolve=False))):
            build_strategy(node, RunOptions(participation=settings.participation, seed=settings.seed))


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
