"""Datasets from local Parquet, CSV or image files, or from the Hugging Face hub.

Every source becomes an Arrow dataset for the official training part and one for the official test part. As
on the hub, a local file's part is found by the word ``train``, ``test`` or ``validation`` in its path.
Without such a word, all files are the training part. Validation data becomes the test part if there is no
other.
"""

import codecs
import fnmatch
import gzip
import hashlib
import itertools
import json
import os
import re
import struct
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from fedclust.data.check import is_number, not_classes, read_values
from fedclust.data.dataset import (
    CALLED,
    GROUPS,
    OWNERS,
    PERSONS,
    VALUES,
    DatasetBuilder,
    SettingError,
    SourceError,
    Statistics,
)
from fedclust.data.targets import CLASSES, Target, kind_of
from fedclust.data.targets.classes import name_of
from fedclust.support.checks import Checked, few, nearest
from fedclust.support.reasons import is_open
from fedclust.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.dataset as ds


T = TypeVar("T")

TABLE_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".arrow")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
_FORMAT = "sep", "encoding", "decimal", "thousands", "quotechar", "comment", "header", "skiprows"
USUAL: dict[str, Any] = {
    "thousands": None,
    "quotechar": '"',
    "comment": None,
    "header": "infer",
    "skiprows": None,
    "na_values": None,
    "keep_default_na": True,
}
CSV_OPTIONS = (*_FORMAT, "na_values", "keep_default_na")
_WRONG = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError)
UNREADABLE = (OSError, EOFError, zlib.error, struct.error, *_WRONG)
"""What pandas, pyarrow, Pillow and zlib raise for damaged files and values that fit no type."""
HUB_OPTIONS = ("subset", "revision", "data_dir")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w")
SEPARATORS = (";", "\t", "|", ",")
_VALIDATION = {"validation", "valid", "val", "dev"}
# What a file begins with says more than an option does; UTF-32 begins like UTF-16, so it stands first.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
_OPENING = 256  # bytes
_TEXT = "rename it to .csv, and give its separator, for example 'dataset.csv_options.sep=\"\\t\"'"
_SAVE = "save it as CSV or Parquet, with a row for each example"
_OTHERS = {
    ".tsv": _TEXT,
    ".txt": _TEXT,
    ".tab": _TEXT,
    ".dat": _TEXT,
    ".xlsx": _SAVE,
    ".xls": _SAVE,
    ".json": _SAVE,
}
_OTHERS |= dict.fromkeys([".jsonl", ".ods", ".sav", ".dta", ".rds", ".feather"], _SAVE)
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")  # as pandas writes it
_LONGER = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
PART_WORDS = {"train": {"train", "training"}, "test": {"test", "testing"}, "validation": _VALIDATION}


@dataclass(frozen=True)
class Part:
    """One official part of a dataset.

    Attributes
    ----------
    rows
        The examples, file by file, in row order within each file.
    root
        Folder to which image paths are relative; None for the hub.
    place
        Name of the source in messages: a file, files of a folder, or a hub id.
    """

    rows: "ds.Dataset"
    root: Path | None = None
    place: str = "the source"


