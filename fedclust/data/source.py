"""Sources of examples: local Parquet, CSV or image files, or a dataset on the Hugging Face hub.

Every source becomes an Arrow dataset for the official training part and one for the official test part. As
on the hub, a local file's part is found by the word ``train``, ``test`` or ``validation`` in its path.
Without such a word, all files are the training part. Validation data becomes the test part if there is no
other.
"""

import fnmatch
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedclust.support.checks import few
from fedclust.typing import BoolArray, IntArray

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.dataset as ds


T = TypeVar("T")

TABLE_SUFFIXES = (".parquet", ".csv", ".csv.gz")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
CSV_OPTIONS = ("sep", "encoding", "decimal", "thousands", "quotechar", "comment", "na_values", "skiprows")
HUB_OPTIONS = ("subset", "revision", "data_dir", "data_files")
SEPARATORS = (";", "\t", "|", ",")
TRAIN_WORDS = {"train", "training"}
TEST_WORDS = {"test", "testing"}
VALIDATION_WORDS = {"validation", "valid", "val", "dev"}


class SourceError(ValueError):
    """A dataset's source is missing, unreadable, or differs from its configuration."""


@dataclass(frozen=True)
class Part:
    """One official part of a dataset.

    Attributes
    ----------
    rows
        The examples, file by file, in row order within each file.
    root
        Folder that image paths are relative to; None for the hub.
    place
        The source for messages: a file, files of a folder, or a hub id.
    """

    rows: "ds.Dataset"
    root: Path | None = None
    place: str = "the source"


