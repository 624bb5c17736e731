"""Which encoder a question means."""

from functools import lru_cache

from fedclust.clients.node import Node
from fedclust.models import Encoder
from fedclust.models.encoders import PixelEncoder, RandomEncoder
from fedclust.settings.allowed import check_encoder

__all__ = ["encoder_for"]

_DIMENSION, _SEED = 128, 0  # as conf/encoder/random.yaml has them


def encoder_for(node: Node, name: str, vocabulary_size: int | None = None) -> Encoder:
    """Return the encoder that a question names.

    Parameters
    ----------
    node
        The node that is asked.
    name
        ``"encoder"``, the choice of ``encoder``; ``"pixels"``, the normalised example itself; or
        ``"untrained"``, a network that every node draws from the same seed.
    vocabulary_size
        Number of tokens, for an untrained network on texts; None for other inputs.

    Raises
    ------
    NotAllowed
        If the node's operator has listed encoders, and this is none of them.
    ValueError
        If there is no encoder of that name.
    """
    if name == "encoder":
        return node.encoder()
    if name == "pixels":
        check_encoder("pixels", node.encoders)
        return PixelEncoder(node.data.input_shape)
    if name == "untrained":
        check_encoder("random", node.encoders)
        return _untrained(node.data.input_shape, vocabulary_size)
    raise ValueError(f"input must be one of encoder, pixels, untrained, got {name!r}")


@lru_cache(maxsize=4)
def _untrained(input_shape: tuple[int, ...], vocabulary_size: int | None) -> Encoder:
    return RandomEncoder(input_shape, _DIMENSION, _SEED, vocabulary_size)
