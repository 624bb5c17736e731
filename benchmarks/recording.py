"""Rows for CUDA graphs measure CUDA graphs or are missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from fedclust.training.kernels import recorders
from fedclust.training.kernels.recorded import RecordedTraining

__all__ = ["only_recorded"]


@contextmanager
def only_recorded(small: bool) -> Iterator[None]:
    """Make ``training.mode=cuda_graphs`` raise where it would train without them.

    Parameters
    ----------
    small
        Whether it may run on a CPU, where a step is called again in place of a graph; no measurement then.
    """

    def refuse(_: RecordedTraining, reason: str) -> None:
        raise RuntimeError(f"without CUDA graphs: {reason}")

    on_cpus = {"cpu": recorders.CallAgain} if small else {}
    with patch.object(RecordedTraining, "_give_up", refuse), patch.dict(recorders.RECORDERS, on_cpus):
        yield
