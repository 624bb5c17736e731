"""The command line: ``fedclust``, or ``python -m fedclust``."""

import argparse
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedclust.runs import sweep
from fedclust.settings import checks, folders
from fedclust.settings.composition import ConfigError, compose, one_line, with_choices

# _run imports what takes seconds, so that --help and the message about a wrong option do not wait for it.
from fedclust.support.hydra_versions import VERSION_BASE
from fedclust.support.layout import CONF

_VERBS = {name: f"fedclust.runs.{name}" for name in ("check", "watch", "predict", "place")}
_EXTRAS = {"altair": "charts", "vl_convert": "charts", "transformers": "encoders", "ray": "simulation"}
_EXTRAS |= dict.fromkeys(("datasets", "flwr_datasets"), "hub")
_HELP = """fedclust GROUP=CHOICE … KEY=VALUE …: run a clustered federation; -m runs a sweep
fedclust check FILE…, fedclust watch FOLDER, fedclust predict FOLDER ROWS, fedclust place FOLDER ROWS: see
their --help

== Groups and their choices ==
{groups}

== Values ==
{values}
Powered by Hydra (https://hydra.cc): --hydra-help lists its own options"""

_failures: Path | None = None  # those of the sweep that this process runs or works for


def main() -> None:
    """Run the command line.

    A wrong setting prints one line to standard error and exits with code 2; a run that fails after it has
    started exits with code 1. A failed job does not end a sweep: it is listed at the end, and the exit code
    is 1.
    """
    global _failures
    if (verb := "".join(sys.argv[1:2])) in _VERBS:
        try:
            sys.exit(import_module(_VERBS[verb]).main(sys.argv[2:]))
        except ModuleNotFoundError as error:
            _give_up(_with_extra(error))
    with tempfile.TemporaryDirectory(prefix="fedclust_") as folder:
        _failures = Path(folder) / "failures.txt"
        try:
            sys.argv[1:] = folders.expand(sys.argv[1:])
            arguments = get_args_parser().parse_args(sys.argv[1:])
            with _checked(arguments):
                _main()
        except (ConfigError, OmegaConfBaseException) as error:
            _give_up(error)
        except KeyboardInterrupt:
            print("fedclust: interrupted before round 1", file=sys.stderr)
            sys.exit(130)  # as shells do
        if sweep.any_failed(_failures):
            sys.exit(1)


@hydra.main(config_path=str(CONF), config_name="config", **VERSION_BASE)
def _main(config: DictConfig) -> float | None:
    hydra_config, returned = HydraConfig.get(), None
    sweeps = hydra_config.mode == RunMode.MULTIRUN
    try:
        summary = _run(with_choices(config, hydra_config), hydra_config)
        if sweeps:
            returned = sweep.objective(summary, str(config.objective))
    except Exception as error:
        from fedclust.federation import RunFailed
        from fedclust.runs.server import USER_ERRORS

        if isinstance(error, ModuleNotFoundError):
            error = _with_extra(error)
        expected = isinstance(error, (*USER_ERRORS, RunFailed))
        if sweeps:  # the other jobs still run
            job = hydra_config.job.num, list(hydra_config.overrides.task)
            if _failures is None or not sweep.add_failure(_failures, *job, error, expected):
                raise  # Hydra raises it again when all jobs have ended
        elif expected:
            _give_up(error, code=1 if isinstance(error, RunFailed) else 2)
        else:
            raise
    except KeyboardInterrupt as error:
        folder = shlex.quote(str(Path(hydra_config.runtime.output_dir)))
        ended, code = ("terminated", 143) if isinstance(error, _Terminated) else ("interrupted", 130)
        print(f"fedclust: {ended}; to resume: fedclust resume={folder}", file=sys.stderr)
        sys.exit(code)  # as shells do
    if sweeps:
        from fedclust.results.page import write_sweep_page

        write_sweep_page(Path(hydra_config.sweep.dir))
    return returned


