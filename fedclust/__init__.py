"""Clustered federated learning on Flower.

:func:`simulate` runs a federation of Python objects, :func:`run` takes the same overrides as the command
line, :func:`load` opens a finished run, :func:`load_export` exported models.
"""

from typing import TYPE_CHECKING, Any

from fedclust.support.layout import join_parts

join_parts()

__version__ = "0.1.0"
__all__ = ["LocalTraining", "Result", "load", "load_export", "run", "simulate"]

if TYPE_CHECKING:
    from fedclust.runs.library import Result, load, run, simulate
    from fedclust.serving import load_export
    from fedclust.training import LocalTraining


def __getattr__(name: str) -> Any:
    # Torch, Flower and pandas take seconds to import, so only when needed.
    if name == "LocalTraining":
        from fedclust.training import LocalTraining

        return LocalTraining
    if name == "load_export":
        from fedclust.serving import load_export

        return load_export
    if name in __all__:
        from fedclust.runs import library

        return getattr(library, name)
    raise AttributeError(f"module 'fedclust' has no attribute {name!r}, it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