@dataclass(frozen=True)
class Source(Checked):
    """A dataset's location: a local path or a hub id.

    Attributes
    ----------
    path
        Folder or file with Parquet, CSV or image files; takes precedence over `hub`.
    hub
        Id of a dataset on the Hugging Face hub, ``OWNER/NAME``. Without an owner, ``datasets`` would take it
        as the name of one of its own readers, one of which unpickles.
    hub_options
        Further arguments of ``datasets.load_dataset``; only those in `HUB_OPTIONS`. Without a revision, a
        cached dataset is not checked for updates.
    exclude
        Shell patterns of local files, relative to `path`, to leave out.
    csv_options
        Further arguments of ``pandas.read_csv``, such as ``sep``, ``encoding`` and ``decimal``; only those in
        `CSV_OPTIONS`. With ``keep_default_na=False``, empty cells alone are missing, not ``NA`` or ``None``;
        ``header=0`` says that the first line has the names of the columns, even if they are numbers.
    label_pattern
        Regular expression searched in an image's path relative to `path`; its first group is the image's
        class. None, which :class:`~fedclust.data.images.Images` may change, uses the image's folder.

    Raises
    ------
    SourceError
        If `csv_options` or `hub_options` has any other key, or `hub` has no owner.
    """

    path: str | None = None
    hub: str | None = None
    hub_options: Mapping[str, Any] = field(default_factory=dict)
    exclude: Sequence[str] = ()
    csv_options: Mapping[str, Any] = field(default_factory=dict)

    label_pattern: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("csv_options", CSV_OPTIONS), ("hub_options", HUB_OPTIONS)):
            if unknown := [key for key in getattr(self, name) if key not in known]:
                raise SourceError(f"dataset.{name} takes {', '.join(known)}, got {', '.join(unknown)}")
        if self.hub is not None and not _HUB_ID.fullmatch(self.hub):
            raise SourceError(f"dataset.hub must be OWNER/NAME, got {self.hub}")
        folder = str(self.hub_options.get("data_dir", ""))
        if folder.startswith(("/", "~")) or ":" in folder or ".." in Path(folder).parts:
            # `datasets` would read it on this machine, or elsewhere
            raise SourceError(f"dataset.hub_options.data_dir must name a folder of the dataset, got {folder}")

    def identity(self) -> list[Any]:
        """Return values that identify this source, without reading any data.

        For local files: relative path, size, modification time, and the CSV options. Images that a table
        names by path are not checked.

        Raises
        ------
        SourceError
            If no source is configured, or nothing readable is at `path`.
        """
        if self.path is None:
            if self.hub is None:
                raise SourceError(f"has no source; {self._ways()}")
            return ["hub", self.hub, dict(self.hub_options)]
        root, files = self._files()
        stats = [(file.relative_to(root).as_posix(), file.stat()) for file in files]
        known = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        options = {key: each for key, each in self.csv_options.items() if each != USUAL.get(key, ...)}
        return ["files", known, *([options] if options else [])]

    def open(self, texts: Collection[str] = ()) -> tuple[Part, Part | None]:
        """Open the training and the test part.

        A column of several CSV files is texts if it is in one of them; in a test part, if it is in the
        training part.

        Parameters
        ----------
        texts
            Columns that CSV files hold as texts, whatever they look like: ``01`` is not ``1``.

        Returns
        -------
        The parts; the second is None where the source has no official test part.

        Raises
        ------
        SourceError
            If the source cannot be read.
        """
        if self.path is None:
            return self._open_hub()
        root, files = self._files()
        train, test = self._split(root, files)
        part = self._open_files(root, train, texts)
        texts = {*texts, *(each.name for each in part.rows.schema if is_text(each.type))}
        return part, self._open_files(root, test, texts) if test else None

    def _ways(self) -> str:
        paths = "a folder with train.parquet and test.parquet, a Parquet or CSV file, or class/image.jpg"
        hub = self.hub or "<id on the Hugging Face hub>"
        return f"give dataset.path=<{paths}>, or load it with dataset.hub={hub} (needs a network)"

    def _files(self) -> tuple[Path, list[Path]]:
        """List the files under `path`: its tables if it has any, else its images."""
        root = Path(str(self.path)).expanduser().absolute()
        if root.is_file():
            return root.parent, [root]
        if not root.is_dir():
            raise SourceError(f"{root} must be a file or folder that exists; {self._ways()}")
        names = [name for name in walk(root) if not any(fnmatch.fnmatch(name, glob) for glob in self.exclude)]
        names = [name for name in names if not re.search(r"(^|/)cache-[^/]*\.arrow$", name)]  # of `datasets`
        kinds = (".parquet",), (".arrow",), (".csv", ".csv.gz"), IMAGE_SUFFIXES
        for suffixes in kinds if self.label_pattern is None else kinds[3:]:
            if files := [root / name for name in names if name.lower().endswith(suffixes)]:
                return root, files
        raise SourceError(f"{root} holds no Parquet, CSV or image file; {self._ways()}")

    def _open_files(self, root: Path, files: list[Path], texts: Collection[str] = ()) -> Part:
        import pyarrow as pa
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        kind = files[0].name.lower()
        names = [file.relative_to(root).as_posix() for file in files]
        place = str(files[0]) if len(files) == 1 else f"{root} ({few(names, 3)})"
        if kind.endswith(".parquet"):
            for file in files:  # one by one, so that an error names its file
                self._read(file, lambda file: _check_names(pq.read_schema(file).names, str(file)))
            return _part(ds.dataset([str(file) for file in files], format="parquet"), root, place)
        if kind.endswith(".arrow"):  # as datasets' save_to_disk writes them
            tables = [self._read(file, _read_arrow) for file in files]
            return _part(ds.dataset(pa.concat_tables(tables)), root, place)
        if kind.endswith((".csv", ".csv.gz")):
            import pandas as pd

            frame = pd.concat(self._frames(files, texts), ignore_index=True)
            table = self._read(files[0], lambda _: pa.Table.from_pandas(frame, preserve_index=False))
            return _part(ds.dataset(table), root, place)
        if kind.endswith(IMAGE_SUFFIXES):
            table = pa.table({"image": names, "label": [self._label_of(name) for name in names]})
            return Part(ds.dataset(table), root, str(root))
        known = ", ".join(TABLE_SUFFIXES)
        advice = _OTHERS.get(files[0].suffix.lower(), self._ways())
        raise SourceError(f"{files[0]} must end in one of {known} or be an image; {advice}")

    def _read(self, file: Path, read: Callable[[Path], T]) -> T:
        """Read a file; errors name it."""
        try:
            return read(file)
        except SourceError:
            raise
        except UNREADABLE as error:
            advice = self._ways()
            if not file.stat().st_size:
                raise SourceError(f"{file} must have rows, it is empty") from error
            if isinstance(error, UnicodeDecodeError):
                advice = "set its encoding, for example dataset.csv_options.encoding=latin-1"
            if longer := _LONGER.search(str(error)):
                names, line, cells = longer.groups()
                found = f"line {line} must have at most {names} cells, as the lines above it, got {cells}"
                advice = (
                    "remove separators at the ends of lines, name every column in the first line, or leave "
                )
                advice += "out lines above the names with dataset.csv_options.skiprows=1"
                rule = "a CSV file must have a name for every cell of a row, divided by its separator"
                raise SettingError(rule, f"; cannot read {file}: {found}; {advice}") from error
            raise SourceError(f"cannot read {file}: {' '.join(str(error).split())}; {advice}") from error

    def _frames(self, files: Sequence[Path], texts: Collection[str]) -> "list[pd.DataFrame]":
        """Read CSV files; a column that one of them has as texts is texts in all."""
        frames = [self._read(file, partial(self._read_csv, texts=texts)) for file in files]
        found = {_composed(str(name)) for frame in frames for name in frame if _has_texts(frame[name])}
        other = [
            any(_composed(str(name)) in found and not _has_texts(each[name]) for name in each)
            for each in frames
        ]
        return [
            self._read(file, partial(self._read_csv, texts={*texts, *found})) if again else frame
            for file, frame, again in zip(files, frames, other, strict=True)
        ]

    def _read_csv(self, file: Path, texts: Collection[str]) -> "pd.DataFrame":
        import pandas as pd

        options = self._csv_options(file)
        # The first lines, as data: the names as they are, and an error if a row has more cells than names.
        as_data = {**options, "header": None, "dtype": str}
        header = pd.read_csv(file, **as_data, nrows=1).iloc[0].dropna().tolist()
        other = max(SEPARATORS, key=header[0].count) if len(header) == 1 else ""
        if options.get("header", 0) is not None and other and other in header[0]:
            divided = pd.read_csv(file, **{**as_data, "sep": other}, nrows=2)
            if divided.iloc[-1].count() > 1:  # else it is a title above the names
                option = f'dataset.csv_options.sep="{other.encode("unicode_escape").decode()}"'
                one = f", {file} has one column, {header[0]!r}; set its separator, for example '{option}'"
                raise SettingError("a CSV file must have several columns, divided by its separator", one)
        head = pd.read_csv(file, **as_data, nrows=2)
        names = [_composed(name) for name in head.iloc[0].dropna()]
        if options.get("header", 0) is not None:
            _check_names(names, str(file))
        if options.get("header", "infer") == "infer" and 2 * sum(map(is_number, names)) > len(names):
            rule = f"{file} has a first line of values, not of names; add a line with the columns' names"
            raise SourceError(f"{rule}, or give dataset.csv_options.header=0 if the names are numbers")
        if len(options.get("sep") or ",") == 1:
            # pandas infers a type from the whole column, Arrow's reader only from its first block.
            options["low_memory"] = False
        options["dtype"] = {name: str for name in head.iloc[0].dropna() if _composed(name) in texts}
        frame = pd.read_csv(file, **options)
        for name, kind in frame.dtypes.items():  # whole numbers too large for a type are keys
            if pd.api.types.is_object_dtype(kind) and pd.api.types.infer_dtype(frame[name]) == "integer":
                frame[name] = frame[name].astype("string")
        return frame

    def _csv_options(self, file: Path) -> dict[str, Any]:
        """Return the arguments of pandas.read_csv for a file: the settings, and what its first bytes say."""
        options = dict(self.csv_options)
        if options.get("sep") == r"\t":  # as typed on a command line
            options["sep"] = "\t"
        if options.get("keep_default_na") is False and options.get("na_values") is None:
            options["na_values"] = [""]  # empty cells stay missing, or no column has numbers
        with gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb") as opened:
            opening = opened.read(_OPENING)
        encoding = next((name for mark, name in _MARKS.items() if opening.startswith(mark)), None)
        if encoding is not None:
            options["encoding"] = encoding
        elif b"\0" in opening and not str(options.get("encoding")).lower().startswith(("utf-16", "utf-32")):
            order = "be" if opening.startswith(b"\0") else "le"
            advice = f"set its encoding, for example dataset.csv_options.encoding=utf-16-{order}"
            raise SourceError(f"cannot read {file}: it must be text, it has zero bytes; {advice}")
        first = opening.decode(options.get("encoding") or "utf-8", "ignore")
        if excel := re.match(r'"?sep=(.)"?\r?\n', first):  # a line by which Excel finds the separator
            options |= {"sep": excel[1], "skiprows": options.get("skiprows") or 1}
        if len(options.get("sep") or ",") > 1:
            options["engine"] = "python"
        return options

    def _label_of(self, name: str) -> str:
        if self.label_pattern is None:
            if not (folder := Path(name).parent.name):
                raise SourceError(f"image {name} must lie in a folder named after its class")
            return folder
        match = re.search(self.label_pattern, name)
        if match is None or not match.groups():
            rule = "label_pattern must match every image and have a group"
            raise SourceError(f"{rule}, got {self.label_pattern!r} for {name}")
        return match.group(1)

    def _split(self, root: Path, files: list[Path]) -> tuple[list[Path], list[Path]]:
        """Assign files to the training and the test part by the words in their paths."""
        images = files[0].name.lower().endswith(IMAGE_SUFFIXES)
        chosen: dict[str, list[Path]] = {part: [] for part in PART_WORDS}
        for file in files:
            folders = file.relative_to(root).parts
            if images:  # only the outermost folder counts, unless it is the class, which may be "train"
                folders = folders[:1] if len(folders) > (2 if self.label_pattern is None else 1) else ()
            words = {word for folder in folders for word in re.split(r"[^a-z]+", folder.lower())}
            for part, wanted in PART_WORDS.items():
                chosen[part] += [file] if words & wanted else []
        if not chosen["train"]:
            return files, []
        return chosen["train"], chosen["test"] or chosen["validation"]

    def _open_hub(self) -> tuple[Part, Part | None]:
        import datasets
        import pyarrow.dataset as ds

        place = f"{self.hub} of the Hugging Face hub"
        options = {"name" if key == "subset" else key: value for key, value in self.hub_options.items()}
        if Path(str(self.hub)).exists():  # `datasets` would read that instead
            raise SourceError(f"dataset.hub must not name a local folder, got {self.hub}; use dataset.path")
        try:
            parts = {}
            for part, rows in datasets.load_dataset(self.hub, **options).items():
                table = rows.data.table  # unshuffled, so there is no index mapping to follow
                table = table.replace_schema_metadata(rows.features.arrow_schema.metadata)
                parts[part] = _part(ds.dataset(table), None, place)
            return parts["train"], parts.get("test", parts.get("validation"))
        except (OSError, ValueError, RuntimeError, LookupError, datasets.exceptions.DatasetsError) as error:
            # OSError: no network or unknown id; ValueError: unknown subset; RuntimeError: the dataset is a
            # script, which `datasets` no longer runs; LookupError: no part called train; DatasetsError: its
            # files are broken.
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"hub id {self.hub} cannot be loaded ({reason}); {self._ways()}") from error


