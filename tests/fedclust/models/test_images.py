"""Convolutional and residual networks."""

import math

import pytest
import torch
from torch import nn

from fedclust.models.images import BlockConvNet, ConvNet, ResNet9, ResNet18

SMALL: dict = {"input_shape": [1, 6, 6], "num_classes": 2, "channels": [2], "kernel_size": 3}
SMALL |= {"padding": [0], "hidden": [4]}


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


def test_blocks_are_in_the_papers_order() -> None:
    network = BlockConvNet([1, 4, 4], 2, channels=[2, 3], dropout=[0.2, 0.3], hidden=4, hidden_dropout=0.5)
    names = [type(layer).__name__ for layer in network.body]  # type: ignore[union-attr]
    block = ["Conv2d", "ReLU", "BatchNorm2d"] * 2 + ["MaxPool2d", "Dropout"]
    assert names == [*block, *block, "Flatten", "Linear", "ReLU", "BatchNorm1d", "Dropout"]
    rates = [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.2, 0.3, 0.5]


def sizes_seen(model: nn.Module, image: torch.Tensor) -> list[int]:
    """Width of the feature map after every 3×3 or 7×7 convolution."""
    sizes: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1):
            module.register_forward_hook(lambda _, __, output: sizes.append(output.shape[-1]))
    model(image)
    return sizes


def test_resnet9_pools_three_times() -> None:
    image = torch.zeros(2, 1, 8, 8)
    assert sizes_seen(ResNet9([1, 8, 8], 2), image) == [8, 8, 4, 4, 4, 2, 1, 1]


def test_resnet18_imagenet_stem_quarters_the_image_first() -> None:
    # 64 → 32, pooled to 16; two blocks of two convolutions at each of 16, 8, 4, 2.
    image = torch.zeros(2, 3, 64, 64)
    sizes = sizes_seen(ResNet18([3, 64, 64], 2, stem="imagenet"), image)
    assert sizes == [32] + [16] * 4 + [8] * 4 + [4] * 4 + [2] * 4


def test_resnet18_cifar_stem_keeps_the_size() -> None:
    image = torch.zeros(2, 3, 16, 16)
    model = ResNet18([3, 16, 16], 10, stem="cifar")
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_168_832 + 513 * 10
    assert sizes_seen(model, image) == [16] * 5 + [8] * 4 + [4] * 4 + [2] * 4


def test_a_silent_body_leaves_the_shortcut() -> None:
    # With the last normalisation of the first block at 0, the block is ReLU of what comes in.
    model = ResNet18([3, 16, 16], 2, stem="cifar").eval()
    stem, block = model.body[:3], model.body[3]  # type: ignore[index]
    nn.init.zeros_(block[0].body[-1].weight)  # type: ignore[index]
    values = stem(torch.randn(2, 3, 16, 16))
    torch.testing.assert_close(block(values), values)


def test_kernels_are_drawn_as_he_et_al_do() -> None:
    kernel = ResNet9([3, 8, 8], 2).body[-2].body[0].weight  # type: ignore[index,union-attr]
    assert kernel.shape == (512, 512, 3, 3)
    # Standard deviation √(2 / (outputs · kernel area)); 2.4 million draws estimate it to about 0.05 %.
    assert float(kernel.detach().std()) == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.005)
