"""MobileNetV2, optionally with weights from the hub or a folder."""

from collections.abc import Sequence

import torch
from torch import nn

from fedclust.models.classifier import Classifier
from fedclust.models.options import image_shape
from fedclust.models.pretrained import load_pretrained

__all__ = ["MobileNetV2"]


class MobileNetV2(Classifier):
    """The body of transformers' MobileNetV2 with dropout and a linear head.

    Source: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018); FedGWC,
    Appendix F, uses it "with pre-trained weights on ImageNet-1K" for Landmarks and iNaturalist.

    It has 2,223,872 + 1,281 C parameters on three channels (3,504,872 for ImageNet's 1,000 classes).

    Batch normalisation updates its running statistics with momentum 0.1, torch's default. Transformers sets
    0.997, TensorFlow's value, which in torch means the opposite: only the last batch would count.

    Parameters
    ----------
    input_shape
        Channels, height and width.
    num_classes
        Number of classes C.
    pretrained
        Hub id or local folder of a MobileNetV2 to take the body's weights from; None for random weights.
        Images are always normalised by the dataset's own mean and standard deviation.
    dropout
        Dropout rate before the head.

    Raises
    ------
    ValueError
        If the shape is not an image's, `pretrained` cannot be loaded, is another kind of network, or expects
        another number of channels, or there are fewer than two classes.
    """

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, pretrained: str | None, dropout: float
    ) -> None:
        from transformers import AutoConfig, MobileNetV2Config, MobileNetV2Model

        channels, _, _ = image_shape(input_shape)
        if pretrained is None:
            network = MobileNetV2Model(MobileNetV2Config(num_channels=channels))
        else:
            config = load_pretrained(AutoConfig.from_pretrained, pretrained, "MobileNetV2")
            if not isinstance(config, MobileNetV2Config):
                raise ValueError(
                    f"pretrained must name a mobilenet_v2, got {pretrained!r}, a {config.model_type}"
                )
            if config.num_channels != channels:
                raise ValueError(
                    f"input_shape must have the {config.num_channels} channels that {pretrained!r} expects, "
                    f"got {tuple(input_shape)}"
                )
            network = load_pretrained(MobileNetV2Model.from_pretrained, pretrained, "MobileNetV2")
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1
        width = network.conv_1x1.convolution.out_channels
        super().__init__(nn.Sequential(_Pooled(network), nn.Dropout(dropout)), width, num_classes)


class _Pooled(nn.Module):
    """The output of a transformers network, averaged over the image."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.network(pixel_values=images, return_dict=True).pooler_output
        return pooled
