"""Call the constructors of settings before anything large is imported, to answer a wrong value at once.

The rules of a setting stand in its dataclass's ``__post_init__``, in modules that also import PyTorch or
scikit-learn, which takes seconds. Here the class's own lines, and those that they use, are run from the
source of their module, and nothing else of it. Where such a line needs a large library the check is left out:
the constructor itself decides later, as it does in any case.
"""

import ast
import builtins
import copy
import dataclasses
import importlib
import re
import sys
from inspect import signature
from types import CodeType
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from fedclust.settings.declared import Sources, Unknown
from fedclust.settings.option_types import nodes_with_targets

__all__ = ["out_of_range"]

_ELSEWHERE = re.compile(r"\$\{([\w.]+)\}")
_SMALL = frozenset(sys.stdlib_module_names) | {"numpy"}

_PARTITIONERS = "fedclust.data.partitioners"


def out_of_range(config: DictConfig) -> str | None:
    """Find the first of fedclust's dataclasses and partitioners that refuses its values.

    Parameters
    ----------
    config
        The composed configuration; every node with a ``_target_`` is looked at, at any depth. What a node
        holds besides numbers, texts and lists counts as right.

    Returns
    -------
    The constructor's message in one line, with the key where it begins with an argument's name; None if none
    refuses, as far as can be told yet.
    """
    spaces: dict[str, _Names] = {}
    sources = Sources()
    # Partitioners last: their checks import NumPy.
    nodes = sorted(nodes_with_targets(config), key=lambda each: each[0].partition(".")[0] == "partition")
    for key, node in nodes:
        target = str(node["_target_"])
        module, _, name = target.rpartition(".")
        if not _is_own(module):
            continue
        try:
            given, later = _arguments(node, config)
            if module == _PARTITIONERS:  # light to import
                made = getattr(importlib.import_module(module), name)
                found = None
            else:
                made = found = sources.look_up(module, name)
            if found is not None and sources.is_own_class(found):
                made = _names(found.module, sources, spaces)[found.node.name]
        # Lines of a module are run, and may fail in any way; its import would say so in full.
        except Exception:
            continue
        if not isinstance(made, type):
            continue
        if module == _PARTITIONERS:
            if OmegaConf.select(config, "partition.file") is not None:  # then nothing is drawn
                continue
            # Other keys of a partition are for what is done with the clients.
            given = {name: given[name] for name in signature(made).parameters if name in given}
        elif not dataclasses.is_dataclass(made):
            continue
        try:
            made(**given)
        except ValueError as error:
            said = " ".join(str(error).split())
            argument = said.partition(" ")[0]
            if argument.rpartition(".")[2] not in later:
                return f"{key}.{said}" if argument in given else said
        except Exception:
            continue
    return None


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "fedclust"


def _arguments(node: DictConfig, config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """List a node's arguments, and the names of those that something stands in for.

    Raises
    ------
    Unknown
        If one is missing, or Hydra is to do more with the node than call its constructor.
    """
    given: dict[str, Any] = {}
    later = []
    for key in node:
        name = str(key)
        if name == "_target_":
            continue
        if name.startswith("_") or OmegaConf.is_missing(node, name) or not _is_known(node, name, config):
            raise Unknown
        value = node[name]
        entries = value if isinstance(value, ListConfig) else [value]
        if any(isinstance(each, DictConfig) and any(nodes_with_targets(each)) for each in entries):
            given[name] = _built_later
            later.append(name)
        elif isinstance(value, DictConfig | ListConfig):  # plain, as the constructor gets it
            given[name] = OmegaConf.to_container(value, resolve=False)
            if "${" in str(given[name]):
                raise Unknown
        else:
            given[name] = value
    return given, later


def _is_known(node: DictConfig, name: str, config: DictConfig) -> bool:
    """Whether a value stands in the configuration; to resolve another one may read data."""
    if not OmegaConf.is_interpolation(node, name):
        return True
    path = _ELSEWHERE.fullmatch(str(OmegaConf.to_container(node, resolve=False)[name]))  # type: ignore[index, call-overload]
    if path is None:
        return False
    above, _, last = path[1].rpartition(".")
    parent = OmegaConf.select(config, above) if above else config
    if not isinstance(parent, DictConfig) or last not in [*parent]:  # a mapping would resolve the value
        return False
    return not (OmegaConf.is_interpolation(parent, last) or OmegaConf.is_missing(parent, last))


def _built_later(*arguments: Any, **named: Any) -> None:  # noqa: ARG001
    """Stand in for an object, or a function, that another node describes."""
    raise Unknown


class _Names(dict[str, Any]):
    """The names of a module, each of which its source defines when it is first used."""

    def __init__(self, module: str, sources: Sources, spaces: "dict[str, _Names]") -> None:
        super().__init__(__name__=__name__, __builtins__=builtins)
        self._module, self._sources, self._spaces = module, sources, spaces

    def __missing__(self, name: str) -> Any:
        loaded = sys.modules.get(self._module)
        if loaded is not None and name in vars(loaded):
            return vars(loaded)[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        line = self._sources.statement(self._module, name)
        if isinstance(line, ast.ImportFrom):
            self[name] = self._imported(line, name)
        elif isinstance(line, ast.Import):
            (one,) = (each for each in line.names if (each.asname or each.name).partition(".")[0] == name)
            if one.name.partition(".")[0] not in _SMALL or "." in one.name:
                raise Unknown
            self[name] = importlib.import_module(one.name)
        else:
            for used in _used_at_once(line):
                self[used]  # a class's own lines look into a dictionary without asking __missing__
            exec(_compiled(line), self)
        return self[name]

    def _imported(self, line: ast.ImportFrom, name: str) -> Any:
        (original,) = (each.name for each in line.names if (each.asname or each.name) == name)
        module = self._sources.module_of(self._module, line)
        if module.partition(".")[0] in _SMALL:
            return getattr(importlib.import_module(module), original)
        if not _is_own(module):
            raise Unknown
        return _names(module, self._sources, self._spaces)[original]


def _names(module: str, sources: Sources, spaces: dict[str, _Names]) -> _Names:
    return spaces.setdefault(module, _Names(module, sources, spaces))


class _WithoutTypes(ast.NodeTransformer):
    """Replaces types of arguments and fields, which may name a large library; the checks do not use them."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if "ClassVar" in ast.unparse(node.annotation):
            if node.value is None:
                return ast.Pass()
            return ast.copy_location(ast.Assign([node.target], node.value), node)
        node.annotation = ast.copy_location(ast.Name("object", ast.Load()), node)
        return self.generic_visit(node)


def _used_at_once(line: ast.stmt) -> set[str]:
    """List the names of the module that the body of a class uses, outside of its functions."""
    if not isinstance(line, ast.ClassDef):
        return set()
    own: set[str] = set()
    used: set[str] = set()
    for each in line.body:
        if isinstance(each, ast.FunctionDef):
            own.add(each.name)
            parts: list[ast.expr | None] = [*each.decorator_list, *each.args.defaults, *each.args.kw_defaults]
        elif isinstance(each, ast.AnnAssign):
            parts = [each.value]
        else:
            parts = [each]  # type: ignore[list-item]
        for part in parts:
            for node in ast.walk(part) if part is not None else ():
                if isinstance(node, ast.Name):
                    (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            own.add(each.target.id)
    return {name for name in used - own if not hasattr(builtins, name)}


def _compiled(line: ast.stmt) -> CodeType:
    tree = ast.Module([_WithoutTypes().visit(copy.deepcopy(line))], [])
    return compile(ast.fix_missing_locations(tree), "<a setting's constructor>", "exec")
