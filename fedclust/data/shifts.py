"""Shifts of one client's distribution: renamed labels, amounts or times turned round, altered images.

A shift is applied once, when the data is prepared, to all training and test rows of a client
(FedGWC, Section 7.3 and Appendix H: clean, noisy and blurred clients; FedGMCC, Section IV: the same features
under contradicting labels).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from fedclust.data.targets import Numbers, from_text
from fedclust.support.checks import Checked, read_as

if TYPE_CHECKING:  # settings are checked without PyTorch, which takes seconds to import
    import torch


Rows: TypeAlias = tuple["torch.Tensor", "torch.Tensor"]


class Shift(Checked, ABC):
    """A change that applies to all of one client's data."""

    @abstractmethod
    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", draws: np.random.Generator) -> Rows:
        """Shift a client's rows.

        Parameters
        ----------
        inputs
            The client's rows, shape (n, *shape): uint8 images, int64 tokens or float32 numbers.
        labels
            Their class indices, int64, shape (n,) or (n, positions); or amounts, or times and
            events, float32.
        draws
            Random generator, for shifts that are random.

        Returns
        -------
        Inputs and labels of the same shapes and types. A tensor that the shift does not change is returned
        itself; the arguments are never modified.
        """


@dataclass(frozen=True)
class Relabel(Shift):
    """Rename the classes: class c becomes ``permutation[c]``.

    Attributes
    ----------
    permutation
        New name of each class, a permutation of 0 … C−1.

    Raises
    ------
    ValueError
        If `permutation` is not a permutation.
    """

    permutation: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "permutation", tuple(int(label) for label in self.permutation))
        if sorted(self.permutation) != list(range(len(self.permutation))):
            last, got = len(self.permutation) - 1, list(self.permutation)
            raise ValueError(f"permutation must hold each class 0 to {last} once, got {got}")

    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", _: np.random.Generator) -> Rows:
        """Rename the labels; see :meth:`Shift.apply`.

        Raises
        ------
        ValueError
            If a label is not in the permutation, or is none.
        """
        if labels.is_floating_point():
            raise ValueError("renamed labels must be classes, got amounts or times")
        if labels.numel() and (most := int(labels.max())) >= (size := len(self.permutation)):
            raise ValueError(f"labels must be below the permutation's {size} classes, got {most}")
        return inputs, labels.new_tensor(self.permutation)[labels]


@dataclass(frozen=True)
class Noise(Shift):
    """Gaussian noise, drawn once: an image has the same noise in every epoch.

    (FedGWC's released code draws new noise at every access, on the normalised image.)

    Attributes
    ----------
    std
        Standard deviation: for uint8 images in units of their full range, so that 0.1 is 25.5 grey levels;
        for float32 inputs in their own units.

    Raises
    ------
    ValueError
        If `std` is negative.
    """

    std: Annotated[float, ">= 0"]

    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", draws: np.random.Generator) -> Rows:
        """Add noise to the inputs and clip images to their range; see :meth:`Shift.apply`.

        Raises
        ------
        ValueError
            If the inputs are tokens.
        """
        import torch

        if inputs.dtype not in (torch.uint8, torch.float32):
            raise ValueError(f"noise needs uint8 images or float32 inputs, got {inputs.dtype}")
        scale = 1.0 if inputs.is_floating_point() else 255.0
        noise = draws.standard_normal(tuple(inputs.shape), dtype=np.float32)
        return _like(inputs, inputs.float() + self.std * scale * torch.from_numpy(noise)), labels


@dataclass(frozen=True)
class Blur(Shift):
    """Gaussian blur of images.

    Attributes
    ----------
    sigma
        Standard deviation of the kernel, in pixels.

    Raises
    ------
    ValueError
        If `sigma` is negative.
    """

    sigma: Annotated[float, ">= 0"]

    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", _: np.random.Generator) -> Rows:
        """Blur the inputs, with edge pixels repeated beyond the border; see :meth:`Shift.apply`.

        Raises
        ------
        ValueError
            If the inputs are not images.
        """
        import torch
        from scipy import ndimage

        _check_images(inputs, "blur")
        pixels, sigma = inputs.numpy().astype(np.float32), (0, 0, self.sigma, self.sigma)
        blurred = ndimage.gaussian_filter(pixels, sigma=sigma, mode="nearest")
        return _like(inputs, torch.from_numpy(blurred)), labels


