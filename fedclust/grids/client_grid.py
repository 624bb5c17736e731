"""A Flower grid whose nodes are clients.

Flower's grids address nodes, and a node may host many clients. :class:`ClientGrid` wraps any grid so that
strategies address clients: its node ids *are* client ids. All messages for the clients of one node are sent
as one, a record shared by many clients is sent once, and every client gets its own reply: a content, or an
error with the reason.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedclust.grids.bundle import is_bundle, pack, unpack
from fedclust.grids.claims import Host
from fedclust.grids.node_registry import FederationError, NodeRegistry, error_reason, one_line
from fedclust.grids.outages import Outages
from fedclust.grids.traffic import Meter, Traffic
from fedclust.grids.wrapped_grid import WrappedGrid

__all__ = ["ClientGrid", "CohortView", "FederationError"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Parcel:
    """One message to a node, and the messages to its clients that it contains, by their partition's ids."""

    message: Message
    by_place: dict[int, Message]


class ClientGrid(WrappedGrid):
    """Send messages to clients through a grid of nodes.

    Clients have ids 0…K−1 in the order in which they join: at the start those that are online, in the order
    of the partition, so that the ids are the partition's if all are; then those that :meth:`admit` adds.

    Parameters
    ----------
    grid
        Any Flower grid.
    wait
        How long :meth:`connect` waits for clients, in seconds.
    poll
        Time between checks, in seconds.
    say
        Called with a message whenever the number of online clients changes while waiting.
    min_clients
        How many clients must be online to start, >= 1; None for all of the partition.
    hosts
        Which node may host which client, see :func:`fedclust.grids.claims.read_hosts`; None for the
        rules of :mod:`fedclust.grids.claims`.
    outages
        How long to wait for clients that are lost later; not at all unless given.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        wait: float = 600.0,
        poll: float = 0.5,
        say: Callable[[str], None] = logger.info,
        min_clients: int | None = None,
        hosts: Mapping[int, str] | None = None,
        outages: Outages | None = None,
    ) -> None:
        super().__init__(grid)
        self._wait, self._poll, self._say = wait, poll, say
        self._min_clients = min_clients
        self._connected = False
        self._nodes = NodeRegistry(grid, wait, say, hosts, self._reader())
        self._places: list[int] = []  # of each client here, its id in the partition
        self._ids: dict[int, int] = {}  # and back
        self._refused: dict[int, int] = {}  # client of the partition that did not fit: its node then
        self._pushed: dict[str, _Parcel] = {}
        self._arrived: dict[str, Message] = {}
        self._meter = Meter()
        self._outages = outages or Outages()

    # -- Online clients -------------------------------------------------------------------------------------

    def _reader(self) -> Callable[[Message, Host], Host] | None:
        """Return what reads a node's reply about its clients; None for one of ids."""
        return None

    def connect(self, known: Sequence[Any] = ()) -> int:
        """Wait until enough clients are online.

        Parameters
        ----------
        known
            The :attr:`places` of a run that goes on: its clients keep their ids, and all others join later.

        Returns
        -------
        Number of clients K of the federation, so far.

        Raises
        ------
        FederationError
            If a node has an error, two nodes host the same client, nodes disagree on the number of clients
            or hold different data, or clients are missing after the time limit; the message lists them.
        """
        deadline = time.monotonic() + self._wait
        shown = -1
        while True:
            self._nodes.update()
            self._nodes.check()
            size, online = self._nodes.size, len(self._nodes.node_of)
            if size is not None and online >= self._needed(size):
                self._nodes.start()
                self._connected = True
                self.admit(known or sorted(self._nodes.node_of))
                return self.num_clients
            if online != shown:
                shown = online
                self._say(f"waiting for clients: {shown} of {size or 'an unknown number'} online")
            if time.monotonic() >= deadline:
                raise FederationError(
                    f"{self._fewest()} must be online within {self._wait:g} s, {self._nodes.missing()}"
                )
            time.sleep(self._poll)

    @property
    def num_clients(self) -> int:
        """Number of clients K that have joined, online or not; known after :meth:`connect`."""
        if not self._connected:
            raise FederationError("the number of clients is known once connect() has returned")
        return len(self._places)

    @property
    def places(self) -> tuple[Any, ...]:
        """Id in the partition of each client, shape (K,)."""
        return tuple(self._places)

    @property
    def traffic(self) -> Traffic:
        """Bytes sent and received so far; known after :meth:`connect`."""
        return self._meter.read(self.num_clients)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the online clients that have joined, sorted; wait where these are too few."""
        online, needed = self._online(), self._outages.needed(len(self._places))
        if len(online) < needed:
            self._outages.wait_for(range(len(self._places)), needed, self._online)
            online = self._online()
        return online

    get_nodes = Grid.get_nodes  # clients have no keys: those are the nodes'

    def _online(self) -> list[int]:
        self._nodes.update()
        return sorted(self._ids[place] for place in self._nodes.node_of if place in self._ids)

    def newcomers(self) -> list[int]:
        """List the online clients that have not joined, by their ids in the partition, sorted."""
        self._nodes.update()
        return sorted(
            place
            for place, node in self._nodes.node_of.items()
            if place not in self._ids and self._refused.get(place) != node
        )

    def admit(self, places: Sequence[int]) -> list[int]:
        """Let clients join.

        Parameters
        ----------
        places
            Their ids in the partition.

        Returns
        -------
        Their ids here, which they keep.
        """
        first = len(self._places)
        self._places += [int(place) for place in places]
        self._ids = {place: client for client, place in enumerate(self._places)}
        return list(range(first, len(self._places)))

    def refuse(self, place: int, reason: str) -> None:
        """Leave a client that does not fit out, until another node hosts it."""
        self._refused[place] = self._nodes.node_of.get(place, 0)
        self._say(f"client {place} of the partition does not join: {reason}")

    def withdraw(self, number: int) -> None:
        """Take the clients back that joined last, because they do not fit."""
        for place in self._places[len(self._places) - number :]:
            del self._ids[place]
        del self._places[len(self._places) - number :]

    def _needed(self, size: int) -> int:
        return size if self._min_clients is None else min(size, self._min_clients)

    def _fewest(self) -> str:
        return "all clients" if self._min_clients is None else f"{self._min_clients} clients (min_clients)"

    # -- Messages -------------------------------------------------------------------------------------------

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages to clients and wait for their replies.

        Returns
        -------
        One reply per message, sorted by client id. The reply of a client that is offline, fails, or does not
        reply within ``timeout`` seconds is an error. Where too few are left, those that are lost are asked
        again when they are back, see :class:`~fedclust.grids.outages.Outages`.
        """
        asked = list(messages)
        ask = partial(self._exchange, timeout=timeout)
        replies = self._outages.exchange(ask, asked, self._online, len(self._places))
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)

    def _exchange(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        parcels, replies = self._pack(messages)
        waiting = [parcel.message for parcel in parcels]
        answers = self._grid.send_and_receive(waiting, timeout=timeout) if waiting else ()
        by_message = {answer.metadata.reply_to_message_id: answer for answer in answers}
        for parcel in parcels:
            answer = by_message.get(parcel.message.metadata.message_id)
            if answer is None:
                replies += _fail(parcel, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, f"no reply within {timeout} s")
            else:
                replies += self._open(parcel, answer)
        return replies

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages to clients; return the ids to pull the replies by."""
        parcels, replies = self._pack(messages)
        ids = []
        for parcel, message_id in zip(
            parcels, self._grid.push_messages([p.message for p in parcels]), strict=True
        ):
            self._pushed[message_id] = parcel
            ids += [f"{message_id}/{message.metadata.dst_node_id}" for message in parcel.by_place.values()]
        for reply in replies:
            ids.append(f"offline-{id(reply)}/{reply.metadata.src_node_id}")
            self._arrived[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have arrived, each once."""
        wanted = list(message_ids)
        nodes_waited_for = {name.rpartition("/")[0] for name in wanted} & self._pushed.keys()
        for answer in self._grid.pull_messages(sorted(nodes_waited_for)):
            message_id = answer.metadata.reply_to_message_id
            for reply in self._open(self._pushed.pop(message_id), answer):
                self._arrived[f"{message_id}/{reply.metadata.src_node_id}"] = reply
        return [self._arrived.pop(name) for name in wanted if name in self._arrived]

    def _pack(self, messages: Iterable[Message]) -> tuple[list[_Parcel], list[Message]]:
        """Group messages into one parcel per node; messages to offline clients get an error at once."""
        messages = list(messages)
        replies: list[Message] = []
        if not messages:
            return [], replies
        self._nodes.update()
        node_of = self._nodes.divide({self._place(message) for message in messages})
        grouped: dict[tuple[int, str, str], dict[int, Message]] = {}
        for message in messages:
            client, kind = message.metadata.dst_node_id, message.metadata.message_type
            place = self._place(message)
            node = node_of.get(place)
            if node is None:
                replies.append(_error(message, ErrorCode.NODE_UNAVAILABLE, f"client {client} is offline"))
                continue
            by_place = grouped.setdefault((node, kind, message.metadata.group_id), {})
            if place in by_place:
                raise ValueError(f"a client gets one message of a kind at a time, client {client} got two")
            by_place[place] = message
        parcels = []
        for (node, kind, group), by_place in grouped.items():
            contents = {place: by_place[place].content for place in sorted(by_place)}
            content = pack(contents)
            self._meter.sent(content, self._by_client(contents))
            ttl = max(message.metadata.ttl for message in by_place.values())
            parcels.append(_Parcel(Message(content, node, kind, ttl=ttl, group_id=group), by_place))
        return parcels, replies

    def _place(self, message: Message) -> int:
        client = message.metadata.dst_node_id
        place: int = self._places[client] if 0 <= client < len(self._places) else -1
        return place

    def _open(self, parcel: _Parcel, answer: Message) -> list[Message]:
        """Split a node's answer into one reply per client."""
        if answer.has_error():
            return _fail(parcel, answer.error.code, error_reason(answer.error))
        if not is_bundle(answer.content):
            found = list(answer.content)[:20]
            return _fail(parcel, ErrorCode.UNKNOWN, f"the node's reply is not a bundle: {found}")
        try:
            contents, errors = unpack(answer.content)
        except ValueError as error:
            return _fail(parcel, ErrorCode.UNKNOWN, f"the node's reply cannot be read: {error}")
        contents = {place: contents[place] for place in parcel.by_place if place in contents}
        self._meter.received(answer.content, self._by_client(contents))
        replies = []
        for place, message in parcel.by_place.items():
            if place in contents:
                replies.append(Message(contents[place], reply_to=message))
            else:
                reason = errors.get(place, "the node's reply lacks this client")
                replies.append(_error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason))
        return replies

    def _by_client(self, contents: Mapping[int, RecordDict]) -> dict[int, RecordDict]:
        return {self._ids[place]: content for place, content in contents.items()}


class CohortView(WrappedGrid):
    """A client grid with only some of the clients, from which a cluster's strategy samples.

    Parameters
    ----------
    grid
        The grid of all clients.
    clients
        Ids of the clients in the view.
    """

    def __init__(self, grid: Grid, clients: Sequence[int]) -> None:
        super().__init__(grid)
        self._clients = [int(client) for client in clients]

    def get_node_ids(self) -> list[int]:
        """Return the ids of the clients in the view."""
        return list(self._clients)

    get_nodes = Grid.get_nodes


def _fail(parcel: _Parcel, code: int, reason: str) -> list[Message]:
    return [_error(message, code, reason) for message in parcel.by_place.values()]


def _error(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code, one_line(reason)), reply_to=message)
