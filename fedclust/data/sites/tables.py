"""Tables of a site: what it says of its columns, and their encoding as agreed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedclust.data.identifiers import suspicion
from fedclust.data.sites.agreement import Agreement
from fedclust.data.sites.moments import Moments
from fedclust.data.sites.own import SiteError
from fedclust.data.sites.reading import SiteRows
from fedclust.data.sites.statement import CATEGORY, EMPTY, NUMBER, Column, Kind
from fedclust.data.source import column, find_column
from fedclust.data.tables import MISSING, Tables, coded, kind_of
from fedclust.typing import FloatArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["columns_of", "encode_table"]


def columns_of(rows: SiteRows) -> dict[str, Column]:
    """Describe the columns of a site's table."""
    builder = rows.builder
    assert isinstance(builder, Tables)  # chosen by its type, see describe
    part = rows.parts[0]
    if builder.numbers is not None or builder.categories is not None:
        forced: dict[str, Kind] = {
            find_column(part, name, builder.name, "numbers"): NUMBER for name in builder.numbers or ()
        }
        forced |= {
            find_column(part, name, builder.name, "categories"): CATEGORY for name in builder.categories or ()
        }
        return {name: _column(rows, name, kind, looked=False) for name, kind in forced.items()}
    taken = {find_column(part, builder.label, builder.name, "label"), *builder.ignore}
    if builder.natural is not None:
        taken.add(find_column(part, builder.natural, builder.name, "natural"))
    return {
        field.name: _column(rows, field.name, kind_of(field.type), looked=field.name not in builder.keep)
        for field in part.rows.schema
        if field.name not in taken
    }


def _column(rows: SiteRows, name: str, kind: Kind | None, *, looked: bool) -> Column:
    values = _values(rows, name)
    trained = values.iloc[rows.trained]
    if values.isna().all():
        return Column(EMPTY, Moments(rows=len(trained)))
    if kind is None:
        return Column(CATEGORY, unfit="its type")
    if looked and (reason := suspicion(name, values)):
        # Without the example of a value that a reason ends with.
        return Column(
            NUMBER if kind == NUMBER else CATEGORY,
            unfit=reason.partition(", such as")[0].partition(", from")[0],
        )
    if kind == NUMBER:
        try:
            return Column(NUMBER, Moments.of(_numbers(trained)))
        except SiteError:
            raise
        except (TypeError, ValueError):
            return Column(CATEGORY)  # texts where numbers are wanted: nothing is said of them
    texts = _texts(values)
    # As in pooled data, the whole training part of the source decides which categories have a column.
    known = sorted(set(texts[: rows.num_train]))
    here = set(texts[rows.trained])
    return Column(CATEGORY, values=tuple(known), trained=tuple(each in here for each in known))


def _values(rows: SiteRows, name: str) -> "pd.Series":
    """Read a column's kept rows."""
    import pandas as pd

    whole = pd.concat(
        [
            column(part, name).to_pandas()
            if name in part.rows.schema.names
            else pd.Series([None] * part.rows.count_rows())
            for part in rows.parts
        ],
        ignore_index=True,
    )
    return whole[rows.kept].reset_index(drop=True).rename(name)


def _numbers(values: "pd.Series") -> FloatArray:
    numbers: FloatArray = values.astype(np.float64).to_numpy()
    if np.isinf(numbers).any():
        raise SiteError(f"column {values.name} must hold finite numbers, got inf")
    return numbers


def _texts(values: "pd.Series") -> NDArray[Any]:
    """Write categories as texts; whole numbers are read as floats where one is missing, and written alike."""
    from pandas.api import types

    if types.is_float_dtype(values) and (values.dropna() == values.dropna().round()).all():
        values = values.astype("Int64")
    present = values.notna()
    return values.astype(object).where(present, MISSING).astype(str).to_numpy(dtype=object)


def encode_table(rows: SiteRows, agreement: Agreement) -> FloatArray:
    """Encode all rows of a site as agreed.

    Returns
    -------
    float32, shape (N, columns after encoding).

    Raises
    ------
    SiteError
        If a column holds another kind than was agreed.
    """
    blocks: list[NDArray[Any]] = []
    for number in agreement.numbers:
        try:
            values = _numbers(_values(rows, number.name))
        except SiteError:
            raise
        except (TypeError, ValueError) as error:
            raise SiteError(f"column {number.name} must hold numbers") from error
        blocks.append(np.where(np.isnan(values), 0.0, (values - number.mean) / number.scale)[:, None])
    for category in agreement.categories:
        code: Mapping[str, int] = {value: position for position, value in enumerate(category.values)}
        codes = np.array([code.get(text, -1) for text in _texts(_values(rows, category.name))], np.int64)
        blocks.append(coded(codes, np.array(category.trained, dtype=bool), agreement.encoding))
    return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")
