"""Array types used throughout."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.floating]
IntArray: TypeAlias = NDArray[np.integer]
BoolArray: TypeAlias = NDArray[np.bool_]
State: TypeAlias = dict[str, torch.Tensor]

__all__ = ["BoolArray", "FloatArray", "IntArray", "State"]
