"""A client grid whose clients register by name, because every site holds its own data.

The number of clients is not known before the run. Nodes answer the question for their clients with names;
:class:`SiteGrid` waits until the clients that take part are online, sorts their names, and numbers them
0 … K−1 in this order. Its callers see only ids, as with any :class:`ClientGrid`.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedclust.data.sites.agreement import Agreement, Outcome, Statement, Wanted, agree, late_units, unfit_for
from fedclust.data.sites.rules import Rules as SiteRules
from fedclust.grids.client_grid import ClientGrid
from fedclust.grids.nodes import Host, NodeRegistry, NotNow, owner_by_file, read_answer
from fedclust.messages.codec import encode
from fedclust.messages.description import QUERY_AGREEMENT, QUERY_STATEMENT, Agreed, InRun, Registered, Stated
from fedclust.messages.training import ARMS
from fedclust.privacy.accountant import epsilon_of_runs
from fedclust.support.checks import few, plural
from fedclust.support.flower import is_lost
from fedclust.support.reasons import FederationError


@dataclass(frozen=True)
class Rules:
    """When to start with the sites that are online.

    Attributes
    ----------
    min_clients
        Least number of clients to start with.
    settle
        If no names are expected: seconds without a new client before the start.
    expected
        Names of the sites; the run starts once all are online, refused or not, and no other takes part.
    hosts
        The hosts file: the registered name or key fingerprint of each site's node; None without a file.
    asks
        Types of the questions that each method of the run needs answers to, by its name.
    noise, clip
        Those of ``privacy=patient_dp``; None without it.
    spends
        Noise, sampling and number of all that a patient may take part in; empty without it.
    """

    min_clients: int = 2
    settle: float = 20.0
    expected: Collection[str] | None = None
    hosts: Mapping[str, str] | None = None
    asks: Mapping[str, Collection[str]] = field(default_factory=dict)
    noise: float | None = None
    clip: float | None = None
    spends: Sequence[tuple[float, float, int]] = ()

    def ready(self, clients: int, sites: Collection[str], quiet: float) -> bool:
        """Return whether to start with this many clients, these sites, and no change for `quiet` seconds."""
        if self.expected is not None:
            return set(self.expected) <= set(sites)
        return clients >= self.min_clients and quiet >= self.settle

    def unanswered(self, site: SiteRules, clients: int = 1) -> str | None:
        """Explain what the run needs that a site's rules do not allow; None if the site can take part.

        Its account adds up what the patients of all its `clients` spend.
        """
        if why := site.unprotected(self.noise, self.clip):
            return why
        if site.patient_epsilon is not None and self.spends:
            all_spend = [
                (noise, sampling, number * max(1, clients)) for noise, sampling, number in self.spends
            ]
            spent = epsilon_of_runs(all_spend, site.patient_delta)
            if spent > site.patient_epsilon:
                most = (
                    f"its patients spend at most ε = {site.patient_epsilon:g} at δ = {site.patient_delta:g}"
                )
                return f"{most} in all runs, this one would spend {spent:.3g}"
        for method, kinds in self.asks.items():
            for kind in sorted(kinds):
                if not site.answers(kind):
                    if kind == ARMS:
                        return f"its rules send no model to other sites, which coalitions of {method} do"
                    return f"its rules do not answer {kind.removeprefix('query.')}, which {method} asks for"
        return None

    def divided(self, registered: Registered, host: Host) -> tuple[Registered, list[str]]:
        """Separate the sites that a node registers into its own and those of other nodes.

        Parameters
        ----------
        registered
            The node's registration.
        host
            What Flower knows about the node: its key, and the name registered with it.

        Returns
        -------
        The registration of the node's own sites; and why it is refused each other one, a line each.
        """
        if self.hosts is None:
            return registered, []
        owners = {site: self.hosts.get(site, "") for site in (*registered.clients, *registered.refused)}
        others = {site: owner_by_file(wanted) for site, wanted in owners.items() if not host.is_meant(wanted)}
        clients = {site: names for site, names in registered.clients.items() if site not in others}
        refused = {site: why for site, why in registered.refused.items() if site not in others}
        claim, listed = f"{host.label} claims site", sorted(others.items())
        lines = [f"{claim} {site}, which belongs to {owner}: refused" for site, owner in listed]
        rules = {site: each for site, each in registered.rules.items() if site not in others}
        return Registered.of(clients, refused, rules), lines


_SILENT = "it did not describe its data"
_TRIES = 3  # attempts to ask a node whose process did not start


class SiteGrid(ClientGrid):
    """A :class:`ClientGrid` whose clients register by name.

    Parameters
    ----------
    grid
        Any Flower grid.
    rules
        When to start.
    wanted
        The encoding that the run's configuration asks for.
    key
        Key of the run, by which nodes note the rows that their sites have in it; the same when it is resumed.
    options
        ``wait``, ``prepare``, ``poll``, ``say``, ``max_outage`` and ``min_replies``, as in
        :class:`ClientGrid`.

    Attributes
    ----------
    key
        Key of the run.
    agreement
        The encoding that all sites use; known after :meth:`connect`.
    cautions
        Warnings for the operator, a line each.
    refused
        Why each site that does not take part was refused, by its name.
    site_rules
        What each site with rules lets leave it, in one line, by its name.
    stood
        Whether a resumed run's earlier agreement was kept without the same clients making it again.
    """

    def __init__(self, grid: Grid, rules: Rules, wanted: Wanted, key: str = "", **options: Any) -> None:
        super().__init__(grid, **options)
        self.key = key or uuid4().hex
        owners = None if rules.hosts is None else {*rules.hosts.values()}
        self._nodes = NodeRegistry(
            grid,
            self._wait,
            self._say,
            read=self._hosted,
            owners=owners,
            without=True,
            prepare=self._prepare,
        )
        self._rules, self._wanted = rules, wanted
        self._registered: dict[int, Registered] = {}  # node: its sites
        self._stated: dict[str, tuple[Statement, str]] = {}  # site: its statement, and by which rules
        self._stating: dict[str, str] = {}  # the same rules of now
        self._undescribed: dict[str, str] = {}  # site: why it did not describe its data last
        self._names: tuple[str, ...] = ()  # of all clients that may take part, once known
        self.agreement: Agreement
        self.cautions: tuple[str, ...] = ()
        self.refused: dict[str, str] = {}
        self.site_rules: dict[str, str] = {}
        self.stood = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients in order of their ids, shape (K,); known after :meth:`connect`."""
        return tuple(self._names[place] for place in self._places)

    @property
    def _of_run(self) -> set[str]:
        """Sites with a client in the run, or in one that is resumed."""
        return {name.partition("/")[0] for name in self._names}

    @property
    def left_out(self) -> dict[str, str]:
        """Why each site without a client in the run is left out, by its name."""
        there = {name.partition("/")[0] for name in self.names}
        absent = dict.fromkeys(sorted(set(self._rules.expected or ()) - there), "it was not online")
        return absent | {site: " ".join(reason.split()) for site, reason in self.refused.items()}

    places = names  # identify the clients of a run when it is resumed

    def connect(
        self, known: Sequence[str] = (), standing: tuple[Agreement, tuple[str, ...]] | None = None
    ) -> int:
        """Wait for the sites, and number their clients in order of their names.

        Parameters
        ----------
        known
            Names of the clients of a run to resume, in the order of their ids; all others join later.
        standing
            Its agreement, which is kept, and the names of the clients that made it. A site with other rows is
            left out until it has its own again. If exactly these clients are there, they also agree again, so
            that changed data are noticed where a site's cache is lost; otherwise `stood` is true.

        Returns
        -------
        Number of clients K of the federation.

        Raises
        ------
        FederationError
            If two nodes have the same name, or fewer than `min_clients` clients are online after the time
            limit or fit the agreement. A node that does not say what it hosts is left out.
        """
        if self._connected:
            return self.num_clients
        self._wait_for_sites()
        if standing is None:
            self._agree()
            self._names += tuple(name for name in known if name not in self._names)  # of sites that are away
        else:
            self._stand(standing[0], known)
            self.stood = self._present() != set(standing[1])
            if not self.stood:
                stated = {site: each for site, (each, _) in self._stated.items() if site not in self.refused}
                self.agreement = self._agreed(stated).agreement or self.agreement
        self._nodes.start()
        self._connected = True
        first = known or sorted(self._present())
        self.admit([self._names.index(name) for name in first])
        return self.num_clients

    def refuse(self, place: int | str, reason: str) -> None:
        """Leave a client or a site out of the run, and print the reason once."""
        if isinstance(place, int):
            self._refused[place] = self._nodes.node_of.get(place, 0)
        site = self._names[place] if isinstance(place, int) else place
        if site not in self.refused:
            self.refused[site] = reason
            self._say(f"{site} is refused: {' '.join(reason.split())}")

    # -- Agreement ------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Agree on an encoding, number the clients, and send both to the nodes; refuse unfit sites."""
        self._say(f"asking {plural(len(self._registered), 'node')} to describe their data")
        statements = self._statements({node: each.clients for node, each in self._registered.items()})
        again = True
        while again:
            there = self._sites() - self.refused.keys()
            left = {site: each for site, each in statements.items() if site in there}
            outcome = self._agreed(left)
            for site, reason in outcome.refused.items():
                self.refuse(site, reason)
            present = self._present()
            if outcome.agreement is None or len(present) < self._rules.min_clients:
                raise self._too_few(present)
            self.agreement, self.cautions = outcome.agreement, outcome.cautions
            self._names = tuple(sorted(present))
            self._nodes.rehost({node: self._hosting(each) for node, each in self._registered.items()})
            nodes = dict(self._registered)
            failed = self._send_agreement(nodes)
            for site, reason in failed.items():
                self.refuse(site, reason)
            again = bool(failed) or nodes.keys() != self._registered.keys()
        for caution in self.cautions:
            self._say(f"warning: {caution}")

    def _agreed(self, stated: Mapping[str, Statement]) -> Outcome:
        try:
            return agree(stated, self._wanted)
        except ValueError as error:
            raise FederationError(str(error)) from error

    def _stand(self, agreement: Agreement, known: Sequence[str]) -> None:
        """Send the nodes an earlier agreement; leave out those that do not fit it."""
        self.agreement, self._names = agreement, tuple(known)
        clients, left_out = self._welcome(dict(self._registered))
        for node, error in left_out.items():
            self._registered.pop(node, None)
            if node in self._nodes.online:  # otherwise it was lost, as :meth:`_ask` has said
                again = isinstance(error, NotNow)
                self._nodes.leave_out(self._nodes.online[node], str(error), again=again)
        self._nodes.rehost(clients)
        if len(present := self._present()) < self._rules.min_clients:
            raise self._too_few(present)

    def _welcome(
        self, nodes: Mapping[int, Registered]
    ) -> tuple[dict[int, tuple[int, ...]], dict[int, FederationError]]:
        """Send the encoding to nodes that came later or came back.

        Returns
        -------
        Their clients, and why others are left out, by node.
        """
        known, left_out = {*self._stated}, dict[int, FederationError]()
        sites = {node: sorted({*each.site_of.values()}) for node, each in nodes.items()}
        statements = self._statements(sites)
        for node in nodes.keys() & self._registered.keys():
            for site in sites[node]:
                try:
                    self._check_back(site, statements.get(site), known)
                except NotNow as error:
                    self._leave_out(site, error, sites[node], left_out, node)
        for node, registered in nodes.items():
            site_of = registered.site_of
            new = [name for name in sorted(site_of) if name not in self._names]
            self._check_new({site_of[name] for name in new} & statements.keys(), statements)
            if node in self._registered and node not in left_out:
                self._names += tuple(name for name in new if site_of[name] not in self.refused)
        there = dict(nodes)
        while there := {
            node: each
            for node, each in there.items()
            if node in self._registered and node not in left_out and self._hosting(each)
        }:
            failed = self._send_agreement(there)
            there = {node: each for node, each in there.items() if failed.keys() & each.clients}
            for node, each in there.items():
                for site in sorted(failed.keys() & each.clients):
                    why = self._changed(f"{site}: {failed[site]}")
                    self._leave_out(site, why, sites[node], left_out, node)
        lost = nodes.keys() - self._registered
        left_out |= {node: FederationError("it was lost while it joined") for node in lost}
        for site in {site for node in left_out for site in sites[node]} - known:
            self._stated.pop(site, None)  # perhaps of other rows than it had
        return {node: self._hosting(each) for node, each in nodes.items() if node not in left_out}, left_out

    def _leave_out(
        self,
        site: str,
        error: NotNow,
        sites: Collection[str],
        left_out: dict[int, FederationError],
        node: int,
    ) -> None:
        """Leave out the node of a site; where it serves others, too, as in a simulation, refuse the site."""
        if len(sites) == 1:
            left_out[node] = error
        else:
            self.refuse(site, str(error).removeprefix(f"{site}: "))

    def _check_new(self, newcomers: Iterable[str], statements: Mapping[str, Statement]) -> None:
        """Refuse sites that have come later and do not fit, and warn of units."""
        for site in sorted(newcomers):
            statement = statements[site]
            if reason := unfit_for(statement, self.agreement):
                self.refuse(site, reason)
                continue
            further = late_units(site, statement, self.agreement)
            further += [f"{site}: {line}" for line in statement.warnings]
            self.cautions += tuple(further)
            for line in further:
                self._say(f"warning: {line}")

    def _check_back(self, site: str, statement: Statement | None, known: set[str]) -> None:
        """Raise if a site of the run is back with other rows; not a refusal, as it may come with its own.

        `known` are the sites that had described theirs before. Others, as when a run is resumed, must fit the
        agreement.
        """
        if site in self.refused or site not in known | self._of_run:
            return
        if statement is None:
            raise self._changed(f"{site}: {self._undescribed.get(site, _SILENT)}")
        if site in known:
            before, rules = self._stated[site]
            if rules != (now := self._stating.get(site, "")):
                rule = f"by which its rows are compared, must be as when it joined the run, {rules}"
                raise self._changed(f"{site}: its rules, {rule}; got {now}")
            if parts := statement.changed(before):
                rule = "must be as when it joined the run, or its test rows may have been trained on"
                raise self._changed(f"{site}: its rows {rule}; others are: {few(parts)}")
        elif reason := unfit_for(statement, self.agreement):
            raise self._changed(f"{site}: {reason}")

    def _changed(self, line: str) -> NotNow:
        """Remember why a site is left out, and return the error."""
        if line not in self.cautions:
            self.cautions += (line,)
        return NotNow(line)

    def _statements(self, sites: Mapping[int, Iterable[str]]) -> dict[str, Statement]:
        """Ask nodes to describe their sites' data; refuse those that are new and do not."""
        left = {node: [site for site in each if site not in self.refused] for node, each in sites.items()}
        question = encode(InRun(self.key))
        stated = self._ask({node: question for node, each in left.items() if each}, QUERY_STATEMENT)
        statements: dict[str, Statement] = {}
        for node, answer in stated.items():
            for site in left[node]:
                if site in answer.statements:
                    statements[site] = answer.statements[site]
                    if site not in self._stated:
                        self._stated[site] = statements[site], self._stating.get(site, "")
                        self._nodes.say_once(f"{site} sent: {statements[site].summary()}")
                elif site not in self._stated.keys() | self._of_run:
                    self.refuse(site, answer.refused.get(site, _SILENT))
                else:
                    self._undescribed[site] = answer.refused.get(site, _SILENT)
        return statements

    def _send_agreement(self, nodes: Mapping[int, Registered]) -> dict[str, str]:
        """Send nodes the encoding and their clients' ids; return why sites in the run cannot use it."""
        contents: dict[int, RecordDict] = {}
        for node, registered in nodes.items():
            mine = registered.site_of.keys()
            if ids := {name: client for client, name in enumerate(self._names) if name in mine}:
                contents[node] = encode(Agreed(self.agreement, ids, len(self._names), self.key))
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
        """Ask nodes, not clients; if one does not answer, return a refusal with the reason for its sites.

        One that is lost is no longer registered, as one that is away: it is asked anew when it is back.
        """
        replies: dict[int, Message] = {}
        asked = dict(contents)
        patience = self._wait if self._connected else self._prepare
        for _ in range(_TRIES):
            questions = [Message(each, dst_node_id=node, message_type=query) for node, each in asked.items()]
            for reply in self._grid.send_and_receive(questions, timeout=patience) if questions else ():
                # By the question: the SuperLink replies for a node that is lost, under its own id.
                sent = {each.metadata.message_id: each.metadata.dst_node_id for each in questions}
                if (node := sent.get(reply.metadata.reply_to_message_id)) is not None:
                    replies[node] = reply
            # A process that a busy machine could not start in time is not the site's fault.
            asked = {node: each for node, each in asked.items() if node in replies and is_lost(replies[node])}
        for node in asked:
            sites = few(sorted(self._registered.pop(node).clients))
            self._nodes.online.pop(node, None)
            self._say(f"node {node} with {sites} was lost while it was asked; it may join when it is back")
        stated: dict[int, Stated] = {}
        for node in [each for each in contents if each not in asked]:
            try:
                if node not in replies:
                    raise FederationError(f"no answer within {patience:g} s")
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
            online = self._nodes.online
            self._registered = {node: each for node, each in self._registered.items() if node in online}
            sites, present, now = self._sites(), self._present(), time.monotonic()
            if present | sites != before:
                before, changed = present | sites, now
                self._say(f"clients online: {', '.join(sorted(present)) or 'none'}")
            if self._rules.ready(len(present), sites, now - changed) or now - start >= self._wait:
                break
            if self._nodes.hopeless():
                raise FederationError(self._nodes.missing())
            time.sleep(self._poll)
        missing = sorted(set(self._rules.expected or ()) - sites)
        if len(present) < self._rules.min_clients:
            raise self._too_few(present, missing)
        if missing:
            self._say(f"the run starts without {', '.join(missing)}, after {self._wait:g} s")

    def _sites(self) -> set[str]:
        """List the sites that are online, refused or not; raise if two have the same name."""
        node_of: dict[str, int] = {}
        for node, registered in self._registered.items():
            for site in (*registered.clients, *registered.refused):
                if node_of.setdefault(site, node) != node:
                    raise FederationError(
                        f"sites must have different names, nodes {node_of[site]} and {node} both have {site}"
                    )
        return set(node_of)

    def _present(self) -> set[str]:
        """Return the clients whose site may take part, each once even if two nodes name it."""
        names = (each.site_of.items() for each in self._registered.values())
        return {name for each in names for name, site in each if site not in self.refused}

    def _too_few(self, present: Collection[str], missing: Collection[str] = ()) -> FederationError:
        text = f"partition.min_clients={self._rules.min_clients} clients must be online, got {len(present)}"
        text += "; partition.min_clients=1 lets one train with nobody" * (len(present) == 1)
        if missing:
            text += f"; offline: {', '.join(missing)}"
        text += "".join(f"; {why}" for why in [*self._nodes.broken.values()][:5])
        if self.refused:
            reasons = dict.fromkeys(self.refused.values())  # often all have the same
            sites = {why: few(site for site in self.refused if self.refused[site] == why) for why in reasons}
            text += "; refused: " + "; ".join(f"{each}: {why}" for why, each in sites.items())
        return FederationError(text)

    def _own(self, registered: Registered, host: Host) -> tuple[Registered, list[str]]:
        """Ignore what a node refuses of other nodes' sites, and which clients it adds to them.

        Otherwise it could exclude them, by refusing them or with data that do not fit.
        """
        others = {node: each for node, each in self._registered.items() if node != host.node}
        taken = {site for each in others.values() for site in each.clients}
        claims = registered.site_of.items()
        site_of = {name: site for name, site in claims if site not in taken or name in self._names}
        refused = {site: why for site, why in registered.refused.items() if site not in taken}
        ignored = {*registered.refused} - {*refused} | {site for name, site in claims if name not in site_of}
        claim = f"{host.label} speaks for site"
        # It may be the site's own node, restarted without a key: the operator sees what is wrong with it.
        why = {site: f" (it says: {reason})" for site, reason in registered.refused.items()}
        first = "which another node spoke for first: ignored"
        lines = [f"{claim} {site}, {first}{why.get(site, '')}" for site in sorted(ignored)]
        # A node that waits to stand in for one that is online says nothing of its site yet.
        speaking = {site for node in others.keys() & self._nodes.online for site in others[node].clients}
        own = {*site_of.values()} - speaking
        rules = {site: each for site, each in registered.rules.items() if site in own}
        for site in sorted(rules.keys() & self._of_run):
            if lacking := self._rules.unanswered(
                rules[site], len(registered.clients.get(site, ()))
            ):  # not a refusal: the site may come back
                raise NotNow(f"{site}: {lacking}")
        return Registered(site_of, refused, rules), lines

    def _hosted(self, reply: Message, host: Host) -> Host:
        """Record the sites of a node; return it with its clients and its sites' names."""
        node = host.node
        registered, others = self._rules.divided(read_answer(Registered, reply), host)
        if self._connected:
            registered, more = self._own(registered, host)
            others += more
        for claim in others:
            self._say(claim)
        self._registered[node] = registered
        for site, reason in registered.refused.items():
            self.refuse(site, reason)
        for site, rules in registered.rules.items():
            self._stating[site] = rules.of_statement
            if self.site_rules.get(site) != rules.line:
                self.site_rules[site] = rules.line
                self._say(f"rules of {site}: {rules.line}")
            if lacking := self._rules.unanswered(rules, len(registered.clients.get(site, ()))):
                self.refuse(site, lacking)
        for site in registered.clients:
            if self._rules.expected is not None and site not in self._rules.expected:
                self.refuse(site, f"partition.sites names {', '.join(sorted(self._rules.expected))}")
        clients: tuple[int, ...] = ()
        if self._connected:
            hosting, left_out = self._welcome({node: registered})
            if left_out:
                raise left_out[node]
            clients = hosting[node]
        return replace(host, declared=", ".join(sorted(registered.clients)), clients=clients)
