"""Charts are drawn here."""

import pytest


@pytest.fixture(autouse=True)
def _drawn(drawn: None) -> None:
    """Draw in every test."""