def _with_extra(error: ModuleNotFoundError) -> Exception:
    """Say how to install a package that only some runs need; other errors stay as they are."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    return ConfigError(f"{error}: pip install 'fedclust[{extra}]'") if extra else error


def _run(config: DictConfig, hydra_config: HydraConf) -> dict[str, Any]:
    from flwr.serverapp import Grid

    from fedclust.grids.local_grid import end_process_when_stuck
    from fedclust.runs.server import federate, make_engine

    end_process_when_stuck()
    folder = Path(hydra_config.runtime.output_dir)
    engine = make_engine(config)
    if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
        signal.signal(signal.SIGTERM, _terminate)  # sent by schedulers, services; replaces Ray's
    if isinstance(engine, Grid):
        return federate(config, engine, folder)
    checks.check_built(config)  # the server runs on another machine too
    engine.submit(list(hydra_config.overrides.task), folder, config.get("searchpath") or ())
    return {}


class _Terminated(KeyboardInterrupt):
    """The process was asked to stop."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise _Terminated


def _give_up(error: Exception, code: int = 2) -> NoReturn:
    print("fedclust:", " ".join(one_line(error).split()), file=sys.stderr)
    sys.exit(code)


def _checked(arguments: argparse.Namespace) -> AbstractContextManager[object]:
    """Compose the configuration before Hydra does, so that errors are reported in one line.

    Returns
    -------
    A context manager that makes the results folder, if there will be results.

    Raises
    ------
    ConfigError
        If an override, or one choice of a sweep, names something that does not exist, or a setting is
        outside its range.
    """
    if arguments.hydra_help or arguments.info or arguments.shell_completion:
        return nullcontext()
    if arguments.config_path:
        raise ConfigError("--config-path must not be given: --config-dir adds a folder to the configuration")
    added = [arguments.config_dir] if arguments.config_dir else []
    name = (arguments.config_name or "config").removesuffix(".yaml")
    where: dict[str, Any] = {"searchpath": added, "name": name}
    if arguments.help:
        _print_help(compose(arguments.overrides, **where), [CONF, *map(Path, added)])
    if not arguments.multirun:
        config = compose(arguments.overrides, **where)
        if not arguments.cfg:
            _check_device(config)
        checks.check(config)
        return nullcontext() if arguments.cfg else _folder(config, arguments.overrides)
    options = [sweep.choices(override) for override in arguments.overrides]
    for overrides in sweep.jobs(options):
        checks.check(config := compose(overrides, **where))
    try:  # Hydra first composes the overrides that are not swept
        config = compose([choices[0] for choices in options if len(choices) == 1], **where)
    except ConfigError as error:
        raise ConfigError(f"{error}; put ++ before a key that only the swept choices have") from error
    swept = {choices[0].partition("=")[0] for choices in options if len(choices) > 1}
    return nullcontext() if arguments.cfg or "output_dir" in swept else _folder(config, arguments.overrides)


def _print_help(config: DictConfig, places: Sequence[Path]) -> NoReturn:
    """Print the groups with their choices, and the values to override; Hydra's own help takes a second."""
    choices: dict[str, set[str]] = {}
    for file in (file for place in places for file in place.glob("*/*.yaml")):
        choices.setdefault(file.parent.name, set()).add(file.stem)
    groups = "\n".join(f"{group}: {', '.join(sorted(names))}" for group, names in sorted(choices.items()))
    shown = OmegaConf.masked_copy(config, [str(key) for key in config if key not in ("choices", "overrides")])
    print(_HELP.format(groups=groups, values=OmegaConf.to_yaml(shown)))
    sys.exit(0)


def _check_device(config: DictConfig) -> None:
    """Check a named device before the slower checks; a sweep is not checked, its jobs may run elsewhere.

    Raises
    ------
    ConfigError
        If nodes of this process are to train on a device that this machine does not have.
    """
    here = config.task in ("train", "advise") and config.choices.engine == "local"
    if not here or config.device in ("auto", "cpu"):
        return
    from fedclust.support.devices import check_device

    try:
        check_device(config.device)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@contextmanager
def _folder(config: DictConfig, overrides: Sequence[str]) -> Iterator[None]:
    """Make the results folder; if it is named by the time, pass its name to Hydra."""
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    if any(key.startswith(("hydra.run", "hydra.sweep")) for key in keys):
        yield  # Hydra makes its own folder
        return
    by_time = folders.named_by_time(config)
    with folders.results_folder(Path(config.output_dir), new=by_time) as folder:
        if by_time:
            quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
            sys.argv = [*sys.argv, f"output_dir='{quoted}'"]
        yield
