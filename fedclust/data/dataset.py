"""A dataset as two tensors, how it is prepared, and the rows of it that each client holds."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

import fedclust.data.cache as cache
from fedclust.data.input_encoders import ArrayEncoder, ImageEncoder, InputEncoder, TableEncoder
from fedclust.data.targets import CLASSES, Target, from_text, to_text
from fedclust.support.checks import Checked, check_held_out
from fedclust.support.reasons import Sendable, is_open
from fedclust.support.rng import generator
from fedclust.typing import IntArray

if TYPE_CHECKING:
    import torch


_MOST_ROWS = 1000  # of the inputs in a digest; a dataset may be larger than the memory
PERSONS = "persons.npy"
VALUES = "values.npy"
GROUPS = "named_groups.npy"
# Not part of the fingerprint: names do not affect any result.
OWNERS, CALLED = "natural_names.json", "group_names.json"

Refit: TypeAlias = Callable[[IntArray, Path], None]
Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel of the training images; empty for other inputs."""


class SourceError(ValueError):
    """A dataset's source is missing, unreadable, or differs from its configuration."""


class SettingError(SourceError, Sendable):
    """A setting does not fit the source; a deployed node sends the text, which then has nothing of the data.

    Parameters
    ----------
    rule
        What the setting must be, and what the run has set.
    detail
        What the source has instead, in the user's own process.
    """

    def __init__(self, rule: str, detail: str = "") -> None:
        super().__init__(rule + detail if is_open() else rule)


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare tensors
class Dataset:
    """All examples of a dataset, decoded once.

    Attributes
    ----------
    name
        Name in ``conf/dataset``.
    inputs
        One row per example, shape (N, *shape): uint8 images (N, channels, height, width), int64 tokens
        (N, positions), or float32 numbers (N, columns).
    labels
        Class indices, int64, shape (N,), or (N, positions) where each position has its own.
    num_classes
        Number of classes C; labels are in [0, C).
    mean, std
        Per channel, over the training part's pixels divided by 255; empty if inputs are not images.
    class_names
        Names in label order, shape (C,).
    num_train
        Rows [0, num_train) are the official training part; the rest, possibly none, the official test part.
    natural
        Index of each row's writer, user or region, from 0, or -1 if it has none, shape (N,); None if the
        data has no such owners.
    fingerprint
        Hash of all of the above, and of what `refit` reads: the same on every machine that decodes the same
        examples.
    refit
        For data whose encoding is fitted, such as a scaler or a vocabulary: a function that fits it on the
        given rows only, encodes all rows, and writes ``inputs.npy`` into the given folder. `inputs` are
        encoded with a fit on the official training part, because partitions may use them before the
        clients' training rows are known. None if nothing is fitted.
    natural_names
        Names of the writers, users or regions, in index order; None if they have none.
    named, group_names
        Index of the group that people put each row's client in, such as a vendor, shape (N,), −1 for none,
        and the groups' names; None and empty if nobody did.
    persons
        Number of the person that each row is of, shape (N,); None where every row is a person of its own.
    target
        What is predicted, with the range or the intervals of the official training part.
    values
        What is known of each row where that is not a class: its amount, shape (N,), or its time and event,
        shape (N, 2), float32; `labels` are then the rows' bins.
    encoder
        Function that returns the encoder of raw rows, given the training rows (those that `refit` was called
        with, or all of the official training part) and the folder that `refit` wrote to. It returns None if
        raw rows cannot be read; None in its place means the same.

    Raises
    ------
    ValueError
        If there is no example, or labels have a wrong shape or are out of range.
    """

    name: str
    inputs: "torch.Tensor"
    labels: "torch.Tensor"
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    num_train: int
    natural: IntArray | None
    fingerprint: str
    refit: Refit | None = None
    natural_names: tuple[str, ...] | None = None
    persons: IntArray | None = None
    encoder: Callable[[IntArray, Path], InputEncoder | None] | None = None
    target: Target = CLASSES
    values: "torch.Tensor | None" = None
    named: IntArray | None = None
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows, classes, shape = len(self.inputs), self.num_classes, tuple(self.labels.shape)
        named = f"dataset {self.name}"
        if not rows or shape[0] != rows or len(shape) > 2:
            raise ValueError(f"{named}: labels must have shape ({rows},) or ({rows}, positions), got {shape}")
        if len(self.class_names) != classes:
            raise ValueError(f"{named}: num_classes must be {len(self.class_names)}, got {classes}")
        low, high = (int(bound) for bound in self.labels.aminmax())
        if low < 0 or high >= classes:
            raise ValueError(f"{named}: labels must be in [0, {classes}), got {low} to {high}")


