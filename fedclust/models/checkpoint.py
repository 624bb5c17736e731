"""A network from an earlier run as a frozen encoder.

For experiments that need a foundation model where none can be downloaded: train a network on another dataset,
then use its features as embeddings.
"""

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from fedclust.models.classifier import Classifier
from fedclust.models.construction import build
from fedclust.models.encoders import normalise, state_digest, with_channels
from fedclust.typing import State

__all__ = ["CheckpointEncoder"]


class CheckpointEncoder:
    """A network from an earlier run; the embedding is the input of its head.

    Parameters
    ----------
    path
        A ``.safetensors`` file, such as a run's ``checkpoints/round-….safetensors``, or a file of
        ``torch.save(model.state_dict(), path)``.
    model
        The ``model:`` node it was trained with, resolved; it must build a
        :class:`~fedclust.models.classifier.Classifier`. Its `input_shape` is the one it was trained on:
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

    def __init__(
        self,
        path: str,
        model: Mapping[str, Any],
        mean: Sequence[float],
        std: Sequence[float],
        cluster: int,
    ) -> None:
        network = build(model, seed=0)
        if not isinstance(network, Classifier):
            raise TypeError(
                f"encoder checkpoint: model must build a Classifier, got {type(network).__name__}"
            )
        try:
            network.load_state_dict(_cluster_model(_read(path), cluster))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"encoder checkpoint: path must hold the weights of model, got {path}: {reason}"
            ) from error
        self._network = network.requires_grad_(False).eval()
        self._input_shape = tuple(model["input_shape"])
        self._mean, self._std = tuple(mean), tuple(std)
        self.dimension = network.width
        settings = f"{dict(model)} {self._mean} {self._std}"
        self.fingerprint = (
            f"checkpoint-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
            f"-{state_digest(network.state_dict())}"
        )

    @torch.inference_mode()
    def encode(
        self,
        inputs: torch.Tensor,
        mean: Sequence[float] = (),  # noqa: ARG002 - the network uses the statistics of its training data
        std: Sequence[float] = (),  # noqa: ARG002
        device: str | torch.device = "cpu",
    ) -> torch.Tensor:
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
            raise ValueError(
                f"encoder checkpoint: inputs must have shape {self._input_shape} as the model's, "
                f"got {tuple(inputs.shape[1:])}"
            )
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
        raise ValueError(
            "encoder checkpoint: path must be a .safetensors file or a file of torch.save(state_dict), "
            f"got {path}: {error}"
        ) from error


def _cluster_model(state: State, cluster: int) -> State:
    """Return one model of a run's checkpoint, whose keys are ``<cluster>/<parameter>``."""
    clusters = sorted({key.split("/")[0] for key in state if "/" in key})
    if not clusters:
        return state
    if str(cluster) not in clusters:
        raise ValueError(f"encoder checkpoint: cluster must be one of {clusters}, got {cluster}")
    prefix = f"{cluster}/"
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
