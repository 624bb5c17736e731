"""Residual networks: ResNet-9 and ResNet-18."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from fedclust.models import options
from fedclust.models.classifier import Classifier
from fedclust.models.options import image_shape

__all__ = ["ResNet9", "ResNet18"]


class ResNet9(Classifier):
    """The nine-layer residual network for small images.

    Source: Page, "How to Train Your ResNet" (2018), without his constant factor on the logits. FMCL,
    Section 4.4, only says "ResNet9".

    It has 6,573,130 parameters on three channels with 10 classes: 9 a b + 2 b per convolution from a to b
    channels with its normalisation, over (3, 64), (64, 128), twice (128, 128), (128, 256), (256, 512) and
    twice (512, 512), and 513 per class.

    Parameters
    ----------
    input_shape
        Channels, height and width; at least 8 × 8.
    num_classes
        Number of classes C.

    Raises
    ------
    ValueError
        If the image is too small for the three poolings or there are fewer than two classes.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        options.ResNet9(input_shape, num_classes)
        channels, _, _ = image_shape(input_shape)
        body = nn.Sequential(
            *_convolution(channels, 64),
            *_convolution(64, 128),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(*_convolution(128, 128), *_convolution(128, 128))),
            *_convolution(128, 256),
            nn.MaxPool2d(2),
            *_convolution(256, 512),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(*_convolution(512, 512), *_convolution(512, 512))),
            _GlobalMaximum(),
        )
        super().__init__(body, 512, num_classes)
        _initialise(self)


class ResNet18(Classifier):
    """The 18-layer residual network.

    Source: He et al., "Deep Residual Learning for Image Recognition" (2016), Table 1; FMCL, Section 4.4.

    Parameters on three channels: 11,176,512 + 513 C with the ImageNet stem (11,689,512 for ImageNet's 1,000
    classes), 11,168,832 + 513 C with the CIFAR stem (11,173,962 for 10 classes).

    Parameters
    ----------
    input_shape
        Channels, height and width.
    num_classes
        Number of classes C.
    stem
        ``"imagenet"``: a 7×7 convolution and pooling, which reduce each side to a quarter. ``"cifar"``: one
        3×3 convolution, which keeps the size, as is usual for images of about 32 × 32.

    Raises
    ------
    ValueError
        If the shape is not an image's, the stem is unknown, or there are fewer than two classes.
    """

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, stem: Literal["imagenet", "cifar"]
    ) -> None:
        options.ResNet18(input_shape, num_classes, stem)
        channels, _, _ = image_shape(input_shape)
        if stem == "imagenet":
            first: list[nn.Module] = [
                nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
                nn.BatchNorm2d(64),
                nn.ReLU(),
                nn.MaxPool2d(3, stride=2, padding=1),
            ]
        else:
            first = _convolution(channels, 64)
        blocks: list[nn.Module] = []
        for before, after in ((64, 64), (64, 128), (128, 256), (256, 512)):
            blocks += [_basic_block(before, after), _basic_block(after, after)]
        body = nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(body, 512, num_classes)
        _initialise(self)


class _Residual(nn.Module):
    """Add a shortcut to the output of a body."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.body(values) + self.shortcut(values)
        return total


class _GlobalMaximum(nn.Module):
    """The largest value of each channel, (B, C, H, W) to (B, C)."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.amax(dim=(2, 3))


def _basic_block(before: int, after: int) -> nn.Module:
    """Build two 3×3 convolutions and a shortcut; both halve the image if the number of channels changes."""
    stride = 1 if before == after else 2
    body = nn.Sequential(
        *_convolution(before, after, stride),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
    )
    if stride == 1:
        return nn.Sequential(_Residual(body), nn.ReLU())
    shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))
    return nn.Sequential(_Residual(body, shortcut), nn.ReLU())


def _convolution(before: int, after: int, stride: int = 1) -> list[nn.Module]:
    """Build a normalised 3×3 convolution that keeps or halves the size; a bias would have no effect."""
    return [
        nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    ]


def _initialise(model: nn.Module) -> None:
    """Draw the kernels as He et al. do for ReLU networks; other layers keep torch's defaults."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
