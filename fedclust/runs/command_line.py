"""The command line: ``fedclust``, or ``python -m fedclust``."""

import argparse
import atexit
import gc
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedclust import __version__
from fedclust.runs import sweep, verbs
from fedclust.settings import checks, folders
from fedclust.settings.composition import (
    ConfigError,
    compose,
    compose_with_hydra,
    one_line,
    quoted,
    with_choices,
)

# _run imports what takes seconds, so that --help and the message about a wrong option do not wait for it.
from fedclust.support.checks import none_of, plural
from fedclust.support.hydra_versions import VERSION_BASE
from fedclust.support.layout import CONF
from fedclust.support.streams import lasting

_EXTRAS = {"altair": "charts", "vl_convert": "charts", "transformers": "encoders", "ray": "simulation"}
_EXTRAS |= dict.fromkeys(("datasets", "flwr_datasets"), "hub")
_COLLAPSED, _ENDED = 3, 128 + signal.SIGTERM  # exit codes

_failures: Path | None = None  # those of the sweep that this process runs or works for


def main() -> None:
    """Run the command line: a verb of :data:`fedclust.runs.verbs.VERBS`, or settings.

    A wrong setting prints one line to standard error and exits with code 2; a run that fails after it has
    started exits with code 1; one whose models predict no better than class shares, with code 3, unless it
    was too short for more (``few_passes`` in its summary). Such jobs do not end a sweep: they are listed at
    the end, and the exit code is 1 if one failed, else 3.
    """
    global _failures
    # So that temporary folders are deleted; a run that has begun says how to go on, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED))
    if os.getcwd() not in sys.path:  # it is there with python -m
        sys.path.append(os.getcwd())  # so that a user's own package is found
    atexit.register(gc.freeze)  # collecting what PyTorch made, object by object, takes half a second at exit
    verb, given = "".join(sys.argv[1:2]), sys.argv[2:]
    if verb == "run":
        sys.argv[1:] = given
    elif re.fullmatch(r"\w+|-h|--help|--version", verb):  # no setting: these have a =
        with lasting(goes_on=False):
            sys.exit(_answer(verb, given))
    if {"-h", "--help"} & {*sys.argv[1:]}:
        with lasting(goes_on=False):
            sys.exit(verbs.show_help(["run"]))
    with lasting(goes_on=True), tempfile.TemporaryDirectory(prefix="fedclust_") as folder:
        _failures = Path(folder) / "failures.txt"
        gc.disable()  # looking through all that is imported takes half a second, too
        try:
            sys.argv[1:] = folders.expand(sys.argv[1:])
            parser = get_args_parser()
            parser.error = _refuse  # type: ignore[method-assign]
            arguments, unknown = parser.parse_known_args(sys.argv[1:])
            if unknown:
                raise ConfigError(_without_dashes(unknown[0], sys.argv[1:]))
            run, folder_made = _checked(arguments)
            with folder_made as results:
                if results is not None and arguments.multirun:
                    (results / "multirun.yaml").touch()  # as Hydra's own sweeper does, but not Optuna's
                    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else Hydra prints and ends by itself
                try:
                    run()
                except Exception:  # such as Optuna's, which has no best job if all have failed
                    if not _failures.exists():
                        raise
                if results is not None and arguments.multirun:
                    import_module("fedclust.runs.compare").end_sweep(results)
        except (ConfigError, OmegaConfBaseException, HydraException) as error:
            _give_up(error)
        except KeyboardInterrupt:
            print("fedclust: interrupted before round 1", file=sys.stderr)
            sys.exit(130)  # as shells do
        finally:
            gc.enable()
        collapsed = sweep.any_failed(_failures.with_name("collapsed.txt"), "fell to chance")
        if (failed := sweep.any_failed(_failures)) or collapsed:
            sys.exit(1 if failed else _COLLAPSED)


