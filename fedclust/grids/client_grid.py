"""A Flower grid whose nodes are clients.

Flower's grids address nodes, and a node may host many clients. :class:`ClientGrid` wraps any grid so that
strategies address clients: its node ids *are* client ids. All messages for the clients of one node are sent
as one, a record shared by many clients is sent once, and every client gets its own reply: a content, or an
error with the reason. If too few clients are left to continue, it waits for those that were lost: a message
that is sent again is the same, and every draw of a run derives from its seed, so a run that has waited gives
the same results as one in which no client was away.

A *bundle* is a RecordDict with the contents that several clients receive or return. A record that many
clients share, such as their cluster's model, is stored once, and is one object again after unpacking: on both
sides, ``is`` shows which clients share a record.

The bytes of contents are counted in both directions, see :mod:`fedclust.messages.traffic`. Flower's
additions to a content (addresses, ids, a few bytes per record), errors of a whole node, and the grid's own
question about its clients are not counted.
"""

import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedclust.data.sites import UNKNOWING
from fedclust.grids.joined import joined, separated
from fedclust.grids.local_grid import BlockingGrid, DirectGrid
from fedclust.grids.nodes import NodeRegistry, error_reason
from fedclust.messages.codec import filled, record_bytes
from fedclust.messages.traffic import Meter, Traffic
from fedclust.settings.run_options import MIN_REPLIES
from fedclust.support.flower import ErrorCode, NodeInfo, Run, is_lost
from fedclust.support.reasons import FederationError, one_line

logger = logging.getLogger(__name__)

# -- Bundles ------------------------------------------------------------------------------------------------

_INDEX = "fedclust-bundle"
_ALL_ROWS = "all-rows"
_KEEPS = "keeps"
_RUN = re.compile(r"\w[\w-]{0,99}")
_OFFLINE = "client {} is offline"
_INDEX_PER_CLIENT = 2048  # characters; names of records are short


def is_bundle(content: RecordDict) -> bool:
    """Return whether the content is a bundle made by :func:`pack`."""
    return _INDEX in content


def wants_all_rows(content: RecordDict) -> bool:
    """Return whether a bundle says that rows held out to decide on are training rows in this run."""
    return is_bundle(content) and bool(content[_INDEX].get(_ALL_ROWS))


def keeps(content: RecordDict) -> tuple[str, ...]:
    """Return the runs of which a bundle's models are completed by what stays with clients.

    Raises
    ------
    ValueError
        If these are not one or two names.
    """
    names: Any = content[_INDEX].get(_KEEPS, ()) if is_bundle(content) else ()
    if len(names) > 2 or not all(isinstance(each, str) and _RUN.fullmatch(each) for each in names):
        raise ValueError(f"{_KEEPS} must be at most two names of strategies, got {str(names)[:80]}")
    return tuple(names)


def pack(
    contents: Mapping[int, RecordDict],
    errors: Mapping[int, str] | None = None,
    *,
    all_rows: bool = False,
    keeps: Sequence[str] = (),
) -> RecordDict:
    """Combine the contents of several clients into one.

    Parameters
    ----------
    contents
        The content of each client, by client id. Records that are the same object are stored once.
    errors
        Reason of each client without a content, by client id.
    all_rows
        Whether clients are to hold no rows out of training, see :func:`wants_all_rows`.
    keeps
        Names of the runs of which models are completed by what stays with clients.

    Returns
    -------
    One content, for :func:`unpack`.

    Raises
    ------
    ValueError
        If a client has both a content and an error.
    """
    errors = errors or {}
    if both := sorted(set(contents) & set(errors)):
        raise ValueError(f"a client must have either a content or an error, clients {both} have both")
    bundle: dict[str, Any] = {}
    names: dict[int, str] = {}
    numbers: dict[int, int] = {}
    index: dict[str, Any] = {"clients": list(contents), "layout": [], "layouts": []}
    for content in contents.values():
        if (number := numbers.get(id(content))) is None:
            number = numbers[id(content)] = len(numbers)
            layout = {}
            for key, record in content.items():
                if (name := names.get(id(record))) is None:
                    name = names[id(record)] = str(len(names))
                    bundle[name] = record
                layout[key] = name
            index["layouts"].append(layout)
        index["layout"].append(number)
    entries: dict[str, Any] = {"index": json.dumps(index, separators=(",", ":"))}
    if errors:  # apart from the index, so that its brackets can be counted before it is read
        entries |= {"failed": [*errors], "reasons": [one_line(reason) for reason in errors.values()]}
    if all_rows:
        entries[_ALL_ROWS] = True
    if keeps:
        entries[_KEEPS] = list(keeps)
    bundle[_INDEX] = filled(ConfigRecord, entries)
    return filled(RecordDict, bundle)


