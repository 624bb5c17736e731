"""Cutting passes."""

import numpy as np
import torch

from fedclust.training.cohort import Batches, Job, Work


def make() -> Work:
    """Three clients of 3, 2 and 1 steps in batches of 2."""
    steps = np.array([3, 2, 1])
    rows = np.arange(18).reshape(3, 3, 2)
    sizes = 2 * (np.arange(3) < steps[:, None])
    jobs = [Job(10 + index, np.arange(index), {}) for index in range(3)]
    return Work(jobs, Batches(rows, sizes, steps), torch.arange(9).view(3, 3), 0.1, 0.2)


def test_a_part_has_its_clients_and_no_more_steps_than_they_take() -> None:
    part = make().part(1, 3)
    assert [job.client for job in part.jobs] == [11, 12]
    assert part.batches.steps.tolist() == [2, 1]
    assert part.batches.rows.tolist() == [[[6, 7], [8, 9]], [[12, 13], [14, 15]]]
    assert part.batches.sizes.tolist() == [[2, 2], [2, 0]]
    assert part.keys.tolist() == [[3, 4], [6, 7]]
    assert (part.learning_rate, part.proximal_mu) == (0.1, 0.2)


def test_a_part_may_be_cut_short() -> None:
    part = make().part(0, 3, steps=2)
    assert part.batches.steps.tolist() == [2, 2, 1]
    assert part.batches.rows.shape == (3, 2, 2)
    assert make().part(2, 3, steps=5).batches.rows.shape == (1, 1, 2)


def test_selected_clients() -> None:
    selected = make().select([0, 2])
    assert [job.client for job in selected.jobs] == [10, 12]
    assert selected.batches.steps.tolist() == [3, 1]
    assert selected.keys.tolist() == [[0, 1, 2], [6, 7, 8]]
