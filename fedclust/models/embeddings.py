"""Rows that a frozen encoder embeds once, so that a network is trained on the embeddings.

These are inputs like any others: whatever trains, clusters or places reads them in place of the rows. Shifts
of a partition (rotations, noise, other class names) are part of the rows, so they come before.
"""

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedclust.data.cache import cache_folder, digest, map_array, map_tensor, new_array, prepared
from fedclust.data.dataset import FederatedData
from fedclust.data.input_encoders import ImageEncoder, InputEncoder
from fedclust.models.encoders import Device, Encoder
from fedclust.support.devices import exact_kernels

logger = logging.getLogger(__name__)

_BATCH = 256  # examples per pass of the encoder
_PART = 8192  # rows kept in the cache before all are there
_BLOCK = 4096  # rows hashed at a time
_SILENCE = 10.0  # seconds between two lines about the progress


class Examples(NamedTuple):
    """Rows to embed, with the same attributes as a federation's data.

    Attributes
    ----------
    inputs
        Rows as the dataset stores them, shape (N, *shape).
    labels
        Class of each row, shape (N,).
    num_classes
        Number of classes C.
    mean, std
        The dataset's statistics per channel; see :meth:`~fedclust.models.encoders.Encoder.encode`.
    """

    inputs: Tensor
    labels: Tensor
    num_classes: int
    mean: Sequence[float] = ()
    std: Sequence[float] = ()


def embeddings(
    encoder: Encoder, data: Examples | FederatedData, rows: Tensor, device: Device = "cpu"
) -> Iterator[Tensor]:
    """Embed some rows, batch by batch.

    Parameters
    ----------
    encoder
        Frozen encoder.
    data
        The dataset.
    rows
        The rows to embed, int64, shape (n,).
    device
        Where the encoder computes.

    Yields
    ------
    Embeddings of the next rows, float32, each shape (batch, d), on the CPU.
    """
    for batch in rows.split(_BATCH) if len(rows) else ():
        with exact_kernels():
            embedded = encoder.encode(data.inputs[batch], data.mean, data.std, device)
        yield embedded.cpu()


def embed(
    data: FederatedData,
    encoder: Encoder,
    device: Device = "cpu",
    cache_dir: Path | None = None,
    say: Callable[[str], object] = logger.info,
) -> FederatedData:
    """Replace a federation's rows by their embeddings.

    They are computed once and kept in the cache, keyed by the rows' content and the encoder's fingerprint.
    They are written batch by batch: neither rows nor embeddings need to fit into memory. After an
    interruption only the last rows, up to 8,192, are embedded again.

    Parameters
    ----------
    data
        The federation.
    encoder
        Frozen encoder.
    device
        Where it computes.
    cache_dir
        Where prepared data lives; see :func:`fedclust.data.cache.cache_root`.
    say
        Prints a line about the progress.

    Returns
    -------
    The same clients with embeddings as inputs, float32, shape (N, d), mapped into memory.

    Raises
    ------
    ValueError
        If there is more than one label per row, or the encoder does not support the rows.
    OSError
        If the cache cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from fedclust.data.arrays import from_arrays
    >>> from fedclust.models.encoders import RandomEncoder
    >>> data = from_arrays([(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), [0, 1, 0, 1, 0])])
    >>> with tempfile.TemporaryDirectory() as cache:
    ...     print(embed(data, RandomEncoder([3, 8, 8], 16, 0, None), cache_dir=cache).input_shape)
    (16,)
    """
    if data.labels.dim() != 1:
        raise ValueError(f"rows to embed must have one label each, got shape {tuple(data.labels.shape)}")

    key = digest(_content(data.inputs), list(data.mean), list(data.std), encoder.fingerprint)
    total, encoded = len(data.inputs), 0
    begun = said = time.monotonic()

    def write_part(first: int, folder: Path) -> None:
        nonlocal encoded, said
        rows = torch.arange(first, min(first + _PART, total))
        array = new_array(folder / "inputs.npy", "float32", (len(rows), encoder.dimension))
        done = 0
        for batch in embeddings(encoder, data, rows, device):
            array[done : done + len(batch)] = batch.numpy()
            done, encoded = done + len(batch), encoded + len(batch)
            if (now := time.monotonic()) - said > _SILENCE:
                said, pace, so_far = now, encoded / (now - begun), first + done
                left = (total - so_far) / pace
                say(f"encoded {so_far:,} of {total:,} rows, {pace:.0f} a second, {left:.0f} s left")

    def write(folder: Path) -> None:
        say(f"encoding {total:,} rows once with {encoder.fingerprint}")
        array = new_array(folder / "inputs.npy", "float32", (total, encoder.dimension))
        for first, part in parts.items():
            rows = map_array(prepared(part, partial(write_part, first)) / "inputs.npy")
            array[first : first + len(rows)] = rows

    parts = {  # which an interrupted process leaves to the next one
        first: cache_folder("embeddings", data.name, digest(key, first), cache_dir)
        for first in range(0, total, _PART)
    }
    folder = prepared(cache_folder("embeddings", data.name, key, cache_dir), write)
    for part in filter(Path.exists, parts.values()):  # not in a cache that others wrote and we may only read
        part.with_name(f".{part.name}.lock").unlink(missing_ok=True)
        shutil.rmtree(part, ignore_errors=True)
    return replace(
        data,
        inputs=map_tensor(folder / "inputs.npy"),
        mean=(),
        std=(),
        encoder=data.input_encoder,
        fingerprint=digest(data.fingerprint, encoder.fingerprint),
        embedded_by=encoder.fingerprint,
    )


