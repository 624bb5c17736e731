"""Here Hydra composes every time anew."""

import pytest


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.compositions.active", False)
