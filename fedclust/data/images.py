"""Images, decoded once into uint8 arrays of one shape."""

import json
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.data.dataset import SourceError, Statistics
from fedclust.data.input_encoders import MODES, ImageEncoder, Resize, decode
from fedclust.data.source import (
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    Labels,
    Part,
    SourcedDataset,
    cells_of,
    find_column,
    walk,
)
from fedclust.typing import IntArray

CHUNK = 128  # images decoded by one thread at a time
_AHEAD = {"batch_readahead": 2, "fragment_readahead": 1}  # memory is limited
WORKERS = min(os.cpu_count() or 1, 16)  # also limits the encoded images held in memory
_ANYWHERE = "**/"
_TEMPLATE = re.compile(r"(?![/~])([^{}\\]|\{id(\[\d\])?\})+")


@dataclass(frozen=True, kw_only=True)
class Images(SourcedDataset):
    """Images as bytes in a table, as paths in a table, or as files in one folder per class.

    ``input_shape`` is (channels, height, width) with 1 channel for grey and 3 for colour; images of the
    other kind are converted.

    Attributes
    ----------
    image
        Column with the image: its encoded bytes (or the hub's ``Image`` feature), or its path; from a list of
        names, the first that exists is used.
    image_path
        For a column of paths: template of the path, relative to the table's folder, filled with the column's
        text, as in ``train/{id[0]}/{id}.jpg``. A template that starts with ``**/`` searches all subfolders.
    resize
        ``"none"``: every image must have the configured size. ``"stretch"``: scale each side to that size.
        ``"crop"``: scale the image to cover that size, then crop its centre.
    label_pattern
        For files: see :class:`fedclust.data.source.Source`.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    image: str | Sequence[str] = ("image", "img")
    image_path: str = "{id}"
    resize: Resize = "none"
    label_pattern: str | None = None  # type: ignore[misc]  # a setting of images alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.input_shape) != 3 or self.input_shape[0] not in MODES:
            shape = list(self.input_shape)
            raise ValueError(f"dataset.input_shape must be [1 or 3 channels, height, width], got {shape}")
        # It comes with a run, even to a node that is to read only its own table and the images named there.
        below = self.image_path.removeprefix(_ANYWHERE)
        named = _TEMPLATE.fullmatch(below) and "{id" in below
        if not named or ".." in self.image_path.split("/"):
            rule = "a path below the table's folder, with {id} or {id[0]} for the column's text"
            raise ValueError(f"dataset.image_path must be {rule}, got {self.image_path!r}")

    def _files(self) -> tuple[Path, list[Path]]:
        """List the files: images in folders, if a table beside them has no column of images."""
        root, files = super()._files()
        if files[0].name.lower().endswith(IMAGE_SUFFIXES) or Path(str(self.path)).expanduser().is_file():
            return root, files
        folders = any("/" in name for name in walk(root) if name.lower().endswith(IMAGE_SUFFIXES))
        wanted = {self.image} if isinstance(self.image, str) else {*self.image}
        if not folders or wanted & {*self._open_files(root, files[:1]).rows.schema.names}:
            return root, files
        return replace(self, exclude=[*self.exclude, *(f"*{each}" for each in TABLE_SUFFIXES)])._files()

    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Decode the images in parallel and count their pixel values."""
        kept = np.flatnonzero(labels.kept)
        inputs = self.new_inputs(folder, np.uint8, len(kept), self.input_shape)
        counts = np.zeros((self.input_shape[0], 256), dtype=np.int64)
        locate = self._locator(parts)
        name = find_column(parts[0], self.image, "image")

        def decode_chunk(start: int, chunk: list[Any]) -> IntArray:
            """Write a chunk of kept images as rows from `start`; count the training part's values."""
            for row, image in enumerate(chunk, start=start):
                inputs[row] = self._decode(image, locate, name, int(kept[row]))
            return pixel_counts(inputs[start : max(start, min(start + len(chunk), labels.num_train))])

        with ThreadPoolExecutor(WORKERS) as pool:  # Pillow releases the GIL while decoding
            pending: deque[Future[IntArray]] = deque()
            start = 0
            for _, chunk in cells_of(parts, name, labels.kept, CHUNK, **_AHEAD):
                pending.append(pool.submit(decode_chunk, start, chunk))
                start += len(chunk)
                if len(pending) > 2 * WORKERS:
                    counts += pending.popleft().result()
            for future in pending:
                counts += future.result()
        return channel_statistics(counts)

    def encoding_of(self, folder: Path, rows: IntArray, refitted: Path) -> ImageEncoder:  # noqa: ARG002
        """Return the encoder of images; see :attr:`Dataset.encoder`."""
        described = json.loads((folder / "dataset.json").read_text())
        return self.encoder(tuple(described["mean"]), tuple(described["std"]))

    def encoder(self, mean: tuple[float, ...], std: tuple[float, ...]) -> ImageEncoder:
        """Return the encoder of images, with the statistics of training."""
        return ImageEncoder(tuple(map(int, self.input_shape)), self.resize, mean, std)

    def _locator(self, parts: Sequence[Part]) -> Callable[[str], Path]:
        """Return a function that converts a text of the path column to a path."""
        root = parts[0].root or Path()
        anywhere = self.image_path.removeprefix(_ANYWHERE)
        if anywhere == self.image_path:
            return lambda text: root / self.image_path.format(id=text)
        files = {Path(name).name: root / name for name in walk(root)}

        def locate(text: str) -> Path:
            name = anywhere.format(id=text)
            return files.get(name, root / name)  # opening a missing path raises the error

        return locate

    def _decode(
        self, image: Any, locate: Callable[[str], Path], column: str, position: int
    ) -> NDArray[np.uint8]:
        """Decode one image, given as bytes, as a path, or as the hub's ``{"bytes": …, "path": …}``.

        No error shows what is in the table: a path may be an image in another form.
        """
        if isinstance(image, dict):
            image = image["bytes"] if image.get("bytes") is not None else image.get("path")
        if image is None:
            raise SourceError(f"{column} of example {position} must be an image, got none")
        if not isinstance(image, bytes | str | int):
            rule = "must be an encoded image, such as a PNG's bytes or the hub's Image feature, or its path"
            raise SourceError(f"{column} of example {position} {rule}, got a {type(image).__name__}")
        opened = image if isinstance(image, bytes) else locate(str(image))
        if isinstance(opened, Path) and not os.path.isfile(opened):
            rule = "must be the path of a file below the table's folder, there is none"
            raise SourceError(f"{column} of example {position} {rule}; check dataset.image_path, too")
        try:
            return decode(opened, tuple(self.input_shape), self.resize, f" {position}")
        except ValueError as error:
            advice = "set dataset.input_shape or .resize, or choose other images by dataset.path or .hub"
            raise SourceError(f"{error}; {advice}") from error


def pixel_counts(pixels: NDArray[np.uint8]) -> IntArray:
    """Count how often each value occurs in each channel of (N, channels, height, width): (channels, 256)."""
    return np.stack([np.bincount(pixels[:, c].ravel(), minlength=256) for c in range(pixels.shape[1])])


def channel_statistics(counts: IntArray) -> Statistics:
    """Compute the mean and standard deviation of each channel from its value counts.

    Parameters
    ----------
    counts
        Number of occurrences of each value 0 to 255, shape (channels, 256).

    Returns
    -------
    Mean and population standard deviation per channel after division by 255; a constant channel has
    standard deviation 1, so that dividing by it is safe.
    """
    values = np.arange(256) / 255
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ values
    std = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
