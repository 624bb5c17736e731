"""Tables: numbers standardised, categories encoded, both as learnt from the training part."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedclust.data.columns import Labels, find_column
from fedclust.data.source import Part, SourceError
from fedclust.data.sourced import SourcedDataset, Statistics

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.compose import ColumnTransformer

__all__ = ["Tables"]

MISSING = "(missing)"


@dataclass(frozen=True, kw_only=True)
class Tables(SourcedDataset):
    """Rows of numbers and categories, as float32 columns: first the numbers, then the categories.

    Numbers have mean 0 and variance 1 over the training part, and a missing one becomes 0. A missing
    category is a category of its own. The training part is the source's: where it has no test part, that is
    all of it, for who will be tested on which rows is only known to a partition.

    Attributes
    ----------
    numbers, categories
        Columns of each kind, in this order. None for both takes every column but the label and the natural
        one: numbers and truth values as numbers, text as categories.
    ignore
        Columns to leave out when `numbers` and `categories` are None.
    encoding
        ``"onehot"``: a column per category of the training part; one it lacks is all zeros. ``"index"``:
        one column per category, holding 1, 2, … in sorted order, and 0 for what the training part lacks, for
        models that embed categories.
    category_sizes
        With ``"index"``, how many numbers each column of categories may hold, 0 included; a model is built
        before the data are seen. None leaves them unchecked.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    numbers: Sequence[str] | None = None
    categories: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    encoding: Literal["onehot", "index"] = "onehot"
    category_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding not in ("onehot", "index"):
            raise ValueError(f"dataset.encoding must be 'onehot' or 'index', got {self.encoding!r}")
        both = sorted(set(self.numbers or ()) & set(self.categories or ()))
        if both:
            raise ValueError(f"dataset.numbers and .categories must not share columns, got {', '.join(both)}")

    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Fit the columns on the training part, and transform both parts."""
        import pandas as pd

        numbers, categories = self._columns(parts[0])
        frame = pd.concat(
            [part.rows.to_table(columns=[*numbers, *categories]).to_pandas() for part in parts],
            ignore_index=True,
        )[labels.kept]
        frame = self._typed(frame, numbers, categories)
        transformer = self._transformer(numbers, categories).fit(frame.iloc[: labels.num_train])
        self._check_sizes(transformer)
        values = transformer.transform(frame)
        inputs = self.new_inputs(folder, np.float32, len(values), values.shape[1:])
        inputs[:] = values
        return Statistics()

    def _check_sizes(self, transformer: "ColumnTransformer") -> None:
        if self.encoding != "index" or self.category_sizes is None:
            return
        encoder = transformer.named_transformers_["categories"]
        found = (
            [len(names) + 1 for names in encoder[0].categories_] if transformer.transformers_[1][2] else []
        )
        if list(self.category_sizes) != found:
            raise SourceError(
                f"dataset {self.name}: dataset.category_sizes must be {found}, one more than the training "
                f"part has categories in each column, got {list(self.category_sizes)}"
            )

    def _columns(self, part: Part) -> tuple[list[str], list[str]]:
        """Say which columns are numbers and which are categories."""
        import pyarrow.types as types

        if self.numbers is not None or self.categories is not None:
            return [find_column(part, name, self.name, "numbers") for name in self.numbers or ()], [
                find_column(part, name, self.name, "categories") for name in self.categories or ()
            ]
        taken = {find_column(part, self.label, self.name, "label"), *self.ignore}
        if self.natural is not None:
            taken.add(find_column(part, self.natural, self.name, "natural"))
        numbers: list[str] = []
        categories: list[str] = []
        for column in part.rows.schema:
            if column.name in taken:
                continue
            kind = column.type.value_type if types.is_dictionary(column.type) else column.type
            if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
                numbers.append(column.name)
            elif types.is_string(kind) or types.is_large_string(kind):
                categories.append(column.name)
            else:
                raise SourceError(
                    f"dataset {self.name}: column {column.name} must be a number or text, got {kind}; "
                    "list it in dataset.ignore to leave it out"
                )
        return numbers, categories

    def _typed(self, frame: "pd.DataFrame", numbers: list[str], categories: list[str]) -> "pd.DataFrame":
        """Make every number a float, and every category a text."""
        try:
            typed = {name: frame[name].astype(np.float64) for name in numbers}
        except (TypeError, ValueError) as error:
            raise SourceError(f"dataset {self.name}: numbers must be numeric columns: {error}") from error
        texts = {name: frame[name].astype(object).where(frame[name].notna(), MISSING) for name in categories}
        return frame.assign(**typed, **{name: text.astype(str) for name, text in texts.items()})

    def _transformer(self, numbers: list[str], categories: list[str]) -> "ColumnTransformer":
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

        encoder: Any
        if self.encoding == "onehot":
            encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
        else:
            encoder = make_pipeline(
                OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, dtype=np.float32),
                FunctionTransformer(_one_up),
            )
        scaler = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())  # missing: the mean
        return ColumnTransformer([("numbers", scaler, numbers), ("categories", encoder, categories)])


def _one_up(codes: Any) -> Any:
    return codes + 1