def _has_texts(values: "pd.Series[Any]") -> bool:
    """Check whether pandas read a column of a CSV file as texts."""
    from pandas.api import types

    return types.is_string_dtype(values.dtype)  # also of any objects


def _read_arrow(file: Path) -> "pa.Table":
    """Read an Arrow stream or file, memory-mapped."""
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def walk(root: Path) -> list[str]:
    """List the files under a folder, relative to it and sorted, without hidden files."""
    names: list[str] = []
    for folder, subfolders, files in os.walk(root):  # several times faster than rglob for many images
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        prefix = Path(folder).relative_to(root).as_posix()
        names += [name if prefix == "." else f"{prefix}/{name}" for name in files if not name.startswith(".")]
    return sorted(names)


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class Labels:
    """The labels of both parts, in the order training part, test part.

    Attributes
    ----------
    indices
        Class of each kept example, int64, shape (N,) or (N, positions).
    kept
        Which examples of the source are kept, shape (number of examples in the source,).
    num_train
        Number of kept examples in the training part.
    class_names
        Names in label order.
    target
        What is predicted.
    values
        Amount of each kept example, float32, shape (N,), or its time and event, shape (N, 2), where
        `indices` are the bins of these; None for classes.
    """

    indices: IntArray
    kept: BoolArray
    num_train: int
    class_names: tuple[str, ...]
    target: Target = CLASSES
    values: FloatArray | None = None


