"""Read a dataclass's defaults from its source, without importing what its module imports.

Most dataclasses of a configuration stand beside code that needs PyTorch or scikit-learn, which take seconds
to import; composing a configuration, and refusing a wrong one, needs their defaults only. What cannot be
read without running code is not guessed: then the dataclass is imported.
"""

import ast
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any

__all__ = ["NOT_PLAIN", "REQUIRED", "declared_fields"]

REQUIRED = object()
"""Of a field that has no default."""

NOT_PLAIN = object()
"""Of a field whose default is a function, a class or an object of one."""

_EMPTY = {"dict": dict, "list": list, "tuple": tuple}


class _Unknown(Exception):
    """It cannot be known without running the module."""


@dataclasses.dataclass(frozen=True)
class _Module:
    name: str


@dataclasses.dataclass(frozen=True)
class _Class:
    """A class that was found in a module's source."""

    module: str
    node: ast.ClassDef


def declared_fields(target: str) -> dict[str, Any] | None:
    """List the arguments of a dataclass's constructor with their defaults.

    Parameters
    ----------
    target
        Its dotted path.

    Returns
    -------
    Each argument's default, :data:`REQUIRED` or :data:`NOT_PLAIN`, in the order of the fields. None where
    it takes an import to know them: the class's module is loaded already, is no Python source, or does not
    say them in so many words.
    """
    module, _, name = target.rpartition(".")
    if module in sys.modules:
        return None
    try:
        reader = _Reader()
        found = reader.look_up(module, name)
        if isinstance(found, _Class) and reader.is_dataclass(found):
            return reader.fields(found)
    except (_Unknown, SyntaxError, ImportError, RecursionError):
        pass
    return None


