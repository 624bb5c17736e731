"""Local training by recorded steps, several clients at a time on streams of their own.

One thread queues the steps of all lanes in turn. A step is one call then, so the GPU has work from every lane
while the thread goes on, and a client's steps stay in order.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from fedclust.training.cohort import CohortUpdate
from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.recorded_step import RecordedLane, Results
from fedclust.training.kernels.recorders import make_recorder
from fedclust.training.kernels.trace import NotRecordable
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.losses import on_device
from fedclust.training.parameters import LocalTraining
from fedclust.training.results import collect, empty_rows
from fedclust.training.scheduling.work import Work

__all__ = ["RecordedTraining"]

_logger = logging.getLogger(__name__)


class RecordedTraining:
    """Trains clients by repeating recorded steps; results equal those of one after another up to rounding.

    Where that is impossible, clients train without recordings: all of them if the model's step cannot be
    recorded, which is logged once, and those with a batch whose size the model refuses.

    Parameters
    ----------
    working
        The model; it is copied.
    data
        The dataset.
    training
        Hyperparameters.
    otherwise
        Trains clients without recordings.

    Raises
    ------
    ValueError
        If there is nothing to record with on the device.
    """

    def __init__(
        self,
        working: WorkingModel,
        data: DeviceData,
        training: LocalTraining,
        otherwise: Callable[[Work], CohortUpdate],
    ) -> None:
        device = working.device
        recorders = [make_recorder(device, training.mode) for _ in range(training.streams)]
        self._working = working
        self._data = data
        self._otherwise = otherwise
        self._refused: set[tuple[int, bool]] = set()
        self._reason = ""
        self._lanes: list[RecordedLane] = []
        if data.rows_device != device:
            self._give_up(f"the dataset takes too much of the memory of {device}")
            return
        loss = on_device(training.loss, device)
        # Copied now: a module that has kept a result of its forward pass cannot be copied any more.
        self._lanes = [
            RecordedLane(copy.deepcopy(working), data, training, loss, recorder) for recorder in recorders
        ]

    def train(self, work: Work) -> Iterator[CohortUpdate]:
        """Train the clients of a pass, in one part or two."""
        needed = {
            (size, work.proximal_mu > 0): int(np.flatnonzero((work.batches.sizes == size).any(axis=1))[0])
            for size in np.unique(work.batches.sizes).tolist()
            if size
        }
        lanes = self._lanes[: len(work.jobs)]
        if not self._reason:
            self._record(work, needed, lanes)
        if self._reason:
            yield self._otherwise(work)
            return
        refused = [size for size, _ in needed.keys() & self._refused]
        without = np.isin(work.batches.sizes, refused).any(axis=1)
        if not without.any():
            yield self._train(work, lanes)
            return
        yield self._otherwise(work.select(np.flatnonzero(without).tolist()))
        if not without.all():
            yield self._train(work.select(np.flatnonzero(~without).tolist()), lanes)

    def _record(self, work: Work, needed: dict[tuple[int, bool], int], lanes: Sequence[RecordedLane]) -> None:
        """Record the steps that a pass needs, each with a client that has such a batch."""
        _, steps, width = work.batches.rows.shape
        try:
            for lane in lanes:
                lane.make_room(steps, width, list(needed))
                for kind, index in needed.items():
                    if kind not in self._refused:
                        self._record_kind(lane, kind, work, index)
        except NotRecordable as error:
            self._give_up(str(error))
        # A capture may fail in ways that no check has foreseen, and without graphs everything works.
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def _record_kind(self, lane: RecordedLane, kind: tuple[int, bool], work: Work, index: int) -> None:
        try:
            lane.try_step(*kind, work, index)
        except (NotRecordable, torch.OutOfMemoryError):
            raise
        # The model is the user's code: it may refuse some sizes of batches, and other clients have none such.
        except Exception:
            self._refused.add(kind)
        else:
            lane.record(*kind)

    def _train(self, work: Work, lanes: Sequence[RecordedLane]) -> CohortUpdate:
        state = empty_rows(self._working, work.jobs)
        losses = torch.zeros(work.batches.sizes.shape, device=self._data.device)
        self._run(work, lanes, Results(state, losses))
        return collect(self._working, work, state, losses, {})

    def _run(self, work: Work, lanes: Sequence[RecordedLane], results: Results) -> None:
        """Queue all steps: one of each lane in turn."""
        rows = torch.from_numpy(work.batches.rows).to(self._data.rows_device, non_blocking=True)
        waiting = iter(range(len(work.jobs)))  # a lane takes the next client when it has queued its last

        def steps(lane: RecordedLane) -> Iterator[int]:
            for index in waiting:
                yield from lane.train(work, index, rows, results)

        for lane in lanes:
            lane.begin(work)
        going = [steps(lane) for lane in lanes]
        while going:
            going = [each for each in going if next(each, None) is not None]
        for lane in lanes:
            lane.recorder.end()

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._lanes = []  # and their memory
        _logger.warning("clients train one after another, without CUDA graphs: %s", reason)
