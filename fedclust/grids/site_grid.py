"""A client grid whose clients register by name, because every site holds its own data.

Nobody knows before the run how many clients there are. Nodes answer the question for their clients with
names; :class:`SiteGrid` waits until those that take part are there, sorts their names, and numbers them
0 … K−1 in this order. Whatever is above it sees ids only, as of any :class:`ClientGrid`.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedclust.data.sites.agreement import Agreement, Statement, Wanted, agree, other_units, unfit_for
from fedclust.grids.client_grid import ClientGrid, is_lost
from fedclust.grids.nodes import FederationError, Host, NodeRegistry, owner_by_file, read_answer
from fedclust.messages.codec import encode
from fedclust.messages.description import QUERY_AGREEMENT, QUERY_STATEMENT, Agreed, Registered, Stated


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
        lines, others = [], set()
        for site in sorted({*registered.clients, *registered.refused}):
            if not host.is_meant(wanted := self.hosts.get(site, "")):
                others.add(site)
                whose = owner_by_file(wanted)
                lines.append(f"{host.label} claims site {site}, which belongs to {whose}: refused")
        clients = {site: names for site, names in registered.clients.items() if site not in others}
        refused = {site: why for site, why in registered.refused.items() if site not in others}
        return Registered.of(clients, refused), lines


_TRIES = 3  # to ask a node whose process did not start


class SiteGrid(ClientGrid):
    """A :class:`ClientGrid` whose clients register by name.

    Parameters
    ----------
    grid
        Any Flower grid.
    rules
        When to start.
    wanted
        What the run's configuration says of the encoding.
    options
        ``wait``, ``poll``, ``say``, ``max_outage`` and ``min_replies``, as in :class:`ClientGrid`.

    Attributes
    ----------
    agreement
        The encoding that all sites use; known after :meth:`connect`.
    cautions
        What an operator should look at, a line each.
    refused
        Why each site that does not take part was refused, by its name.
    stood
        Whether the agreement of a run that goes on stands.
    """

    def __init__(self, grid: Grid, rules: Rules, wanted: Wanted, **options: Any) -> None:
        super().__init__(grid, **options)
        self._nodes = NodeRegistry(grid, self._wait, self._say, read=self._hosted)
        self._rules, self._wanted = rules, wanted
        self._registered: dict[int, Registered] = {}  # node: its sites
        self._names: tuple[str, ...] = ()  # of all clients that may take part, once these are known
        self.agreement: Agreement
        self.cautions: tuple[str, ...] = ()
        self.refused: dict[str, str] = {}
        self.stood = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients in order of their ids, shape (K,); known after :meth:`connect`."""
        return tuple(self._names[place] for place in self._places)

    places = names  # what tells the clients of a run apart when it goes on

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
        if standing is not None and self._present() != set(standing[1]):
            self._stand(standing[0], known)
        else:
            self._agree()
        self._nodes.start()
        self._connected = True
        first = known or sorted(self._present())
        self.admit([self._names.index(name) for name in first])
        return self.num_clients

    def refuse(self, place: int | str, reason: str) -> None:
        """Leave a client or a site out of the run, and say so once."""
        if isinstance(place, int):
            self._refused[place] = self._nodes.node_of.get(place, 0)
        site = self._names[place] if isinstance(place, int) else place
        if site not in self.refused:
            self.refused[site] = reason
            self._say(f"{site} is refused: {' '.join(reason.split())}")

    # -- Agreement ------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Agree on an encoding, number the clients, and tell each node both; refuse who does not fit."""
        statements = self._statements({node: each.clients for node, each in self._registered.items()})
        failed: Mapping[str, str] = {"": "not asked yet"}
        while failed:
            left = {site: each for site, each in statements.items() if site not in self.refused}
            try:
                outcome = agree(left, self._wanted)
            except ValueError as error:
                raise FederationError(str(error)) from error
            for site, reason in outcome.refused.items():
                self.refuse(site, reason)
            present = self._present()
            if outcome.agreement is None or len(present) < self._rules.min_clients:
                raise self._too_few(present)
            self.agreement, self.cautions = outcome.agreement, outcome.cautions
            self._names = tuple(sorted(present))
            self._nodes.rehost({node: self._hosting(each) for node, each in self._registered.items()})
            failed = self._tell(self._registered)
            for site, reason in failed.items():
                self.refuse(site, reason)
        for caution in self.cautions:
            self._say(f"warning: {caution}")

    def _stand(self, agreement: Agreement, known: Sequence[str]) -> None:
        """Tell the nodes an agreement that they need not make; leave those out that do not fit it."""
        self.stood, self.agreement, self._names = True, agreement, tuple(known)
        clients: dict[int, tuple[int, ...]] = {}
        for node, registered in self._registered.items():
            try:
                clients[node] = self._welcome(node, registered)
            except FederationError as error:
                self._say(f"node {node} is left out: {error}")
        self._nodes.rehost(clients)

    def _welcome(self, node: int, registered: Registered) -> tuple[int, ...]:
        """Tell a node that came later, or back, the encoding; return its clients."""
        site_of = registered.site_of
        new = [name for name in sorted(site_of) if name not in self._names]
        for site, statement in self._statements({node: sorted({site_of[name] for name in new})}).items():
            if reason := unfit_for(statement, self.agreement):
                self.refuse(site, reason)
                continue
            units = other_units(site, statement, self.agreement)
            self.cautions += tuple(units)
            for line in units:
                self._say(f"warning: {line}")
        self._names += tuple(name for name in new if site_of[name] not in self.refused)
        for site, reason in self._tell({node: registered}).items():
            raise FederationError(f"{site}: {reason}")
        return self._hosting(registered)

    def _statements(self, sites: Mapping[int, Iterable[str]]) -> dict[str, Statement]:
        """Ask nodes for what all must know of their sites' data; refuse those that do not say it."""
        left = {node: [site for site in each if site not in self.refused] for node, each in sites.items()}
        stated = self._ask({node: RecordDict() for node, each in left.items() if each}, QUERY_STATEMENT)
        statements: dict[str, Statement] = {}
        for node, answer in stated.items():
            for site in left[node]:
                if site in answer.statements:
                    statements[site] = answer.statements[site]
                    self._say(f"{site} sent: {statements[site].summary()}")
                else:
                    self.refuse(site, answer.refused.get(site, "it said nothing of its data"))
        return statements

    def _tell(self, nodes: Mapping[int, Registered]) -> dict[str, str]:
        """Tell nodes the encoding and their clients' ids; return why sites in the run cannot use it."""
        contents: dict[int, RecordDict] = {}
        for node, registered in nodes.items():
            mine = registered.site_of.keys()
            if ids := {name: client for client, name in enumerate(self._names) if name in mine}:
                contents[node] = encode(Agreed(self.agreement, ids, len(self._names)))
        return {
            site: reason
            for node, answer in self._ask(contents, QUERY_AGREEMENT).items()
            for site, reason in answer.refused.items()
            if site in nodes[node].clients and site not in self.refused
        }

    def _hosting(self, registered: Registered) -> tuple[int, ...]:
        number = {name: place for place, name in enumerate(self._names)}
        mine = sorted(registered.site_of.items())
        return tuple(number[name] for name, site in mine if name in number and site not in self.refused)

    def _ask(self, contents: Mapping[int, RecordDict], query: str) -> dict[int, Stated]:
        """Ask nodes, not clients; where one does not answer, each of its sites is refused with the reason."""
        replies: dict[int, Message] = {}
        asked = dict(contents)
        for _ in range(_TRIES):
            questions = [Message(each, dst_node_id=node, message_type=query) for node, each in asked.items()]
            for reply in self._grid.send_and_receive(questions, timeout=self._wait) if questions else ():
                # The SuperLink replies for a node that is lost, under its own id.
                sent = {each.metadata.message_id or None: each.metadata.dst_node_id for each in questions}
                about = reply.metadata
                replies[sent.get(about.reply_to_message_id, about.src_node_id)] = reply
            # A process that a busy machine could not start in time is not the site's fault.
            asked = {node: each for node, each in asked.items() if node in replies and is_lost(replies[node])}
        stated: dict[int, Stated] = {}
        for node in contents:
            try:
                if node not in replies:
                    raise FederationError(f"no answer within {self._wait:g} s")
                stated[node] = read_answer(Stated, replies[node])
            except FederationError as error:
                stated[node] = Stated(refused=dict.fromkeys(self._registered[node].clients, str(error)))
        return stated

    # -- Registration ---------------------------------------------------------------------------------------

    def _wait_for_sites(self) -> None:
        start = changed = time.monotonic()
        before: set[str] = set()
        while True:
            self._nodes.update()
            self._registered = {
                node: each for node, each in self._registered.items() if node in self._nodes.online
            }
            sites, present, now = self._sites(), self._present(), time.monotonic()
            if present | sites != before:
                before, changed = present | sites, now
                self._say(f"clients that are here: {', '.join(sorted(present)) or 'none'}")
            if self._rules.ready(len(present), sites, now - changed) or now - start >= self._wait:
                break
            time.sleep(self._poll)
        missing = sorted(set(self._rules.expected or ()) - sites)
        if len(present) < self._rules.min_clients:
            raise self._too_few(present, missing)
        if missing:
            self._say(f"the run starts without {', '.join(missing)}, after {self._wait:g} s")

    def _sites(self) -> set[str]:
        """List the sites that are here, refused or not; no two have the same name."""
        node_of: dict[str, int] = {}
        for node, registered in self._registered.items():
            for site in (*registered.clients, *registered.refused):
                if node_of.setdefault(site, node) != node:
                    raise FederationError(
                        f"sites must have different names, nodes {node_of[site]} and {node} are both {site}"
                    )
        return set(node_of)

    def _present(self) -> set[str]:
        """Return the clients whose site may take part, each once, also if two nodes name it."""
        names = (each.site_of.items() for each in self._registered.values())
        return {name for each in names for name, site in each if site not in self.refused}

    def _too_few(self, present: Collection[str], missing: Collection[str] = ()) -> FederationError:
        text = f"partition.min_clients must be there, {self._rules.min_clients}, got {len(present)}"
        if missing:
            text += f"; not here: {', '.join(missing)}"
        if self.refused:
            text += "; refused: " + "; ".join(f"{site}: {why}" for site, why in self.refused.items())
        return FederationError(text)

    def _hosted(self, reply: Message, host: Host) -> Host:
        """Remember the sites of a node; add its clients, and its sites' names."""
        node = host.node
        registered, others = self._rules.divided(read_answer(Registered, reply), host)
        for claim in others:
            self._say(claim)
        self._registered[node] = registered
        for site, reason in registered.refused.items():
            self.refuse(site, reason)
        for site in registered.clients:
            if self._rules.expected is not None and site not in self._rules.expected:
                self.refuse(site, f"partition.sites names {', '.join(sorted(self._rules.expected))}")
        clients = self._welcome(node, registered) if self._connected else ()
        return replace(host, declared=", ".join(sorted(registered.clients)), clients=clients)
