"""Batches as the model sees them."""

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
