"""What a client measures with each personal layer on top of the model that serves it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import ArrayLike

from fedclust.messages.bounds import LARGEST_NUMBER, Bounds, Record, check_keys, only_records, short
from fedclust.messages.evaluation import Evaluation, checked_evaluation
from fedclust.messages.keys import ARRAYS, ROUND, BadReply
from fedclust.messages.kinds import of_kind
from fedclust.messages.outcomes import write_outcomes
from fedclust.personal.layers import FINETUNE, NONE, PRIOR, Finetune
from fedclust.typing import FloatArray

__all__ = [
    "PersonalAnswer",
    "PersonalQuestion",
    "personal_content",
    "personal_question",
    "read_personal",
    "read_personal_question",
]

_TOLD, _HOW, _SHIFT = "personal", "finetune", "prior-shift"
_EPOCHS, _LAYERS, _LEARNING_RATE = "epochs", "layers", "learning-rate"
_FIGURES, _COUNTS, _VALIDATION, _FAILED = "figures", "outcomes", "validation-losses", "failed"
_TRIED = (NONE, PRIOR, FINETUNE)
_UNKNOWN = Bounds()


@dataclass(frozen=True, eq=False)
class PersonalQuestion:
    """What a client is asked to try.

    Attributes
    ----------
    model
        The model that serves it.
    server_round
        The round whose batches fine-tuning draws: the one after the last.
    shift
        What the label-prior correction adds to its logits, shape (C,); None where that is not asked for.
    finetune
        How to fine-tune; None where that is not asked for.
    """

    model: ArrayRecord
    server_round: int
    shift: FloatArray | None = None
    finetune: Finetune | None = None


@dataclass(frozen=True, eq=False)
class PersonalAnswer:
    """What a client measured; no model of its own leaves it.

    Attributes
    ----------
    tests
        By layer, what it scored on the client's test part.
    losses
        By layer, ``"none"`` included, the mean loss of its validation rows in nats, NaN where it is not
        finite; empty without such rows.
    failed
        By layer, why the client could not make it.
    """

    tests: Mapping[str, Evaluation] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def personal_question(
    model: ArrayRecord, server_round: int, shift: ArrayLike | None = None, finetune: Finetune | None = None
) -> RecordDict:
    """Make the question how well personal layers serve a client.

    The model is a record that clients may share and that travels once; the rest is the client's own.
    """
    content = RecordDict({ARRAYS: model})
    told = ConfigRecord({ROUND: server_round})
    if shift is not None:
        told[_SHIFT] = np.asarray(shift, dtype=np.float64).tolist()
    content[_TOLD] = told
    if finetune is not None:
        how = ConfigRecord({_EPOCHS: finetune.epochs, _LAYERS: finetune.layers})
        if finetune.learning_rate is not None:
            how[_LEARNING_RATE] = float(finetune.learning_rate)
        content[_HOW] = how
    return content


def read_personal_question(content: RecordDict) -> PersonalQuestion:
    """Read :func:`personal_question`.

    Raises
    ------
    ValueError
        If the model or the round is missing, or fine-tuning is described wrongly.
    """
    configs = of_kind(content, ConfigRecord)
    model, told = of_kind(content, ArrayRecord).get(ARRAYS), configs.get(_TOLD, ConfigRecord())
    if model is None or ROUND not in told:
        raise ValueError(f"message must hold a model and a round, its records are {list(content)}")
    shift = np.asarray(told[_SHIFT], dtype=np.float64) if _SHIFT in told else None
    finetune = None
    if (how := configs.get(_HOW)) is not None:
        finetune = Finetune(how[_EPOCHS], how[_LAYERS], how.get(_LEARNING_RATE))  # type: ignore[arg-type]
    return PersonalQuestion(model, int(told[ROUND]), shift, finetune)  # type: ignore[arg-type]


def personal_content(answer: PersonalAnswer) -> RecordDict:
    """Make a client's answer: figures of its test part and validation losses, by layer."""
    content = RecordDict()
    for layer, test in answer.tests.items():
        content[f"{_FIGURES}/{layer}"] = MetricRecord(
            {key: float(value) for key, value in test.metrics.items()}
        )
        if test.outcomes is not None:
            content[f"{_COUNTS}/{layer}"] = write_outcomes(test.outcomes)
    content[_VALIDATION] = MetricRecord({layer: float(loss) for layer, loss in answer.losses.items()})
    content[_FAILED] = ConfigRecord(dict(answer.failed))
    return content


def read_personal(message: Message, asked: tuple[str, ...], bounds: Bounds = _UNKNOWN) -> PersonalAnswer:
    """Read a client's answer.

    Parameters
    ----------
    message
        The reply.
    asked
        The layers that the client was to try.
    bounds
        What clients may say of themselves.

    Raises
    ------
    BadReply
        If a layer is neither measured nor said to have failed, a number is outside its range, counts do not
        fit together, or there is anything else.
    """
    client, content = message.metadata.src_node_id, message.content
    where = f"client {client}"
    measured = [f"{kind}/{layer}" for kind in (_FIGURES, _COUNTS) for layer in asked]
    only_records(content, (*measured, _VALIDATION, _FAILED), where)
    failed = content.get(_FAILED, ConfigRecord())
    if not isinstance(failed, ConfigRecord) or not all(isinstance(why, str) for why in failed.values()):
        raise BadReply(f"{where}: {_FAILED} must be reasons by layer, got {short(failed)}")
    tests: dict[str, Evaluation] = {}
    for layer in asked:
        figures, counts = content.get(f"{_FIGURES}/{layer}"), content.get(f"{_COUNTS}/{layer}")
        if isinstance(figures, MetricRecord):
            tests[layer] = checked_evaluation(figures, counts, client, where, bounds)
        elif layer not in failed:
            raise BadReply(f"{where}: no figures of {layer} in reply, keys are {short(list(content))}")
    losses = _losses(content.get(_VALIDATION, MetricRecord()), where, bounds)
    return PersonalAnswer(tests, losses, {layer: str(failed[layer]) for layer in asked if layer in failed})


def _losses(told: Record, where: str, bounds: Bounds) -> dict[str, float]:
    """Read the validation losses; one that is not finite becomes NaN, as the model may be to blame."""
    if not isinstance(told, MetricRecord):
        raise BadReply(f"{where}: {_VALIDATION} must be losses by layer, got {short(told)}")
    check_keys(told, _TRIED, where, _VALIDATION)
    losses: dict[str, float] = {}
    for layer, loss in told.items():
        finite = type(loss) is float and math.isfinite(loss)
        if type(loss) is not float or (finite and not bounds.least_loss <= loss <= LARGEST_NUMBER):
            allowed = f"[{bounds.least_loss:g}, {LARGEST_NUMBER:g}]"
            raise BadReply(f"{where}: validation loss of {layer} must be in {allowed}, got {short(loss)}")
        losses[layer] = loss if math.isfinite(loss) else math.nan
    return losses
