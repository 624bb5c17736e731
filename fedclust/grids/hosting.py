"""The clients that a node hosts, or gets for a round where any node may train any client."""

import heapq
from collections.abc import Mapping, Sequence

__all__ = ["hosted_clients", "listed_clients", "longest_first"]


def hosted_clients(node_config: Mapping[str, object], num_clients: int) -> tuple[int, ...]:
    """List the clients that a node hosts.

    A node of Flower's simulation or of ``flower-supernode --node-config "partition-id=0 num-partitions=3"``
    hosts every third client; ``--node-config "clients='0,4-6'"`` names them. A node with ``shared`` may train
    any client: each message says which.

    Parameters
    ----------
    node_config
        The node's configuration: ``shared``, ``clients``, or ``partition-id`` and ``num-partitions``.
    num_clients
        Number of clients K of the federation.

    Returns
    -------
    Client ids, sorted; possibly none if there are more nodes than clients.

    Raises
    ------
    ValueError
        If neither is given, or a client is not in 0…K−1.
    """
    if node_config.get("shared"):
        return tuple(range(num_clients))
    if "clients" in node_config:
        return _listed(str(node_config["clients"]), num_clients)
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise ValueError(
            "node_config must have 'clients', or 'partition-id' and 'num-partitions', "
            f"got keys {sorted(node_config)}"
        )
    node, num_nodes = int(str(node_config["partition-id"])), int(str(node_config["num-partitions"]))
    if not 0 <= node < num_nodes:
        raise ValueError(f"partition-id must be in 0..{num_nodes - 1}, got {node}")
    return tuple(range(node, num_clients, num_nodes))


def _listed(text: str, num_clients: int) -> tuple[int, ...]:
    clients = listed_clients(text)
    if outside := [client for client in clients if client >= num_clients]:
        raise ValueError(f"clients must be in 0..{num_clients - 1}, got {outside}")
    return clients


def listed_clients(text: str) -> tuple[int, ...]:
    """Read a list of clients such as ``"0,4-6"``.

    Returns
    -------
    Client ids, sorted.

    Raises
    ------
    ValueError
        If the text is not of this form.
    """
    clients: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ValueError(f"clients must be ids and ranges such as '0,4-6', got {text!r}")
        clients.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(clients))


def longest_first(steps: Mapping[int, int], nodes: Sequence[int]) -> dict[int, int]:
    """Divide clients among equally fast nodes, so that the nodes finish at about the same time.

    The longest client goes first, each to the node with the fewest steps so far. The last node finishes
    after at most 4/3 - 1/(3m) times the shortest time that m nodes allow (R. L. Graham, "Bounds on
    multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969).

    Parameters
    ----------
    steps
        Steps of each client, >= 0, by client id.
    nodes
        Ids of the nodes.

    Returns
    -------
    The node of each client; of equal clients the lowest id goes first, of equal nodes the first is taken.

    Raises
    ------
    ValueError
        If there is no node.
    """
    if not nodes:
        raise ValueError("nodes must have at least one id, got none")
    loads = [(0, 0, position) for position in range(len(nodes))]  # steps, clients, place in `nodes`
    placed = {}
    for client in sorted(steps, key=lambda client: (-steps[client], client)):
        load, number, position = loads[0]
        heapq.heapreplace(loads, (load + steps[client], number + 1, position))
        placed[client] = nodes[position]
    return placed