@dataclass(frozen=True, kw_only=True)
class DatasetBuilder(Checked, ABC):
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
    num_classes: Annotated[int, ">= 2"]
    input_shape: Sequence[int]

    node = "dataset."
    format: ClassVar[int] = 1  # increase it when the same source and settings give other files
    not_in_key: ClassVar[tuple[str, ...]] = ()  # settings that do not affect the files

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.name):
            raise ValueError(f"dataset.name must be letters, digits, '_', '.' and '-', got {self.name!r}")
        super().__post_init__()
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
        settings = {name: value for name, value in asdict(self).items() if name not in self.not_in_key}
        with self.named():
            key = cache.digest(self.format, type(self).__name__, settings, self.identity())
            folder = cache.cache_folder("datasets", self.name, key, cache_dir)
            return self._mapped(cache.prepared(folder, self.write))

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
        user or region, ``natural.npy``; last :meth:`describe`.

        Raises
        ------
        SourceError
            If the source is missing, unreadable, or not as configured.
        """

    def refitting(self, folder: Path) -> Refit | None:  # noqa: ARG002
        """Return a function that re-encodes the examples in `folder`; see :attr:`Dataset.refit`."""
        return None

    def encoding_of(self, folder: Path, rows: IntArray, refitted: Path) -> InputEncoder | None:  # noqa: ARG002
        """Return the encoder of raw rows, see :attr:`Dataset.encoder`; None if raw rows cannot be read."""
        return None

    def new_inputs(self, folder: Path, dtype: Any, rows: int, shape: Sequence[int]) -> NDArray[Any]:
        """Create ``inputs.npy`` for `rows` examples of `shape`, for the caller to fill.

        Raises
        ------
        SourceError
            If `shape`, that of the data, differs from the configured shape.
        """
        if list(shape) != (wanted := list(self.input_shape)):
            raise SourceError(f"input_shape must be {list(shape)}, the shape of this data, got {wanted}")
        return cache.new_array(folder / "inputs.npy", dtype, (rows, *shape))

    def describe(
        self,
        folder: Path,
        class_names: Sequence[str],
        num_train: int,
        statistics: Statistics = ((), ()),
        target: Target = CLASSES,
    ) -> None:
        """Write ``dataset.json``: all values that are not arrays, and a fingerprint of the files' content."""
        num_classes = len(target.bin_names()) or self.num_classes
        values = self.name, num_classes, *statistics, class_names, num_train
        names = "name", "num_classes", "mean", "std", "class_names", "num_train"
        description: dict[str, Any] = dict(zip(names, values, strict=True))
        if text := to_text(target):
            description["target"] = text
        content = {file.name: cache.file_digest(file) for file in sorted(folder.glob("*.npy"))}
        description["fingerprint"] = cache.digest(description, content)
        (folder / "dataset.json").write_text(json.dumps(description, indent=1))

    def _mapped(self, folder: Path) -> Dataset:
        description = json.loads((folder / "dataset.json").read_text())
        for key, value in description.items():
            description[key] = tuple(value) if isinstance(value, list) else value
        description["target"] = from_text(description.get("target", ""))
        natural, names, persons = folder / "natural.npy", folder / OWNERS, folder / PERSONS
        values, groups, called = folder / VALUES, folder / GROUPS, folder / CALLED
        return Dataset(
            inputs=cache.map_tensor(folder / "inputs.npy"),
            labels=cache.map_tensor(folder / "labels.npy"),
            natural=cache.map_array(natural) if natural.exists() else None,
            natural_names=tuple(json.loads(names.read_text())) if names.exists() else None,
            persons=cache.map_array(persons) if persons.exists() else None,
            refit=self.refitting(folder),
            encoder=partial(self.encoding_of, folder),
            values=cache.map_tensor(values) if values.exists() else None,
            named=cache.map_array(groups) if groups.exists() else None,
            group_names=tuple(json.loads(called.read_text())) if called.exists() else (),
            **description,
        )


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare tensors
class FederatedData:
    """A decoded dataset and the rows that each client holds.

    A row belongs to at most one client, so a client's shift (other class names, noise, a rotation) is
    already applied to `inputs` and `labels`; training just reads the rows.

    Attributes
    ----------
    name
        Name of the dataset in ``conf/dataset``.
    inputs
        One row per example, shape (N, *shape): uint8 images (N, channels, height, width), int64 tokens
        (N, positions), or float32 numbers (N, columns). Treat as read-only: it may be a memory-mapped file
        that other processes share.
    labels
        Class indices, int64, shape (N,), or (N, positions) where each position has its own.
    train, test
        For each of the K clients, the rows of its training and of its test part.
    num_classes
        Number of classes C.
    mean, std
        Per channel, over the training part's pixels divided by 255; empty if inputs are not images.
    groups
        Known group of each client, an index from 0, shape (K,); None if there is none.
    class_names
        Names in label order, shape (C,).
    fingerprint
        Changes with the data, the partition and the seed.
    client_names
        Name of each client, shape (K,), if every client is a writer, user or region of the data; else None.
    left_out
        Names of the writers, users or regions with too few examples to be a client, and their numbers of
        examples; "" for those without an owner.
    validation
        For each client, rows used neither for training nor for final metrics, but only for the proof; empty
        if there are none.
    encoder
        Function that returns the encoder of raw rows to `inputs`, apart from shifts and before a frozen
        encoder embeds them; None if unknown.
    persons
        Number of the person that each row is of, shape (N,), unique within a client; None where every row is
        a person of its own. No split of a client's rows may divide a person.
    source_rows
        Number of each row in its site's own file, from 0, shape (N,); None without such files.
    content
        Tells the clients' rows from those of other data, and ends in a hyphen and the seed that drew parts of
        them, if one did; empty if unknown.
    embedded_by
        Fingerprint of the frozen encoder that made `inputs` of the rows, see
        :mod:`fedclust.models.embeddings`; empty if they are the rows themselves.
    target
        What is predicted.
    values
        What is known of each row where that is not a class: its amount, shape (N,), or its time and event,
        shape (N, 2), float32; `labels` are then the rows' bins, see :mod:`fedclust.data.targets`.
    named_groups
        Name of the group that people put each client in, such as a vendor, shape (K,); empty if nobody did.
        Unlike `groups`, nobody knows whether these help.
    grouped_by
        What these groups are by, such as the column of ``dataset.groups``.

    Raises
    ------
    ValueError
        If `train`, `test`, `groups`, `named_groups` and `client_names` have different numbers of clients, or
        a row is out of range or occurs twice.
    """

    name: str
    inputs: "torch.Tensor"
    labels: "torch.Tensor"
    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    fingerprint: str
    groups: IntArray | None = None
    client_names: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    validation: tuple[IntArray, ...] = ()
    encoder: Callable[[], InputEncoder | None] | None = None
    persons: IntArray | None = None
    source_rows: IntArray | None = None
    embedded_by: str = ""
    target: Target = CLASSES
    values: "torch.Tensor | None" = None
    named_groups: tuple[str, ...] = ()
    grouped_by: str = ""
    content: str = ""

    def __post_init__(self) -> None:
        clients = len(self.train)
        if clients == 0:
            raise ValueError("train must hold at least one client's rows, got none")
        if self.groups is not None and self.groups.shape != (clients,):
            raise ValueError(f"groups must have shape ({clients},), got {self.groups.shape}")
        for name in ("test", "client_names", "validation", "named_groups"):
            each = getattr(self, name)
            if len(each or ()) != clients and (each or name == "test"):
                raise ValueError(f"{name} must have one entry per client, got {len(each)} for {clients}")
        rows, size = np.concatenate([*self.train, *self.test, *self.validation]), len(self.inputs)
        if rows.size and not 0 <= rows.min() <= rows.max() < size:
            raise ValueError(f"rows must be in [0, {size}), got {rows.min()} to {rows.max()}")
        if (most := (uses := np.bincount(rows, minlength=size)).max()) > 1:
            raise ValueError(f"a row must belong to one part of one client, row {uses.argmax()} has {most}")

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return len(self.train)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.inputs.shape[1:])

    @property
    def truth(self) -> "torch.Tensor":
        """What a network learns to predict: `values`, or labels."""
        return self.labels if self.values is None else self.values

    @property
    def num_outputs(self) -> int:
        """Number of a network's outputs for a row, or for each of its positions."""
        return self.target.outputs(self.num_classes)

    def input_encoder(self) -> InputEncoder:
        """Return the encoder of raw rows to `inputs`; if unknown, one for rows that are already numbers."""
        if self.encoder is not None and (known := self.encoder()) is not None:
            return known
        if self.mean:
            return ImageEncoder(self.input_shape, "none", self.mean, self.std)
        tokens = str(self.inputs.dtype) == "torch.int64"
        return ArrayEncoder(self.input_shape, "int64" if tokens else "float32")

    def in_other_units(self, client: int) -> "list[tuple[str, float, float, torch.Tensor]]":
        """List the columns of a client's table that may be in another unit than most clients'.

        Returns
        -------
        Name of each, size of its values at the client and elsewhere, and all inputs, with the client's
        training rows converted in that column.
        """
        import torch

        if self.client_names is None or self.encoder is None or self.embedded_by:
            return []
        if not isinstance(encoder := self.encoder(), TableEncoder):
            return []
        rows, found = torch.from_numpy(self.train[client]), []
        own = self.inputs[rows].numpy()
        for name, size, elsewhere, converted in encoder.converted(own, self.client_names[client]):
            inputs = self.inputs.clone()
            inputs[rows] = torch.from_numpy(converted)
            found.append((name, size, elsewhere, inputs))
        return found

    def without_holdout(self) -> "FederatedData":
        """Return the data with each client's validation rows among its training rows."""
        if not self.validation:
            return self
        train = [np.sort(np.concatenate(parts)) for parts in zip(self.train, self.validation, strict=True)]
        return replace(self, train=tuple(train), validation=(), fingerprint=f"{self.fingerprint}-all")

    def label_counts(self, part: Literal["train", "test", "validation"] = "train") -> IntArray:
        """Count each client's labels; with labels per position, each position counts.

        Parameters
        ----------
        part
            Part of each client's data to count.

        Returns
        -------
        Examples of each class, int64, shape (K, C).
        """
        labels, clients = self.labels.numpy(), getattr(self, part)
        return np.stack([np.bincount(labels[rows].ravel(), minlength=self.num_classes) for rows in clients])


