"""Track which nodes are online and which clients they host; decide which node speaks for each client.

A node itself reports which clients it hosts, so any node could claim any client. The rules, for one run:

1. With a hosts file, a client belongs to the node that the file names by its registered name or its key.
2. Otherwise a client belongs to the node that hosts it when the run starts, or to the first one afterwards.
   Flower keeps a node's id as long as the node keeps its key, so a node that returns with its key is the same
   node.
3. While that node is away, another may stand in for it: one with the same name or, if neither has a name, one
   that hosts exactly the same clients. A name that was registered with a key at the SuperLink never equals a
   name that a node gives itself. When the first node is back, it has its clients again.
4. All other claims are refused and reported.
"""

import base64
import hashlib
import heapq
import re
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedclust.data.sites import check_name
from fedclust.messages.codec import BadReply
from fedclust.messages.description import QUERY_CLIENTS, Hosted, read_from_node
from fedclust.support.flower import is_lost
from fedclust.support.reasons import FederationError, one_line


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
        clients = listed_clients(str(node_config["clients"]))
        if outside := [client for client in clients if client >= num_clients]:
            raise ValueError(f"clients must be in 0..{num_clients - 1}, got {outside}")
        return clients
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise ValueError(
            "node_config must have 'clients', or 'partition-id' and 'num-partitions', "
            f"got keys {sorted(node_config)}"
        )
    node, num_nodes = int(str(node_config["partition-id"])), int(str(node_config["num-partitions"]))
    if not 0 <= node < num_nodes:
        raise ValueError(f"partition-id must be in 0..{num_nodes - 1}, got {node}")
    return tuple(range(node, num_clients, num_nodes))


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
        whole = first.isdecimal() and (not last or last.isdecimal())
        if not whole or int(last or first) < int(first):
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


T = TypeVar("T", int, str)
Answer = TypeVar("Answer")

_FINGERPRINT = "SHA256:"


class NotNow(FederationError):
    """Why a node is left out for now: it is asked again after a minute, by when its site may be as it was."""


_AGAIN = 60.0  # seconds


@dataclass(frozen=True)
class Host:
    """A node that is online, and what is known about it.

    Attributes
    ----------
    node
        Its Flower id.
    clients
        Ids of the clients that it claims to host.
    key
        Fingerprint of its public key, see :func:`key_fingerprint`; empty if unknown.
    registered
        The name under which its key was registered at the SuperLink; empty if there is none.
    declared
        The name that it gives itself (``--node-config "name='north'"``); empty if there is none.
    data
        Digest of the data that it holds, see :func:`fedclust.data.dataset.content_digest`, and after a space
        the fingerprint of the frozen encoder that embeds them, if there is one; empty if unknown.
    steps
        Local steps of a round for each client, if the node may train any client; otherwise empty.
    place
        Where it is, as its operator has registered it at the SuperLink; empty if unknown.
    size
        Number of clients of the partition that it knows of; None where it has names instead.
    """

    node: int
    clients: tuple[int, ...]
    key: str = ""
    registered: str = ""
    declared: str = ""
    data: str = ""
    steps: tuple[int, ...] = ()
    place: str = ""
    size: int | None = None

    @property
    def described(self) -> str:
        """The node's name with its key and place, as far as they are known."""
        known = ", ".join(each for each in (self.key and f"key {self.key}", self.place) if each)
        return f"{self.label} ({known})" if known else self.label

    @property
    def label(self) -> str:
        """The node's name in messages."""
        name = self.registered or self.declared
        return f"node {name!r}" if name else f"node {self.node}"

    def is_meant(self, wanted: str) -> bool:
        """Return whether an entry of a hosts file, a registered name or a key's fingerprint, is this node.

        A fingerprint is compared with keys only, because whoever registers a key chooses its name.
        """
        return wanted == (self.key if wanted.startswith(_FINGERPRINT) else self.registered) != ""

    def is_same(self, other: "Host") -> bool:
        """Return whether this is the same node as before: it has the same id or the same key."""
        return self.node == other.node or (self.key != "" and self.key == other.key)

    def stands_in_for(self, other: "Host") -> bool:
        """Return whether it may speak for another node's clients while that one is away; see rule 3."""
        if self.registered or other.registered:
            return self.registered == other.registered
        if self.declared or other.declared:
            return self.declared == other.declared
        return self.clients == other.clients


