"""Train passes in the way that `mode` names, as far as model and memory allow."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedclust.training.agreement import agree
from fedclust.training.cohort import CohortUpdate
from fedclust.training.device_data import DeviceData
from fedclust.training.lanes import Lanes
from fedclust.training.parameters import LocalTraining
from fedclust.training.sequential import train_sequentially
from fedclust.training.vectorised import VectorisedTraining, first_loss
from fedclust.training.work import Work

_logger = logging.getLogger(__name__)

# Relative size of a layer's rounding error. In float32 some units in the last place, 2^-23, as sums are
# rounded as well; the other two round the factors of products, to 2^-10 and 2^-7.
_ROUNDING = {"float32": 2.0**-20, "tf32": 2.0**-10, "bf16": 2.0**-7}
# Fixed amounts rather than what is free at the moment: the same run must be cut the same way every time.
_CPU_BYTES = 1 << 30
_GPU_SHARE = 0.4


def faster_together(model: nn.Module, device: torch.device) -> bool:
    """Return whether clients of a model train faster in one pass, by what its layers are.

    Dense layers do: hardly anything of a small step is arithmetic. On a CPU, the grouped convolutions that
    vmap makes of many clients' are slower than one client at a time (measured: docs/PERFORMANCE.md); a GPU
    gets more to do at a time. Recurrent and attention layers are slow under vmap.
    """
    kinds = [type(module) for module in model.modules()]
    if any(issubclass(kind, nn.RNNBase | nn.RNNCellBase) or "Attention" in kind.__name__ for kind in kinds):
        return False
    return device.type == "cuda" or not any(issubclass(kind, _ConvNd) for kind in kinds)


class Dispatcher:
    """Trains passes together or one client after another.

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
    """

    def __init__(self, lanes: Lanes, data: DeviceData, training: LocalTraining) -> None:
        self.together = training.mode == "vectorised" or (
            training.mode == "auto" and faster_together(lanes.working.model, lanes.working.device)
        )
        self._lanes = lanes
        self._working = working = lanes.working
        self._data = data
        self._training = training
        self._vectorised = VectorisedTraining(working, data, training)
        self._agreed = False
        self._capacities: dict[tuple[int, bool], int] = {}

    def capacity(self, width: int, one: Callable[[], Work]) -> int:
        """Return how many clients with batches of `width` fit into a pass: `chunk`, or what memory allows.

        The work of one of them is asked for where no such client was seen before.
        """
        if self._training.chunk != "auto":
            return self._training.chunk
        key = width, self.together
        if key not in self._capacities:
            self._capacities[key] = self._clients_per_pass(one())
        return self._capacities[key]

    def _clients_per_pass(self, work: Work) -> int:
        """Estimate how many clients like the first of some take 1 GiB, or 40 % of the GPU's memory; >= 1.

        If they train one by one, only their results take memory.
        """
        training, device, needed = self._training, self._working.device, self._working.nbytes
        budget = float(_CPU_BYTES)
        if device.type == "cuda":
            ours = torch.cuda.get_per_process_memory_fraction(device)  # several nodes may share a GPU
            budget = _GPU_SHARE * ours * torch.cuda.get_device_properties(device).total_memory
        if self.together:
            # The model, its gradient, and one more for temporaries; the moments and Adam's denominator;
            # FedProx's start and difference.
            copies = 3 + bool(training.momentum) + 3 * (training.optimizer == "adam")
            copies += 2 * bool(training.proximal_mu)
            # The backward pass holds about as much again. If the model raises, training will report it.
            with contextlib.suppress(Exception):
                needed = copies * needed + 2 * self._saved_bytes(work)
        return max(1, int(budget / max(1, needed)))

    def _saved_bytes(self, work: Work) -> int:
        """Compute the bytes that the forward pass of a client's first batch keeps for the backward pass."""
        own = {tensor.untyped_storage().data_ptr() for tensor in self._working.tensors.values()}
        saved: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        self._working.model.train()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            first_loss(self._working, self._data, self._training, work)
        return sum(saved.values())

    def train(self, work: Work) -> Iterator[CohortUpdate]:
        """Train a pass, in one or more parts."""
        if self.together and self._vectorised.mlp is None and not self._agreed:
            try:
                self._agreed = self._agree(work)
            except torch.OutOfMemoryError:
                pass  # too much for one pass, but smaller ones may fit
            # A model may refuse to be vectorised with any exception at all.
            except Exception as error:
                self._give_up(error)
            else:
                if not self._agreed:  # all clients that were tried failed, and one by one is always correct
                    yield self._alone(work)
                    return
        yield from self._train_together(work)

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
        """Train a pass together, in halves where memory runs out, or one by one where that fails."""
        update, halve = None, False
        if self.together:
            try:
                update = self._in_one_pass(work)
            # What failed must not outlive this clause, or its memory would be missing in the next attempt.
            except torch.OutOfMemoryError:
                halve = len(work.jobs) > 1
            except Exception as error:
                self._give_up(error)
        if halve:
            half = len(work.jobs) // 2
            yield from self._train_together(work.part(0, half))
            yield from self._train_together(work.part(half, len(work.jobs)))
        else:
            yield self._alone(work) if update is None else update

    def _in_one_pass(self, work: Work) -> CohortUpdate:
        if len(work.jobs) > 1:
            return self._vectorised.train(work)
        # A batched product of one matrix uses another kernel than that of many. Trained twice side by side, a
        # client gets the same bits as among others, so it does not matter which clients share a node.
        twice = self._vectorised.train(work.select([0, 0]))
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
