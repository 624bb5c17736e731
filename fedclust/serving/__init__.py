"""Export a run's models to a folder, open them again, and predict on raw rows."""

from fedclust.serving.export import write_export
from fedclust.serving.served import Served, Site, load_export

__all__ = ["Served", "Site", "load_export", "write_export"]
