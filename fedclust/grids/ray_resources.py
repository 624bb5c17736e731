"""Divide a Ray cluster's CPUs and GPUs among nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Machine", "Shares", "places", "share_out"]

_MOST_NODES = 8  # default limit on CPUs: more nodes leave each too few clients to train together
_ROUNDING = 1e-6  # tolerance, so that three thirds of a GPU make one


@dataclass(frozen=True)
class Machine:
    """The resources of one machine of a Ray cluster."""

    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True)
class Shares:
    """The number of nodes, and the CPUs and GPU share of each."""

    num_nodes: int
    cpus: float
    gpus: float


def share_out(
    machines: Sequence[Machine],
    num_nodes: int | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
) -> Shares:
    """Divide a cluster among equal nodes, each on one machine and on at most one GPU.

    Parameters
    ----------
    machines
        The cluster.
    num_nodes
        Number of nodes; None for one per GPU, or without GPUs one per CPU, at most 8.
    num_cpus
        CPUs of each node; None for an equal share of all.
    num_gpus
        GPU share of each node; None for an equal share of all, at most one.

    Raises
    ------
    ValueError
        If a number is outside its range, or the nodes do not fit.
    """
    if num_nodes is not None and (num_nodes < 1 or num_nodes != int(num_nodes)):
        raise ValueError(f"num_nodes must be a whole number >= 1, got {num_nodes}")
    if num_cpus is not None and not num_cpus > 0:
        raise ValueError(f"num_cpus must be > 0, got {num_cpus}")
    if num_gpus is not None and not (0 <= num_gpus <= 1 or num_gpus == int(num_gpus) > 0):
        raise ValueError(f"num_gpus must be in [0, 1] or a whole number, got {num_gpus}")
    gpus = _gpu_share(machines, num_nodes) if num_gpus is None else float(num_gpus)
    if num_nodes is None:
        most = _places(machines, num_cpus or 0.0, gpus)
        num_nodes = max(1, int(most) if gpus or num_cpus else min(_MOST_NODES, int(_total_cpus(machines))))
    cpus = _cpu_share(machines, num_nodes, gpus) if num_cpus is None else float(num_cpus)
    fitting = _places(machines, cpus, gpus)
    if fitting < num_nodes:
        offered = "; ".join(f"{machine.cpus:g} CPUs, {machine.gpus:g} GPUs" for machine in machines)
        raise ValueError(
            f"{num_nodes} nodes of {cpus:g} CPUs and {gpus:g} GPUs must fit into the Ray cluster, "
            f"{int(fitting)} do; its machines have {offered or 'nothing'}"
        )
    return Shares(num_nodes, cpus, gpus)


def places(machine: Machine, shares: Shares) -> int:
    """Count the nodes of a given size that fit on one machine."""
    found = _places([machine], shares.cpus, shares.gpus)
    return int(found) if math.isfinite(found) else 0


def _total_cpus(machines: Sequence[Machine]) -> float:
    return sum(machine.cpus for machine in machines)


def _gpu_share(machines: Sequence[Machine], num_nodes: int | None) -> float:
    total = sum(int(machine.gpus) for machine in machines)
    if total == 0:
        return 0.0
    return 1.0 if num_nodes is None else 1 / max(1, math.ceil(num_nodes / total))


def _cpu_share(machines: Sequence[Machine], num_nodes: int, gpus: float) -> float:
    """Compute the most CPUs per node with which all nodes fit; a fraction if there are few CPUs."""
    for cpus in range(int(_total_cpus(machines) / num_nodes), 0, -1):
        if _places(machines, cpus, gpus) >= num_nodes:
            return float(cpus)
    per_cpu = 1
    while _places(machines, 1 / per_cpu, gpus) < num_nodes and per_cpu < num_nodes:
        per_cpu += 1
    return 1 / per_cpu


def _places(machines: Sequence[Machine], cpus: float, gpus: float) -> float:
    """Count the nodes of a given size that fit."""
    return sum(
        min(
            math.floor(machine.cpus / cpus + _ROUNDING) if cpus else math.inf,
            _gpu_places(machine.gpus, gpus) if gpus else math.inf,
        )
        for machine in machines
    )


def _gpu_places(available: float, each: float) -> int:
    # A share must be on one GPU: two GPUs fit two nodes of two thirds each, not three.
    return int(available) * math.floor(1 / each + _ROUNDING) if each < 1 else int(available / each)
