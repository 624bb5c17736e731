"""The command line: ``python -m fedclust.run``, also installed as ``fedclust``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig

from fedclust.config import ConfigError, compose, run_settings, to_run_config, with_choices
from fedclust.federation import FederationError
from fedclust.server_app import federate

__all__ = ["main"]


_USER_ERRORS = (ConfigError, FederationError, FileExistsError)


def main() -> None:
    """Run what the command line asks for; a wrong option is one line on standard error and exit code 2."""
    try:
        _check(sys.argv[1:])
    except ConfigError as error:
        _give_up(error)
    _main()


@hydra.main(config_path="../conf", config_name="config", version_base="1.3")
def _main(config: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    config = with_choices(config, hydra_config.runtime.choices)
    folder = Path(hydra_config.runtime.output_dir)
    try:
        run_settings(config)
        app = get_object(config.client_app)
        grid = instantiate(config.engine, app=app, run_config=to_run_config(config))
        federate(config, grid, folder)
    except _USER_ERRORS as error:
        _give_up(error)


def _give_up(error: Exception) -> NoReturn:
    print(f"fedclust: {error}", file=sys.stderr)
    sys.exit(2)


def _check(arguments: Sequence[str]) -> None:
    """Compose what the command line asks for before Hydra does, to say in one line what is wrong with it.

    Raises
    ------
    ConfigError
        If an override, or one choice of a sweep, names something that does not exist.
    """
    if any(argument in ("-h", "--help", "--hydra-help", "--info", "--version") for argument in arguments):
        return
    overrides = [text for text in arguments if not text.startswith("-")]
    single: list[str] = []
    sweeps: dict[str, list[str]] = {}
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            single.append(text)  # compose says what is wrong with it
            continue
        if override.is_sweep_override():
            sweeps[override.get_key_element()] = [
                f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()
            ]
        else:
            single.append(text)
    compose(single)
    for choices in sweeps.values():
        for choice in choices:
            compose([*single, choice])


if __name__ == "__main__":
    main()
