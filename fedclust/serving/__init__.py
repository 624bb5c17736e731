"""A run's models after training: exported to a folder, opened again, and used on raw rows."""

from fedclust.serving.export import write_export
from fedclust.serving.served import Served, Site, load_export

__all__ = ["Served", "Site", "load_export", "write_export"]
