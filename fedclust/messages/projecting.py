"""A seeded random projection of a model's change to a few numbers."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedclust.support.rng import generator

__all__ = ["Projection"]


@dataclass(frozen=True)
class Projection:
    """A count sketch: each entry is added, with a random sign, to one of a few random sums.

    Inner products, and so lengths and angles, are kept on average: for changes x and y and m sums, the
    product of the sketches has mean xᵀy and variance at most (‖x‖²‖y‖² + (xᵀy)²) / m. Nothing is stored per
    entry: entry i of an array always gets the same sum and sign, by the seed, the array's name and i.

    Source: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002; the variance
    is that of Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009, Lemma 2.

    Parameters
    ----------
    size
        Number of sums m, >= 1.
    seed
        Seed of the sums and signs, >= 0. Only projections of one size and seed can be compared.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.seed < 0:
            raise ValueError(f"projection must have size >= 1 and seed >= 0, got {self.size} and {self.seed}")

    def of(self, changes: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
        """Project the changes of several clients.

        Parameters
        ----------
        changes
            By array name, the change of each client, shape (n, …).

        Returns
        -------
        The sums of each client, float64, shape (n, size). A client's row does not depend on the others.

        Raises
        ------
        ValueError
            If there is no array, or arrays are of different numbers of clients.
        """
        arrays = {name: np.asarray(array) for name, array in changes.items()}
        numbers = {len(array) for array in arrays.values()}
        if len(numbers) != 1:
            raise ValueError(f"changes must have one first axis, the clients, got lengths {sorted(numbers)}")
        (number,) = numbers
        projected = np.zeros((number, self.size))
        for name, array in arrays.items():
            rows = array.reshape(number, -1)
            draws = generator(self.seed, "projection", zlib.crc32(name.encode()))
            # One draw gives the sum and the sign: the upper half is subtracted.
            places = draws.integers(0, 2 * self.size, rows.shape[1])
            for row, sums in zip(rows, projected, strict=True):
                both = np.bincount(places, weights=row, minlength=2 * self.size)
                sums += both[: self.size] - both[self.size :]
        return projected
