"""Batches as the model sees them; random crops and flips."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedclust.support.rng import torch_seed
from fedclust.training import LocalTraining, device_data
from fedclust.training.cohort import draw_batches
from fedclust.training.device_data import DeviceData, crop_and_flip
from fedclust.training.trainer import Trainer
from fedclust.training.working_model import scramble, step_keys


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


NOTHING = torch.zeros(1, 1, 1, dtype=torch.uint8)


def literal(image: np.ndarray, key: int, place: int) -> np.ndarray:
    """Pad one raw image with zeros, cut out a window of its size and mirror it, pixel by pixel."""
    channels, height, width = image.shape
    number = int(scramble(scramble(torch.tensor(key)) ^ (place * 0x243F6A89) % 2**32))
    choice = number * 162 // 2**32  # 9 rows, 9 columns, mirrored or not
    down, right, mirrored = choice // 18, choice // 2 % 9, choice % 2
    padded = np.zeros((channels, height + 8, width + 8), dtype=image.dtype)
    padded[:, 4 : 4 + height, 4 : 4 + width] = image
    window = padded[:, down : down + height, right : right + width]
    return window[:, :, ::-1] if mirrored else window


def test_each_image_is_a_window_of_its_padded_self() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (3, 50, 2, 5, 6), dtype=np.uint8))
    keys = torch.tensor([7, 8, 2**32 - 1])
    cropped = crop_and_flip(images, keys, NOTHING)
    for client, key in enumerate(keys.tolist()):
        for place in range(50):
            expected = literal(images[client, place].numpy(), key, place)
            np.testing.assert_array_equal(cropped[client, place].numpy(), expected)


def test_all_outcomes_are_equally_likely() -> None:
    # Pixel (row, column) of a 9 x 9 image is 1 + 9 * row + column; padding makes it (row + 4, column + 4). So
    # the middle pixel of the crop that starts at (down, right) is pixel (down, right), mirrored or not, and
    # its left neighbour is less than its right one unless it is mirrored or the right one is black.
    image = (1 + torch.arange(81, dtype=torch.int16)).view(1, 1, 1, 9, 9)
    cropped = crop_and_flip(image.expand(200, 81, -1, -1, -1), torch.arange(200), NOTHING.to(torch.int16))
    offsets = (cropped[:, :, 0, 4, 4].flatten() - 1).numpy()
    mirrored = (cropped[:, :, 0, 4, 3] > cropped[:, :, 0, 4, 5]).flatten().numpy()[offsets % 9 < 8]
    counts = np.bincount(offsets, minlength=81)
    # 16,200 draws, 200 of each offset expected; chi-squared with 80 degrees of freedom is below 125 with
    # probability 0.999. Of n draws n / 2 are mirrored, with standard deviation sqrt(n) / 2.
    assert ((counts - 200.0) ** 2 / 200).sum() < 125
    assert abs(mirrored.sum() - len(mirrored) / 2) < 4 * len(mirrored) ** 0.5 / 2


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30])
def test_the_border_is_black_before_normalisation(
    small: Any, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_data, "_KEPT_BYTES", kept_bytes)
    data = small.federation()
    keys = torch.tensor([11, 12])
    rows = torch.tensor([[5, 0, 9], [3, 5, 1]])
    inputs, _ = DeviceData(data, torch.device("cpu")).batch(rows, keys)
    mean, std = torch.tensor([0.4, 0.5]).view(-1, 1, 1), torch.tensor([0.2, 0.3]).view(-1, 1, 1)
    for client in range(2):
        for place in range(3):
            raw = literal(data.inputs[rows[client, place]].numpy(), int(keys[client]), place)
            expected = (torch.from_numpy(raw.copy()) / 255 - mean) / std
            torch.testing.assert_close(inputs[client, place], expected)


def expected_inputs(data: Any, training: LocalTraining, client: int) -> list[torch.Tensor]:
    """The batches of one client in round 3 of seed 1, image by image."""
    batches = draw_batches([client], [data.train[client]], training, 1, 3)
    keys = step_keys(torch_seed(1, "augmentation", 3), torch.tensor([client]), int(batches.steps[0]))[0]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    found = []
    for step, key in enumerate(keys.tolist()):
        rows = batches.rows[0, step, : batches.sizes[0, step]]
        raw = [literal(data.inputs[row].numpy(), key, place).copy() for place, row in enumerate(rows)]
        found.append((torch.from_numpy(np.stack(raw)) / 255 - mean) / std)
    return found


@pytest.mark.parametrize("mode", ["sequential", "vectorised", "auto"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["linear", "convolution", "dropout", "channel dropout"])
def test_every_way_of_training_sees_the_same_images(small: Any, kind: str, mode: str, threads: int) -> None:
    training = LocalTraining(
        learning_rate=0.1, batch_size=8, epochs=2, augmentation="crop_flip", mode=mode, chunk=3
    )
    model, data = small.build(kind), small.federation(kind)
    start = small.start_of(model)
    trainer = Trainer(model, data, training, seed=1, threads=threads)
    losses, states = {}, {}
    for update in trainer.train(small.jobs(data, start), 3):
        assert not update.failed
        for index, client in enumerate(update.clients.tolist()):
            losses[client] = update.losses[index]
            states[client] = {name: stacked[index] for name, stacked in update.state.items()}
    plain = LocalTraining(learning_rate=0.1, batch_size=8, epochs=2)
    for client in range(len(small.sizes)):
        expected_state, expected_losses = literal_training(kind, small, data, plain, client)
        np.testing.assert_allclose(losses[client], expected_losses, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(states[client], expected_state, rtol=2e-4, atol=2e-5)


def literal_training(
    kind: str, small: Any, data: Any, training: LocalTraining, client: int
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train one client in round 3 of seed 1 on its augmented images, as a tutorial would."""
    from fedclust.training.working_model import prepare

    model, context = prepare(small.build(kind))
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=training.learning_rate)
    batches = draw_batches([client], [data.train[client]], training, 1, 3)
    keys = step_keys(torch_seed(1, "dropout", 3), torch.tensor([client]), 100)[0]
    losses = []
    for step, inputs in enumerate(expected_inputs(data, training, client)):
        labels = data.labels[batches.rows[0, step, : batches.sizes[0, step]]]
        context.begin(keys[step])
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return dict(model.state_dict()), losses


def test_evaluation_sees_images_as_they_are(small: Any) -> None:
    model, data = small.build("convolution"), small.federation()
    jobs = small.jobs(data, small.start_of(model))
    options = {"learning_rate": 0.1, "batch_size": 8, "epochs": 1}
    plain, augmented = (
        Trainer(model, data, LocalTraining(**options, augmentation=kind), seed=1).evaluate(jobs)
        for kind in ("none", "crop_flip")
    )
    assert len(plain) == len(small.sizes)
    assert [scores.figures for scores in plain] == [scores.figures for scores in augmented]


def test_only_images_can_be_augmented(small: Any) -> None:
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, augmentation="crop_flip")
    with pytest.raises(
        ValueError, match=r"augmentation must be none for examples of shape \[6\], .* got crop_flip"
    ):
        Trainer(small.build("lstm"), small.federation("lstm"), training, seed=1)
    with pytest.raises(ValueError, match="augmentation must be one of none, crop_flip, got 'cutout'"):
        LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, augmentation="cutout")  # type: ignore[arg-type]
