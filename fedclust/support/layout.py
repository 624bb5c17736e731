"""Import the parts of the package that lie next to it in the repository.

``strategies``, ``clients`` and ``conf`` are folders at the top of the repository and belong to the package:
an installed ``fedclust`` has them inside, and a checkout has links to them. Flower's app bundle and checkouts
without symbolic links have neither; there the folders next to the package are imported under the same names.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_PARTS = ("strategies", "clients", "conf")


def _folder(part: str) -> Path:
    inside = _PACKAGE / part
    return inside if inside.is_dir() else _PACKAGE.parent / part


CONF = _folder("conf").resolve()
"""Hydra's configuration files."""


class _PartsBeside(MetaPathFinder):
    """Finds ``fedclust.strategies``, ``fedclust.clients`` and ``fedclust.conf`` next to the package."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        package, _, part = fullname.partition(".")
        if package != "fedclust" or part not in _PARTS:
            return None
        return PathFinder.find_spec(fullname, [str(_folder(part).parent)])


def join_parts() -> None:
    """Add the parts to Python's import system, once."""
    if not any(type(finder).__name__ == _PartsBeside.__name__ for finder in sys.meta_path):
        sys.meta_path.append(_PartsBeside())
