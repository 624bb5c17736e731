"""Frozen encoders, which convert a client's examples to the embeddings that FMCL averages.

Source: FMCL, Section 3, which uses a frozen foundation model (`foundation.py`). The encoders here need no
download: the example itself; an untrained network, as in FECFL, with which FMCL is compared; and a network
that an earlier run has trained on another dataset.
"""

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedclust.models.construction import Classifier, construct, num_columns, seeded
from fedclust.models.sequences import PADDING
from fedclust.support.checks import checked
from fedclust.typing import State

Device = str | torch.device
Floats = Sequence[float]


@runtime_checkable
class Encoder(Protocol):
    """A fixed function from examples to embeddings.

    Attributes
    ----------
    dimension
        Length d of an embedding.
    fingerprint
        Identifier of everything that determines an embedding.
    """

    dimension: int
    fingerprint: str

    def encode(self, inputs: Tensor, mean: Floats = (), std: Floats = (), device: Device = "cpu") -> Tensor:
        """Embed a batch.

        Parameters
        ----------
        inputs
            Rows of a dataset as it stores them: uint8 images (n, channels, height, width), int64 tokens
            (n, positions) or float32 numbers (n, columns).
        mean, std
            The dataset's statistics per channel, for encoders that normalise images; empty means 0 and 1.
        device
            Device to compute on.

        Returns
        -------
        Embeddings, float32, shape (n, d), on `device`.

        Raises
        ------
        ValueError
            If the encoder does not support such inputs.
        """


def build_encoder(config: Mapping[str, Any]) -> Encoder:
    """Build an encoder.

    Parameters
    ----------
    config
        A resolved ``encoder:`` node: ``_target_`` and its arguments.

    Raises
    ------
    TypeError
        If the target does not build an :class:`Encoder`.
    ValueError
        If its arguments are invalid, a package is missing, or its weights cannot be loaded.
    """
    encoder: Encoder = construct(config, Encoder, "encoder", seed=0)  # loading weights may draw numbers
    return encoder


def maker(encoder: Encoder | None, config: Mapping[str, Any] | None) -> Callable[[], Encoder] | None:
    """Return what returns `encoder` or, unless given, builds that of `config`; None without both."""
    if encoder is not None:
        return lambda: encoder
    return None if config is None else partial(build_encoder, config)


class PixelEncoder:
    """Returns the flattened example itself: normalised pixels, or a table's numbers.

    Parameters
    ----------
    input_shape
        Shape of one example.

    Raises
    ------
    ValueError
        If a size is below 1.
    """

    def __init__(self, input_shape: Sequence[int]) -> None:
        self.dimension = num_columns(input_shape)
        self.fingerprint = f"pixels-{'x'.join(map(str, input_shape))}"

    def encode(self, inputs: Tensor, mean: Floats = (), std: Floats = (), device: Device = "cpu") -> Tensor:
        """Embed a batch; see :meth:`Encoder.encode`."""
        if inputs.dtype == torch.int64:
            raise ValueError(
                "encoder pixels: inputs must be images or numbers, got tokens; use encoder=random"
            )
        return normalise(inputs.to(device), mean, std).flatten(1)


class RandomEncoder:
    """An untrained network, its weights drawn from a seed.

    Images: three 3×3 convolutions without bias, each with ReLU and 2×2 max pooling, then the mean over the
    image. Tokens: a vector per token, averaged over the text. Other inputs: flattened, then one dense layer
    with ReLU. There are no biases, because they would add the same to every embedding and make all embeddings
    alike.

    Parameters
    ----------
    input_shape
        Shape of one example: three sizes for images, one for tokens.
    dimension
        Length d of an embedding, at least 4.
    seed
        Seed of the weights, >= 0. It is separate from the run's because all nodes must use the same one.
    vocabulary_size
        Number of tokens, used if `input_shape` is one size; None if inputs are not tokens.

    Raises
    ------
    ValueError
        If a size is out of range.
    """

    @checked
    def __init__(
        self,
        input_shape: Sequence[int],
        dimension: Annotated[int, ">= 4"],
        seed: int,
        vocabulary_size: Annotated[int | None, ">= 1 or None"],
    ) -> None:
        width = num_columns(input_shape)
        self.dimension = dimension
        self._tokens = vocabulary_size is not None and len(input_shape) == 1
        with seeded(seed, "random encoder"):
            if vocabulary_size is not None and self._tokens:
                self._network: nn.Module = _MeanEmbedding(vocabulary_size, dimension)
            elif len(input_shape) == 3:
                self._network = _untrained_convolutions(input_shape[0], dimension)
            else:
                dense = nn.Linear(width, dimension, bias=False)
                self._network = nn.Sequential(nn.Flatten(), dense, nn.ReLU())
        self._network.requires_grad_(False).eval()
        self.fingerprint = f"random-{state_digest(self._network.state_dict())}"

    @torch.inference_mode()
    def encode(self, inputs: Tensor, mean: Floats = (), std: Floats = (), device: Device = "cpu") -> Tensor:
        """Embed a batch; see :meth:`Encoder.encode`."""
        if (inputs.dtype == torch.int64) != self._tokens:
            rule = "vocabulary_size must be given for tokens and null for a table"
            raise ValueError(f"encoder random: {rule}, got inputs of type {inputs.dtype}")
        embeddings: Tensor = self._network.to(device)(normalise(inputs.to(device), mean, std))
        return embeddings


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Hash parameters and buffers to 16 hexadecimal digits."""
    hashed = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:16]


def with_channels(images: Tensor, channels: int, what: str) -> Tensor:
    """Repeat grey images, (n, 1, height, width), to the number of channels that a network expects.

    Raises
    ------
    ValueError
        If the images have neither one channel nor `channels`.
    """
    if images.shape[1] not in (1, channels):
        raise ValueError(f"{what}: images must have 1 or {channels} channels, got {images.shape[1]}")
    return images.expand(-1, channels, -1, -1)


def normalise(inputs: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise images as training does: divide by 255, then by channel; return other inputs unchanged."""
    if inputs.dtype != torch.uint8:
        return inputs
    channels = (1, -1, *[1] * (inputs.dim() - 2))
    means = torch.tensor(tuple(mean) or (0.0,), device=inputs.device).view(channels)
    stds = torch.tensor(tuple(std) or (1.0,), device=inputs.device).view(channels)
    return (inputs.float() / 255 - means) / stds


