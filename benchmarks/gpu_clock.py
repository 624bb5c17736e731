"""Rows of `benchmarks/gpu.py` in processes of their own, as long as there is time."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import TimeoutError as NotInTime
from multiprocessing import get_context
from typing import Any

__all__ = ["LATE", "Found", "in_time"]

LATE = 45.0  # seconds before the end in which no row starts


@dataclass(frozen=True)
class Found:
    """What the rows of an item gave: values by name, and by name why there is none."""

    values: dict[str, Any]
    missing: dict[str, str]

    def notes(self) -> str:
        """List what is missing."""
        return "".join(f"\nNot measured: {name}: {reason}." for name, reason in self.missing.items())


def in_time(
    rows: Mapping[str, tuple[Any, ...]],
    work: Callable[..., Any],
    ends: float,
    workers: int = 1,
    late: float = LATE,
    apart: bool = True,
) -> Found:
    """Do the work of each row in another process, as long as there is time.

    Parameters
    ----------
    rows
        Arguments of `work` by the row's name, begun in this order.
    work
        A function of a module.
    ends
        When the time is over, as ``time.time()``; rows that still run are ended.
    workers
        Rows at a time.
    late
        Seconds before `ends` in which no row starts.
    apart
        Whether each row has a process of its own: it cannot be hurt by another's errors or memory.
    """
    found = Found({}, {})
    with get_context("spawn").Pool(
        workers, maxtasksperchild=1 if apart else None
    ) as pool:  # leaving it ends its processes
        waiting = {
            name: pool.apply_async(_attempt, (work, arguments, ends - late))
            for name, arguments in rows.items()
        }
        for name, row in waiting.items():
            try:
                value, wrong = row.get(max(0.1, ends - time.time()))
            except NotInTime:
                value, wrong = None, "had not ended when the time was over"
            if wrong:
                found.missing[name] = wrong
                print(f"{name}: {wrong}", file=sys.stderr, flush=True)
            else:
                found.values[name] = value
                print(f"{name}: done", file=sys.stderr, flush=True)
    return found


def _attempt(work: Callable[..., Any], arguments: tuple[Any, ...], latest: float) -> tuple[Any, str]:
    if time.time() > latest:
        return None, "no time left to start it"
    logging.disable(logging.INFO)
    try:
        return work(*arguments), ""
    except Exception as error:  # a row's failure is a line below the table and not the end of it
        return None, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
