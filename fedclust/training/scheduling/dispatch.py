"""Train passes in the way that `mode` names, as far as model and memory allow."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from fedclust.training.cohort import CohortUpdate
from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.recorded import RecordedTraining
from fedclust.training.kernels.recorded_cohort import RecordedCohorts
from fedclust.training.kernels.sequential import train_sequentially
from fedclust.training.kernels.vectorised import VectorisedTraining
from fedclust.training.parameters import LocalTraining
from fedclust.training.scheduling.choice import Chooser, agree
from fedclust.training.scheduling.lanes import Lanes
from fedclust.training.scheduling.memory import clients_per_pass
from fedclust.training.scheduling.work import Work

__all__ = ["Dispatcher"]

_logger = logging.getLogger(__name__)

# An MLP trains faster together whenever a step's memory fits into the cache: measured for 1 to 20 clients,
# networks of 650 to 540,000 parameters and batches of 4 and 32, on one core. So no trial is needed, and such
# runs repeat bit by bit. Anything but plain SGD uses several times the memory.
_CERTAIN_BYTES = {True: 32 << 20, False: 4 << 20}
# Relative size of a layer's rounding error. In float32 some units in the last place, 2^-23, as sums are
# rounded as well; the other two round the factors of products, to 2^-10 and 2^-7.
_ROUNDING = {"float32": 2.0**-20, "tf32": 2.0**-10, "bf16": 2.0**-7}


class Dispatcher:
    """Trains passes together, one client after another, some of each, or by CUDA graphs.

    If a model cannot be vectorised, its clients are trained one after another from then on, with a warning.

    Parameters
    ----------
    lanes
        The model, and the threads that may each train a client.
    data
        The dataset.
    training
        Hyperparameters.

    Attributes
    ----------
    together
        Whether clients may still train together.

    Raises
    ------
    ValueError
        If `mode` needs another device.
    """

    def __init__(self, lanes: Lanes, data: DeviceData, training: LocalTraining) -> None:
        self.together = training.mode in ("auto", "vectorised", "vectorised_graphs")
        self._lanes = lanes
        self._working = working = lanes.working
        self._data = data
        self._training = training
        self._vectorised = VectorisedTraining(working, data, training)
        self._recorded: RecordedTraining | None = None
        if training.mode == "cuda_graphs":
            self._recorded = RecordedTraining(working, data, training, self._alone)
        self._recorded_cohorts: RecordedCohorts | None = None
        if training.mode == "vectorised_graphs":
            self._recorded_cohorts = RecordedCohorts(self._vectorised, working, data, training)
        self._train_cohort = (self._recorded_cohorts or self._vectorised).train
        self._agreed = False
        self._capacities: dict[tuple[int, bool], int] = {}
        self._chooser = Chooser(self._alone, self._vectorised.train, working.device, threads=lanes.most)

    def capacity(self, width: int, one: Callable[[], Work]) -> int:
        """Return how many clients with batches of `width` fit into a pass: `chunk`, or what memory allows.

        The work of one of them is asked for where no such client was seen before.
        """
        if self._training.chunk != "auto":
            return self._training.chunk
        key = width, self.together
        if key not in self._capacities:
            estimate = (self._working, self._data, self._training, one())
            try:
                self._capacities[key] = clients_per_pass(*estimate, together=self.together)
            # If the model raises, training will report it; one by one needs no such estimate.
            except Exception:
                self._capacities[key] = clients_per_pass(*estimate, together=False)
        return self._capacities[key]

    def train(self, work: Work) -> Iterator[CohortUpdate]:
        """Train a pass, in one or more parts."""
        if self._recorded is not None:
            yield from self._recorded.train(work)
            return
        alone = len(work.jobs)
        if self.together:
            try:
                alone = self._number_alone(work)
            except torch.OutOfMemoryError:
                alone = 0  # too much for one pass, but smaller ones may fit
            # A model may refuse to be vectorised with any exception at all.
            except Exception as error:
                self._give_up(error)
        if alone:
            yield self._alone(work.part(0, alone))
        if alone < len(work.jobs):
            yield from self._train_together(work.part(alone, len(work.jobs)))

    def _number_alone(self, work: Work) -> int:
        plain = self._training.is_plain_sgd and not work.proximal_mu
        small = len(work.jobs) * self._working.nbytes <= _CERTAIN_BYTES[plain]
        if self._vectorised.mlp is not None and (small or self._training.mode != "auto"):
            return 0
        if not self._agreed:
            self._agreed = self._agree(work)
        if not self._agreed:  # all clients that were tried failed, and one by one is always correct
            return len(work.jobs)
        return self._chooser.number_alone(work) if self._training.mode == "auto" else 0

    def _agree(self, work: Work) -> bool:
        """Compare the two ways of training once."""
        together = self._vectorised
        if self._training.compile:  # the comparison's batches have another shape, not worth compiling for
            plain = replace(self._training, compile=False)
            together = VectorisedTraining(self._working, self._data, plain)
        # The two ways differ by rounding, which is coarser in the reduced precisions.
        tolerance = 1e-3 if self._training.precision == "float32" else 5e-2
        return agree(self._alone, together.train, work, tolerance, _ROUNDING[self._training.precision])

    def _train_together(self, work: Work) -> Iterator[CohortUpdate]:
        parts = [work]
        while parts:
            part = parts.pop()
            update, too_large = self._attempt(part) if self.together else (None, False)
            if update is not None:
                yield update
            elif too_large and len(part.jobs) > 1:
                half = len(part.jobs) // 2
                parts += [part.part(half, len(part.jobs)), part.part(0, half)]
            else:
                yield self._alone(part)

    def _attempt(self, work: Work) -> tuple[CohortUpdate | None, bool]:
        """Train a pass together; if that fails, return None and whether it ran out of memory.

        Nothing of a failed attempt may outlive this call, or its memory would be missing in the next one.
        """
        try:
            return self._in_one_pass(work), False
        except torch.OutOfMemoryError:
            return None, True
        except Exception as error:
            self._give_up(error)
            return None, False

    def _in_one_pass(self, work: Work) -> CohortUpdate:
        if len(work.jobs) > 1:
            return self._train_cohort(work)
        # A batched product of one matrix uses another kernel than that of many. Trained twice side by side, a
        # client gets the same bits as among others, so it does not matter which clients share a node.
        twice = self._train_cohort(work.select([0, 0]))
        return replace(
            twice,
            clients=twice.clients[:1],
            state={name: stacked[:1] for name, stacked in twice.state.items()},
            losses=twice.losses[:1],
            num_examples=twice.num_examples[:1],
        )

    def _alone(self, work: Work) -> CohortUpdate:
        return train_sequentially(self._lanes, self._data, self._training, work)

    def _give_up(self, error: Exception) -> None:
        self.together = False
        _logger.warning(
            "clients train one after another: training them together failed with %s: %s",
            type(error).__name__,
            str(error).partition("\n")[0],
        )