@dataclass(frozen=True)
class Source:
    """A dataset's location: a local path or a hub id.

    Attributes
    ----------
    path
        Folder or file with Parquet, CSV or image files; takes precedence over `hub`.
    hub
        Id of a dataset on the Hugging Face hub, ``OWNER/NAME``, loaded through flwr-datasets. Without an
        owner ``datasets`` would take it for one of its own readers, of which one unpickles.
    hub_options
        Further arguments of ``datasets.load_dataset``; only those in `HUB_OPTIONS`. Without a revision, a
        cached dataset is not checked for updates.
    exclude
        Shell patterns of local files, relative to `path`, to leave out.
    label_pattern
        Regular expression searched in an image's path relative to `path`; its first group is the image's
        class. None uses the image's folder as its class.
    csv_options
        Further arguments of ``pandas.read_csv``; only those in `CSV_OPTIONS`.

    Raises
    ------
    SourceError
        If `csv_options` or `hub_options` has any other key, or `hub` no owner.
    """

    path: str | None = None
    hub: str | None = None
    hub_options: Mapping[str, Any] = field(default_factory=dict)
    exclude: Sequence[str] = ()
    label_pattern: str | None = None
    csv_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (("csv_options", CSV_OPTIONS), ("hub_options", HUB_OPTIONS)):
            if unknown := [key for key in getattr(self, name) if key not in known]:
                raise SourceError(f"dataset.{name} takes {', '.join(known)}, got {', '.join(unknown)}")
        if self.hub is not None and "/" not in self.hub:
            raise SourceError(f"dataset.hub must be OWNER/NAME, got {self.hub}")

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
        files_as_they_are = ["files", [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]]
        return [*files_as_they_are, dict(self.csv_options)] if self.csv_options else files_as_they_are

    def open(self) -> tuple[Part, Part | None]:
        """Open the training and the test part.

        Returns
        -------
        The parts; the second is None where the source has no official test part.

        Raises
        ------
        SourceError
            If no source is configured, or it cannot be read.
        """
        if self.path is None:
            return self._open_hub()
        root, files = self._files()
        train, test = _split(root, files, flat=self.label_pattern is not None)
        return self._open_files(root, train), self._open_files(root, test) if test else None

    def _ways(self) -> str:
        hub = f"dataset.hub={self.hub}" if self.hub else "dataset.hub=<id on the Hugging Face hub>"
        return (
            "give dataset.path=<a folder with train.parquet and test.parquet, one Parquet or CSV file, or a "
            f"folder of images as class/name.jpg>, or load it with {hub} (needs a network)"
        )

    def _files(self) -> tuple[Path, list[Path]]:
        """List the files under `path`: its tables if it has any, else its images."""
        root = Path(str(self.path)).expanduser().absolute()
        if root.is_file():
            return root.parent, [root]
        if not root.is_dir():
            raise SourceError(f"there is no file or folder {root}; {self._ways()}")
        kinds: Iterable[tuple[str, ...]] = [(".parquet",), (".csv", ".csv.gz"), IMAGE_SUFFIXES]
        if self.label_pattern is not None:
            kinds = [IMAGE_SUFFIXES]
        found = [name for name in walk(root) if not any(fnmatch.fnmatch(name, glob) for glob in self.exclude)]
        for suffixes in kinds:
            files = [root / name for name in found if name.lower().endswith(suffixes)]
            if files:
                return root, files
        raise SourceError(f"{root} holds no Parquet, CSV or image file; {self._ways()}")

    def _open_files(self, root: Path, files: list[Path]) -> Part:
        import pyarrow as pa
        import pyarrow.dataset as ds

        name = files[0].name.lower()
        if name.endswith(".parquet"):
            for file in files:  # one by one, so that an error names its file
                self._read(file, lambda file: ds.dataset(file, format="parquet"))
            return Part(
                ds.dataset([str(file) for file in files], format="parquet"), root, _place(root, files)
            )
        if name.endswith((".csv", ".csv.gz")):
            import pandas as pd

            frame = pd.concat([self._read(file, self._read_csv) for file in files], ignore_index=True)
            table = pa.Table.from_pandas(frame, preserve_index=False)
            return Part(ds.dataset(table), root, _place(root, files))
        if name.endswith(IMAGE_SUFFIXES):
            names = [file.relative_to(root).as_posix() for file in files]
            table = pa.table({"image": names, "label": [self._label_of(name) for name in names]})
            return Part(ds.dataset(table), root, str(root))
        raise SourceError(
            f"{files[0]} must end in one of {', '.join(TABLE_SUFFIXES)} or be an image; {self._ways()}"
        )

    def _read(self, file: Path, read: Callable[[Path], T]) -> T:
        """Read a file; name it in any error."""
        try:
            return read(file)
        except SourceError:
            raise
        except UnicodeDecodeError as error:
            raise SourceError(
                f"cannot read {file}: {error}; give its encoding, "
                "for example dataset.csv_options.encoding=latin-1"
            ) from error
        except (OSError, ValueError, LookupError) as error:  # pyarrow's and pandas' errors are among these
            reason = " ".join(str(error).split())
            raise SourceError(f"cannot read {file}: {reason}; {self._ways()}") from error

    def _read_csv(self, file: Path) -> "pd.DataFrame":
        import pandas as pd

        options = dict(self.csv_options)
        if options.get("sep") == r"\t":  # typed like this on a command line
            options["sep"] = "\t"
        if len(options.get("sep") or ",") == 1:
            # pandas infers a type from the whole column, Arrow's reader only from its first block.
            options["low_memory"] = False
        else:
            options["engine"] = "python"
        frame = pd.read_csv(file, **options)
        header = str(frame.columns[0])
        other = max(SEPARATORS, key=header.count)
        if len(frame.columns) == 1 and other in header:
            escaped = other.encode("unicode_escape").decode()
            raise SourceError(
                f"{file} has one column, {header!r}, so its columns have another "
                f"separator; set it, for example 'dataset.csv_options.sep=\"{escaped}\"'"
            )
        return frame

    def _label_of(self, name: str) -> str:
        if self.label_pattern is None:
            folders = name.split("/")[:-1]
            if not folders:
                raise SourceError(f"image {name} must lie in a folder named after its class")
            return folders[-1]
        match = re.search(self.label_pattern, name)
        if match is None or not match.groups():
            raise SourceError(
                f"label_pattern must match every image and have a group, "
                f"got {self.label_pattern!r} for {name}"
            )
        return match.group(1)

    def _open_hub(self) -> tuple[Part, Part | None]:
        if self.hub is None:
            raise SourceError(f"has no source; {self._ways()}")
        import datasets
        from flwr_datasets import FederatedDataset

        splits: dict[str, Any] = {}

        def remember(loaded: datasets.DatasetDict) -> datasets.DatasetDict:
            splits.update(loaded)
            return loaded

        try:
            FederatedDataset(
                dataset=self.hub, partitioners={}, shuffle=False, preprocessor=remember, **self.hub_options
            ).load_split("train")
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            # OSError: no network or unknown id; ValueError: unknown subset or part; RuntimeError: the dataset
            # is a script, which `datasets` no longer runs; DatasetsError: its files are broken.
            raise SourceError(
                f"hub id {self.hub} cannot be loaded ({type(error).__name__}: {error}); {self._ways()}"
            ) from error
        test = splits.get("test", splits.get("validation"))
        return _hub_part(splits["train"], self.hub), None if test is None else _hub_part(test, self.hub)


def _hub_part(rows: Any, hub: str) -> Part:
    import pyarrow.dataset as ds

    table: pa.Table = rows.data.table  # unshuffled, so there is no index mapping to follow
    table = table.replace_schema_metadata(rows.features.arrow_schema.metadata)
    return Part(ds.dataset(table), place=f"{hub} of the Hugging Face hub")


