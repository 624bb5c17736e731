"""The Flower ClientApp: the message handlers of a node for its clients."""

from fedclust.clients import descriptors, evaluate, train
from fedclust.clients.app import app

__all__ = ["app"]
