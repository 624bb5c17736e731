"""A client's measurements on its own test part."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedclust.messages.bounds import LARGEST_NUMBER, Bounds, Record, only_records, short, whole
from fedclust.messages.keys import _OUTCOMES, LOSS, METRICS, NUM_EXAMPLES, BadReply, _lacks
from fedclust.messages.outcomes import read_outcomes, write_outcomes
from fedclust.metrics import CLIENT_FIGURES, Outcomes

__all__ = ["Evaluation", "checked_evaluation", "evaluate_content", "read_evaluate"]

_UNKNOWN = Bounds()
_FIGURES = frozenset(CLIENT_FIGURES)
_NEEDED = (NUM_EXAMPLES, LOSS, "accuracy", "balanced-accuracy")
_RANKING = frozenset({"macro-f1", "auc"})
_SHARES = _RANKING | {"accuracy", "balanced-accuracy"}
_ROUND_OFF = 1e-9


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A client's reply to a round of evaluation.

    Attributes
    ----------
    client
        Its id.
    metrics
        Figures on its own test part, by name.
    outcomes
        Of a full evaluation, the counts that figures over all clients' rows are computed from.
    """

    client: int
    metrics: dict[str, float]
    outcomes: Outcomes | None = None


def evaluate_content(metrics: Mapping[str, float], outcomes: Outcomes | None = None) -> RecordDict:
    """Make a client's reply to a round of evaluation."""
    content = RecordDict({METRICS: MetricRecord({name: float(value) for name, value in metrics.items()})})
    if outcomes is not None:
        content[_OUTCOMES] = write_outcomes(outcomes)
    return content


def read_evaluate(message: Message, server_round: int, bounds: Bounds = _UNKNOWN) -> Evaluation:
    """Read a client's reply to a round of evaluation.

    Raises
    ------
    BadReply
        If a figure is missing, unknown or outside its range, or counts do not fit together. A loss that is
        not finite is none of that: the model may be to blame.
    """
    client, content = message.metadata.src_node_id, message.content
    where = f"client {client}, round {server_round}"
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        raise BadReply(_lacks(client, server_round, METRICS, content))
    counts = None
    if len(content) > 1:
        only_records(content, (METRICS, _OUTCOMES), where)
        counts = content.get(_OUTCOMES)
    return checked_evaluation(metrics, counts, client, where, bounds)


def checked_evaluation(
    metrics: MetricRecord, counts: Record | None, client: int, where: str, bounds: Bounds
) -> Evaluation:
    """Check the figures of a model on a client's test part, and the counts if there are any.

    Raises
    ------
    BadReply
        As :func:`read_evaluate`.
    """
    figures: dict[str, Any] = dict(metrics.items())  # a record's own look-ups are slow
    own = figures.keys() - _FIGURES
    if own and (unknown := own - set(bounds.own_metrics)):
        raise BadReply(f"{where}: metrics must be {', '.join(CLIENT_FIGURES)}, got {short(sorted(unknown))}")
    if missing := [key for key in _NEEDED if key not in figures]:
        raise BadReply(f"{where}: no {missing[0]!r} in reply, keys are {short(list(figures))}")
    for name, value in figures.items():
        if type(value) is not float and type(value) is not int:
            raise BadReply(f"{where}: {name} must be a number, got {short(value)}")
    num_examples = whole(figures[NUM_EXAMPLES], 0, bounds.most_test(client), where, NUM_EXAMPLES)
    for name, share in figures.items():
        if name not in _SHARES or 0 <= share <= 1:
            continue
        # A ranking figure may be undefined, and so is every figure where there is nothing to measure it on.
        undefined = math.isnan(share) and (name in _RANKING or num_examples == 0)
        if not (undefined or -_ROUND_OFF <= share <= 1 + _ROUND_OFF):
            raise BadReply(f"{where}: {name} must be in [0, 1], got {share}")
    loss = figures[LOSS]
    if math.isfinite(loss) and not bounds.least_loss <= loss <= LARGEST_NUMBER:
        raise BadReply(f"{where}: {LOSS} must be in [{bounds.least_loss:g}, {LARGEST_NUMBER:g}], got {loss}")
    outcomes = None
    if counts is not None:
        if not isinstance(counts, ArrayRecord):
            raise BadReply(f"{where}: {_OUTCOMES} must be arrays, got {type(counts).__name__}")
        try:
            outcomes = read_outcomes(counts, bounds.num_classes, bounds.most_test(client))
        except ValueError as error:
            raise BadReply(f"{where}: {error}") from error
    measured = {name: float(value) for name, value in figures.items()}
    return Evaluation(client, measured, outcomes)
