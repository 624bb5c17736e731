"""The scripts of benchmarks/, as modules that find each other as when they are run."""

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="session", autouse=True)
def _each_table_read_once() -> Iterator[None]:
    """Read the YAML of published figures once; scripts get copies of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        rows = importlib.import_module("published_rows")
        patch.setattr(rows, "_merged", cache(rows._merged))
        yield


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return what imports a script by its name."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module


@pytest.fixture
def script(request: pytest.FixtureRequest, scripts: Callable[[str], ModuleType]) -> ModuleType:
    """Import the script that the test's module names as ``SCRIPT``."""
    return scripts(request.module.SCRIPT)
