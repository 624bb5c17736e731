"""The clients that a node hosts."""

from collections.abc import Mapping

__all__ = ["hosted_clients", "listed_clients"]


def hosted_clients(node_config: Mapping[str, object], num_clients: int) -> tuple[int, ...]:
    """List the clients that a node hosts.

    A node of Flower's simulation or of ``flower-supernode --node-config "partition-id=0 num-partitions=3"``
    hosts every third client; ``--node-config "clients='0,4-6'"`` names them.

    Parameters
    ----------
    node_config
        The node's configuration: ``clients``, or ``partition-id`` and ``num-partitions``.
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
