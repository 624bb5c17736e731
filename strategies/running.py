"""A run in progress."""

import copy
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.aggregation.flower import NotFinite
from fedclust.aggregation.optimiser_state import StateValue, pack_state, restore_state
from fedclust.federation import Clusters, CohortView, Failure, Federation, Measured, Reply, round_figures
from fedclust.federation.attendance import Attendance
from fedclust.federation.replies import by_cluster
from fedclust.federation.run_state import RunState
from fedclust.layers.drift import look_for_drift, moved
from fedclust.layers.going_back import Earlier
from fedclust.messages import MEAN_REPLY, Evaluation

__all__ = ["Running"]


class Running:
    """The values that Flower's separate calls in one round share, and what any method does with them."""

    def __init__(self, federation: Federation, clusters: Clusters, aggregators: Sequence[Strategy]) -> None:
        self.federation = federation
        self.clusters = clusters
        self.aggregators = list(aggregators)
        self.buffers: frozenset[str] = frozenset()
        self.shows_models = False  # whether Flower's loop is to have all models after every round
        self.server_round = 0  # the last finished one
        self.cohort: dict[int, int] = {}  # client: its cluster when the round began
        self.sent: tuple[ArrayRecord, ...] = ()  # the models that the cohort started from
        self.config = ConfigRecord()  # what clients are told in every round
        self.projection_size = 0  # of what the cohort was asked for
        self.record: dict[str, Any] = {}
        self.failed_replies = 0
        self.measured = Measured()
        self.sampled = False  # whether a sample of the clients evaluates in this round
        self.earlier: Earlier | None = None  # as this round found the clusters
        self.before: Earlier | None = None  # as the one before did
        self.initial = clusters.models[0]  # the model that everyone starts from
        self.attendance = Attendance.of(clusters.num_clients)
        self.joined: list[int] = []  # who joined in this round
        self.in_a_row: dict[int, int] = {}  # cluster: how many rounds it went back in, without one between
        self.began = time.perf_counter()

    @classmethod
    def resumed(
        cls,
        federation: Federation,
        state: RunState,
        make_aggregator: Callable[[], Strategy],
        restore: Callable[[Mapping[str, StateValue]], Any],
    ) -> "Running":
        """Make the run that goes on from a state.

        Parameters
        ----------
        federation
            The clients that had joined by then.
        state
            The state.
        make_aggregator
            Makes a cluster's aggregator.
        restore
            Rebuilds the method's memory.

        Raises
        ------
        ValueError
            If the state is of another number of clients.
        """
        if len(state.assignment) != federation.num_clients:
            raise ValueError(
                f"resume must be of a run with {federation.num_clients} clients, "
                f"got one with {len(state.assignment)}"
            )
        aggregators = [make_aggregator() for _ in state.models]
        for aggregator, packed in zip(aggregators, state.aggregators, strict=True):
            restore_state(aggregator, packed)
        federation.turns[:] = state.turns
        run = cls(federation, Clusters(state.assignment, state.models, restore(state.memory)), aggregators)
        run.server_round, run.failed_replies = state.server_round, state.failed_replies
        run.measured = state.measured
        run.attendance = Attendance.unpack(state.attendance, federation.num_clients)
        if state.earlier:  # checkpoints of before do not have it
            run.earlier = Earlier.unpack(state.earlier, state.models, make_aggregator)
            run.in_a_row = {
                int(key): times for key, times in json.loads(str(state.earlier["in_a_row"])).items()
            }
        return run

    def state(self, memory: Mapping[str, StateValue], fresh: Strategy) -> RunState:
        """Get the state after a round, from which :meth:`resumed` makes the run.

        Parameters
        ----------
        memory
            What the method remembers.
        fresh
            An aggregator that has not aggregated yet.
        """
        return RunState(
            server_round=self.server_round,
            assignment=self.clusters.assignment,
            models=self.clusters.models,
            turns=self.federation.turns.copy(),
            memory=memory,
            aggregators=tuple(pack_state(aggregator, fresh) for aggregator in self.aggregators),
            measured=self.measured,
            failed_replies=self.failed_replies,
            attendance={**self.federation.attendance(), **self.attendance.pack()},
            earlier=self._pack_earlier(fresh),
        )

    def _pack_earlier(self, fresh: Strategy) -> dict[str, StateValue]:
        if self.earlier is None:
            return {}
        return {**self.earlier.pack(self.clusters.models, fresh), "in_a_row": json.dumps(self.in_a_row)}

    def attend(self, online: Collection[int]) -> None:
        """Note who is online at an evaluation, and in the round's record who left and who is back."""
        self.attendance, changes = self.attendance.noted(online)
        self.record |= changes

    def begin(self) -> None:
        """Remember what a round finds."""
        self.sampled = False
        self.before, self.earlier = self.earlier, Earlier(self.clusters, self.aggregators)

    def training_messages(
        self,
        grid: Grid,
        settings: ConfigRecord,
        own: Collection[int],
        takes_means: Callable[[Strategy], bool],
    ) -> list[Message]:
        """Let each cluster's aggregator write the messages to the cohort's clients in it.

        Parameters
        ----------
        grid
            A grid of all clients.
        settings
            What clients are told.
        own
            Clients that must send their own models.
        takes_means
            Whether, with an aggregator, a node may reply with the mean of its clients' models.
        """
        messages: list[Message] = []
        chosen_of: dict[int, list[int]] = {}
        for client, cluster in self.cohort.items():
            chosen_of.setdefault(cluster, []).append(client)
        for cluster, chosen in sorted(chosen_of.items()):
            aggregator, model = self.aggregators[cluster], self.clusters.models[cluster]
            told = settings.copy()  # its own: an aggregator may write into it
            # The mean of one client is its model, in half the bytes.
            told[MEAN_REPLY] = len(chosen) > 1 and takes_means(aggregator)
            view, number = CohortView(grid, chosen), self.server_round + 1
            sent = self.sent[cluster]
            shown = model if aggregation.remembers(aggregator) else sent
            asked = aggregation.configure_train(aggregator, number, shown, told, view, self.buffers)
            if sent is not shown:
                asked = aggregation.train_from(asked, sent)
            messages += aggregation.ask_for_own_models(asked, own)
        return messages

    def aggregated(self, replies: Sequence[Reply]) -> Clusters:
        """Let each cluster's aggregator compute its next model; one that is not finite is not taken.

        Parameters
        ----------
        replies
            The valid replies. A cluster without any keeps its model.

        Returns
        -------
        The clusters with the next models.
        """
        clusters, unusable = self.clusters, {}
        models = list(clusters.models)
        for cluster, cohort in by_cluster(replies).items():
            aggregator = self.aggregators[cluster]
            try:
                models[cluster] = aggregation.aggregate(
                    aggregator,
                    self.server_round + 1,
                    models[cluster],
                    cohort,
                    self.buffers,
                    shared_means=aggregation.needs_only_mean(aggregator),
                )
            except NotFinite as error:
                unusable[cluster] = str(error)
        self.go_back(unusable)
        return dataclasses.replace(clusters, models=tuple(models))

    def go_back(self, reasons: Mapping[int, str], *, to_before: bool = False) -> None:
        """Put clusters back to what this round found, or the one before, and note why in the round's record.

        Parameters
        ----------
        reasons
            Why, by cluster.
        to_before
            Whether what this round found is of no use either.
        """
        if not reasons or self.earlier is None:
            return
        if to_before and self.before is not None:
            self.earlier = self.earlier.repaired(self.before, reasons)
        sizes = self.clusters.sizes
        self.clusters, self.aggregators = self.earlier.back(self.clusters, self.aggregators, reasons)
        self.record.setdefault("went_back", []).extend(
            {
                "cluster": cluster,
                "clients": int(sizes[cluster]),
                "reason": reason,
                "in_a_row": self.in_a_row.get(cluster, 0) + 1,
            }
            for cluster, reason in reasons.items()
        )

    def adopt(self, clusters: Clusters, make: Callable[[], Strategy], method: str, server_round: int) -> bool:
        """Check and store the clusters that a method's hook returned.

        Parameters
        ----------
        clusters
            What the hook returned.
        make
            Makes an aggregator; a child's copies its parent's state or has its own.
        method, server_round
            Who returned it, and in which round, for the messages.

        Returns
        -------
        Whether a client's cluster is another one now.

        Raises
        ------
        TypeError
            If these are not clusters.
        ValueError
            If they are not of all clients.
        """
        if not isinstance(clusters, Clusters):
            raise TypeError(
                f"hooks of {method} must return Clusters, "
                f"one of round {server_round} returned {type(clusters).__name__}"
            )
        if clusters.num_clients != self.federation.num_clients:
            raise ValueError(
                f"{method} must assign all {self.federation.num_clients} clients, "
                f"round {server_round} assigns {clusters.num_clients}"
            )
        made: list[Strategy] = []
        for cluster in range(len(clusters.models)):
            parent = clusters.parents.get(cluster)
            if cluster in clusters.optimisers:
                made.append(make())
                restore_state(made[-1], copy.deepcopy(dict(clusters.optimisers[cluster])))
            elif parent is not None:
                made.append(copy.deepcopy(self.aggregators[parent]))
            else:
                made.append(self.aggregators[cluster] if cluster < len(self.aggregators) else make())
        moved_some = not np.array_equal(clusters.assignment, self.clusters.assignment)
        self.aggregators = made
        self.clusters = dataclasses.replace(clusters, parents={}, optimisers={}, reason="")
        return moved_some

    def follow_drift(self, look: int, *, moves: bool) -> Clusters:
        """Look for clients that have drifted, note them in the round's record, and move them if allowed.

        Parameters
        ----------
        look
            Number of the look, from 1.
        moves
            Whether the method allows clients to be moved.
        """
        drifted = look_for_drift(self.clusters, self.federation, look)
        if drifted:
            self.record["drift"] = [each.summary(moved=moves) for each in drifted]
        return moved(self.clusters, drifted) if moves else self.clusters

    def measure(self, evaluations: Sequence[Evaluation], broken: Collection[int]) -> dict[str, float]:
        """Take what clients measured of their clusters' models.

        Parameters
        ----------
        evaluations
            The valid replies.
        broken
            Clusters whose new model is to blame for losses that are not finite; they go back.

        Returns
        -------
        The figures of the round's record, see :func:`round_figures`.
        """
        self.go_back(dict.fromkeys(broken, "the loss of its new model is not finite"))
        if evaluations or broken:
            self.measured = Measured.of(evaluations, self.clusters.num_clients)
        if not evaluations:
            return round_figures(Measured(), self.sampled)
        if "accuracy" in self.measured.figures:
            accuracy = self.measured.figures["accuracy"]
            self.attendance = self.attendance.measured(self.server_round + 1, accuracy)
        return round_figures(self.measured, self.sampled)

    def finish(
        self, failures: Sequence[Failure], figures: Mapping[str, float], privacy: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Finish the round, and return its record.

        Parameters
        ----------
        failures
            All of the round.
        figures
            What :meth:`measure` returned.
        privacy
            Entries about privacy.
        """
        self.in_a_row = {each["cluster"]: each["in_a_row"] for each in self.record.get("went_back", ())}
        sizes, now = self.clusters.sizes, time.perf_counter()
        record = {
            **self.record,
            "failures": list(failures),
            "num_clusters": int(np.count_nonzero(sizes)),
            "cluster_sizes": sizes.tolist(),
            **figures,
            "strategy": dict(self.clusters.report),
            **privacy,
            "seconds": now - self.began,
        }
        self.server_round, self.began = self.server_round + 1, now
        self.failed_replies += len(failures)
        return record
