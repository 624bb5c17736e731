"""The Flower ClientApp: the message handlers of a node for its clients."""

from fedclust.clients import (  # noqa: F401  (importing registers the handlers)
    agreement,
    confusion,
    description,
    encoder,
    evaluate,
    losses,
    personal,
    predictions,
    proof,
    prototypes,
    subspaces,
    train,
    updates,
)
from fedclust.clients.app import app

__all__ = ["app"]
