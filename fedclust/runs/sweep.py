"""A sweep's jobs: checks before the first one starts, failures, and runs that jobs share.

``fedclust -m strategy=fedavg,fedgwc,fmcl`` compares each method with FedAvg. FedAvg's own job comes first, so
it is trained once and the other jobs copy its results. If FedAvg is not in the sweep, the first job trains
it, and the others copy it from there.
"""

import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from fedclust.settings.checks import OURS
from fedclust.settings.composition import ConfigError, options as group_options
from fedclust.settings.folders import of_sweep
from fedclust.settings.run_options import COMMON, VALIDATION
from fedclust.support.checks import dumps_by_key, nearest, none_of, plural, replace_file

# Settings that do not change a strategy's results.
_IRRELEVANT = ("checkpoint_every", "compare", "output_dir", "overrides", "resume")
_NOT_COPIED = (".lock", "compare", "plots", "tensorboard", "tracker.json", "wandb")


def add_failure(
    file: Path, number: int, overrides: Sequence[str], error: Exception | str, expected: bool = True
) -> bool:
    """Print a job's failure, and write it down to print it again at the end; the other jobs still run.

    Parameters
    ----------
    file
        Where to write it down, because a launcher such as Ray's runs each job in its own process; its folder
        exists only on the machine that runs the sweep.
    number
        The job's number, which is also its folder's name.
    overrides
        The job's overrides.
    error
        Why it failed, or what is wrong with its results.
    expected
        Whether the error's message is enough; if not, the traceback is printed too.

    Returns
    -------
    Whether the failure was written down, which a process on another machine cannot do.
    """
    if isinstance(error, Exception) and not expected:
        traceback.print_exception(error)
    reason = " ".join(str(error).split()) or type(error).__name__
    line = f"job {number} ({' '.join(overrides)}): {reason}".replace("\n", " ")
    print(f"fedclust: {line}", file=sys.stderr)
    with suppress(FileNotFoundError), file.open("a", encoding="utf-8") as kept:
        kept.write(line + "\n")
        return True
    return False


def any_failed(file: Path, what: str = "failed") -> bool:
    """Print all jobs of a sweep that failed again, as its last lines; return whether there are any."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if lines:
        jobs = f"{plural(len(lines), 'job')} of the sweep {what}"
        print("\n".join([f"fedclust: {jobs}", *lines]), file=sys.stderr)
    return bool(lines)


def choices(override: str, searchpath: Sequence[str] = ()) -> list[str]:
    """Expand a sweep over choices into one override per choice; return any other override unchanged.

    An interval, which only sweepers such as Optuna's search, becomes its two ends. `searchpath` has the
    folders in which ``glob`` looks for choices, too.

    Raises
    ------
    ConfigError
        If the sweep has no choice.
    """
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return [override]  # compose reports the error
    if not parsed.is_sweep_override():
        return [override]
    key = override.partition("=")[0]
    known: list[str] = []
    if isinstance(swept := parsed.value(), IntervalSweep):
        return [f"{key}={swept.start}", f"{key}={swept.end}"]
    if isinstance(swept, Glob):
        known = group_options(parsed.key_or_group, searchpath)
        found = swept.filter(known)
    else:
        try:
            found = list(parsed.sweep_string_iterator())
        except ValueError as error:  # such as a step of 0
            raise ConfigError(f"{override} must be a sweep that ends: {error}") from error
    if not found:
        among = f" among {', '.join(known)}" if known else ""
        raise ConfigError(f"{override} must have at least one choice{among}, it has none")
    return [f"{key}={value}" for value in found]


def check_sweeper(overrides: Sequence[str], composed: DictConfig, figure: str) -> str:
    """Check that a sweeper can search what is asked of it, and in the right direction.

    Parameters
    ----------
    overrides
        The command's overrides.
    composed
        The composed configuration with Hydra's part.
    figure
        The figure by which it compares jobs.

    Returns
    -------
    A warning if it searches by test rows, else an empty text.

    Raises
    ------
    ConfigError
        If it takes choices only and an interval is given, its direction leads to the worst job, or no run
        has the figure.
    """
    _check_objective(composed, figure)
    sweeper = composed.hydra.runtime.choices.get("hydra/sweeper")
    direction = OmegaConf.select(composed, "hydra.sweeper.direction")
    named = getattr(direction, "name", direction)
    if isinstance(named, str) and (right := _direction(figure)) and named != right:
        raise ConfigError(f"hydra.sweeper.direction must be {right} for objective={figure}, got {named}")
    for override in overrides if sweeper == "basic" else ():
        with suppress(HydraException):
            if isinstance(OverridesParser.create().parse_override(override).value(), IntervalSweep):
                rule = f"{override} needs a sweeper that searches an interval"
                raise ConfigError(f"{rule}: hydra/sweeper=optuna, pip install 'fedclust[optuna]'")
    if sweeper == "basic" or figure == VALIDATION:
        return ""
    instead = f"objective={VALIDATION} hydra.sweeper.direction=minimize"
    return f"warning: objective={figure} is measured on test rows; to search by held-out rows: {instead}"


def _direction(figure: str) -> str | None:
    """Return where a figure is best; None for one that measures neither quality nor a cost."""
    from fedclust.results.comparison import LOWER, QUALITY

    return "minimize" if figure in LOWER else "maximize" if figure in QUALITY else None


def _check_objective(composed: DictConfig, figure: str) -> None:
    """Raise ConfigError for a figure that no summary has; a method of the user's own may have others."""
    from fedclust.data.targets import KINDS
    from fedclust.results.summary import NUMBERS

    figures = [name for kind in KINDS.values() for name in kind.figure_ranges]
    known = {*NUMBERS, *figures, *(composed.get("metrics") or ())}
    ours = composed.hydra.runtime.choices.get("strategy") in OURS
    if figure not in known and (ours or nearest(figure, known)):
        raise ConfigError(none_of("objective", figure, sorted(known)))


