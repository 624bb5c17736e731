"""The options of engines with their rules; imports only the standard library.

Each dataclass has the name of a class of this package, and its arguments from the configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LocalGrid:
    """Options of :class:`fedclust.grids.local_grid.LocalGrid`."""

    num_nodes: int = 1

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError(f"num_nodes must be >= 1, got {self.num_nodes}")


@dataclass(frozen=True)
class RayGrid:
    """Options of :class:`fedclust.grids.ray_grid.RayGrid`."""

    num_nodes: int | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        nodes, cpus, gpus = self.num_nodes, self.num_cpus, self.num_gpus
        if nodes is not None and (nodes < 1 or nodes != int(nodes)):
            raise ValueError(f"num_nodes must be a whole number >= 1, got {nodes}")
        if cpus is not None and not cpus > 0:
            raise ValueError(f"num_cpus must be > 0, got {cpus}")
        if gpus is not None and not (0 <= gpus <= 1 or gpus == int(gpus) > 0):
            raise ValueError(f"num_gpus must be in [0, 1] or a whole number, got {gpus}")


@dataclass(frozen=True)
class SuperLink:
    """Options of :class:`fedclust.grids.superlink.SuperLink`."""

    connection: str
    federation_config: str | None = None
