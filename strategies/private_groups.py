"""Groups with ``privacy=client_dp``: k models beside one for all, and a noisy vote between them."""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from torch import nn

from fedclust.aggregation.flower import NotFinite
from fedclust.aggregation.optimiser_state import restored
from fedclust.aggregation.replies import ANY, Caps
from fedclust.clustering import ifca, private_groups
from fedclust.clustering.private_groups import Parameters
from fedclust.federation import Clusters, Federation, Reply
from fedclust.federation.clusters import Findings
from fedclust.layers.client_dp import ClientPrivacy
from fedclust.layers.trials import Trainee, copy_aggregator, train_beside
from fedclust.messages.evaluation import LossesQuestion, ProofQuestion
from fedclust.messages.models import to_vector, with_vector
from fedclust.messages.packer import UNSAVED
from fedclust.messages.training import instruct
from fedclust.strategies.base import ClusteredStrategy
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


class PrivateGroups(ClusteredStrategy):
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
        The architecture that clients train; its trained parameters are what the starts differ in.
    parameters
        Number of groups, warm-up and vote.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    holds_client_dp = frozenset({LossesQuestion.kind, ProofQuestion.kind})
    holds_out_rows = True  # for the vote

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def __init__(self, *, network: nn.Module, **given: Any) -> None:
        super().__init__(**given)
        self._trained = [name for name, each in network.named_parameters() if each.requires_grad]

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with everyone in one cluster."""
        return dataclasses.replace(super().begin(federation, model), memory=Memory())

    def cohort(self, clusters: Clusters, server_round: int, federation: Federation) -> IntArray:
        """Choose a share of all clients, whatever group they chose last."""
        return super().cohort(_together(clusters), server_round, federation)

    def before_round(
        self, clusters: Clusters, cohort: IntArray, server_round: int, federation: Federation
    ) -> Clusters:
        """Let everyone train the model for all."""
        return _together(clusters)

    def after_round(
        self, clusters: Clusters, replies: Sequence[Reply], server_round: int, federation: Federation
    ) -> Clusters:
        """Train the groups' models; start them after the warm-up; vote after the last round."""
        if len(clusters.models) > 1:
            clusters = self._train_groups(clusters, server_round, federation)
            sizes = clusters.report.get("group_sizes")
            if server_round == federation.num_rounds:
                clusters = self._vote(clusters, server_round, federation)
            elif sizes and private_groups.deserted(sizes, len(self.run.cohort), self._size_noise):
                clusters = self._start_groups(clusters, server_round).with_report(started_anew=True)
        elif self.parameters.warmup <= server_round < federation.num_rounds:
            clusters = self._start_groups(clusters)
        return clusters

    def evaluated(self, clusters: Clusters) -> Clusters:
        """Let each client evaluate the model that it chose, also where that is not recorded."""
        served = clusters.memory.served
        return clusters if served is None else dataclasses.replace(clusters, assignment=served)

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
        model, given = clusters.models[0], self.parameters
        values = to_vector(model, self._trained)
        draws = generator(self.seed, "private groups", *again)
        starts = [
            with_vector(model, self._trained, start, cast=True)
            for start in private_groups.apart(values, given.num_groups, given.spread, draws)
        ]
        common = clusters.aggregators[0]
        aggregators = (common, *(copy.deepcopy(common) for _ in starts))
        return dataclasses.replace(clusters, models=(model, *starts), aggregators=aggregators)

    @property
    def _size_noise(self) -> float:
        """Standard deviation of the noise on each group's size."""
        return self.privacy.settings.count_noise if self.privacy else 0.0

    @property
    def privacy(self) -> ClientPrivacy | None:
        """What makes the run private; None without privacy."""
        return self.layer(ClientPrivacy)

    def _choices(self, clusters: Clusters, clients: Iterable[int], federation: Federation) -> dict[int, int]:
        """Let clients choose a group, by the least loss on their training rows; who fails chooses none."""
        losses = federation.losses(clusters.models[1:], clients)
        chosen = ifca.choose(np.array([*losses.values()])).tolist() if losses else []
        return dict(zip(losses, chosen, strict=True))

    def _train_groups(self, clusters: Clusters, server_round: int, federation: Federation) -> Clusters:
        run, privacy = self.run, self.privacy
        cohort = sorted(run.cohort)
        clients = self._choices(clusters, cohort, federation)
        sizes = np.bincount(list(clients.values()), minlength=self.parameters.num_groups)
        fresh = self.make_aggregator()
        trainees = [
            Trainee(model, copy_aggregator(aggregator, fresh))
            for model, aggregator in zip(clusters.models[1:], clusters.aggregators[1:], strict=True)
        ]
        told: list[float] = []  # the sizes, with noise
        private = None if privacy is None else partial(_private, privacy, cohort, server_round, told)
        try:
            after, _ = train_beside(
                run,
                trainees,
                clients,
                shared_means=self.takes_means(fresh),
                caps=ANY if privacy else Caps(self.options.update_norm_cap, self.options.update_pull_cap),
                private=private,
                told={**privacy.told, **instruct(clip_tells=False)} if privacy else {},
            )
        except NotFinite as error:  # of an aggregator; the groups stay as they are
            return clusters.with_report(groups=str(error))
        models = (clusters.models[0], *(each.model for each in after))
        shown = [round(float(size), 1) for size in (told if privacy else sizes)]
        made = (restored(self.make_aggregator(), each.optimiser) for each in after)
        aggregators = (clusters.aggregators[0], *made)
        return dataclasses.replace(clusters, models=models, aggregators=aggregators).with_report(
            group_sizes=shown
        )

    def _vote(self, clusters: Clusters, server_round: int, federation: Federation) -> Clusters:
        """Let everybody choose and vote; keep the groups if they are shown to help."""
        given, privacy = self.parameters, self.privacy
        clients = range(clusters.num_clients)
        chosen = self._choices(clusters, clients, federation)
        votes = self._votes(clusters, chosen, federation)
        noise = privacy.settings.evaluation_noise if privacy else 0.0
        total = privacy.vote(votes, server_round) if privacy else float(sum(votes.values()))
        kept, threshold = private_groups.groups_help(total, len(clients), noise, given.level)
        scale = given.vote_clip / len(clients)
        hidden = privacy is not None and not privacy.simulated
        words = "groups help" if kept else "groups are not shown to help: one model for all"
        found = Findings(
            summary={
                "decision": f"{words} (gain {total * scale:.3f}, "
                f"at least {threshold * scale:.3f} to be shown)",
                "groups_kept": kept,
                "gain": total * scale,
                "gain_needed": threshold * scale,
                **({"choose_among": list(range(1, given.num_groups + 1))} if kept and hidden else {}),
            }
        )
        served = np.zeros(len(clients), dtype=np.int64)
        if kept:
            served[list(chosen)] = 1 + np.array([*chosen.values()])
        return dataclasses.replace(
            clusters,
            assignment=clusters.assignment if hidden else served,
            memory=Memory(found, served),
            reason=f"{words}, clients chose",
        ).with_report(**found.summary)

    def _votes(
        self, clusters: Clusters, chosen: Mapping[int, int], federation: Federation
    ) -> dict[int, float]:
        """Ask clients how much better their group's model predicts their held-out rows than that for all."""
        nothing = np.zeros(federation.describe().num_classes)
        common = clusters.models[0]
        questions: dict[int, ProofQuestion] = {
            client: ProofQuestion(common, clusters.models[1 + group], nothing, nothing)
            for client, group in chosen.items()
        }
        found: dict[int, float] = {}
        for client, measured in federation.ask(questions).replies.items():
            if measured.count:
                found[client] = float(private_groups.vote([measured.mean], self.parameters.vote_clip)[0])
        return found


def _private(
    privacy: ClientPrivacy,
    cohort: Sequence[int],
    server_round: int,
    told: list[float],
    replies: Sequence[Reply],
    models: Sequence[ArrayRecord],
) -> Sequence[Reply]:
    """Replace the replies by private means of the groups, and add their sizes, with noise, to `told`."""
    found, sizes = privacy.groups(replies, cohort, models, server_round)
    told += sizes
    return found


def _together(clusters: Clusters) -> Clusters:
    """Return the clusters with everyone in that of the model for all."""
    return dataclasses.replace(clusters, assignment=np.zeros(clusters.num_clients, dtype=np.int64))
