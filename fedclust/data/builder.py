"""The base classes of the datasets in ``conf/dataset``: checks, caching, and reading a source."""

import dataclasses
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedclust.data.cache import cache_folder, digest, file_digest, map_array, map_tensor, new_array, prepared
from fedclust.data.dataset import Dataset, Refit
from fedclust.data.input_encoders import InputEncoder
from fedclust.data.source import (
    Labels,
    Part,
    Source,
    SourceError,
    column,
    encode_labels,
    encode_natural,
    find_column,
)
from fedclust.typing import IntArray

_NAMES = "natural_names.json"


@dataclass(frozen=True, kw_only=True)
class DatasetBuilder(ABC):
    """Prepare a :class:`Dataset` in the cache on first use; afterwards only map it into memory.

    Attributes
    ----------
    name
        Name of the dataset, used in messages and in the cache's folder names.
    num_classes
        Number of classes. Models are built from it, so it is checked against the data.
    input_shape
        Shape of one example, which models are built from; checked against the data.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    name: str
    num_classes: int
    input_shape: Sequence[int]

    format: ClassVar[int] = 1  # raise it when the same source and settings give other files
    not_in_key: ClassVar[tuple[str, ...]] = ()  # settings that change no file

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.name):
            raise ValueError(
                f"dataset.name must be made of letters, digits, '_', '.' and '-', got {self.name!r}"
            )
        if self.num_classes < 2:
            raise ValueError(f"dataset.num_classes must be >= 2, got {self.num_classes}")
        if not self.input_shape or min(self.input_shape) < 1:
            raise ValueError(f"dataset.input_shape must be sizes >= 1, got {list(self.input_shape)}")

    def load(self, cache_dir: Path | None = None) -> Dataset:
        """Load the dataset from the cache; prepare it there first if needed.

        Parameters
        ----------
        cache_dir
            Where prepared data lives; see :func:`fedclust.data.cache.cache_root`.

        Raises
        ------
        SourceError
            If the source is missing, unreadable, or not as configured.
        OSError
            If the cache cannot be written.
        """
        settings = dataclasses.asdict(self)
        for name in self.not_in_key:
            del settings[name]
        with self.named():
            key = digest(self.format, type(self).__name__, settings, self.identity())
            folder = cache_folder("datasets", self.name, key, cache_dir)
            return self._read(prepared(folder, self.write))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the dataset's name to errors about its source."""
        try:
            yield
        except SourceError as error:
            raise SourceError(f"dataset {self.name}: {error}") from error

    @abstractmethod
    def identity(self) -> list[Any]:
        """Return JSON-compatible values that identify the source, without reading the data."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Prepare the dataset in the empty `folder`.

        ``inputs.npy`` comes from :meth:`new_inputs`; then ``labels.npy`` and, where examples have a writer,
        user or region, ``natural.npy`` and :meth:`name_owners`; last :meth:`describe`.

        Raises
        ------
        SourceError
            If the source is missing, unreadable, or not as configured.
        """

    def refitting(self, folder: Path) -> Refit | None:  # noqa: ARG002
        """Return a function that re-encodes the examples in `folder`; see :attr:`Dataset.refit`."""
        return None

    def encoding_of(self, folder: Path, rows: IntArray, refitted: Path) -> InputEncoder | None:  # noqa: ARG002
        """Return how raw rows become inputs, see :attr:`Dataset.encoder`; None if no raw rows are read."""
        return None

    def new_inputs(
        self, folder: Path, dtype: type[np.generic], rows: int, shape: Sequence[int]
    ) -> NDArray[Any]:
        """Create ``inputs.npy`` for `rows` examples of `shape`, for the caller to fill.

        Raises
        ------
        SourceError
            If `shape`, that of the data, differs from the configured shape.
        """
        if list(shape) != list(self.input_shape):
            raise SourceError(
                f"input_shape must be {list(shape)}, the shape of this data, got {list(self.input_shape)}"
            )
        return new_array(folder / "inputs.npy", dtype, (rows, *shape))

    def name_owners(self, folder: Path, names: Sequence[str]) -> None:
        """Write the names of writers, users or regions, in the order of the indices in ``natural.npy``."""
        # Not part of the fingerprint: names do not affect any result.
        (folder / _NAMES).write_text(json.dumps(list(names)), encoding="utf-8")

    def describe(
        self,
        folder: Path,
        class_names: Sequence[str],
        num_train: int,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
    ) -> None:
        """Write ``dataset.json``: all values that are not arrays, and a fingerprint of the files' content.

        Raises
        ------
        SourceError
            If the number of `class_names` differs from the configured number of classes.
        """
        if len(class_names) != self.num_classes:
            raise SourceError(
                f"num_classes must be {len(class_names)}, the number of classes of this "
                f"data, got {self.num_classes}"
            )
        description = {
            "name": self.name,
            "num_classes": self.num_classes,
            "mean": list(mean),
            "std": list(std),
            "class_names": list(class_names),
            "num_train": num_train,
        }
        content = {file.name: file_digest(file) for file in sorted(folder.glob("*.npy"))}
        description["fingerprint"] = digest(description, content)
        (folder / "dataset.json").write_text(json.dumps(description, indent=1))

    def _read(self, folder: Path) -> Dataset:
        description = json.loads((folder / "dataset.json").read_text())
        for key in ("mean", "std", "class_names"):
            description[key] = tuple(description[key])
        natural, names = folder / "natural.npy", folder / _NAMES
        return Dataset(
            inputs=map_tensor(folder / "inputs.npy"),
            labels=map_tensor(folder / "labels.npy"),
            natural=map_array(natural) if natural.exists() else None,
            natural_names=tuple(json.loads(names.read_text(encoding="utf-8"))) if names.exists() else None,
            refit=self.refitting(folder),
            encoder=partial(self.encoding_of, folder),
            **description,
        )


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation per channel of the training images; empty for other inputs."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@contextmanager
def _named(*parts: Part | None) -> Iterator[None]:
    """Add the names of the files to any error about their content."""
    try:
        yield
    except SourceError as error:
        places = " and ".join(part.place for part in parts if part is not None)
        raise SourceError(f"{error} (read from {places})") from error


