"""A client grid whose clients register by name, because every site holds its own data.

Nobody knows before the run how many clients there are. Nodes answer the question for their clients with
names; :class:`SiteGrid` waits until those that take part are there, sorts their names, and numbers them
0 … K−1 in this order. Whatever is above it sees ids only, as of any :class:`ClientGrid`.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedclust.data.sites.agreement import Agreement, Statement, Wanted, agree, other_units, unfit_for
from fedclust.grids.client_grid import ClientGrid, FederationError, Outages, error_reason, is_lost, logger
from fedclust.grids.nodes import Host
from fedclust.messages.codec import BadReply, encode
from fedclust.messages.description import (
    QUERY_AGREEMENT,
    QUERY_STATEMENT,
    Agreed,
    Registered,
    Stated,
    read_from_node,
)


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
    hosts
        The file of hosts: by site, the registered name or key fingerprint of its node; None without one.
    """

    min_clients: int = 2
    settle: float = 20.0
    expected: Collection[str] | None = None
    hosts: Mapping[str, str] | None = None

    def ready(self, clients: int, sites: Collection[str], quiet: float) -> bool:
        """Say whether to start: with so many clients, these sites, and no change for `quiet` seconds."""
        if self.expected is not None:
            return set(self.expected) <= set(sites)
        return clients >= self.min_clients and quiet >= self.settle

    def divided(self, registered: Registered, host: Host) -> tuple[Registered, list[str]]:
        """Divide what a node says of its sites into what is its own and what belongs to another node.

        Parameters
        ----------
        registered
            What the node says.
        host
            What Flower knows of the node: its key, and the name under which that was registered.

        Returns
        -------
        What the node says of its own sites; and why it does not get each other one, a line each.
        """
        if self.hosts is None:
            return registered, []
        claimed = sorted({*registered.clients, *registered.refused})
        others = [site for site in claimed if not host.is_meant(self.hosts.get(site, ""))]
        lines = []
        for site in others:
            wanted = self.hosts.get(site)
            whose = f"{wanted!r} by the file of hosts" if wanted else "no node of the file of hosts"
            lines.append(f"{host.label} claims site {site}, which belongs to {whose}: refused")
        clients = {site: names for site, names in registered.clients.items() if site not in others}
        refused = {site: why for site, why in registered.refused.items() if site not in others}
        return Registered.of(clients, refused), lines


T = TypeVar("T")

_TRIES = 3  # to ask a node whose process did not start


