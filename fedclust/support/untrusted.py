"""Read files of a folder that may come from someone else: what is wrong with one is a ValueError in one line.

PyYAML's fast loader ends the process on text that is nested deeply, JSON's raises RecursionError, and a table
or an archive of a few kilobytes may stand for terabytes.
"""

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

# The pure Python loader takes longer for a configuration than all other files of a run take together.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 100
_MOST_BYTES = 2**33  # of an archive's arrays; matrices of 10,000 clients take less
_MOST_VALUES = 2**16  # of a table's cell, such as label counts
_BAD_FILES = (OSError, EOFError, MemoryError, RecursionError, zipfile.BadZipFile, yaml.YAMLError)
_BAD_VALUES = (ValueError, LookupError, TypeError, AttributeError, NotImplementedError)


@contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Convert the errors of reading a file to a ValueError that names it; a missing file stays an OSError."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (*_BAD_FILES, *_BAD_VALUES) as error:
        raise ValueError(f"{path} must be {kind}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises
    ------
    ValueError
        If it is not YAML, is nested too deeply, or has aliases.
    """
    with readable(path, "YAML"):
        text, depth = path.read_text(encoding="utf-8"), 0
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ValueError(f"it must be nested at most {_DEEPEST} deep")
            if isinstance(event, yaml.AliasEvent):  # a few may stand for billions of values, or for itself
                raise ValueError(f"it must repeat values, not refer to them by *{event.anchor}")
        return yaml.load(text, Loader=_LOADER)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    ValueError
        If it is not JSON.
    """
    with readable(path, "JSON"):
        return json.loads(path.read_text(encoding="utf-8"))


def read_table(path: Path, rows: int) -> "pd.DataFrame":
    """Read a Parquet file.

    Parameters
    ----------
    path
        The file.
    rows
        Most rows that it may have.

    Raises
    ------
    ValueError
        If it is not Parquet, or larger than it may be; nothing of it is then read.
    """
    import pyarrow.parquet as pq

    with readable(path, "Parquet"):
        about = pq.read_metadata(path)
        if about.num_rows > rows:
            raise ValueError(f"it must have at most {rows} rows, got {about.num_rows}")
        groups = [about.row_group(group) for group in range(about.num_row_groups)]
        values = [group.column(place).num_values for group in groups for place in range(group.num_columns)]
        if max(values, default=0) > _MOST_VALUES * max(1, about.num_rows):
            raise ValueError(f"it must have at most {_MOST_VALUES} values per cell")
        return pq.read_table(path).to_pandas()


def read_arrays(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of an ``.npz`` file, one at a time.

    Raises
    ------
    ValueError
        If it is not such a file, or larger than it says.
    """
    with readable(path, "an archive of arrays"), zipfile.ZipFile(path) as archive:
        # Ours are not compressed, so that an archive holds no more than its file.
        if (size := sum(member.file_size for member in archive.infolist())) > path.stat().st_size:
            raise ValueError(
                f"its arrays must have at most the {path.stat().st_size} bytes of the file, got {size}"
            )
        for member in archive.infolist():
            if member.file_size > _MOST_BYTES:
                raise ValueError(f"its arrays must have at most {_MOST_BYTES} bytes, got {member.file_size}")
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                if version != (1, 0):
                    raise ValueError(f"its arrays must be of version 1.0, got {version}")
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                size = dtype.itemsize * int(np.prod(shape, dtype=object))
                if size > member.file_size:
                    raise ValueError(f"{member.filename} says {size} bytes, it has {member.file_size}")
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                yield name, arrays[name]
