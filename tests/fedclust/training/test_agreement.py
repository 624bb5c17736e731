"""Whether two ways of training agree, up to rounding and what it grows to."""

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedclust.training.cohort import Batches, CohortUpdate, Job, Work
from fedclust.training.trainer import agree


def work_of(clients: int, steps: int) -> Work:
    batches = Batches(
        np.zeros((clients, steps, 2), dtype=np.int64), np.full((clients, steps), 2), np.full(clients, steps)
    )
    jobs = [Job(client, np.zeros(2, dtype=np.int64), {}) for client in range(clients)]
    return Work(jobs, batches, torch.zeros(clients, steps, dtype=torch.int64), 0.1, 0.0)


def way(loss: float = 1.0) -> Callable[[Work], CohortUpdate]:
    """Make a way of training that always has the same loss."""

    def train(work: Work) -> CohortUpdate:
        clients = np.array([job.client for job in work.jobs])
        losses = (np.full(work.batches.rows.shape[1], loss),) * len(clients)
        return CohortUpdate(clients, {}, losses, np.ones(len(clients), dtype=np.int64), {})

    return train


def test_ways_are_compared_on_a_client_that_can_be_trained() -> None:
    # The first client's data are not numbers, which would agree with anything.
    asked = []

    def alone(work: Work) -> CohortUpdate:
        asked.append(work.jobs[0].client)
        update = way()(work)
        return dataclasses.replace(update, failed={0: "non-finite loss"} if work.jobs[0].client == 0 else {})

    with pytest.raises(ArithmeticError):
        agree(alone, way(1.01), work_of(3, 4), 1e-3)
    assert list(dict.fromkeys(asked)) == [0, 1]
    assert not agree(alone, way(1.01), work_of(1, 4), 1e-3)  # no usable client: try again next time


def filled(mean: bool, noise: float = 0.0) -> Callable[[Work], CohortUpdate]:
    """Make a way whose losses are the mean of the row numbers of a batch, or of all that fills it too."""

    def train(work: Work) -> CohortUpdate:
        rows, sizes = work.batches.rows, work.batches.sizes
        listed = tuple(
            np.array([row[: None if mean else size].mean() for row, size in zip(*client, strict=True)])
            + noise * index
            for index, client in enumerate(zip(rows, sizes, strict=True))
        )
        clients = np.array([job.client for job in work.jobs])
        return CohortUpdate(clients, {}, listed, np.ones(len(clients), dtype=np.int64), {})

    return train


def rows_of(*rows: int) -> Work:
    work = work_of(1, 1)
    return dataclasses.replace(
        work, batches=Batches(np.array([[rows]]), np.full((1, 1), len(rows)), np.ones(1, dtype=np.int64))
    )


def test_what_fills_a_half_batch_must_not_matter() -> None:
    # Half of the batch 1000, 1001, 1002, 1003 is 1000, 1001, and filled up 1000, 1001, 1000, 1000 or the
    # whole batch: means of 1000.25 and 1001.5. Both are within 0.1 % of the right 1000.5.
    work = rows_of(1000, 1001, 1002, 1003)
    assert agree(filled(mean=False), filled(mean=False), work, 1e-3)
    with pytest.raises(
        ArithmeticError, match=r"losses are \[1000.25\] or \[1001.5\], depending on how short"
    ):
        agree(filled(mean=False), filled(mean=True), work, 1e-3)
    # A unit in the last place, 2^-23 of 1,000, is rounding.
    assert agree(filled(mean=False), filled(mean=False, noise=1000 * 2.0**-23), work, 1e-3)


@pytest.mark.parametrize(
    ("alone", "together", "same"),
    [
        ((1.0, 1.0), (1.0005, 1.0005), True),
        ((1.0, 1.0), (1.01, 1.01), False),
        # A ResNet-18's, 0.0344 apart after a step that changed the loss by 12.6: 0.27 % of it.
        ((3.1138, 15.7149), (3.1139, 15.7493), True),
        # A step half as long.
        ((3.1138, 2.0), (3.1138, 2.5), False),
        # Before any step nothing can have grown.
        ((3.1138, 15.7149), (3.1500, 15.7493), False),
    ],
)
def test_what_a_step_may_make_of_rounding(
    alone: tuple[float, float], together: tuple[float, float], same: bool
) -> None:
    def training(losses: tuple[float, float]) -> Callable[[Work], CohortUpdate]:
        return lambda work: dataclasses.replace(way()(work), losses=(np.array(losses),) * len(work.jobs))

    said = contextlib.nullcontext() if same else pytest.raises(ArithmeticError, match="more than rounding")
    with said:
        assert agree(training(alone), training(together), work_of(3, 4), 1e-3)
