"""Read a constructor's defaults and types from its source, without importing what its module imports.

Most constructors of a configuration stand beside code that needs PyTorch or scikit-learn, which take seconds
to import; composing a configuration, and refusing a wrong one, needs their defaults and types only. What
cannot be read without running code is not guessed: then the constructor is imported.
"""

import ast
import builtins
import dataclasses
import sys
import typing
from collections.abc import Iterator, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any

__all__ = ["NOT_PLAIN", "REQUIRED", "Sources", "Unknown", "declared_fields", "declared_types"]

REQUIRED = object()
"""Of a field that has no default."""

NOT_PLAIN = object()
"""Of a field whose default is a function, a class or an object of one."""

_EMPTY = {"dict": dict, "list": list, "tuple": tuple}
_SIMPLE = (int, float, bool, str)
_GENERIC = (list, tuple, Sequence, typing.Optional, typing.Union)
_TYPING = ("typing", "collections.abc")


class Unknown(Exception):
    """It cannot be known without running the module."""


@dataclasses.dataclass(frozen=True)
class _Module:
    name: str


@dataclasses.dataclass(frozen=True)
class _Class:
    """A class that was found in a module's source."""

    module: str
    node: ast.ClassDef


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function that was found in a module's source."""

    module: str
    node: ast.FunctionDef


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
        reader = Sources()
        found = reader.look_up(module, name)
        if isinstance(found, _Class) and reader.is_dataclass(found):
            return reader.fields(found)
    except (Unknown, SyntaxError, ImportError, RecursionError):
        pass
    return None


def declared_types(target: str) -> dict[str, Any]:
    """List the types of a constructor's or function's arguments, as far as the source says them plainly.

    Parameters
    ----------
    target
        Its dotted path.

    Returns
    -------
    Type by argument, as :func:`typing.get_type_hints` has them. An argument is left out if it takes an import
    to know its type: if it is more than numbers, texts, true and false, null, literals, and lists of these.
    """
    module, _, name = target.rpartition(".")
    try:
        reader = Sources()
        return reader.types(reader.look_up(module, name))
    except (Unknown, SyntaxError, ImportError, RecursionError):
        return {}


