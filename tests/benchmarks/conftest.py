"""The scripts of benchmarks/, as modules that find each other as when they are run."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return what imports a script by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def script(request: pytest.FixtureRequest, scripts: Callable[[str], ModuleType]) -> ModuleType:
    """Import the script that the test's module names as ``SCRIPT``."""
    return scripts(request.module.SCRIPT)