class _Reader:
    """Finds names in the sources of modules; a module that is loaded is asked itself."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[ast.stmt]] = {}

    def fields(self, found: _Class) -> dict[str, Any]:
        """List the fields of a class and of the dataclasses among its bases."""
        module = found.module
        listed: dict[str, Any] = {}
        for base in reversed(found.node.bases):
            value = self._value(base, module)
            if isinstance(value, type):
                if dataclasses.is_dataclass(value):
                    raise _Unknown
            elif isinstance(value, _Class):
                if self.is_dataclass(value):
                    listed |= self.fields(value)
                elif value.node.bases:
                    raise _Unknown  # it may inherit from a dataclass
            else:
                raise _Unknown
        for line in found.node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                kind = ast.unparse(line.annotation)
                if kind.strip("'\"").removeprefix("typing.").startswith("ClassVar"):
                    continue
                if "InitVar" in kind or "KW_ONLY" in kind:
                    raise _Unknown
                listed[line.target.id] = self._default(line.value, module)
            elif isinstance(line, ast.Assign) and {
                each.id for each in line.targets if isinstance(each, ast.Name)
            } & {*listed}:
                raise _Unknown  # a default without a type of its own
        return listed

    def _default(self, node: ast.expr | None, module: str) -> Any:
        if node is None:
            return REQUIRED
        if isinstance(node, ast.Call):
            return self._field(node, module)
        return _plain(self._value(node, module))

    def _field(self, call: ast.Call, module: str) -> Any:
        """Read ``field(default=…)`` and ``field(default_factory=…)``."""
        given = {each.arg: each.value for each in call.keywords}
        if ast.unparse(call.func).removeprefix("dataclasses.") != "field" or "init" in given:
            raise _Unknown
        if "default" in given:
            return self._default(given["default"], module)
        if "default_factory" not in given:
            return REQUIRED
        factory = given["default_factory"]
        if isinstance(factory, ast.Lambda):
            return self._default(factory.body, module)
        if isinstance(factory, ast.Name) and factory.id in _EMPTY:
            return _EMPTY[factory.id]()
        made = self._value(factory, module)
        if isinstance(made, _Class) and self.is_dataclass(made):
            return NOT_PLAIN
        raise _Unknown

    def _value(self, node: ast.expr, module: str) -> Any:
        """Read an expression: its value; or where it is defined, and its definition."""
        try:
            return ast.literal_eval(node)
        except ValueError:
            pass
        if isinstance(node, ast.Name):
            return self.look_up(module, node.id)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, module)
            if isinstance(owner, _Module):
                return self.look_up(owner.name, node.attr)
        raise _Unknown

    def look_up(self, module: str, name: str) -> Any:
        """Find what a name of a module stands for."""
        loaded = sys.modules.get(module)
        if loaded is not None and name in vars(loaded):
            found = vars(loaded)[name]
            if _is_plain(found) or isinstance(found, type):
                return found
            if callable(found):
                return NOT_PLAIN
            raise _Unknown
        bound = [line for line in self._body(module) if name in _binds(line)]
        if len(bound) > 1:
            raise _Unknown
        if not bound:
            if _spec(f"{module}.{name}") is None:
                raise _Unknown
            return _Module(f"{module}.{name}")
        (line,) = bound
        match line:
            case ast.ClassDef():
                return _Class(module, line)
            case ast.FunctionDef():
                return NOT_PLAIN
            case ast.Assign(value=value) if isinstance(line.targets[0], ast.Name):
                return self._value(value, module)
            case ast.AnnAssign(value=ast.expr() as value):
                return self._value(value, module)
            case ast.Import(names=[ast.alias(name=source)]) if "." not in source:
                return _Module(source)
            case ast.ImportFrom(module=str() as source, level=0):
                (original,) = (each.name for each in line.names if (each.asname or each.name) == name)
                return self.look_up(source, original)
        raise _Unknown

    def is_dataclass(self, found: _Class) -> bool:
        """Whether the standard library's decorator, and no other, makes a class a dataclass."""
        decorators = [
            ast.unparse(each.func if isinstance(each, ast.Call) else each)
            for each in found.node.decorator_list
        ]
        if decorators not in (["dataclass"], ["dataclasses.dataclass"]):
            return False
        name = decorators[0].partition(".")[0]
        bound = [line for line in self._body(found.module) if name in _binds(line)]
        return [ast.unparse(line).split()[1] for line in bound] == ["dataclasses"]

    def _body(self, module: str) -> list[ast.stmt]:
        if module not in self._bodies:
            spec = _spec(module)
            loader = spec.loader if spec is not None else None
            source = loader.get_source(module) if isinstance(loader, InspectLoader) else None
            if source is None:
                raise _Unknown
            self._bodies[module] = list(_lines(ast.parse(source).body))
        return self._bodies[module]


def _lines(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Go through a module's statements; what a package imports when asked for counts as imported."""
    for line in body:
        if isinstance(line, ast.If) and ast.unparse(line.test) == "TYPE_CHECKING":
            yield from line.body
        else:
            yield line


def _binds(line: ast.stmt) -> set[str]:
    """List the names that a statement may bind."""
    if isinstance(line, ast.Import | ast.ImportFrom):
        return {(each.asname or each.name).partition(".")[0] for each in line.names}
    if isinstance(line, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {line.name}
    return {
        each.id for each in ast.walk(line) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


def _spec(module: str) -> ModuleSpec | None:
    """Find a module's source without importing the packages around it."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for number in range(len(parts)):
        name = ".".join(parts[: number + 1])
        spec = PathFinder.find_spec(name, path)
        if spec is None and path is None and name:  # an editable install may have a finder of its own
            spec = sys.modules[name].__spec__ if name in sys.modules else find_spec(name)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and number + 1 < len(parts):
            return None
    return spec


def _plain(value: Any) -> Any:
    if _is_plain(value):
        return value
    if value is NOT_PLAIN or isinstance(value, type | tuple | _Class):
        return NOT_PLAIN
    raise _Unknown


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)