def jobs(options: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield jobs that cover every choice of a sweep, each combined with the first of all others."""
    first = [each[0] for each in options]
    yield first
    for place, each in enumerate(options):
        for option in each[1:]:
            yield [*first[:place], option, *first[place + 1 :]]


def objective(summary: Mapping[str, Any], key: str) -> float | None:
    """Return the figure by which a sweeper, such as Optuna's, compares jobs.

    Returns
    -------
    The figure, or None for a task without rounds and for a figure that the run could not measure.

    Raises
    ------
    ConfigError
        If the summary has no number of that name.
    """
    if "strategy" not in summary or (key in summary and summary[key] is None):
        return None
    numbers = {
        name: value
        for name, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if key not in numbers:
        known = ", ".join(numbers)
        raise ConfigError(f"objective must be a number of summary.json, one of {known}, got {key}")
    return float(numbers[key])


def take_from_sweep(name: str, config: DictConfig, job: Path) -> dict[str, Any] | None:
    """Copy a strategy's finished run from an earlier job of the sweep, if there is one.

    Parameters
    ----------
    name
        The strategy to compare with.
    config
        Its configuration; only a run with the same one, seed included, is copied.
    job
        Folder of the current job. It belongs to a sweep if Hydra's ``multirun.yaml`` lies beside it.

    Returns
    -------
    The run's summary, in which ``taken_from`` is its folder, relative to `job`; the run itself is then in
    ``compare/<name>/`` of `job`. None if there is no such run, or `job` has begun to train its own.
    """
    from fedclust.results import SavedRun  # imports pandas, which would delay a wrong option's message

    beside = job / "compare" / name
    if beside.exists():  # a job that is resumed; with more rounds than before it trains its own
        run = SavedRun(beside) if (beside / "summary.json").is_file() else None
        asked = run and "taken_from" in run.summary and run.config.get("rounds")  # it may have stopped early
        return dict(run.summary) if run and asked == config.rounds else None
    if not of_sweep(job):
        return None
    wanted = _relevant(_as_saved(config), name)
    jobs = [each.parent for each in sorted(job.parent.glob("*/summary.json")) if each.parent != job]
    # Until its job has ended, a run may lack its layers.
    ended = [each for each in jobs if "made" in SavedRun(each).summary]
    places = [*ended, *(each / "compare" / name for each in ended)]
    for run in (SavedRun(each) for each in places if (each / "summary.json").is_file()):
        finished = run.strategy == name and len(run.rounds) == run.summary.get("rounds")
        # Held-out rows compare models, which a run without its checkpoint no longer has.
        usable = not config.get("proof") or any((run.folder / "checkpoints").glob("round-*"))
        if finished and usable and _relevant(run.config, name) == wanted:
            summary = {key: value for key, value in run.summary.items() if key != "compare"}
            summary.setdefault("taken_from", Path(os.path.relpath(run.folder, job)).as_posix())
            # Links: a run that has finished is not written to again, and models can be large.
            ignored = shutil.ignore_patterns(*_NOT_COPIED)
            shutil.copytree(run.folder, beside, ignore=ignored, copy_function=_link)
            replace_file(beside / "summary.json", dumps_by_key(summary))
            return summary
    return None


def go_on(config: DictConfig, job: Path) -> dict[str, Any] | None:
    """Go on with a job that an earlier sweep has begun in the same folder, with the same configuration.

    Returns
    -------
    Its summary, if it has finished. Else None, and the configuration says to resume it, if it was begun; a
    folder that holds another run is refused later.
    """
    if not (job / "rounds.jsonl").is_file():
        return None
    from fedclust.results import SavedRun  # imports pandas

    run = SavedRun(job)
    before, now = (
        {k: v for k, v in each.items() if k not in _TOLD} for each in (run.config, _as_saved(config))
    )
    if before != now:
        return None
    if "made" in run.summary or "task" in run.summary:  # the former is written last
        print(f"{job}: finished before, kept")
        return run.summary
    config.resume = str(job)
    return None


def _as_saved(config: DictConfig) -> dict[str, Any]:
    """Return a configuration as ``config.yaml`` has it."""
    saved: dict[str, Any] = yaml.safe_load(OmegaConf.to_yaml(config, resolve=True))
    return saved


_TOLD = ("output_dir", "overrides", "resume")


def _relevant(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    without = (*_IRRELEVANT, "serve") if name == COMMON else _IRRELEVANT  # nothing else could serve there
    return {key: value for key, value in config.items() if key not in without}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
