"""The Flower ClientApp: the message handlers of a node for its clients."""

from fedclust.clients import describe, evaluate, train  # noqa: F401  (importing registers the handlers)
from fedclust.clients.app import app

__all__ = ["app"]
