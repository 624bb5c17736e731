"""The scripts of benchmarks/, as modules that find each other as when they are run."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the script that the test's module names as ``SCRIPT``."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module(request.module.SCRIPT)
