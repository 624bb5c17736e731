"""A sweep's jobs: which are checked before the first one starts, and the failures of jobs."""

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException

from fedclust.settings.composition import ConfigError

__all__ = ["Failures", "choices", "jobs", "objective"]


class Failures:
    """The failed jobs of a sweep; the other jobs still run.

    They are kept in a file, because a launcher such as Ray's runs the jobs in processes of their own.

    Parameters
    ----------
    file
        Where to keep them, in a folder that exists on the machine that runs the sweep, and only there.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def __len__(self) -> int:
        return len(self._lines())

    def add(self, number: int, overrides: Sequence[str], error: Exception, expected: bool) -> bool:
        """Print a job's failure, and keep it to print again at the end.

        Parameters
        ----------
        number
            The job's number, which is also its folder's name.
        overrides
            The job's overrides.
        error
            Why it failed.
        expected
            Whether the error's message is enough; if not, the traceback is printed too.

        Returns
        -------
        Whether the failure is kept: not by a process of another machine.
        """
        if not expected:
            traceback.print_exception(error)
        reason = " ".join(str(error).split()) or type(error).__name__
        line = f"job {number} ({' '.join(overrides)}): {reason}".replace("\n", " ")
        print(f"fedclust: {line}", file=sys.stderr)
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except FileNotFoundError:
            return False
        return True

    def print_all(self) -> None:
        """Print all failures again, as the last lines of the sweep."""
        jobs = f"{len(self)} job{'s' if len(self) > 1 else ''}"
        print("\n".join([f"fedclust: {jobs} of the sweep failed", *self._lines()]), file=sys.stderr)

    def _lines(self) -> list[str]:
        return self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []


def choices(override: str) -> list[str]:
    """Write a sweep over choices as one override per choice; return any other override unchanged.

    An interval, which only sweepers such as Optuna's search, becomes its two ends.
    """
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return [override]  # compose reports the error
    if not parsed.is_sweep_override():
        return [override]
    key = override.partition("=")[0]
    if isinstance(interval := parsed.value(), IntervalSweep):
        return [f"{key}={interval.start}", f"{key}={interval.end}"]
    return [f"{key}={value}" for value in parsed.sweep_string_iterator()]


def jobs(options: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield jobs of a sweep so that each choice is in one, combined with the others' first choices."""
    first = [each[0] for each in options]
    yield first
    for place, each in enumerate(options):
        for option in each[1:]:
            yield [*first[:place], option, *first[place + 1 :]]


def objective(summary: Mapping[str, Any], key: str) -> float | None:
    """Return the number of a job's summary that a sweeper such as Optuna's compares jobs by.

    Returns
    -------
    The number, or None for a task without rounds and for a figure that the run could not measure.

    Raises
    ------
    ConfigError
        If the summary has no number of that name.
    """
    if "strategy" not in summary or (key in summary and summary[key] is None):
        return None
    value = summary.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        numbers = [k for k, v in summary.items() if isinstance(v, int | float) and not isinstance(v, bool)]
        raise ConfigError(f"objective must be a number of summary.json, of {', '.join(numbers)}, got {key}")
    return float(value)