def owner_by_file(wanted: str) -> str:
    """Name the owner of a client or site by its entry in the hosts file; empty if it has none."""
    return f"{wanted!r} by the hosts file" if wanted else "no node of the hosts file"


def settle_claims(
    online: Sequence[Host], holders: Mapping[int, Host], given: Mapping[int, str] | None = None
) -> tuple[dict[int, Host], dict[int, int], list[str]]:
    """Find the node that speaks for each client, by the rules of this module.

    Parameters
    ----------
    online
        The nodes that are online, in the order in which they came.
    holders
        The node that each client belongs to so far.
    given
        The hosts file: the registered name or key fingerprint of each client's node; None without a file.

    Returns
    -------
    holders
        The same, with clients that nobody hosted before.
    node_of
        The id of the node that speaks for each client; without clients whose node is away.
    refused
        The refused claims, a line each, in the order of the nodes. A node that may stand in for one that is
        still online waits, and is not refused.
    """
    belonging, node_of = dict(holders), dict[int, int]()
    refused: dict[tuple[int, str], list[int]] = {}  # by the claiming host's position and the clients' owner
    claiming: dict[int, list[int]] = {}
    for place, host in enumerate(online):
        for client in host.clients:
            claiming.setdefault(client, []).append(place)
    for client, places in sorted(claiming.items()):
        wanted = given.get(client, "") if given is not None else ""
        entitled = [place for place in places if given is None or online[place].is_meant(wanted)]
        for place in set(places) - set(entitled):
            refused.setdefault((place, owner_by_file(wanted)), []).append(client)
        if not entitled:
            continue
        holder = belonging.setdefault(client, online[entitled[0]])
        own = [place for place in entitled if online[place].is_same(holder)]
        others = [place for place in entitled if place not in own]
        # Where the file names a key or name, any node that has it may speak.
        able = [place for place in others if given is not None or online[place].stands_in_for(holder)]
        if speaking := own or able:
            node_of[client] = online[speaking[0]].node
        for place in set(others) - set(able):
            refused.setdefault((place, holder.label), []).append(client)
    lines = [
        f"{online[place].label} claims clients {ranges(clients)}, which belong to {whose}: refused"
        for (place, whose), clients in sorted(refused.items(), key=lambda each: (each[0][0], each[1]))
    ]
    return belonging, node_of, lines


def key_fingerprint(public_key: bytes) -> str:
    """Compute the fingerprint of a public key as ``ssh-keygen -lf node.key.pub`` shows it.

    Parameters
    ----------
    public_key
        In PEM format, as Flower keeps it.

    Returns
    -------
    ``"SHA256:…"``; empty if the bytes are not a key.
    """
    try:
        key = serialization.load_pem_public_key(public_key)
        line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"{_FINGERPRINT}{base64.b64encode(digest).decode().rstrip('=')}"


def read_hosts(path: Path) -> dict[int, str]:
    """Read a hosts file: which clients each node may host.

    Parameters
    ----------
    path
        A TOML file with a line per node: its registered name or its key's fingerprint, and its clients as in
        a node's configuration, such as ``"site-a" = "0-9"``.

    Returns
    -------
    The name or fingerprint of each client's node.

    Raises
    ------
    ValueError
        If the file cannot be read or is not of this form, or names a client twice or none.
    """
    return _read_hosts(path, "client", "clients such as '0-9'", listed_clients)


def read_site_hosts(path: Path) -> dict[str, str]:
    """Read a hosts file for sites with their own data: which site each node may serve.

    Parameters
    ----------
    path
        A TOML file with a line per node: its registered name or its key's fingerprint, and its site, such as
        ``"site-a" = "north"``.

    Returns
    -------
    The name or fingerprint of each site's node.

    Raises
    ------
    ValueError
        If the file cannot be read or is not of this form, or names a site twice or none, or one that no node
        can have.
    """
    return _read_hosts(
        path, "site", "a site such as 'north'", lambda site: (check_name(site, "hosts: "),) if site else ()
    )


def _read_hosts(path: Path, kind: str, example: str, listed: Callable[[str], Sequence[T]]) -> dict[T, str]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ValueError(f"hosts must be a TOML file, got {path}: {error}") from error
    owners: dict[T, str] = {}
    for name, text in entries.items():
        hosted = listed(text) if isinstance(text, str) else ()
        if not hosted:
            raise ValueError(f"hosts must give each node {example}, got {text!r} for {name!r}")
        for each in hosted:
            if each in owners:
                whose = f"{owners[each]!r} and {name!r}"
                raise ValueError(f"hosts must name each {kind} once, {kind} {each} belongs to {whose}")
            owners[each] = name
    if not owners:
        raise ValueError(f"hosts must name at least one node, {path} names none")
    return owners


