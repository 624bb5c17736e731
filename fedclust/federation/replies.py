"""Check the clients' replies to a round of training."""

from collections.abc import Iterable, Mapping, Sequence

from flwr.app import ArrayRecord, Message

from fedclust.aggregation.replies import Reply
from fedclust.federation.asking import Failure, read_reply
from fedclust.messages.codec import BadReply, Bounds, Reading
from fedclust.messages.models import canonical
from fedclust.messages.training import TrainAnswer, TrainAsked

NO_REPLY = "no reply"
"""Why a client failed that has not answered."""


_NOTHING = TrainAsked()


def read_replies(
    messages: Iterable[Message],
    server_round: int,
    cohort: Mapping[int, int],
    models: Sequence[ArrayRecord],
    bounds: Bounds | None = None,
    *,
    means: bool = True,
    asked: TrainAsked = _NOTHING,
) -> tuple[list[Reply], list[Failure]]:
    """Read the replies that can be aggregated, and list the failures of the others.

    Parameters
    ----------
    messages
        The replies.
    server_round
        The round, for error messages.
    cohort
        The cluster of each client that was sent its cluster's model, by client id.
    models
        The model of each cluster; a reply's must have its names and shapes.
    bounds
        What clients may say of themselves.
    means
        Whether a model may be a node's mean, in float64; every other model is cast to its template's types.
    asked
        What clients were asked for besides their models.

    Returns
    -------
    The valid replies, sorted by client id, with models of their own that nothing can be wrong with; and a
    failure for each other client, those that did not reply included.
    """
    bounds = bounds or Bounds()
    valid: list[Reply] = []
    failures: list[Failure] = []
    # By the identity of the model, which many replies may share, and by cluster.
    made: dict[tuple[int, int], ArrayRecord | BadReply] = {}
    silent = set(cohort)
    for message in sorted(messages, key=lambda message: message.metadata.src_node_id):
        client = message.metadata.src_node_id
        silent.discard(client)
        try:
            trained = read_reply(TrainAnswer, message, Reading(client, server_round, bounds, asked))
            start = models[cohort[client]]
            key = (id(trained.arrays), cohort[client])
            if key not in made:
                made[key] = _model(trained.arrays, start, means)
            model = made[key]
            if isinstance(model, BadReply):
                raise BadReply(f"client {client}, round {server_round}: {model}")
            valid.append(
                Reply(
                    client=client,
                    cluster=cohort[client],
                    start=start,
                    model=model,
                    num_examples=trained.num_examples,
                    loss=trained.loss,
                    losses=trained.losses,
                    message=message,
                    projected=trained.projected,
                    within=trained.within,
                    update_norm=trained.update_norm,
                )
            )
        except BadReply as error:
            failures.append({"client": client, "phase": "train", "reason": str(error)})
    failures += [{"client": client, "phase": "train", "reason": NO_REPLY} for client in sorted(silent)]
    return valid, failures


def _model(arrays: ArrayRecord, start: ArrayRecord, means: bool) -> ArrayRecord | BadReply:
    """Make a reply's model one that can be aggregated, or return why it cannot be."""
    try:
        return canonical(arrays, start, means=means)
    except ValueError as error:
        return BadReply(str(error))
