"""What stays with clients, in a run: ask them to keep it, save it, and put whole models together.

The models of the run lack what stays, so neither a message nor a strategy ever has it. What clients in this
process keep is part of the run's checkpoint; other nodes keep it themselves.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import ArrayRecord

from fedclust.federation.clusters import Findings
from fedclust.federation.run import Layer, Round, Run, amended
from fedclust.messages.models import from_state, to_state
from fedclust.personal.layers import NONE
from fedclust.personal.staying import Kept, Own, Staying
from fedclust.support.reasons import FederationError
from fedclust.typing import FloatArray, IntArray, State


@dataclass(frozen=True, eq=False)
class Stayed:
    """What clients keep after a round.

    Attributes
    ----------
    rule
        The rule and its settings, see :attr:`~fedclust.personal.staying.Staying.overrides`.
    clients
        Ids of the clients that keep something, sorted, shape (n,).
    shares
        Share of each one's own model in what serves it, shape (n,); see
        :class:`~fedclust.personal.staying.Own`.
    tensors
        Their tensors by name, stacked, shape (n, *shape).
    """

    rule: str
    clients: IntArray
    shares: FloatArray
    tensors: ArrayRecord

    @classmethod
    def of(cls, rule: str, kept: Mapping[int, Own]) -> "Stayed":
        """Stack what clients keep."""
        clients = sorted(kept)
        names = kept[clients[0]].tensors if clients else ()
        stacked = {name: torch.stack([kept[client].tensors[name] for client in clients]) for name in names}
        shares = np.array([kept[client].share for client in clients])
        return cls(rule, np.array(clients, dtype=np.int64), shares, from_state(stacked))

    def own(self) -> dict[int, Own]:
        """Return what each client keeps, by client id."""
        stacked = to_state(self.tensors)
        return {
            client: Own({name: each[row] for name, each in stacked.items()}, float(self.shares[row]))
            for row, client in enumerate(self.clients.tolist())
        }


class Stays(Layer):
    """Asks clients in every round to keep what stays.

    Models that train beside those of the clusters, as on trial, are completed by what clients keep, and
    change nothing of it. A client in this process that has not trained yet evaluates the model that would
    serve it: with the mean of what its cluster's clients keep.

    Parameters
    ----------
    personal
        What stays.
    name
        Name of the run.
    entries
        Entries of the model that stay; empty where clients have a second model.
    """

    memory_type: ClassVar[Any] = Stayed | None

    def __init__(self, personal: Staying, name: str, entries: Sequence[str]) -> None:
        self._personal, self._name, self._entries = personal, name, list(entries)
        self._lent = set[int]()  # clients that have such a mean

    def begin(self, run: Run, state: Stayed | None) -> Round:
        """Start with nothing kept, or with what was kept after the last round.

        Raises
        ------
        FederationError
            If it was kept by another rule.
        """
        if state is not None and state.rule != self._personal.overrides:
            rule = f"the run to resume must go on with {state.rule}"
            raise FederationError(f"{rule}, got {self._personal.overrides}")
        self._lent = set()
        if (kept := run.federation.clients.kept) is not None:
            own = kept.of(self._name)
            own.clear()
            own.update({} if state is None else state.own())
        return self.before_evaluation(run, run.now) if run.over else run.now

    def instruct(self, run: Run, now: Round) -> Round:
        """Ask the cohort to keep what stays."""
        how = self._personal
        fields = {"stays": how.choice, "stays_rate": how.rate, "stays_adapts": how.adapts}
        return replace(now, asked=amended(now.asked, **fields))

    def before_evaluation(self, run: Run, now: Round) -> Round:
        """Lend clients that keep nothing yet the mean of what their cluster's clients keep."""
        kept = run.federation.clients.kept
        if kept is None or not self._entries:
            return now
        own, clusters = kept.of(self._name), now.clusters
        for cluster in range(len(clusters.models)):
            members = clusters.members(cluster).tolist()
            having = [own[client] for client in members if client in own]
            lacking = [client for client in members if client not in own]
            if having and lacking:
                mean = Own({name: _mean(name, having) for name in self._entries})
                own.update(dict.fromkeys(lacking, mean))
                self._lent |= {*lacking}
        return now

    def after_evaluation(self, run: Run, now: Round) -> Round:
        """Take back what was lent, but after the last round, whose models serve."""
        if self._lent and now.number < run.federation.num_rounds:
            own = {} if (kept := run.federation.clients.kept) is None else kept.of(self._name)
            for client in self._lent:
                own.pop(client, None)
            self._lent = set()
        return now

    def _kept(self, kept: Kept) -> dict[int, Own]:
        """Return what clients keep, without what they were lent."""
        return {client: own for client, own in kept.of(self._name).items() if client not in self._lent}

    def findings(self, run: Run) -> Findings:
        """Return what stays."""
        kept, choice = run.federation.clients.kept, self._personal.choice
        everyone = range(run.clusters.num_clients)
        keeping = everyone if kept is None else self._kept(kept)
        column = np.array([choice if client in keeping else NONE for client in everyone])
        found = {"stays": {"choice": choice, "entries": self._entries}}
        return Findings(found, clients={"stays": column})

    def state(self, run: Run) -> Stayed:
        """Return the rule, and what clients in this process keep."""
        kept = run.federation.clients.kept
        return Stayed.of(self._personal.overrides, {} if kept is None else self._kept(kept))


def completed(
    models: Sequence[ArrayRecord], assignment: IntArray, own: Mapping[int, Own], initial: State
) -> tuple[ArrayRecord, ...]:
    """Complete clusters' models for clients that keep nothing, by the mean of what the clusters' others keep.

    Parameters
    ----------
    models
        Each cluster's model, which may lack what stays.
    assignment
        Cluster of each client, shape (K,).
    own
        What clients keep, by client id.
    initial
        The network that all started from, for a cluster of which nobody keeps anything.

    Returns
    -------
    The models with all of the network's entries; one that lacks none is returned as it is.
    """
    whole = []
    for cluster, model in enumerate(models):
        if not (lacking := [name for name in initial if name not in model]):
            whole.append(model)
            continue
        members = [own[client] for client in np.flatnonzero(assignment == cluster).tolist() if client in own]
        found = {name: initial[name] if not members else _mean(name, members) for name in lacking}
        record = from_state(found)
        whole.append(ArrayRecord({name: (record if name in found else model)[name] for name in initial}))
    return tuple(whole)


def _mean(name: str, members: Collection[Own]) -> torch.Tensor:
    """Compute the mean of a tensor; of whole numbers the maximum, as of models."""
    stacked = torch.stack([each.tensors[name] for each in members])
    if stacked.is_floating_point():
        return stacked.double().mean(0).to(stacked.dtype)
    return stacked.amax(0)


def kept_by(kept: Kept | None, name: str) -> Mapping[int, Own]:
    """Return what clients in this process keep of a run; nothing where they are elsewhere."""
    return {} if kept is None else kept.of(name)
