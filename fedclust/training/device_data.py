"""The dataset in the form that training reads: batches gathered, augmented and normalised on the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedclust.training.working_model import scramble

if TYPE_CHECKING:
    from fedclust.data.dataset import FederatedData


# Datasets up to this size as float32 are normalised once and kept; larger ones batch by batch.
_KEPT_BYTES = 64 << 20
# Share of the GPU's free memory that the dataset may take; the rest is for models and activations.
_GPU_SHARE = 0.5
PADDING = 4  # pixels on each side that a crop may move
_OFFSETS = 2 * PADDING + 1
_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x243F6A89  # digits of pi, odd: spreads positions in a batch over all 32-bit numbers


class DeviceData:
    """Rows of a dataset on a device.

    The whole dataset is kept on a GPU if it takes at most half of the free memory; otherwise its rows are
    gathered on the host and sent.

    Parameters
    ----------
    data
        The federation.
    device
        Device on which batches are needed.

    Attributes
    ----------
    num_classes
        Number of classes or bins C.
    num_outputs
        Number of a network's outputs for a row, or for each of its positions.
    target
        What is predicted.
    example_dims
        Number of dimensions of one example.
    labels_have_positions
        Whether each position of an example has its own label.
    positions
        Number of labels of an example.
    rows_device
        The device that `rows` of :meth:`batch` must be on: the one that holds the dataset.
    no_rows
        The values of no rows.

    Raises
    ------
    ValueError
        If a label is not in [0, num_classes).
    """

    def __init__(self, data: FederatedData, device: torch.device) -> None:
        lowest, highest = (int(bound) for bound in torch.aminmax(data.labels)) if len(data.labels) else (0, 0)
        if not 0 <= lowest <= highest < data.num_classes:
            raise ValueError(f"labels must be in [0, {data.num_classes}), got {lowest} to {highest}")
        self.device = device
        self.num_classes = data.num_classes
        self.num_outputs, self.target = data.num_outputs, data.target
        self.no_rows = data.truth[:0].clone()
        self.example_dims = data.inputs.dim() - 1
        self.labels_have_positions = data.labels.dim() > 1
        self.positions = math.prod(data.labels.shape[1:])
        self._scale, self._shift = _affine(data.mean, data.std, data.inputs, device)
        self._inputs, self._truth = data.inputs, data.truth
        if device.type == "cuda":
            size = data.inputs.nbytes + data.truth.nbytes
            if size <= _GPU_SHARE * _memory_left(device):
                self._inputs, self._truth = data.inputs.to(device), data.truth.to(device)
        self.rows_device = self._inputs.device
        self._were_bytes = data.inputs.dtype == torch.uint8
        self._normalised = data.inputs.numel() * 4 <= _KEPT_BYTES
        if self._normalised:
            self._inputs = self._normalise(self._inputs)

    def batch(self, rows: Tensor, augmentation: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gather examples.

        Parameters
        ----------
        rows
            Rows of the dataset, int64, any shape, on `rows_device`.
        augmentation
            Keys of random crops and flips, one for each batch of `rows`, shape () or (n,); None for no
            augmentation.

        Returns
        -------
        Inputs ready for a model, and labels or other values; the shape of `rows` takes the place of N in
        their shapes.
        """
        flat = rows.reshape(-1)
        inputs = self._inputs.index_select(0, flat).to(self.device, non_blocking=True)
        truth = self._truth.index_select(0, flat).to(self.device, non_blocking=True)
        if augmentation is not None:
            batches = inputs.unflatten(0, (-1, rows.shape[-1]))
            # The value of a 0 in the dataset, which may have been normalised.
            black = self._shift if self._normalised and self._were_bytes else inputs.new_zeros(1, 1, 1)
            inputs = crop_and_flip(batches, augmentation.view(-1), black).flatten(0, 1)
        if not self._normalised:
            inputs = self._normalise(inputs)
        if rows.dim() == 1:
            return inputs, truth
        return inputs.unflatten(0, rows.shape), truth.unflatten(0, rows.shape)

    def _normalise(self, inputs: Tensor) -> Tensor:
        if inputs.dtype != torch.uint8:
            return inputs
        # ((x / 255) - mean) / std in one multiplication and one addition.
        scale, shift = self._scale.to(inputs.device), self._shift.to(inputs.device)
        return inputs.to(torch.float32).mul_(scale).add_(shift)


def _memory_left(device: torch.device) -> float:
    """Compute how many bytes of a GPU this process may still use: several nodes may share one."""
    free, total = torch.cuda.mem_get_info(device)
    ours = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free, ours - torch.cuda.memory_reserved(device))


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalise uint8 images, shape (N, channels, height, width), to the same bits as in training."""
    scale, shift = _affine(mean, std, images, images.device)
    return images.to(torch.float32).mul_(scale).add_(shift)


def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], inputs: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    shape = (-1, *[1] * (inputs.dim() - 2))
    means = torch.tensor(mean or (0.0,), dtype=torch.float64).view(shape)
    stds = torch.tensor(std or (1.0,), dtype=torch.float64).view(shape)
    return (1 / (255 * stds)).float().to(device), (-means / stds).float().to(device)


def crop_and_flip(images: Tensor, keys: Tensor, fill: Tensor) -> Tensor:
    """Pad images by 4 pixels on each side, crop each at random to its size, and mirror it with probability ½.

    Equal to torchvision's ``RandomCrop(size, padding=4)`` and ``RandomHorizontalFlip()`` on the raw image,
    the usual augmentation for CIFAR, which FedGWC's code also uses. The crop and flip of an image depend only
    on its key and its position in the batch.

    Parameters
    ----------
    images
        Shape (n, B, channels, height, width), of any type.
    keys
        A number per batch, int64 in [0, 2**32), shape (n,).
    fill
        Value in `images` of a black pixel (0 in the raw image), of the same type, shape (channels, 1, 1) or
        (1, 1, 1).

    Returns
    -------
    Images of the same shape and type.
    """
    clients, size, channels, height, width = images.shape
    places = (torch.arange(size, device=images.device) * _MULTIPLIER) & _MASK
    # One 32-bit number chooses among the 9 * 9 * 2 outcomes.
    drawn = scramble(scramble(keys.to(images.device))[:, None] ^ places).reshape(-1)
    choice = (drawn * (2 * _OFFSETS**2)) >> 32
    down, right = choice // (2 * _OFFSETS), choice // 2 % _OFFSETS
    mirrored = (choice % 2).bool()[:, None]

    rows = down[:, None] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = right[:, None] + torch.where(mirrored, columns.flip(0), columns)
    padded_width = width + 2 * PADDING
    padded = fill.expand(clients * size, channels, height + 2 * PADDING, padded_width).clone()
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images.flatten(0, 1)
    pixels = (rows[:, :, None] * padded_width + columns[:, None, :]).flatten(1)
    cropped = padded.flatten(2).gather(2, pixels[:, None].expand(-1, channels, -1))
    return cropped.view(images.shape)
