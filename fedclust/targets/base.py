"""What every kind of target can do."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import torch


class Target(ABC):
    """What a client learns to predict.

    A row's *value* is what is known of it: a class index; an amount; or a time and an event. Its *correction*
    is what is added to all of a client's outputs because its rows differ from those that trained the model.
    """

    kind: ClassVar[str]
    """``"classes"``, ``"amounts"`` or ``"times"``."""

    right: ClassVar[str]
    """What :meth:`hits` counts, in words that follow a share."""

    @abstractmethod
    def outputs(self, num_bins: int) -> int:
        """Return how many outputs a network needs."""

    @abstractmethod
    def bins(self, values: FloatArray | IntArray) -> IntArray:
        """Return the bin of each row, from 0, shape (n,)."""

    @abstractmethod
    def bin_names(self) -> tuple[str, ...]:
        """Return a name for each bin."""

    @abstractmethod
    def loss(self, outputs: "torch.Tensor", values: "torch.Tensor") -> "torch.Tensor":
        """Compute the loss of each row, shape (n,), from outputs, shape (n, O)."""

    @abstractmethod
    def scores(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Compute each row's proper score in [0, 2], shape (n,): 0 for a prediction that is certain and right."""

    @abstractmethod
    def hits(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Return how right each row's prediction is, in [0, 1], shape (n,); see :attr:`right`."""

    @abstractmethod
    def correction(self, sent: FloatArray, outputs: FloatArray, values: FloatArray | IntArray) -> FloatArray:
        """Return a client's correction.

        Parameters
        ----------
        sent
            The server's, from bins' shares, shape (C,); zeros where it knows nothing better.
        outputs, values
            The model's outputs for the client's training rows, shape (n, O), and their values.

        Returns
        -------
        Shape (C,) for classes, (O,) for others; added to outputs.
        """

    @abstractmethod
    def without_inputs(self, values: FloatArray | IntArray, num_bins: int) -> FloatArray:
        """Return the outputs of the best prediction that needs no inputs, from training values, shape (O,)."""

    @abstractmethod
    def figures(self, outputs: FloatArray, values: FloatArray | IntArray) -> dict[str, float]:
        """Compute what people decide by besides the share of hits, by name; NaN where undefined."""
