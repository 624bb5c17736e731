"""Rows measure the way of training that they name, or are missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from fedclust.training.kernels import recorders
from fedclust.training.kernels.recorded import RecordedTraining
from fedclust.training.kernels.recorded_cohort import RecordedCohorts
from fedclust.training.scheduling.dispatch import Dispatcher

__all__ = ["only_recorded"]


@contextmanager
def only_recorded(small: bool) -> Iterator[None]:
    """Make a mode raise where it would train in another way: without CUDA graphs, or one after another.

    Parameters
    ----------
    small
        Whether graphs may run on a CPU, where a step is called again in place of one; no measurement then.
    """

    def refuse(_: Any, reason: str) -> None:
        raise RuntimeError(f"without CUDA graphs: {reason}")

    def refuse_alone(dispatcher: Dispatcher, error: Exception) -> None:
        if dispatcher._training.mode != "auto":
            raise error
        give_up(dispatcher, error)

    give_up = Dispatcher._give_up
    on_cpus = {"cpu": recorders.CallAgain} if small else {}
    with (
        patch.object(RecordedTraining, "_give_up", refuse),
        patch.object(RecordedCohorts, "_give_up", refuse),
        patch.object(Dispatcher, "_give_up", refuse_alone),
        patch.dict(recorders.RECORDERS, on_cpus),
    ):
        yield
