"""FedGWC: clients are clustered by their training losses, round by round; the paper's rule and ours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from fedclust.aggregation import flower as aggregation
from fedclust.clustering import fedgwc, loss_traces
from fedclust.clustering.fedgwc import Interaction
from fedclust.clustering.loss_traces import Outcome, Parameters, Trace
from fedclust.clustering.shared import wording
from fedclust.federation import Clusters, FairAvg, Federation, Findings, Reply, by_cluster, padded
from fedclust.messages.models import like, to_vector, with_vector
from fedclust.messages.packer import UNSAVED
from fedclust.selection import LeastSampled
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.rng import cohort_size, generator
from fedclust.typing import FloatArray, IntArray

_MOST_SNAPSHOTS = 3  # splits whose matrices are kept for the plots; K² numbers each
_SMALLEST_COHORT = 3  # FedGWC, Theorem A.5
_MOST_TRACES = 3  # splits whose traces are kept for the plots
_MOST_CLIENTS = 2000  # up to which the interaction matrix is kept for the plots; K² numbers
_NO_CLIENTS: IntArray = np.zeros(0, dtype=np.int64)
_NO_TESTS: FloatArray = np.zeros((0, 5))
_NO_RESULT, _PROPOSED, _SPLIT = 0, 1, 2  # result of a fit


@dataclass(frozen=True, eq=False)
class PaperMemory:
    """FedGWC's memory: an interaction state per cluster, and for the plots what it saw.

    That is the affinities at splits, and the cohort's losses in the last round with one cluster.
    """

    interactions: tuple[Interaction, ...]
    snapshots: Mapping[str, FloatArray] = field(default_factory=dict)
    seen: Mapping[str, FloatArray] = field(default_factory=dict)


class FedGWC(ClusteredStrategy):
    """Split clusters recursively if clients' losses show that they are of different kinds.

    Source: FedGWC, Algorithm 2. We recommend :class:`FedGWCTraces`: the same messages, other mathematics.

    Parameters
    ----------
    parameters
        Settings of measurements and splits; values that are None follow from ``participation``.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`. Unless `selection` is given, clients
        that took part least often are the most likely to be chosen (Section 4.1).
    """

    paper_name = "FedGWC"

    own_selection = LeastSampled
    parameters_type = fedgwc.Parameters
    parameters: fedgwc.Parameters
    memory_type = PaperMemory

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.parameters = self.parameters.resolve(self.options.participation)

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with all clients in one cluster, in which no clients have met."""
        start = fedgwc.start(np.arange(federation.num_clients), self.parameters)
        return replace(super().begin(federation, model), memory=PaperMemory((start,)))

    def grown(self, clusters: Clusters, homes: IntArray) -> PaperMemory:
        """Add newcomers to their clusters' states, in which they have met nobody."""
        memory: PaperMemory = clusters.memory
        ids = clusters.num_clients + np.arange(len(homes))
        joined = (each.joined(ids[homes == cluster]) for cluster, each in enumerate(memory.interactions))
        snapshots = {name: padded(matrix, len(homes)) for name, matrix in memory.snapshots.items()}
        return replace(memory, interactions=tuple(joined), snapshots=snapshots)

    def cohort_size(self, num_members: int) -> int:
        """Compute a cohort's size: the share that takes part, at least three, unless it is fixed."""
        return self.parameters.cohort_size_of(num_members, self.options.participation)

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Update each cluster's interaction matrix with its cohort's losses; split clusters that settled."""
        memory, number = clusters.memory, federation.server_round
        states, snapshots = dict(enumerate(memory.interactions)), dict(memory.snapshots)
        report, seen = dict[str, Any](), memory.seen
        for cluster, cohort in by_cluster(replies).items():
            clients, losses = np.array([each.client for each in cohort]), [each.losses for each in cohort]
            seed = self.derived_seed("split", number, cluster)
            states[cluster], outcome = fedgwc.step(states[cluster], clients, losses, self.parameters, seed)
            report[str(cluster)] = _paper_report(outcome)
            if len(memory.interactions) == 1 and len(cohort) > 1:  # one client alone has no rewards
                seen = _seen(clients, losses, number)
            if (labels := outcome.labels) is not None:
                if len(snapshots) < _MOST_SNAPSHOTS:
                    snapshots[f"affinity_round_{number}"] = self._affinity(federation, [states[cluster]])
                parts = fedgwc.children(states[cluster], labels)
                states |= zip(clusters.children(cluster, labels), parts, strict=True)
                clusters = clusters.split(cluster, labels)
        ordered = tuple(states[cluster] for cluster in range(len(clusters.models)))
        return replace(clusters.with_report(**report), memory=PaperMemory(ordered, snapshots, seen))

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List reasons in the settings why no split can happen, or why none is likely."""
        return fedgwc.cautions(self.parameters, num_clients, self.options.participation, rounds)

    def findings(self, clusters: Clusters) -> Findings:
        """Return the interaction and affinity of every pair in one cluster, and each client's weight.

        Also returns the affinities at the rounds of splits, which explain them, and the cohort's
        losses in the last round with one cluster, which explain the rewards.
        """
        memory: PaperMemory = clusters.memory
        states, weights = memory.interactions, np.zeros(clusters.num_clients)
        for state in states:
            weights[state.members] = state.weights
        matrices = {
            "interaction": of_pairs(clusters.num_clients, ((each.members, each.matrix) for each in states)),
            "affinity": self._affinity(clusters, states),
        }
        return Findings({}, matrices | {**memory.snapshots, **memory.seen}, {"gaussian_weight": weights})

    def _affinity(self, of: Clusters | Federation, states: Sequence[Interaction]) -> FloatArray:
        """Compute clusters' affinities, laid out over all clients, shape (K, K)."""
        blocks = ((each.members, fedgwc.affinity_of(each, self.parameters)) for each in states)
        return of_pairs(of.num_clients, blocks)


def of_pairs(num_clients: int, blocks: Iterable[tuple[IntArray, FloatArray]]) -> FloatArray:
    """Lay out matrices of some clients each over all clients, shape (K, K); NaN for other pairs."""
    matrix = np.full((num_clients, num_clients), np.nan)
    for members, block in blocks:
        matrix[np.ix_(members, members)] = block
    return matrix


def _paper_report(outcome: fedgwc.Outcome) -> dict[str, Any]:
    """List how settled a cluster is, and the scores of a tried split."""
    report: dict[str, Any] = {"mse": outcome.mse, "pair_coverage": outcome.pair_coverage}
    if outcome.tried:
        report["davies_bouldin"] = {str(n): score for n, score in outcome.davies_bouldin.items()}
        report["split"] = outcome.labels is not None
    return report


def _seen(clients: IntArray, losses: Sequence[FloatArray], server_round: int) -> dict[str, FloatArray]:
    """Keep a cohort's losses."""
    steps = min(map(len, losses))  # only steps that all ran are compared
    return {
        "cohort_losses": np.array([each[:steps] for each in losses]),
        "cohort_clients": clients.astype(float),
        "cohort_round": np.array(float(server_round)),
    }


@dataclass(frozen=True, eq=False)
class Memory:
    """The method's memory from round to round.

    Attributes
    ----------
    traces
        State of each cluster.
    probes
        By cluster, the model that its next cohort trains, if that is not the cluster's own.
    weights
        Gaussian weight γ of each client (FedGWC, Eq. 2), shape (K,).
    interaction
        Interaction matrix P (Eq. 3), shape (K, K), for the plots; None for more than 2,000 clients.
    tests
        Result of each fit: round, cluster, number of parts, separation, and 2 if it became a split, 1 if a
        proposal, else 0; shape (tests, 5).
    splits
        Entries of clusters that were split, by cluster and round as text, see :func:`_entries`.
    drawn
        Within a round, the clients whose replies make the next probes, sorted.
    """

    traces: tuple[Trace, ...]
    probes: Mapping[int, ArrayRecord]
    weights: FloatArray
    interaction: FloatArray | None
    tests: FloatArray = field(default_factory=_NO_TESTS.copy)
    splits: Mapping[str, FloatArray] = field(default_factory=dict)
    drawn: IntArray = field(default_factory=_NO_CLIENTS.copy, metadata=UNSAVED)


class FedGWCTraces(ClusteredStrategy):
    """Split clusters recursively if clients' losses react differently to the averages they start from.

    The messages are FedGWC's, the mathematics is :mod:`fedclust.clustering.loss_traces`. While a cluster is
    undecided its cohorts train a *probe*: instead of the mean of all replies to the round before, the mean of
    three random ones, weighted by numbers of samples; with a server optimiser, the cluster's model plus the
    difference between these two means. Probes are never evaluated, served or saved. A probe is a mean of
    three clients instead of the whole cohort, so it reveals more about them to its receivers; ``probe: null``
    turns it off.

    These three clients must send their own models. That needs more bytes only if a node hosts several clients
    and would reply with one mean: three more models per undecided cluster and round.

    An aggregator that is not a weighted mean (a median, Krum, a wrapper for differential privacy) is used to
    limit the influence of single replies or to hide them: with such an aggregator there is no probe.

    Parameters
    ----------
    parameters
        Settings of tests and splits.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`. Unless `selection` is given, clients
        that took part least often are the most likely to be chosen (FedGWC, Section 4.1).
    """

    own_selection = LeastSampled
    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.parameters = self.parameters.resolve(self.options.participation)
        aggregator = self.make_aggregator()
        self._keeps_the_mean = not aggregation.remembers(aggregator)
        self._averaging: FedAvg = FairAvg() if isinstance(aggregator, FairAvg) else FedAvg()
        self._without_probe = ""  # the aggregator that rules it out
        if self.parameters.probe is not None and not self.takes_means(aggregator):
            self._without_probe = type(aggregator).__name__
            self.parameters = replace(self.parameters, probe=None)

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with all clients in one cluster and no recorded losses."""
        number = federation.num_clients
        trace = loss_traces.start(np.arange(number), self.parameters)
        interaction = np.zeros((number, number)) if number <= _MOST_CLIENTS else None
        memory = Memory((trace,), {}, np.zeros(number), interaction)
        return replace(super().begin(federation, model), memory=memory)

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """Add newcomers to their clusters' traces, without entries."""
        memory: Memory = clusters.memory
        ids = clusters.num_clients + np.arange(len(homes))
        pairs = memory.interaction
        return replace(
            memory,
            traces=tuple(each.joined(ids[homes == n]) for n, each in enumerate(memory.traces)),
            weights=padded(memory.weights, len(homes), 0.0),
            interaction=None if pairs is None else padded(pairs, len(homes), 0.0),
        )

    def cohort_size(self, num_members: int) -> int:
        """Compute a cohort's size: the share that takes part, at least three."""
        return cohort_size(num_members, self.options.participation, _SMALLEST_COHORT)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Draw the clients of undecided clusters whose replies make the next probe."""
        memory, drawn = clusters.memory, [_NO_CLIENTS]
        for cluster, trace in enumerate(memory.traces):
            members = cohort[clusters.assignment[cohort] == cluster]
            if self.parameters.probe is not None and not trace.settled:
                draws = generator(self.seed, "probe", federation.server_round, cluster)
                drawn.append(draws.choice(members, min(self.parameters.probe, len(members)), replace=False))
        return replace(clusters, memory=replace(memory, drawn=np.sort(np.concatenate(drawn))))

    def training_models(self, clusters: Clusters) -> Sequence[ArrayRecord]:
        """Return each cluster's probe, or its model if it has none."""
        probes = clusters.memory.probes
        return [like(probes.get(cluster, model), model) for cluster, model in enumerate(clusters.models)]

    def own_models(self, clusters: Clusters) -> IntArray:
        """List the clients whose replies make the next probe."""
        return clusters.memory.drawn

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Add each cohort's losses to its cluster's trace; split clusters whose groups were found twice."""
        memory, number = clusters.memory, federation.server_round
        traces, probes, splits = dict(enumerate(memory.traces)), dict(memory.probes), dict(memory.splits)
        tests, report = list[list[float]](), dict[str, Any]()
        for cluster, cohort in by_cluster(replies).items():
            clients, losses = np.array([each.client for each in cohort]), [each.losses for each in cohort]
            seed = self.derived_seed("split", number, cluster)
            trace, outcome = loss_traces.step(traces[cluster], clients, losses, self.parameters, seed)
            traces[cluster] = trace
            report[str(cluster)] = _report(outcome, trace)
            tests += _tests(outcome, number, cluster)
            probes.pop(cluster, None)
            chosen = [reply for reply in cohort if reply.client in memory.drawn]
            if (labels := outcome.labels) is not None:
                if len(splits) < _MOST_TRACES:
                    splits[f"cluster_{cluster}_round_{number}"] = _entries(trace, labels)
                parts = loss_traces.children(trace, labels, self.parameters)
                traces |= zip(clusters.children(cluster, labels), parts, strict=True)
                clusters = clusters.split(cluster, labels)
            elif not trace.settled and len(chosen) > 1:  # a single client's model must not be sent to others
                probes[cluster] = self._probe(clusters.models[cluster], chosen, cohort)
                report[str(cluster)]["probe"] = [reply.client for reply in chosen]
        after = Memory(
            tuple(traces[cluster] for cluster in range(len(clusters.models))),
            probes,
            *self._updated(memory, replies),
            tests=np.concatenate([memory.tests, np.reshape(tests, (-1, 5))]),
            splits=splits,
        )
        return replace(clusters.with_report(**report), memory=after)

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List reasons in the settings why no split can happen, or why one is less likely."""
        found = loss_traces.cautions(self.parameters, num_clients, rounds)
        if self._without_probe:
            found.append(
                f"groups are found later or not at all: {self._without_probe} is not a weighted mean, so "
                "undecided clusters do not train the mean of a few replies (strategy.parameters.probe)"
            )
        return found

    def findings(self, clusters: Clusters) -> Findings:
        """Return each test's separation, the traces of clusters that were split, and FedGWC's weights.

        For up to 2,000 clients also the interaction and affinity of every pair in one cluster, as the paper
        defines them; they are not used for splits.
        """
        memory: Memory = clusters.memory
        arrays: dict[str, np.ndarray] = {f"loss_trace_{name}": rows for name, rows in memory.splits.items()}
        if not arrays and memory.traces[0].values:
            whole = np.zeros(len(memory.traces[0].members), dtype=np.int64)
            arrays["loss_trace_cluster_0"] = _entries(memory.traces[0], whole)
        if len(memory.tests):
            arrays["separations"] = memory.tests
        if memory.interaction is not None:
            arrays |= _matrices(clusters, memory.interaction)
        alone = loss_traces.alone(memory.traces)
        finite = memory.tests[np.isfinite(memory.tests[:, 3]), 3]
        summary = {
            "split_rounds": memory.tests[memory.tests[:, 4] == _SPLIT, 0].astype(int).tolist(),
            "largest_separation": float(finite.max()) if len(finite) else None,
            "alone": alone,
        }
        if alone:
            number = wording.clusters(int(np.count_nonzero(clusters.sizes)))
            summary["decision"] = f"{number}; {wording.alone(alone)}, with losses unlike all others'"
        lone = np.isin(np.arange(clusters.num_clients), alone)
        return Findings(summary, arrays, {"gaussian_weight": memory.weights, "alone": lone})

    def _probe(self, model: ArrayRecord, chosen: Sequence[Reply], cohort: Sequence[Reply]) -> ArrayRecord:
        """Make what a cluster's next cohort trains, of the replies drawn and of all."""
        of_chosen = self._mean(model, chosen)
        if self._keeps_the_mean:
            return of_chosen
        names = [name for name, array in model.items() if np.dtype(array.dtype).kind == "f"]
        shift = to_vector(of_chosen, names) - to_vector(self._mean(model, cohort), names)
        return with_vector(of_chosen, names, to_vector(model, names) + shift, cast=True)

    def _mean(self, model: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord:
        """Average replies' models, weighted as the cluster's aggregator does."""
        averaging, number = self._averaging, self.run.number
        return aggregation.aggregate(averaging, number, model, replies, frozenset(), shared_means=True)

    def _updated(self, memory: Memory, replies: Sequence[Reply]) -> tuple[FloatArray, FloatArray | None]:
        """Update FedGWC's Gaussian weights and interaction matrix (Eq. 1 to 3) with a round."""
        weights = memory.weights.copy()
        interaction = None if memory.interaction is None else memory.interaction.copy()
        step_size = min(self.options.participation, 0.5)
        for cohort in by_cluster(replies).values():
            if len(cohort) < 2:
                continue
            clients = np.array([reply.client for reply in cohort])
            steps = min(len(reply.losses) for reply in cohort)
            rewards = fedgwc.rewards(np.stack([reply.losses[:steps] for reply in cohort]))
            weights[clients] = fedgwc.update_weights(weights[clients], rewards, step_size)
            if interaction is not None:
                pairs = np.ix_(clients, clients)
                interaction[pairs] = fedgwc.update_interaction(interaction[pairs], rewards, step_size)
        return weights, interaction


def _report(outcome: Outcome, trace: Trace) -> dict[str, Any]:
    """List the spread of losses, and the results of a round of tests."""
    spread = float(np.sqrt(np.square(outcome.deviations).mean())) if len(outcome.deviations) else None
    report: dict[str, Any] = {"spread": spread, "settled": trace.settled}
    if outcome.tried:
        separations = (each.separation if np.isfinite(each.separation) else None for each in outcome.fits)
        report["fits"] = [
            {"groups": fit.num_groups, "parts": fit.num_parts, "separation": separation}
            for fit, separation in zip(outcome.fits, separations, strict=True)
        ]
        report |= {"agreement": outcome.agreement, "split": outcome.labels is not None}
    return report | {"proposed": outcome.proposed}


def _tests(outcome: Outcome, server_round: int, cluster: int) -> list[list[float]]:
    """List a round's fits as rows of :attr:`Memory.tests`; of several alike, the best separated was used."""
    labels = outcome.labels
    number = outcome.proposed if labels is None else int(labels.max()) + 1
    result = _PROPOSED if labels is None else _SPLIT
    best = max((fit.separation for fit in outcome.fits if fit.num_parts == number), default=None)
    rows = []
    for fit in outcome.fits:
        came = result if fit.num_parts == number and fit.separation == best else _NO_RESULT
        rows.append([server_round, cluster, fit.num_parts, fit.separation, came])
    return rows


def _entries(trace: Trace, labels: IntArray) -> FloatArray:
    """List a trace's entries as rows of round of the cluster, client, entry and part, shape (N, 4)."""
    rows = [
        np.column_stack([np.full(len(values), number), trace.members[positions], values, labels[positions]])
        for number, (positions, values) in enumerate(zip(trace.positions, trace.values, strict=True), start=2)
    ]
    return np.concatenate([np.zeros((0, 4)), *rows])


def _matrices(clusters: Clusters, interaction: FloatArray) -> dict[str, FloatArray]:
    """Return interaction and affinity of all clients, shape (K, K), NaN for pairs not in one cluster."""
    members = [clusters.members(cluster) for cluster in range(len(clusters.models))]
    blocks = [(each, interaction[np.ix_(each, each)]) for each in members]
    width = fedgwc.Parameters().kernel_width
    affinities = ((each, fedgwc.affinity(block, width)) for each, block in blocks)
    number = clusters.num_clients
    return {"interaction": of_pairs(number, blocks), "affinity": of_pairs(number, affinities)}
