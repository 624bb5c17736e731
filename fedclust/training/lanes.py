"""Compute for several clients at once, each on a separate thread.

While a long step runs, Python has time to start the steps of other clients: on two cores two clients
of a convolutional network train twice as fast on two threads as one after the other, and faster than with two
threads inside every operation, which wait for each other. If steps are short, threads only wait for
Python's lock.
"""

import copy
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from fedclust.support.devices import thread_pool, torch_threads
from fedclust.training.working_model import WorkingModel

T = TypeVar("T")
R = TypeVar("R")

# CPU seconds of a step for each thread used, Python's part being some 0.3 ms. Measured on two cores
# for networks from 50,000 to 1.8 million parameters: two threads take as long as one with steps of 0.5 ms,
# 0.75 times as long with 0.8 ms and 0.55 times with 2 ms and more.
_SECONDS_PER_LANE = 4e-4


class Lanes:
    """Threads with a copy of the model each.

    Their number follows from measured times; it does not change how an item is computed.

    Parameters
    ----------
    working
        The model; the calling thread uses it.
    most
        Most threads, >= 1; on a GPU there is always one.

    Attributes
    ----------
    most
        Most threads.
    """

    def __init__(self, working: WorkingModel, most: int) -> None:
        self.most = most if working.device.type == "cpu" else 1
        # Copied now: a module that has kept a result of its forward pass cannot be copied any more.
        self._template = copy.deepcopy(working) if self.most > 1 else None
        self._models = [working]
        self._seconds: dict[Hashable, float] = {}

    @property
    def working(self) -> WorkingModel:
        """The calling thread's model."""
        return self._models[0]

    def each(
        self,
        kind: Hashable,
        work: Callable[[WorkingModel, T], R],
        items: Sequence[T],
        steps: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[R]:
        """Do some work for every item.

        Parameters
        ----------
        kind
            Items of one kind have steps of similar cost.
        work
            Function of a model and an item.
        items
            The items; begun in this order.
        steps
            Number of steps of each item, >= 1; None where each has one.
        seeds
            Seed of torch's own generator for each item, for models that draw from it, which use one thread
            only. None where nothing can be drawn.

        Returns
        -------
        What `work` returned for each item, in order.
        """
        results: list[R | None] = [None] * len(items)
        waiting = iter(range(len(items)))  # a thread takes the next one when it has done its last

        def leave() -> None:
            deque(waiting, maxlen=0)  # nothing is left for the other threads: at the end, or after an error

        def do(model: WorkingModel, index: int) -> None:
            start = time.thread_time()  # neither waiting for a core nor for Python's lock counts
            results[index] = work(model, items[index])
            seconds = (time.thread_time() - start) / (steps[index] if steps else 1)
            self._seconds[kind] = min(seconds, self._seconds.get(kind, seconds))

        def serve(model: WorkingModel) -> None:
            try:
                for index in waiting:
                    do(model, index)
            finally:
                leave()

        def serve_alone(most: int | None = None) -> None:
            for index in itertools.islice(waiting, most):
                before = None
                if seeds is not None:
                    self.working.seed(seeds[index])
                    before = torch.get_rng_state() if self.most > 1 else None
                do(self.working, index)
                if before is not None and not torch.equal(before, torch.get_rng_state()):
                    self.most = 1  # several threads would draw from one generator in any order

        # Not by the number of lanes, which is measured: rounding would then depend on measured times.
        inside = max(1, torch.get_num_threads() // max(1, min(self.most, len(items))))
        with torch_threads(inside):
            if kind not in self._seconds:
                serve_alone(1)
            lanes = self._worthwhile(kind, len(items))
            if lanes == 1:
                serve_alone()
            else:
                with thread_pool(lanes, inside) as pool:
                    try:
                        list(pool.map(serve, self._first_models(lanes)))
                    finally:  # after an interrupt, too, the threads must stop early
                        leave()
        return results  # type: ignore[return-value]  # every item has been done

    def _worthwhile(self, kind: Hashable, items: int) -> int:
        return max(1, min(self.most, items, int(self._seconds.get(kind, 0.0) / _SECONDS_PER_LANE)))

    def _first_models(self, number: int) -> list[WorkingModel]:
        while len(self._models) < number:
            self._models.append(copy.deepcopy(self._template or self.working))
        return self._models[:number]