def unpack(bundle: RecordDict, asked: int | None = None) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """Separate a bundle into its clients' contents.

    Parameters
    ----------
    bundle
        The content.
    asked
        Most clients, and so most different contents, that it may have; any number unless given.

    Returns
    -------
    The content of each client, and the error of each client without one, by client id.

    Raises
    ------
    ValueError
        If the content was not made by :func:`pack`, or has more clients than were asked.
    """
    if not is_bundle(bundle):
        found = list(islice(bundle, 20))
        raise ValueError(f"content must be a bundle with a record {_INDEX!r}, got records {found}")
    try:
        # Not bundle.config_records, which builds a dictionary of every client's records.
        entries: Any = bundle[_INDEX]
        text, failed, reasons = entries["index"], entries.get("failed", ()), entries.get("reasons", ())
        if asked is not None:  # before anything is built of it
            if len(text) > (longest := _INDEX_PER_CLIENT * (asked + 1)):
                raise ValueError(f"it must have at most {longest} characters, got {len(text)}")
            if text.count("[") > 3 or max(text.count("{") - 1, len(failed)) > asked:
                raise ValueError(f"it must be lists of contents of at most {asked} clients")
        index: Any = json.loads(text)
        clients, layouts, errors = index["clients"], index["layout"], dict(zip(failed, reasons, strict=True))
        if len(set(failed)) < len(failed) or (asked is not None and len(clients) > asked):
            raise ValueError("each client must have one content or one error")
        shared = [
            filled(RecordDict, {key: bundle[name] for key, name in layout.items()})
            for layout in index["layouts"]
        ]
        if not {*map(type, clients), *map(type, layouts), *map(type, errors)} <= {int}:
            raise TypeError("clients and layouts must be whole numbers")
        if min(layouts, default=0) < 0 or len(set(clients)) < len(clients) or errors.keys() & set(clients):
            raise ValueError("each client must have one content or one error")
        if not all(isinstance(reason, str) for reason in errors.values()):
            raise TypeError("errors must be texts")
        contents = {client: shared[layout] for client, layout in zip(clients, layouts, strict=True)}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"content must be a bundle, its index does not fit: {error!r:.200}") from error
    return contents, errors


# -- Bytes --------------------------------------------------------------------------------------------------


def content_bytes(content: RecordDict, sizes: dict[int, int] | None = None) -> int:
    """Count the bytes of a content; see the module for the rules.

    Parameters
    ----------
    content
        The content.
    sizes
        Sizes of records already measured, by ``id``; new ones are added. Valid while all records exist.

    Returns
    -------
    Number of bytes.
    """
    sizes = {} if sizes is None else sizes
    total = 0
    for name, record in content.items():
        size = sizes.get(id(record))
        if size is None:
            size = sizes[id(record)] = record_bytes(record)
        total += len(name) + size
    return total


def _each_bytes(contents: Mapping[int, RecordDict], sizes: dict[int, int]) -> dict[int, int]:
    """Count the bytes of each client's content; clients of a cluster share theirs, or its records."""
    whole = {id(content): content_bytes(content, sizes) for content in contents.values()}
    return {client: whole[id(content)] for client, content in contents.items()}


def _entries(content: RecordDict, most: int) -> int:
    """Count the records of a content and their entries; of more records than `most`, the records alone."""
    number = len(content)
    return number + sum(map(len, content.values())) if number <= most else number


# -- Grids --------------------------------------------------------------------------------------------------


