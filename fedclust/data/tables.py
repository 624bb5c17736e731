"""Tables: standardise numbers and encode categories, both fitted on the training rows."""

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedclust.data.builder import SourcedDataset, Statistics
from fedclust.data.cache import new_array
from fedclust.data.dataset import Refit
from fedclust.data.identifiers import suspicion
from fedclust.data.input_encoders import MISSING, CategoryColumn, NumberColumn, TableEncoder
from fedclust.data.source import Labels, Part, SourceError, column, find_column
from fedclust.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MISSING", "Tables", "coded", "kind_of"]

_COLUMNS = "columns.json"


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
        or a date (see :func:`fedclust.data.identifiers.suspicion`) raises an error.
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
    encoding: Literal["onehot", "index"] = "onehot"
    category_sizes: Sequence[int] | None = None

    format: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding not in ("onehot", "index"):
            raise ValueError(f"dataset.encoding must be 'onehot' or 'index', got {self.encoding!r}")
        both = sorted(set(self.numbers or ()) & set(self.categories or ()))
        if both:
            raise ValueError(f"dataset.numbers and .categories must not share columns, got {', '.join(both)}")

    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Encode both parts, fitted on the training part; save the raw columns for refitting."""
        import pandas as pd

        for role in ("ignore", "keep"):
            self._check_names(parts[0], role, getattr(self, role))
        numbers, categories = self._columns(parts[0])
        frame = pd.concat(
            [part.rows.to_table(columns=[*numbers, *categories]).to_pandas() for part in parts],
            ignore_index=True,
        )[labels.kept]
        frame = self._typed(frame, numbers, categories)
        training = frame.iloc[: labels.num_train]
        names = [sorted(training[name].unique()) for name in categories]
        codes = [
            pd.Categorical(frame[name], categories=known).codes
            for name, known in zip(categories, names, strict=True)
        ]
        raw = _Raw(
            numbers=frame[numbers].to_numpy(np.float64).reshape(len(frame), -1),
            categories=np.array(codes, dtype=np.int64).reshape(len(codes), len(frame)).T,
            sizes=np.array([len(known) for known in names], dtype=np.int64),
        )
        self._check_sizes(raw)
        values = raw.encoded(np.arange(labels.num_train), self.encoding)
        inputs = self.new_inputs(folder, np.float32, len(values), values.shape[1:])
        inputs[:] = values
        raw.save(folder)
        named = {"numbers": numbers, "categories": dict(zip(categories, names, strict=True))}
        (folder / _COLUMNS).write_text(json.dumps(named), encoding="utf-8")
        return Statistics()

    def encoding_of(self, folder: Path, rows: IntArray, refitted: Path) -> TableEncoder:  # noqa: ARG002
        """Return the encoder of the columns; see :attr:`Dataset.encoder`."""
        raw = _Raw.load(folder)
        named = json.loads((folder / _COLUMNS).read_text(encoding="utf-8"))
        numbers: list[NumberColumn] = []
        if named["numbers"]:
            imputer, scaler = (step for _, step in _scaler(raw.numbers[rows]).steps)
            fitted = zip(named["numbers"], imputer.statistics_, scaler.mean_, scaler.scale_, strict=True)
            numbers = [NumberColumn(name, *map(float, values)) for name, *values in fitted]
        known = (raw.known(place, rows)[:-1] for place in range(len(raw.sizes)))
        categories = [
            CategoryColumn(name, tuple(values), tuple(map(bool, trained)))
            for (name, values), trained in zip(named["categories"].items(), known, strict=True)
        ]
        return TableEncoder(tuple(numbers), tuple(categories), self.encoding)

    def refitting(self, folder: Path) -> Refit | None:
        """Return a function that fits the columns on other rows; see :attr:`Dataset.refit`."""

        def refit(rows: IntArray, target: Path) -> None:
            values = _Raw.load(folder).encoded(rows, self.encoding)
            new_array(target / "inputs.npy", np.float32, values.shape)[:] = values

        return refit

    def _check_sizes(self, raw: "_Raw") -> None:
        found = (raw.sizes + 1).tolist()
        if (
            self.encoding == "index"
            and self.category_sizes is not None
            and list(self.category_sizes) != found
        ):
            raise SourceError(
                f"dataset {self.name}: dataset.category_sizes must be {found}, one more than the training "
                f"part has categories in each column, got {list(self.category_sizes)}"
            )

    def _columns(self, part: Part) -> tuple[list[str], list[str]]:
        """Return the columns of numbers and the columns of categories."""
        if self.numbers is not None or self.categories is not None:
            return [find_column(part, name, self.name, "numbers") for name in self.numbers or ()], [
                find_column(part, name, self.name, "categories") for name in self.categories or ()
            ]
        taken = {find_column(part, self.label, self.name, "label"), *self.ignore}
        if self.natural is not None:
            taken.add(find_column(part, self.natural, self.name, "natural"))
        numbers: list[str] = []
        categories: list[str] = []
        unfit: dict[str, str] = {}
        for field in part.rows.schema:
            name = field.name
            if name in taken:
                continue
            kind = kind_of(field.type)
            if kind == "number":
                numbers.append(name)
            elif kind == "category":
                categories.append(name)
            else:
                unfit[name] = f"its type, {field.type}"
                continue
            if name not in self.keep and (reason := suspicion(name, column(part, name).to_pandas())):
                unfit[name] = reason
        if unfit:
            self._refuse(unfit, can_be_kept=[name for name in unfit if name in numbers + categories])
        return numbers, categories

    def _refuse(self, unfit: Mapping[str, str], can_be_kept: Sequence[str]) -> NoReturn:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in unfit.items())
        keep = f" or use them with {_override('keep', [*self.keep, *can_be_kept])}" if can_be_kept else ""
        raise SourceError(
            f"dataset {self.name}: columns must not be identifiers or dates, got {reasons}; "
            f"leave them out with {_override('ignore', [*self.ignore, *unfit])}{keep}"
        )

    def _check_names(self, part: Part, role: str, names: Sequence[str]) -> None:
        existing = part.rows.schema.names
        for name in names:
            if name not in existing:
                near = difflib.get_close_matches(name, existing, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise SourceError(
                    f"dataset {self.name}: dataset.{role} must name columns of the source, got {name}; "
                    f"{hint}columns are {', '.join(existing)}"
                )

    def _typed(self, frame: "pd.DataFrame", numbers: list[str], categories: list[str]) -> "pd.DataFrame":
        """Convert every number to float and every category to text."""
        try:
            typed = {name: frame[name].astype(np.float64) for name in numbers}
        except (TypeError, ValueError) as error:
            raise SourceError(f"dataset {self.name}: numbers must be numeric columns: {error}") from error
        texts = {name: frame[name].astype(object).where(frame[name].notna(), MISSING) for name in categories}
        return frame.assign(**typed, **{name: text.astype(str) for name, text in texts.items()})


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class _Raw:
    """A table before anything is fitted on it.

    Attributes
    ----------
    numbers
        float64, NaN where missing, shape (N, numbers).
    categories
        Category of each example, from 0, or -1 if unknown to the training part, shape (N, categories).
    sizes
        Number of categories of each column, shape (categories,).
    """

    numbers: FloatArray
    categories: IntArray
    sizes: IntArray

    def save(self, folder: Path) -> None:
        for name, array in vars(self).items():
            np.save(folder / f"raw_{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> "_Raw":
        names = ("numbers", "categories", "sizes")
        return cls(**{name: np.load(folder / f"raw_{name}.npy", allow_pickle=False) for name in names})

    def known(self, place: int, rows: IntArray) -> BoolArray:
        """Check which categories of a column `rows` have; False at the end, for code -1."""
        known = np.zeros(self.sizes[place] + 1, dtype=bool)
        known[self.categories[rows, place]] = True
        known[-1] = False
        return known

    def encoded(self, rows: IntArray, encoding: Literal["onehot", "index"]) -> FloatArray:
        """Encode all examples, fitted on `rows` only."""
        blocks = [_standardised(self.numbers, rows)]
        for place, codes in enumerate(self.categories.T):
            blocks.append(coded(codes, self.known(place, rows)[:-1], encoding))
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")


def coded(codes: IntArray, known: BoolArray, encoding: Literal["onehot", "index"]) -> NDArray[Any]:
    """Encode a column of categories.

    Parameters
    ----------
    codes
        Category of each row, or -1 if it is none of them, shape (N,).
    known
        Whether each category is trained on, shape (categories,).
    encoding
        As in :class:`Tables`.

    Returns
    -------
    Shape (N, categories) for ``"onehot"``, (N, 1) for ``"index"``.
    """
    trained = np.append(known, False)  # the last entry is for code -1
    if encoding == "index":
        return np.where(trained[codes], codes + 1, 0)[:, None]
    return (codes[:, None] == np.arange(len(known))) & known


def kind_of(type_: Any) -> Literal["number", "category"] | None:
    """Say what a column of an Arrow type holds; None for neither numbers nor categories, such as dates."""
    import pyarrow.types as types

    kind = type_.value_type if types.is_dictionary(type_) else type_
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    return "category" if types.is_string(kind) or types.is_large_string(kind) else None


def _override(key: str, names: Sequence[str]) -> str:
    """Format a list of columns as an override for the command line."""
    plain = re.compile(r"[A-Za-z_]\w*", re.ASCII)
    quoted = [name if plain.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in names]
    return shlex.quote(f"dataset.{key}=[{','.join(quoted)}]")


def _scaler(numbers: FloatArray) -> Any:
    """Fit a scaler to mean 0 and variance 1; missing numbers become the mean."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()).fit(numbers)


def _standardised(numbers: FloatArray, rows: IntArray) -> FloatArray:
    """Scale each column to mean 0 and variance 1 over `rows`; missing numbers become 0."""
    if not numbers.shape[1]:  # scikit-learn rejects a table without columns
        return numbers
    standardised: FloatArray = _scaler(numbers[rows]).transform(numbers)
    return standardised
