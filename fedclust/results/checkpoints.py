"""Keep the cluster models of a run on disk.

A checkpoint is one safetensors file: reading it runs no code, unlike a pickle, and any tool that knows
the format can open it. Its keys are ``<cluster>/<parameter>``, as the models travel through Flower.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedclust.typing import IntArray, State

__all__ = ["Checkpoint", "Checkpoints", "load_checkpoint"]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The models of one moment of a run.

    Attributes
    ----------
    server_round
        The round after which they were taken.
    models
        One model per cluster, on the CPU.
    assignment
        Cluster index of each client, shape (K,): client k is served by ``models[assignment[k]]``.
    """

    server_round: int
    models: tuple[State, ...]
    assignment: IntArray


class Checkpoints:
    """The ``checkpoints/`` folder of a run.

    Parameters
    ----------
    folder
        Where the files go; created with the first one.
    rounds
        Rounds of the run; the last one is always kept.
    every
        Keep every so many rounds as well; 0 for the last round only.

    Raises
    ------
    ValueError
        If ``rounds`` is less than 1 or ``every`` is negative.
    """

    def __init__(self, folder: Path, rounds: int, every: int = 0) -> None:
        if rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {rounds}")
        if every < 0:
            raise ValueError(f"every must be >= 0, got {every}")
        self.folder = folder
        self._rounds = rounds
        self._every = every

    def due(self, server_round: int) -> bool:
        """Say whether this round is to be kept, before its models are gathered."""
        return server_round == self._rounds or (self._every > 0 and server_round % self._every == 0)

    def save(self, server_round: int, models: Sequence[State], assignment: ArrayLike) -> Path:
        """Write one checkpoint.

        Parameters
        ----------
        server_round
            The round after which the models were taken.
        models
            One model per cluster. Clusters may share tensors, as they do right after a split.
        assignment
            Cluster index of each client, shape (K,), each in 0 … len(models) − 1.

        Returns
        -------
        The file, ``round-<number>.safetensors``.

        Raises
        ------
        ValueError
            If a client is assigned to a cluster without a model.
        """
        clusters = np.asarray(assignment)
        if clusters.size and not 0 <= clusters.min() <= clusters.max() < len(models):
            raise ValueError(
                f"assignment must name clusters 0 to {len(models) - 1}, "
                f"got {clusters.min()} to {clusters.max()}"
            )
        metadata = {
            "round": str(server_round),
            "clusters": str(len(models)),
            "assignment": json.dumps(clusters.tolist()),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"round-{server_round:06d}.safetensors"
        partial = path.with_name(path.name + ".partial")
        save_file(_own_memory(models), partial, metadata)
        os.replace(partial, path)
        return path

    def latest(self) -> Path | None:
        """Find the checkpoint of the latest round; None where there is none."""
        return max(self.folder.glob("round-*.safetensors"), default=None)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not one that :class:`Checkpoints` wrote.
    """
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint must be a file, got {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            models: list[State] = [{} for _ in range(int(metadata["clusters"]))]
            for key in file.keys():  # noqa: SIM118 - safe_open is no mapping and cannot be iterated
                cluster, _, name = key.partition("/")
                models[int(cluster)][name] = file.get_tensor(key)
            assignment = np.array(json.loads(metadata["assignment"]), dtype=np.int64)
            return Checkpoint(int(metadata["round"]), tuple(models), assignment)
    except (SafetensorError, KeyError, IndexError, ValueError) as error:
        raise ValueError(f"checkpoint must be one written by fedclust, got {path}: {error}") from error


def _own_memory(models: Sequence[State]) -> dict[str, torch.Tensor]:
    """Name the tensors by cluster and copy those whose memory another one uses, which the format refuses."""
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    for cluster, model in enumerate(models):
        for name, tensor in model.items():
            value = tensor.detach().cpu().contiguous()
            storage = value.untyped_storage()
            if storage.data_ptr() in seen or storage.nbytes() != value.nbytes:
                value = value.clone()
            seen.add(value.untyped_storage().data_ptr())
            tensors[f"{cluster}/{name}"] = value
    return tensors
