"""The core of every strategy here: a round, and the functions by which a method changes it.

A run begins with :meth:`~ClusteredStrategy.begin`, which forms the first clusters. In every round

1. a cohort is chosen (:meth:`~ClusteredStrategy.cohort`), and the method may change the clusters
   (:meth:`~ClusteredStrategy.before_round`);
2. each client of the cohort trains its cluster's model (:meth:`~ClusteredStrategy.training_models`);
3. in each cluster a Flower strategy, the aggregator, makes the next model of the replies
   (:meth:`~ClusteredStrategy.entering`);
4. the method changes the clusters by what the cohort replied (:meth:`~ClusteredStrategy.after_round`);
5. clients evaluate their cluster's model (:meth:`~ClusteredStrategy.before_evaluation`).

What else happens in a round are layers (:mod:`fedclust.layers`), which are called between these steps. The
module does not know which there are.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.aggregation.replies import Reply, by_cluster, weighted_loss
from fedclust.clustering.shared.placement import Placement
from fedclust.federation import run as rounds
from fedclust.federation.asking import read_replies
from fedclust.federation.clusters import Clusters, Decided, Findings, Observer
from fedclust.federation.federation import Federation
from fedclust.federation.run import Measured, Run, RunState
from fedclust.grids.client_grid import CohortView, Traffic
from fedclust.layers.layer import Layer
from fedclust.layers.standard import standard_layers
from fedclust.messages.models import join_models
from fedclust.messages.packer import pack, unpack
from fedclust.messages.training import LOSS, Projection, asked_for, instruct
from fedclust.newcomers.placing import by_least_loss, by_rule, unpacked
from fedclust.personal.layers import NoLayer, Personal
from fedclust.selection import Candidates, Selection, Uniform
from fedclust.settings.run_options import RunOptions
from fedclust.support.rng import cohort_size, generator, torch_seed
from fedclust.typing import FloatArray, IntArray

SomeLayer = TypeVar("SomeLayer", bound=Layer)


def _fedavg() -> Strategy:
    return FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)


class ClusteredStrategy(Strategy):
    """Train one model per cluster of clients; on its own, one model for all.

    Each cluster is a separate federation: an ordinary Flower strategy, the aggregator, sees only the clients
    chosen in that cluster. A method overrides a few functions on values. The assignment, each cluster's model
    and what the method remembers are one frozen value, :class:`~fedclust.federation.Clusters`, which a
    function takes and returns. It must not keep anything in attributes: called twice with the same values it
    returns the same, so that a resumed run equals an uninterrupted one bit by bit.

    The models of all clusters are passed through Flower's :meth:`start` as one ArrayRecord with keys
    ``<cluster>/<parameter>``.

    Parameters
    ----------
    parameters
        Settings of the method; its :attr:`parameters_type` at its defaults unless given.
    selection
        The policy that chooses a cluster's clients, unless the run has one.
    options
        What the run tells every strategy, see :class:`~fedclust.settings.run_options.RunOptions`.
    given
        The options, value by value, such as ``participation=0.5``; not both.

    Attributes
    ----------
    parameters, options
        As given.
    selection
        Chooses the clients of a cluster that take part.
    layers
        What happens in a round beside the method, in order.
    observer
        Receives the events of the run.

    Raises
    ------
    ValueError
        If a value is outside its range, or given twice.
    TypeError
        If there is no such option.
    """

    parameters_type: ClassVar[type[Any] | None] = None
    """Makes the parameters if none are given; None for a method without any. Two class attributes of it are
    known before the strategy is imported: ``held_out_rows``, what clients use held-out rows for in two words,
    such as ``"tests groups"``; and ``proves_splits``, see :attr:`proves_splits`."""

    memory_type: ClassVar[Any] = Findings | None
    """Type of what the method remembers: a frozen dataclass of arrays, numbers, names and records."""

    needs_client_models: bool = False
    """Whether the method needs each client's model, not a node's mean."""

    aggregates: ClassVar[bool] = True
    """Whether each cluster's aggregator computes its next model; if not, :meth:`after_round` does."""

    serves: ClassVar[Literal["best", "cluster"]] = "cluster"
    """Whose model serves a cluster's clients after the proof, unless the user decides: with ``"best"`` the
    model for all where the cluster's was not shown to be better, with ``"cluster"`` always the cluster's."""

    forms_groups: ClassVar[bool] = True
    """Whether clusters are what it may come to; if not, there is nothing to prove, and its model serves."""

    holds_client_dp: ClassVar[frozenset[str] | None] = frozenset()
    """Types of the questions that the method asks with ``privacy=client_dp``, as it uses the answers only in
    sums to which noise is added, or to choose what the client itself is sent; mostly none. Noisy means of
    updates and public facts must be all else that it reads of clients. None: it cannot hold this. Counts for
    exactly the class that says so, not for those derived from it. See docs/PRIVACY.md."""

    needs_label_counts: ClassVar[bool] = False
    """Whether the method reads the label counts of clients' descriptions."""

    asks_prototypes: bool = False
    """Whether the method asks for class prototypes; clients' mean embeddings are then kept for newcomers."""

    moves_clients: ClassVar[bool] = False
    """Whether a client whose data has changed may be moved to another cluster: nothing that the method
    remembers depends on who is where. Otherwise it is only reported, see :mod:`fedclust.layers.drift`."""

    needs_last_round: ClassVar[bool] = False
    """Whether it must know from the start which round is its last, so that a run cannot stop early."""

    own_selection: ClassVar[type[Selection]] = Uniform
    """The policy if none is given."""

    own_personal: ClassVar[type[Personal]] = NoLayer
    """The personal layers where none are given."""

    may_correct: bool = True
    """Whether the run's personal layers include the label-prior correction."""

    own_layers: ClassVar[tuple[type[Layer], ...]] = ()
    """Layers that belong to the method."""

    parameters: Any

    def __init__(
        self,
        *,
        parameters: Any = None,
        selection: Selection | None = None,
        options: RunOptions | None = None,
        **given: Any,
    ) -> None:
        if options is not None and given:
            raise ValueError(f"{', '.join(given)} must be given once: the run's options have it already")
        if parameters is not None and self.parameters_type is None:
            raise TypeError(f"{type(self).__name__} has no parameters, got {parameters!r}")
        if self.parameters_type is not None:
            self.parameters = self.parameters_type() if parameters is None else parameters
        self.options = RunOptions(selection=selection, **given) if options is None else options
        self.selection: Selection = self.options.selection or selection or self.own_selection()
        self.observer = Observer()
        self.add_layers()
        self._run: Run | None = None

    def add_layers(self, *further: Layer, private: bool = False) -> None:
        """Set the layers to the standard ones and these, see :func:`fedclust.layers.standard_layers`."""
        own = (kind() for kind in self.own_layers)
        self.layers = standard_layers(
            self.join,
            self.options,
            *own,
            *further,
            moves_clients=self.moves_clients,
            private=private,
            settled=self.settled,
        )

    def with_options(self, **changes: Any) -> Self:
        """Return a copy, with layers of its own, for a run with other options."""
        made = copy.copy(self)
        made.options = replace(self.options, **changes)
        made.selection = copy.deepcopy(self.selection)
        made.add_layers()
        return made

    @property
    def holds_out_rows(self) -> bool:
        """Whether the method decides on held-out rows."""
        return bool(getattr(self.parameters_type, "held_out_rows", ""))

    @property
    def proves_splits(self) -> bool:
        """Whether the method tests each split on held-out rows and keeps only what was shown to be better.

        With ``serve=best`` a cluster's model then serves unless the one for all measures better at the end.
        """
        return bool(getattr(self.parameters_type, "proves_splits", False))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.options.seed

    def derived_seed(self, purpose: str, *keys: int) -> int:
        """Derive a seed for one purpose, such as ``"split"`` in a round, in scikit-learn's [0, 2³²)."""
        return torch_seed(self.seed, purpose, *keys) % 2**32

    def make_aggregator(self) -> Strategy:
        """Make the Flower strategy that aggregates within a cluster."""
        made: Strategy = (self.options.aggregator or _fedavg)()
        return made

    # -- What a method may change: functions on values ------------------------------------------------------

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Form the clusters before round 1; unless overridden, one cluster of all clients.

        Parameters
        ----------
        federation
            The clients, to ask them questions.
        model
            The model that all clients start from.
        """
        return Clusters.of(np.zeros(federation.num_clients, dtype=np.int64), model)

    def cohort(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Choose the clients that take part in a round; unless overridden, a share of each cluster.

        Returns
        -------
        Client ids, sorted.
        """
        chosen = []
        for cluster, model in enumerate(clusters.models):
            members = clusters.members(cluster)
            # A draw for each of many clusters of one takes time. Other policies may ask, and choose nobody.
            drawn = len(members) > 1 or (len(members) and type(self.selection) is not Uniform)
            chosen.append(self.select(members, model, federation, cluster) if drawn else members)
        return np.sort(np.concatenate(chosen))

    def select(self, clients: IntArray, model: ArrayRecord, federation: Federation, *keys: int) -> IntArray:
        """Choose a share of some clients by the run's policy; `keys` make draws of a round different."""
        number = federation.server_round
        draws = generator(self.seed, "sample", number, *keys)
        candidates = Candidates(clients, model, number, federation)
        return self.selection.select(candidates, self.cohort_size(len(clients)), draws)

    def cohort_size(self, num_members: int) -> int:
        """Compute the number of a cluster's clients that take part in a round."""
        return cohort_size(num_members, self.options.participation)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Change the clusters before the cohort trains, such as by asking it which model serves it best."""
        return clusters

    def training_models(self, clusters: Clusters) -> Sequence[ArrayRecord]:
        """Return the model that each cluster's cohort starts from; unless overridden, the cluster's model.

        In any case, the aggregator uses the cluster's model as the model before the round, and the cluster's
        model is evaluated, served and saved.
        """
        return clusters.models

    def own_models(self, clusters: Clusters) -> Collection[int]:
        """List clients of the cohort that must send their own models, not their node's mean."""
        return ()

    def told(self, clusters: Clusters) -> Mapping[str, Any]:
        """Return what the cohort is told besides; such as :meth:`ask_for_projection`."""
        return {}

    def ask_for_projection(self, size: int) -> Mapping[str, Any]:
        """Return what asks each client for a projection of its change to `size` numbers.

        :attr:`Reply.projected` has it, a random projection that keeps lengths and angles on average, see
        :class:`~fedclust.messages.training.Projection`: enough to compare updates, even if a node
        may reply with a mean. Projections of all rounds of a run can be compared.
        """
        return instruct(projection=self.update_projection(size))

    def update_projection(self, size: int) -> Projection:
        """Make the run's projection to `size` numbers, for :meth:`Federation.updates`."""
        return Projection(size, torch_seed(self.seed, "projection"))

    def update_rows(
        self,
        federation: Federation,
        model: ArrayRecord,
        clients: Iterable[int],
        server_round: int,
        *,
        size: int | None = None,
        names: Sequence[str] = (),
    ) -> tuple[IntArray, FloatArray]:
        """Ask clients what a round of training would change, see :meth:`Federation.updates`.

        Parameters
        ----------
        federation
            The clients.
        model, clients, server_round, names
            As for :meth:`Federation.updates`.
        size
            Numbers of a projection of the change; None for the change of `names` itself.

        Returns
        -------
        Ids of the clients that answer, sorted, shape (n,), and a row for each, shape (n, d).
        """
        projection = None if size is None else self.update_projection(size)
        cap = self.options.update_norm_cap
        found = federation.updates(model, clients, server_round, projection=projection, names=names, cap=cap)
        rows = [
            np.concatenate([change.ravel() for change in each.changes.values()])
            if each.projected is None
            else each.projected.values
            for each in found.values()
        ]
        return np.array(list(found), dtype=np.int64), np.array(rows)

    def entering(
        self, clusters: Clusters, replies: Sequence[Reply], federation: Federation
    ) -> Sequence[Reply]:
        """List the replies to aggregate; one may be listed several times, or not at all."""
        return replies

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Change the clusters after a round.

        Parameters
        ----------
        clusters
            The clusters, with the aggregated models.
        replies
            The valid replies, sorted by client id; each has the cluster and the model it started from.
        federation
            The clients, to ask them questions; it knows the round, ``federation.server_round``.
        """
        return clusters

    def before_evaluation(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Change the clusters before all clients evaluate, in rounds with an evaluation."""
        return clusters

    def evaluated(self, clusters: Clusters) -> Clusters:
        """Return which cluster's model each client evaluates; unless overridden, its own cluster's."""
        return clusters

    def place(
        self, clusters: Clusters, newcomers: Sequence[int], server_round: int, federation: Federation
    ) -> dict[int, Placement]:
        """Find the cluster of each client that was not there when clusters were formed.

        Unless overridden, by the rule in the method's findings, such as the nearest centre of label counts.
        Without one, that whose model has the least loss on the client's training rows, or none if all are no
        better than guessing; see :func:`~fedclust.newcomers.placing.by_least_loss`. Clusters and models
        stay as they are.

        Parameters
        ----------
        clusters
            The clusters after some round.
        newcomers
            Ids of the clients to place; none has a cluster in `clusters`.
        server_round
            The last finished round.
        federation
            The clients, newcomers too, to ask them questions.

        Returns
        -------
        By client id, a cluster that has clients, or None for none of them; and the evidence.
        """
        if len(serving := np.unique(clusters.assignment)) == 1:
            only = Placement(int(serving[0]), "there is one model for all")
            return dict.fromkeys(map(int, newcomers), only)
        rule = unpacked(self.findings(clusters).placing)
        if rule is not None:
            return by_rule(rule, newcomers, federation)
        return by_least_loss(clusters, newcomers, federation)

    def join(self, clusters: Clusters, newcomers: Sequence[int], federation: Federation) -> Clusters:
        """Add clients that join before a round; those that were there keep their clusters.

        Unless overridden, each goes where :meth:`place` puts it, or into the largest cluster if that finds
        none, and the method's memory grows by :meth:`grown`.

        Parameters
        ----------
        clusters
            The clusters of the K clients that were there.
        newcomers
            Ids of those that join: K, K+1, …
        federation
            The clients, newcomers too.
        """
        placed = self.place(clusters, newcomers, federation.server_round - 1, federation)
        largest = int(clusters.sizes.argmax())
        found = [placed[int(client)].cluster for client in newcomers]
        homes = np.array([largest if home is None else home for home in found], dtype=np.int64)
        return clusters.joined(homes, self.grown(clusters, homes))

    def grown(self, clusters: Clusters, homes: IntArray) -> Any:
        """Return the memory of a federation in which clients have joined.

        A method whose memory is neither None nor Findings overrides this.

        Parameters
        ----------
        clusters
            The clusters of the K clients that were there, with the memory so far.
        homes
            Cluster of each newcomer K, K+1, …, shape (n,).
        """
        memory = clusters.memory
        return memory.grown(clusters.num_clients, len(homes)) if isinstance(memory, Findings) else memory

    def settled(self, clusters: Clusters, server_round: int) -> bool:
        """Return whether a run may stop after this round with these clusters; unless overridden, it may."""
        return True

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List warnings that the method cannot work with these settings; empty unless overridden."""
        return []

    def cross_fits(self, rows: IntArray, model: ArrayRecord) -> bool:
        """Whether clients with so many rows choose by cross-fitting: none are then held out of training."""
        return False

    def notes(self, federation: Federation, rounds: int, model: ArrayRecord) -> list[str]:
        """List what users are told before round 1, such as what it may cost; empty unless overridden."""
        return []

    def findings(self, clusters: Clusters) -> Findings:
        """Summarise the method's results after the last round; unless overridden, Findings in its memory."""
        memory = clusters.memory
        return memory if isinstance(memory, Findings) else getattr(memory, "findings", Findings())

    def decided(self) -> Decided | None:
        """Return what clients chose for themselves by the end of a run; None unless overridden."""
        return None

    # -- The run --------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        should_stop: Callable[[int, Result], bool] | None = None,
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
        evaluate_fn
            Measures all clusters' models in one record before the first round and after each one.
        should_stop
            Called after each round with its number and the result so far; True ends the run. Flower has it
            from 1.43 on, so the rounds are counted here, not by Flower's ``start``.
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

        Raises
        ------
        ValueError
            If `resume` is of another number of clients, or not of this method.
        """
        after = 0 if resume is None else resume.server_round
        everyone = Federation(grid) if federation is None else federation
        federation = everyone.run(num_rounds, timeout, after)
        clusters = self.begin(federation, initial_arrays) if resume is None else self._resumed(resume)
        if resume is not None and (got := clusters.num_clients) != (wanted := federation.num_clients):
            raise ValueError(f"resume must be of a run with {wanted} clients, got one with {got}")
        run = self._run = Run(federation, clusters, self.make_aggregator, initial_arrays, buffers)
        run.shows_models = evaluate_fn is not None or should_stop is not None
        self._adopt(replace(clusters))
        for layer in self.layers:
            layer.begin(run)
        if resume is None:
            self.observer.assignment(0, clusters.assignment, clusters.reason or "before round 1")
        else:
            federation.turns[:] = resume.turns
            run.server_round, run.failed_replies = resume.server_round, resume.failed_replies
            run.measured = resume.measured
            for layer in self.layers:
                if layer.memory_type is not None:
                    packed = resume.layers.get(type(layer).__name__, {})
                    layer.restore(run, unpack(layer.memory_type, packed))
        result, arrays = Result(), join_models(clusters.models)
        train_config, evaluate_config = train_config or ConfigRecord(), evaluate_config or ConfigRecord()

        def exchange(messages: list[Message]) -> Iterable[Message]:
            return grid.send_and_receive(messages, timeout=timeout)

        def evaluate(number: int) -> None:
            if evaluate_fn is not None and (metrics := evaluate_fn(number, arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = metrics

        evaluate(run.server_round)
        while not run.over:
            number = run.number
            replies = exchange(self.configure_train(number, arrays, train_config, grid))
            new, metrics = self.aggregate_train(number, replies)
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            if new is not None:
                result.arrays = arrays = new
            replies = exchange(self.configure_evaluate(number, arrays, evaluate_config, grid))
            measured = self.aggregate_evaluate(number, replies)
            if measured is not None:
                result.evaluate_metrics_clientapp[number] = measured
            evaluate(number)
            if should_stop is not None and should_stop(number, result):
                break
        result.arrays = join_models(run.clusters.models)  # of the best round, maybe
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Let each cluster's aggregator write the messages to the clients chosen in it."""
        run = self.run
        run.begin_round(config)
        for layer in self.layers:
            self._adopt(layer.before_round(run))
        cohort = self.cohort(run.clusters, run.federation)
        self._adopt(self.before_round(run.clusters, cohort, run.federation))
        run.federation.turns[cohort] += 1
        for layer in self.layers:
            cohort = layer.stand_in(run, cohort)
        run.cohort = {int(client): int(run.clusters.assignment[client]) for client in cohort}
        run.sent = tuple(self.training_models(run.clusters))
        told = ConfigRecord({**config, **self.told(run.clusters)})
        own = frozenset(map(int, self.own_models(run.clusters)))
        messages: list[Message] = []
        chosen_of: dict[int, list[int]] = {}
        for client, cluster in run.cohort.items():
            chosen_of.setdefault(cluster, []).append(client)
        for cluster, chosen in sorted(chosen_of.items()):
            messages += aggregation.ask_for_own_models(self._ask(cluster, chosen, told.copy(), grid), own)
        for layer in self.layers:
            messages = layer.pack(run, messages)
        return messages

    def _ask(self, cluster: int, chosen: list[int], told: ConfigRecord, grid: Grid) -> list[Message]:
        """Let a cluster's aggregator write the messages to the clients that were chosen in it."""
        run = self.run
        aggregator, model = run.clusters.aggregators[cluster], run.clusters.models[cluster]
        sent = run.sent[cluster]
        for layer in self.layers:
            layer.tell(run, cluster, told)
        # The mean of one client is its model, in half the bytes.
        told.update(instruct(mean_reply=len(chosen) > 1 and self.takes_means(aggregator)))
        run.told = told
        view = CohortView(grid, chosen)
        shown = model if aggregation.remembers(aggregator) else sent
        asked = aggregation.configure_train(aggregator, run.number, shown, told, view, run.buffers)
        return asked if sent is shown else aggregation.train_from(asked, sent)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let each cluster's aggregator aggregate its clients' replies, then let the method change clusters.

        A reply that is an error, lacks something or is not finite is left out, and listed as a failure in
        the round's record. A cluster without a valid reply keeps its model.

        Returns
        -------
        Every cluster's model in one record, where somebody reads it: in the last round, or in all if
        :meth:`start` was given an `evaluate_fn` or `should_stop`; otherwise None. And the mean loss.
        """
        run = self.run
        means, asked = any(map(self.takes_means, run.clusters.aggregators)), asked_for(run.told)
        for layer in self.layers:
            replies = layer.unpack(run, replies)
        run.replies, run.failures = read_replies(
            replies, run.number, run.cohort, run.sent, run.federation.bounds, means=means, asked=asked
        )
        for layer in self.layers:
            layer.screen(run)
        loss = weighted_loss(run.replies)
        failures = [*run.federation.take_failures(), *run.failures]
        run.record |= {"cohort": sorted(run.cohort), "loss": loss, "failures": failures}
        if self.aggregates:
            self._adopt(self._aggregated(self.entering(run.clusters, run.replies, run.federation)))
        for layer in self.layers:
            self._adopt(layer.after_aggregation(run))
        self._adopt(self.after_round(run.clusters, run.replies, run.federation))
        read = run.shows_models or run.number == run.federation.num_rounds
        joined = join_models(run.clusters.models) if read else None
        return joined, None if loss is None else MetricRecord({LOSS: loss})

    def _aggregated(self, replies: Sequence[Reply]) -> Clusters:
        """Compute each cluster's next model; one that is not finite is not taken."""
        run = self.run
        models = list(run.clusters.models)
        for cluster, cohort in by_cluster(replies).items():
            aggregator = run.clusters.aggregators[cluster]
            means = aggregation.needs_only_mean(aggregator)
            try:
                models[cluster] = aggregation.aggregate(
                    aggregator, run.number, models[cluster], cohort, run.buffers, shared_means=means
                )
            except aggregation.NotFinite as error:
                run.unusable[cluster] = str(error)
        return replace(run.clusters, models=tuple(models))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Send clients their cluster's model, in rounds with an evaluation."""
        run = self.run
        last = run.number == run.federation.num_rounds
        if run.number % self.options.evaluate_every and not last:
            return []
        self._adopt(self.before_evaluation(run.clusters, run.federation))
        for layer in self.layers:
            self._adopt(layer.before_evaluation(run))
        last = run.number == run.federation.num_rounds  # a layer may have stopped the run
        run.online = set(grid.get_node_ids())
        full = last and run.federation.disclosed == "labels"
        settings = ConfigRecord({**config, **instruct(server_round=run.number, full=full)})
        asked = None if last else self.options.evaluate_clients
        clients = run.clusters.num_clients
        sample = rounds.evaluation_sample(asked, clients, self.seed, run.number, run.online)
        run.sampled = sample is not None
        return rounds.evaluation_messages(self.evaluated(run.clusters), run.online, sample, settings)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Summarise the clients' measurements of their cluster's model, and finish the round's record."""
        run = self.run
        earlier = [*run.record["failures"], *run.federation.take_failures()]
        run.unusable = {}
        read = rounds.read_evaluations(replies, run.number, run.federation.bounds)
        run.evaluations, run.failures = read
        for layer in self.layers:
            self._adopt(layer.measured(run))
        run.record["failures"] = [*earlier, *run.failures]
        if run.evaluations or run.unusable:
            run.measured = Measured.of(run.evaluations, run.clusters.num_clients)
        measured = run.measured if run.evaluations else Measured()
        figures = rounds.round_figures(measured, run.sampled, self.options.row_cap)
        self.observer.round(run.finish_round(figures))
        return MetricRecord({**figures}) if figures else None

    def summary(self) -> None:
        """Log nothing: the run's configuration is in the results."""

    def takes_means(self, aggregator: Strategy) -> bool:
        """Whether, with an aggregator, a node may reply with the mean of its clients' models."""
        own = self.needs_client_models or any(layer.needs_client_models for layer in self.layers)
        return not own and aggregation.needs_only_mean(aggregator)

    def _adopt(self, clusters: Clusters) -> None:
        """Check and take the clusters that the method or a layer returned."""
        run, method = self.run, type(self).__name__
        if clusters is run.clusters and clusters.num_clients == run.federation.num_clients:
            return
        if not isinstance(clusters, Clusters):
            got = f"one of round {run.number} returned {type(clusters).__name__}"
            raise TypeError(f"hooks of {method} must return Clusters, {got}")
        if clusters.num_clients != (wanted := run.federation.num_clients):
            got = f"round {run.number} assigns {clusters.num_clients}"
            raise ValueError(f"{method} must assign all {wanted} clients, {got}")
        before, number = run.clusters, len(clusters.models)
        kept = (*clusters.aggregators, *before.aggregators[len(clusters.aggregators) :])[:number]
        made = (self.make_aggregator() for _ in range(number - len(kept)))
        run.clusters = replace(clusters, aggregators=(*kept, *made), reason="")
        if not np.array_equal(clusters.assignment, before.assignment):
            self.observer.assignment(run.number, clusters.assignment, clusters.reason)

    # -- What is shown of it --------------------------------------------------------------------------------

    def run_state(self) -> RunState:
        """Get the state of the run after a round."""
        run, fresh = self.run, self.make_aggregator()
        return RunState(
            server_round=run.server_round,
            assignment=run.clusters.assignment,
            models=run.clusters.models,
            turns=run.federation.turns.copy(),
            memory=pack(run.clusters.memory, self.memory_type),
            aggregators=tuple(aggregation.pack_state(each, fresh) for each in run.clusters.aggregators),
            measured=run.measured,
            failed_replies=run.failed_replies,
            roster=run.federation.roster_state(),
            layers={
                type(layer).__name__: pack(layer.state(run), layer.memory_type)
                for layer in self.layers
                if layer.memory_type is not None
            },
        )

    def _resumed(self, state: RunState) -> Clusters:
        made = tuple(aggregation.restored(self.make_aggregator(), each) for each in state.aggregators)
        return Clusters(state.assignment, state.models, unpack(self.memory_type, state.memory), made)

    def layer(self, kind: type[SomeLayer]) -> SomeLayer | None:
        """Return the layer of a kind; None if there is none."""
        return next((layer for layer in self.layers if isinstance(layer, kind)), None)

    @property
    def run(self) -> Run:
        """The run in progress, or after its last round.

        Raises
        ------
        RuntimeError
            If it has not begun.
        """
        if self._run is None:
            raise RuntimeError("the strategy must have been started, start() has not been called")
        return self._run

    @property
    def clusters(self) -> Clusters:
        """The current clusters."""
        return self.run.clusters

    @property
    def assignment(self) -> IntArray:
        """Current cluster of each client, shape (K,)."""
        return self.run.clusters.assignment

    @property
    def measured(self) -> Measured:
        """Each client's measurements at the last evaluation."""
        return self.run.measured

    @property
    def description_traffic(self) -> Traffic | None:
        """Bytes of asking clients to describe themselves, once the method has used the answers; else None."""
        return None if self._run is None else self._run.federation.description_traffic


class NetworkStrategy(ClusteredStrategy):
    """A strategy that computes with the architecture that clients train.

    Parameters
    ----------
    network
        The architecture.
    options
        As for :class:`ClusteredStrategy`.
    """

    def __init__(self, *, network: Any, **options: Any) -> None:
        super().__init__(**options)
        self.network = network
