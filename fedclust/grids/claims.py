"""Which node speaks for which client.

A node says itself which clients it hosts, so any node could speak for any client. The rules, for one run:

1. With a file of hosts, a client belongs to the node that the file names by its registered name or its key.
2. Otherwise a client belongs to the node that hosts it when the run starts, or the first one afterwards.
   Flower keeps a node's id for as long as it keeps its key, so a node that returns with its key is the same.
3. While that node is away, another may stand in for it: one that is known by the same name, or, where neither
   has a name, one that hosts exactly the same clients. A name under which a key was registered at the
   SuperLink and one that a node gives itself are never the same. When the first node is back, it has its
   clients again.
4. All other claims are refused and named.
"""

import base64
import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fedclust.grids.hosting import listed_clients

__all__ = ["Claims", "Host", "Refused", "key_fingerprint", "ranges", "read_hosts"]

_FINGERPRINT = "SHA256:"


@dataclass(frozen=True)
class Host:
    """A node that is online, and what is known of it.

    Attributes
    ----------
    node
        Its id in Flower.
    clients
        Ids of the clients that it says it hosts.
    key
        Fingerprint of its public key, see :func:`key_fingerprint`; empty if unknown.
    registered
        The name under which its key was registered at the SuperLink; empty if there is none.
    declared
        The name that it gives itself (``--node-config "name='north'"``); empty if there is none.
    data
        Digest of the data that it holds, see :func:`fedclust.data.alike.content_digest`; empty if unknown.
    steps
        Of each client, the local steps of a round, if the node may train any client; empty for all others.
    """

    node: int
    clients: tuple[int, ...]
    key: str = ""
    registered: str = ""
    declared: str = ""
    data: str = ""
    steps: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """How messages name it."""
        name = self.registered or self.declared
        return f"node {name!r}" if name else f"node {self.node}"

    def is_meant(self, wanted: str) -> bool:
        """Return whether a file of hosts means this node, by a registered name or a key's fingerprint.

        A fingerprint is compared with keys only: whoever may register a key may choose its name.
        """
        return wanted == (self.key if wanted.startswith(_FINGERPRINT) else self.registered) != ""

    def is_same(self, other: "Host") -> bool:
        """Return whether this is a node that was there before: it has the same id or the same key."""
        return self.node == other.node or (self.key != "" and self.key == other.key)

    def stands_in_for(self, other: "Host") -> bool:
        """Return whether it may speak for another node's clients while that one is away; see rule 3."""
        if self.registered or other.registered:
            return self.registered == other.registered
        if self.declared or other.declared:
            return self.declared == other.declared
        return self.clients == other.clients


@dataclass(frozen=True)
class Refused:
    """A claim that is refused.

    Attributes
    ----------
    host
        The node that claims.
    clients
        The clients that it does not get.
    holder
        Whom they belong to, in words.
    """

    host: Host
    clients: tuple[int, ...]
    holder: str

    @property
    def reason(self) -> str:
        """The reason in one line."""
        claimed, whose = ranges(self.clients), self.holder
        return f"{self.host.label} claims clients {claimed}, which belong to {whose}: refused"


@dataclass(frozen=True)
class Claims:
    """Whom each client belongs to.

    Attributes
    ----------
    holders
        By client, the node that it belongs to.
    given
        The file of hosts: by client, the registered name or key fingerprint of its node; None without one.
    """

    holders: Mapping[int, Host] = field(default_factory=dict)
    given: Mapping[int, str] | None = None

    def settle(self, online: Sequence[Host]) -> tuple["Claims", dict[int, int], list[Refused]]:
        """Find the node that speaks for each client.

        Parameters
        ----------
        online
            The nodes that are online, in the order in which they came.

        Returns
        -------
        claims
            With the clients that nobody hosted before.
        node_of
            By client, the id of the node that speaks for it; none for those whose node is away.
        refused
            The claims that are refused, in the order of the nodes. A node that may stand in for one that is
            still online waits, and is not refused.
        """
        holders = dict(self.holders)
        node_of: dict[int, int] = {}
        refused: dict[tuple[int, str], list[int]] = {}
        by_client: dict[int, list[Host]] = {}
        for host in online:
            for client in host.clients:
                by_client.setdefault(client, []).append(host)
        for client, claiming in sorted(by_client.items()):
            entitled = claiming
            if self.given is not None:
                wanted = self.given.get(client, "")
                entitled = [host for host in claiming if host.is_meant(wanted)]
                whose = f"{wanted!r} by the file of hosts" if wanted else "no node of the file of hosts"
                for host in claiming:
                    if host not in entitled:
                        refused.setdefault((host.node, whose), []).append(client)
            if not entitled:
                continue
            holder = holders.setdefault(client, entitled[0])
            own = [host for host in entitled if host.is_same(holder)]
            others = [host for host in entitled if not host.is_same(holder)]
            # Where the file names a node's key or name, whoever has it is the one.
            able = others if self.given is not None else [h for h in others if h.stands_in_for(holder)]
            speaking = own or able
            if speaking:
                node_of[client] = speaking[0].node
            for host in others:
                if host not in able:
                    refused.setdefault((host.node, holder.label), []).append(client)
        nodes = {host.node: host for host in online}
        found = [Refused(nodes[node], tuple(clients), whose) for (node, whose), clients in refused.items()]
        order = list(nodes)
        return (
            Claims(holders, self.given),
            node_of,
            sorted(found, key=lambda each: (order.index(each.host.node), each.clients)),
        )


def key_fingerprint(public_key: bytes) -> str:
    """Compute the fingerprint of a public key as ``ssh-keygen -lf node.key.pub`` shows it.

    Parameters
    ----------
    public_key
        In PEM format, as Flower keeps it.

    Returns
    -------
    ``"SHA256:…"``; empty if the bytes hold no key.
    """
    try:
        key = serialization.load_pem_public_key(public_key)
        line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"{_FINGERPRINT}{base64.b64encode(digest).decode().rstrip('=')}"


def read_hosts(path: Path) -> dict[int, str]:
    """Read a file of hosts: which clients each node may host.

    Parameters
    ----------
    path
        A TOML file with a line per node: its registered name or its key's fingerprint, and its clients as in
        a node's configuration, such as ``"site-a" = "0-9"``.

    Returns
    -------
    By client, the name or fingerprint of its node.

    Raises
    ------
    ValueError
        If the file cannot be read or is not of this form, or names a client twice.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"hosts must be a TOML file, got {path}: {error}") from error
    found: dict[int, str] = {}
    for name, clients in entries.items():
        if not isinstance(clients, str):
            raise ValueError(f"hosts must give each node clients such as '0-9', got {clients!r} for {name!r}")
        for client in listed_clients(clients):
            if client in found:
                raise ValueError(
                    f"hosts must name each client once, client {client} is of {found[client]!r} and {name!r}"
                )
            found[client] = name
    if not found:
        raise ValueError(f"hosts must name at least one node, {path} names none")
    return found


def ranges(clients: Iterable[int]) -> str:
    """Write client ids in short, such as ``"0-9, 12"``."""
    parts: list[list[int]] = []
    for client in sorted(clients):
        if parts and client == parts[-1][-1] + 1:
            parts[-1][1:] = [client]
        else:
            parts.append([client])
    return ", ".join("-".join(map(str, part)) for part in parts)
