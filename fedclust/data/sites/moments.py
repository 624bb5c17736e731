"""Mean and standard deviation of a column whose rows are at several sites.

A site gives its number of values, their mean, and the sum of their squared differences from that mean. These
say what the plain sums and sums of squares would, and do not cancel where the mean is large: with dates in
seconds, 1.6e9, and a standard deviation of 10, the difference of two float64 sums of squares has no right
digit.

Source: Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance", The American Statistician 37,
1983, Eq. 2.1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedclust.typing import FloatArray

__all__ = ["Moments"]


@dataclass(frozen=True)
class Moments:
    """What a site says of the numbers of a column that it trains on.

    Attributes
    ----------
    rows
        Number of rows.
    count
        Number of those that have a value.
    mean
        Mean of the values; 0 if there is none.
    squares
        Sum of the squared differences from the mean.
    """

    rows: int = 0
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: FloatArray) -> "Moments":
        """Compute the moments of float64 values, NaN where missing, shape (rows,)."""
        present = values[~np.isnan(values)]
        if not len(present):
            return cls(rows=len(values))
        mean = float(present.mean())
        return cls(len(values), len(present), mean, float(((present - mean) ** 2).sum()))

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of both sites' rows together."""
        count = self.count + other.count
        if not count:
            return Moments(rows=self.rows + other.rows)
        apart = other.mean - self.mean
        return Moments(
            self.rows + other.rows,
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
        )

    @classmethod
    def total(cls, each: Iterable["Moments"]) -> "Moments":
        """Return the moments of all sites' rows together."""
        return sum(each, cls())

    @property
    def scale(self) -> float:
        """What a column is divided by: its standard deviation, missing values counted as the mean.

        As scikit-learn's ``StandardScaler`` after its ``SimpleImputer``: over all rows, and 1 for a column
        that is constant up to rounding.
        """
        if not self.count:
            return 1.0
        variance = self.squares / self.rows
        eps = float(np.finfo(np.float64).eps)
        constant = variance <= self.rows * eps * variance + (self.rows * self.mean * eps) ** 2
        return 1.0 if constant or variance == 0 else math.sqrt(variance)

    @property
    def size(self) -> float:
        """Root mean square of the values: how large they are, whatever their sign."""
        return math.sqrt(self.mean**2 + self.squares / self.count) if self.count else 0.0