@dataclass(frozen=True)
class Rotate(Shift):
    """Images rotated about their centre.

    Attributes
    ----------
    degrees
        Angle, counter-clockwise. Multiples of 90 move pixels exactly; other angles interpolate bilinearly and
        leave the corners black.
    """

    degrees: float

    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", _: np.random.Generator) -> Rows:
        """Rotate the inputs; see :meth:`Shift.apply`.

        Raises
        ------
        ValueError
            If the inputs are not images, or are not square and the rotation would change their shape.
        """
        import torch
        from torch.nn import functional

        _check_images(inputs, "rotation")
        height, width = inputs.shape[-2:]
        if self.degrees % 180 and height != width:
            raise ValueError(f"rotation by {self.degrees} needs square images, got {height} x {width}")
        if self.degrees % 90 == 0:
            return torch.rot90(inputs, int(self.degrees // 90) % 4, dims=(-2, -1)).contiguous(), labels
        # affine_grid gives the source of each output pixel; its second axis points down.
        cos, sin = np.cos(np.deg2rad(self.degrees)), np.sin(np.deg2rad(self.degrees))
        matrix = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]], dtype=torch.float32)
        source = matrix.expand(len(inputs), 2, 3)
        grid = functional.affine_grid(source, list(inputs.shape), align_corners=False)
        turned = functional.grid_sample(inputs.float(), grid, mode="bilinear", align_corners=False)
        return _like(inputs, turned), labels


@dataclass(frozen=True)
class Invert(Shift):
    """Images replaced by their negatives."""

    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", _: np.random.Generator) -> Rows:
        """Invert the inputs; see :meth:`Shift.apply`.

        Raises
        ------
        ValueError
            If the inputs are not uint8 images, the only ones with a known range.
        """
        _check_images(inputs, "inversion")
        return 255 - inputs, labels


@dataclass(frozen=True)
class FlipLabels(Shift):
    """Labels 0 and 1 exchanged wherever the input is one of the most frequent tokens.

    Source: FedGMCC, Section V: "randomly flipping the label of the most recurrent genomic features".

    Attributes
    ----------
    most
        Number of tokens, >= 1: those numbered 1 to `most` in a vocabulary by frequency.

    Raises
    ------
    ValueError
        If `most` is below 1.
    """

    most: Annotated[int, ">= 1"]

    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", _: np.random.Generator) -> Rows:
        """Flip the labels; see :meth:`Shift.apply`.

        Raises
        ------
        ValueError
            If the inputs are not tokens with a label each, or a label is not 0 or 1.
        """
        import torch

        if inputs.dtype != torch.int64 or inputs.shape != labels.shape:
            got = f"{inputs.dtype} of shape {tuple(inputs.shape)} and labels of {tuple(labels.shape)}"
            raise ValueError(f"flipped labels need int64 tokens with a label each, got {got}")
        if len(bad := labels[(labels < 0) | (labels > 1)]):
            raise ValueError(f"flipped labels must be 0 or 1, got {int(bad[0])}")
        frequent = (inputs >= 1) & (inputs <= self.most)
        return inputs, torch.where(frequent, 1 - labels, labels)


@dataclass(frozen=True)
class Opposite(Shift):
    """Amounts mirrored at the middle of their range; times of events with risks turned round.

    Attributes
    ----------
    target
        What is predicted, as :func:`fedclust.data.targets.to_text` writes it; see
        :meth:`fedclust.data.targets.Target.opposite`.

    Raises
    ------
    ValueError
        If `target` is none, or classes.
    """

    target: str

    def __post_init__(self) -> None:
        self._numbers()

    def _numbers(self) -> Numbers:
        if not isinstance(made := from_text(self.target), Numbers):
            raise ValueError(f"target must be amounts or times, got {made.kind}")
        return made

    def apply(self, inputs: "torch.Tensor", labels: "torch.Tensor", _: np.random.Generator) -> Rows:
        """Turn the values round; see :meth:`Shift.apply`."""
        return inputs, labels.new_tensor(self._numbers().opposite(labels.numpy()))


_CLASSES: tuple[type[Any], ...] = (Relabel, FlipLabels, Noise, Blur, Rotate, Invert, Opposite)
_NAMES = "relabel", "flip", "noise", "blur", "rotate", "invert", "opposite"
_KINDS = dict(zip(_NAMES, _CLASSES, strict=True))


def shift_to_dict(shift: Shift) -> dict[str, Any]:
    """Convert a shift to plain values: its kind and its attributes."""
    (kind,) = (kind for kind, cls in _KINDS.items() if type(shift) is cls)
    return {"kind": kind, **asdict(shift)}  # type: ignore[call-overload]


def shift_from_dict(values: Mapping[str, Any]) -> Shift:
    """Rebuild a shift from the values of :func:`shift_to_dict`.

    Raises
    ------
    ValueError
        If the kind is unknown, or the other values are not its attributes.
    """
    if (kind := values.get("kind")) not in _KINDS:
        raise ValueError(f"kind of shift must be one of {sorted(_KINDS)}, got {kind!r}")
    shift: Shift = read_as(_KINDS[kind], {name: value for name, value in values.items() if name != "kind"})
    return shift


def _check_images(inputs: "torch.Tensor", what: str) -> None:
    if str(inputs.dtype) != "torch.uint8" or inputs.ndim != 4:
        rule, got = "uint8 images of shape (n, channels, height, width)", tuple(inputs.shape)
        raise ValueError(f"{what} needs {rule}, got {inputs.dtype} of shape {got}")


def _like(inputs: "torch.Tensor", values: "torch.Tensor") -> "torch.Tensor":
    """Convert float values to the type of the inputs."""
    return values if inputs.is_floating_point() else values.round_().clamp_(0, 255).to(inputs.dtype)