def _part(rows: "ds.Dataset", root: Path | None, place: str) -> Part:
    """Return a part whose columns have composed names, each once.

    An index of pandas with a name is a column like others; one without is of no use.
    """
    import pyarrow.dataset as ds

    schema = rows.schema
    about = {key: each for key, each in (schema.metadata or {}).items() if key != b"pandas"}
    unnamed = [name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)]
    for name in unnamed:
        schema = schema.remove(schema.get_field_index(name))
    rows = rows.replace_schema(schema.with_metadata(about))
    names = [_composed(name) for name in rows.schema.names]
    _check_names(names, place)
    if names != rows.schema.names:
        rows = ds.dataset(rows.to_table().rename_columns(names))
    return Part(rows, root, place)


def _composed(text: str) -> str:
    """Write a text in Unicode's composed form (NFC): "ä" may be one character or an "a" and two dots."""
    return normalize("NFC", text)


def _check_names(names: Iterable[str], place: str) -> None:
    """Check that the columns have different names.

    Raises
    ------
    SourceError
        If two have the same: pandas would rename one, which may then be an input with the label in it.
    """
    counts = Counter(names)
    if twice := [name for name in counts if counts[name] > 1]:
        raise SourceError(f"{place} has several columns called {few(twice)}; give each a name of its own")