class SiteGrid(ClientGrid):
    """A :class:`ClientGrid` whose clients register by name.

    Parameters
    ----------
    grid, wait, poll, say, outages
        As in :class:`ClientGrid`.
    rules
        When to start.
    wanted
        What the run's configuration says of the encoding.
    """

    def __init__(
        self,
        grid: Grid,
        rules: Rules,
        wanted: Wanted,
        *,
        wait: float = 600.0,
        poll: float = 0.5,
        say: Callable[[str], None] = logger.info,
        outages: Outages | None = None,
    ) -> None:
        self._rules, self._wanted = rules, wanted
        self._agreement: Agreement | None = None
        self._cautions: tuple[str, ...] = ()
        self._registered: dict[int, Registered] = {}  # node: its sites
        self._names: tuple[str, ...] = ()  # of all clients that may take part, once these are known
        self._left_out: dict[str, str] = {}  # site: the reason
        self.stood = False
        super().__init__(grid, wait=wait, poll=poll, say=say, outages=outages)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients in order of their ids, shape (K,); known after :meth:`connect`."""
        return tuple(self._names[place] for place in self._places)

    @property
    def places(self) -> tuple[str, ...]:
        """What tells the clients of a run apart when it goes on: their names."""
        return self.names

    @property
    def refused(self) -> Mapping[str, str]:
        """Why each site that does not take part was refused, by its name."""
        return dict(self._left_out)

    def connect(
        self, known: Sequence[str] = (), standing: tuple[Agreement, tuple[str, ...]] | None = None
    ) -> int:
        """Wait for the sites, and number their clients in order of their names.

        Parameters
        ----------
        known
            Names of the clients of a run that goes on, in the order of their ids; all others join later.
        standing
            Its agreement, and the names of the clients that made it. If these are here and no others, they
            agree anew, so that data that has changed shows; else it stands, and `stood` is true.

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
        if standing is not None and set(self._present()) != set(standing[1]):
            self._stand(standing[0], known)
        else:
            self._agree()
        self._nodes.start()
        self._connected = True
        first = known or sorted(self._present())
        self.admit([self._names.index(name) for name in first])
        return self.num_clients

    def _stand(self, agreement: Agreement, known: Sequence[str]) -> None:
        """Tell the nodes an agreement that they need not make; leave those out that do not fit it."""
        self.stood, self._agreement, self._names = True, agreement, tuple(known)
        clients: dict[int, tuple[int, ...]] = {}
        for node, registered in self._registered.items():
            try:
                clients[node] = self._welcome(node, registered)
            except FederationError as error:
                self._say(f"node {node} is left out: {error}")
        self._nodes.rehost(clients)

    @property
    def agreement(self) -> Agreement:
        """The encoding that all sites use; known after :meth:`connect`."""
        if self._agreement is None:
            raise FederationError("the agreement is known once connect() has returned")
        return self._agreement

    @property
    def cautions(self) -> tuple[str, ...]:
        """What an operator should look at, a line each."""
        return self._cautions

    # -- Agreement ------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Agree on an encoding, number the clients, and tell each node both; refuse who does not fit."""
        statements = self._statements()
        while True:
            left = {site: each for site, each in statements.items() if site not in self._left_out}
            try:
                outcome = agree(left, self._wanted)
            except ValueError as error:
                raise FederationError(str(error)) from error
            for site, reason in outcome.refused.items():
                self.refuse(site, reason)
            present = self._present()
            if outcome.agreement is None or len(present) < self._rules.min_clients:
                raise FederationError(self._too_few(present, []))
            self._agreement, self._cautions = outcome.agreement, outcome.cautions
            self._number(sorted(present))
            told = {node: self._told(registered) for node, registered in self._registered.items()}
            replies = self._ask_nodes({node: each for node, each in told.items() if each}, QUERY_AGREEMENT)
            failed = {
                site: reason
                for node in told
                if told[node]
                for site, reason in self._failed(node, replies.get(node)).items()
            }
            for site, reason in failed.items():
                self.refuse(site, reason)
            if not failed:
                break
        for caution in self._cautions:
            self._say(f"warning: {caution}")

    def _statements(self) -> dict[str, Statement]:
        """Ask every site for what all must know of its data; refuse those that do not say it."""
        nodes = [
            node for node, each in self._registered.items() if each.clients.keys() - self._left_out.keys()
        ]
        replies = self._ask_nodes({node: RecordDict() for node in nodes}, QUERY_STATEMENT)
        statements: dict[str, Statement] = {}
        for node in nodes:
            sites = [site for site in self._registered[node].clients if site not in self._left_out]
            said, refused = self._said(node, replies.get(node))
            for site in sites:
                if site in said:
                    statements[site] = said[site]
                    self._say(f"{site} sent: {said[site].said()}")
                else:
                    self.refuse(site, refused.get(site, "it said nothing of its data"))
        return statements

    def _said(self, node: int, reply: Message | None) -> tuple[Mapping[str, Statement], Mapping[str, str]]:
        """Return what a node's sites say, and why each other one does not."""
        sites = list(self._registered[node].clients)
        stated, why = self._read_answer(reply, Stated)
        return ({}, dict.fromkeys(sites, why)) if stated is None else (stated.statements, stated.refused)

    def _told(self, registered: Registered) -> RecordDict | None:
        """Make the message that tells a node the encoding; None for one without a client in the run."""
        mine = set(registered.site_of)
        ids = {name: client for client, name in enumerate(self._names) if name in mine}
        return encode(Agreed(self.agreement, ids, len(self._names))) if ids else None

    def _failed(self, node: int, reply: Message | None) -> Mapping[str, str]:
        """Return why sites of a node cannot use the encoding that it was told."""
        sites = [site for site in self._registered[node].clients if site not in self._left_out]
        stated, why = self._read_answer(reply, Stated)
        if stated is None:
            return dict.fromkeys(sites, why)
        return {site: reason for site, reason in stated.refused.items() if site in sites}

    def _read_answer(self, reply: Message | None, kind: type[T]) -> tuple[T | None, str]:
        """Read a node's answer, if there is one, or return the reason why there is none."""
        if reply is None:
            return None, f"no answer within {self._wait:g} s"
        if reply.has_error():
            return None, error_reason(reply.error)
        try:
            return read_from_node(kind, reply.content), ""
        except BadReply as error:
            return None, str(error)

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
                    self._say(f"the run starts without {', '.join(missing)}, after {self._wait:g} s")
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
            if site not in self._left_out
            for client in clients
        }

    def _too_few(self, present: Collection[str], missing: Collection[str]) -> str:
        text = f"partition.min_clients must be there, {self._rules.min_clients}, got {len(present)}"
        if missing:
            text += f"; not here: {', '.join(missing)}"
        if self._left_out:
            text += "; refused: " + "; ".join(f"{site}: {why}" for site, why in self._left_out.items())
        return text

    def _reader(self) -> Callable[[Message, Host], Host]:
        return self._hosted

    def _hosted(self, reply: Message, host: Host) -> Host:
        """Remember the sites of a node; add its clients, and its sites' names."""
        node = reply.metadata.src_node_id
        said, why = self._read_answer(reply, Registered)
        if said is None:
            lost = " cannot serve its clients" if reply.has_error() else ""
            raise FederationError(f"node {node}{lost}: {why}")
        registered, others = self._rules.divided(said, host)
        for claim in others:
            self._say(claim)
        self._registered[node] = registered
        for site, reason in registered.refused.items():
            self.refuse(site, reason)
        for site in registered.clients:
            if self._rules.expected is not None and site not in self._rules.expected:
                self.refuse(site, f"partition.sites names {', '.join(sorted(self._rules.expected))}")
        host = replace(host, declared=", ".join(sorted(registered.clients)))
        return replace(host, clients=self._welcome(node, registered)) if self._connected else host

    def _welcome(self, node: int, registered: Registered) -> tuple[int, ...]:
        """Tell a node that came later, or back, the encoding; return its clients."""
        site_of = registered.site_of
        new = [name for name in sorted(site_of) if name not in self._names]
        if late := {site_of[name] for name in new} - self._left_out.keys():
            said, unknown = self._said(node, self._ask_nodes({node: RecordDict()}, QUERY_STATEMENT).get(node))
            for site in sorted(late):
                if site in said:
                    self._say(f"{site} sent: {said[site].said()}")
                    reason = unfit_for(said[site], self.agreement)
                    units = [] if reason else other_units(site, said[site], self.agreement)
                    self._cautions += tuple(units)
                    for line in units:
                        self._say(f"warning: {line}")
                else:
                    reason = unknown.get(site, "it said nothing of its data")
                if reason:
                    self.refuse(site, reason)
        self._names += tuple(name for name in new if site_of[name] not in self._left_out)
        if (told := self._told(registered)) is None:
            return ()
        replies = self._ask_nodes({node: told}, QUERY_AGREEMENT)
        for site, reason in self._failed(node, replies.get(node)).items():
            raise FederationError(f"{site}: {reason}")
        return self._hosting(registered)

    def _hosting(self, registered: Registered) -> tuple[int, ...]:
        number = {name: place for place, name in enumerate(self._names)}
        site_of = registered.site_of
        return tuple(
            number[name] for name in sorted(site_of) if name in number and site_of[name] not in self._left_out
        )

    def refuse(self, place: int | str, reason: str) -> None:
        """Leave a client or a site out of the run, and say so once."""
        if isinstance(place, int):
            self._refused[place] = self._nodes.node_of.get(place, 0)
        site = self._names[place] if isinstance(place, int) else place
        if site not in self._left_out:
            self._left_out[site] = reason
            self._say(f"{site} is refused: {' '.join(reason.split())}")

    def _update_nodes(self) -> None:
        self._nodes.update()
        online = self._nodes.online
        self._registered = {node: each for node, each in self._registered.items() if node in online}

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
        self._nodes.rehost({node: self._hosting(each) for node, each in self._registered.items()})

    def _ask_nodes(self, contents: Mapping[int, RecordDict], query: str) -> dict[int, Message]:
        """Ask nodes, not clients; return the reply of each node that sent one, an error or not."""
        replies: dict[int, Message] = {}
        asked = dict(contents)
        for _ in range(_TRIES):
            questions = [Message(each, dst_node_id=node, message_type=query) for node, each in asked.items()]
            if not questions:
                break
            arrived = self._grid.send_and_receive(questions, timeout=self._wait)
            replies |= {_node_of(reply, questions): reply for reply in arrived}
            # A process that a busy machine could not start in time is not the site's fault.
            asked = {
                node: each for node, each in asked.items() if (reply := replies.get(node)) and is_lost(reply)
            }
        return replies


def _node_of(reply: Message, questions: Sequence[Message]) -> int:
    """Return the node that was asked: the SuperLink replies for one that is lost, under its own id."""
    asked = {each.metadata.message_id: each.metadata.dst_node_id for each in questions}
    asked.pop("", None)
    return asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