@dataclass(frozen=True, kw_only=True)
class SourcedDataset(DatasetBuilder):
    """A dataset read from a local path or the hub; subclasses encode the inputs.

    Attributes
    ----------
    path
        Local folder or file; takes precedence over `hub`. See :class:`Source` for the layouts.
    hub
        Id on the Hugging Face hub, ``OWNER/NAME``; None if no copy is known there.
    hub_options
        Further arguments for the hub: ``subset``, ``revision``, ``data_dir`` or ``data_files``.
    csv_options
        Further arguments of ``pandas.read_csv`` for CSV files, such as ``sep``, ``encoding`` and ``decimal``.
    exclude
        Shell patterns of local files to leave out.
    only
        Keep only examples with these values, by column, as in ``{YEAR: 2018}``.
    label
        Column with the label; of a list of names, the first that exists.
    per_position
        Whether each example has a label per position.
    drop_labels
        Label values whose examples are left out.
    class_names
        Names in label order; None uses the source's own.
    natural
        Column with the writer, user or region of each example, or None.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    path: str | None = None
    hub: str | None = None
    hub_options: Mapping[str, Any] = field(default_factory=dict)
    csv_options: Mapping[str, Any] = field(default_factory=dict)
    exclude: Sequence[str] = ()
    only: Mapping[str, Any] = field(default_factory=dict)
    label: str | Sequence[str] = "label"
    per_position: bool = False
    drop_labels: Sequence[Any] = ()
    class_names: Sequence[str] | None = None
    natural: str | Sequence[str] | None = None

    # The source takes part through its identity, so that a folder may be moved.
    not_in_key: ClassVar[tuple[str, ...]] = ("path", "hub", "hub_options", "csv_options")

    def source(self) -> Source:
        """Return the source of the examples."""
        return Source(self.path, self.hub, self.hub_options, self.exclude, csv_options=self.csv_options)

    def identity(self) -> list[Any]:
        """Return values that identify the source; see :meth:`Source.identity`."""
        return self.source().identity()

    def write(self, folder: Path) -> None:
        """Prepare the dataset in `folder`; see :meth:`DatasetBuilder.write`."""
        train, test = self.source().open()
        with _named(train, test):
            self._write(train, test, folder)

    def _write(self, train: Part, test: Part | None, folder: Path) -> None:
        parts = [self._filtered(part) for part in (train, test) if part is not None]
        labels = encode_labels(
            parts,
            self.label,
            self.num_classes,
            drop=self.drop_labels,
            class_names=self.class_names,
            per_position=self.per_position,
        )
        np.save(folder / "labels.npy", labels.indices)
        natural = encode_natural(parts, self.natural, labels.kept)
        if natural is not None:
            indices, names = natural
            np.save(folder / "natural.npy", indices)
            self.name_owners(folder, names)
        statistics = self.encode(parts, labels, folder)
        self.describe(folder, labels.class_names, labels.num_train, statistics.mean, statistics.std)

    def count_classes(self) -> int:
        """Count the distinct labels in the source's training part, without `drop_labels`.

        Raises
        ------
        SourceError
            If the source is missing or unreadable, or lacks the label column.
        """
        train = self.source().open()[0]
        with _named(train):
            part = self._filtered(train)
            labels = column(part, find_column(part, self.label, "label")).to_pandas()
        return int(labels[~labels.isin(list(self.drop_labels))].nunique())

    def _filtered(self, part: Part) -> Part:
        if not self.only:
            return part
        import pyarrow.compute as pc

        rows = part.rows
        for name, value in self.only.items():
            rows = rows.filter(pc.field(find_column(part, name, "only")) == value)
        return replace(part, rows=rows)

    @abstractmethod
    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Write the inputs of the kept examples into an array from :meth:`new_inputs`."""
