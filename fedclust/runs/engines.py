"""Build the grid that a configuration names."""

from typing import Any

from flwr.clientapp import ClientApp
from hydra.utils import get_object
from omegaconf import DictConfig

from fedclust.settings import ConfigError, build, to_run_config

__all__ = ["make_engine"]


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
