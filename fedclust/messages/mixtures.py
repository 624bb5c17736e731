"""Messages about mixtures of models: how much each of them is responsible for a client's rows."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from flwr.app import ArrayRecord

from fedclust.messages import codec
from fedclust.typing import FloatArray

_ROUND_OFF = 1e-6


def _most(at: codec.Reading) -> float:
    return codec.train_rows(at) * (1 + _ROUND_OFF)


@dataclass(frozen=True, eq=False)
class Responsibilities:
    """How much each of several models is responsible for a client's training rows.

    Attributes
    ----------
    sums
        Sums of their responsibilities over the rows of each class, shape (models, C); over the models they
        add up to the client's label counts.
    """

    sums: Annotated[FloatArray, codec.Values("f8", "k C", 0.0, _most, (1 - _ROUND_OFF, _most))]

    def check(self, at: codec.Reading) -> None:
        """Check that there is a row for each model."""
        if len(self.sums) != (number := len(at.asked.models)):
            raise at.bad(f"sums must be of {number} models, got {len(self.sums)}")


@dataclass(frozen=True, eq=False)
class ResponsibilitiesQuestion(codec.Question[Responsibilities]):
    """Ask how much each of several models is responsible for a client's training rows.

    Attributes
    ----------
    models
        The models.
    mixture
        How much of each model the client is so far, shape (models,).
    label_shares
        Share of each class in the rows of each model, shape (models, C), in one list.
    """

    kind = "query.responsibilities"

    models: Annotated[tuple[ArrayRecord, ...], codec.Spread(codec.Own(codec.Place("", ArrayRecord)))]
    mixture: Annotated[FloatArray, codec.Numbers(0, 1)]
    label_shares: Annotated[FloatArray, codec.Numbers(0, 1)]

    @classmethod
    def of(
        cls, models: tuple[ArrayRecord, ...], mixture: FloatArray, label_shares: FloatArray
    ) -> "ResponsibilitiesQuestion":
        """Make the question."""
        return cls(models, mixture, np.ravel(label_shares))
