"""How models compare on a client's rows: their losses, and the proof of which of two is better."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord

from fedclust.messages.codec import (
    LARGEST_NUMBER,
    Flag,
    Made,
    Model,
    Numbers,
    Own,
    Place,
    Question,
    Reading,
    Real,
    Spread,
    Whole,
    least_loss,
    train_rows,
)
from fedclust.proof import Difference
from fedclust.typing import FloatArray, IntArray

_LOSSES = Place("losses", ConfigRecord)


def _num_models(at: Reading) -> int:
    return len(at.asked.models)


def _check_wins(wins: IntArray, at: Reading) -> None:
    most = train_rows(at)
    if not 0 < sum(wins.tolist()) <= most:
        raise at.bad(f"wins must be numbers of rows, not all 0, {most} in all at most, got {wins}")


@dataclass(frozen=True, eq=False)
class Losses:
    """How well each of several models fits a client's training part.

    Attributes
    ----------
    losses
        Mean loss of each model, in nats, in the question's order, shape (models,).
    wins
        For each model, the number of training rows on which its loss is the smallest, shape (models,).
    """

    losses: Annotated[FloatArray, Numbers(_LOSSES, least_loss, LARGEST_NUMBER, count=_num_models)]
    wins: Annotated[IntArray | None, Numbers(_LOSSES, 0, train_rows, np.int64, count=_num_models)] = None

    def check(self, at: Reading) -> None:
        """Check that the wins are of rows that the client has."""
        if self.wins is not None:
            _check_wins(self.wins, at)


@dataclass(frozen=True, eq=False)
class LossesQuestion(Question[Losses]):
    """The question for the loss of each of several models on a client's training part."""

    kind = "query.losses"
    answer = Losses

    models: Annotated[tuple[ArrayRecord, ...], Spread(Own(Place("", ArrayRecord)))]


@dataclass(frozen=True, eq=False)
class Wins:
    """On how many of a client's training rows each of several models fits best, of the same answer.

    Attributes
    ----------
    wins
        As of :class:`Losses`; a model whose loss is not finite wins no row.
    losses
        Not read: one model that has diverged must not cost the others their rows.
    """

    wins: Annotated[IntArray, Numbers(_LOSSES, 0, train_rows, np.int64, count=_num_models)]
    losses: Annotated[None, Made(_LOSSES, reads=lambda _: None)] = None

    def check(self, at: Reading) -> None:
        """Check that the wins are of rows that the client has."""
        _check_wins(self.wins, at)


@dataclass(frozen=True, eq=False)
class WinsQuestion(Question[Wins]):
    """The same question, asked for the wins."""

    kind = LossesQuestion.kind
    answer = Wins

    models: Annotated[tuple[ArrayRecord, ...], Spread(Own(Place("", ArrayRecord)))]


# -- The proof ----------------------------------------------------------------------------------------------

_DIFFERENCE = Place("difference", ConfigRecord)
_SHIFTS = Place("prior-shifts", ConfigRecord)
_ROUND_OFF = 1e-9


def _compared_rows(at: Reading) -> int:
    return train_rows(at) if at.asked.on_training_rows else at.most(at.bounds.num_validation)


@dataclass(frozen=True)
class ProofAnswer(Difference):
    """The difference of two models' Brier scores on a client's rows; nothing else leaves it.

    Attributes
    ----------
    mean, variance, count
        Of the rows' differences, A's minus B's.
    """

    mean: Annotated[float, Real(_DIFFERENCE, -2 - _ROUND_OFF, 2 + _ROUND_OFF)]
    variance: Annotated[float, Real(_DIFFERENCE, 0, 8 + _ROUND_OFF)]
    count: Annotated[int, Whole(_DIFFERENCE, 0, _compared_rows)]


@dataclass(frozen=True, eq=False)
class ProofQuestion(Question[ProofAnswer]):
    """The question how much better model B predicts a client's held-out rows than model A.

    Clients may share the records of the models, which are then sent once; the shifts are the client's own.

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

    kind = "query.proof"
    answer = ProofAnswer

    model_a: Annotated[ArrayRecord, Model("model-a")]
    model_b: Annotated[ArrayRecord, Model("model-b")]
    shift_a: Annotated[FloatArray, Numbers(_SHIFTS, key="model-a")]
    shift_b: Annotated[FloatArray, Numbers(_SHIFTS, key="model-b")]
    on_training_rows: Annotated[bool, Flag(_SHIFTS, sparse=True)] = False
