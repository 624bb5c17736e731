"""The base of every strategy here: one model per cluster of clients.

This module runs the rounds; a method changes them by the hooks of :mod:`fedclust.strategies.hooks`.
Results read a run through the properties of :mod:`fedclust.strategies.run_view`.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.federation import Clusters, Federation
from fedclust.federation.evaluations import evaluation_messages, evaluation_sample, read_evaluations
from fedclust.federation.findings import NoObserver, Observer
from fedclust.federation.replies import read_replies, weighted_loss
from fedclust.federation.run_state import RunState
from fedclust.layers.client_dp import Guard
from fedclust.layers.going_back import at_fault
from fedclust.layers.update_norms import ANY, Caps
from fedclust.messages import FULL, LOSS, ROUND, UPDATE_NORM_CAP, join_models, projection_config
from fedclust.selection import Selection
from fedclust.settings.run_options import RunOptions
from fedclust.strategies.hooks import Hooks
from fedclust.strategies.run_view import RunView
from fedclust.strategies.running import Running

__all__ = ["ClusteredStrategy"]


def _fedavg() -> Strategy:
    return FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)


class ClusteredStrategy(Hooks, RunView, Strategy):
    """Train one model per cluster of clients; on its own, one model for all.

    Each cluster is a separate federation: an ordinary Flower strategy, the aggregator, sees only the clients
    chosen in that cluster. A method overrides the hooks that it needs:
    :meth:`begin`, :meth:`cohort`, :meth:`before_round`, :meth:`training_models`, :meth:`after_round`,
    :meth:`before_evaluation`, and :meth:`state` with :meth:`restore` if it remembers anything.

    The models of all clusters are passed through Flower's :meth:`start` as one ArrayRecord with keys
    ``<cluster>/<parameter>``.

    Parameters
    ----------
    options
        What the run tells every strategy, see :class:`~fedclust.settings.run_options.RunOptions`.
    given
        The same, value by value, such as ``participation=0.5``; not both.

    Raises
    ------
    ValueError
        If an argument is outside its range.
    """

    holds_client_dp = True  # of this class itself: FedAvg

    def __init__(
        self,
        *,
        options: RunOptions | None = None,
        **given: Any,
    ) -> None:
        if options is not None and given:
            raise ValueError(f"{', '.join(given)} must be given once: the run's options have it already")
        self.options = options = RunOptions(**given) if options is None else options
        self._caps = Caps(options.update_norm_cap, options.update_pull_cap)
        self.participation = options.participation
        self.seed = options.seed
        self.evaluate_every, self.evaluate_clients = options.evaluate_every, options.evaluate_clients
        self.drift_every, selection = options.drift_every, options.selection
        self.selection: Selection = self.own_selection() if selection is None else selection
        self.observer: Observer = NoObserver()
        self.guard: Guard | None = None  # makes the run differentially private, if set before it starts
        self._make_aggregator: Callable[[], Strategy] = options.aggregator or _fedavg
        self._run = None

    # -- The run --------------------------------------------------------------------------------------------

    @property
    def caps(self) -> Caps:
        """How far updates may move a model; ``privacy`` has a limit of its own."""
        return ANY if self.guard else self._caps

    def run_state(self) -> RunState:
        """Get the state of the run after a round."""
        run = self._running
        memory = self.state(run.clusters) | (self.guard.pack() if self.guard else {})
        return run.state(memory, self._make_aggregator())

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        buffers: frozenset[str] = frozenset(),
        federation: Federation | None = None,
        resume: RunState | None = None,
    ) -> Result:
        """Run the federation.

        Parameters
        ----------
        grid
            A grid whose node ids are client ids 0…K−1.
        initial_arrays
            The model that all clients start from.
        num_rounds
            The last round, counted from the start of the run, also for a resumed run.
        buffers
            Names of the model's floating-point buffers, see
            :func:`fedclust.aggregation.flower.buffer_names`: they are averaged, without the aggregator.
        federation
            The clients of the grid, if they have described themselves already; they are then not asked again.
        resume
            State of an earlier run to go on from.

        Returns
        -------
        Flower's result; its arrays hold every cluster's model, see :func:`fedclust.messages.split_models`.
        """
        federation = (
            federation.run(num_rounds, timeout, 0 if resume is None else resume.server_round)
            if federation
            else Federation(grid, num_rounds, timeout)
        )
        federation.covered = self.covered_by_client_dp
        if resume is None:
            clusters = self.begin(federation, initial_arrays)
            aggregators = [self._make_aggregator() for _ in clusters.models]
            self._run = Running(federation, clusters, aggregators)
            self.observer.assignment(0, clusters.assignment, clusters.reason or "before round 1")
        else:
            if self.guard:
                resume = dataclasses.replace(resume, memory=self.guard.restore(resume.memory))
            self._run = Running.resumed(federation, resume, self._make_aggregator, self.restore)
        self._run.buffers, self._run.initial = buffers, initial_arrays
        self._run.shows_models = evaluate_fn is not None
        return super().start(
            grid,
            join_models(self.clusters.models),
            num_rounds - self._run.server_round,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
        )

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002  (Flower counts the rounds of this process)
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Let each cluster's aggregator write the messages to the clients chosen in it."""
        run = self._running
        number = run.server_round + 1
        self._welcome(number)
        run.begin()
        run.config = ConfigRecord({**config})
        clusters = dataclasses.replace(run.clusters, report={}, reason="")
        cohort = self.cohort(clusters, number, run.federation)
        self._adopt(self.before_round(clusters, cohort, number, run.federation), number)
        run.federation.turns[cohort] += 1
        run.cohort = {int(client): int(run.clusters.assignment[client]) for client in cohort}
        run.sent = tuple(self.training_models(run.clusters, number))
        own = frozenset(map(int, self.own_models(run.clusters)))
        run.projection_size = self.projection(run.clusters, number)
        wanted = self.update_projection(run.projection_size) if run.projection_size else None
        told: dict[str, float] = {}
        if self.guard:
            told |= self.guard.told
        elif self.caps.norm is not None:
            told[UPDATE_NORM_CAP] = self.caps.norm
        settings = ConfigRecord({**config, **told, **projection_config(wanted)})
        return run.training_messages(grid, settings, own, self._takes_means)

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let each cluster's aggregator aggregate its clients' replies, then let the method change clusters.

        A reply that is an error, lacks something or is not finite is left out, and listed as a failure in
        the round's record. A cluster without a valid reply keeps its model.

        Returns
        -------
        Every cluster's model in one record, where somebody reads it: in the last round, or in all if
        :meth:`start` was given an `evaluate_fn`; otherwise None. And the mean loss.
        """
        run = self._running
        number = run.server_round + 1
        valid, failures = read_replies(
            replies,
            number,
            run.cohort,
            run.sent,
            run.federation.bounds,
            means=any(map(self._takes_means, run.aggregators)),
            caps=self.caps,
            projection_size=run.projection_size,
            pooled=self.pools_rows,
        )
        broken = at_fault(failures, run.cohort) if run.before and not self.guard else []
        valid = [reply for reply in valid if reply.cluster not in broken]
        failures = [each for each in failures if run.cohort[int(each["client"])] not in broken]
        if self.guard:
            valid = self.guard.private(valid, run.cohort, run.sent, number)
        loss = None if self.guard else weighted_loss(valid)
        run.record = {
            "round": number,
            "cohort": sorted(run.cohort),
            "loss": loss,
            "failures": [*run.federation.take_failures(), *failures],
            **({"joined": run.joined} if run.joined else {}),
        }
        run.go_back(dict.fromkeys(broken, "the loss of its model was not finite"), to_before=True)
        clusters = run.clusters
        if self.aggregates:
            clusters = run.aggregated(self.entering(clusters, valid, number))
        self._adopt(self.after_round(clusters, valid, number, run.federation), number)
        read = run.shows_models or number == run.federation.num_rounds
        joined = join_models(run.clusters.models) if read else None
        return joined, None if loss is None else MetricRecord({LOSS: loss})

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Send clients their cluster's model, in rounds with an evaluation."""
        run, number = self._running, self._running.server_round + 1
        last = number == run.federation.num_rounds
        if number % self.evaluate_every and not last:
            return []
        self._adopt(self.before_evaluation(run.clusters, number, run.federation), number)
        if self.drift_every and number % self.drift_every == 0:
            look = number // self.drift_every
            self._adopt(run.follow_drift(look, moves=self.moves_clients), number)
        online = set(grid.get_node_ids())
        run.attend(online)
        settings = ConfigRecord({**config, ROUND: number, FULL: last and run.federation.tells == "labels"})
        asked = None if last else self.evaluate_clients
        sample = evaluation_sample(asked, run.clusters.num_clients, self.seed, number, online)
        run.sampled = sample is not None
        return evaluation_messages(self.evaluated(run.clusters), online, sample, settings)

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Summarise the clients' measurements of their cluster's model, and finish the round's record."""
        run = self._running
        number = run.server_round + 1
        earlier = [*run.record["failures"], *run.federation.take_failures()]
        evaluations, failures, broken = read_evaluations(
            replies,
            number,
            # A client whose loss is not finite must not decide about the others' figures.
            np.arange(run.clusters.num_clients) if self.guard else run.clusters.assignment,
            run.federation.bounds,
            run.sampled,
        )
        if self.guard:  # a model is not taken back for what single clients measured of it
            evaluations, broken = self.guard.evaluations(evaluations, number), []
        summary = run.measure(evaluations, broken)
        privacy = {"privacy": self.guard.record()} if self.guard else {}
        self.observer.round(run.finish([*earlier, *failures], summary, privacy))
        return MetricRecord({**summary}) if summary else None

    def summary(self) -> None:
        """Log nothing: the run's configuration is in the results."""

    # -- Inside ---------------------------------------------------------------------------------------------

    def _welcome(self, server_round: int) -> None:
        """Let clients that wait join, at the beginning of a round."""
        run = self._running
        run.joined = run.federation.welcome(server_round).tolist()
        if run.joined:
            run.attendance = run.attendance.grown(len(run.joined))
            if self.guard:
                self.guard.grow(len(run.joined))
            clusters = dataclasses.replace(run.clusters, report={}, reason="")
            self._adopt(self.join(clusters, run.joined, server_round, run.federation), server_round)

    def _adopt(self, clusters: Clusters, server_round: int) -> None:
        """Check and store the clusters that a hook returned."""
        if self._running.adopt(clusters, self._make_aggregator, type(self).__name__, server_round):
            self.observer.assignment(server_round, clusters.assignment, clusters.reason)

    def _takes_means(self, aggregator: Strategy) -> bool:
        own = self.needs_client_models or self.caps.pull is not None
        return not own and aggregation.needs_only_mean(aggregator)
