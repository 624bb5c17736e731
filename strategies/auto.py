"""One model for all, split only where a split proves itself on held-out rows."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.cluster  # noqa: F401  (looks use it, and it takes long to import: before round 1, not in it)
from flwr.app import ArrayRecord

from fedclust.aggregation import flower as aggregation
from fedclust.clustering import auto, proposals
from fedclust.clustering.auto import Parameters
from fedclust.clustering.shared.grouping import positions_of
from fedclust.clustering.shared.wording import chance, number_of
from fedclust.federation import Clusters, Federation, FederationError, Findings, Reply, by_cluster, padded
from fedclust.federation.clusters import Decided
from fedclust.federation.questions import ask_differences
from fedclust.federation.run import Layer
from fedclust.layers.beside import aggregate_beside, train_beside
from fedclust.layers.coalitions import Coalitions, models_per_site, notes as coalition_notes, worthwhile
from fedclust.layers.standard import caps_of
from fedclust.messages.models import to_vector, with_vector
from fedclust.messages.training import ARMS, UpdateQuestion
from fedclust.personal.layers import Auto as BestLayer
from fedclust.proof import Comparison, compare
from fedclust.proof.coalitions import MOST_SITES, Coalition
from fedclust.proof.partners import Difference, of_groups
from fedclust.proof.verdict import Verdict
from fedclust.proof.votes import FEWEST
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.rng import generator
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Trial:
    """A grouping of one cluster that is on trial: its parts' models train beside the cluster's.

    Attributes
    ----------
    cluster
        The cluster.
    labels
        Part of each member of the cluster, −1 where it is not known yet, shape (n,).
    models, optimisers
        The model of each part, and what its aggregator remembers, see
        :func:`~fedclust.aggregation.flower.pack_state`.
    look
        The look that it comes from.
    proposals
        How many proposals there were for the cluster.
    level
        Level of all tests of the cluster in this look.
    share
        Part of it with which this one is tested if no other passes.
    rounds
        Rounds trained so far.
    trainings
        Trainings of a client for it so far.
    num_bytes
        Bytes that these cost both ways, as if every client had messages of its own.
    first
        What came of the comparison after one round, in plain values.
    joins
        Of a trial of one model for two clusters together, the other one; labels are then 0 for everyone in
        both. Else None.
    preferred
        Whether the clients' updates make it the most likely of the cluster's proposals.
    lone
        Of a trial of one client apart from all others, that client, whose own rows decide. Else None.
    named
        What the parts are by if people named them, such as a column. Else empty.
    """

    cluster: int
    labels: IntArray
    models: tuple[ArrayRecord, ...]
    optimisers: tuple[Mapping[str, Any], ...] = ()
    look: int = 1
    proposals: int = 1
    level: float = 0.05
    share: float = 1.0
    rounds: int = 0
    trainings: int = 0
    num_bytes: int = 0
    first: Mapping[str, Any] = field(default_factory=dict)
    joins: int | None = None
    preferred: bool = False
    lone: int | None = None
    named: str = ""

    def entry(self, **outcome: Any) -> dict[str, Any]:
        """Describe it in plain values, for JSON, with what came of it."""
        return {
            "look": self.look,
            "cluster": self.cluster,
            "source": self.source,
            "parts": len(self.models),
            "sizes": self.sizes,
            "rounds": self.rounds,
            "trainings": self.trainings,
            "bytes": self.num_bytes,
            "after_one_round": dict(self.first) or None,
            **({"named": True} if self.named else {}),
            **outcome,
        }

    @property
    def source(self) -> str:
        """What proposed it: people, the clients' updates, or the distance of two clusters' models."""
        return self.named or ("updates" if self.joins is None else "union")

    @property
    def clusters(self) -> list[int]:
        """The cluster whose clients it is for, or the two that have one model together on trial."""
        return [self.cluster] if self.joins is None else [self.cluster, self.joins]

    @property
    def sizes(self) -> list[int]:
        """Clients of each part that are known."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.models)).tolist()