def _plain(table: "pa.Table") -> "pa.Table":
    """Convert decimals to float64, and texts, even of a dictionary, to their composed form."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    for place, field_ in enumerate(table.schema):
        kind = field_.type.value_type if types.is_dictionary(field_.type) else field_.type
        if types.is_decimal(kind):
            table = table.set_column(place, field_.name, pc.cast(table[place], pa.float64()))
        elif is_text(kind):
            texts = pc.cast(pc.cast(table[place], kind), pa.large_string())
            table = table.set_column(place, field_.name, pc.utf8_normalize(texts, form="NFC"))
    return table


def is_text(type_: Any) -> bool:
    """Return whether an Arrow type is one of texts."""
    import pyarrow.types as types

    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def find_column(part: Part, wanted: str | Sequence[str], role: str) -> str:
    """Return the first of the columns `wanted` that the source has.

    Raises
    ------
    SettingError
        If it has none of them; the message lists the source's columns, except on a deployed node.
    """
    names, existing = [wanted] if isinstance(wanted, str) else list(wanted), part.rows.schema.names
    for name in map(_composed, names):
        if name in existing:
            return name
    near = nearest(names[0], existing) or ""
    hint = f"did you mean {near if near == near.strip() else repr(near)}? " if near else ""
    rule = f"{role} must be a column of the source, got {' or '.join(names)}"
    setting = "" if "." in role else f"; {'partition' if role == 'group' else 'dataset'}.{role}= names it"
    raise SettingError(rule, f"; {hint}columns are {', '.join(existing)}{setting}")


def column(part: Part, name: str) -> "pa.ChunkedArray":
    """Read one whole column."""
    return _plain(part.rows.to_table(columns=[name])).column(0)


Cells: TypeAlias = Iterator[tuple[int, list[Any]]]


def cells_of(parts: Sequence[Part], name: str, kept: BoolArray, size: int, **options: int) -> Cells:
    """Yield a column's kept cells, from up to `size` rows at a time, with the number of the first row."""
    position = 0
    for part in parts:
        for batch in part.rows.to_batches(columns=[name], batch_size=size, **options):
            wanted = kept[position : position + len(batch)]
            cells = zip(batch.column(0).to_pylist(), wanted, strict=True)
            yield position, [cell for cell, keep in cells if keep]
            position += len(batch)


def values_of(parts: Sequence[Part], name: str, kept: BoolArray) -> "pd.Series[Any]":
    """Read the kept rows of a column of all parts; missing for rows of a part that lacks it.

    Raises
    ------
    SourceError
        If its cells are lists or other values that cannot be compared.
    """
    check_plain(parts[0], name)
    return table_of(parts, [name], kept)[name]


def check_plain(part: Part, name: str) -> None:
    """Check that a column's cells are single values; raise SourceError with its type otherwise."""
    import pyarrow.types as types

    if types.is_nested(kind := part.rows.schema.field(name).type):
        raise SourceError(f"{name} must hold one text or number in each row, got {kind}")


def table_of(parts: Sequence[Part], names: Iterable[str], kept: BoolArray | slice) -> "pd.DataFrame":
    """Read the kept rows of some columns of all parts at once; missing for rows of a part that lacks one."""
    import pandas as pd

    tables = []
    for part in parts:
        existing = set(part.rows.schema.names)
        table = part.rows.to_table(columns=[name for name in names if name in existing])
        tables.append(_plain(table).to_pandas())
    return pd.concat(tables, ignore_index=True)[kept].reset_index(drop=True)


def rows_digest(parts: Sequence[Part], columns: Sequence[str]) -> str | None:
    """Hash a table's rows, whatever their order, file format and way of writing numbers.

    Parameters
    ----------
    parts
        The parts of a source.
    columns
        The columns to hash, in this order.

    Returns
    -------
    SHA-256 of the sorted rows, in hexadecimal digits; None if a column is missing.
    """
    if any(set(columns) - set(part.rows.schema.names) for part in parts):
        return None
    rows: list[str] = []
    for part in parts:
        table = part.rows.to_table(columns=list(columns)).to_pylist()
        rows += [json.dumps([name_of(row[name]) for name in columns]) for row in table]
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()


def _positions(values: "pa.ChunkedArray", name: str) -> NDArray[Any]:
    rows = values.to_pylist()
    if not all(isinstance(row, str | list) for row in rows):
        raise SourceError(f"{name} must hold a list of numbers or a string of digits, got {values.type}")
    if len(lengths := {len(row) for row in rows}) > 1 or 0 in lengths:
        least, most = min(lengths), max(lengths)
        rule = f"{name} must have equally many labels in every example, at least one"
        raise SourceError(f"{rule}, got {least} to {most}")
    labels = np.array([list(row) for row in rows])
    digits = labels.dtype.kind == "U" and np.char.isdecimal(labels).all()
    return labels.astype(np.int64) if digits else labels


