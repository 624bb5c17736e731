"""Imports go one way: a package stands on a floor and imports from lower ones; no file is in a circle."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (
    {"typing", "support"},
    {"metrics", "personal", "privacy", "proof"},
    {"clustering", "data", "reporting"},
    {"messages", "models", "settings", "training"},
    {"aggregation", "federation", "grids"},
    {"clients", "layers", "newcomers", "results", "selection"},
    {"serving", "strategies"},
    {"runs"},
    {"", "__main__", "client_app", "server_app"},  # "" is the package itself: what users import
)
FLOOR = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}
FRAMEWORKS = ("flwr", "hydra", "omegaconf", "ray", "logging")
FLOWERS = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")
PURE = ("clustering", "metrics", "proof")


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """Read every module, by the name it is imported by."""
    read = {}
    for folder in ("fedclust", "strategies", "clients"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[:2] in {("fedclust", "strategies"), ("fedclust", "clients")}:
                continue  # links to the folders beside the package
            name = ".".join(parts if folder == "fedclust" else ("fedclust", *parts))
            read[name.removesuffix(".__init__")] = path, ast.parse(path.read_text(encoding="utf-8"))
    return read


def imported(tree: ast.AST) -> Iterator[str]:
    """List what a module imports anywhere: in functions too, what only type checkers read, and packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield str(node.module)


def _module_of(name: str) -> str:
    """Find the module that an imported name is, or is in; empty for another project's."""
    while name and name not in sources():
        name = name.rpartition(".")[0]
    return name


@cache
def imports() -> dict[str, set[str]]:
    """List the modules of ours that each one imports."""
    return {
        name: {_module_of(other) for other in imported(tree)} - {name, ""}
        for name, (_, tree) in sources().items()
    }


def _package(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def test_every_package_has_a_floor() -> None:
    assert {_package(module) for module in sources()} == FLOOR.keys()


def test_imports_go_down() -> None:
    up = [
        f"{module} (floor {FLOOR[_package(module)] + 1}) imports {other} (floor {FLOOR[_package(other)] + 1})"
        for module, others in imports().items()
        for other in others - {"fedclust"}  # its version
        if _package(other) != _package(module) and FLOOR[_package(other)] >= FLOOR[_package(module)]
    ]
    assert up == []


def test_no_file_imports_itself_through_others() -> None:
    graph = {module: others - {"fedclust"} for module, others in imports().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_mathematics_imports_no_framework() -> None:
    breaches = [
        f"{module} imports {name}"
        for module, (_, tree) in sources().items()
        if _package(module) in PURE
        for name in imported(tree)
        if name.partition(".")[0] in FRAMEWORKS
    ]
    assert breaches == []


def test_strategies_and_clients_never_import_each_other() -> None:
    assert [
        module
        for module, others in imports().items()
        if {*map(_package, others)} >= {"clients"} and _package(module) == "strategies"
    ] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import flwr.app", ["flwr.app"]),
        ("from fedclust import strategies", ["fedclust.strategies", "fedclust"]),
        ("def late():\n    from ray import get", ["ray.get", "ray"]),
        ("if TYPE_CHECKING:\n    import ray\nelse:\n    import flwr", ["ray", "flwr"]),
    ],
)
def test_how_imports_are_read(source: str, expected: list[str]) -> None:
    assert list(imported(ast.parse(source))) == expected


def test_what_is_private_in_flower_is_used_by_one_module() -> None:
    offered = {f"{name}.{each}" for name in FLOWERS for each in import_module(name).__all__}
    private = {
        (module, name)
        for module, (_, tree) in sources().items()
        for name in imported(tree)
        if name.partition(".")[0] == "flwr" and name not in offered and name not in FLOWERS
    }
    assert {module for module, _ in private} == {"fedclust.support.flower"}