def ranges(clients: Iterable[int]) -> str:
    """Abbreviate client ids, such as ``"0-9, 12"``."""
    parts: list[list[int]] = []
    for client in sorted(clients):
        if parts and client == parts[-1][-1] + 1:
            parts[-1][1:] = [client]
        else:
            parts.append([client])
    return ", ".join("-".join(map(str, part)) for part in parts)


_RAY_LOST = re.compile(r"<class 'ray\.exceptions\.((Actor|Worker|Node)\w*Error)'>")
_WRAPPING = re.compile(r"^<class '[^']*'>:<'|'>$")
_PATIENCE = 30.0  # seconds


@dataclass(eq=False)
class NodeRegistry:
    """The nodes of a grid and their clients, by the clients' ids in the partition.

    Parameters
    ----------
    grid
        The grid of nodes.
    timeout
        Seconds that a node may take to report which clients it hosts, once the run has started.
    say
        Called with a line about each node or claim that is refused.
    hosts
        Which node may host which client, see :func:`read_hosts`; None for rules 2 to 4 of this module.
    read
        Adds a reply's content to its node; by default, the reply has client ids.
    owners
        Names and key fingerprints in the hosts file: no other node is asked anything. None without a file.
    without
        Whether the run may start without a node that is broken or differs from most, as `min_clients` allows.
    prepare
        Seconds that a node may take for that before the start, when it may have to read and embed its rows.

    Attributes
    ----------
    size
        Number of clients of the partition; None before a node has reported it.
    broken
        Why each node that is online is left out, by its id.
    node_of
        The node that speaks for each client that is online. Where any node may train any client, see
        :meth:`divide`.
    online
        The nodes that are online, by id, oldest first.
    """

    grid: Grid
    timeout: float
    say: Callable[[str], None]
    hosts: Mapping[int, str] | None = None
    read: Callable[[Message, Host], Host] | None = None
    owners: Collection[str] | None = None
    without: bool = False
    prepare: float = 0.0
    size: int | None = None
    broken: dict[int, str] = field(default_factory=dict)
    node_of: dict[int, int] = field(default_factory=dict)
    online: dict[int, Host] = field(default_factory=dict)
    _started: bool = False
    _holders: Mapping[int, Host] = field(default_factory=dict)
    _printed: set[str] = field(default_factory=set)
    _silent: int = 0  # nodes that did not answer, before the start
    _late: set[int] = field(default_factory=set)  # left out as they did not answer, after the start
    _not_now: dict[int, float] = field(default_factory=dict)  # since when, see :class:`NotNow`
    _data: str = ""  # the digest of the nodes' data
    # When a node was last not broken, or none was there.
    _sound: float = field(default_factory=time.monotonic)

    def update(self) -> None:
        """Ask new nodes for their clients, and remove nodes that have left.

        A node with an error is left out, after the start also one without an answer; the reason is printed.

        Raises
        ------
        FederationError
            Before :meth:`start`, if the run cannot do without such a node.
        """
        if self._started and getattr(self.grid, "shared", False):
            self.grid.grow()  # type: ignore[attr-defined]
        nodes, now = set(self.grid.get_node_ids()), time.monotonic()
        for node in [node for node, since in self._not_now.items() if now - since >= _AGAIN]:
            del self._not_now[node]
            self.online.pop(node, None)
        if nodes == self.online.keys():
            return
        self.online = {node: host for node, host in self.online.items() if node in nodes}
        self.broken = {node: why for node, why in self.broken.items() if node in nodes}
        new = {node: Host(node, ()) for node in sorted(nodes - self.online.keys())}
        for info in self.grid.get_nodes() if new else ():
            if info.node_id in new:
                key = key_fingerprint(info.public_key)
                new[info.node_id] = Host(info.node_id, (), key, info.name, place=one_line(info.location))
        for node, host in list(new.items()):
            if self.owners is not None and not any(map(host.is_meant, self.owners)):
                self.leave_out(new.pop(node), "the hosts file does not name it")
        questions = [Message(RecordDict(), node, QUERY_CLIENTS) for node in new]
        limit = self.timeout if self._started else max(self.timeout, self.prepare)
        replies = list(self.grid.send_and_receive(questions, timeout=limit)) if questions else []
        asked = {each.metadata.message_id: each.metadata.dst_node_id for each in questions}
        for reply in replies:
            # By the question: the SuperLink replies for a node under its own id.
            about = reply.metadata
            node = asked.get(about.reply_to_message_id, about.src_node_id)
            if node not in new:
                continue
            host = new.pop(node)
            if is_lost(reply):
                continue
            try:
                host = (self.read or self._read_ids)(reply, host)
                if self._data and host.data and host.data != self._data:
                    raise FederationError(
                        f"clients {ranges(host.clients)}: all nodes must hold the same data and partition, "
                        f"{_difference(host.data, self._data)}"
                    )
                self.online[host.node] = host
            except FederationError as error:
                if not (self._started or self.without):
                    raise FederationError(f"{host.described}: {error}") from error
                self.leave_out(host, str(error), again=isinstance(error, NotNow))
        self._silent = len(new)
        for host in new.values() if self._started else ():  # asking it again would stop everybody again
            self.leave_out(host, f"no answer within {self.timeout:g} s")
            self._late.add(host.node)
        self._settle()

    def leave_out(self, host: Host, reason: str, *, again: bool = False) -> None:
        """Keep a node without clients, so that it is not asked `again`, and print the reason."""
        if again:
            self._not_now[host.node] = time.monotonic()
        self.online[host.node] = replace(host, clients=(), data="", steps=())
        self.broken[host.node] = f"{host.described} is left out: {reason}"
        self.say_once(self.broken[host.node])

    def ask_again(self) -> None:
        """Ask the nodes again that did not answer in time; for a run that waits and that they cannot stop."""
        for node in self._late:
            self.online.pop(node, None)
        self._late.clear()

    def say_once(self, line: str) -> None:
        """Print a line, unless it has been printed."""
        if line not in self._printed:
            self._printed.add(line)
            self.say(line)

    def forget(self, node: int) -> None:
        """Ask a node anew when it is next looked for: it has started again, under the id that it had."""
        self.online.pop(node, None)

    def divide(self, clients: Collection[int]) -> Mapping[int, int]:
        """Find the node of each client of a message, for those that are online.

        Where any node may train any client, the clients are divided so that the nodes finish at about the
        same time, see :func:`longest_first`; otherwise each node has its own.
        """
        sharing = self._shared()
        if not sharing:
            return self.node_of
        steps = sharing[0].steps
        mine = {client: steps[client] for client in clients if client in self.node_of}
        return longest_first(mine, [host.node for host in sharing])

    def rehost(self, clients: Mapping[int, tuple[int, ...]]) -> None:
        """Set the clients of nodes that registered without ids."""
        for node, host in self.online.items():
            self.online[node] = replace(host, clients=clients.get(node, ()))
        self._settle()

    def check(self) -> None:
        """Check that no client is hosted twice.

        Raises
        ------
        FederationError
            If one is; the message names both nodes. Not with a hosts file, which decides between them.
        """
        hosting: dict[int, int] = {}
        alone = [host for host in self.online.values() if self.hosts is None and not host.steps]
        for node, client in ((host.node, client) for host in alone for client in host.clients):
            if hosting.setdefault(client, node) != node:
                raise FederationError(
                    f"client {client} must be hosted by one node, nodes {hosting[client]} and {node} claim it"
                )

    def start(self) -> None:
        """Bind clients to the nodes that now host them; from here on, a faulty node does not end the run.

        Raises
        ------
        FederationError
            If the nodes hold different data and the run may not start without those that differ from most, or
            none are most; the message names those that differ.
        """
        for host in [each for each in self.online.values() if each.size not in (None, self.size)]:
            self.leave_out(host, f"it has {host.size} clients, most nodes have {self.size}")
        # A node's hash goes through its clients: once per node, not once per client.
        serving = {*self._shared()} or {self.online[node] for node in set(self.node_of.values())}
        ranked = Counter(host.data for host in serving if host.data).most_common()
        self._data = ranked[0][0] if ranked else ""
        if len(ranked) > 1:
            undecided = ranked[1][1] == ranked[0][1]
            odd = [host for host in serving if host.data and (undecided or host.data != self._data)]
            for host in odd if self.without and not undecided else ():
                rule = "all nodes must hold the same dataset and partition"
                self.leave_out(host, f"{rule}, {_difference(host.data, self._data)}")
        if len(ranked) > 1 and (undecided or not self.without):
            encoders = {host.node: host.data.partition(" ")[2] for host in odd}
            named = "; ".join(
                sorted(
                    f"{host.label} (clients {ranges(host.clients)}{each and f', encoder {each}'})"
                    for host, each in zip(odd, encoders.values(), strict=True)
                )
            )
            raise FederationError(
                f"all nodes must hold the same dataset and partition, of {sum(n for _, n in ranked)} nodes "
                f"{'these differ' if undecided else 'these differ from the others'}: {named}"
            )
        self._started = True
        self._settle()

    def missing(self) -> str:
        """List the clients that are not online, for a message."""
        reasons = "".join(f"; {why}" for why in [*self.broken.values()][:5])
        if self.size is None:
            if self._silent:
                return f"{self._silent} nodes were, and did not answer" + reasons
            return "no node can take part" + reasons if reasons else "no node came online"
        missing = sorted(set(range(self.size)) - self.node_of.keys())
        return f"{len(missing)} of {self.size} are missing: {ranges(missing):.200}{reasons}"

    def hopeless(self) -> bool:
        """Return whether all nodes that are online are broken, and have been for half a minute.

        A grid that starts its nodes itself has no others; on a network, others may be on their way.
        """
        if not self.online or self.online.keys() - self.broken.keys():
            self._sound = time.monotonic()
            return False
        return getattr(self.grid, "complete", False) or time.monotonic() - self._sound > _PATIENCE

    def _read_ids(self, reply: Message, host: Host) -> Host:
        """Read which clients a node hosts."""
        hosted = read_answer(Hosted, reply)
        # Before the start, a node that overstates must not exclude those that come after it.
        if self.size not in (None, hosted.num_clients) and (self._started or not self.without):
            raise FederationError(
                "all nodes must have the same number of clients, "
                f"one has {self.size} and another {hosted.num_clients}"
            )
        self.size = self.size or hosted.num_clients
        everyone = hosted.clients == tuple(range(hosted.num_clients))
        # Only a grid that starts its nodes itself may share clients: else a node would get others' clients.
        steps = hosted.steps if everyone and getattr(self.grid, "shared", False) else ()
        known = replace(host, clients=hosted.clients, declared=hosted.name, data=hosted.data)
        return replace(known, steps=steps, size=hosted.num_clients)

    def _shared(self) -> list[Host]:
        return [host for host in self.online.values() if host.steps and host.clients]

    def _settle(self) -> None:
        # A node that reconnects has a new id while the old one still counts as online. The old one keeps its
        # clients until it is gone; then they move to the new one.
        sizes = Counter(host.size for host in self.online.values() if host.clients and host.size)
        if sizes and not self._started:
            self.size = sizes.most_common(1)[0][0]
        if sharing := self._shared():
            self.node_of = dict.fromkeys(sharing[0].clients, sharing[0].node)
            return
        agreeing = [host for host in self.online.values() if host.size in (None, self.size)]
        holders, self.node_of, refused = settle_claims(agreeing, self._holders, self.hosts)
        if self._started:
            self._holders = holders  # before the start, no node has served a client
        for line in refused if self._started or self.hosts is not None else ():
            self.say_once(line)


def _difference(data: str, others: str) -> str:
    """Describe how a node's data differ from others', see :attr:`Host.data`."""
    encoder, wanted = (each.partition(" ")[2] or "none" for each in (data, others))
    return f"its encoder is {encoder}, not {wanted}" if encoder != wanted else "its data differ"


def read_answer(kind: type[Answer], reply: Message) -> Answer:
    """Read a node's report about itself.

    Raises
    ------
    FederationError
        If the reply is an error, or cannot be used.
    """
    if reply.has_error():
        raise FederationError(f"cannot serve its clients: {error_reason(reply.error)}")
    try:
        return read_from_node(kind, reply.content)
    except BadReply as error:
        raise FederationError(str(error)) from error


def error_reason(error: Error) -> str:
    """Return the app's own message: Flower adds the error's class, and its simulation Ray's traceback."""
    reason = error.reason or "the node failed without a reason"
    if lost := _RAY_LOST.match(reason):
        return f"the node died ({lost[1]}); Flower's simulation does not replace it, engine=ray does"
    return one_line(_WRAPPING.sub("", reason.rpartition("ClientAppException occurred. Message: ")[2]))
