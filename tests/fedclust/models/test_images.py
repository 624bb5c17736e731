from typing import Any

import pytest
import torch
from torch import nn

from fedclust.models.images import BlockConvNet, ConvNet

SMALL: dict[str, Any] = {
    "input_shape": [1, 6, 6],
    "num_classes": 2,
    "channels": [2],
    "kernel_size": 3,
    "padding": [0],
    "hidden": [4],
}
BLOCKS: dict[str, Any] = {
    "input_shape": [1, 4, 4],
    "num_classes": 2,
    "channels": [2, 3],
    "dropout": [0.2, 0.3],
    "hidden": 4,
    "hidden_dropout": 0.5,
}


def test_features_are_pooled_rectified_convolutions() -> None:
    # The kernel takes its middle pixel; the valid part of 6 × 6 is rows and columns 1 to 4, pooled to 2 × 2.
    model = ConvNet(**SMALL | {"channels": [1], "hidden": []})
    kernel = torch.zeros(1, 1, 3, 3)
    kernel[0, 0, 1, 1] = 1.0
    model.body[0].weight.data = kernel  # type: ignore[index]
    model.body[0].bias.data.fill_(-20.0)  # type: ignore[index]
    image = torch.arange(36.0).reshape(1, 1, 6, 6)
    # Largest of each 2 × 2 square: 14, 16, 26, 28, less 20, not below 0.
    torch.testing.assert_close(model.features(image), torch.tensor([[0.0, 0.0, 6.0, 8.0]]))


def test_padding_keeps_the_border() -> None:
    # Padded by 1, 6 × 6 stays 6 × 6 and pools to 3 × 3, on each of 2 channels.
    assert ConvNet(**SMALL | {"padding": [1], "hidden": []}).width == 2 * 3 * 3


def test_height_and_width_may_differ() -> None:
    # 6 × 10: (6 - 2) / 2 by (10 - 2) / 2.
    model = ConvNet(**SMALL | {"input_shape": [1, 6, 10], "hidden": []})
    assert model.width == 2 * 2 * 4
    assert model(torch.zeros(1, 1, 6, 10)).shape == (1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # 8 → 6 → 3 → 1 → 0
        (
            {"input_shape": [1, 8, 8], "channels": [2, 2], "padding": [0, 0]},
            r"at least one pixel after pooling 2, got \(1, 8, 8\)",
        ),
        ({"input_shape": [36]}, r"input_shape must be \(channels, height, width\)"),
        ({"channels": []}, r"must be >= 1, got channels \[\]"),
        ({"hidden": [0]}, r"must be >= 1, got .* hidden \[0\]"),
        ({"kernel_size": 0}, "must be >= 1, got .* kernel_size 0"),
        ({"padding": [0, 0]}, r"padding must be 1 numbers >= 0, one per convolution, got \[0, 0\]"),
        ({"padding": [-1]}, r"padding must be 1 numbers >= 0, one per convolution, got \[-1\]"),
        ({"num_classes": 1}, "num_classes must be >= 2, got 1"),
    ],
)
def test_convnet_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvNet(**SMALL | change)


def test_blocks_are_in_the_papers_order() -> None:
    names = [type(layer).__name__ for layer in BlockConvNet(**BLOCKS).body]  # type: ignore[union-attr]
    block = ["Conv2d", "ReLU", "BatchNorm2d"] * 2 + ["MaxPool2d", "Dropout"]
    assert names == [*block, *block, "Flatten", "Linear", "ReLU", "BatchNorm1d", "Dropout"]
    rates = [layer.p for layer in BlockConvNet(**BLOCKS).modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.2, 0.3, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_shape": [1, 4, 3]}, r"at least one pixel after pooling 2, got \(1, 4, 3\)"),
        ({"input_shape": [16]}, r"input_shape must be \(channels, height, width\)"),
        ({"channels": [0, 3]}, r"must be >= 1, got channels \[0, 3\]"),
        ({"hidden": 0}, "must be >= 1, got .* hidden 0"),
        ({"dropout": [0.2]}, r"dropout must be 2 rates, one per block, got \[0.2\]"),
        ({"num_classes": 1}, "num_classes must be >= 2, got 1"),
    ],
)
def test_blockconvnet_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockConvNet(**BLOCKS | change)
