"""What a site lets leave it; nothing in a run changes it. See docs/SECURITY.md."""

from dataclasses import dataclass
from typing import Annotated

from fedclust.support.checks import Checked


@dataclass(frozen=True, kw_only=True)
class Rules(Checked):
    """A site's rules about what leaves it.

    Attributes
    ----------
    min_cell
        Least number of rows that a count, class, category, mean or figure is of.
    max_values
        Most classes of the label, and most categories of a column.

    Raises
    ------
    ValueError
        If a rule is out of range.

    Examples
    --------
    >>> Rules().min_cell
    5
    """

    min_cell: Annotated[int, ">= 1"] = 5
    max_values: Annotated[int, ">= 2"] = 100
