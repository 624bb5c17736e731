"""Train further models in a round beside those of the clusters."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.aggregation.optimiser_state import StateValue, pack_state, restore_state
from fedclust.federation.federation import Federation
from fedclust.federation.replies import Reply, by_cluster, read_replies
from fedclust.grids.client_grid import CohortView
from fedclust.layers.update_norms import ANY, Caps
from fedclust.messages import MEAN_REPLY, UPDATE_NORM_CAP

__all__ = ["TRIAL", "Trainee", "copy_aggregator", "train_beside"]

TRIAL = "trial"
"""Phase of the failures of such training, in the round's record."""

Private = Callable[[Sequence[Reply], Sequence[ArrayRecord]], Sequence[Reply]]


@dataclass(frozen=True, eq=False)
class Trainee:
    """A model and what its aggregator remembers.

    Attributes
    ----------
    model
        The model.
    optimiser
        As :func:`~fedclust.aggregation.optimiser_state.pack_state` lists it.
    """

    model: ArrayRecord
    optimiser: Mapping[str, StateValue] = field(default_factory=dict)


def copy_aggregator(aggregator: Strategy, fresh: Strategy) -> dict[str, StateValue]:
    """List what an aggregator remembers, in values of its own that later rounds do not change."""
    return copy.deepcopy(pack_state(aggregator, fresh))


def train_beside(
    federation: Federation,
    trainees: Sequence[Trainee],
    clients: Mapping[int, int],
    server_round: int,
    *,
    make_aggregator: Callable[[], Strategy],
    config: ConfigRecord,
    buffers: frozenset[str],
    shared_means: bool,
    caps: Caps = ANY,
    private: Private | None = None,
    told: Mapping[str, float] = MappingProxyType({}),
) -> tuple[tuple[Trainee, ...], int]:
    """Train several models for a round, each on its own clients, and aggregate as a cluster does.

    Clients train on the batches of `server_round`, so a client that trains the cluster's model in the same
    round trains both on the same rows. A failing client is recorded and excluded; a model none of whose
    clients replied stays as it is.

    Parameters
    ----------
    federation
        The clients.
    trainees
        The models.
    clients
        Which of them each client trains, by client id.
    server_round
        The round.
    make_aggregator
        Makes a fresh aggregator.
    config
        What clients are told.
    buffers
        Names of the model's floating-point buffers.
    shared_means
        Whether a node may answer with the mean of its clients' models.
    caps
        How far updates may move a model, as in the cluster's own training.
    private
        What takes the valid replies and the models, and returns the replies that are aggregated instead;
        then every model is trained, whether or not a client trains it.
    told
        What clients are told besides.

    Returns
    -------
    trainees
        The models after the round.
    trained
        How many clients trained.

    Raises
    ------
    NotFinite
        If an aggregator makes a model that is not finite of replies that are.
    """
    aggregators: dict[int, Strategy] = {}
    messages = []
    asking = ConfigRecord({**config, MEAN_REPLY: shared_means, **told})
    if caps.norm is not None:
        asking[UPDATE_NORM_CAP] = caps.norm
    for number, trainee in enumerate(trainees):
        chosen = sorted(client for client, model in clients.items() if model == number)
        if not chosen and private is None:
            continue
        aggregators[number] = make_aggregator()
        restore_state(aggregators[number], copy.deepcopy(dict(trainee.optimiser)))
        if not chosen:
            continue
        view = CohortView(federation.grid, chosen)
        messages += aggregation.configure_train(
            aggregators[number], server_round, trainee.model, ConfigRecord({**asking}), view, buffers
        )
    if not aggregators:
        return tuple(trainees), 0
    answers = federation.grid.send_and_receive(messages, timeout=federation.timeout) if messages else ()
    asked = {message.metadata.dst_node_id: clients[message.metadata.dst_node_id] for message in messages}
    models = [each.model for each in trainees]
    valid, failures = read_replies(
        answers, server_round, asked, models, federation.bounds, means=shared_means, caps=caps
    )
    for failure in failures:
        federation.failed(int(failure["client"]), TRIAL, str(failure["reason"]))
    after = list(trainees)
    used = valid if private is None else private(valid, models)
    for number, cohort in by_cluster(used).items():
        model = aggregation.aggregate(
            aggregators[number],
            server_round,
            trainees[number].model,
            cohort,
            buffers,
            shared_means=shared_means,
        )
        after[number] = Trainee(model, copy_aggregator(aggregators[number], make_aggregator()))
    return tuple(after), len(valid)
