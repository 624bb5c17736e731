"""Groups with ``privacy=client_dp``: k models beside one for all, and a noisy vote between them."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation.flower import NotFinite
from fedclust.clustering import ifca, private_groups
from fedclust.clustering.private_groups import Parameters
from fedclust.federation import Clusters, Federation, Findings, Reply
from fedclust.layers.beside import aggregate_beside, train_beside
from fedclust.layers.client_dp import ClientPrivacy
from fedclust.layers.standard import caps_of
from fedclust.messages.evaluation import LossesQuestion, ProofQuestion
from fedclust.messages.models import to_vector, with_vector
from fedclust.messages.packer import UNSAVED
from fedclust.messages.replies import ANY
from fedclust.strategies.base import NetworkStrategy
from fedclust.support.rng import generator
from fedclust.typing import IntArray


@dataclass(frozen=True, eq=False)
class Memory:
    """What is remembered of the vote.

    Attributes
    ----------
    findings
        Its outcome, once there was one.
    served
        The cluster whose model each client chose, shape (K,); None before the vote, where groups lost it, and
        in a run that goes on. It is in no checkpoint.
    """

    findings: Findings = field(default_factory=Findings)
    served: IntArray | None = field(default=None, metadata=UNSAVED)


class PrivateGroups(NetworkStrategy):
    """Train one model for all and, beside it, k models for groups that clients choose; then vote.

    After the warm-up, k models start around the model for all. In every further round the cohort trains that
    model, and each of its clients also the one of the k that has the least loss on its own training rows.
    After the last round clients compare, on their held-out rows, the model of their group with the one for
    all; groups are kept if a noisy sum of these votes shows that they help. See
    :mod:`fedclust.clustering.private_groups` for why this is private, and docs/PRIVACY.md for the promise.

    The assignment has everyone with the model for all (cluster 0) until the vote. Where groups win it and
    clients are simulated, or nothing is private, everyone is then in the cluster that it chose. Elsewhere the
    assignment stays as it is, as it would be published with the results: each client chooses for itself, and
    the results name the clusters to choose among (``choose_among``).

    Without privacy it does the same, without noise: what groups and the vote could reach at best.

    Parameters
    ----------
    network
        Its trained parameters are what the starts differ in.
    parameters
        Number of groups, warm-up and vote.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    holds_client_dp = frozenset({LossesQuestion.kind, ProofQuestion.kind})
    asks = holds_client_dp

    needs_last_round = True
    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory
    needs_whole_models = True

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with everyone in one cluster."""
        return replace(super().begin(federation, model), memory=Memory())

    def cohort(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Choose a share of all clients, whatever group they chose last."""
        return super().cohort(_together(clusters), federation)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Send everyone the model for all."""
        return _together(clusters)

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Train the groups' models; start them after the warm-up; vote after the last round."""
        number, last = federation.server_round, federation.num_rounds
        if len(clusters.models) == 1:
            return self._start_groups(clusters) if self.parameters.warmup <= number < last else clusters
        clusters = self._train_groups(clusters, federation)
        if number == last:
            return self._vote(clusters, federation)
        sizes, noise = clusters.report.get("group_sizes"), self._noise("count_noise")
        if sizes and private_groups.deserted(sizes, len(self.run.now.cohort), noise):
            return self._start_groups(clusters, number).with_report(started_anew=True)
        return clusters

    def evaluated(self, clusters: Clusters) -> Clusters:
        """Send each client the model that it chose, also where the choice is not recorded."""
        served = clusters.memory.served
        return clusters if served is None else replace(clusters, assignment=served)

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Warn of a run without a round for groups."""
        warmup = self.parameters.warmup
        return [] if rounds > warmup else [f"groups train after round {warmup}, the run has {rounds}"]

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """A newcomer chooses as all others do."""
        return Memory(clusters.memory.findings)

    # -- Inside ---------------------------------------------------------------------------------------------

    def _start_groups(self, clusters: Clusters, *again: int) -> Clusters:
        """Put the k models around the model for all; `again` is the round where they start anew."""
        model, given, common = clusters.models[0], self.parameters, clusters.aggregators[0]
        names = [name for name, each in self.network.named_parameters() if each.requires_grad]
        draws = generator(self.seed, "private groups", *again)
        values = private_groups.apart(to_vector(model, names), given.num_groups, given.spread, draws)
        starts = [with_vector(model, names, start, cast=True) for start in values]
        aggregators = (common, *(copy.deepcopy(common) for _ in starts))
        return replace(clusters, models=(model, *starts), aggregators=aggregators)

    @property
    def privacy(self) -> ClientPrivacy | None:
        """What makes the run private; None without privacy."""
        return self.layer(ClientPrivacy)

    def _noise(self, kind: str) -> float:
        """Return the standard deviation of a kind of noise, such as that on each group's size."""
        return float(getattr(self.privacy.settings, kind)) if self.privacy else 0.0

    def _choices(self, clusters: Clusters, clients: Iterable[int], federation: Federation) -> dict[int, int]:
        """Ask clients for the group of least loss on their training rows; a client that fails has none."""
        losses = federation.losses(clusters.models[1:], clients)
        chosen = ifca.choose(np.array([*losses.values()])).tolist() if losses else []
        return dict(zip(losses, chosen, strict=True))

    def _train_groups(self, clusters: Clusters, federation: Federation) -> Clusters:
        run, privacy, cohort = self.run, self.privacy, sorted(self.run.now.cohort)
        clients = self._choices(clusters, cohort, federation)
        sizes = np.bincount(list(clients.values()), minlength=self.parameters.num_groups).tolist()
        models, aggregators = clusters.models[1:], copy.deepcopy(clusters.aggregators[1:])
        shared = self.takes_means(self.make_aggregator())
        caps = caps_of(self.options) if privacy is None else ANY
        fields = {} if privacy is None else privacy.instruction | {"clip_tells": False}
        options: dict[str, Any] = {"shared_means": shared, "caps": caps, "instruction": fields}
        replies = train_beside(run, models, aggregators, clients, **options)
        if privacy is not None:
            replies, sizes = privacy.groups(replies, cohort, models, run.number)
        try:
            models = aggregate_beside(run, models, aggregators, replies, shared_means=shared)
        except NotFinite as error:  # of an aggregator; the groups stay as they are
            return clusters.with_report(groups=str(error))
        models, aggregators = (clusters.models[0], *models), (clusters.aggregators[0], *aggregators)
        shown = [round(float(size), 1) for size in sizes]
        return replace(clusters, models=models, aggregators=aggregators).with_report(group_sizes=shown)

    def _vote(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Ask everyone for a group and a vote; keep the groups if they are shown to help."""
        given, privacy, clients = self.parameters, self.privacy, range(clusters.num_clients)
        chosen = self._choices(clusters, clients, federation)
        votes = self._votes(clusters, chosen, federation)
        total = privacy.vote(votes, self.run.number) if privacy else float(sum(votes.values()))
        noise = self._noise("evaluation_noise")
        kept, threshold = private_groups.groups_help(total, len(clients), noise, given.level)
        scale = given.vote_clip / len(clients)
        gain, needed = total * scale, threshold * scale
        hidden = privacy is not None and not privacy.simulated
        words = "groups help" if kept else "groups are not shown to help: one model for all"
        summary = {
            "decision": f"{words} (gain {gain:.3f}, at least {needed:.3f} to be shown)",
            "groups_kept": kept,
            "gain": gain,
            "gain_needed": needed,
            **({"choose_among": list(range(1, given.num_groups + 1))} if kept and hidden else {}),
        }
        served = np.zeros(len(clients), dtype=np.int64)
        if kept:
            served[list(chosen)] = 1 + np.array([*chosen.values()])
        return replace(
            clusters,
            assignment=clusters.assignment if hidden else served,
            memory=Memory(Findings(summary), served),
            reason=f"{words}, clients chose",
        ).with_report(**summary)

    def _votes(
        self, clusters: Clusters, chosen: Mapping[int, int], federation: Federation
    ) -> dict[int, float]:
        """Ask clients how much better their group's model predicts their held-out rows than that for all."""
        nothing, common = np.zeros(federation.describe().num_classes), clusters.models[0]
        questions: dict[int, ProofQuestion] = {
            client: ProofQuestion(common, clusters.models[1 + group], nothing, nothing)
            for client, group in chosen.items()
        }
        clip, measured = self.parameters.vote_clip, federation.ask(questions).replies
        return {
            client: float(private_groups.vote([each.evidence.mean], clip)[0])
            for client, each in measured.items()
            if each.count
        }


def _together(clusters: Clusters) -> Clusters:
    """Return the clusters with everyone in that of the model for all."""
    return replace(clusters, assignment=np.zeros(clusters.num_clients, dtype=np.int64))
