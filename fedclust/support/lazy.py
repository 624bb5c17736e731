"""Import a package's public names only when they are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Create the functions with which a package imports its names when they are first used (PEP 562).

    Type checkers and editors read the same names as imports; a test compares the two::

        if TYPE_CHECKING:
            from fedclust.selection.policies import Uniform as Uniform
        else:
            NAMES = {"fedclust.selection.policies": "Uniform"}
            __getattr__, __dir__, __all__ = lazily(__name__, NAMES)

    A name must not be that of a module in the package: once imported, the module would hide it.

    Parameters
    ----------
    package
        Dotted path of the package.
    names
        By module, the names that come from it, separated by spaces.

    Returns
    -------
    The package's ``__getattr__``, ``__dir__`` and ``__all__``.
    """
    module_of = {name: module for module, listed in names.items() for name in listed.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *module_of}), sorted(module_of)
