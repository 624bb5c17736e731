"""Datasets read from files or from the Hugging Face hub."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedclust.data.builder import DatasetBuilder
from fedclust.data.columns import Labels, column, encode_labels, encode_natural, find_column
from fedclust.data.source import Part, Source, SourceError

__all__ = ["SourcedDataset", "Statistics"]


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
        return Source(
            self.name, self.path, self.hub, self.hub_options, self.exclude, csv_options=self.csv_options
        )

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
            self.name,
            self.num_classes,
            drop=self.drop_labels,
            class_names=self.class_names,
            per_position=self.per_position,
        )
        np.save(folder / "labels.npy", labels.indices)
        natural = encode_natural(parts, self.natural, self.name, labels.kept)
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
            labels = column(part, find_column(part, self.label, self.name, "label")).to_pandas()
        return int(labels[~labels.isin(list(self.drop_labels))].nunique())

    def _filtered(self, part: Part) -> Part:
        if not self.only:
            return part
        import pyarrow.compute as pc

        rows = part.rows
        for name, value in self.only.items():
            rows = rows.filter(pc.field(find_column(part, name, self.name, "only")) == value)
        return replace(part, rows=rows)

    @abstractmethod
    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Write the inputs of the kept examples into an array from :meth:`new_inputs`."""
