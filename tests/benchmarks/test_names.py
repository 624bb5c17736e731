"""What benchmarks use of fedclust exists: they run for hours, by hand, and some replace methods by name."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def used(text: str) -> Iterator[tuple[Any, str]]:
    """List what a script takes from fedclust, and the attributes of the modules and classes among it."""
    known: dict[str, Any] = {}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedclust":
            module = import_module(str(node.module))
            for each in node.names:
                try:
                    known[each.asname or each.name] = import_module(f"{node.module}.{each.name}")
                except ModuleNotFoundError:
                    yield module, each.name
                    known[each.asname or each.name] = getattr(module, each.name, None)
        elif isinstance(node, ast.Import):
            known |= {each.name: import_module(each.name) for each in node.names if each.name == "fedclust"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = known.get(node.value.id)
            if inspect.ismodule(owner) or inspect.isclass(owner):
                yield owner, node.attr


@pytest.mark.parametrize("script", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_what_a_benchmark_uses_exists(script: str) -> None:
    text = (BENCHMARKS / script).read_text(encoding="utf-8")
    assert [f"{owner.__name__}.{name}" for owner, name in used(text) if not hasattr(owner, name)] == []


def test_names_that_are_gone_are_found() -> None:
    lines = "from fedclust.federation.run import Run, gone\nRun.begin_round\nRun.next_round\n"
    assert [name for owner, name in used(lines) if not hasattr(owner, name)] == ["gone", "begin_round"]