def _place(root: Path, files: Sequence[Path]) -> str:
    """Return the file's name, or the folder and its first few files."""
    if len(files) == 1:
        return str(files[0])
    names = [file.relative_to(root).as_posix() for file in files[:3]]
    return f"{root} ({', '.join(names)}{', …' if len(files) > 3 else ''})"


def walk(root: Path) -> list[str]:
    """List the files under a folder, relative to it and sorted, without hidden files."""
    names: list[str] = []
    for folder, subfolders, files in os.walk(root):  # several times faster than rglob for many images
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        prefix = Path(folder).relative_to(root).as_posix()
        names += [name if prefix == "." else f"{prefix}/{name}" for name in files if not name.startswith(".")]
    return sorted(names)


def _split(root: Path, files: list[Path], flat: bool) -> tuple[list[Path], list[Path]]:
    """Assign files to the training and the test part by the words in their paths.

    With `flat`, an image's folder is not its class.
    """
    images = files[0].name.lower().endswith(IMAGE_SUFFIXES)
    words: list[set[str]] = []
    for file in files:
        parts = file.relative_to(root).parts
        if images:  # only the outermost folder counts, unless it is the class, which may be called "train"
            parts = parts[:1] if len(parts) > (1 if flat else 2) else ()
        words.append({word for part in parts for word in re.split(r"[^a-z]+", part.lower())})
    chosen = {
        kind: [file for file, found in zip(files, words, strict=True) if found & wanted]
        for kind, wanted in (("train", TRAIN_WORDS), ("test", TEST_WORDS), ("val", VALIDATION_WORDS))
    }
    if not chosen["train"]:
        return files, []
    return chosen["train"], chosen["test"] or chosen["val"]


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
    """

    indices: IntArray
    kept: BoolArray
    num_train: int
    class_names: tuple[str, ...]


def find_column(part: Part, wanted: str | Sequence[str], role: str) -> str:
    """Return the first of the columns `wanted` that the source has.

    Raises
    ------
    SourceError
        If it has none of them; the message lists the source's columns.
    """
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name in part.rows.schema.names:
            return name
    raise SourceError(
        f"{role} must be a column of the source, got {' or '.join(names)}; "
        f"columns are {', '.join(part.rows.schema.names)}"
    )


def column(part: Part, name: str) -> "pa.ChunkedArray":
    """Read one whole column."""
    return part.rows.to_table(columns=[name]).column(0)


def cells_of(
    parts: Sequence[Part], name: str, kept: BoolArray, size: int, **options: int
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the kept cells of a column in order, from at most `size` rows at a time, and the first row."""
    position = 0
    for part in parts:
        for batch in part.rows.to_batches(columns=[name], batch_size=size, **options):
            wanted = kept[position : position + len(batch)]
            cells = zip(batch.column(0).to_pylist(), wanted, strict=True)
            yield position, [cell for cell, keep in cells if keep]
            position += len(batch)


def values_of(parts: Sequence[Part], name: str, kept: BoolArray) -> "pd.Series[Any]":
    """Read the kept rows of a column of all parts; None where a part lacks it."""
    import pandas as pd

    values = [
        column(part, name).to_pandas()
        if name in part.rows.schema.names
        else pd.Series([None] * part.rows.count_rows())
        for part in parts
    ]
    return pd.concat(values, ignore_index=True)[kept].reset_index(drop=True).rename(name)


def encode_labels(
    parts: Sequence[Part],
    wanted: str | Sequence[str],
    num_classes: int,
    drop: Sequence[Any] = (),
    class_names: Sequence[str] | None = None,
    per_position: bool = False,
) -> Labels:
    """Read the label column as class indices.

    Whole numbers in [0, `num_classes`) are used as class indices. Any other values (names, -1 and 1,
    1 to C) are sorted, and their ranks in the training part become the indices.

    Parameters
    ----------
    parts
        The training part and, where there is one, the test part.
    wanted
        Name of the column; of a list of names, the first that exists.
    num_classes
        Configured number of classes.
    drop
        Label values whose examples are left out.
    class_names
        Names in label order; None uses the source's own.
    per_position
        Whether each example has a label per position: a list of numbers, or a string of digits.

    Raises
    ------
    SourceError
        If a label is missing or does not occur in the training part, or `num_classes` or `class_names`
        disagrees with the data.
    """
    name = find_column(parts[0], wanted, "label")
    arrays, kept = read_labels(parts, wanted, drop, per_position)
    indices, found = _indices(arrays, num_classes)
    names = _class_names(parts[0], name, found, num_classes, class_names)
    return Labels(indices, kept, len(arrays[0]), names)