@dataclass(frozen=True, eq=False)
class TrialMemory:
    """What is remembered from round to round.

    Attributes
    ----------
    looks
        Looks so far.
    trials
        Groupings on trial, the same for all: either after one round or among the finalists.
    history
        Every proposal whose trial is over, in plain values.
    level_spent
        What the looks so far have spent of the level of the run.
    spent
        Trainings of a client that looks and trials have cost so far.
    bytes_down, bytes_up
        Bytes that they have cost, as if every client had messages of its own.
    """

    looks: int = 0
    trials: tuple[Trial, ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()
    level_spent: float = 0.0
    spent: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def by_cluster(self) -> dict[int, list[Trial]]:
        """Sort the divisions that are on trial by cluster."""
        divisions = [trial for trial in self.trials if trial.joins is None]
        numbers = dict.fromkeys(trial.cluster for trial in divisions)
        return {number: [each for each in divisions if each.cluster == number] for number in numbers}

    @property
    def unions(self) -> list[Trial]:
        """Pairs of clusters that have one model together on trial."""
        return [trial for trial in self.trials if trial.joins is not None]


class Auto(ClusteredStrategy):
    """Train one model for all; split it where groups' own models are shown to be better.

    After some rounds of FedAvg (of whatever `aggregator` is), and again after twice as many, four times as
    many and so on, a *look* lists groupings of each cluster's clients by the directions of their updates.
    Each is on trial for rounds of training: the run goes on with the unsplit model, and in the same rounds
    the same clients also train the models of the parts, from the same start. Then clients compare both on
    their held-out rows (:mod:`fedclust.proof`, both sides with the label-prior correction). A grouping is
    kept only if it is shown to be better, at 5 % for all tests of the run; else nothing remains of it but its
    record.

    Parameters
    ----------
    parameters
        When groupings are proposed, how long they are on trial, and what it takes to keep one.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({UpdateQuestion.kind})

    @classmethod
    def needs(cls, parameters: Mapping[str, Any]) -> frozenset[str]:
        """Return what it needs answers to; with coalitions, models that travel to other sites, too."""
        return cls.asks if parameters.get("coalitions") == "none" else cls.asks | {ARMS}

    parameters_type = Parameters
    parameters: Parameters

    own_personal = BestLayer
    serves = "best"
    needs_label_counts = True  # both sides of a comparison get the label-prior correction
    memory_type = TrialMemory

    may_correct = True
    """Whether the run's personal layers include the label-prior correction, which sites may then choose."""

    def add_layers(self, *further: Layer, **limits: Any) -> None:
        """Add the layer that trains coalitions of a handful of sites."""
        caps = caps_of(self.options)
        self.coalitions = Coalitions(
            self.cross_fits, self._proposed_coalitions, caps, lambda: self.may_correct
        )
        super().add_layers(*further, **limits)
        self.layers = (*self.layers, self.coalitions)  # last: another layer may make a round the last one

    def _may_choose(self, num_clients: int) -> bool:
        kept = self.options.serve_round == "best"  # models of an earlier round are those of clusters
        return self.parameters.coalitions != "none" and 2 <= num_clients <= MOST_SITES and not kept

    def cross_fits(self, rows: IntArray, model: ArrayRecord) -> bool:
        """Whether coalitions of a handful of sites train, see :mod:`fedclust.layers.coalitions`."""
        return self._may_choose(len(rows)) and worthwhile(self.parameters.coalitions, rows, model)

    def _proposed_coalitions(self, federation: Federation, model: ArrayRecord) -> list[Coalition]:
        """List groups of sites that their updates propose before round 1, and those that people named."""
        everyone = Clusters.of(np.zeros(federation.num_clients, dtype=np.int64), model)
        proposed, _ = self._proposed(everyone, 0, federation)
        named = federation.describe().named_groups
        groupings = [trial.labels for trial in proposed]
        groupings += [np.unique(named, return_inverse=True)[1]] if named else []
        return [
            tuple(np.flatnonzero(labels == part).tolist())
            for labels in groupings
            for part in range(labels.max() + 1)
        ]

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with everyone in one cluster.

        Raises
        ------
        FederationError
            If no client has held-out rows to compare models on, and clients are too many for coalitions.
        """
        few = not federation.clients.plain and self.cross_fits(federation.describe().rows, model)
        if not few and not federation.describe().num_validation.any():
            raise FederationError(
                "strategy auto must have clients with held-out rows to test groups on, none has: "
                "proof=true holds out some of each client's rows where it has three or more for training"
            )
        return replace(super().begin(federation, model), memory=TrialMemory())

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Look for groupings where that is due and nothing is on trial."""
        memory: TrialMemory = clusters.memory
        if self.coalitions.trained is not None:
            return clusters
        given, number = self.parameters, federation.server_round
        due = given.warmup * 2**memory.looks < number <= federation.num_rounds - given.probation
        if memory.trials or not due or memory.level_spent >= given.level * (1 - 1e-9):
            return clusters
        travelled = _travelled(federation)
        return _charged(self._look(clusters, federation), memory, travelled, federation)

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Train what is on trial, and decide where it is time."""
        if self.coalitions.trained is not None:
            return clusters
        before: TrialMemory = clusters.memory
        if not before.trials:
            return clusters
        travelled = _travelled(federation)
        clusters = self._train_trials(clusters, replies, federation)
        rounds = clusters.memory.trials[0].rounds if clusters.memory.trials else 0
        if rounds == 1:
            clusters = self._sift(clusters, federation)
        elif rounds > self.parameters.probation:
            clusters = self._decide(clusters, federation)
        clusters = clusters.with_report(on_trial=len(clusters.memory.trials))
        return _charged(clusters, before, travelled, federation)

    def grown(self, clusters: Clusters, homes: IntArray) -> TrialMemory:
        """Add newcomers to what is on trial; their part is not known yet."""
        memory: TrialMemory = clusters.memory
        trials = []
        for trial in memory.trials:
            number, label = int(np.isin(homes, trial.clusters).sum()), None if trial.joins is None else 0
            trials.append(replace(trial, labels=padded(trial.labels, number, label)))
        return replace(memory, trials=tuple(trials))

    def settled(self, clusters: Clusters, server_round: int) -> bool:
        """Return whether nothing is on trial, after a first look."""
        return not clusters.memory.trials and clusters.memory.looks > 0

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List why no grouping can be kept, where that follows from the settings."""
        return [] if self._may_choose(num_clients) else self._no_groups(num_clients, rounds)

    def cautions_of_any_app(self, num_clients: int, rounds: int, compare_rows: bool) -> list[str]:
        """List why no grouping can be kept: such clients form no coalitions, and may have one vote each."""
        found = self._no_groups(num_clients, rounds)
        if not found and not compare_rows and num_clients < FEWEST:
            rule = f"clients must be >= {FEWEST}, each has one vote without compare_rows=True"
            return [f"no groups can be found: {rule}, got {num_clients}"]
        return found

    def _no_groups(self, num_clients: int, rounds: int) -> list[str]:
        given = self.parameters
        if not given.can_split(num_clients):
            return [
                f"no groups can be found: clients must be >= {2 * given.min_cluster_size}, for two groups "
                f"(strategy.parameters.min_cluster_size), got {num_clients}"
            ]
        if rounds < (needed := given.warmup + 1 + given.probation):
            return [
                f"no groups can be found: rounds must be >= {needed}, {given.warmup} before the first look "
                f"(strategy.parameters.warmup) and {1 + given.probation} on trial, got {rounds}"
            ]
        return []

    def notes(self, federation: Federation, rounds: int, model: ArrayRecord) -> list[str]:
        """Describe what trials or coalitions may cost at most."""
        number, lines = federation.num_clients, list[str]()
        if self._may_choose(number):
            few = self.cross_fits(federation.describe().rows, model)
            lines = coalition_notes(number, rounds * self.cohort_size(number) / number, model, few)
            if few:
                return lines
            lines += self._no_groups(number, rounds)
        named = bool(federation.describe().named_groups)
        share = self.options.participation
        most = auto.most_spending(number, share, rounds, self.parameters, named=named)
        if not most.looks:
            return lines
        return [
            *lines,
            f"{number_of('look', most.looks)} for groups; trials train clients {most.trainings} times at "
            f"most, as much as {most.rounds:.1f} further rounds, and mostly far less",
        ]

    def models_per_client(self, federation: Federation, model: ArrayRecord) -> int:
        """Count the models that a client trains in a round, with those of coalitions."""
        few = self.cross_fits(federation.describe().rows, model)
        return 1 + few * models_per_site(federation.num_clients)

    def decided(self) -> Decided | None:
        """Return what a handful of sites chose, see :class:`~fedclust.layers.coalitions.Coalitions`."""
        return self.coalitions.decided(self.run)

    def tested(self) -> Verdict:
        """Return what the trials have shown."""
        found = self.findings(self.clusters).summary
        kept = [each for each in found["trials"] if each["kept"] and each["source"] != "union"]
        number = len(np.unique(self.assignment))
        if number == 1:
            return Verdict(f"Train one model for all: {found['decision']}", grouped=False)
        shown = ", then ".join(f"{each['better_for']} of {each['voted']}" for each in kept)
        text = f"Train in {number} groups: after their trial their models were better for {shown} clients"
        return Verdict(text, grouped=True, p_value=max(each["p_value_corrected"] for each in kept))

    def findings(self, clusters: Clusters) -> Findings:
        """Return every proposal with its test, what all trials cost, and a sentence that sums it up."""
        memory: TrialMemory = clusters.memory
        if (decided := self.decided()) is not None:
            summary = {"decision": decided.text, "cross_fitting": self.coalitions.cost(), **decided.summary}
            return Findings(summary, {"cross_site": decided.cross_site})
        rounds = memory.spent / max(1, self.cohort_size(clusters.num_clients))
        over = [entry["source"] == "union" for entry in memory.history if entry["kept"]]
        joined, kept, tried = sum(over), len(over) - sum(over), len(memory.history)
        number = int(np.count_nonzero(clusters.sizes))
        why = "the run ended before it was decided"
        sentences = [auto.decision(number, memory.looks, tried, kept, len(memory.trials))]
        if joined:
            sentences.append(f"{number_of('pair', joined)} of clusters joined again")
        if of_named := self._of_named(clusters):
            sentences.append(of_named)
        if memory.spent:
            sentences.append(f"trials cost as much training as {rounds:.1f} rounds")
        tested = [entry for entry in memory.history if entry.get("least_gain") is not None]
        best = min(tested, key=lambda entry: entry["least_gain"], default=None)
        power = {} if best is None or number > 1 else {"gain": best["least_gain"], "rows": best["rows"]}
        return Findings(
            {
                "decision": "; ".join(sentences),
                **({"unseen": power} if power else {}),
                "trials": [
                    *map(dict, memory.history),
                    *(trial.entry(kept=False, why=why) for trial in memory.trials),
                ],
                "looks": memory.looks,
                "trial_trainings": memory.spent,
                "trial_rounds": rounds,
                "trial_bytes_down": memory.bytes_down,
                "trial_bytes_up": memory.bytes_up,
            }
        )

    def _of_named(self, clusters: Clusters) -> str:
        """Write whether the groups that people named help; empty if there are none."""
        described = self.run.federation.describe()
        if not (by := described.grouped_by):
            return ""
        history = clusters.memory.history
        entry = next((each for each in history if each.get("named") and "level" in each), None)
        if entry is not None and entry["gain"] is not None:
            gained = Difference.of(entry["gain"], entry["gain_error"], entry["rows"])
            return of_groups(by, gained, helps=entry["p_value_corrected"] <= entry["level"])
        if self._by_names(clusters.num_clients) is None:
            least = self.parameters.min_cluster_size
            return f"{by}: not tested, as two groups need {least} clients each with held-out rows"
        return f"{by}: not tested, as the run ended before it was decided"

    def _by_names(self, num_clients: int) -> IntArray | None:
        """Return the part of each client by the groups that people named, if two are large enough."""
        described = self.run.federation.describe()
        if not described.named_groups:
            return None
        named, votes = described.named_groups[:num_clients], described.num_validation[:num_clients] > 0
        return proposals.by_names(named, votes, self.parameters.min_cluster_size)

    # -- Inside ---------------------------------------------------------------------------------------------

    def _look(self, clusters: Clusters, federation: Federation) -> Clusters:
        """List groupings of each cluster that is large enough, and put them on trial."""
        memory: TrialMemory = clusters.memory
        given, number, spent = self.parameters, memory.looks + 1, memory.spent
        found: dict[int, list[Trial]] = {}
        votes = federation.describe().num_validation > 0
        for cluster in range(len(clusters.models)):
            if given.can_split(int(votes[clusters.members(cluster)].sum())):
                proposed, trained = self._proposed(clusters, cluster, federation)
                if not memory.looks:
                    proposed = self._with_named(proposed, clusters.num_clients)
                found |= {cluster: proposed} if proposed else {}
                spent += trained
        looks = len(auto.due_rounds(given.warmup, federation.num_rounds, given.probation))
        level = auto.level_of_look(given.level - memory.level_spent, looks - memory.looks)
        trials: list[Trial] = []
        for cluster, proposed in found.items():
            state = deepcopy(aggregation.pack_state(clusters.aggregators[cluster], self.make_aggregator()))
            facts: dict[str, Any] = {"look": number, "proposals": len(proposed), "level": level / len(found)}
            shares = auto.first_shares(len(proposed), _alone(proposed)).tolist()
            for trial, share in zip(proposed, shares, strict=True):
                parts = int(trial.labels.max()) + 1
                models, states = (clusters.models[cluster],) * parts, (state,) * parts
                trials.append(replace(trial, models=models, optimisers=states, share=share, **facts))
        trials += self._unions(clusters, number)
        listed = [{"cluster": each.cluster, "source": each.source, "sizes": each.sizes} for each in trials]
        level_spent = memory.level_spent + level * bool(found)
        memory = replace(memory, looks=number, trials=tuple(trials), spent=spent, level_spent=level_spent)
        return replace(clusters.with_report(look=number, proposals=listed), memory=memory)

    def _proposed(self, clusters: Clusters, cluster: int, federation: Federation) -> tuple[list[Trial], int]:
        """Ask a cluster's clients what a round of training changes, and group them by the direction.

        Of a cluster of more than `most_asked` clients so many are drawn; the parts of the others are not
        known.

        Returns
        -------
        Groupings of the cluster's members, without models, and how many clients trained for them.
        """
        given, number, members = self.parameters, federation.server_round, clusters.members(cluster)
        asked, smallest, model = members, given.min_cluster_size, clusters.models[cluster]
        if len(asked) > given.most_asked:
            draws = generator(self.seed, "look", number, cluster)
            asked = np.sort(draws.choice(asked, given.most_asked, replace=False))
        answered, rows = self.update_rows(federation, model, asked, number, size=given.projection_size)
        formed = proposals.by_updates(rows, smallest) if len(answered) > 1 else []
        places, held_out = positions_of(answered, members), federation.describe().num_validation[members]
        voting = held_out > 0 if held_out.any() else None  # where sites cross-fit, nothing is held out
        trials = [
            Trial(cluster, proposals.spread(labels, places, len(members)), (), preferred=labels is formed[0])
            for labels in formed
        ]
        trials = [each for each in trials if proposals.is_large_enough(each.labels, smallest, voting)]
        if (single := proposals.lone(rows, held_out[places])) is not None:
            apart = (np.arange(len(answered)) == single).astype(np.int64)
            whole = proposals.spread(apart, places, len(members))
            trials.append(Trial(cluster, whole, (), lone=int(answered[single])))
        return trials, len(asked)

    def _with_named(self, proposed: list[Trial], num_clients: int) -> list[Trial]:
        """Add the grouping by people, at the first look, when everyone is in one cluster."""
        if (labels := self._by_names(num_clients)) is None:
            return proposed
        by = self.run.federation.describe().grouped_by
        alike = [np.array_equal(each.labels, labels) for each in proposed]
        others = [each for each, same in zip(proposed, alike, strict=True) if not same]
        preferred = any(each.preferred for each, same in zip(proposed, alike, strict=True) if same)
        return [*others, Trial(0, labels, (), preferred=preferred, named=by)]

    def _train_trials(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Train each trial's parts for a round, on the clients that trained the cluster's own model."""
        memory, after, over = clusters.memory, list[Trial](), list[dict[str, Any]]()
        cohorts, spent = by_cluster(replies), memory.spent
        for trial in memory.trials:
            cohort = [each.client for cluster in trial.clusters for each in cohorts.get(cluster, [])]
            if trial.joins is None:
                clients = self._clients(clusters, trial, cohort)
            else:
                clients = dict.fromkeys(sorted(cohort), 0)
            spent += len(clients)
            try:
                after.append(self._trained(trial, clients, federation))
            except aggregation.NotFinite as error:  # which ends this trial, not the run
                over.append(trial.entry(kept=False, why=str(error)))
        return _after_trials(replace(clusters, memory=replace(memory, spent=spent)), after, over)

    def _clients(self, clusters: Clusters, trial: Trial, cohort: Sequence[int]) -> dict[int, int]:
        """Choose who trains a trial's parts: the cohort; instead of those whose part is unknown, others."""
        part = dict(zip(clusters.members(trial.cluster).tolist(), trial.labels.tolist(), strict=True))
        chosen = [client for client in cohort if part[client] >= 0]
        others = sorted(client for client in part if part[client] >= 0 and client not in cohort)
        if missing := min(len(cohort) - len(chosen), len(others)):
            draws = generator(self.seed, "trial", self.run.number, trial.cluster)
            chosen += draws.choice(others, missing, replace=False).tolist()
        return {int(client): part[client] for client in sorted(chosen)}

    def _trained(self, trial: Trial, clients: Mapping[int, int], federation: Federation) -> Trial:
        """Train a trial's parts for a round."""
        run, travelled = self.run, sum(_travelled(federation))
        shared = self.takes_means(self.make_aggregator())
        caps = caps_of(self.options)
        aggregators = [aggregation.restored(self.make_aggregator(), each) for each in trial.optimisers]
        replies = train_beside(run, trial.models, aggregators, clients, shared_means=shared, caps=caps)
        return replace(
            trial,
            models=aggregate_beside(run, trial.models, aggregators, replies, shared_means=shared),
            optimisers=tuple(aggregation.pack_state(each, self.make_aggregator()) for each in aggregators),
            rounds=trial.rounds + 1,
            trainings=trial.trainings + len(replies),
            num_bytes=trial.num_bytes + sum(_travelled(federation)) - travelled,
        )

    def _sift(self, clusters: Clusters, federation: Federation) -> Clusters:
        """After one round, keep the most promising groupings on trial; everybody gets a part in them."""
        kept, over = list[Trial](), list[dict[str, Any]]()
        for cluster, trials in clusters.memory.by_cluster().items():
            compared = [_compare_with_whole(clusters, trial, federation, 0.0) for trial in trials]
            parts = [len(trial.models) for trial in trials]
            best = auto.most_promising(compared, parts, self.parameters.finalists, *_by_updates(trials))
            best = sorted({*best, *(place for place, each in enumerate(trials) if each.named)})
            finalists = []
            for index, (trial, comparison) in enumerate(zip(trials, compared, strict=True)):
                figures = comparison.figures()
                if index in best:
                    finalists.append(replace(trial, first=figures))
                    continue
                others = "another was" if len(best) == 1 else f"{len(best)} others were"
                why = f"{others} more promising" if comparison.gain_of_others > 0 else "no gain"
                ended = {"p_value_corrected": 1.0, "kept": False, "why": f"after one round: {why}"}
                least = {"least_gain": self._least_gain(trial, comparison)}
                over.append(trial.entry(**figures | ended | least))
            kept += placed(finalists, clusters.members(cluster), federation)
        return _after_trials(clusters, [*kept, *clusters.memory.unions], over)

    def _decide(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Test the finalists; split where one is shown to be better, and join what is not shown to be."""
        over, handed_on = list[dict[str, Any]](), 0.0
        least, smallest = self.parameters.min_gain, self.parameters.min_cluster_size
        before, one = clusters.assignment, np.count_nonzero(clusters.sizes) == 1
        for cluster, trials in clusters.memory.by_cluster().items():
            anew = None if federation.clients.plain else smallest
            trials = placed(trials, clusters.members(cluster), federation, anew=anew)
            compared = [_compare_with_whole(clusters, trial, federation, least) for trial in trials]
            parts = [len(trial.models) for trial in trials]
            number, level, alone = trials[0].proposals, trials[0].level, _alone(trials)
            p_values = auto.corrected([each.p_value for each in compared], number, level, alone)
            passed, finer_gains = [each for each, p in enumerate(p_values) if p <= level], False
            if len(trials) == len(set(parts)) == len(passed) == 2:
                coarse, fine = sorted(trials, key=lambda trial: len(trial.models))
                between = _compared(federation, clusters.members(cluster), coarse, fine, least)
                finer_gains = between.exceeds(least)
            kept = auto.choose(passed, parts, [each.gain for each in compared], finer_gains)
            for index, (trial, comparison) in enumerate(zip(trials, compared, strict=True)):
                tested = {
                    "p_value_corrected": p_values[index],
                    "level": level,
                    "least_gain": self._least_gain(trial, comparison),
                    "kept": index == kept,
                    "why": auto.reason(index, passed, kept, parts, level),
                }
                over.append(trial.entry(**comparison.figures() | tested))
            if kept is not None:
                clusters = self._split(clusters, trials[kept], p_values[kept])
                handed_on += level
        left = clusters.memory.level_spent - handed_on  # a kept grouping's level goes to later looks
        clusters = replace(clusters, memory=replace(clusters.memory, level_spent=left))
        for union in clusters.memory.unions:
            clusters, entry = self._joined(clusters, union, before, federation)
            over.append(entry)
        # The parts of the only cluster: everyone was asked for the losses of these models before the test.
        return _after_trials(clusters if one else self._moved(clusters, federation), [], over)

    def _least_gain(self, trial: Trial, comparison: Comparison) -> float | None:
        """Return the least gain that the test of a trial could have shown; None of a client alone."""
        least = self.parameters.min_gain
        return comparison.least_gain(trial.level * trial.share, least) if trial.lone is None else None

    def _moved(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Move clients to the cluster whose model has the least loss on their training rows.

        Their own cluster's model was trained on these rows and the others were not, so it takes a client that
        was put with the wrong ones. No cluster is left with fewer clients with held-out rows than a part must
        have. Clients that only train and evaluate stay: these would be the losses by which they compare.
        """
        serving, before = np.flatnonzero(clusters.sizes), clusters.assignment
        if len(serving) < 2 or federation.clients.plain:
            return clusters
        measured = federation.losses([clusters.models[each] for each in serving], range(len(before)))
        wanted = {client: int(serving[place]) for client, place in least_losses(measured).items()}
        votes = federation.describe().num_validation > 0
        after = proposals.moved(before, wanted, votes, self.parameters.min_cluster_size)
        moved = np.flatnonzero(after != before)
        if not len(moved):
            return clusters
        words = ", ".join(f"client {each} moved to cluster {after[each]}" for each in moved)
        return clusters.with_report(moved=moved.tolist()).because(words, assignment=after)

    def _unions(self, clusters: Clusters, look: int) -> list[Trial]:
        """Put clusters whose models are nearest to each other on trial as one, from their mean, in pairs."""
        serving = np.flatnonzero(clusters.sizes).tolist()
        if len(serving) < 2:
            return []
        names = [name for name, array in clusters.models[0].items() if np.dtype(array.dtype).kind == "f"]
        vectors = {cluster: to_vector(clusters.models[cluster], names) for cluster in serving}
        trials = []
        for first, second in auto.nearest_pairs(vectors):
            weights = clusters.sizes[[first, second]]
            mean = np.average([vectors[first], vectors[second]], axis=0, weights=weights)
            model = with_vector(clusters.models[first], names, mean, cast=True)
            state = deepcopy(aggregation.pack_state(clusters.aggregators[first], self.make_aggregator()))
            labels = np.zeros(int(weights.sum()), dtype=np.int64)
            trials.append(Trial(first, labels, (model,), (state,), look, joins=second))
        return trials

    def _joined(
        self, clusters: Clusters, union: Trial, before: IntArray, federation: Federation
    ) -> tuple[Clusters, dict[str, Any]]:
        """Make two clusters one again unless their own models are better than one by a standard error.

        What is joined was shown to be better as a part of a grouping, so nothing has to be proven here.

        They stay two where nobody in one of them answers: silence is no evidence.
        `before` is the assignment before this round's splits, which end the trial of what they split.
        """
        one, other = union.clusters
        members = np.flatnonzero(np.isin(before, [one, other]))
        if not np.array_equal(before[members], clusters.assignment[members]):
            return clusters, union.entry(kept=False, why="a cluster of the two was split")
        together = np.zeros_like(before), union.models
        apart = clusters.assignment, clusters.models
        asked, least = members.tolist(), self.parameters.min_gain
        measured, _ = ask_differences(federation, together, apart, asked, least)
        comparison = compare(list(measured.values()), least)
        heard = {int(before[client]) for client, each in measured.items() if each.count}
        # A client alone has few rows among many: its own may decide, as when it was split off.
        single = [client for client in measured if np.count_nonzero(before == before[client]) == 1]
        own = [ask_differences(federation, together, apart, [client], least)[0] for client in single]
        tests = [comparison, *(compare(list(each.values()), least) for each in own)]
        kept = not any(each.exceeds(least) for each in tests) and len(heard) == 2
        tested = {"p_value_corrected": comparison.p_value, "kept": kept}
        why = f"two models are {'not ' * kept}better than one by a standard error"
        if len(heard) < 2:
            why = "nobody in one of the two clusters compared the models"
        entry = union.entry(**comparison.figures() | tested | {"why": why})
        if not kept:
            return clusters, entry
        models, aggregators = list(clusters.models), list(clusters.aggregators)
        assignment = clusters.assignment.copy()
        assignment[members] = one
        models[one] = union.models[0]
        aggregators[one] = aggregation.restored(self.make_aggregator(), union.optimisers[0])
        joined = clusters.because(
            f"clusters {one} and {other} joined: {why}",
            assignment=assignment,
            models=tuple(models),
            aggregators=tuple(aggregators),
        )
        return joined, entry

    def _split(self, clusters: Clusters, trial: Trial, p_value: float) -> Clusters:
        """Split a cluster; the parts go on from the models and optimisers that were on trial."""
        children = clusters.children(trial.cluster, trial.labels)
        how = f"by {trial.source}, better on held-out rows ({chance(p_value)})"
        reason = f"cluster {trial.cluster} split in {len(children)}: {how}"
        split = clusters.split(trial.cluster, trial.labels, reason)
        models, aggregators = list(split.models), list(split.aggregators)
        for part, child in enumerate(children):
            models[child] = trial.models[part]
            aggregators[child] = aggregation.restored(self.make_aggregator(), trial.optimisers[part])
        return replace(split, models=tuple(models), aggregators=tuple(aggregators))


def _by_updates(trials: Sequence[Trial]) -> tuple[int | None, int | None]:
    """Return the positions of the trial that the clients' updates prefer and of a client alone, if on."""
    preferred = next((place for place, trial in enumerate(trials) if trial.preferred), None)
    return preferred, next((place for place, trial in enumerate(trials) if trial.lone is not None), None)


def _alone(trials: Sequence[Trial]) -> list[int]:
    """List the positions of the trials that have a part of the level of their own."""
    named = next((place for place, trial in enumerate(trials) if trial.named), None)
    preferred, lone = _by_updates(trials)
    return [*dict.fromkeys(place for place in (preferred, named, lone) if place is not None)]


def _compare_with_whole(
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
        Gain that the parts must exceed, as for :func:`fedclust.proof.compare`.
    """
    model = clusters.models[trial.cluster]
    whole = replace(trial, labels=np.zeros_like(trial.labels), models=(model,))
    members = clusters.members(trial.cluster)
    of_all = _compared(federation, members, whole, trial, min_gain)
    if trial.lone is None:
        return of_all
    # A client alone gains little among many. Its own rows decide, of which all count, unless the others lose
    # more.
    own = _compared(federation, members, whole, trial, min_gain, np.array([trial.lone]))
    p_value = own.p_value if of_all.gain > 0 else 1.0
    return replace(of_all, p_value=p_value, gain_of_others=own.gain, p_value_of_others=p_value)


def _compared(
    federation: Federation,
    members: IntArray,
    one: Trial,
    other: Trial,
    min_gain: float,
    asked: IntArray | None = None,
) -> Comparison:
    """Ask clients whose part is known in two groupings of a cluster how much better the second's models are.

    Parameters
    ----------
    federation
        The clients.
    members
        Ids of the cluster's clients, in the order of the trials' labels, shape (n,).
    one, other
        Trials of that cluster, A and B.
    min_gain
        Gain that B must exceed, as for :func:`fedclust.proof.compare`.
    asked
        Ids of the clients to ask, all members by default.
    """
    sides = []
    for trial in (one, other):
        assignment = np.full(federation.num_clients, -1)
        assignment[members] = trial.labels
        sides.append((assignment, list(trial.models)))
    known = members[(one.labels >= 0) & (other.labels >= 0)]
    known = known if asked is None else np.intersect1d(known, asked)
    # Anybody's ClientApp has the same rows for both: whoever chose its part by losses would vote for it.
    known = known[~np.isin(known, list(getattr(federation.clients, "chose", ())))]
    measured, _ = ask_differences(federation, sides[0], sides[1], known.tolist(), min_gain)
    return compare(list(measured.values()), min_gain)


def placed(
    trials: Sequence[Trial], members: IntArray, federation: Federation, *, anew: int | None = None
) -> list[Trial]:
    """Assign clients to the part whose model has the least loss on their training rows.

    One message asks each client about all trials.

    Parameters
    ----------
    trials
        Trials of one cluster.
    members
        Ids of its clients, in the order of the trials' labels, shape (n,).
    federation
        The clients.
    anew
        None to place only clients whose part is not known. Else everyone is placed anew, which puts right
        what the parts' models show the proposal to have wrong; nobody leaves a part that would have fewer
        clients with held-out rows than this.
    """
    unknown = np.any([trial.labels < 0 for trial in trials], axis=0) if trials else np.zeros(0, dtype=bool)
    asked = members if anew is not None else members[unknown]
    if not len(asked):
        return list(trials)
    models = [model for trial in trials for model in trial.models]
    measured = federation.losses(models, asked.tolist())
    after, first = [], 0
    for trial in trials:
        last = first + len(trial.models)
        parts = least_losses({client: losses[first:last] for client, losses in measured.items()})
        places = positions_of(np.array([*parts], dtype=np.int64), members).tolist()
        best = dict(zip(places, parts.values(), strict=True))
        labels = proposals.place(trial.labels, best)
        if trial.lone is not None:
            labels = np.maximum(trial.labels, 0)  # the others stay together
        elif anew is not None and not trial.named:
            votes = federation.describe().num_validation[members] > 0
            labels = proposals.moved(labels, best, votes, anew)
        after.append(replace(trial, labels=labels))
        first = last
    return after


def least_losses(losses: Mapping[int, FloatArray]) -> dict[int, int]:
    """Return the model of least loss of each client, but of one with a loss that is not finite.

    Parameters
    ----------
    losses
        Each client's losses, one of each model, shape (models,).

    Returns
    -------
    Position of the model by client; the first one of equal losses.

    Examples
    --------
    >>> least_losses({3: np.array([0.7, 0.2]), 4: np.array([0.1, np.inf]), 5: np.array([0.4, 0.4])})
    {3: 1, 5: 0}
    """
    return {client: int(own.argmin()) for client, own in losses.items() if np.isfinite(own).all()}


def _travelled(federation: Federation) -> tuple[int, int]:
    """Read the bytes travelled so far, as if clients had messages of their own; 0 where nobody counts."""
    federation.describe()  # known in most runs; asked later, it would count among what trials cost
    traffic = federation.clients.traffic
    return (0, 0) if traffic is None else (int(traffic.down_by_client.sum()), int(traffic.up_by_client.sum()))


def _charged(
    clusters: Clusters, before: TrialMemory, travelled: tuple[int, int], federation: Federation
) -> Clusters:
    """Add what looks and trials have cost since a reading to what they cost, and to the round's line."""
    memory: TrialMemory = clusters.memory
    down, up = (now - then for now, then in zip(_travelled(federation), travelled, strict=True))
    cost = {"trial_trainings": memory.spent - before.spent, "trial_bytes_down": down, "trial_bytes_up": up}
    earlier = clusters.report
    costs = {name: number + earlier.get(name, 0) for name, number in cost.items()}
    memory = replace(memory, bytes_down=memory.bytes_down + down, bytes_up=memory.bytes_up + up)
    return replace(clusters.with_report(**costs), memory=memory)


def _after_trials(clusters: Clusters, left: Sequence[Trial], over: Sequence[dict[str, Any]]) -> Clusters:
    """Go on with the trials that are left; those that are over are added to history and the round's line."""
    if over:
        clusters = clusters.with_report(trials=[*clusters.report.get("trials", []), *over])
    memory: TrialMemory = clusters.memory
    history = (*memory.history, *over)
    return replace(clusters, memory=replace(memory, trials=tuple(left), history=history))
