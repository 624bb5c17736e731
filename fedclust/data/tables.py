"""Tables of numbers, which are standardised, and categories, both fitted on the training rows."""

import json
import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fedclust.data.cache import new_array
from fedclust.data.check import ELSEWHERE, Finding, check_table, typed
from fedclust.data.dataset import OWNERS, Refit, SourceError, Statistics
from fedclust.data.input_encoders import (
    CategoryColumn,
    Encoding,
    NumberColumn,
    TableEncoder,
    category_texts,
    size_of,
)
from fedclust.data.source import (
    Labels,
    Part,
    SourcedDataset,
    check_plain,
    find_column,
    is_text,
    table_of,
    values_of,
)
from fedclust.typing import FloatArray, IntArray

Kind: TypeAlias = Literal["number", "category"]

_COLUMNS = "columns.json"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Tables(SourcedDataset):
    """Rows of numbers and categories, as float32 columns: first the numbers, then the categories.

    Numbers get mean 0 and variance 1 over all clients' training rows; a missing number becomes 0, and a
    missing category is a category of its own. The source's training part determines which categories have a
    column, because models are built before the clients' training rows are known. A category that no client
    trains on is encoded like an unknown one.

    Attributes
    ----------
    numbers, categories
        Columns of each kind, in this order. None for both uses all columns except the label and the natural
        one: numbers and booleans as numbers, text as categories. A column that looks like an identifier
        or a date (see :func:`~fedclust.data.check.suspicion`) raises an error.
    ignore
        Columns to leave out when `numbers` and `categories` are None.
    keep
        Columns to use although they look like identifiers or dates.
    encoding
        ``"onehot"``: one output column per category, all zeros for a category that no client trains on.
        ``"index"``: one output column per input column, with 1, 2, … in sorted order and 0 for a category
        that no client trains on, for models that embed categories.
    category_sizes
        With ``"index"``, the number of values of each category column, 0 included, which models are built
        from; checked against the data unless None.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    numbers: Sequence[str] | None = None
    categories: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    keep: Sequence[str] = ()
    encoding: Encoding = "onehot"
    category_sizes: Sequence[int] | None = None

    format: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if both := sorted(set(self.numbers or ()) & set(self.categories or ())):
            raise ValueError(f"dataset.numbers and .categories must not share columns, got {', '.join(both)}")

    @property
    def columns(self) -> list[str]:
        """Columns that `sha256` covers: the label, the natural one and the inputs that are named."""
        return [*super().columns, *(self.numbers or ()), *(self.categories or ())]

    @property
    def chooses(self) -> bool:
        """Whether columns are used by their types."""
        return self.numbers is None and self.categories is None

    def kinds(self, part: Part) -> dict[str, Kind | None]:
        """Return the kind of each column in use; None for neither numbers nor categories, such as dates.

        Raises
        ------
        SourceError
            If a configured column is missing, or its cells are lists.
        """
        if not self.chooses:
            kinds: dict[str, Kind | None] = {}
            kinds |= {find_column(part, name, "numbers"): "number" for name in self.numbers or ()}
            kinds |= {find_column(part, name, "categories"): "category" for name in self.categories or ()}
            for name in kinds:
                check_plain(part, name)
            return kinds
        roles = {role: getattr(self, role) for role in ("label", "event", "natural", "group", "groups")}
        taken = {*self.ignore, *(find_column(part, name, role) for role, name in roles.items() if name)}
        return {field.name: _kind_of(field.type) for field in part.rows.schema if field.name not in taken}

    def findings(self, parts: Sequence[Part]) -> list[Finding]:
        """Check the rows of all parts; see :func:`fedclust.data.check.check_table`.

        Parameters
        ----------
        parts
            The training part and, if there is one, the test part.

        Raises
        ------
        SourceError
            If a configured column is missing.
        """
        label = find_column(parts[0], self.label, "label") if self.label else None
        if label is not None and not self.per_position:
            check_plain(parts[0], label)
        group = self.group and find_column(parts[0], self.group, "group")
        event = self.event and find_column(parts[0], self.event, "event")
        kinds, schema = self.kinds(parts[0]), parts[0].rows.schema
        wanted = dict.fromkeys(filter(None, [label, event, *kinds, group]))
        table = table_of(parts, wanted, slice(None))
        if label is not None:
            table = table[~table[label].isin(list(self.drop_labels))]
        # Columns that are configured as categories may hold anything.
        other = {name: str(schema.field(name).type) for name, kind in kinds.items() if kind is None}
        keep = {*self.keep, *(self.categories or ())}
        return check_table(table, label, group, keep, other, event, self.kind)

    def unfit(self, findings: Sequence[Finding]) -> dict[str, str]:
        """Return why some columns must not be inputs, by name: identifiers and dates that nobody named."""
        found = [each for each in findings if each.rule in ("identifier", "date") and self.chooses]
        return {each.column: each.detail for each in found}

    def sizes_in_data(self) -> dict[str, Any]:
        """Count the classes or bins, the width of an encoded row, and the values of each category column.

        Raises
        ------
        SourceError
            If the source is missing or unreadable, or a column cannot be used.
        """
        with self.opened() as parts:
            classes, kept = self.count(parts[0])
            kinds = self._fit_columns(parts[0])
            for each in self.findings(parts[:1]):
                if each.rule in ("empty", "constant", "twin"):  # they take part, to no use
                    logger.warning("warning: %s", each.line)
            categories = [name for name in kinds if kinds[name] == "category"]
            counts = [len(set(category_texts(values_of(parts[:1], name, kept)))) for name in categories]
            index = self.encoding == "index"
            width = len(kinds) if index else len(kinds) - len(counts) + sum(counts)
            if not width:
                raise SourceError(f"the source must have a column besides {self.label}, got none")
            sizes = [each + 1 for each in counts] if index else None
            return {"num_classes": classes, "input_shape": [width], "category_sizes": sizes}

    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Encode both parts, fitted on the training part; save the raw columns for refitting."""
        import pandas as pd

        for role in ("ignore", "keep"):
            for name in getattr(self, role):
                find_column(parts[0], name, f"dataset.{role}")
        kinds = self._fit_columns(parts[0])
        numbers, categories = ([name for name in kinds if kinds[name] == kind] for kind in get_args(Kind))
        frame = table_of(parts, [*numbers, *categories], labels.kept)
        try:
            values = frame[numbers].astype(np.float64).to_numpy().reshape(len(frame), -1)
        except (TypeError, ValueError) as error:
            raise SourceError(f"numbers must be numeric columns: {error}") from error
        texts = {name: category_texts(frame[name]) for name in categories}
        known = {name: sorted(set(each[: labels.num_train])) for name, each in texts.items()}
        codes = [pd.Categorical(each, categories=known[name]).codes for name, each in texts.items()]
        wanted, sizes = self.category_sizes, [len(each) + 1 for each in known.values()]
        if self.encoding == "index" and wanted is not None and list(wanted) != sizes:
            rule = f"must be {sizes}, one more than the training part has categories in each column"
            raise SourceError(f"dataset.category_sizes {rule}, got {list(wanted)}")
        # float64, NaN where missing; the category of each example, or -1 if unknown to the training part
        np.save(folder / "raw_numbers.npy", values)
        table = np.array(codes, dtype=np.int64).reshape(len(codes), len(frame)).T
        np.save(folder / "raw_categories.npy", table)
        # Not read, but part of the fingerprint, by which saved partitions identify the dataset.
        np.save(folder / "raw_sizes.npy", np.array([len(each) for each in known.values()], dtype=np.int64))
        (folder / _COLUMNS).write_text(json.dumps({"numbers": numbers, "categories": known}))
        encoded = self._encoded(folder, np.arange(labels.num_train))
        self.new_inputs(folder, np.float32, len(encoded), encoded.shape[1:])[:] = encoded
        return (), ()

    def encoding_of(self, folder: Path, rows: IntArray, refitted: Path) -> TableEncoder:  # noqa: ARG002
        """Fit the columns of an encoded dataset on some rows; see :attr:`Dataset.encoder`."""
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import StandardScaler

        values, codes = _raw(folder, "numbers")[rows], _raw(folder, "categories")[rows]
        named = json.loads((folder / _COLUMNS).read_text())
        numbers: tuple[NumberColumn, ...] = ()
        if named["numbers"]:  # scikit-learn rejects a table without columns
            imputer = SimpleImputer(keep_empty_features=True)
            scaler = StandardScaler().fit(imputer.fit_transform(values))
            statistics = imputer.statistics_.tolist(), scaler.mean_.tolist(), scaler.scale_.tolist()
            columns = map(NumberColumn, named["numbers"], *statistics)
            numbers = tuple(map(NumberColumn.of_sites, columns, _sizes(folder, rows, values)))
        categories = []
        for (name, values), each in zip(named["categories"].items(), codes.T, strict=True):
            known = np.isin(np.arange(len(values)), each).tolist()
            categories.append(CategoryColumn(name, tuple(values), tuple(known)))
        return TableEncoder(numbers, tuple(categories), self.encoding)

    def _encoded(self, folder: Path, rows: IntArray) -> FloatArray:
        """Encode all examples, fitted on `rows` only."""
        encoder = self.encoding_of(folder, rows, folder)
        return encoder.encoded(_raw(folder, "numbers").T, _raw(folder, "categories").T)

    def refitting(self, folder: Path) -> Refit | None:
        """Return a function that fits the columns on other rows; see :attr:`Dataset.refit`."""

        def refit(rows: IntArray, target: Path) -> None:
            values = self._encoded(folder, rows)
            new_array(target / "inputs.npy", np.float32, values.shape)[:] = values

        return refit

    def _fit_columns(self, part: Part) -> dict[str, Kind | None]:
        """Return the kind of each column; check that none looks like an identifier or a date."""
        kinds, found = self.kinds(part), self.findings([part])
        errors = [each for each in found if each.severity == "error" and each.rule not in ELSEWHERE]
        if errors:
            raise SourceError("; ".join(each.line for each in errors[:3]))
        if unfit := self.unfit(found):
            reasons = ", ".join(f"{name} ({reason})" for name, reason in unfit.items())
            usable = [name for name in unfit if kinds[name]]
            keep = f" or use them with {_override('keep', [*self.keep, *usable])}" if usable else ""
            advice = f"leave them out with {_override('ignore', [*self.ignore, *unfit])}{keep}"
            raise SourceError(f"columns must not be identifiers or dates, got {reasons}; {advice}")
        return kinds


