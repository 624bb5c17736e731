"""The ClientApp under a name that Flower finds in every layout, see :mod:`fedclust.support.layout`."""

from fedclust.clients import app

__all__ = ["app"]