def whole_numbers(labels: NDArray[Any]) -> NDArray[Any]:
    """Convert whole numbers, even stored as floats or booleans, to int64; other labels stay as they are."""
    whole = labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and (labels == np.round(labels)).all())
    return labels.astype(np.int64) if whole else labels


def _indices(arrays: list[Any], num_classes: int) -> tuple[IntArray, list[Any]]:
    """Return class indices, and the values in class order; empty if the values already were indices."""
    everything = whole_numbers(np.concatenate(arrays))
    if everything.dtype.kind == "i" and 0 <= everything.min() <= everything.max() < num_classes:
        return everything, []
    try:
        values, inverse = np.unique(everything, return_inverse=True)
    except TypeError as error:
        raise SourceError(f"labels must be all numbers or all text, got both ({error})") from error
    if unknown := np.setdiff1d(values, everything[: len(arrays[0])]).tolist():
        rule = f"the test part has labels that the training part lacks: {few(unknown)}"
        raise SourceError(f"{rule}; name them in drop_labels to leave their examples out")
    if len(values) != num_classes:
        labels = few(values.tolist())
        hint = "; to predict amounts give dataset.target=amounts" if everything.dtype.kind in "if" else ""
        rule = f"num_classes must be {len(values)}, as the labels are {labels}"
        raise SourceError(f"{rule}, got {num_classes}{hint}")
    return inverse.reshape(everything.shape).astype(np.int64), values.tolist()


