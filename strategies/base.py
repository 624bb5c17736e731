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
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.clustering.shared.number import KnownNumber
from fedclust.clustering.shared.placement import Placement
from fedclust.federation.answering import Failure
from fedclust.federation.any_app import OWN, AnyApp, logger
from fedclust.federation.clusters import Clusters, Decided, Findings, Observer
from fedclust.federation.federation import Federation
from fedclust.federation.questions import ask_differences
from fedclust.federation.run import (
    Layer,
    Measured,
    Round,
    Run,
    RunState,
    amended,
    count_reasons,
    evaluation_questions,
    evaluation_sample,
    mean_of_known,
)
from fedclust.grids.local_grid import BlockingGrid
from fedclust.layers.standard import standard_layers
from fedclust.messages.models import join_models
from fedclust.messages.packer import pack, unpack
from fedclust.messages.replies import Reply, by_cluster, weighted_loss
from fedclust.messages.traffic import Traffic
from fedclust.messages.training import LOSS, Instruction, Projection
from fedclust.metrics import CLIENT_FIGURES
from fedclust.newcomers.placing import by_least_loss, by_rule, unpacked
from fedclust.personal.layers import NoLayer, Personal
from fedclust.proof import Evidence, prove_grouping
from fedclust.proof.verdict import Verdict
from fedclust.proof.votes import MARGIN
from fedclust.results.outcome import Ended, Kept, Outcome
from fedclust.selection import Candidates, Selection, Uniform
from fedclust.settings.run_options import DEFAULT_ROW_CAP, RunOptions
from fedclust.support.array_bytes import to_numpy
from fedclust.support.checks import check_value, few
from fedclust.support.reasons import RunFailed
from fedclust.support.rng import cohort_size, generator, torch_seed
from fedclust.typing import FloatArray, IntArray

