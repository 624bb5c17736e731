"""Which nodes are online, and which of them speaks for which client."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedclust import records
from fedclust.grids.claims import Claims, Host, key_fingerprint, ranges
from fedclust.grids.hosting import longest_first

__all__ = ["NODE_LOST", "FederationError", "NodeRegistry", "error_reason", "one_line"]

_LONGEST = 900  # characters of a reason
_RAY_LOST = re.compile(r"<class 'ray\.exceptions\.((Actor|Worker|Node)\w*Error)'>")
NODE_LOST = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED)


class FederationError(RuntimeError):
    """The federation cannot start: a node has an error, or clients are missing or hosted twice."""


class NodeRegistry:
    """The nodes of a grid and their clients, by the clients' ids in the partition.

    Parameters
    ----------
    grid
        The grid of nodes.
    timeout
        How long a node may take to say which clients it hosts, in seconds.
    say
        Called with a line about each node or claim that is left out.
    hosts
        Which node may host which client, see :func:`fedclust.grids.claims.read_hosts`; None for the
        rules of :mod:`fedclust.grids.claims`.

    read
        Adds to a node what its reply says; a reply of ids unless given.

    Attributes
    ----------
    size
        Number of clients of the partition; None before a node has said it.
    node_of
        By client, the node that speaks for it; only those that are online. Where any node may train any
        client, see :meth:`divide`.
    """

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        say: Callable[[str], None],
        hosts: Mapping[int, str] | None = None,
        read: Callable[[Message, Host], Host] | None = None,
    ) -> None:
        self.size: int | None = None
        self.node_of: dict[int, int] = {}
        self._grid, self._timeout, self._say = grid, timeout, say
        self._read = read or self._read_ids
        # Only a grid that starts its nodes itself may say so: elsewhere a node would get others' clients.
        self._sharing = bool(getattr(grid, "shared", False))
        self._started = False
        self._online: dict[int, Host] = {}  # what each node said of itself, oldest node first
        self._claims = Claims(given=hosts)
        self._said: set[str] = set()
        self._data = ""  # the digest of the nodes' data

    def update(self) -> None:
        """Ask new nodes for their clients, and remove nodes that have left.

        Raises
        ------
        FederationError
            Before :meth:`start`, if a node has an error or disagrees with another on the number of clients;
            afterwards such a node is left out, and its reason is said.
        """
        if self._sharing and self._started:
            self._grid.grow()  # type: ignore[attr-defined]
        nodes = set(self._grid.get_node_ids())
        if nodes == self._online.keys():
            return
        self._online = {node: host for node, host in self._online.items() if node in nodes}
        questions = [
            Message(RecordDict(), dst_node_id=node, message_type=records.QUERY_CLIENTS)
            for node in sorted(nodes - self._online.keys())
        ]
        known = {info.node_id: info for info in self._grid.get_nodes()} if questions else {}
        for reply in self._grid.send_and_receive(questions, timeout=self._timeout) if questions else ():
            if reply.has_error() and reply.error.code in NODE_LOST:
                continue
            node = reply.metadata.src_node_id
            host = _host(node, known.get(node))
            try:
                host = self._read(reply, host)
                if self._data and host.data and host.data != self._data:
                    raise FederationError(
                        f"clients {ranges(host.clients)}: all nodes must hold the same data and partition, "
                        "its data is another"
                    )
                self._online[node] = host
            except FederationError as error:
                if not self._started:
                    raise
                # The run continues without the faulty node.
                self._online[node] = replace(host, clients=())
                self._say(f"{host.label} is left out: {error}")
        self._settle()

    def divide(self, clients: Collection[int]) -> Mapping[int, int]:
        """Find the node of each client of a message, for those that are online.

        Where any node may train any client, the clients are divided so that the nodes finish at about the
        same time, see :func:`fedclust.grids.hosting.longest_first`; else each node has its own.
        """
        sharing = self._shared()
        if not sharing:
            return self.node_of
        steps = sharing[0].steps
        mine = {client: steps[client] for client in clients if client in self.node_of}
        return longest_first(mine, [host.node for host in sharing])

    @property
    def online(self) -> Mapping[int, Host]:
        """The nodes that are online, oldest first."""
        return self._online

    def rehost(self, clients: Mapping[int, tuple[int, ...]]) -> None:
        """Set the clients of nodes that had none to name yet."""
        self._online = {
            node: replace(host, clients=clients.get(node, ())) for node, host in self._online.items()
        }
        self._settle()

    def check(self) -> None:
        """Check that no client is hosted twice.

        Raises
        ------
        FederationError
            If one is, with both nodes. With a file of hosts it says which of them counts.
        """
        hosting: dict[int, int] = {}
        for node, host in self._online.items() if self._claims.given is None else ():
            if host.steps:
                continue
            for client in host.clients:
                if hosting.setdefault(client, node) != node:
                    raise FederationError(
                        f"client {client} must be hosted by one node, "
                        f"nodes {hosting[client]} and {node} claim it"
                    )

    def start(self) -> None:
        """Bind clients to the nodes that host them now; from now on, a faulty node does not end the run.

        Raises
        ------
        FederationError
            If the nodes hold different data; the message names those that differ from most.
        """
        serving = {*self._shared()} or {self._online[node] for node in self.node_of.values()}
        digests = Counter(host.data for host in serving if host.data)
        if digests:
            (self._data, most), *others = digests.most_common()
            undecided = bool(others) and others[0][1] == most
            odd = [host for host in serving if host.data and (undecided or host.data != self._data)]
            if odd and others:
                named = "; ".join(sorted(f"{host.label} (clients {ranges(host.clients)})" for host in odd))
                raise FederationError(
                    f"all nodes must hold the same dataset and partition, of {digests.total()} nodes "
                    f"{'these differ' if undecided else 'the data of these is another'}: {named}"
                )
        self._started = True
        self._settle()

    def missing(self) -> str:
        """List the clients that are not online, for a message."""
        if self.size is None:
            return "no node came online"
        missing = sorted(set(range(self.size)) - self.node_of.keys())
        shown = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
        return f"{len(missing)} of {self.size} are missing: {shown}"

    def _read_ids(self, reply: Message, host: Host) -> Host:
        """Read which clients a node hosts."""
        if reply.has_error():
            raise FederationError(f"a node cannot serve its clients: {error_reason(reply.error)}")
        try:
            told = records.read_hosted(reply.content)
        except records.BadReply as error:
            raise FederationError(str(error)) from error
        if self.size not in (None, told.num_clients):
            raise FederationError(
                "all nodes must have the same number of clients, "
                f"one has {self.size} and another {told.num_clients}"
            )
        self.size = told.num_clients
        everyone = told.clients == tuple(range(told.num_clients))
        steps = told.steps if self._sharing and everyone else ()
        return replace(host, clients=told.clients, declared=told.name, data=told.data, steps=steps)

    def _shared(self) -> list[Host]:
        return [host for host in self._online.values() if host.steps and host.clients]

    def _settle(self) -> None:
        # A node that reconnects has a new id while the old one still counts as online. The old one keeps its
        # clients until it is gone; then they move to the new one.
        if sharing := self._shared():
            self.node_of = dict.fromkeys(sharing[0].clients, sharing[0].node)
            return
        claims, self.node_of, refused = self._claims.settle(list(self._online.values()))
        if self._started:
            self._claims = claims  # before, nobody has served anybody
        for each in refused if self._started or self._claims.given is not None else ():
            if each.reason not in self._said:
                self._said.add(each.reason)
                self._say(each.reason)


def _host(node: int, info: NodeInfo | None) -> Host:
    """Note what Flower knows of a node."""
    if info is None:
        return Host(node, ())
    return Host(node, (), key_fingerprint(info.public_key), info.name)


def one_line(reason: str) -> str:
    """Make what a node says one line, of what can be printed, and not long."""
    line = " ".join(reason[: 4 * _LONGEST].split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


def error_reason(error: Error) -> str:
    """Return the app's own message; in Flower's simulation it is the end of Ray's traceback."""
    reason = error.reason or "the node failed without a reason"
    if lost := _RAY_LOST.match(reason):
        return f"the node died ({lost[1]}); Flower's simulation does not replace it, engine=ray does"
    return one_line(reason.rpartition("ClientAppException occurred. Message: ")[2].removesuffix("'>"))
