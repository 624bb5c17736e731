"""Groupings on trial: their models train beside the clusters', and are compared on held-out rows."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.aggregation.optimiser_state import pack_state, restored
from fedclust.aggregation.replies import ANY, Caps, Reply, by_cluster
from fedclust.clustering.loss_traces import Trace
from fedclust.clustering.proposals import place
from fedclust.federation.asking import read_replies
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.federation.questions import ask_differences
from fedclust.federation.run import Run
from fedclust.grids.client_grid import CohortView
from fedclust.layers.bounds import failure_order, within
from fedclust.messages.training import instruct
from fedclust.proof import Comparison, compare_differences
from fedclust.typing import IntArray

TRIAL = "trial"
"""Phase of the failures of such training, in the round's record."""

Private = Callable[[Sequence[Reply], Sequence[ArrayRecord]], Sequence[Reply]]


@dataclass(frozen=True, eq=False)
class Trainee:
    """A model and what its aggregator remembers.

    Attributes
    ----------
    model
        The model.
    optimiser
        As :func:`~fedclust.aggregation.optimiser_state.pack_state` lists it.
    """

    model: ArrayRecord
    optimiser: Mapping[str, Any] = field(default_factory=dict)


def copy_aggregator(aggregator: Strategy, fresh: Strategy) -> dict[str, Any]:
    """List what an aggregator remembers, in values of its own that later rounds do not change."""
    return copy.deepcopy(pack_state(aggregator, fresh))