class _MeanEmbedding(nn.Module):
    """The mean of a text's token vectors without padding; 0 for an empty text."""

    def __init__(self, vocabulary_size: int, dimension: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(vocabulary_size, dimension)

    def forward(self, tokens: Tensor) -> Tensor:
        real = (tokens != PADDING).float().unsqueeze(-1)
        mean: Tensor = (self.vectors(tokens) * real).sum(1) / real.sum(1).clamp(min=1)
        return mean


def _untrained_convolutions(channels: int, dimension: int) -> nn.Module:
    layers: list[nn.Module] = []
    widths = [channels, dimension // 4, dimension // 2, dimension]
    for before, after in pairwise(widths):
        # ceil_mode allows images of any size.
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.ReLU()]
        layers += [nn.MaxPool2d(2, ceil_mode=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class CheckpointEncoder:
    """A network from an earlier run; the embedding is the input of its head.

    Parameters
    ----------
    path
        A ``.safetensors`` file, such as a run's ``checkpoints/round-….safetensors``, or a file of
        ``torch.save(model.state_dict(), path)``.
    model
        The ``model:`` node it was trained with, resolved; it must build a
        :class:`~fedclust.models.construction.Classifier`. Its `input_shape` is the one it was trained on:
        images of another size are resized, grey ones repeated to three channels.
    mean, std
        Per channel, of the dataset it was trained on; empty if that has no images.
    cluster
        Index of the checkpoint's cluster model to use.

    Raises
    ------
    ValueError
        If the file cannot be read, lacks that cluster, or does not match the model.
    TypeError
        If `model` does not build a ``Classifier``.
    """

    def __init__(self, path: str, model: Mapping[str, Any], mean: Floats, std: Floats, cluster: int) -> None:
        network: Classifier = construct(model, Classifier, "encoder.model", seed=0)
        try:
            network.load_state_dict(_cluster_model(_read(path), cluster))
        except RuntimeError as error:
            got = f"got {path}: {' '.join(str(error).split())}"
            raise ValueError(f"encoder checkpoint: path must hold the weights of model, {got}") from error
        self._network = network.requires_grad_(False).eval()
        self._input_shape = tuple(model["input_shape"])
        self._mean, self._std = tuple(mean), tuple(std)
        self.dimension = network.width
        about = f"{sorted(model.items())} {self._mean} {self._std}"  # at sites, keys have another order
        settings = hashlib.sha256(about.encode()).hexdigest()[:8]
        self.fingerprint = f"checkpoint-{settings}-{state_digest(network.state_dict())}"

    @torch.inference_mode()
    def encode(self, inputs: Tensor, mean: Floats = (), std: Floats = (), device: Device = "cpu") -> Tensor:  # noqa: ARG002
        """Embed a batch; see :meth:`Encoder.encode`. The network's own `mean` and `std` are used."""
        if len(self._input_shape) == 3 and inputs.dim() == 4:
            channels, *size = self._input_shape
            inputs = with_channels(inputs.to(device), channels, "encoder checkpoint")
            values = normalise(inputs, self._mean, self._std)
            if list(values.shape[2:]) != size:
                values = functional.interpolate(values, size, mode="bilinear", antialias=True)
        elif tuple(inputs.shape[1:]) == self._input_shape:
            values = inputs.to(device)
        else:
            wanted = f"{self._input_shape} as the model's, got {tuple(inputs.shape[1:])}"
            raise ValueError(f"encoder checkpoint: inputs must have shape {wanted}")
        features = self._network.to(device).features(values)
        return features.mean(dim=1) if features.dim() == 3 else features  # over positions


def _read(path: str) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise ValueError(f"encoder checkpoint: path must be a file, got {path}")
    try:
        if path.endswith(".safetensors"):
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (SafetensorError, pickle.UnpicklingError, OSError, EOFError, RuntimeError, TypeError) as error:
        kinds = "a .safetensors file or a file of torch.save(state_dict)"
        raise ValueError(f"encoder checkpoint: path must be {kinds}, got {path}: {error}") from error


def _cluster_model(state: State, cluster: int) -> State:
    """Return one model of a run's checkpoint, whose names are ``models/<cluster>/<parameter>``."""
    models = [name.split("/", 2)[1:] for name in state if name.startswith("models/")]
    if not models:
        return state
    if str(cluster) not in (clusters := sorted({each for each, _ in models})):
        raise ValueError(f"encoder checkpoint: cluster must be one of {clusters}, got {cluster}")
    return {name: state[f"models/{each}/{name}"] for each, name in models if each == str(cluster)}
