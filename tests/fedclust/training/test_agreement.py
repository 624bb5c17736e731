"""Whether two ways of training agree, up to rounding and what it grows to."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedclust.training.agreement import agree
from fedclust.training.batches import Batches
from fedclust.training.cohort import CohortUpdate, Job
from fedclust.training.work import Work


def work_of(clients: int, steps: int) -> Work:
    batches = Batches(
        np.zeros((clients, steps, 2), dtype=np.int64),
        np.full((clients, steps), 2),
        np.full(clients, steps),
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


def test_ways_that_disagree_are_refused() -> None:
    assert agree(way(), way(1.0005), work_of(3, 4), 1e-3)
    with pytest.raises(ArithmeticError, match=r"losses are \[1.01, 1.01\] together and \[1.0, 1.0\] alone"):
        agree(way(), way(1.01), work_of(3, 4), 1e-3)


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


# -- Rounding that grows --------------------------------------------------------------------------------


def growing(by: float, losses: tuple[float, float] = (3.1138, 15.7149)) -> Callable[[Work], CohortUpdate]:
    """Make a way whose loss of the second step changes by so many times what its only weight does."""

    def train(work: Work) -> CohortUpdate:
        listed = []
        for job in work.jobs:
            moved = float(job.state["w"][0]) - 1.0 if job.state else 0.0
            listed.append(np.array([losses[0] + moved, losses[1] + by * moved]))
        clients = np.array([job.client for job in work.jobs])
        return CohortUpdate(clients, {}, tuple(listed), np.ones(len(clients), dtype=np.int64), {})

    return train


def work_from_one() -> Work:
    work = work_of(3, 4)
    state = {"w": torch.ones(1, dtype=torch.float64), "count": torch.tensor(3)}
    return dataclasses.replace(work, jobs=[Job(job.client, job.rows, state) for job in work.jobs])


def test_losses_apart_by_as_much_as_rounding_grows_are_the_same() -> None:
    # Losses of ResNet-18 that were taken for wrong: 0.0344 apart, 0.0022 of the loss. A weight off
    # by 2^-20 moves the second loss by some 0.02 where growth is 20,000-fold; ten times that may be.
    together = growing(0.0, losses=(3.1139, 15.7493))
    assert agree(growing(20_000.0), together, work_from_one(), 1e-3)


def test_losses_apart_where_rounding_does_not_grow_are_not_the_same() -> None:
    together = growing(0.0, losses=(3.1139, 15.7493))
    with pytest.raises(ArithmeticError, match=r"together and \[3.1138, 15.7149\] alone, apart by more"):
        agree(growing(1.0), together, work_from_one(), 1e-3)


def test_the_first_loss_is_judged_by_its_own_growth() -> None:
    # Rounding grows in the second step; what is wrong in the first, before any step, is wrong.
    with pytest.raises(ArithmeticError):
        agree(growing(20_000.0), growing(0.0, losses=(3.1500, 15.7493)), work_from_one(), 1e-3)


def test_a_way_that_rounds_more_coarsely_may_carry_it_further() -> None:
    # 7.5e-5 off before the first step, as BatchNorm over a filled batch is, 80 times 2^-20; growth of 500
    # makes 0.037 of that, within the 0.0344 that losses are apart, and 0.0005 of 2^-20 itself.
    near = growing(0.0, losses=(3.113875, 15.7493))
    assert agree(growing(500.0), near, work_from_one(), 1e-4)
    with pytest.raises(ArithmeticError):
        agree(growing(500.0), growing(0.0, losses=(3.1138, 15.7493)), work_from_one(), 1e-4)


def test_perturbed_training_that_overflows_leaves_its_step_open() -> None:
    alone = growing(float("inf"))
    assert agree(
        lambda work: alone(work) if (work.jobs[0].state["w"] != 1).any() else growing(0.0)(work),
        growing(0.0, losses=(3.1138, 17.0)),
        work_from_one(),
        1e-3,
    )
