"""One model for all, split only where a split proves itself on held-out rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation.flower import NotFinite
from fedclust.aggregation.optimiser_state import restored
from fedclust.aggregation.replies import Caps, by_cluster
from fedclust.clustering import auto, loss_traces
from fedclust.clustering.auto import Parameters
from fedclust.clustering.loss_traces import Trace
from fedclust.clustering.proposals import Proposal
from fedclust.clustering.shared import wording
from fedclust.clustering.shared.members import positions_of
from fedclust.federation import Clusters, Federation, FederationError, Reply
from fedclust.federation.clusters import Findings, padded
from fedclust.layers.looks import MIN_VOTES, propose
from fedclust.layers.trials import (
    Trainee,
    Trial,
    TrialMemory,
    compare_trials,
    compare_with_whole,
    copy_aggregator,
    place_unknown,
    train_beside,
)
from fedclust.personal.layers import Auto as BestLayer
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.rng import generator
from fedclust.typing import IntArray

_TOLD = {"losses": "losses", "labels": "label counts", "prototypes": "prototypes"}
_FIRST_STEPS = loss_traces.Parameters().first_steps


class Auto(ClusteredStrategy):
    """Train one model for all; split it where groups' own models are shown to be better.

    After some rounds of FedAvg (of whatever `aggregator` is), and again after twice as many, four times as
    many and so on, a *look* lists groupings of each cluster's clients from what the four methods see. Each is
    on trial for rounds of training: the run goes on with the unsplit model, and in the same rounds the same
    clients also train the models of the parts, from the same start. Then clients compare both on their
    held-out rows (:mod:`fedclust.proof`, both sides with the label-prior correction). A grouping is kept only
    if it is shown to be better, at 5 % for all tests of the run; else nothing remains of it but its record.

    Parameters
    ----------
    parameters
        When groupings are proposed, how long they are on trial, and what it takes to keep one.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    parameters_type = Parameters
    parameters: Parameters

    own_personal = BestLayer
    proves_splits = True
    needs_label_counts = True
    memory_type = TrialMemory

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with everyone in one cluster.

        Raises
        ------
        FederationError
            If no client has held-out rows to compare models on.
        """
        if not (federation.describe().num_validation >= MIN_VOTES).any():
            raise FederationError(
                "strategy auto must have clients with two held-out rows to test groups on, none has: "
                "proof=true holds some out"
            )
        clusters = super().begin(federation, model)
        return dataclasses.replace(clusters, memory=TrialMemory((Trace(clusters.members(0)),)))

    def before_round(
        self, clusters: Clusters, cohort: IntArray, server_round: int, federation: Federation
    ) -> Clusters:
        """Look for groupings where that is due and nothing is on trial."""
        memory: TrialMemory = clusters.memory
        if memory.trials or server_round <= self.parameters.warmup * 2**memory.looks:
            return clusters
        travelled = _travelled(federation)
        return _charged(self._look(clusters, server_round, federation), memory, travelled, federation)

    def after_round(
        self, clusters: Clusters, replies: Sequence[Reply], server_round: int, federation: Federation
    ) -> Clusters:
        """Train what is on trial, and decide where it is time."""
        clusters = _recorded(clusters, replies)
        before: TrialMemory = clusters.memory
        if not before.trials:
            return clusters
        travelled = _travelled(federation)
        clusters = self._train_trials(clusters, replies, server_round, federation)
        rounds = clusters.memory.trials[0].rounds if clusters.memory.trials else 0
        if rounds == 1:
            clusters = self._sift(clusters, federation)
        elif rounds > self.parameters.probation:
            clusters = self._decide(clusters, federation)
        clusters = clusters.with_report(on_trial=len(clusters.memory.trials))
        return _charged(clusters, before, travelled, federation)

    def grown(self, clusters: Clusters, homes: IntArray) -> TrialMemory:
        """Add newcomers to their clusters' traces; in what is on trial their part is not known yet."""
        memory: TrialMemory = clusters.memory
        ids = clusters.num_clients + np.arange(len(homes))
        trials = [
            dataclasses.replace(trial, labels=padded(trial.labels, int((homes == trial.cluster).sum())))
            for trial in memory.trials
        ]
        traces = tuple(each.joined(ids[homes == cluster]) for cluster, each in enumerate(memory.traces))
        return dataclasses.replace(memory, traces=traces, trials=tuple(trials))

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List why no grouping can be kept, where that follows from the settings."""
        given, said = self.parameters, []
        if not given.can_split(num_clients):
            said.append(
                f"no groups can be found: {num_clients} clients do not make two groups of "
                f"{given.min_cluster_size} (strategy.parameters.min_cluster_size)"
            )
        elif rounds < (needed := given.warmup + 1 + given.probation):
            said.append(
                f"no groups can be found: rounds must be >= {needed}, {given.warmup} before the first look "
                f"(strategy.parameters.warmup) and {1 + given.probation} on trial, got {rounds}"
            )
        return said

    def notes(self, num_clients: int, rounds: int) -> list[str]:
        """Say what trials may cost at most."""
        most = auto.most_spending(num_clients, self.participation, rounds, self.parameters)
        if not most.looks:
            return []
        looks = "one look" if most.looks == 1 else f"{most.looks} looks"
        return [
            f"{looks} for groups; trials train clients {most.trainings} times at most, as much as "
            f"{most.rounds:.1f} further rounds, and mostly far less"
        ]

    def findings(self, clusters: Clusters) -> Findings:
        """Return every proposal with its test, what all trials cost, and a sentence that sums it up."""
        memory: TrialMemory = clusters.memory
        cohort = max(1, self.cohort_size(clusters.num_clients))
        kept = sum(bool(entry["kept"]) for entry in memory.history)
        number = int(np.count_nonzero(clusters.sizes))
        named = {"losses": loss_traces.alone(memory.traces), **memory.alone}
        alone = sorted({client for clients in named.values() for client in clients})
        unfinished = [
            trial.entry() | {"kept": False, "why": "the run ended before it was decided"}
            for trial in memory.trials
        ]
        return Findings(
            {
                "decision": auto.decision(number, memory.looks, len(memory.history), kept, len(memory.trials))
                + f"; trials cost as much training as {memory.spent / cohort:.1f} rounds"
                + "".join(
                    f"; {wording.alone(named[source])}, with {what} unlike all others'"
                    for source, what in _TOLD.items()
                    if named.get(source)
                ),
                "alone": alone,
                "trials": [*map(dict, memory.history), *unfinished],
                "looks": memory.looks,
                "trial_trainings": memory.spent,
                "trial_rounds": memory.spent / cohort,
                "trial_bytes_down": memory.bytes_down,
                "trial_bytes_up": memory.bytes_up,
            },
            clients={"alone": np.isin(np.arange(clusters.num_clients), alone)},
        )

    # -- Inside ---------------------------------------------------------------------------------------------

    def _look(self, clusters: Clusters, server_round: int, federation: Federation) -> Clusters:
        """List groupings of each cluster that is large enough, and put them on trial."""
        memory: TrialMemory = clusters.memory
        given, number, spent = self.parameters, memory.looks + 1, memory.spent
        projection = self.update_projection(given.projection_size)
        found: dict[int, list[Proposal]] = {}
        alone = {source: set(clients) for source, clients in memory.alone.items()}
        votes = federation.describe().num_validation >= MIN_VOTES
        for cluster, trace in enumerate(memory.traces):
            if given.can_split(int(votes[trace.members].sum())):
                keys = (self.seed, cluster)
                model = clusters.models[cluster]
                look = propose(federation, model, trace, given, projection, server_round, keys)
                found |= {cluster: look.proposals} if look.proposals else {}
                spent += look.trained
                for source, clients in look.alone.items():
                    alone[source] = alone.get(source, set()) | set(clients)
        trials: list[Trial] = []
        for cluster, proposals in found.items():
            level = auto.level_of_look(given.level, number, len(found))
            optimiser = copy_aggregator(clusters.aggregators[cluster], self.make_aggregator())
            start = Trainee(clusters.models[cluster], optimiser)
            for each in proposals:
                parts = (start,) * each.num_parts
                trials.append(Trial(cluster, each.source, each.labels, parts, number, len(proposals), level))
        told = [{"cluster": t.cluster, "source": t.source, "sizes": t.sizes} for t in trials]
        named = {source: sorted(clients) for source, clients in alone.items()}
        memory = dataclasses.replace(memory, looks=number, trials=tuple(trials), spent=spent, alone=named)
        return dataclasses.replace(clusters.with_report(look=number, proposals=told), memory=memory)

    def _train_trials(
        self, clusters: Clusters, replies: Sequence[Reply], server_round: int, federation: Federation
    ) -> Clusters:
        """Train each trial's parts for a round, on the clients that trained the cluster's own model."""
        memory: TrialMemory = clusters.memory
        cohorts = {
            cluster: [each.client for each in cohort] for cluster, cohort in by_cluster(replies).items()
        }
        after: list[Trial] = []
        over: list[dict[str, Any]] = []
        spent = memory.spent
        for trial in memory.trials:
            clients = self._clients(clusters, trial, cohorts.get(trial.cluster, []), server_round)
            spent += len(clients)
            travelled = sum(_travelled(federation))
            try:
                parts, trained = train_beside(
                    self.run,
                    trial.parts,
                    clients,
                    shared_means=self.takes_means(self.make_aggregator()),
                    caps=Caps(self.options.update_norm_cap, self.options.update_pull_cap),
                )
            except NotFinite as error:  # which ends this trial, not the run
                over.append(trial.entry() | {"kept": False, "why": str(error)})
                continue
            after.append(
                dataclasses.replace(
                    trial,
                    parts=parts,
                    rounds=trial.rounds + 1,
                    trainings=trial.trainings + trained,
                    num_bytes=trial.num_bytes + sum(_travelled(federation)) - travelled,
                )
            )
        memory = dataclasses.replace(
            memory, trials=tuple(after), history=(*memory.history, *over), spent=spent
        )
        return dataclasses.replace(_told(clusters, over), memory=memory)

    def _clients(
        self, clusters: Clusters, trial: Trial, cohort: Sequence[int], server_round: int
    ) -> dict[int, int]:
        """Choose who trains a trial's parts: the cohort; instead of those whose part is unknown, others."""
        part = dict(zip(clusters.members(trial.cluster).tolist(), trial.labels.tolist(), strict=True))
        chosen = [client for client in cohort if part[client] >= 0]
        others = sorted(client for client in part if part[client] >= 0 and client not in cohort)
        if missing := min(len(cohort) - len(chosen), len(others)):
            draws = generator(self.seed, "trial", server_round, trial.cluster)
            chosen += draws.choice(others, missing, replace=False).tolist()
        return {int(client): part[client] for client in sorted(chosen)}

    def _sift(self, clusters: Clusters, federation: Federation) -> Clusters:
        """After one round, keep the most promising groupings on trial; everybody gets a part in them."""
        memory: TrialMemory = clusters.memory
        kept: list[Trial] = []
        over: list[dict[str, Any]] = []
        for cluster, trials in memory.by_cluster().items():
            compared = [compare_with_whole(clusters, trial, federation, 0.0) for trial in trials]
            parts = [len(trial.parts) for trial in trials]
            best = auto.most_promising(compared, parts, self.parameters.finalists)
            finalists = []
            for index, (trial, comparison) in enumerate(zip(trials, compared, strict=True)):
                told = comparison.figures()
                if index in best:
                    finalists.append(dataclasses.replace(trial, first=told))
                    continue
                others = "another was" if len(best) == 1 else f"{len(best)} others were"
                why = f"{others} more promising" if comparison.gain > 0 else "no gain"
                ended = {"p_value_corrected": 1.0, "kept": False, "why": f"after one round: {why}"}
                over.append(trial.entry() | told | ended)
            kept += place_unknown(finalists, clusters.members(cluster), federation)
        memory = dataclasses.replace(memory, trials=tuple(kept), history=(*memory.history, *over))
        return dataclasses.replace(_told(clusters, over), memory=memory)

    def _decide(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Test the finalists; split where one is shown to be better."""
        over: list[dict[str, Any]] = []
        least = self.parameters.min_gain
        for cluster, trials in clusters.memory.by_cluster().items():
            compared = [compare_with_whole(clusters, trial, federation, least) for trial in trials]
            parts = [len(trial.parts) for trial in trials]
            number, level = trials[0].proposals, trials[0].level
            choice = auto.choose(compared, parts, number, level)
            if len(set(parts)) == 2 and max(choice.p_values) <= level:
                coarse, fine = sorted(trials, key=lambda trial: len(trial.parts))
                between = compare_trials(federation, clusters.members(cluster), coarse, fine, least)
                choice = auto.choose(compared, parts, number, level, between)
            for index, (trial, comparison) in enumerate(zip(trials, compared, strict=True)):
                tested = {
                    "p_value_corrected": choice.p_values[index],
                    "level": level,
                    "kept": index == choice.kept,
                    "why": auto.reason(index, choice, parts, level),
                }
                over.append(trial.entry() | comparison.figures() | tested)
            if choice.kept is not None:
                clusters = self._split(clusters, trials[choice.kept], choice.p_values[choice.kept])
        memory = clusters.memory
        memory = dataclasses.replace(memory, trials=(), history=(*memory.history, *over))
        return dataclasses.replace(_told(clusters, over), memory=memory)

    def _split(self, clusters: Clusters, trial: Trial, p_value: float) -> Clusters:
        """Split a cluster; the parts go on from the models and optimisers that were on trial."""
        children = clusters.children(trial.cluster, trial.labels)
        members = clusters.members(trial.cluster)
        memory: TrialMemory = clusters.memory
        traces = dict(enumerate(memory.traces))
        traces |= {child: Trace(members[trial.labels == part]) for part, child in enumerate(children)}
        reason = (
            f"cluster {trial.cluster} split in {len(children)}: by {trial.source}, better on held-out rows "
            f"({wording.chance(p_value)})"
        )
        split = clusters.split(trial.cluster, trial.labels, reason)
        parts = dict(zip(children, trial.parts, strict=True))
        return dataclasses.replace(
            split,
            models=tuple(
                parts[cluster].model if cluster in parts else model
                for cluster, model in enumerate(split.models)
            ),
            aggregators=tuple(
                restored(self.make_aggregator(), parts[cluster].optimiser) if cluster in parts else aggregator
                for cluster, aggregator in enumerate(split.aggregators)
            ),
            memory=dataclasses.replace(memory, traces=tuple(traces[number] for number in sorted(traces))),
        )


def _recorded(clusters: Clusters, replies: Sequence[Reply]) -> Clusters:
    """Add each cohort's losses to its cluster's trace, but for the first round, which follows no average."""
    memory: TrialMemory = clusters.memory
    traces = list(memory.traces)
    for cluster, cohort in by_cluster(replies).items():
        trace = traces[cluster]
        if len(cohort) < 2:
            continue
        if trace.rounds:
            positions = positions_of(np.array([reply.client for reply in cohort]), trace.members)
            values = loss_traces.deviations([reply.losses for reply in cohort], _FIRST_STEPS)
            trace = trace.recorded(positions, values)
        traces[cluster] = dataclasses.replace(trace, rounds=trace.rounds + 1)
    return dataclasses.replace(clusters, memory=dataclasses.replace(memory, traces=tuple(traces)))


def _travelled(federation: Federation) -> tuple[int, int]:
    """Read the bytes travelled so far, as if clients had messages of their own; 0 where nobody counts."""
    federation.describe()  # known in most runs; asked later, it would count among what trials cost
    traffic = getattr(federation.grid, "traffic", None)
    return (0, 0) if traffic is None else (int(traffic.down_by_client.sum()), int(traffic.up_by_client.sum()))


def _charged(
    clusters: Clusters, before: TrialMemory, travelled: tuple[int, int], federation: Federation
) -> Clusters:
    """Add what looks and trials have cost since a reading to what they cost, and to the round's line."""
    memory: TrialMemory = clusters.memory
    down, up = (now - then for now, then in zip(_travelled(federation), travelled, strict=True))
    cost = {
        "trial_trainings": memory.spent - before.spent,
        "trial_bytes_down": down,
        "trial_bytes_up": up,
    }
    earlier = clusters.report
    told = {name: number + earlier.get(name, 0) for name, number in cost.items()}
    memory = dataclasses.replace(memory, bytes_down=memory.bytes_down + down, bytes_up=memory.bytes_up + up)
    return dataclasses.replace(clusters.with_report(**told), memory=memory)


def _told(clusters: Clusters, over: Sequence[Mapping[str, Any]]) -> Clusters:
    """Add the trials that are over to the round's line."""
    return clusters.with_report(trials=[*clusters.report.get("trials", []), *over]) if over else clusters