SomeLayer = TypeVar("SomeLayer", bound=Layer)
_MOST_UNTRAINED = 3  # rounds that asked somebody, before a run in which nobody has trained is given up


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
        Options of the run that all strategies share, see :class:`~fedclust.settings.run_options.RunOptions`.
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

    holds_patient_dp: ClassVar[bool] = True
    """Whether the method can run with ``privacy=patient_dp``: it asks no question, and uses only the models
    that clients train and public facts. Counts for exactly the class that says so."""

    asks: ClassVar[frozenset[str]] = frozenset()
    """Types of the questions that it needs answers to, besides descriptions and training."""

    needs_label_counts: ClassVar[bool] = False
    """Whether the method reads the label counts of clients' descriptions."""

    moves_clients: ClassVar[bool] = False
    """Whether a client whose data has changed may be moved to another cluster: nothing that the method
    remembers depends on who is where. Otherwise it is only reported, see :mod:`fedclust.layers.drift`."""

    needs_whole_models: ClassVar[bool] = False
    """Whether the server computes with whole models, so that no layer may stay with clients."""

    needs_last_round: ClassVar[bool] = False
    """Whether it must know from the start which round is its last, so that a run cannot stop early."""

    own_personal: ClassVar[type[Personal]] = NoLayer
    """The personal layers where none are given."""

    parameters: Any

    @classmethod
    def needs(cls, parameters: Mapping[str, Any]) -> frozenset[str]:  # noqa: ARG003
        """Return the types of the questions that it needs answers to with some parameters.

        A site whose rules refuse one is left out before round 1.
        """
        return cls.asks

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
        if options is None and self.proves_splits:
            given.setdefault("row_cap", DEFAULT_ROW_CAP)  # as in its tests
        self.options = RunOptions(selection=selection, **given) if options is None else options
        self.selection: Selection = self.options.selection or selection or Uniform()
        self.observer = Observer()
        self.add_layers()
        self._run: Run | None = None

    def add_layers(self, *further: Layer, **limits: Any) -> None:
        """Set the layers to the standard ones and these, see :func:`fedclust.layers.standard_layers`."""
        settings: dict[str, Any] = {"moves_clients": self.moves_clients, "settled": self.settled}
        self.bounds, beside = standard_layers(self.options, *further, **limits, **settings)
        self.layers: tuple[Layer, ...] = (self.bounds, *beside)

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

    def instruction(self, clusters: Clusters) -> Mapping[str, Any]:
        """Return further fields of the cohort's instruction, such as :meth:`ask_for_projection`.

        The fields are those of :class:`~fedclust.messages.training.Instruction`.
        """
        return {}

    def ask_for_projection(self, size: int) -> Mapping[str, Any]:
        """Return the fields that ask each client for a projection of its change to `size` numbers.

        :attr:`Reply.projected` has it, a random projection that keeps lengths and angles on average, see
        :class:`~fedclust.messages.training.Projection`: enough to compare updates, even if a node
        may reply with a mean. Projections of all rounds of a run can be compared.
        """
        projection = self.update_projection(size)
        return {"projection_size": projection.size, "projection_seed": projection.seed}

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
        """List the replies that aggregators average: one may be listed several times, or not at all.

        A method that computes the next models itself, in :meth:`after_round`, returns none.
        """
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
        if rule is None:
            return by_least_loss(clusters, newcomers, federation)
        placed = by_rule(rule, newcomers, federation)
        left = [client for client, each in placed.items() if each.cluster not in {None, *serving.tolist()}]
        return placed | (by_least_loss(clusters, left, federation) if left else {})  # its clients have moved

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

    def cautions_of_any_app(self, num_clients: int, rounds: int, compare_rows: bool) -> list[str]:
        """List the same warnings for clients that only train and evaluate."""
        return self.cautions(num_clients, rounds)

    def cross_fits(self, rows: IntArray, model: ArrayRecord) -> bool:
        """Whether clients with so many rows choose by cross-fitting: none are then held out of training."""
        return False

    @property
    def groups_guessed(self) -> int | None:
        """The number of groups that the method takes because nobody gave one; otherwise None."""
        given = getattr(self, "parameters", None)
        return given.number if isinstance(given, KnownNumber) and given.num_clusters is None else None

    def notes(self, federation: Federation, rounds: int, model: ArrayRecord) -> list[str]:
        """List notes to print before round 1, such as what the method may cost or takes for granted."""
        number, setting = self.groups_guessed, "strategy.parameters.num_clusters"
        return [f"{number} groups, a guess: {setting}= says how many there are"] if number else []

    def models_per_client(self, federation: Federation, model: ArrayRecord) -> int:
        """Count the models that a client trains in a round: one, unless overridden."""
        return 1

    def findings(self, clusters: Clusters) -> Findings:
        """Summarise the method's results after the last round; unless overridden, Findings in its memory."""
        memory = clusters.memory
        return memory if isinstance(memory, Findings) else getattr(memory, "findings", Findings())

    def beside(self) -> list[Findings]:
        """List what each layer found."""
        return [layer.findings(self.run) for layer in self.layers]

    def decided(self) -> Decided | None:
        """Return what clients chose for themselves by the end of a run; None unless overridden."""
        return None

    def tested(self) -> Verdict | None:
        """Return what the method's own tests have shown by the end of a run; None unless it has some."""
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
        buffers: frozenset[str] | None = None,
        federation: Federation | None = None,
        resume: RunState | None = None,
        min_available_nodes: int = 2,
        compare_rows: bool = False,
        prove: bool = True,
    ) -> Outcome:
        """Run the federation.

        Parameters
        ----------
        grid
            A grid whose node ids are client ids 0…K−1 and whose nodes run fedclust's ClientApp; or Flower's
            own grid, whose nodes may run anybody's, see :mod:`fedclust.federation.any_app`.
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
            Names of the model's floating-point arrays that are no parameters: they are averaged, without the
            aggregator, and tell no method which clients are alike. Unless given, the running means and
            variances of PyTorch's normalisation layers, as a ``state_dict`` names them.
        federation
            The clients of the grid, if they have described themselves already; they are then not asked again.
        resume
            State of an earlier run to go on from.
        min_available_nodes
            Number of nodes to wait for before round 1, of Flower's own grid.
        compare_rows
            Whether anybody's ClientApp compares two models row by row, see
            :func:`fedclust.reporting.comparison`; otherwise each client has a vote by its two losses.
        prove
            Whether clients that only train and evaluate also train one model for all, after the last round,
            and compare it with their cluster's, where the method has tested nothing itself.

        Returns
        -------
        Flower's result with the clusters; its arrays hold every cluster's model, see
        :func:`fedclust.messages.models.split_models`.

        Raises
        ------
        ValueError
            If a number is out of its range, the first model cannot be trained, or `resume` is of another
            number of clients, or not of this method.
        FederationError
            If anybody's ClientApp cannot answer what the method asks, or no client gives what it needs.
        RunFailed
            If none of them was trained in any round, or in the first three that asked somebody.
        """
        whole = {"num_rounds": num_rounds, "min_available_nodes": min_available_nodes}
        for setting, value in whole.items():
            check_value(setting, value, "a whole number >= 1")
        check_value("timeout", timeout, "> 0 or None")
        if not isinstance(initial_arrays, ArrayRecord):
            raise ValueError(f"initial_arrays must be an ArrayRecord, got a {type(initial_arrays).__name__}")
        if buffers is None:
            buffers = aggregation.statistics_in(initial_arrays)
        _check_first(initial_arrays, buffers)
        aggregation.check_aggregator(self.make_aggregator())
        sent: tuple[Mapping[str, Any], Mapping[str, Any]] = train_config or {}, evaluate_config or {}
        everyone, result, began, untrained = federation, Outcome(), time.perf_counter(), 0
        if everyone is None:
            waits: dict[str, Any] = {"min_nodes": min_available_nodes, "compare_rows": compare_rows}
            facts = initial_arrays, *sent, num_rounds
            everyone = self._meet(grid, *facts, new=resume is None, buffers=buffers, **waits)
        if isinstance(everyone.clients, AnyApp):
            for caution in self.cautions_of_any_app(everyone.num_clients, num_rounds, compare_rows):
                logger.warning("%s", caution)
        rounds = self.run_rounds(
            everyone, initial_arrays, num_rounds, timeout, *sent, buffers=buffers, resume=resume
        )
        observer, num_train = self.observer, dict[int, int]()
        self.observer = Kept(observer, result.changes)
        for figures in rounds:
            number, record = self.run.server_round, self.run.now.record
            num_train |= {each.client: each.num_examples for each in self.run.now.replies}
            if number > (0 if resume is None else resume.server_round):
                result.rounds.append({**record})
            if isinstance(everyone.clients, AnyApp) and number:
                everyone.clients.log_round(record, num_rounds)
            if (loss := record.get("loss")) is not None:
                result.train_metrics_clientapp[number] = MetricRecord({LOSS: loss})
            if figures:
                usual, found = CLIENT_FIGURES[1:], self.measured.figures  # not the number of rows
                means = {name: mean_of_known(found[name]) for name in usual if name in found}
                own: dict[str, Any] = {name.removeprefix(OWN): each for name, each in figures.items()}
                result.evaluate_metrics_clientapp[number] = MetricRecord({**own, **means})
            untrained += bool(record.get("cohort") and not num_train)
            if isinstance(everyone.clients, AnyApp) and untrained == _MOST_UNTRAINED:
                break
            if evaluate_fn is not None or should_stop is not None:
                result.arrays = join_models(self.clusters.models)
            if evaluate_fn is not None and (metrics := evaluate_fn(number, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = metrics
            if number and should_stop is not None and should_stop(number, result):
                break
        self.observer = observer
        if isinstance(everyone.clients, AnyApp) and not num_train:
            where = f"{RunFailed.PHRASE} {number} of {num_rounds}"
            raise RunFailed(f"{where}, no client was trained in any round: {_why_untrained(record)}")
        result.arrays = join_models(self.clusters.models)
        result.assignment, result.models = self.assignment, self.clusters.models
        result.nodes = list(everyone.clients.places)[: self.clusters.num_clients]
        app = everyone.clients
        if isinstance(app, AnyApp) and prove and self.forms_groups:
            result.verdict = self.tested() or self._proved(
                everyone, app, initial_arrays, timeout, *sent, buffers
            )
        if isinstance(app, AnyApp):  # before any cap
            num_train = app.num_train
        run, number = self.run, len(result.nodes)
        result.ended = Ended(
            "fedavg" if type(self) is ClusteredStrategy else type(self).__name__.lower(),
            self.seed,
            run.measured,
            np.array([num_train.get(client, 0) for client in range(number)]),
            [f"node {place}" for place in result.nodes],
            [self.findings(run.clusters), *self.beside()],
            everyone.clients.traffic,
            time.perf_counter() - began,
            run.failed_replies,
            self.options.row_cap,
            everyone.clients.plain and not compare_rows,
            {"rounds": num_rounds, "train_config": {**sent[0]}, "evaluate_config": {**sent[1]}},
        )
        return result

    def _meet(
        self,
        grid: Grid,
        model: ArrayRecord,
        train_config: Mapping[str, Any],
        evaluate_config: Mapping[str, Any],
        num_rounds: int,
        *,
        new: bool,
        **settings: Any,
    ) -> Federation:
        """Find out who answers behind a grid: fedclust's own clients, or anybody's ClientApp."""
        nodes = sorted(grid.get_node_ids())
        if isinstance(getattr(grid, "num_clients", None), int) or (nodes and nodes == [*range(len(nodes))]):
            return Federation(grid)
        if every := self.options.drift_every:
            raise ValueError(f"drift_every must be 0 for a ClientApp of your own, got {every}")
        if not new:
            raise ValueError(
                "resume must be None for a ClientApp of your own, whose runs have no checkpoints"
            )
        if not isinstance(grid, BlockingGrid):  # Flower's own looks for replies every three seconds
            from fedclust.grids.superlink import PromptGrid  # imports Hydra

            grid = PromptGrid(grid)

        def instruction(server_round: int) -> Instruction:
            facts = server_round, model, [0], settings["buffers"], train_config
            chosen = aggregation.instructions(self.make_aggregator(), *facts)
            return chosen.get(0, Instruction(model, server_round, extra=train_config))

        app = AnyApp(grid, model, instruction, evaluate_config, **settings)
        counted = self.needs_label_counts and not self.proves_splits
        counted |= bool(getattr(self.selection, "needs_label_counts", False))
        return Federation(app, num_rounds, disclosed="labels" if counted else "sizes")

    def _proved(
        self,
        everyone: Federation,
        app: AnyApp,
        model: ArrayRecord,
        timeout: float,
        train_config: Mapping[str, Any],
        evaluate_config: Mapping[str, Any],
        buffers: frozenset[str],
    ) -> Verdict:
        """Train one model for all as long, and have clients compare it with their cluster's."""
        clusters, federation, name = self.clusters, self.run.federation, type(self).__name__
        chose, late = app.chose, np.flatnonzero(federation.joined).tolist()
        if not chose <= {*late}:  # those that joined were only placed by their losses
            text = f"No verdict: {name}'s clients chose groups by the losses that it would compare"
            return Verdict(text, grouped=False)
        measured: Mapping[int, Evidence] = {}
        if np.count_nonzero(clusters.sizes) > 1:
            everyone.close()
            rounds = self.run.server_round, timeout, train_config, evaluate_config
            common = ClusteredStrategy(options=replace(self.options, selection=None, evaluate_every=10**9))
            for _ in common.run_rounds(everyone, model, *rounds, buffers=buffers):
                record = common.run.now.record
                self._count(app, record.get("failures", ()), "one model for all, ")
                if common.run.server_round and not common.run.now.replies:  # groups have trained for longer
                    text = f"No verdict: in round {record['round']} nobody trained the one model for all: "
                    return Verdict(text + _why_untrained(record), grouped=False)
            one, groups = ((each.assignment, each.clusters.models) for each in (common, self))
            answers, _ = ask_differences(federation, one, groups, margin=MARGIN)
            self._count(app, federation.take_failures(), "comparison, ")
            measured = {client: each for client, each in answers.items() if client not in chose}
        return prove_grouping(self.assignment, measured, {}, method=name, words=app.words).verdict

    def _count(self, app: AnyApp, failures: Sequence[Failure], when: str) -> None:
        """Count failures after the last round, and name them in the log."""
        self.run.failed_replies += len(failures)
        app.log_failures(failures, when)

    def run_rounds(
        self,
        everyone: Federation,
        model: ArrayRecord,
        num_rounds: int,
        timeout: float = 3600,
        train_config: Mapping[str, Any] = MappingProxyType({}),
        evaluate_config: Mapping[str, Any] = MappingProxyType({}),
        *,
        buffers: frozenset[str] = frozenset(),
        resume: RunState | None = None,
    ) -> Iterator[dict[str, float]]:
        """Run the federation, whoever answers for its clients.

        Parameters
        ----------
        everyone
            The clients.
        model
            The model that all of them start from.
        num_rounds, timeout, train_config, evaluate_config, buffers, resume
            As for :meth:`start`.

        Yields
        ------
        Nothing before the first round, then the means of the clients' measurements after each round.
        """
        after = 0 if resume is None else resume.server_round
        federation = everyone.run(num_rounds, timeout, after)
        clusters = self.begin(federation, model) if resume is None else self._resumed(resume)
        if resume is not None and (got := clusters.num_clients) != (wanted := federation.num_clients):
            raise ValueError(f"resume must be of a run with {wanted} clients, got one with {got}")
        facts = self.make_aggregator, model, Round(after, clusters), buffers, train_config, evaluate_config
        run = self._run = Run(federation, *facts, after)
        if resume is not None:
            federation.turns[:] = resume.turns
            run.measured, run.failed_replies = resume.measured, resume.failed_replies
        self._adopt(run.now, replace(clusters))
        for layer in self.layers:
            packed = None if resume is None else resume.layers.get(type(layer).__name__)
            state = None if packed is None else unpack(layer.memory_type, packed)
            self._adopt(now := layer.begin(run, state), now.clusters)
        if resume is None:
            self.observer.assignment(0, clusters.assignment, clusters.reason or "before round 1")
        yield {}
        while not run.over:
            yield self._round()

    def _round(self) -> dict[str, float]:
        """Run a round, see this module; return the means of the clients' measurements."""
        run, federation = self.run, self.run.federation
        now = self._welcome(run.next_round())
        cohort = self.cohort(now.clusters, federation)
        now = self._adopt(now, self.before_round(now.clusters, cohort, federation))
        federation.turns[cohort] += 1
        now = self._through("instruct", self._instructed(now, cohort))
        of = now.clusters.assignment
        now = replace(now, cohort={client: int(of[client]) for client in sorted(now.asked)})
        means = any(map(self.takes_means, now.clusters.aggregators))
        replies, failures = federation.train(now.asked, now.cohort, now.sent, means=means)
        now = self._through("screen", replace(now, replies=replies, failures=failures))
        failures = [*federation.take_failures(), *now.failures]
        now = now.noting(cohort=[*now.cohort], loss=weighted_loss(now.replies), failures=failures)
        now = self._aggregated(now, self.entering(now.clusters, now.replies, federation))
        now = self._adopt(back := self.bounds.take_back(now), back.clusters)
        now = self._adopt(now, self.after_round(now.clusters, now.replies, federation))
        now = self._through("after_evaluation", self._evaluation(replace(now, failures=())))
        late = [*federation.take_failures(), *now.failures]
        figures, record = run.finish(now.noting(failures=[*failures, *late]), self.options.row_cap)
        self.observer.round(record)
        return figures

    def _through(self, hook: str, now: Round) -> Round:
        """Pass a round through one function of every layer."""
        run = self.run
        for layer in self.layers:
            now = getattr(layer, hook)(run, now)
            now = self._adopt(now, now.clusters)
        return now

    def _welcome(self, now: Round) -> Round:
        """Add the clients that wait to join, and keep what the round finds."""
        if joined := self.run.federation.welcome(now.number).tolist():
            clusters = self.join(now.clusters, joined, self.run.federation)
            now = self._adopt(now.noting(joined=joined), clusters)
        aggregators = (
            copy.deepcopy(each) if aggregation.remembers(each) else each for each in now.clusters.aggregators
        )
        return replace(now, found=replace(now.clusters, aggregators=tuple(aggregators), memory=None))

    def _instructed(self, now: Round, cohort: IntArray) -> Round:
        """Instruct each client of the cohort to train its cluster's model, as its aggregator says."""
        run, clusters, fields = self.run, now.clusters, self.instruction(now.clusters)
        models = tuple(self.training_models(clusters))
        chosen_of: dict[int, list[int]] = {}
        for client, cluster in zip(cohort.tolist(), clusters.assignment[cohort].tolist(), strict=True):
            chosen_of.setdefault(cluster, []).append(client)
        asked: dict[int, Instruction] = {}
        for cluster, chosen in sorted(chosen_of.items()):
            aggregator, sent = clusters.aggregators[cluster], models[cluster]
            shown = clusters.models[cluster] if aggregation.remembers(aggregator) else sent
            facts = now.number, shown, chosen, run.buffers, run.train_config
            own = aggregation.instructions(aggregator, *facts)
            # The mean of one client is its model, in half the bytes.
            further = {**fields, "mean_reply": len(chosen) > 1 and self.takes_means(aggregator)}
            if sent is not shown:
                further["arrays"] = sent
            asked |= amended(own, **further)
        return replace(now, asked=asked, sent=models)

    def _aggregated(self, now: Round, replies: Sequence[Reply]) -> Round:
        """Compute each cluster's next model; one that is not finite is not taken."""
        buffers, unusable = self.run.buffers, dict(now.unusable)
        models, addressed = list(now.clusters.models), set(now.cohort.values())
        for cluster, cohort in by_cluster(replies).items():
            aggregator, model = now.clusters.aggregators[cluster], models[cluster]
            if cluster not in addressed and aggregation.remembers(aggregator):  # it has not seen its model
                aggregation.instructions(aggregator, now.number, model, [*now.cohort], buffers)
            means = aggregation.needs_only_mean(aggregator)
            try:
                models[cluster] = aggregation.aggregate(
                    aggregator, now.number, model, cohort, buffers, shared_means=means
                )
            except aggregation.NotFinite as error:
                unusable[cluster] = str(error)
        return self._adopt(replace(now, unusable=unusable), replace(now.clusters, models=tuple(models)))

    def _evaluation(self, now: Round) -> Round:
        """Evaluate each cluster's model on its clients, in rounds with an evaluation."""
        federation = self.run.federation
        if now.number != federation.num_rounds and now.number % self.options.evaluate_every:
            return now
        now = self._adopt(now, self.before_evaluation(now.clusters, federation))
        now = self._through("before_evaluation", now)
        last = now.number == federation.num_rounds  # also where a layer has just stopped the run
        online, asked = federation.clients.online(), None if last else self.options.evaluate_clients
        sample = evaluation_sample(asked, now.clusters.num_clients, self.seed, now.number, online)
        full = last and federation.disclosed == "labels"
        settings: dict[str, Any] = {"server_round": now.number, "full": full, **federation.evaluation}
        questions = evaluation_questions(
            self.evaluated(now.clusters), online, sample, **settings, extra=self.run.evaluate_config
        )
        evaluations, failures = federation.evaluate(questions)
        found: dict[str, Any] = {"evaluations": evaluations, "failures": failures}
        return replace(now, **found, online=online, sampled=sample is not None)

    # Flower's own loop asks for these; :meth:`start` is the loop here.

    def _by_message(self, *_: Any) -> Any:
        """Raise a TypeError: the rounds are those of :meth:`start`."""
        raise TypeError(f"{type(self).__name__} must be run by start(), not message by message")

    configure_train: Any = _by_message
    aggregate_train: Any = _by_message
    configure_evaluate: Any = _by_message
    aggregate_evaluate: Any = _by_message

    def summary(self) -> None:
        """Log nothing: the run's configuration is in the results."""

    def takes_means(self, aggregator: Strategy) -> bool:
        """Whether, with an aggregator, a node may reply with the mean of its clients' models."""
        own = self.needs_client_models or any(layer.needs_client_models for layer in self.layers)
        return not own and aggregation.needs_only_mean(aggregator)

    def _adopt(self, now: Round, clusters: Clusters) -> Round:
        """Check the clusters that the method or a layer returned, and take them and the round."""
        run, method = self.run, type(self).__name__
        before, wanted = run.now.clusters, run.federation.num_clients
        if clusters is not before or len(clusters.assignment) != wanted:
            if not isinstance(clusters, Clusters):
                got = f"one of round {run.number} returned {type(clusters).__name__}"
                raise TypeError(f"hooks of {method} must return Clusters, {got}")
            if clusters.num_clients != wanted:
                got = f"round {run.number} assigns {clusters.num_clients}"
                raise ValueError(f"{method} must assign all {wanted} clients, {got}")
            number = len(clusters.models)
            kept = (*clusters.aggregators, *before.aggregators[len(clusters.aggregators) :])[:number]
            made = (self.make_aggregator() for _ in range(number - len(kept)))
            taken = replace(clusters, aggregators=(*kept, *made), reason="")
            now = replace(now, clusters=taken)
            if not np.array_equal(clusters.assignment, before.assignment):
                self.observer.assignment(run.number, clusters.assignment, clusters.reason)
        run.now = now
        return now

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


def _why_untrained(record: Mapping[str, Any]) -> str:
    """Count the reasons why clients were not trained in a round."""
    reasons = [each["reason"] for each in record["failures"] if each["phase"] == "train"]
    return count_reasons(reasons, len(record["cohort"]))


def _check_first(model: ArrayRecord, buffers: Collection[str]) -> None:
    """Check that a model can be trained, and has its buffers."""
    if unknown := set(buffers) - model.keys():
        raise ValueError(f"buffers must be among {few(model, 20)}, got {few(sorted(unknown))}")
    kinds = [f"{name}: {array.dtype}" for name, array in model.items()]
    if not any(np.dtype(array.dtype).kind in "fc" for array in model.values()):
        raise ValueError(
            f"initial_arrays must have floating-point numbers to train, got {few(kinds) or None}"
        )
    for name, array in model.items():
        if not np.isfinite(to_numpy(array)).all():
            raise ValueError(f"initial_arrays must be finite, array {name!r} is not")


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
