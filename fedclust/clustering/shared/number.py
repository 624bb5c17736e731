"""The number of groups, for methods that must be told it."""

from dataclasses import dataclass
from typing import Annotated

from fedclust.support.checks import Checked


@dataclass(frozen=True)
class KnownNumber(Checked):
    """Settings of a method that divides clients into a number of groups that it is given.

    Attributes
    ----------
    num_clusters
        Number of groups, >= 1; None if nobody knows it: then 2, and the run says that this is a guess.

    Raises
    ------
    ValueError
        If the number is below 1.

    Examples
    --------
    >>> KnownNumber().number, KnownNumber(5).number
    (2, 5)
    """

    num_clusters: Annotated[int | None, ">= 1 or None"] = None

    @property
    def number(self) -> int:
        """The number of groups that the method makes."""
        return 2 if self.num_clusters is None else self.num_clusters