def content_digest(data: FederatedData) -> str:
    """Compute a digest of labels and partition, the same on every machine that prepared the same data.

    Unlike ``data.fingerprint``, it depends on each client's rows and not on the settings that led to them,
    nor on the last bits of numbers, which machines may round differently: of the inputs, up to a thousand
    evenly spaced rows are included, and only if they are whole numbers (images, tokens).

    Returns
    -------
    32 hexadecimal digits.
    """
    content = hashlib.sha256(repr((data.num_classes, data.class_names, tuple(data.inputs.shape))).encode())
    content.update(np.ascontiguousarray(data.truth.numpy()).tobytes())
    for part in (data.train, data.test, data.validation):
        for rows in part:
            content.update(len(rows).to_bytes(8, "little"))
            content.update(np.asarray(rows, dtype="<i8").tobytes())
    if not data.inputs.is_floating_point() and len(data.inputs):
        step = -(-len(data.inputs) // _MOST_ROWS)
        content.update(data.inputs[::step].contiguous().numpy().tobytes())
    return content.hexdigest()[:32]


def num_held_out(num_clients: int, held_out: float) -> int:
    """Compute how many of a federation's clients are held out.

    Parameters
    ----------
    num_clients
        Number of clients, including those held out.
    held_out
        A share of the clients in (0, 1), rounded to at least one; or a number.

    Raises
    ------
    ValueError
        As for :func:`check_held_out`, or if no client would be left to train.
    """
    check_held_out(held_out)
    number = max(1, round(held_out * num_clients)) if 0 < held_out < 1 else int(held_out)
    if number >= num_clients:
        raise ValueError(f"holdout_clients must leave a client to train, got {held_out!r} of {num_clients}")
    return number


def training_first(num_clients: int, held_out: float, seed: int) -> IntArray:
    """Draw the clients to hold out, and number clients so that these come last.

    Parameters
    ----------
    num_clients, held_out
        As for :func:`num_held_out`.
    seed
        The run's seed.

    Returns
    -------
    The partition's number of each client: first those that train, then those held out, both in the
    partition's order; shape (K,).
    """
    number = num_held_out(num_clients, held_out)
    drawn = generator(seed, "newcomers").permutation(num_clients)[:number]
    return np.concatenate([np.setdiff1d(np.arange(num_clients), drawn), np.sort(drawn)])


def newcomers_last(data: FederatedData, held_out: float, seed: int) -> FederatedData:
    """Renumber clients so that those held out come last; without any, nothing changes.

    The inputs' mean and standard deviation stay those of all clients' training rows.

    Parameters
    ----------
    data
        The clients.
    held_out, seed
        As for :func:`training_first`.
    """
    if not held_out:
        return data
    order = training_first(data.num_clients, held_out, seed)
    changes: dict[str, Any] = {"fingerprint": f"{data.fingerprint}-{held_out!r}-{seed}"}
    for name in ("train", "test", "validation", "client_names", "named_groups"):
        parts = getattr(data, name)
        changes[name] = tuple(parts[client] for client in order.tolist()) if parts else parts
    if data.groups is not None:
        changes["groups"] = data.groups[order]
    return replace(data, **changes)