Owners: TypeAlias = tuple[IntArray, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class SourcedDataset(Source, DatasetBuilder):
    """A dataset read from a source; subclasses encode the inputs.

    Attributes
    ----------
    path, hub, hub_options, exclude, csv_options
        Location of the examples; see :class:`Source`.
    only
        Keep only examples with these values, by column, as in ``{YEAR: 2018}``.
    label
        Column with the label, the amount or the time; from a list of names, the first that exists is used.
    target
        What is predicted: ``"classes"``; ``"amounts"``, a number in each row; or ``"times"`` until an event.
        None for classes, or for times if there is a column of events.
    event
        Column with 1 or true where the event happened at the time in `label`, and 0 or false where the row
        was censored then; None except for times.
    unit
        The unit of amounts or times, for people.
    error
        Loss of a row of amounts: the ``"squared"`` error, the ``"absolute"`` error, or ``"huber"``, which few
        rows that are far off move less.
    per_position
        Whether each example has a label per position: a list of numbers, or a string of digits.
    drop_labels
        Label values whose examples are left out.
    class_names
        Names in label order; None uses the source's own.
    natural
        Column with the writer, user or region of each example, or None.
    group
        Column with the key of the person that each example belongs to, which is no input, or None.
    groups
        Column with the group that people put each client in, such as a vendor, the same in all rows of a
        client, which is no input; or None. ``strategy=auto`` tests whether training by it helps.
    sha256
        Digest of the rows that the source must hold, see :func:`rows_digest`; None accepts any. A site's own
        file (``partition=own``) is not compared: it holds only that site's rows.
    sha256_help
        What is known of other copies, for the error about them.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    only: Mapping[str, Any] = field(default_factory=dict)
    label: str | Sequence[str] = "label"
    target: Literal["classes", "amounts", "times"] | None = None
    event: str | None = None
    unit: str = ""
    error: Literal["squared", "huber", "absolute"] = "squared"
    per_position: bool = False
    drop_labels: Sequence[Any] = ()
    class_names: Sequence[str] | None = None
    natural: str | Sequence[str] | None = None
    group: str | None = None
    groups: str | None = None
    sha256: str | None = None
    sha256_help: str = ""

    # The source enters the key through its identity, so that a folder may be moved.
    not_in_key: ClassVar[tuple[str, ...]] = ("path", "hub", "hub_options", "csv_options")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            kind = kind_of(self.target, self.event)
        except ValueError as error:
            raise SourceError(str(error)) from error
        if self.event and self.event == self.label:
            rule = "dataset.event must be another column than dataset.label, which has the times"
            raise SourceError(f"{rule}, got {self.event} for both")
        if self.error != "squared" and not hasattr(kind, "error"):
            rule = f"dataset.error must be squared with dataset.target={kind.kind}, which have another loss"
            raise SourceError(f"{rule}, got {self.error}")
        for name, unset in (("per_position", False), ("class_names", None)) if kind.numeric else ():
            if (given := getattr(self, name)) != unset:
                got = few(given) if given is not True else "true"
                rule = f"dataset.{name} must be {'null' if unset is None else 'false'}"
                raise SourceError(f"{rule} with dataset.target={kind.kind}, got {got}")

    @property
    def kind(self) -> type[Target]:
        """What is predicted."""
        return kind_of(self.target, self.event)

    @property
    def chosen(self) -> dict[str, str]:
        """What people choose of a target of numbers."""
        return {"unit": self.unit} | ({"error": self.error} if hasattr(self.kind, "error") else {})

    def write(self, folder: Path) -> None:
        """Prepare the dataset in `folder`; see :meth:`DatasetBuilder.write`."""
        with self.opened() as parts:
            labels = self.encode_values(parts) if self.kind.numeric else self.encode_labels(parts)
            np.save(folder / "labels.npy", labels.indices)
            if labels.values is not None:
                np.save(folder / VALUES, labels.values)
            natural, named = (self.encode_names(parts, labels.kept, role) for role in ("natural", "groups"))
            for found, file, names in ((natural, "natural.npy", OWNERS), (named, GROUPS, CALLED)):
                if found is not None:
                    np.save(folder / file, found[0])
                    (folder / names).write_text(json.dumps(found[1]))
            if (persons := self.persons(parts, labels.kept)) is not None:
                np.save(folder / PERSONS, persons)
            statistics = self.encode(parts, labels, folder)
            self.describe(folder, labels.class_names, labels.num_train, statistics, labels.target)

    @contextmanager
    def opened(self) -> Iterator[list[Part]]:
        """Open the training part and, if there is one, the test part; errors about them name the files."""
        parts = [part for part in self.open(self.texts) if part is not None]
        try:
            if self.sha256 is not None and (got := rows_digest(parts, self.columns)) != self.sha256:
                rule = f"the rows' SHA-256 must be {self.sha256}, got {got or 'other columns'}"
                raise SourceError(f"{rule}; {self.sha256_help}")
            yield [self._filtered(part) for part in parts]
        except SourceError as error:
            if not is_open():
                raise
            places = " and ".join(part.place for part in parts)
            raise SourceError(f"{error} (read from {places})") from error

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns that hold texts, whatever they look like."""
        return ()

    @property
    def columns(self) -> list[str]:
        """Columns that `sha256` covers: the label, the event and the natural one."""
        roles = self.label, self.event, self.natural
        named = [[name] if isinstance(name, str) else name or [] for name in roles]
        return [name for names in named for name in names]

    def _filtered(self, part: Part) -> Part:
        import pyarrow.compute as pc

        rows = part.rows
        for name, value in self.only.items():
            rows = rows.filter(pc.field(find_column(part, name, "only")) == value)
        return replace(part, rows=rows)

    def sizes_in_data(self) -> dict[str, Any]:
        """Count the distinct labels in the source's training part, without `drop_labels`, as ``num_classes``.

        Raises
        ------
        SourceError
            If the source is missing or unreadable, lacks the label column, or its labels are no classes.
        """
        with self.opened() as parts:
            return {"num_classes": self.count(parts[0])[0]}

    def count(self, part: Part) -> tuple[int, BoolArray]:
        """Count the classes, or the bins, of the training part; return its rows that are kept, too."""
        if self.kind.numeric:
            numbers = self.encode_values([part])
            return len(numbers.class_names), numbers.kept
        import pandas as pd

        (array,), kept = self.read_labels([part])
        labels = pd.Series(array.ravel(), name=str(self.label))
        for wrong in not_classes(labels):
            raise SourceError(wrong.line)
        return labels.nunique(), kept

    def read_labels(self, parts: Sequence[Part]) -> tuple[list[Any], BoolArray]:
        """Read the label column unchanged.

        Parameters
        ----------
        parts
            The training part and, if there is one, the test part.

        Returns
        -------
        The labels of each part, and which rows are kept, shape (number of examples in the source,).

        Raises
        ------
        SourceError
            If a label is missing, or the training part has no example.
        """
        import pyarrow.types as types

        name = find_column(parts[0], self.label, "label")
        columns = [column(part, name) for part in parts]
        for values in columns:
            if values.null_count:
                missing = f", {values.null_count} examples have none in {name}; label them or leave them out"
                advice = "; if None or NA is a class, give dataset.csv_options.keep_default_na=false"
                raise SettingError("label must have a value in every row", missing + advice)
        if self.per_position:
            arrays = [_positions(values, name) for values in columns]
            keeps = [np.ones(len(array), dtype=bool) for array in arrays]
        else:
            if types.is_nested(columns[0].type):
                rule = "must hold one label per example, or dataset.per_position be true"
                raise SourceError(f"{name} {rule}, got {columns[0].type}")
            series = [values.to_pandas() for values in columns]
            keeps = [~values.isin(list(self.drop_labels)).to_numpy(dtype=bool) for values in series]
            arrays = [values[keep].to_numpy() for values, keep in zip(series, keeps, strict=True)]
            if self.names_in(parts[0]) and any((array == -1).any() for array in arrays):
                rule = "must have a label in every example, some have -1, which is none in datasets"
                raise SourceError(f"{name} {rule}; leave them out with 'dataset.drop_labels=[-1]'")
        if not len(arrays[0]):
            raise SourceError("the training part must hold at least one example, got none")
        return arrays, np.concatenate(keeps)

    def encode_labels(self, parts: Sequence[Part]) -> Labels:
        """Read the label column as class indices.

        Whole numbers in [0, `num_classes`) are used as class indices. Any other values (names, -1 and 1,
        1 to C) are sorted, and their ranks in the training part become the indices.

        Parameters
        ----------
        parts
            As for :meth:`read_labels`.

        Raises
        ------
        SourceError
            If a label is missing or does not occur in the training part, or `num_classes` or `class_names`
            disagrees with the data.
        """
        arrays, kept = self.read_labels(parts)
        indices, values = _indices(arrays, self.num_classes)
        size = self.num_classes
        names: Sequence[Any] = values or self.names_in(parts[0]) or range(size)
        if self.class_names is not None:
            names = self.class_names
        if len(names) != size:
            raise SourceError(f"num_classes must be {len(names)}, as classes are {few(names)}, got {size}")
        return Labels(indices, kept, len(arrays[0]), tuple(map(str, names)))

    def read_values(self, parts: Sequence[Part]) -> tuple[FloatArray, BoolArray, int]:
        """Read the columns of amounts, or of times and events.

        Parameters
        ----------
        parts
            As for :meth:`read_labels`.

        Returns
        -------
        The kept rows' values, float32, shape (N,) or (N, 2); which rows of the source are kept; and how many
        of those are of the training part.

        Raises
        ------
        SourceError
            If a value is missing or impossible.
        """
        label = find_column(parts[0], self.label, "label")
        columns = [label] if self.event is None else [label, find_column(parts[0], self.event, "event")]
        for part, (name, role) in itertools.product(parts, zip(columns, ("label", "event"), strict=False)):
            check_plain(part, find_column(part, name, role))
        frame = table_of(parts, columns, slice(None))
        kept = ~frame[label].isin(list(self.drop_labels)).to_numpy(dtype=bool)
        num_train = int(kept[: parts[0].rows.count_rows()].sum())
        if not num_train:
            raise SourceError("the training part must hold at least one example, got none")
        try:
            read = read_values(self.kind, *(frame.loc[kept, name] for name in columns))
        except ValueError as error:
            raise SourceError(str(error)) from error
        return read, kept, num_train

    def encode_values(self, parts: Sequence[Part]) -> Labels:
        """Read the columns of amounts, or of times and events, and the bins of the training part's.

        Parameters
        ----------
        parts
            As for :meth:`read_labels`.

        Raises
        ------
        SourceError
            As :meth:`read_values`, or if the training part's amounts are alike or it has no event.
        """
        values, kept, num_train = self.read_values(parts)
        label = find_column(parts[0], self.label, "label")
        try:
            target = self.kind.agreed(values[:num_train].astype(np.float64), **self.chosen)
        except ValueError as error:
            raise SourceError(f"{label}: {error}") from error
        return Labels(target.bins(values), kept, num_train, target.bin_names(), target, values)

    def names_in(self, part: Part) -> list[str] | None:
        """Return the names of the label's indices, where ``datasets`` saved them with the table."""
        metadata = json.loads((part.rows.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        names: list[str] | None = features.get(find_column(part, self.label, "label"), {}).get("names")
        return None if names is None else [_composed(name) for name in names]

    def encode_names(
        self, parts: Sequence[Part], kept: BoolArray, role: Literal["natural", "groups"]
    ) -> Owners | None:
        """Read the writer, user or region of each kept example, or its group, as an index into sorted names.

        The test part may lack the column: the test parts of federated Landmarks and iNaturalist have no
        users.

        Returns
        -------
        The indices, shape (N,), -1 for an example without one, and the distinct names; None if no column is
        set.

        Raises
        ------
        SourceError
            If the training part lacks the column.
        """
        if getattr(self, role) is None:
            return None
        import pandas as pd

        values = values_of(parts, find_column(parts[0], getattr(self, role), role), kept)
        codes, owners = pd.factorize(values, sort=True)  # -1 where missing
        return codes.astype(np.int64), tuple(map(name_of, owners))

    def persons(self, parts: Sequence[Part], kept: BoolArray) -> IntArray | None:
        """Number the persons of the kept examples, shape (N,); None if no column is set.

        An example without a key is a person of its own.

        Raises
        ------
        SourceError
            If a part lacks the column.
        """
        if self.group is None:
            return None
        import pandas as pd

        keys = values_of(parts, find_column(parts[0], self.group, "group"), kept)
        codes = pd.factorize(keys)[0].astype(np.int64)
        gaps = codes < 0
        codes[gaps] = codes.max(initial=-1) + 1 + np.arange(gaps.sum())
        return codes

    @abstractmethod
    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Write the inputs of the kept examples into an array from :meth:`new_inputs`."""
