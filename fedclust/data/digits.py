"""Scikit-learn's handwritten digits: real data that needs no download."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedclust.data.dataset import DatasetBuilder, SourceError
from fedclust.data.images import channel_statistics, pixel_counts


@dataclass(frozen=True, kw_only=True)
class Digits(DatasetBuilder):
    """1,797 digits of 8×8 pixels, the test set of UCI's optical recognition of handwritten digits.

    The source's pixels are in 0 to 16. They are scaled by 255/16 and rounded, so that noise and inversion
    have the same effect as on other images. There is no official test part.

    Attributes
    ----------
    path, hub
        Always None: there is nothing to load. They exist because every dataset has them.

    Raises
    ------
    ValueError
        If a setting is out of range, or a source is given.
    """

    path: str | None = None
    hub: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None or self.hub is not None:
            rule = "comes with scikit-learn, so dataset.path and .hub must be null"
            raise SourceError(
                f"dataset {self.name}: {rule}, got {self.path or self.hub}; dataset=csv reads one"
            )

    def identity(self) -> list[Any]:
        """Return a constant: the data are part of scikit-learn and have never changed."""
        return ["scikit-learn"]

    def write(self, folder: Path) -> None:
        """Prepare the dataset in `folder`; see :meth:`DatasetBuilder.write`."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
        inputs = self.new_inputs(folder, np.uint8, len(pixels), pixels.shape[1:])
        inputs[:] = pixels
        np.save(folder / "labels.npy", digits.target.astype(np.int64))
        statistics = channel_statistics(pixel_counts(pixels))
        self.describe(folder, [*map(str, digits.target_names)], len(pixels), statistics)
