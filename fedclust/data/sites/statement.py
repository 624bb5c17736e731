"""What a site says of its data before round 1, so that all can agree on one encoding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from fedclust.data.sites.moments import Moments

__all__ = ["CATEGORY", "EMPTY", "NUMBER", "Column", "Kind", "Label", "Pixels", "Statement"]

Label: TypeAlias = int | float | str

Kind: TypeAlias = Literal["number", "category", "empty"]
NUMBER: Final = "number"
CATEGORY: Final = "category"
EMPTY: Final = "empty"


@dataclass(frozen=True)
class Column:
    """What a site says of one column.

    Attributes
    ----------
    kind
        ``"number"``; ``"category"``; or ``"empty"``, which fits both: no row has a value.
    moments
        Of a number, over the training rows; of other kinds their number of rows.
    values
        Of a category, the values of the source's training part, sorted.
    trained
        Which of these occur in a training row.
    unfit
        Why a model should not learn from it, as from an identifier or a date; then nothing else is said.
    """

    kind: Kind
    moments: Moments = field(default_factory=Moments)
    values: tuple[str, ...] = ()
    trained: tuple[bool, ...] = ()
    unfit: str = ""


@dataclass(frozen=True)
class Pixels:
    """What a site says of one channel of its images: exact whole numbers.

    Attributes
    ----------
    count, total, squares
        Number of pixels, sum of their values 0 … 255, and sum of the values' squares.
    """

    count: int
    total: int
    squares: int


@dataclass(frozen=True)
class Statement:
    """What a site says of its data; nothing else leaves it before round 1.

    Attributes
    ----------
    labels
        The different labels, sorted.
    columns
        Of a table, in the site's order.
    pixels
        Of images, each channel of the source's training part.
    words
        Of texts without a pretrained tokenizer, how often each word occurs in the training rows.
    """

    labels: tuple[Label, ...]
    columns: Mapping[str, Column] = field(default_factory=dict)
    pixels: tuple[Pixels, ...] = ()
    words: Mapping[str, int] = field(default_factory=dict)

    def said(self) -> str:
        """List in one line what this is, for the log."""
        parts = [f"class names ({len(self.labels)})"]
        if self.columns:
            kinds = [column.kind for column in self.columns.values() if not column.unfit]
            parts.append("column names and kinds")
            if categories := kinds.count(CATEGORY):
                parts.append(f"categories of {categories} column{'s' * (categories > 1)}")
            if numbers := kinds.count(NUMBER):
                parts.append(f"count, mean and sum of squares of {numbers} column{'s' * (numbers > 1)}")
        if self.pixels:
            parts.append(f"count, sum and sum of squares of {len(self.pixels)} channel(s)")
        if self.words:
            parts.append(f"{len(self.words)} words with their counts")
        return ", ".join(parts)