def _content(inputs: Tensor) -> str:
    content = hashlib.sha256(f"{inputs.dtype} {tuple(inputs.shape)}".encode())
    for block in inputs.split(_BLOCK):
        content.update(block.contiguous().numpy().data)
    return content.hexdigest()


@dataclass(frozen=True, eq=False)
class Embedder:
    """Embeds new rows as a finished run embedded its own.

    Attributes
    ----------
    fingerprint
        That of the run's frozen encoder.
    make
        Builds the encoder, on first use; None if it is unknown.
    mean, std
        The dataset's statistics per channel; empty if its rows are not images.
    """

    fingerprint: str
    make: Callable[[], Encoder] | None
    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    @classmethod
    def of(
        cls, fingerprint: str, make: Callable[[], Encoder] | None, inputs: InputEncoder | None
    ) -> "Embedder | None":
        """Return the embedder of a run; None if no frozen encoder embedded its rows.

        Parameters
        ----------
        fingerprint, make
            See the attributes; the first is empty without a frozen encoder.
        inputs
            How raw rows become the dataset's, with the statistics of images; None if unknown.
        """
        if not fingerprint:
            return None
        images = inputs if isinstance(inputs, ImageEncoder) else None
        return cls(fingerprint, make, *(() if images is None else (images.mean, images.std)))

    @cached_property
    def encoder(self) -> Encoder:
        """The run's encoder.

        Raises
        ------
        ValueError
            If it is unknown, cannot be built, or is another than the run's.
        """
        if self.make is None:
            raise ValueError(f"encoder must be given, that of the run: {self.fingerprint}")
        built = self.make()
        if built.fingerprint != self.fingerprint:
            raise ValueError(f"encoder must be that of the run, {self.fingerprint}, got {built.fingerprint}")
        return built

    def __call__(self, inputs: Tensor) -> Tensor:
        """Embed rows, shape (n, *shape), as the dataset stores them; return float32, shape (n, d)."""
        rows = Examples(inputs, torch.zeros(len(inputs)), 1, self.mean, self.std)
        parts = list(embeddings(self.encoder, rows, torch.arange(len(inputs))))
        return torch.cat([torch.zeros(0, self.encoder.dimension), *parts])
