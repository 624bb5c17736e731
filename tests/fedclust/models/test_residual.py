import math

import pytest
import torch
from torch import nn

from fedclust.models.residual import ResNet9, ResNet18


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


def test_refuses_images_smaller_than_the_pooling() -> None:
    with pytest.raises(ValueError, match=r"input_shape must be at least 8 × 8 pixels, got \(3, 8, 7\)"):
        ResNet9([3, 8, 7], 2)


def test_refuses_an_unknown_stem() -> None:
    with pytest.raises(ValueError, match="stem must be 'imagenet' or 'cifar', got 'mnist'"):
        ResNet18([3, 16, 16], 2, stem="mnist")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [[64], [0, 16, 16]])
def test_refuses_what_is_no_image(shape: list[int]) -> None:
    with pytest.raises(ValueError, match="input_shape must be"):
        ResNet9(shape, 2)
    with pytest.raises(ValueError, match="input_shape must be"):
        ResNet18(shape, 2, stem="cifar")


def test_refuses_a_single_class() -> None:
    with pytest.raises(ValueError, match="num_classes must be >= 2, got 1"):
        ResNet9([3, 8, 8], 1)
    with pytest.raises(ValueError, match="num_classes must be >= 2, got 1"):
        ResNet18([3, 8, 8], 1, stem="cifar")
