"""The difference between two models' scores on a client's held-out rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import ArrayLike

from fedclust.messages.bounds import Bounds, check_keys, short, whole
from fedclust.messages.keys import BadReply
from fedclust.messages.kinds import of_kind
from fedclust.proof import Difference
from fedclust.typing import FloatArray

__all__ = ["ProofQuestion", "proof_content", "proof_question", "read_proof", "read_proof_question"]

_A, _B, _SHIFTS, _DIFFERENCE = "model-a", "model-b", "prior-shifts", "difference"
_TRAINING = "on-training-rows"
_MEAN, _VARIANCE, _COUNT = "mean", "variance", "count"
_UNKNOWN = Bounds()


@dataclass(frozen=True, eq=False)
class ProofQuestion:
    """The question to a client.

    Attributes
    ----------
    model_a, model_b
        The two models.
    shift_a, shift_b
        Added to this client's logits of each model: the label-prior correction, shape (C,).
    on_training_rows
        Whether to compare on the training rows: those of a client that trained neither model are held out
        from both.
    """

    model_a: ArrayRecord
    model_b: ArrayRecord
    shift_a: FloatArray
    shift_b: FloatArray
    on_training_rows: bool = False


def proof_question(
    model_a: ArrayRecord,
    model_b: ArrayRecord,
    shift_a: ArrayLike,
    shift_b: ArrayLike,
    *,
    on_training_rows: bool = False,
) -> RecordDict:
    """Make the question how much better model B predicts a client's held-out rows than model A.

    Clients may share the records of the models, which are then sent once; the shifts are the client's own.
    """
    shifts: dict[str, Any] = {
        key: np.asarray(shift, dtype=np.float64).tolist() for key, shift in ((_A, shift_a), (_B, shift_b))
    }
    if on_training_rows:
        shifts[_TRAINING] = True
    return RecordDict({_A: model_a, _B: model_b, _SHIFTS: ConfigRecord(shifts)})


def read_proof_question(content: RecordDict) -> ProofQuestion:
    """Read :func:`proof_question`.

    Raises
    ------
    ValueError
        If a model or a shift is missing.
    """
    models = of_kind(content, ArrayRecord)
    shifts = of_kind(content, ConfigRecord).get(_SHIFTS, ConfigRecord())
    if _A not in models or _B not in models or _A not in shifts or _B not in shifts:
        raise ValueError(f"message must hold two models and their shifts, its records are {list(content)}")
    one, other = (np.asarray(shifts[key], dtype=np.float64) for key in (_A, _B))
    return ProofQuestion(models[_A], models[_B], one, other, shifts.get(_TRAINING) is True)


def proof_content(measured: Difference) -> RecordDict:
    """Make a client's reply: mean, variance and number of its rows' differences, and nothing else."""
    summary = {_MEAN: float(measured.mean), _VARIANCE: float(measured.variance), _COUNT: int(measured.count)}
    return RecordDict({_DIFFERENCE: ConfigRecord(summary)})  # type: ignore[arg-type]


def read_proof(message: Message, bounds: Bounds = _UNKNOWN, *, on_training_rows: bool = False) -> Difference:
    """Read a client's three numbers.

    Raises
    ------
    BadReply
        If one is missing, or impossible for a difference of two Brier scores.
    """
    client, found = message.metadata.src_node_id, message.content.get(_DIFFERENCE)
    where = f"client {client}"
    if not isinstance(found, ConfigRecord) or not {_MEAN, _VARIANCE, _COUNT} <= found.keys():
        keys = list(found) if isinstance(found, ConfigRecord) else []
        raise BadReply(f"{where}: no mean, variance and count in reply, keys are {short(keys)}")
    check_keys(found, (_MEAN, _VARIANCE, _COUNT), where, _DIFFERENCE)
    mean, variance, count = found[_MEAN], found[_VARIANCE], found[_COUNT]
    if (
        type(mean) is not float
        or type(variance) is not float
        or type(count) is not int
        or not abs(mean) <= 2 + 1e-9
        or not 0 <= variance <= 8 + 1e-9
        or count < 0
    ):
        raise BadReply(
            f"{where}: mean must be in [-2, 2], variance in [0, 8] and count >= 0, "
            f"got {short(mean)}, {short(variance)} and {short(count)}"
        )
    most = bounds.most_train(client) if on_training_rows else bounds.most_validation(client)
    return Difference(mean, variance, whole(count, 0, most, where, _COUNT))
