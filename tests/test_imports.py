"""Check which modules import which, from the source: imports go one way."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("fedclust", "strategies", "clients")
ENTRY_POINTS = ("fedclust.runs.library", "fedclust.runs.library", "fedclust.client_app")
OUTSIDE = ("flwr", "hydra", "omegaconf", "ray")
PURE = ("fedclust.clustering", "fedclust.metrics")


def _modules() -> dict[str, tuple[Path, ast.Module]]:
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if path.relative_to(ROOT).parts[:2] in {("fedclust", "strategies"), ("fedclust", "clients")}:
                continue  # links to the top-level folders
            name = ".".join(parts if folder == "fedclust" else ("fedclust", *parts))
            found[name.removesuffix(".__init__")] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """List what a module imports when it runs, in functions too; not what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported(ast.Module(node.orelse, []))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imported(node)


MODULES = _modules()
IMPORTS = {name: sorted(set(imported(tree))) for name, (_, tree) in MODULES.items()}


def _under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def breaches(
    packages: tuple[str, ...], forbidden: tuple[str, ...], besides: tuple[str, ...] = ()
) -> list[str]:
    """List the imports of what is forbidden, in the modules of some packages."""
    return [
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        if _under(name, packages) and not _under(name, besides)
        for other in others
        if _under(other, forbidden)
    ]


def test_the_mathematics_imports_no_framework_and_no_federation() -> None:
    above = ("data", "federation", "messages", "results", "settings", "strategies", "clients")
    packages = tuple(
        f"fedclust.{package}" for package in (*above, "training", "server_app", "runner", "library")
    )
    assert breaches(PURE, (*OUTSIDE, "logging", *packages)) == []


def test_strategies_and_clients_never_import_each_other() -> None:
    assert breaches(("fedclust.strategies",), ("fedclust.clients", "clients", "strategies")) == []
    assert breaches(("fedclust.clients",), ("fedclust.strategies", "clients", "strategies")) == []


def test_only_entry_points_import_strategies_and_clients() -> None:
    packages = ("fedclust.strategies", "fedclust.clients")
    assert breaches(("fedclust",), packages, besides=(*packages, *ENTRY_POINTS)) == []


def test_lower_layers_do_not_import_the_entry_points() -> None:
    entry_points = tuple(f"fedclust.{name}" for name in ("library", "run", "command_line", "server_app"))
    packages = (
        "clients",
        "clustering",
        "data",
        "federation",
        "metrics",
        "models",
        "proof",
        "messages",
        "results",
    )
    lower = tuple(f"fedclust.{package}" for package in (*packages, "settings", "strategies", "training"))
    assert breaches(lower, entry_points) == []


def test_only_records_uses_its_keys() -> None:
    assert breaches(("fedclust",), ("fedclust.messages.keys",), besides=("fedclust.messages",)) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import flwr.app", ["flwr.app"]),
        ("from fedclust import strategies", ["fedclust.strategies"]),
        ("def late():\n    from ray import get", ["ray.get"]),
        ("if TYPE_CHECKING:\n    import ray\nelse:\n    import flwr", ["flwr"]),
        ("try:\n    import ray\nexcept ImportError:\n    pass", ["ray"]),
    ],
)
def test_how_imports_are_read(source: str, expected: list[str]) -> None:
    assert list(imported(ast.parse(source))) == expected


def test_every_folder_is_read() -> None:
    assert {"fedclust.runs.library", "fedclust.strategies.fedgwc", "fedclust.clients.node"} <= MODULES.keys()
    assert any(_under(name, PURE) for name in MODULES)
