"""Ask Ray which machines its cluster has, and whether its process on this one is alive."""

import socket

import ray

from fedclust.grids.ray_resources import Machine

__all__ = ["PROBE_SECONDS", "machines_of_cluster", "raylet_is_gone"]

PROBE_SECONDS = 10.0
"""Timeout for connecting to an address."""


def raylet_is_gone() -> bool:
    """Check whether Ray's process on this machine has died; some ten seconds later Ray ends this process."""
    here = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == here:
            try:
                where = node["NodeManagerAddress"], node["NodeManagerPort"]
                socket.create_connection(where, timeout=PROBE_SECONDS).close()
            except OSError:
                return True
    return False


def machines_of_cluster() -> dict[str, Machine]:
    """List the machines of the cluster, by Ray's ids of them."""
    return {
        node["NodeID"]: Machine(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    }
