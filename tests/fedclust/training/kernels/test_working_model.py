from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fedclust.training.kernels.working_model import WorkingModel


def test_the_generator_of_the_models_own_gpu_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    current, seeded = [torch.device("cuda:0")], []

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda number: seeded.append((current[-1], number)))
    working = WorkingModel(nn.Linear(1, 1), torch.device("cpu"), "float32")
    with torch.random.fork_rng(devices=[]):
        working.seed(7)
        assert seeded == []
        working.device = torch.device("cuda:1")
        working.seed(7)
        assert torch.initial_seed() == 7
    assert seeded == [(torch.device("cuda:1"), 7)]
