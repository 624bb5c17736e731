"""Read the columns of a source: labels as class indices, users as indices."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclust.data.source import Part, SourceError
from fedclust.typing import BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Labels", "column", "encode_labels", "encode_natural", "find_column", "read_labels"]


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


def find_column(part: Part, wanted: str | Sequence[str], dataset: str, role: str) -> str:
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
        f"dataset {dataset}: {role} must be a column of the source, got {' or '.join(names)}; "
        f"columns are {', '.join(part.rows.schema.names)}"
    )


def column(part: Part, name: str) -> "pa.ChunkedArray":
    """Read one whole column."""
    return part.rows.to_table(columns=[name]).column(0)


def encode_labels(
    parts: Sequence[Part],
    wanted: str | Sequence[str],
    dataset: str,
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
    dataset
        Name of the dataset, for messages.
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
    name = find_column(parts[0], wanted, dataset, "label")
    arrays, kept = read_labels(parts, wanted, dataset, drop, per_position)
    indices, found = _indices(arrays, dataset, num_classes)
    names = _class_names(parts[0], name, found, dataset, num_classes, class_names)
    return Labels(indices, kept, len(arrays[0]), names)


def read_labels(
    parts: Sequence[Part],
    wanted: str | Sequence[str],
    dataset: str,
    drop: Sequence[Any] = (),
    per_position: bool = False,
) -> tuple[list[Any], BoolArray]:
    """Read the label column as the source has it.

    Parameters
    ----------
    parts, wanted, dataset, drop, per_position
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

    name = find_column(parts[0], wanted, dataset, "label")
    raw = [column(part, name) for part in parts]
    for values in raw:
        if values.null_count:
            raise SourceError(f"dataset {dataset}: {values.null_count} examples have no label in {name}")
    if per_position:
        arrays = [_positions(values, dataset, name) for values in raw]
        kept = np.ones(sum(map(len, arrays)), dtype=bool)
    else:
        if pa.types.is_nested(raw[0].type):
            raise SourceError(
                f"dataset {dataset}: {name} must hold one label per example, got {raw[0].type}; "
                "set dataset.per_position=true where each position has its own"
            )
        series = [values.to_pandas() for values in raw]
        keeps = [~values.isin(list(drop)).to_numpy(dtype=bool) for values in series]
        arrays = [values[keep].to_numpy() for values, keep in zip(series, keeps, strict=True)]
        kept = np.concatenate(keeps)
    if not len(arrays[0]):
        raise SourceError(f"dataset {dataset}: the training part must hold at least one example, got none")
    return arrays, kept


def encode_natural(
    parts: Sequence[Part], wanted: str | Sequence[str] | None, dataset: str, kept: BoolArray
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

    name = find_column(parts[0], wanted, dataset, "natural")
    values = [
        column(part, name).to_pandas()
        if name in part.rows.schema.names
        else pd.Series([None] * part.rows.count_rows())
        for part in parts
    ]
    codes, owners = pd.factorize(pd.concat(values, ignore_index=True)[kept], sort=True)  # -1 where missing
    return codes.astype(np.int64), tuple(map(_name, owners))


def _name(value: Any) -> str:
    # A column of whole numbers becomes floats when some are missing.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _positions(values: "pa.ChunkedArray", dataset: str, name: str) -> IntArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not text and not pa.types.is_nested(values.type):
        raise SourceError(
            f"dataset {dataset}: {name} must hold a list of numbers or a string of digits per example, "
            f"got {values.type}"
        )
    lengths = pc.min_max(pc.binary_length(values) if text else pc.list_value_length(values)).as_py()
    if lengths["min"] != lengths["max"]:
        raise SourceError(
            f"dataset {dataset}: {name} must have equally many labels in every example, "
            f"got {lengths['min']} to {lengths['max']}"
        )
    if text:
        flat = np.frombuffer("".join(values.to_pylist()).encode(), dtype=np.uint8).astype(np.int64) - ord("0")
    else:
        flat = np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in values.chunks])
    return flat.reshape(len(values), -1)


def _indices(arrays: list[Any], dataset: str, num_classes: int) -> tuple[IntArray, list[Any] | None]:
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
        raise SourceError(
            f"dataset {dataset}: labels must be all numbers or all text, got both ({error})"
        ) from error
    unknown = np.setdiff1d(found, everything[: len(arrays[0])]).tolist()
    if unknown:
        raise SourceError(
            f"dataset {dataset}: the test part has labels that the training part lacks: {_few(unknown)}; "
            "name them in drop_labels to leave their examples out"
        )
    if len(found) != num_classes:
        raise SourceError(
            f"dataset {dataset}: num_classes must be {len(found)}, as the data has the labels "
            f"{_few(found.tolist())}, got {num_classes}"
        )
    return inverse.reshape(everything.shape).astype(np.int64), found.tolist()


def _class_names(
    part: Part,
    name: str,
    found: list[Any] | None,
    dataset: str,
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
            f"dataset {dataset}: num_classes must be {len(names)}, as the classes are {_few(list(names))}, "
            f"got {num_classes}"
        )
    return tuple(str(value) for value in names)


def _few(values: list[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:5])
    return f"{shown}, … ({len(values)} in all)" if len(values) > 5 else shown
