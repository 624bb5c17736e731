"""The papers' convolutional networks for small images."""

from collections.abc import Sequence

from torch import nn

from fedclust.models import options
from fedclust.models.classifier import Classifier
from fedclust.models.options import image_shape

__all__ = ["BlockConvNet", "ConvNet"]


class ConvNet(Classifier):
    """Convolutions, each with ReLU and 2×2 max pooling, then dense layers with ReLU and a linear head.

    A k×k convolution from a to b channels has (a k² + 1) b parameters, a dense layer (a + 1) b. On each
    paper's images:

    ========== ============ ======= ========== ======== ============= ==================== ==========
    in conf    image        classes channels   kernel   padding       hidden               parameters
    ========== ============ ======= ========== ======== ============= ==================== ==========
    cnn_fmnist 1 × 28 × 28  10      8, 16, 32  3        none          2048                 93,962
    cnn_fedgwc 3 × 32 × 32  100     64, 64     5        none          384, 192             815,332
    cnn_emnist 1 × 28 × 28  62      16, 32     3        none          128                  115,326
    lenet5     1 × 28 × 28  62      6, 16      5        2, then none  120, 84              66,126
    ========== ============ ======= ========== ======== ============= ==================== ==========

    Sources, and choices where they do not specify something:

    - ``cnn_fmnist``: Clust-PSI-PFL, Section IV-A d: "three convolutional layers (8, 16, and 32 channels),
      followed by max pooling and a fully connected layer with 2048 ReLU units". Kernel, padding, and pooling
      after each convolution follow the authors' code for their earlier PSI-PFL, whose network has the same
      widths.
    - ``cnn_fedgwc``: FedGWC, Appendix F: "a CNN with two convolutional blocks and three dense layers"; sizes
      from the authors' code.
    - ``cnn_emnist``: FedGMCC, Section V-A: "2 stacked CNN layers, activated by ReLu, and followed by a fully
      connected neural network". All sizes are ours.
    - ``lenet5``: LeCun et al. (1998), named by FedGWC, Appendix F, for FEMNIST. Padding
      extends 28 × 28 to 32 × 32, as LeCun did; ReLU and max pooling replace his sigmoids and subsampling, and
      the last layers are dense, as is usual today.

    Parameters
    ----------
    input_shape
        Channels, height and width.
    num_classes
        Number of classes C.
    channels
        Output channels of each convolution.
    kernel_size
        Height and width of every kernel, in pixels.
    padding
        Zero padding of each convolution's input, in pixels; one number per entry of `channels`.
    hidden
        Widths of the dense layers before the head.

    Raises
    ------
    ValueError
        If the image is too small for the convolutions and pooling, a size or width is below 1, `padding` and
        `channels` differ in length, or there are fewer than two classes.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        channels: Sequence[int],
        kernel_size: int,
        padding: Sequence[int],
        hidden: Sequence[int],
    ) -> None:
        options.ConvNet(input_shape, num_classes, channels, kernel_size, padding, hidden)
        before, *sides = image_shape(input_shape)
        layers: list[nn.Module] = []
        for after, margin in zip(channels, padding, strict=True):
            sides = [(side + 2 * margin - kernel_size + 1) // 2 for side in sides]
            layers += [nn.Conv2d(before, after, kernel_size, padding=margin), nn.ReLU(), nn.MaxPool2d(2)]
            before = after
            _require_pixels(sides, input_shape, len(layers) // 3)
        layers.append(nn.Flatten())
        width = before * sides[0] * sides[1]
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        super().__init__(nn.Sequential(*layers), width, num_classes)


class BlockConvNet(Classifier):
    """Blocks of two normalised 3×3 convolutions, pooling and dropout; then a dense layer and a head.

    Source: Clust-PSI-PFL, Section IV-A d, for CIFAR-10 (``cnn_cifar10``): "each block stacks two 3 × 3
    convolution layers (ReLU, same padding) with batch normalization, followed by 2 × 2 max pooling and
    dropout (rates 0.2/0.3/0.4 across the three blocks) ... flattened and passed to a 128-unit ReLU dense
    layer with batch normalization and dropout of 0.5". Normalisation follows ReLU, as in the paper's
    description and in a Keras layer with an activation.

    ``cnn_cifar10`` has 551,722 parameters on 3 × 32 × 32 with 10 classes: with filters (32, 64, 128),
    (a · 9 + 1) b per convolution from a to b filters, 2 b per normalisation of b values, (a + 1) b per dense
    layer, where the first dense layer has 128 · 4 · 4 inputs.

    Parameters
    ----------
    input_shape
        Channels, height and width.
    num_classes
        Number of classes C.
    channels
        Filters of each block.
    dropout
        Dropout rate after each block; one number per entry of `channels`.
    hidden
        Units of the dense layer.
    hidden_dropout
        Dropout rate after the dense layer.

    Raises
    ------
    ValueError
        If the image is too small for the pooling, a width is below 1, `dropout` and `channels` differ in
        length, or there are fewer than two classes.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        channels: Sequence[int],
        dropout: Sequence[float],
        hidden: int,
        hidden_dropout: float,
    ) -> None:
        options.BlockConvNet(input_shape, num_classes, channels, dropout, hidden, hidden_dropout)
        before, *sides = image_shape(input_shape)
        layers: list[nn.Module] = []
        for block, (after, rate) in enumerate(zip(channels, dropout, strict=True), start=1):
            for inputs in (before, after):
                layers += [nn.Conv2d(inputs, after, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
            layers += [nn.MaxPool2d(2), nn.Dropout(rate)]
            before = after
            sides = [side // 2 for side in sides]
            _require_pixels(sides, input_shape, block)
        layers += [nn.Flatten(), nn.Linear(before * sides[0] * sides[1], hidden), nn.ReLU()]
        layers += [nn.BatchNorm1d(hidden), nn.Dropout(hidden_dropout)]
        super().__init__(nn.Sequential(*layers), hidden, num_classes)


def _require_pixels(sides: Sequence[int], input_shape: Sequence[int], pooling: int) -> None:
    if min(sides) < 1:
        raise ValueError(
            f"input_shape must leave at least one pixel after pooling {pooling}, got {tuple(input_shape)}"
        )
