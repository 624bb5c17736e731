"""Messages about FLUX's descriptors: moments of a model's latent features on a client's rows."""

from dataclasses import dataclass
from typing import Annotated

from flwr.app import ArrayRecord

from fedclust.messages import codec
from fedclust.typing import FloatArray

MOST_FEATURES = 2**16
"""Of a last linear layer's input: the server makes axes of that width."""


@dataclass(frozen=True, eq=False)
class Descriptor:
    """Moments of a model's latent features on a client's training rows.

    Attributes
    ----------
    moments
        As of :func:`fedclust.clustering.flux.moments`, shape (2 + 2 C, axes).
    width
        Number of latent features.
    most
        The largest latent feature of a row.
    right
        How many rows the model predicts right.
    num_examples
        Number of rows.
    """

    moments: Annotated[FloatArray, codec.Values("f8", "m c")]
    width: Annotated[int, codec.Whole(1, MOST_FEATURES)]
    most: Annotated[float, codec.Real()]
    right: Annotated[int, codec.Whole(0, codec.train_rows)]
    num_examples: Annotated[int, codec.Whole(1, codec.train_rows)]

    def check(self, at: codec.Reading) -> None:
        """Check the number of moments, and that no more rows are right than there are."""
        wanted = 2 + 2 * at.asked.num_classes, min(self.width, at.asked.num_classes)
        if self.moments.shape != wanted or self.right > self.num_examples:
            rule = f"moments must have shape {wanted}, and right at most {self.num_examples}"
            raise at.bad(f"{rule}, got {self.moments.shape} and {self.right}")


@dataclass(frozen=True, eq=False)
class DescriptorQuestion(codec.Question[Descriptor]):
    """Ask for the moments of a model's latent features.

    Attributes
    ----------
    arrays
        The model.
    num_classes
        Number of classes C, and of axes.
    """

    kind = "query.descriptor"

    arrays: Annotated[ArrayRecord, codec.Model()]
    num_classes: Annotated[int, codec.Whole(1)]
