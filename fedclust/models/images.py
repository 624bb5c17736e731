"""The papers' convolutional networks for images: small ones, ResNet-9 and ResNet-18."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

from torch import Tensor, nn

from fedclust.models.construction import Classifier, Size, Sizes, image_shape
from fedclust.support.checks import checked

Number = TypeVar("Number", int, float)


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
    lenet5     1 × 28 × 28  47      6, 16      5        2, then none  120, 84              64,851
    ========== ============ ======= ========== ======== ============= ==================== ==========

    Sources, and our choices where they are not specific:

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

    @checked
    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        channels: Sizes,
        kernel_size: Size,
        padding: Annotated[Sequence[int], "numbers >= 0"],
        hidden: Sizes,
    ) -> None:
        before, *sides = image_shape(input_shape)
        layers: list[nn.Module] = []
        for after, margin in _paired(channels, "padding", padding):
            sides = [(side + 2 * margin - kernel_size + 1) // 2 for side in sides]
            convolution = nn.Conv2d(before, after, kernel_size, padding=margin)
            layers += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
            before = after
            _require_pixels(sides, input_shape, len(layers) // 3)
        widths = [before * sides[0] * sides[1], *hidden]
        layers.append(nn.Flatten())
        for width, units in pairwise(widths):
            layers += [nn.Linear(width, units), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), widths[-1], num_classes)


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

    @checked
    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        channels: Sizes,
        dropout: Sequence[float],
        hidden: Size,
        hidden_dropout: float,
    ) -> None:
        before, *sides = image_shape(input_shape)
        layers: list[nn.Module] = []
        for block, (after, rate) in enumerate(_paired(channels, "dropout", dropout), start=1):
            for inputs in (before, after):
                layers += [nn.Conv2d(inputs, after, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
            layers += [nn.MaxPool2d(2), nn.Dropout(rate)]
            before, sides = after, [side // 2 for side in sides]
            _require_pixels(sides, input_shape, block)
        layers += [nn.Flatten(), nn.Linear(before * sides[0] * sides[1], hidden), nn.ReLU()]
        layers += [nn.BatchNorm1d(hidden), nn.Dropout(hidden_dropout)]
        super().__init__(nn.Sequential(*layers), hidden, num_classes)


def _paired(channels: Sequence[int], name: str, values: Sequence[Number]) -> Iterable[tuple[int, Number]]:
    if not channels or len(values) != len(channels):
        got = f"got {list(channels)} and {list(values)}"
        raise ValueError(f"channels and {name} must be lists of one length >= 1, {got}")
    return zip(channels, values, strict=True)


def _require_pixels(sides: Sequence[int], input_shape: Sequence[int], pooling: int) -> None:
    if min(sides) < 1:
        raise ValueError(
            f"input_shape must leave at least one pixel after pooling {pooling}, got {tuple(input_shape)}"
        )


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
        channels, height, width = image_shape(input_shape)
        if min(height, width) < 8:
            raise ValueError(f"input_shape must be at least 8 × 8 pixels, got {tuple(input_shape)}")
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

    @checked
    def __init__(
        self, input_shape: Sequence[int], num_classes: int, stem: Literal["imagenet", "cifar"]
    ) -> None:
        channels = image_shape(input_shape)[0]
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

    def forward(self, values: Tensor) -> Tensor:
        total: Tensor = self.body(values) + self.shortcut(values)
        return total


class _GlobalMaximum(nn.Module):
    """The largest value of each channel, (B, C, H, W) to (B, C)."""

    def forward(self, values: Tensor) -> Tensor:
        return values.amax(dim=(2, 3))


def _basic_block(before: int, after: int) -> nn.Module:
    """Build two 3×3 convolutions and a shortcut; both halve the image if the number of channels changes."""
    stride = 1 if before == after else 2
    body = nn.Sequential(*_convolution(before, after, stride), *_convolution(after, after)[:-1])  # no ReLU
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
