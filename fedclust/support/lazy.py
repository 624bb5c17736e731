"""Import what a package offers only when it is asked for."""

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["lazily"]


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the two functions through which a package imports its names when they are first used (PEP 562).

    The package lists them once, as the imports that type checkers and editors read::

        if TYPE_CHECKING:
            from fedclust.metrics.accuracy import fairness
        else:
            __getattr__, __dir__ = lazily(__name__)

    A name must not be that of a module of the package: once imported, the module would hide it.

    Parameters
    ----------
    package
        Its dotted path.

    Returns
    -------
    Its ``__getattr__`` and ``__dir__``.
    """
    module_of: dict[str, str] = {}

    def module_by_name() -> dict[str, str]:
        if not module_of:
            loader = sys.modules[package].__spec__.loader  # type: ignore[union-attr]
            module_of.update(_listed(loader.get_source(package)))  # type: ignore[union-attr]
        return module_of

    def get(name: str) -> Any:
        # The import system asks for names such as __path__ first.
        if name.startswith("__") or name not in module_by_name():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_by_name()})

    return get, names


def _listed(source: str) -> dict[str, str]:
    """Read which module each name comes from, in the imports under ``if TYPE_CHECKING``."""
    return {
        alias.name: str(each.module)
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
