"""Plan a run: build all that its configuration names, so that a wrong option is reported at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.clientapp import ClientApp
from hydra.errors import InstantiationException
from hydra.utils import get_object
from omegaconf import DictConfig
from torch import nn

from fedclust import models
from fedclust.aggregation.flower import check_aggregator
from fedclust.data.dataset import num_held_out
from fedclust.federation import Descriptions
from fedclust.layers.pooling import Pooling
from fedclust.personal.layers import Personal, check_validation
from fedclust.privacy import NoPrivacy, Privacy
from fedclust.runs.privacy_checks import check_delta, check_network, check_strategy, setting
from fedclust.settings import (
    ConfigError,
    RunSettings,
    build,
    build_strategy,
    plain,
    to_run_config,
    with_strategy,
)
from fedclust.settings.checks import check_num_clients
from fedclust.settings.run_options import RunOptions

if TYPE_CHECKING:
    from fedclust.strategies import ClusteredStrategy

__all__ = ["Plan", "make_engine"]


def make_engine(config: DictConfig) -> Any:
    """Build the engine that ``engine`` names, for the ClientApp that ``client_app`` names.

    Returns
    -------
    A Flower grid whose nodes run the app; or an object that submits the run to another machine.

    Raises
    ------
    ConfigError
        If there is no such app or the engine refuses its settings.
    """
    return build(config.engine, app=_client_app(config.client_app), run_config=to_run_config(config))


def _client_app(name: str) -> ClientApp:
    try:
        app = get_object(name)
    except ImportError as error:
        raise ConfigError(
            f"client_app must be importable, got {name!r}: {error.__cause__ or error}"
        ) from error
    if not isinstance(app, ClientApp):
        raise ConfigError(f"client_app must be a ClientApp, {name!r} is a {type(app).__name__}")
    return app


@dataclass(frozen=True, eq=False)
class Plan:
    """The strategy of a run and those that it is compared with, built.

    Attributes
    ----------
    settings
        The run's settings.
    configs
        The configuration of each strategy, by name, the chosen one first.
    strategies
        The strategies, by name.
    layers
        What each client does with its model at the end, by the strategy's name.
    privacy
        What leaves clients.
    """

    settings: RunSettings
    configs: Mapping[str, Any]
    strategies: Mapping[str, "ClusteredStrategy"]
    layers: Mapping[str, Personal]
    privacy: Privacy

    @classmethod
    def of(cls, config: DictConfig, settings: RunSettings) -> "Plan":
        """Build all that a configuration names.

        Parameters
        ----------
        config
            The composed configuration.
        settings
            Its settings.

        Raises
        ------
        ConfigError
            If an option is wrong, or two cannot be had together.
        """
        chosen = str(config.choices.strategy)
        names = [chosen, *(name for name in settings.compare if name != chosen)]
        configs = {name: config if name == chosen else with_strategy(config, name) for name in names}
        strategies = {name: _strategy(configs[name], settings) for name in names}
        layers = {name: _personal(config, each) for name, each in strategies.items()}
        privacy = _privacy(config, settings, strategies, layers)
        return cls(settings, configs, strategies, layers, privacy)

    @property
    def chosen(self) -> str:
        """Name of the chosen strategy."""
        return next(iter(self.strategies))

    @property
    def config(self) -> DictConfig:
        """The run's configuration, which is that of the chosen strategy."""
        return self.configs[self.chosen]

    def check_num_clients(self, num_clients: int) -> int:
        """Check that the strategies and the privacy suit the number of clients.

        Parameters
        ----------
        num_clients
            Number of clients of the grid.

        Returns
        -------
        How many of them are held out.

        Raises
        ------
        ConfigError
            If they do not suit it.
        """
        pooled = any(Pooling in each.own_layers for each in self.strategies.values())
        if self.settings.min_clients is not None and pooled:
            raise ConfigError(
                "min_clients must be null with centralised training, which needs everyone's rows"
            )
        try:
            left_out = num_held_out(num_clients, self.settings.holdout_clients)
            check_num_clients(
                {name: each.strategy for name, each in self.configs.items()}, num_clients - left_out
            )
            check_delta(self.privacy, num_clients - left_out)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return left_out

    def check_described(self, described: Descriptions) -> None:
        """Check that clients have the rows that the run needs.

        Raises
        ------
        ConfigError
            If nobody has test examples, or somebody too few for what is done with the models at the end.
        """
        if self.privacy.tells != "nothing" and not described.num_test.any():
            raise ConfigError("clients must have test examples to measure an accuracy on, none has any")
        for name, personal in self.layers.items():
            try:
                check_validation(personal, described.num_validation)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error

    def build_network(self) -> nn.Module:
        """Build the network that all strategies start from.

        Raises
        ------
        ConfigError
            If it cannot be built, or not trained with this privacy.
        """
        try:
            network = models.build(plain(self.config.model), self.settings.seed)
        except (InstantiationException, ValueError, TypeError) as error:
            raise ConfigError(str(error.__cause__ or error)) from error
        try:
            check_network(self.privacy, network)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return network


def _strategy(config: DictConfig, settings: RunSettings) -> "ClusteredStrategy":
    aggregator = build(config.aggregator)  # to find wrong options now: the clusters' are made in round 1
    try:
        check_aggregator(aggregator)
    except ValueError as error:
        raise ConfigError(f"aggregator.{error}") from error
    options = RunOptions(
        participation=settings.participation,
        seed=settings.seed,
        aggregator=partial(build, config.aggregator),
        selection=build(config.selection) if config.selection else None,
        evaluate_every=settings.evaluate_every,
        evaluate_clients=settings.evaluate_clients,
        update_norm_cap=settings.update_norm_cap,
        update_pull_cap=settings.update_pull_cap,
        drift_every=settings.drift_every,
    )
    return build_strategy(config.strategy, options)


def _personal(config: DictConfig, strategy: "ClusteredStrategy") -> Personal:
    if not config.get("personal"):
        return strategy.own_personal()
    made = build(config.personal)
    if not isinstance(made, Personal):
        raise ConfigError(f"personal must be of fedclust.personal.layers, got {type(made).__name__}")
    return made


def _privacy(
    config: DictConfig,
    settings: RunSettings,
    strategies: Mapping[str, "ClusteredStrategy"],
    layers: Mapping[str, Personal],
) -> Privacy:
    """Build what leaves clients, and refuse what cannot be had with it."""
    privacy = build(config.privacy) if config.get("privacy") else NoPrivacy()
    if not isinstance(privacy, Privacy):
        raise ConfigError(f"privacy must be of fedclust.privacy, got {type(privacy).__name__}")
    if privacy.tells != "labels" and settings.task != "train":
        raise ConfigError(f"task must be train with {setting(privacy)}, got {settings.task}")
    chosen = str(config.choices.strategy)
    for name, strategy in strategies.items():
        beside = [other for other in strategies if other != chosen] if name == chosen else []
        try:
            check_strategy(privacy, name, strategy, layers[name], beside)
        except (ValueError, ModuleNotFoundError) as error:
            raise ConfigError(str(error)) from error
    return privacy
