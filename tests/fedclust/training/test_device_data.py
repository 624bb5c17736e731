"""Batches as the model sees them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedclust.training import device_data
from fedclust.training.device_data import DeviceData


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30])
def test_images_are_normalised(small: Any, kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_data, "_KEPT_BYTES", kept_bytes)
    data = small.federation()
    before = data.inputs.clone()
    rows = torch.tensor([[5, 0], [3, 5], [1, 1]])
    inputs, labels = DeviceData(data, torch.device("cpu")).batch(rows)
    assert inputs.shape == (3, 2, 2, 4, 4)
    mean, std = torch.tensor([0.4, 0.5]).view(-1, 1, 1), torch.tensor([0.2, 0.3]).view(-1, 1, 1)
    torch.testing.assert_close(inputs[1, 0], (data.inputs[3] / 255 - mean) / std)
    assert labels.tolist() == data.labels[rows].tolist()
    torch.testing.assert_close(data.inputs, before)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30])
def test_tokens_are_left_as_they_are(small: Any, kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_data, "_KEPT_BYTES", kept_bytes)
    data = small.federation("positions")
    inputs, labels = DeviceData(data, torch.device("cpu")).batch(torch.tensor([4, 2]))
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == data.inputs[[4, 2]].tolist()
    assert labels.tolist() == data.labels[[4, 2]].tolist()


@pytest.mark.parametrize(
    ("free", "share", "reserved", "left"),
    [
        (90, 1.0, 10, 90),  # alone
        (20, 1.0, 10, 20),  # others use the rest
        (90, 0.25, 10, 15),  # a quarter of 100, of which 10 are taken
    ],
)
def test_a_node_counts_its_own_share_of_a_gpu(
    free: int, share: float, reserved: int, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = torch.device("cuda:1")
    asked: list[torch.device] = []

    def answer(value: object) -> Callable[[torch.device], object]:
        def answered(device: torch.device) -> object:
            asked.append(device)
            return value

        return answered

    monkeypatch.setattr(torch.cuda, "mem_get_info", answer((free, 100)))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", answer(share))
    monkeypatch.setattr(torch.cuda, "memory_reserved", answer(reserved))
    assert device_data._memory_left(gpu) == left
    assert asked == [gpu] * 3
