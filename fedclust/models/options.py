"""The options of networks and encoders with their rules; imports no third-party library.

Each dataclass has the name and the arguments of a class of this package, which uses it to check them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from fedclust.support.checks import check

Pooling = Literal["cls", "mean", "pooler"]


@dataclass(frozen=True)
class _Network:
    """Options of every network: the shape of an example, and the number of classes."""

    input_shape: Sequence[int]
    num_classes: int


@dataclass(frozen=True)
class MLP(_Network):
    """Options of :class:`fedclust.models.dense.MLP`."""

    hidden: Sequence[int]

    def __post_init__(self) -> None:
        num_columns(self.input_shape)
        check(self, hidden="numbers >= 1")


@dataclass(frozen=True)
class TableEmbedding(_Network):
    """Options of :class:`fedclust.models.dense.TableEmbedding`."""

    category_sizes: Sequence[int] | None
    embedding: int
    hidden: Sequence[int]

    def __post_init__(self) -> None:
        columns, sizes = num_columns(self.input_shape), list(self.category_sizes or ())
        if not 1 <= len(sizes) <= columns or min(sizes) < 1:
            raise ValueError(
                f"category_sizes must be 1 to {columns} sizes >= 1, one per column of categories with "
                f"dataset.encoding=index, got {self.category_sizes}"
            )
        check(self, embedding=">= 1", hidden="numbers >= 1")


@dataclass(frozen=True)
class _ImageNetwork(_Network):
    def __post_init__(self) -> None:
        image_shape(self.input_shape)


@dataclass(frozen=True)
class ConvNet(_ImageNetwork):
    """Options of :class:`fedclust.models.images.ConvNet`."""

    channels: Sequence[int]
    kernel_size: int
    padding: Sequence[int]
    hidden: Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, kernel_size=">= 1", padding="numbers >= 0")
        check(self, channels="numbers >= 1", hidden="numbers >= 1")
        _one_each(self.channels, "padding", self.padding)


@dataclass(frozen=True)
class BlockConvNet(_ImageNetwork):
    """Options of :class:`fedclust.models.images.BlockConvNet`."""

    channels: Sequence[int]
    dropout: Sequence[float]
    hidden: int
    hidden_dropout: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, channels="numbers >= 1", hidden=">= 1")
        _one_each(self.channels, "dropout", self.dropout)


@dataclass(frozen=True)
class MobileNetV2(_ImageNetwork):
    """Options of :class:`fedclust.models.foundation.MobileNetV2`."""

    pretrained: str | None
    dropout: float


@dataclass(frozen=True)
class ResNet9(_ImageNetwork):
    """Options of :class:`fedclust.models.images.ResNet9`."""

    def __post_init__(self) -> None:
        _, height, width = image_shape(self.input_shape)
        if min(height, width) < 8:
            raise ValueError(f"input_shape must be at least 8 × 8 pixels, got {tuple(self.input_shape)}")


@dataclass(frozen=True)
class ResNet18(_ImageNetwork):
    """Options of :class:`fedclust.models.images.ResNet18`."""

    stem: Literal["imagenet", "cifar"]

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, stem=Literal["imagenet", "cifar"])


@dataclass(frozen=True)
class EmbeddingDense(_Network):
    """Options of :class:`fedclust.models.sequences.EmbeddingDense`."""

    vocabulary_size: int
    embedding: int
    hidden: int

    def __post_init__(self) -> None:
        num_positions(self.input_shape)
        check(self, vocabulary_size=">= 1", embedding=">= 1", hidden=">= 1")


@dataclass(frozen=True)
class BiLSTMTagger(EmbeddingDense):
    """Options of :class:`fedclust.models.sequences.BiLSTMTagger`."""


@dataclass(frozen=True)
class EmbeddingLSTM(EmbeddingDense):
    """Options of :class:`fedclust.models.sequences.EmbeddingLSTM`."""

    dropout: float
    input_dropout: float


@dataclass(frozen=True)
class PixelEncoder:
    """Options of :class:`fedclust.models.encoders.PixelEncoder`."""

    input_shape: Sequence[int]

    def __post_init__(self) -> None:
        num_columns(self.input_shape)


@dataclass(frozen=True)
class RandomEncoder(PixelEncoder):
    """Options of :class:`fedclust.models.encoders.RandomEncoder`."""

    dimension: int
    seed: int
    vocabulary_size: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, dimension=">= 4", vocabulary_size=">= 1 or None")


@dataclass(frozen=True)
class TransformersEncoder:
    """Options of :class:`fedclust.models.foundation.TransformersEncoder`."""

    path: str
    pooling: Pooling
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        check(self, pooling=Pooling)


@dataclass(frozen=True)
class CheckpointEncoder:
    """Options of :class:`fedclust.models.encoders.CheckpointEncoder`."""

    path: str
    model: Mapping[str, Any]
    mean: Sequence[float]
    std: Sequence[float]
    cluster: int


def image_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape of an image; raise ValueError if it is not three numbers, each at least 1."""
    channels, height, width = _sizes(input_shape, "(channels, height, width)", 3)
    return channels, height, width


def num_positions(input_shape: Sequence[int]) -> int:
    """Return the length of a sequence of tokens; raise ValueError if it is not one number, at least 1."""
    return _sizes(input_shape, "(positions,)", 1)[0]


def num_columns(input_shape: Sequence[int]) -> int:
    """Count the numbers in one example; raise ValueError if the shape is empty or a size is below 1."""
    return prod(_sizes(input_shape, "one or more sizes", len(input_shape) or 1))


def _sizes(input_shape: Sequence[int], wanted: str, number: int) -> Sequence[int]:
    if len(input_shape) != number or min(input_shape) < 1:
        raise ValueError(f"input_shape must be {wanted}, each >= 1, got {tuple(input_shape)}")
    return input_shape


def _one_each(channels: Sequence[int], name: str, values: Sequence[float]) -> None:
    if not channels or len(values) != len(channels):
        got = f"got {list(channels)} and {list(values)}"
        raise ValueError(f"channels and {name} must be lists of one length >= 1, {got}")
