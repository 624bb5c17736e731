"""A Flower grid whose nodes are clients.

Flower's grids address nodes, and a node may host many clients. :class:`ClientGrid` wraps any grid so that
strategies address clients: its node ids *are* client ids. All messages for the clients of one node are sent
as one, a record shared by many clients is sent once, and every client gets its own reply: a content, or an
error with the reason. Where too few clients are left to go on, it waits for those that were lost: a message
that is sent again is the same, and every draw of a run derives from its seed, so a run that has waited ends
like one in which nobody was away.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedclust.grids.bundle import Meter, Traffic, content_bytes, is_bundle, pack, unpack
from fedclust.grids.nodes import NODE_LOST, FederationError, Host, NodeRegistry, error_reason, one_line
from fedclust.settings.run_options import MIN_REPLIES

__all__ = ["ClientGrid", "CohortView", "FederationError", "Outages", "WrappedGrid"]


class WrappedGrid(Grid):
    """A grid that forwards all calls to another grid, for subclasses to change."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Set the run of the wrapped grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run of the wrapped grid."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message; deprecated in Flower in favour of ``Message(...)``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def __getattr__(self, name: str) -> Any:
        """Look up what only some grids have, such as ``shared`` and ``grow`` of Ray's."""
        if name == "_grid":
            raise AttributeError(name)
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what is known of the nodes, such as their keys and registered names."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return the ids to pull the replies by."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


logger = logging.getLogger(__name__)

_OF_A_ROUND = (MessageType.TRAIN, MessageType.EVALUATE)
_SETTLE = 30.0  # seconds; once enough clients are back, how long nobody else must have come back
_TRIES = 5  # questions in a row to clients that are online, and yet lost: the question may kill their nodes


@dataclass(frozen=True)
class Outages:
    """How long to wait for clients, and for how many.

    Attributes
    ----------
    seconds
        How long after a reply was lost, >= 0; 0 to never wait.
    share
        Least share of the clients asked that must answer, in [0, 1]; with 0 there is nothing to wait for.
    poll
        Time between checks, in seconds.
    say
        Called with a message whenever the number of online clients changes while waiting.
    settle
        Once enough clients are back, for how many seconds nobody else must have come back.
    """

    seconds: float = 0.0
    share: float = MIN_REPLIES
    poll: float = 2.0
    say: Callable[[str], None] = logger.info
    settle: float = _SETTLE

    def needed(self, clients: int) -> int:
        """Return how many of so many clients must answer."""
        return max(1, math.ceil(self.share * clients)) if self.seconds and self.share and clients else 0

    def exchange(
        self,
        ask: Callable[[Sequence[Message]], list[Message]],
        messages: Sequence[Message],
        online: Callable[[], Collection[int]],
        num_clients: int,
    ) -> list[Message]:
        """Ask clients; until enough have answered, ask those that were lost again when they are back.

        A client that refuses or raises is not asked again. A question to half of the clients or fewer, other
        than to train or to evaluate, is asked once: the run can do without its answer.

        Parameters
        ----------
        ask
            Sends messages and returns a reply to each, an error where it was lost.
        messages
            The messages, at most one per client.
        online
            Returns the ids of the clients that are online.
        num_clients
            Number of clients K of the federation.

        Returns
        -------
        The last reply to each message.
        """
        replies = ask(messages)
        counts = 2 * len(messages) > num_clients or any(
            each.metadata.message_type in _OF_A_ROUND for each in messages
        )
        needed = self.needed(len(messages)) if counts else 0
        deadline, tries = time.monotonic() + self.seconds, _TRIES
        while lost := {each.metadata.src_node_id for each in replies if is_lost(each)}:
            missing = needed - sum(not each.has_error() for each in replies)
            if not 0 < missing <= len(lost) or not tries:
                break
            tries = tries - 1 if lost <= set(online()) else _TRIES
            if not self.wait_for(lost, missing, online, deadline):
                break
            again = ask([each for each in messages if each.metadata.dst_node_id in lost])
            replies = [each for each in replies if each.metadata.src_node_id not in lost] + again
        return replies

    def wait_for(
        self,
        clients: Collection[int],
        number: int,
        online: Callable[[], Collection[int]],
        deadline: float | None = None,
    ) -> bool:
        """Wait until clients are online.

        Parameters
        ----------
        clients
            Their ids.
        number
            How many of them are enough: once they are online, the others have `settle` seconds.
        online
            Returns the ids of the clients that are online.
        deadline
            When to give up, on the monotonic clock; after `seconds` unless given.

        Returns
        -------
        Whether that many are online.
        """
        deadline = time.monotonic() + self.seconds if deadline is None else deadline
        shown = -1
        changed = time.monotonic()
        while (here := len(set(clients) & set(online()))) < len(clients):
            now = time.monotonic()
            if here != shown:
                shown, changed = here, now
                self.say(
                    f"waiting for clients: {here} of {len(clients)} online, {number} must answer "
                    f"(min_replies={self.share:g}), for {max(0, deadline - now) / 60:.0f} minutes at most"
                )
            if now >= deadline or (here >= number and now - changed >= self.settle):
                return here >= number
            time.sleep(min(self.poll, max(0.0, deadline - now)))
        return True


def is_lost(reply: Message) -> bool:
    """Return whether a reply is lost with its node, and so may be had later."""
    return reply.has_error() and reply.error.code in NODE_LOST


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Parcel:
    """One message to a node, and the messages to its clients that it contains, by their partition's ids."""

    message: Message
    by_place: dict[int, Message]
    most_bytes: int


# Of a node's reply, before it is looked into: so many times what it was sent, as a mean may be in float64 and
# a client sends a model of its own; and so many bytes for each client, for what is no model.
_TIMES_SENT, _BYTES_PER_CLIENT = 16, 2**28


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
        Which node may host which client, see :func:`fedclust.grids.nodes.read_hosts`; None for the
        rules of :mod:`fedclust.grids.nodes`.
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
        again when they are back, see :class:`~fedclust.grids.client_grid.Outages`.
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
            sent = self._meter.sent(content, self._by_client(contents))
            most = len(by_place) * (_TIMES_SENT * sent + _BYTES_PER_CLIENT)
            ttl = max(message.metadata.ttl for message in by_place.values())
            parcels.append(_Parcel(Message(content, node, kind, ttl=ttl, group_id=group), by_place, most))
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
        sizes: dict[int, int] = {}
        if (size := content_bytes(answer.content, sizes)) > parcel.most_bytes:
            reason = f"the node's reply must have at most {parcel.most_bytes} bytes, it has {size}"
            return _fail(parcel, ErrorCode.UNKNOWN, reason)
        try:
            contents, errors = unpack(answer.content, len(parcel.by_place))
        except ValueError as error:
            return _fail(parcel, ErrorCode.UNKNOWN, f"the node's reply cannot be read: {error}")
        contents = {place: contents[place] for place in parcel.by_place if place in contents}
        self._meter.received(answer.content, self._by_client(contents), sizes)
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
        self.num_clients = None  # it is no federation, whatever the grid of all says

    def get_node_ids(self) -> list[int]:
        """Return the ids of the clients in the view."""
        return list(self._clients)

    get_nodes = Grid.get_nodes


def _fail(parcel: _Parcel, code: int, reason: str) -> list[Message]:
    return [_error(message, code, reason) for message in parcel.by_place.values()]


def _error(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code, one_line(reason)), reply_to=message)
