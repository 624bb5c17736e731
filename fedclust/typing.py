"""Array types used throughout."""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # takes a second, and the mathematics does without
    import torch

FloatArray: TypeAlias = NDArray[np.floating]
IntArray: TypeAlias = NDArray[np.integer]
BoolArray: TypeAlias = NDArray[np.bool_]
State: TypeAlias = dict[str, "torch.Tensor"]