def _answer(verb: str, arguments: Sequence[str]) -> int:
    """Do what a verb that runs nothing asks for; return the exit status, 2 for what cannot be."""
    try:
        status = 0
        if verb == "--version":
            print(f"fedclust {__version__}")
        elif verb in ("help", "-h", "--help"):
            status = verbs.show_help(arguments)
        elif verb not in verbs.VERBS:
            known = none_of("the first word", verb, verbs.VERBS, "must be a setting or one of")
            raise ValueError(_as_setting(verb, arguments) or known)
        else:
            status = int(import_module(f"fedclust.runs.{verb}").main(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as shells do
    except (ValueError, OSError, LookupError, ModuleNotFoundError) as error:
        print(f"fedclust {verb}: {_with_extra(error)}", file=sys.stderr)
        return 2


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; fedclust run --help lists the options")


def _without_dashes(option: str, given: Sequence[str]) -> str:
    """Write an unknown option as the setting that it may be meant as."""
    key, _, value = option.lstrip("-").partition("=")
    after = given[given.index(option) + 1 :]
    value = value or (after[0] if after and "=" not in after[0] else "VALUE")
    return f"there is no option {option.partition('=')[0]}; settings have no dashes: fedclust {key}={value}"


def _as_setting(word: str, after: Sequence[str]) -> str | None:
    """Write a first word that is the name or a choice of a group of settings as a setting."""
    groups = [file.parent.name for file in sorted(CONF.glob(f"*/{word}.yaml"))]
    if (CONF / word).is_dir():
        value = next((each for each in after if each != "="), "CHOICE")
        return f"a setting has its value after =, without blanks: fedclust {word}={value}"
    return f"a choice needs the name of its setting: fedclust {groups[0]}={word}" if groups else None


@hydra.main(config_path=str(CONF), config_name="config", **VERSION_BASE)
def _main(config: DictConfig) -> float | None:
    hydra_config = HydraConfig.get()
    given = with_choices(config, hydra_config), Path(hydra_config.runtime.output_dir)
    if hydra_config.mode != RunMode.MULTIRUN:
        return _job(*given)
    # Launchers that run jobs in other processes send this function with the globals that it names itself.
    return _job(*given, Path(hydra_config.sweep.dir), hydra_config.job.num, _failures)


def _single(config: DictConfig, composed: DictConfig) -> None:
    """Do what Hydra does for a single run, without composing its configuration again."""
    folder, before = Path(config.output_dir).absolute(), HydraConfig.instance().cfg
    with open_dict(composed.hydra):
        composed.hydra.runtime.output_dir, composed.hydra.mode = str(folder), RunMode.RUN
    HydraConfig.instance().set_config(composed)  # a user's class may ask for it
    try:
        configure_log(composed.hydra.job_logging, composed.hydra.verbose)
        _job(config, folder)
    finally:
        HydraConfig.instance().cfg = before


def _job(
    config: DictConfig,
    folder: Path,
    sweep_folder: Path | None = None,
    number: int = 0,
    failures: Path | None = None,
) -> float | None:
    """Run what a configuration describes, and report what fails.

    Parameters
    ----------
    config
        The composed configuration.
    folder
        Folder for the results.
    sweep_folder
        Folder of the sweep that the run is a job of; None for a single run.
    number
        Number of the job in the sweep.
    failures
        File that lists the sweep's failed jobs; None if nobody reads it.

    Returns
    -------
    The figure by which a sweeper compares jobs; None for a single run.
    """
    sweeps, returned = sweep_folder is not None, None
    job = number, list(config.overrides)
    try:
        summary = sweep.go_on(config, folder) if sweeps else None
        if summary is None:
            summary = _run(config, folder)
        if sweeps:
            returned = sweep.objective(summary, str(config.objective))
        if summary.get("collapsed") and not summary.get("few_passes"):
            if not sweeps:
                sys.exit(_COLLAPSED)
            if failures is not None:
                from fedclust.results.summary import collapsed_line

                sweep.add_failure(failures.with_name("collapsed.txt"), *job, str(collapsed_line(summary)))
    except Exception as error:
        from fedclust.federation import RunFailed
        from fedclust.runs.server import USER_ERRORS

        if isinstance(error, ModuleNotFoundError):
            error = ConfigError(_with_extra(error))
        expected = isinstance(error, (*USER_ERRORS, RunFailed))
        if sweeps:  # the other jobs still run
            if failures is None or not sweep.add_failure(failures, *job, error, expected):
                raise  # Hydra raises it again when all jobs have ended
        elif expected:
            _give_up(error, code=1 if isinstance(error, RunFailed) else 2)
        else:
            raise
    except KeyboardInterrupt as error:
        ended, code = ("terminated", _ENDED) if isinstance(error, _Terminated) else ("interrupted", 130)
        resumes = f"to resume: fedclust resume={shlex.quote(str(folder))}"
        if sweep_folder is not None:
            resumes = f"to go on: the same command with output_dir={shlex.quote(str(sweep_folder))}"
        further = str(error) or resumes
        print(f"fedclust: {ended}; {further}", file=sys.stderr)
        sys.exit(code)  # as shells do
    finally:
        if sweeps or folders.of_sweep(folder):  # a job that was resumed by itself
            from fedclust.results.page import write_sweep_page

            with suppress(OSError):  # the run's own outcome counts
                write_sweep_page(sweep_folder or folder.parent)
    return returned


def _with_extra(error: Exception) -> str:
    """Write an error in one line; if a package is missing that only some runs need, with its extra."""
    text = " ".join(one_line(error).split())
    missing = re.search(r"No module named '(\w+)", text)
    extra = _EXTRAS.get(missing[1]) if missing else None
    return f"{text}; pip install 'fedclust[{extra}]'" if extra else text


def _run(config: DictConfig, folder: Path) -> dict[str, Any]:
    from flwr.serverapp import Grid

    from fedclust.runs.server import federate, make_engine
    from fedclust.support.time_limit import end_process_when_stuck

    _collect_from_here()
    end_process_when_stuck()
    engine = make_engine(config)
    if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
        signal.signal(signal.SIGTERM, _terminate)  # sent by schedulers, services; replaces Ray's
    if isinstance(engine, Grid):
        return federate(config, engine, folder)
    checks.check_built(config)  # the server runs on another machine too
    return {"collapsed": engine.submit(list(config.overrides), folder, config.get("searchpath") or ())}


def _collect_from_here() -> None:
    """Look for garbage from here on, but not in what there is: nearly all of it stays to the end."""
    if not gc.isenabled():  # else it is a sweep's next job, and garbage of the last one would stay
        gc.freeze()
        gc.enable()


class _Terminated(KeyboardInterrupt):
    """The process was asked to stop."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise _Terminated


def _give_up(error: Exception, code: int = 2) -> NoReturn:
    print(f"fedclust: {_with_extra(error)}", file=sys.stderr)
    sys.exit(code)


def _checked(
    arguments: argparse.Namespace,
) -> tuple[Callable[[], object], AbstractContextManager[Path | None]]:
    """Compose and check the configuration before Hydra does, so that errors are reported in one line.

    Returns
    -------
    run
        What the arguments ask for. A run with settings only is not composed again by Hydra.
    folder
        A context manager that makes the results folder, if there will be results; it yields the folder, or
        None if Hydra makes it.

    Raises
    ------
    ConfigError
        If an override, or one choice of a sweep, names something that does not exist, or a setting is
        outside its range.
    """
    if arguments.hydra_help or arguments.info or arguments.shell_completion:
        return _main, nullcontext()
    if arguments.config_path:
        raise ConfigError("--config-path must not be given: --config-dir adds a folder to the configuration")
    added = [arguments.config_dir] if arguments.config_dir else []
    name = (arguments.config_name or "config").removesuffix(".yaml")
    where: dict[str, Any] = {"searchpath": added, "name": name}
    if not arguments.multirun:
        config, composed = compose_with_hydra(arguments.overrides, **where)
        _pass_on(config, arguments.overrides, tell=not arguments.cfg)
        if not arguments.cfg:
            _check_device(config)
        checks.check(config, light=bool(arguments.cfg))
        if arguments.cfg:
            return _main, nullcontext()
        plain = arguments == get_args_parser().parse_args(arguments.overrides)  # no options
        plain = plain and not any(key.startswith("hydra") for key in _keys(arguments.overrides))
        run = partial(_single, config, composed) if plain else _main
        return run, _folder(config, arguments.overrides)
    _collect_from_here()  # each configuration leaves cycles
    options = [sweep.choices(override, added) for override in arguments.overrides]
    for overrides in sweep.jobs(options):
        config, composed = compose_with_hydra(overrides, **where)
        warned = sweep.check_sweeper(arguments.overrides, composed, str(config.objective))
        checks.check(config)
        if _added_partition(config, overrides):  # Hydra, which composes the jobs, would not add it
            raise ConfigError(
                "a sweep must say how data of your own are split: partition=natural, which makes a client of "
                "each owner in dataset.natural=, or partition=iid"
            )
    if warned:
        print(warned)
    try:  # Hydra first composes the overrides that are not swept
        config = compose([choices[0] for choices in options if len(choices) == 1], **where)
    except ConfigError as error:
        raise ConfigError(f"{error}; put ++ before a key that only the swept choices have") from error
    swept = {choices[0].partition("=")[0] for choices in options if len(choices) > 1}
    made_by_hydra = arguments.cfg or "output_dir" in swept
    return _main, nullcontext() if made_by_hydra else _folder(config, arguments.overrides)


def _check_device(config: DictConfig) -> None:
    """Check a named device before the slower checks; a sweep is not checked, its jobs may run elsewhere.

    Raises
    ------
    ConfigError
        If nodes of this process are to train on a device that this machine does not have.
    """
    here = config.task == "train" and config.choices.engine == "local"
    if not here or config.device in ("auto", "cpu"):
        return
    from fedclust.support.devices import check_device

    try:
        check_device(config.device)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@contextmanager
def _folder(config: DictConfig, overrides: Sequence[str]) -> Iterator[Path | None]:
    """Make the results folder; if it is named by the time, its name becomes a setting, for Hydra too."""
    if any(key.startswith(("hydra.run.", "hydra.sweep.")) for key in _keys(overrides)):
        yield None  # Hydra makes its own folder
        return
    by_time = folders.named_by_time(config)
    named = Path(config.output_dir).expanduser()
    with folders.results_folder(named, new=by_time) as folder:
        if by_time or str(named) != str(Path(config.output_dir)):
            override = f"output_dir={quoted(str(folder))}"
            _add_argument(override, overrides)
            config.output_dir = str(folder)
            config.overrides.append(override)
        yield folder


def _added_partition(config: DictConfig, overrides: Sequence[str]) -> str | None:
    """Return the partition that data of the user's own got without being asked for; None if there is none."""
    added = (each for each in config.overrides if each.startswith("partition=") and each not in overrides)
    return next(added, None)


def _pass_on(config: DictConfig, overrides: Sequence[str], tell: bool) -> None:
    """Give Hydra the partition that data of the user's own got, and tell the user if rows are dealt."""
    if (added := _added_partition(config, overrides)) is None:
        return
    _add_argument(added, overrides)
    if tell and added == "partition=iid":
        dealt = f"Rows are dealt at random to {plural(config.partition.num_clients, 'client')}"
        print(f"{dealt}: no column names their owners (dataset.natural=), and no partition= is given")


def _add_argument(added: str, overrides: Sequence[str]) -> None:
    # argparse takes settings from one place only, which --multirun may follow.
    places = (place for place, each in enumerate(sys.argv, 1) if each in overrides)
    sys.argv.insert(max(places, default=len(sys.argv)), added)


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.lstrip("+~").partition("=")[0] for override in overrides]