def train_beside(
    run: Run,
    trainees: Sequence[Trainee],
    clients: Mapping[int, int],
    *,
    shared_means: bool,
    caps: Caps = ANY,
    private: Private | None = None,
    told: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[tuple[Trainee, ...], int]:
    """Train several models for a round, each on its own clients, and aggregate as a cluster does.

    Clients train on the batches of the round, so a client that trains the cluster's model in the same round
    trains both on the same rows. A failing client is recorded and excluded; a model none of whose clients
    replied stays as it is.

    Parameters
    ----------
    run
        The run.
    trainees
        The models.
    clients
        Which of them each client trains, by client id.
    shared_means
        Whether a node may answer with the mean of its clients' models.
    caps
        How far updates may move a model, as in the cluster's own training.
    private
        What takes the valid replies and the models, and returns the replies that are aggregated instead;
        then every model is trained, whether or not a client trains it.
    told
        What clients are told besides.

    Returns
    -------
    trainees
        The models after the round.
    trained
        How many clients trained.

    Raises
    ------
    NotFinite
        If an aggregator makes a model that is not finite of replies that are.
    """
    aggregators: dict[int, Strategy] = {}
    messages = []
    federation, number = run.federation, run.number
    asking = ConfigRecord({**run.config, **instruct(mean_reply=shared_means), **told})
    if caps.norm is not None:
        asking.update(instruct(norm_cap=caps.norm))
    for index, trainee in enumerate(trainees):
        chosen = sorted(client for client, model in clients.items() if model == index)
        if not chosen and private is None:
            continue
        aggregators[index] = restored(run.make_aggregator(), trainee.optimiser)
        if not chosen:
            continue
        view = CohortView(federation.grid, chosen)
        messages += aggregation.configure_train(
            aggregators[index], number, trainee.model, ConfigRecord({**asking}), view, run.buffers
        )
    if not aggregators:
        return tuple(trainees), 0
    answers = federation.grid.send_and_receive(messages, timeout=federation.timeout) if messages else ()
    asked = {message.metadata.dst_node_id: clients[message.metadata.dst_node_id] for message in messages}
    models = [each.model for each in trainees]
    valid, failures = read_replies(answers, number, asked, models, federation.bounds, means=shared_means)
    valid, long = within(valid, number, caps)
    failures = sorted([*failures, *long], key=failure_order)
    for failure in failures:
        federation.failed(int(failure["client"]), TRIAL, str(failure["reason"]))
    after = list(trainees)
    used = valid if private is None else private(valid, models)
    for index, cohort in by_cluster(used).items():
        model = aggregation.aggregate(
            aggregators[index],
            number,
            trainees[index].model,
            cohort,
            run.buffers,
            shared_means=shared_means,
        )
        after[index] = Trainee(model, copy_aggregator(aggregators[index], run.make_aggregator()))
    return tuple(after), len(valid)


@dataclass(frozen=True, eq=False)
class Trial:
    """A grouping of one cluster that is on trial.

    Attributes
    ----------
    cluster
        The cluster.
    source
        What proposed it.
    labels
        Part of each member of the cluster, −1 where it is not known yet, shape (n,).
    parts
        The model of each part.
    look
        The look that it comes from.
    proposals
        How many proposals there were for the cluster.
    level
        Level of all tests of the cluster in this look.
    rounds
        Rounds trained so far.
    trainings
        Trainings of a client for it so far.
    num_bytes
        Bytes that these cost both ways, as if every client had messages of its own.
    first
        What came of the comparison after one round, in plain values.
    """

    cluster: int
    source: str
    labels: IntArray
    parts: tuple[Trainee, ...]
    look: int = 1
    proposals: int = 1
    level: float = 0.05
    rounds: int = 0
    trainings: int = 0
    num_bytes: int = 0
    first: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Clients of each part that are known."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.parts)).tolist()

    def entry(self) -> dict[str, Any]:
        """Describe it in plain values, for JSON."""
        return {
            "look": self.look,
            "cluster": self.cluster,
            "source": self.source,
            "parts": len(self.parts),
            "sizes": self.sizes,
            "rounds": self.rounds,
            "trainings": self.trainings,
            "bytes": self.num_bytes,
            "after_one_round": dict(self.first) or None,
        }


@dataclass(frozen=True, eq=False)
class TrialMemory:
    """What is remembered from round to round.

    Attributes
    ----------
    traces
        Losses of each cluster's clients.
    looks
        Looks so far.
    trials
        Groupings on trial, the same for all: either after one round or among the finalists.
    history
        Every proposal whose trial is over, in plain values.
    spent
        Trainings of a client that looks and trials have cost so far.
    bytes_down, bytes_up
        Bytes that they have cost, as if every client had messages of its own.
    alone
        Ids of the clients that a look found unlike all others, sorted, by the source that it went by.
    """

    traces: tuple[Trace, ...]
    looks: int = 0
    trials: tuple[Trial, ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()
    spent: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    alone: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def by_cluster(self) -> dict[int, list[Trial]]:
        """Sort what is on trial by cluster."""
        found: dict[int, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.cluster, []).append(trial)
        return found


def compare_with_whole(
    clusters: Clusters, trial: Trial, federation: Federation, min_gain: float
) -> Comparison:
    """Compare the models of a trial's parts (B) with the unsplit cluster's (A).

    Parameters
    ----------
    clusters
        The clusters, with the unsplit one's model.
    trial
        The trial.
    federation
        The clients; those whose part is known are asked.
    min_gain
        Gain that the parts must exceed, as for :func:`fedclust.proof.compare_differences`.
    """
    model = Trainee(clusters.models[trial.cluster])
    whole = dataclasses.replace(trial, labels=np.zeros_like(trial.labels), parts=(model,))
    return compare_trials(federation, clusters.members(trial.cluster), whole, trial, min_gain)


def compare_trials(
    federation: Federation, members: IntArray, one: Trial, other: Trial, min_gain: float
) -> Comparison:
    """Compare two groupings' models on the clients whose part is known in both.

    Parameters
    ----------
    federation
        The clients.
    members
        Ids of the cluster's clients, in the order of the trials' labels, shape (n,).
    one, other
        Trials of that cluster, A and B.
    min_gain
        Gain that B must exceed, as for :func:`fedclust.proof.compare_differences`.
    """
    sides = []
    for trial in (one, other):
        assignment = np.full(federation.num_clients, -1)
        assignment[members] = trial.labels
        sides.append((assignment, [part.model for part in trial.parts]))
    known = members[(one.labels >= 0) & (other.labels >= 0)]
    measured, _ = ask_differences(federation, sides[0], sides[1], known.tolist())
    return compare_differences(list(measured.values()), min_gain)


def place_unknown(trials: Sequence[Trial], members: IntArray, federation: Federation) -> list[Trial]:
    """Assign each client whose part is not known to the part whose model fits it best.

    One message asks each client about all trials.

    Parameters
    ----------
    trials
        Trials of one cluster.
    members
        Ids of its clients, in the order of the trials' labels, shape (n,).
    federation
        The clients.
    """
    if all((trial.labels >= 0).all() for trial in trials):
        return list(trials)
    unknown = np.any([trial.labels < 0 for trial in trials], axis=0)
    models = [part.model for trial in trials for part in trial.parts]
    measured = federation.losses(models, members[unknown].tolist())
    placed, first = [], 0
    for trial in trials:
        last = first + len(trial.parts)
        losses = {
            place: measured[int(client)][first:last]
            for place, client in enumerate(members)
            if int(client) in measured
        }
        placed.append(dataclasses.replace(trial, labels=place(trial.labels, losses)))
        first = last
    return placed
