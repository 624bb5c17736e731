"""What clients answered to a round of training: checked one by one, merged where they share a model."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedclust import records
from fedclust.records import BadReply, TrainReply

__all__ = ["Failure", "merge_shared", "read_replies", "weighted_loss"]

Failure = dict[str, int | str]
"""Which client failed, in which phase of the round, and the reason."""


def read_replies(
    messages: Iterable[Message], server_round: int, sent: Mapping[int, ArrayRecord]
) -> tuple[list[TrainReply], list[Failure]]:
    """Read the replies that may enter an aggregate, and say why the others may not.

    Parameters
    ----------
    messages
        The replies.
    server_round
        The round, for error messages.
    sent
        The model each client was sent, by client id; a reply's must have its names and shapes.

    Returns
    -------
    The valid replies, sorted by client id, and a failure for each other client, those that did not reply
    included.
    """
    valid: list[TrainReply] = []
    failures: list[Failure] = []
    finite: dict[int, bool] = {}  # by the identity of the model, which many replies may share
    silent = set(sent)
    for message in sorted(messages, key=lambda message: message.metadata.src_node_id):
        client = message.metadata.src_node_id
        silent.discard(client)
        try:
            if message.has_error():
                raise BadReply(str(message.error.reason))
            reply = records.read_train(message, server_round)
            if id(reply.arrays) not in finite:
                finite[id(reply.arrays)] = _fits(reply, server_round, sent[client])
            if not finite[id(reply.arrays)]:
                raise BadReply(f"client {client}, round {server_round}: model must be finite, it is not")
            valid.append(reply)
        except BadReply as error:
            failures.append({"client": client, "phase": "train", "reason": str(error)})
    failures += [{"client": client, "phase": "train", "reason": "no reply"} for client in sorted(silent)]
    return valid, failures


def _fits(reply: TrainReply, server_round: int, model: ArrayRecord) -> bool:
    """Say whether a reply's model is finite; raise BadReply where it is unreadable or not like the model."""
    try:
        records.like(reply.arrays, model)
        return records.is_finite(reply.arrays)
    except ValueError as error:
        raise BadReply(f"client {reply.client}, round {server_round}: {error}") from error


def weighted_loss(replies: Sequence[TrainReply]) -> float | None:
    """Average the clients' losses by their numbers of samples, in nats; None where there are no replies."""
    total = sum(reply.num_examples for reply in replies)
    return math.fsum(reply.loss * reply.num_examples for reply in replies) / total if total else None


def merge_shared(replies: Sequence[TrainReply]) -> list[Message]:
    """Merge the replies that share a model into one with the sum of their samples.

    The weighted mean stays what it is, and is computed over one model per node instead of one per client.
    """
    sharing: dict[int, list[TrainReply]] = {}
    for reply in replies:
        sharing.setdefault(id(reply.arrays), []).append(reply)
    merged = []
    for group in sharing.values():
        message = copy.copy(group[0].message)
        message.content = RecordDict(
            {
                records.ARRAYS: group[0].arrays,
                records.METRICS: MetricRecord(
                    {
                        records.NUM_EXAMPLES: sum(reply.num_examples for reply in group),
                        records.LOSS: weighted_loss(group) or 0.0,
                    }
                ),
            }
        )
        merged.append(message)
    return merged
