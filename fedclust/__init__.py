"""Clustered federated learning on Flower.

:func:`simulate` runs a federation of Python objects, :func:`run` takes the same overrides as the command
line, :func:`load` opens a finished run, :func:`load_export` exported models.
"""

import os
from typing import TYPE_CHECKING

from fedclust.support.layout import join_parts
from fedclust.support.lazy import lazily

# OpenBLAS reads it when NumPy is imported. Its threads would wait actively for 0.1 s after each product, so
# that training lacked a core for up to half of a run.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
join_parts()
__version__ = "0.4.0"

if TYPE_CHECKING:
    from fedclust.runs.library import Result as Result, load as load, run as run, simulate as simulate
    from fedclust.serving import load_export as load_export
    from fedclust.training import LocalTraining as LocalTraining
else:
    NAMES = {
        "fedclust.runs.library": "Result load run simulate",
        "fedclust.serving": "load_export",
        "fedclust.training": "LocalTraining",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