def _raw(folder: Path, name: str) -> NDArray[Any]:
    """Read the raw columns that :meth:`Tables.encode` saved."""
    return np.load(folder / f"raw_{name}.npy", allow_pickle=False)


def _sizes(folder: Path, rows: IntArray, values: FloatArray) -> list[dict[str, float]]:
    """Return the root mean square of each column at each owner of rows, or at all where rows have no owner.

    Parameters
    ----------
    folder
        Folder of the encoded dataset.
    rows
        The rows, shape (n,).
    values
        Their numbers, NaN where missing, shape (n, columns).
    """
    owners, names = np.zeros(len(rows), dtype=np.int64), [""]
    if (folder / "natural.npy").exists():
        owners = np.load(folder / "natural.npy", allow_pickle=False)[rows]
        names = json.loads((folder / OWNERS).read_text())
    values, owners = values[owners >= 0], owners[owners >= 0]
    counts, filled = ~np.isnan(values), np.nan_to_num(values)
    sizes = []
    for column in range(values.shape[1]):
        present = np.maximum(np.bincount(owners, counts[:, column], len(names)), 1)
        totals = (np.bincount(owners, each[:, column], len(names)) for each in (filled, filled**2))
        sizes.append(dict(zip(names, map(size_of, *(total / present for total in totals)), strict=True)))
    return sizes


def _kind_of(type_: Any) -> Kind | None:
    """Return the kind of an Arrow type; None for neither numbers nor categories, such as dates."""
    import pyarrow.types as types

    kind = type_.value_type if types.is_dictionary(type_) else type_
    if any(
        holds(kind) for holds in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    ):
        return "number"
    return "category" if is_text(kind) or types.is_null(kind) else None


def _override(key: str, names: Sequence[str]) -> str:
    """Format a list of columns as an override for the command line."""
    return shlex.quote(f"dataset.{key}=[{typed(names)}]")
