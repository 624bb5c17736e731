"""The ServerApp, as Flower finds it: ``fedclust.server_app:app``."""

from fedclust.runs.server import app

__all__ = ["app"]