def read_labels(
    parts: Sequence[Part],
    wanted: str | Sequence[str],
    drop: Sequence[Any] = (),
    per_position: bool = False,
) -> tuple[list[Any], BoolArray]:
    """Read the label column as the source has it.

    Parameters
    ----------
    parts, wanted, drop, per_position
        As for :func:`encode_labels`.

    Returns
    -------
    The labels of each part, and which rows are kept, shape (number of examples in the source,).

    Raises
    ------
    SourceError
        If a label is missing, or the training part has no example.
    """
    import pyarrow as pa

    name = find_column(parts[0], wanted, "label")
    raw = [column(part, name) for part in parts]
    for values in raw:
        if values.null_count:
            raise SourceError(f"{values.null_count} examples have no label in {name}")
    if per_position:
        arrays = [_positions(values, name) for values in raw]
        kept = np.ones(sum(map(len, arrays)), dtype=bool)
    else:
        if pa.types.is_nested(raw[0].type):
            raise SourceError(
                f"{name} must hold one label per example, got {raw[0].type}; "
                "set dataset.per_position=true where each position has its own"
            )
        series = [values.to_pandas() for values in raw]
        keeps = [~values.isin(list(drop)).to_numpy(dtype=bool) for values in series]
        arrays = [values[keep].to_numpy() for values, keep in zip(series, keeps, strict=True)]
        kept = np.concatenate(keeps)
    if not len(arrays[0]):
        raise SourceError("the training part must hold at least one example, got none")
    return arrays, kept


def encode_natural(
    parts: Sequence[Part], wanted: str | Sequence[str] | None, kept: BoolArray
) -> tuple[IntArray, tuple[str, ...]] | None:
    """Read the writer, user or region of each kept example as an index into their sorted names.

    The test part may lack the column: the test parts of the federated Landmarks and iNaturalist have no
    users.

    Returns
    -------
    The indices, shape (N,), -1 where an example has no owner, and the distinct names; None if no column is
    requested.

    Raises
    ------
    SourceError
        If the training part lacks the column.
    """
    if wanted is None:
        return None
    import pandas as pd

    name = find_column(parts[0], wanted, "natural")
    codes, owners = pd.factorize(values_of(parts, name, kept), sort=True)  # -1 where missing
    return codes.astype(np.int64), tuple(map(_name, owners))


def _name(value: Any) -> str:
    # A column of whole numbers becomes floats when some are missing.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _positions(values: "pa.ChunkedArray", name: str) -> IntArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not text and not pa.types.is_nested(values.type):
        raise SourceError(
            f"{name} must hold a list of numbers or a string of digits per example, got {values.type}"
        )
    lengths = pc.min_max(pc.binary_length(values) if text else pc.list_value_length(values)).as_py()
    if lengths["min"] != lengths["max"]:
        raise SourceError(
            f"{name} must have equally many labels in every example, got {lengths['min']} to {lengths['max']}"
        )
    if text:
        flat = np.frombuffer("".join(values.to_pylist()).encode(), dtype=np.uint8).astype(np.int64) - ord("0")
    else:
        flat = np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in values.chunks])
    return flat.reshape(len(values), -1)


def _indices(arrays: list[Any], num_classes: int) -> tuple[IntArray, list[Any] | None]:
    """Return class indices, and the values in class order unless the values already were indices."""
    everything = np.concatenate(arrays)
    if everything.dtype.kind == "f" and (everything == np.round(everything)).all():
        everything = everything.astype(np.int64)  # whole numbers stored as floats
    if everything.dtype.kind in "iub":
        everything = everything.astype(np.int64)
        if everything.min() >= 0 and everything.max() < num_classes:
            return everything, None
    try:
        found, inverse = np.unique(everything, return_inverse=True)
    except TypeError as error:
        raise SourceError(f"labels must be all numbers or all text, got both ({error})") from error
    unknown = np.setdiff1d(found, everything[: len(arrays[0])]).tolist()
    if unknown:
        raise SourceError(
            f"the test part has labels that the training part lacks: {few(unknown)}; "
            "name them in drop_labels to leave their examples out"
        )
    if len(found) != num_classes:
        raise SourceError(
            f"num_classes must be {len(found)}, as the data has the labels "
            f"{few(found.tolist())}, got {num_classes}"
        )
    return inverse.reshape(everything.shape).astype(np.int64), found.tolist()


def _class_names(
    part: Part,
    name: str,
    found: list[Any] | None,
    num_classes: int,
    stated: Sequence[str] | None,
) -> tuple[str, ...]:
    names: Sequence[Any]
    if stated is not None:
        names = stated
    elif found is not None:
        names = found
    else:
        metadata = json.loads((part.rows.schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = metadata.get("info", {}).get("features", {}).get(name, {})
        names = feature.get("names") or range(num_classes)
    if len(names) != num_classes:
        raise SourceError(
            f"num_classes must be {len(names)}, as the classes are {few(list(names))}, got {num_classes}"
        )
    return tuple(str(value) for value in names)
