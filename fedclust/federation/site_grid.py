"""A client grid whose clients register by name, because every site holds its own data.

Nobody knows before the run how many clients there are. Nodes answer the question for their clients with
names; :class:`SiteGrid` waits until those that take part are there, sorts their names, and numbers them
0 … K−1 in this order. Whatever is above it sees ids only, as of any :class:`ClientGrid`.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedclust import records
from fedclust.federation.client_grid import ClientGrid, FederationError, error_reason, logger
from fedclust.records import BadReply, Registered

__all__ = ["Rules", "SiteGrid"]


@dataclass(frozen=True)
class Rules:
    """When the sites that are there start.

    Attributes
    ----------
    min_clients
        Fewest clients to start with.
    settle
        Where no names are expected: seconds without another client, after which they start.
    expected
        Names of the sites; they start as soon as all are there, refused or not, and no other takes part.
    """

    min_clients: int = 2
    settle: float = 20.0
    expected: Collection[str] | None = None

    def ready(self, clients: int, sites: Collection[str], quiet: float) -> bool:
        """Say whether to start: with so many clients, these sites, and no change for `quiet` seconds."""
        if self.expected is not None:
            return set(self.expected) <= set(sites)
        return clients >= self.min_clients and quiet >= self.settle


class SiteGrid(ClientGrid):
    """A :class:`ClientGrid` whose clients register by name.

    Parameters
    ----------
    grid, wait, poll, say
        As in :class:`ClientGrid`.
    rules
        When to start.
    """

    def __init__(
        self,
        grid: Grid,
        rules: Rules,
        *,
        wait: float = 600.0,
        poll: float = 0.5,
        say: Callable[[str], None] = logger.info,
    ) -> None:
        super().__init__(grid, wait=wait, poll=poll, say=say)
        self._rules = rules
        self._registered: dict[int, Registered] = {}  # node: its sites
        self._names: tuple[str, ...] = ()  # of the clients, in order of their ids, once these are known
        self._refused: dict[str, str] = {}  # site: the reason

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients in order of their ids, shape (K,); known after :meth:`connect`."""
        return self._names

    @property
    def refused(self) -> Mapping[str, str]:
        """Why each site that does not take part was refused, by its name."""
        return dict(self._refused)

    def connect(self) -> int:
        """Wait for the sites, and number their clients in order of their names.

        Returns
        -------
        Number of clients K of the federation.

        Raises
        ------
        FederationError
            If a node cannot say who it is, two nodes have the same name, or there are fewer than
            `min_clients` clients after the time limit.
        """
        if self._connected:
            return self.num_clients
        self._wait_for_sites()
        self._number(sorted(self._present()))
        self._connected = True
        return self.num_clients

    # -- Registration ---------------------------------------------------------------------------------------

    def _wait_for_sites(self) -> None:
        start = changed = time.monotonic()
        before: set[str] = set()
        while True:
            self._update_nodes()
            self._refuse_double_names()
            present = set(self._present())
            sites = {site for each in self._registered.values() for site in (*each.clients, *each.refused)}
            now = time.monotonic()
            if present | sites != before:
                before, changed = present | sites, now
                self._say(f"clients that are here: {', '.join(sorted(present)) or 'none'}")
            if self._rules.ready(len(present), sites, now - changed):
                break
            if now - start >= self._wait:
                missing = sorted(set(self._rules.expected or ()) - sites)
                if len(present) < self._rules.min_clients:
                    raise FederationError(self._too_few(present, missing))
                if missing:
                    self._say(
                        f"the run starts without {', '.join(missing)}: not here within {self._wait:g} s"
                    )
                break
            time.sleep(self._poll)
        if len(present) < self._rules.min_clients:
            raise FederationError(self._too_few(present, []))

    def _present(self) -> dict[str, int]:
        """Return the node of each client whose site may take part."""
        return {
            client: node
            for node, registered in self._registered.items()
            for site, clients in registered.clients.items()
            if site not in self._refused
            for client in clients
        }

    def _too_few(self, present: Collection[str], missing: Collection[str]) -> str:
        text = f"partition.min_clients must be there, {self._rules.min_clients}, got {len(present)}"
        if missing:
            text += f"; not here: {', '.join(missing)}"
        if self._refused:
            text += "; refused: " + "; ".join(f"{site}: {why}" for site, why in self._refused.items())
        return text

    def _hosted(self, reply: Message) -> tuple[int, ...]:
        """Remember the sites of a node; return the ids of its clients that have one."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            raise FederationError(f"node {node} cannot serve its clients: {error_reason(reply.error)}")
        try:
            registered = records.read_registered(reply.content)
        except BadReply as error:
            raise FederationError(f"node {node}: {error}") from error
        self._registered[node] = registered
        for site, reason in registered.refused.items():
            self.refuse(site, reason)
        for site in registered.clients:
            if self._rules.expected is not None and site not in self._rules.expected:
                self.refuse(site, f"partition.sites names {', '.join(sorted(self._rules.expected))}")
        return self._ids(registered) if self._names else ()

    def _ids(self, registered: Registered) -> tuple[int, ...]:
        number = {name: client for client, name in enumerate(self._names)}
        site_of = registered.site_of()
        return tuple(number[name] for name in sorted(site_of) if name in number)

    def refuse(self, site: str, reason: str) -> None:
        """Leave a site out of the run, and say so once."""
        if site not in self._refused:
            self._refused[site] = reason
            self._say(f"{site} is refused: {reason}")

    def _update_nodes(self) -> None:
        super()._update_nodes()
        self._registered = {node: each for node, each in self._registered.items() if node in self._claims}

    def _refuse_double_names(self) -> None:
        node_of: dict[str, int] = {}
        for node, registered in self._registered.items():
            for site in (*registered.clients, *registered.refused):
                if site in node_of:
                    raise FederationError(
                        f"sites must have different names, nodes {node_of[site]} and {node} are both {site}"
                    )
                node_of[site] = node

    def _number(self, names: Collection[str]) -> None:
        """Give the clients their ids."""
        self._names = tuple(names)
        self._num_clients = len(self._names)
        self._claims = {
            node: self._ids(self._registered[node]) if node in self._registered else ()
            for node in self._claims
        }
        self._assign_hosts()

    def _ask_nodes(self, contents: Mapping[int, RecordDict], query: str) -> dict[int, Message]:
        """Ask nodes, not clients; return the reply of each node that sent one, an error or not."""
        questions = [
            Message(content, dst_node_id=node, message_type=query) for node, content in contents.items()
        ]
        replies = self._grid.send_and_receive(questions, timeout=self._wait) if questions else ()
        return {reply.metadata.src_node_id: reply for reply in replies}