class Sources:
    """Finds names in the sources of modules; a module that is loaded is asked itself."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[ast.stmt]] = {}

    def fields(self, found: _Class) -> dict[str, Any]:
        """List the fields of a class and of the dataclasses among its bases, with their defaults."""
        return {
            name: self._default(line.value, module) for name, (line, module) in self._annotated(found).items()
        }

    def types(self, found: Any) -> dict[str, Any]:
        """List the arguments of a class's constructor, or of a function, whose types can be told."""
        if isinstance(found, _Function) and not found.node.decorator_list:
            arguments = found.node.args
            listed = {
                each.arg: (each.annotation, found.module)
                for each in (*arguments.args, *arguments.kwonlyargs)
                if each.annotation is not None
            }
        elif isinstance(found, _Class) and (self.is_dataclass(found) or not found.node.decorator_list):
            for line in found.node.body:
                if isinstance(line, ast.FunctionDef) and line.name == "__init__":
                    return self.types(_Function(found.module, line))
            if not self.is_dataclass(found):  # with several bases, their order would decide
                (base,) = found.node.bases if len(found.node.bases) == 1 else (None,)
                return {} if base is None else self.types(self._value(base, found.module))
            listed = {
                name: (line.annotation, module) for name, (line, module) in self._annotated(found).items()
            }
        else:
            return {}
        told = {}
        for name, (annotation, module) in listed.items():
            try:
                told[name] = self._type(annotation, module)
            except Unknown:
                continue
        return told

    def _type(self, node: ast.expr, module: str) -> Any:
        """Read an annotation."""
        match node:
            case ast.Constant(value=None):
                return type(None)
            case ast.Constant(value=str() as text):
                return self._type(ast.parse(text, mode="eval").body, module)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return typing.Union[self._type(left, module), self._type(right, module)]  # noqa: UP007
            case ast.Subscript(value=value, slice=inner):
                origin = self._type_named(value, module)
                if origin is typing.Literal:
                    return typing.Literal[ast.literal_eval(inner)]
                if origin not in _GENERIC:
                    raise Unknown
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                read = [... if ast.unparse(part) == "..." else self._type(part, module) for part in parts]
                return origin[read[0] if len(read) == 1 else tuple(read)]
            case ast.Name() | ast.Attribute():
                found = self._type_named(node, module)
                if typing.get_origin(found) or found in _SIMPLE:
                    return found
        raise Unknown

    def _type_named(self, node: ast.expr, module: str) -> Any:
        """Find what a name in an annotation stands for; a form of :mod:`typing` is returned as it is."""
        name = ast.unparse(node).partition(".")[0]
        bound = [line for line in self._body(module) if name in _binds(line)]
        if isinstance(node, ast.Attribute):
            if [ast.unparse(line) for line in bound] == ["import typing"]:
                return getattr(typing, node.attr, None)
            raise Unknown
        if not bound:
            return getattr(builtins, name, None)
        match bound:
            case [ast.Assign(value=value)]:
                return self._type(value, module)
            case [ast.ImportFrom(module=str() as source, level=level) as line]:
                (original,) = (each.name for each in line.names if (each.asname or each.name) == name)
                if source in _TYPING:
                    return getattr(sys.modules[source], original, None)
                source = _absolute(module, source, level)
                if source.partition(".")[0] == module.partition(".")[0]:  # other libraries are large
                    return self._type_named(ast.Name(original), source)
        raise Unknown

    def _annotated(self, found: _Class) -> dict[str, tuple[ast.AnnAssign, str]]:
        """List the lines of a class and of its bases that declare a field, with the modules they stand in."""
        module = found.module
        listed: dict[str, tuple[ast.AnnAssign, str]] = {}
        for base in reversed(found.node.bases):
            value = self._value(base, module)
            if isinstance(value, type):
                if dataclasses.is_dataclass(value):
                    raise Unknown
            elif isinstance(value, _Class):
                if self.is_dataclass(value):
                    listed |= self._annotated(value)
                elif value.node.bases:
                    raise Unknown  # it may inherit from a dataclass
            else:
                raise Unknown
        for line in found.node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                kind = ast.unparse(line.annotation)
                if kind.strip("'\"").removeprefix("typing.").startswith("ClassVar"):
                    continue
                if "InitVar" in kind or "KW_ONLY" in kind:
                    raise Unknown
                listed[line.target.id] = line, module
            elif isinstance(line, ast.Assign) and {
                each.id for each in line.targets if isinstance(each, ast.Name)
            } & {*listed}:
                raise Unknown  # a default without a type of its own
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
            raise Unknown
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
        raise Unknown

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
        raise Unknown

    def look_up(self, module: str, name: str) -> Any:
        """Find what a name of a module stands for."""
        loaded = sys.modules.get(module)
        if loaded is not None and name in vars(loaded):
            found = vars(loaded)[name]
            if _is_plain(found) or isinstance(found, type):
                return found
            if callable(found):
                return NOT_PLAIN
            raise Unknown
        bound = [line for line in self._body(module) if name in _binds(line)]
        if len(bound) > 1:
            raise Unknown
        if not bound:
            if _spec(f"{module}.{name}") is None:
                raise Unknown
            return _Module(f"{module}.{name}")
        (line,) = bound
        match line:
            case ast.ClassDef():
                return _Class(module, line)
            case ast.FunctionDef():
                return _Function(module, line)
            case ast.Assign(value=value) if isinstance(line.targets[0], ast.Name):
                return self._value(value, module)
            case ast.AnnAssign(value=ast.expr() as value):
                return self._value(value, module)
            case ast.Import(names=[ast.alias(name=source)]) if "." not in source:
                return _Module(source)
            case ast.ImportFrom(module=str() as source, level=level):
                source = _absolute(module, source, level)
                (original,) = (each.name for each in line.names if (each.asname or each.name) == name)
                return self.look_up(source, original)
        raise Unknown

    def statement(self, module: str, name: str) -> ast.stmt:
        """Return the one statement of a module that binds a name."""
        bound = [line for line in self._body(module) if name in _binds(line)]
        if len(bound) != 1:
            raise Unknown
        return bound[0]

    def module_of(self, module: str, line: ast.ImportFrom) -> str:
        """Name the module from which a statement of another one imports."""
        return _absolute(module, line.module or "", line.level)

    def is_own_class(self, found: Any) -> bool:
        """Whether it is a class that was found in a source, and not one that is imported already."""
        return isinstance(found, _Class)

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
                raise Unknown
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


def _absolute(module: str, source: str, level: int) -> str:
    """Name the module that a relative import in another one means."""
    if not level:
        return source
    spec = _spec(module)
    if spec is None:
        raise Unknown
    parts = module.split(".")
    kept = len(parts) - level + (spec.submodule_search_locations is not None)
    return ".".join([*parts[:kept], source])


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
    if value is NOT_PLAIN or isinstance(value, type | tuple | _Class | _Function):
        return NOT_PLAIN
    raise Unknown


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)