class WrappedGrid(BlockingGrid):
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

    def __getattr__(self, name: str) -> Any:
        """Look up an attribute that only some grids have, such as ``shared`` and ``grow`` of RayGrid."""
        if name == "_grid":
            raise AttributeError(name)
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what is known about the nodes, such as their keys and registered names."""
        return self._grid.get_nodes()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


_OF_A_ROUND = {MessageType.TRAIN, MessageType.EVALUATE}
SETTLE = 30.0
"""Once enough clients are back, seconds without another one before the run continues."""

_TRIES = 5  # consecutive attempts with clients that are online, yet lost: the question may kill their nodes


# Limits on a node's reply before it is read: a multiple of what it was sent, because means may be in float64
# and each client may send its own model; and bytes for each client, for everything that is not a model.
_TIMES_SENT, _BYTES_PER_CLIENT, _ENTRIES_PER_CLIENT, _ARRAYS_PER_CLIENT = 16, 2**28, 2**14, 2**8


class ClientGrid(WrappedGrid):
    """Send messages to clients through a grid of nodes.

    Clients have ids 0…K−1 in the order in which they join: first those online at the start, in the order of
    the partition, so that the ids are the partition's if all are online; then those that :meth:`admit` adds.

    Parameters
    ----------
    grid
        Any Flower grid.
    wait
        How long :meth:`connect` waits for clients, in seconds.
    prepare
        How long it then waits for the first answer of a node that is online, in seconds: a node reads its
        rows before it answers, and with a frozen encoder embeds them. No less than ``wait``.
    poll
        Time between checks, in seconds.
    say
        Called with a message whenever the number of online clients changes while waiting.
    min_clients
        Number of clients that must be online to start, >= 1; None for all of the partition.
    hosts
        Which node may host which client, see :func:`fedclust.grids.nodes.read_hosts`; None for the
        rules of :mod:`fedclust.grids.nodes`.
    max_outage
        Seconds to wait for lost clients after a reply was lost; 0 to never wait.
    min_replies
        Least share of the asked clients that must answer, in [0, 1]; 0 to never wait.

    Attributes
    ----------
    all_rows
        Whether clients are to hold no rows out of training; set before they describe theirs.
    keeps
        Names of the runs of which models are completed by what stays with clients.
    keeps_of
        The same of single clients, in place of these.
    simulated
        Whether all nodes run in processes of the user: the grid calls them itself, without a SuperLink.
    repeats
        How often a client was asked again in :meth:`send_and_receive`, by the message's type and its id. It
        may have done the work before, if only its reply was lost.
    """

    all_rows = False
    keeps: tuple[str, ...] = ()
    keeps_of: Mapping[int, tuple[str, ...]] = MappingProxyType({})

    @property
    def shares_clients(self) -> bool:
        """Whether any node may train any client."""
        return bool(getattr(self._grid, "shared", False))

    def __init__(
        self,
        grid: Grid,
        *,
        wait: float = 600.0,
        prepare: float = 0.0,
        poll: float = 0.5,
        say: Callable[[str], None] = logger.info,
        min_clients: int | None = None,
        hosts: Mapping[int, str] | None = None,
        max_outage: float = 0.0,
        min_replies: float = MIN_REPLIES,
    ) -> None:
        super().__init__(grid)
        self._wait, self._prepare, self._poll, self._say = wait, max(wait, prepare), poll, say
        self._min_clients = min_clients
        self._direct = getattr(grid, "complete", False)  # messages reach the nodes as they are
        self.simulated = isinstance(grid, DirectGrid)
        self._connected = False
        owners, without = None if hosts is None else {*hosts.values()}, min_clients is not None
        self._nodes = NodeRegistry(
            grid, wait, say, hosts, owners=owners, without=without, prepare=self._prepare
        )
        self._places: list[int] = []  # each client's id in the partition
        self._ids: dict[int, int] = {}  # the inverse of _places
        self._refused: dict[int, int] = {}  # clients of the partition that did not fit, with their nodes then
        self._meter = Meter()
        self.repeats = Counter[tuple[str, int]]()
        self._max_outage, self._min_replies = max_outage, min_replies

    # -- Online clients -------------------------------------------------------------------------------------

    def connect(self, known: Sequence[Any] = ()) -> int:
        """Wait until enough clients are online.

        Parameters
        ----------
        known
            The :attr:`places` of a run to resume: its clients keep their ids, and all others join later.

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
            fewest = size if self._min_clients is None else self._min_clients
            number = "all clients" if fewest == size else f"{fewest} clients (min_clients)"
            if size is not None and online >= min(size, fewest or 0):
                self._nodes.start()
                if len(self._nodes.node_of) < min(size, fewest or 0):
                    raise FederationError(f"{number} must be online, {self._nodes.missing()}")
                self._connected = True
                self.admit(known or sorted(self._nodes.node_of))
                return self.num_clients
            if online != shown:
                shown = online
                self._say(f"waiting for clients: {shown} of {size or 'an unknown number'} online")
            if time.monotonic() >= deadline or self._nodes.hopeless():
                raise FederationError(
                    f"{number} must be online within {self._wait:g} s, {self._nodes.missing()}"
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
        """Return the ids of the online clients that have joined, sorted; wait if they are too few."""
        needed = self._needed(len(self._places))
        if len(self._online()) < needed:
            self._wait_for(range(len(self._places)), needed, time.monotonic() + self._max_outage)
        return self._online()

    get_nodes = Grid.get_nodes  # clients have no keys, only nodes do

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
        """Admit clients.

        Parameters
        ----------
        places
            Their ids in the partition.

        Returns
        -------
        Their ids, which they keep.
        """
        first = len(self._places)
        self._places += [int(place) for place in places]
        self._ids = {place: client for client, place in enumerate(self._places)}
        return list(range(first, len(self._places)))

    def refuse(self, place: int, reason: str) -> None:
        """Leave out a client that does not fit, until another node hosts it."""
        self._refused[place] = self._nodes.node_of.get(place, 0)
        self._say(f"client {place} of the partition does not join: {reason}")

    def withdraw(self, number: int) -> None:
        """Remove the clients that joined last, because they do not fit."""
        del self._places[len(self._places) - number :]
        self.admit(())

    # -- Messages -------------------------------------------------------------------------------------------

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages to clients and wait for their replies.

        Returns
        -------
        One reply per message, sorted by client id. The reply of a client that is offline, fails, or does not
        reply within ``timeout`` seconds is an error.

        If too few have answered, the lost clients are asked again when they are back. A client that refuses
        or raises is not. A question to half of the clients or fewer, other than to train or to evaluate, is
        asked once: the run can do without its answers.
        """
        asked = list(messages)
        replies = self._exchange(asked, timeout)
        counts = 2 * len(asked) > len(self._places) or _OF_A_ROUND & {m.metadata.message_type for m in asked}
        needed = self._needed(len(asked)) if counts else 0
        deadline, tries = time.monotonic() + self._max_outage, _TRIES
        while lost := {each.metadata.src_node_id for each in replies if is_lost(each)}:
            missing = needed - sum(not each.has_error() for each in replies)
            if not 0 < missing <= len(lost) or not tries:
                break
            tries = tries - 1 if lost <= set(self._online()) else _TRIES
            if not self._wait_for(lost, missing, deadline):
                break
            unsent = {each.metadata.src_node_id for each in replies if _is_unsent(each)}
            repeated = [each for each in asked if each.metadata.dst_node_id in lost]
            self.repeats.update(
                (each.metadata.message_type, client)
                for each in repeated
                if (client := each.metadata.dst_node_id) not in unsent
            )
            again = self._exchange(repeated, timeout)
            replies = [each for each in replies if each.metadata.src_node_id not in lost] + again
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)

    def _needed(self, clients: int) -> int:
        """Return how many of a number of clients must answer."""
        share = self._min_replies if self._max_outage else 0
        return max(1, math.ceil(share * clients)) if share and clients else 0

    def _wait_for(self, clients: Collection[int], number: int, deadline: float) -> bool:
        """Wait until clients are online.

        Parameters
        ----------
        clients
            Their ids.
        number
            Number that is enough: once that many are online, the others have :data:`SETTLE` seconds.
        deadline
            When to give up, on the monotonic clock.

        Returns
        -------
        Whether enough are online.
        """
        shown, changed = -1, 0.0
        while (here := len(set(clients) & set(self._online()))) < len(clients):
            now = time.monotonic()
            if here != shown:
                shown, changed = here, now
                self._say(
                    f"waiting for clients: {here} of {len(clients)} online, {number} must answer "
                    f"(min_replies={self._min_replies:g}), for {max(0, deadline - now) / 60:.0f} "
                    "minutes at most"
                )
            if now >= deadline or (here >= number and now - changed >= SETTLE):
                return here >= number
            if here < number:
                self._nodes.ask_again()
            time.sleep(min(self._poll, max(0.0, deadline - now)))
        return True

    def _exchange(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        """Send one message per node, and split its answer; offline clients get an error at once."""
        replies: list[Message] = []
        parcels: list[tuple[Message, dict[int, Message], tuple[int, int]]] = []
        for (node, kind, group, keeps), by_place in self._by_node(messages, replies).items():
            contents = {place: by_place[place].content for place in sorted(by_place)}
            content = pack(contents, all_rows=self.all_rows, keeps=keeps)
            sizes: dict[int, int] = {}
            sent = content_bytes(content, sizes)
            self._meter.count("down", sent, _each_bytes(self._by_client(contents), sizes))
            arrays = sum(len(each) for each in content.values() if isinstance(each, ArrayRecord))
            content = content if self._direct else joined(content)
            limits = (
                len(by_place) * (_TIMES_SENT * sent + _BYTES_PER_CLIENT),
                len(by_place) * (_TIMES_SENT * arrays + _ARRAYS_PER_CLIENT),
            )
            ttl = max(message.metadata.ttl for message in by_place.values())
            parcels.append((Message(content, node, kind, ttl=ttl, group_id=group), by_place, limits))
        waiting = [parcel[0] for parcel in parcels]
        answers = {
            answer.metadata.reply_to_message_id: answer
            for answer in (self._grid.send_and_receive(waiting, timeout=timeout) if waiting else ())
        }
        for asked, by_place, limits in parcels:
            replies += self._open(answers.get(asked.metadata.message_id), by_place, limits, timeout)
        return replies

    def _by_node(
        self, messages: Sequence[Message], replies: list[Message]
    ) -> dict[tuple[int, str, str, tuple[str, ...]], dict[int, Message]]:
        """Group messages by node, kind, group and what completes their models.

        Each client that is offline gets an error in `replies`.
        """
        if messages:
            self._nodes.update()
        known = range(len(self._places))
        places = [self._places[c] if (c := each.metadata.dst_node_id) in known else -1 for each in messages]
        node_of = self._nodes.divide(set(places))
        grouped: dict[tuple[int, str, str, tuple[str, ...]], dict[int, Message]] = {}
        for place, message in zip(places, messages, strict=True):
            client, kind = message.metadata.dst_node_id, message.metadata.message_type
            if place not in node_of:
                error = Error(ErrorCode.NODE_UNAVAILABLE, _OFFLINE.format(client))
                replies.append(Message(error, reply_to=message))
                continue
            keeps = self.keeps_of.get(client, self.keeps)
            by_place = grouped.setdefault((node_of[place], kind, message.metadata.group_id, keeps), {})
            if place in by_place:
                raise ValueError(f"a client gets one message of a kind at a time, client {client} got two")
            by_place[place] = message
        return grouped

    def _open(
        self,
        answer: Message | None,
        asked: Mapping[int, Message],
        limits: tuple[int, int],
        timeout: float | None,
    ) -> list[Message]:
        """Split a node's answer, of so many bytes and joined arrays at most, into one reply per client."""
        most, most_joined = limits
        limit = max(most_joined, len(asked) * _ENTRIES_PER_CLIENT)
        contents: dict[int, RecordDict] = {}
        errors: dict[int, str] = {}
        sizes: dict[int, int] = {}
        code: int = ErrorCode.UNKNOWN
        if answer is None:
            code, reason = ErrorCode.REPLY_MESSAGE_UNAVAILABLE, f"no reply within {timeout} s"
        elif answer.has_error():
            code, reason = answer.error.code, error_reason(answer.error)
            if UNKNOWING in reason:
                self._nodes.forget(self._nodes.node_of[next(iter(asked))])
        elif (number := _entries(answer.content, limit)) > limit:
            reason = f"the node's reply must have at most {limit} records and entries, it has {number}"
        elif (size := content_bytes(answer.content, sizes)) > most:
            reason = f"the node's reply must have at most {most} bytes, it has {size}"
        else:
            try:
                content = separated(answer.content, most_joined)
                found, errors = unpack(content, len(asked))
                code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the node's reply lacks this client"
                contents = {place: found[place] for place in asked if place in found}
                own = _each_bytes(self._by_client(contents), sizes)
                self._meter.count("up", content_bytes(content, sizes), own)
            except ValueError as error:
                reason = f"the node's reply cannot be read: {error}"
        return [
            Message(contents[place], reply_to=message)
            if place in contents
            else Message(Error(code, one_line(errors.get(place, reason))), reply_to=message)
            for place, message in asked.items()
        ]

    def _by_client(self, contents: Mapping[int, RecordDict]) -> dict[int, RecordDict]:
        return {self._ids[place]: content for place, content in contents.items()}


def _is_unsent(reply: Message) -> bool:
    """Return whether a client's node was offline, so that it never got the message."""
    return reply.has_error() and reply.error.reason == _OFFLINE.format(reply.metadata.src_node_id)
