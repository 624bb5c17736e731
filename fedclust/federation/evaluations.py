"""Ask clients to evaluate, and combine their replies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedclust import metrics
from fedclust.federation.asking import Failure, read_reply
from fedclust.federation.clusters import Clusters
from fedclust.messages.codec import ARRAYS, CONFIG, BadReply, Bounds, Reading
from fedclust.messages.evaluation import Evaluation
from fedclust.messages.training import LOSS, NUM_EXAMPLES
from fedclust.metrics import Outcomes
from fedclust.support.rng import draw, generator, number_of
from fedclust.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Measured:
    """Each client's measurements in one round.

    Attributes
    ----------
    figures
        By name, a value per client, NaN where unknown, each of shape (K,).
    outcomes
        Of a full evaluation, by client, the counts that figures over all clients' rows are computed from.
    """

    figures: Mapping[str, FloatArray] = field(default_factory=dict)
    outcomes: Mapping[int, Outcomes] = field(default_factory=dict)

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation], num_clients: int) -> "Measured":
        """Combine the clients' replies; all figures of a client that did not reply are NaN."""
        figures: dict[str, FloatArray] = {}
        for evaluation in evaluations:
            for name, value in evaluation.metrics.items():
                if name not in figures:
                    figures[name] = np.full(num_clients, np.nan)
                figures[name][evaluation.client] = value
        counted = {each.client: each.outcomes for each in evaluations if each.outcomes is not None}
        return cls(figures, counted)

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """Names of the user's own metrics among the figures, sorted."""
        return tuple(sorted(set(self.figures) - set(metrics.CLIENT_FIGURES)))

    def served(self, other: "Measured", by_other: BoolArray) -> "Measured":
        """Combine each client's measurements of the model that serves it.

        Parameters
        ----------
        other
            The clients' measurements of another model.
        by_other
            Whether the other model serves each client, shape (K,).
        """
        unknown = np.full(len(by_other), np.nan)
        figures = {
            name: np.where(by_other, other.figures.get(name, unknown), self.figures.get(name, unknown))
            for name in {**self.figures, **other.figures}
        }
        counted = {
            client: (other if by_other[client] else self).outcomes.get(client)
            for client in range(len(by_other))
        }
        return Measured(figures, {client: each for client, each in counted.items() if each is not None})


def evaluation_sample(
    asked: int | float | None,
    num_clients: int,
    seed: int,
    server_round: int,
    online: Iterable[int] | None = None,
) -> IntArray | None:
    """Draw the clients that evaluate in a round, uniformly, the same for every method with this seed.

    Parameters
    ----------
    asked
        Their number, or their share in (0, 1]; None for all.
    num_clients
        Number of clients K.
    seed
        The run's seed.
    server_round
        The round; every round has a sample of its own.
    online
        Ids of the clients that can be reached, of which it is drawn; None for all.

    Returns
    -------
    Client ids, sorted; None for all clients. Fewer than asked for if fewer can be reached.
    """
    number = num_clients if asked is None else number_of(asked, num_clients)
    if number == num_clients:
        return None
    there = np.arange(num_clients)
    if online is not None:
        there = there[np.isin(there, np.fromiter(online, dtype=np.int64))]
    return draw(there, min(number, len(there)), generator(seed, "evaluate", server_round))


def evaluation_messages(
    clusters: Clusters, online: Iterable[int], sample: IntArray | None, settings: ConfigRecord
) -> list[Message]:
    """Write the messages that ask clients to evaluate their cluster's model.

    Parameters
    ----------
    clusters
        The clusters.
    online
        Ids of the clients that can be reached; others are not asked.
    sample
        Ids of the clients to ask, sorted; None for all.
    settings
        What clients are told.
    """
    asked = np.arange(clusters.num_clients) if sample is None else sample
    # Not by position: a client that has just come is online and has no cluster yet.
    asked = asked[np.isin(asked, np.fromiter(online, dtype=np.int64))]
    messages = []
    for cluster, model in enumerate(clusters.models):
        content = RecordDict({ARRAYS: model, CONFIG: settings})
        messages += [
            Message(content, dst_node_id=client, message_type=MessageType.EVALUATE)
            for client in asked[clusters.assignment[asked] == cluster].tolist()
        ]
    return messages


def read_evaluations(
    messages: Iterable[Message], server_round: int, bounds: Bounds
) -> tuple[list[Evaluation], list[Failure]]:
    """Read what clients measured of their clusters' models; a loss may be one that is not finite.

    Parameters
    ----------
    messages
        The replies.
    server_round
        The round, for error messages.
    bounds
        What clients may say of themselves.

    Returns
    -------
    The valid evaluations, and a failure for each other client.
    """
    found: list[Evaluation] = []
    failures: list[Failure] = []
    for message in messages:
        try:
            at = Reading(message.metadata.src_node_id, server_round, bounds)
            found.append(read_reply(Evaluation, message, at))
        except BadReply as error:
            failures.append(
                {"client": message.metadata.src_node_id, "phase": "evaluate", "reason": str(error)}
            )
    return found, failures


def round_figures(measured: Measured, sampled: bool = False) -> dict[str, float]:
    """Average the clients' measurements, for the round's line in ``rounds.jsonl``.

    Parameters
    ----------
    measured
        The measurements.
    sampled
        Whether only a sample of the clients was asked. The figures are then marked by
        ``evaluated_clients``, the number of clients that they are of.

    Returns
    -------
    Nothing but that mark if no client has an accuracy; otherwise, over the clients that have one,
    ``global_accuracy``, ``mean_client_accuracy``, ``balanced_accuracy`` and ``test_loss``, the mean loss over
    all their test examples, NaN where a client's is not finite; and the mean of each of the user's own
    metrics.
    """
    figures = measured.figures
    known = np.isfinite(figures.get("accuracy", np.zeros(0)))
    mark: dict[str, float] = {"evaluated_clients": int(known.sum())} if sampled else {}
    if not known.any():
        return mark
    accuracy, num_examples = figures["accuracy"][known], figures[NUM_EXAMPLES][known].astype(np.int64)
    losses = figures[LOSS][known]
    # A mean over the other clients would hide one client's overflow.
    loss = float(np.average(losses, weights=num_examples)) if np.isfinite(losses).all() else float("nan")
    return {
        "global_accuracy": metrics.global_accuracy(accuracy, num_examples),
        "mean_client_accuracy": float(accuracy.mean()),
        "balanced_accuracy": _mean(figures["balanced-accuracy"][known]),
        "test_loss": loss,
        **{name: _mean(figures[name][known]) for name in measured.own_metrics},
        **mark,
    }


def _mean(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
