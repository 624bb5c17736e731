"""The hooks that a clustering method overrides: a few functions on values."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation.optimiser_state import StateValue
from fedclust.clustering.shared.placement import Placement
from fedclust.federation import Clusters, Federation, Reply
from fedclust.federation.findings import Findings
from fedclust.messages.projecting import Projection
from fedclust.newcomers.placing import by_least_loss, by_rule
from fedclust.personal.layers import NoLayer, Personal
from fedclust.selection import Candidates, Selection, Uniform
from fedclust.support.rng import generator, torch_seed
from fedclust.support.sampling import cohort_size
from fedclust.typing import IntArray

__all__ = ["Hooks"]


class Hooks:
    """The functions by which a method changes a round; the defaults suit most methods.

    The assignment, each cluster's model and the method's memory are one frozen value,
    :class:`~fedclust.federation.Clusters`, which a hook takes and returns. A hook must not keep anything in
    attributes: called twice with the same values it returns the same, so that a resumed run equals an
    uninterrupted one bit by bit.

    Attributes
    ----------
    participation
        Share ρ of each cluster's clients that takes part in a round, in (0, 1].
    seed
        The run's seed.
    selection
        Chooses the clients of a cluster that take part.
    """

    participation: float
    seed: int
    selection: Selection

    needs_client_models: bool = False
    """Whether the method needs each client's model, not a node's mean."""

    aggregates: ClassVar[bool] = True
    """Whether each cluster's aggregator computes its next model; if not, :meth:`after_round` does."""

    proves_splits: ClassVar[bool] = False
    """Whether the method tests each split on held-out rows and keeps only what was shown to be better. With
    ``serve=best`` a cluster's model then serves unless the one for all measures better at the end."""

    pools_rows: ClassVar[bool] = False
    """Whether one client trains on the rows of several, and its reply says of how many."""

    forms_groups: ClassVar[bool] = True
    """Whether clusters are what it may come to; if not, there is nothing to prove, and its model serves."""

    holds_client_dp: ClassVar[bool] = False
    """Whether noisy means of updates and public facts are all that the method reads of clients: it asks them
    nothing, and uses no losses, numbers of rows, models or projections of single replies. Counts for exactly
    the class that says so, not for those derived from it. See docs/PRIVACY.md."""

    covered_by_client_dp: ClassVar[frozenset[str]] = frozenset()
    """Types of the questions that it asks nevertheless, as it uses the answers only in sums to which the
    run's guard adds noise, or to choose what the client itself is sent."""

    needs_label_counts: ClassVar[bool] = False
    """Whether the method reads the label counts of clients' descriptions."""
    moves_clients: ClassVar[bool] = False
    """Whether a client whose data has changed may be moved to another cluster: nothing that the method
    remembers depends on who is where. Otherwise it is only reported, see :mod:`fedclust.layers.drift`."""

    own_selection: ClassVar[type[Selection]] = Uniform
    """The policy if none is given."""

    own_personal: ClassVar[type[Personal]] = NoLayer
    """The personal layers where none are given."""

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

    def cohort(self, clusters: Clusters, server_round: int, federation: Federation) -> IntArray:
        """Choose the clients that take part in a round; unless overridden, a share of each cluster.

        Returns
        -------
        Client ids, sorted.
        """
        chosen = []
        for cluster in range(len(clusters.models)):
            members = clusters.members(cluster)
            # A draw for each of many clusters of one takes time. Other policies may ask, and choose nobody.
            if not len(members) or (len(members) == 1 and type(self.selection) is Uniform):
                chosen.append(members)
                continue
            candidates = Candidates(members, clusters.models[cluster], server_round, federation)
            draws = generator(self.seed, "sample", server_round, cluster)
            chosen.append(self.selection.select(candidates, self.cohort_size(len(members)), draws))
        return np.sort(np.concatenate(chosen))

    def cohort_size(self, num_members: int) -> int:
        """Compute the number of a cluster's clients that take part in a round."""
        return cohort_size(num_members, self.participation)

    def before_round(
        self,
        clusters: Clusters,
        cohort: IntArray,  # noqa: ARG002
        server_round: int,  # noqa: ARG002
        federation: Federation,  # noqa: ARG002
    ) -> Clusters:
        """Change the clusters before the cohort trains, such as by asking it which model serves it best."""
        return clusters

    def own_models(self, clusters: Clusters) -> Collection[int]:  # noqa: ARG002
        """List clients of the cohort that must send their own models, not their node's mean."""
        return ()

    def projection(self, clusters: Clusters, server_round: int) -> int:  # noqa: ARG002
        """Return the length of the projection of its change that each client sends; unless overridden, 0.

        :attr:`Reply.projected` has it, a random projection that keeps lengths and angles on average, see
        :class:`~fedclust.messages.projecting.Projection`: enough to compare updates, even if a node
        may reply with a mean. Projections of all rounds of a run can be compared.
        """
        return 0

    def update_projection(self, size: int) -> Projection:
        """Make the run's projection to `size` numbers, for :meth:`Federation.updates`."""
        return Projection(size, torch_seed(self.seed, "projection"))

    def training_models(self, clusters: Clusters, server_round: int) -> Sequence[ArrayRecord]:  # noqa: ARG002
        """Return the model that each cluster's cohort starts from; unless overridden, the cluster's model.

        In any case, the aggregator uses the cluster's model as the model before the round, and the cluster's
        model is evaluated, served and saved.
        """
        return clusters.models

    def entering(
        self,
        clusters: Clusters,  # noqa: ARG002
        replies: Sequence[Reply],
        server_round: int,  # noqa: ARG002
    ) -> Sequence[Reply]:
        """List the replies to aggregate; one may be listed several times, or not at all."""
        return replies

    def after_round(
        self,
        clusters: Clusters,
        replies: Sequence[Reply],  # noqa: ARG002
        server_round: int,  # noqa: ARG002
        federation: Federation,  # noqa: ARG002
    ) -> Clusters:
        """Change the clusters after a round.

        Parameters
        ----------
        clusters
            The clusters, with the aggregated models.
        replies
            The valid replies, sorted by client id; each has the cluster and the model it started from.
        server_round
            The round, from 1.
        federation
            The clients, to ask them questions.
        """
        return clusters

    def before_evaluation(
        self,
        clusters: Clusters,
        server_round: int,  # noqa: ARG002
        federation: Federation,  # noqa: ARG002
    ) -> Clusters:
        """Change the clusters before all clients evaluate, in rounds with an evaluation."""
        return clusters

    def evaluated(self, clusters: Clusters) -> Clusters:
        """Return which cluster's model each client evaluates; unless overridden, its own cluster's."""
        return clusters

    def place(
        self,
        clusters: Clusters,
        newcomers: Sequence[int],
        server_round: int,  # noqa: ARG002
        federation: Federation,
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
        from fedclust.newcomers.rules import unpacked  # with scikit-learn; newcomers are rare

        rule = unpacked(self.findings(clusters).placing)
        if rule is not None:
            return by_rule(rule, newcomers, federation)
        return by_least_loss(clusters, newcomers, federation)

    def join(
        self, clusters: Clusters, newcomers: Sequence[int], server_round: int, federation: Federation
    ) -> Clusters:
        """Add clients that join before a round; those that were there keep their clusters.

        Unless overridden, each goes where :meth:`place` puts it, or into the largest cluster if that finds
        none, and the method's memory grows by :meth:`grown`.

        Parameters
        ----------
        clusters
            The clusters of the K clients that were there.
        newcomers
            Ids of those that join: K, K+1, …
        server_round
            The round that begins.
        federation
            The clients, newcomers too.
        """
        placed = self.place(clusters, newcomers, server_round - 1, federation)
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

    def cautions(self, num_clients: int, rounds: int) -> list[str]:  # noqa: ARG002
        """List warnings that the method cannot work with these settings; empty unless overridden."""
        return []

    def notes(self, num_clients: int, rounds: int) -> list[str]:  # noqa: ARG002
        """List what users are told before round 1, such as what it may cost; empty unless overridden."""
        return []

    def findings(self, clusters: Clusters) -> Findings:
        """Summarise the method's results after the last round; unless overridden, Findings in its memory."""
        return clusters.memory if isinstance(clusters.memory, Findings) else Findings()

    def state(self, clusters: Clusters) -> dict[str, StateValue]:
        """Return ``clusters.memory`` as arrays and scalars by name, for a checkpoint.

        A method whose memory is neither None nor Findings overrides this and
        :meth:`restore`.

        Raises
        ------
        TypeError
            If such a method does not override it.
        """
        if isinstance(clusters.memory, Findings):
            return clusters.memory.pack()
        if clusters.memory is not None:
            raise TypeError(
                f"{type(self).__name__} must override state() and restore(), "
                f"its memory is a {type(clusters.memory).__name__}"
            )
        return {}

    def restore(self, state: Mapping[str, StateValue]) -> Any:
        """Rebuild ``clusters.memory`` from the values of :meth:`state`."""
        return Findings.unpack(state) if state else None
