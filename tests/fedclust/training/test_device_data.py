"""Batches as the model sees them; random crops and flips."""

import dataclasses

import numpy as np
import pytest
import torch

from fedclust.training import device_data
from fedclust.training.device_data import DeviceData, crop_and_flip


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30])
@pytest.mark.parametrize("kind", ["linear", "positions"])
def test_images_are_normalised_and_tokens_stay(small, kind: str, kept_bytes: int, monkeypatch) -> None:
    monkeypatch.setattr(device_data, "_KEPT_BYTES", kept_bytes)
    data = small.federation(kind)
    before, rows = data.inputs.clone(), torch.tensor([[5, 0], [3, 5], [1, 1]])
    inputs, labels = DeviceData(data, torch.device("cpu")).batch(rows)
    assert inputs.shape == (3, 2, *before.shape[1:])
    torch.testing.assert_close(inputs[1, 0], small.normalised(data, before[3]))
    assert labels.tolist() == data.labels[rows].tolist()
    torch.testing.assert_close(data.inputs, before)


@pytest.mark.parametrize(
    ("free", "share", "reserved", "left"),
    [
        (90, 1.0, 10, 90),  # alone
        (20, 1.0, 10, 20),  # others use the rest
        (90, 0.25, 10, 15),  # a quarter of 100, of which 10 are taken
    ],
)
def test_a_node_counts_its_own_share_of_a_gpu(free, share, reserved, left, monkeypatch) -> None:
    gpu = torch.device("cuda:1")
    names = ("mem_get_info", "get_per_process_memory_fraction", "memory_reserved")
    for name, value in zip(names, ((free, 100), share, reserved), strict=True):
        monkeypatch.setattr(torch.cuda, name, {gpu: value}.__getitem__)  # of another GPU nothing is known
    assert device_data._memory_left(gpu) == left


NOTHING = torch.zeros(1, 1, 1, dtype=torch.uint8)


def test_each_image_is_a_window_of_its_padded_self(small) -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (3, 50, 2, 5, 6), dtype=np.uint8))
    keys = torch.tensor([7, 8, 2**32 - 1])
    cropped = crop_and_flip(images, keys, NOTHING)
    for client, key in enumerate(keys.tolist()):
        for place in range(50):
            expected = small.window(images[client, place].numpy(), key, place)
            np.testing.assert_array_equal(cropped[client, place].numpy(), expected)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30])
def test_the_border_is_black_before_normalisation(small, kept_bytes, monkeypatch) -> None:
    monkeypatch.setattr(device_data, "_KEPT_BYTES", kept_bytes)
    data = small.federation()
    keys = torch.tensor([11, 12])
    rows = torch.tensor([[5, 0, 9], [3, 5, 1]])
    inputs, _ = DeviceData(data, torch.device("cpu")).batch(rows, keys)
    for client in range(2):
        for place in range(3):
            raw = small.window(data.inputs[rows[client, place]].numpy(), int(keys[client]), place)
            torch.testing.assert_close(inputs[client, place], small.normalised(data, torch.from_numpy(raw)))


@pytest.mark.parametrize("mode", ["sequential", "vectorised", "auto"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["linear", "convolution", "dropout", "channel dropout"])
def test_every_way_of_training_sees_the_same_images(small, kind: str, mode: str, threads: int) -> None:
    small.assert_as_literal(small.set_up(kind, augmentation="crop_flip", mode=mode, chunk=3, threads=threads))


def test_evaluation_sees_images_as_they_are(small) -> None:
    made = [small.set_up("convolution", augmentation=kind) for kind in ("none", "crop_flip")]
    plain, augmented = ([scores.figures for scores in each.trainer.evaluate(each.jobs)] for each in made)
    assert len(plain) == len(small.sizes)
    assert plain == augmented


def test_only_images_can_be_augmented(small) -> None:
    said = r"augmentation must be none for examples of shape \[6\], .* got crop_flip"
    with pytest.raises(ValueError, match=said):
        small.set_up("lstm", augmentation="crop_flip")
    with pytest.raises(ValueError, match="augmentation must be one of none, crop_flip, got 'cutout'"):
        small.set_up(augmentation="cutout")


def test_labels_are_classes(small) -> None:
    data = small.federation()
    DeviceData(dataclasses.replace(data, num_classes=int(data.labels.max()) + 1), torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^labels must be in \[0, 2\), got 0 to 2$"):
        DeviceData(dataclasses.replace(data, num_classes=2), torch.device("cpu"))
    data.labels[7] = -1
    with pytest.raises(ValueError, match=r"^labels must be in \[0, 3\), got -1 to 2$"):
        DeviceData(data, torch.device("cpu"))
