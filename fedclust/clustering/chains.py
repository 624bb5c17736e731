"""Chains of models: two straight pieces in weight space, joined by a bend. The geometry of FedGMCC."""

from typing import Any, TypeVar

from torch import Tensor

from fedclust.typing import FloatArray

__all__ = ["chain", "chain_mean", "chain_weights"]

Point = TypeVar("Point", float, FloatArray, Tensor)


def chain(start: Point, end: Point, bend: Point, u: Any) -> Point:
    """Find the model at `u` on the chain from one model over a bend to another.

    Source: FedGMCC, Eq. 3, with the misplaced bracket of its second line corrected: γ(0) = w_k,
    γ(1/2) = θ, γ(1) = w_l, straight in between.

    Parameters
    ----------
    start, end, bend
        w_k, w_l and θ: numbers, arrays or tensors of any one shape.
    u
        Where on the chain, in [0, 1]; a number, or what broadcasts against the others.

    Returns
    -------
    γ(u), of the same kind.

    Raises
    ------
    ValueError
        If `u` is a number outside [0, 1].
    """
    if isinstance(u, int | float) and not 0 <= u <= 1:
        raise ValueError(f"u must be in [0, 1], got {u}")
    first, middle, last = chain_weights(u)
    return first * start + middle * bend + last * end


def chain_mean(start: Point, end: Point, bend: Point) -> Point:
    """Average all models of a chain, exactly.

    Source: FedGMCC, Proposition 1.2: E_u γ(u) for u ~ U(0, 1). Each half is straight, so its mean is that of
    its ends.

    Parameters
    ----------
    start, end, bend
        w_k, w_l and θ: numbers, arrays or tensors of any one shape.

    Returns
    -------
    (w_k + 2θ + w_l) / 4, of the same kind.
    """
    return (start + 2 * bend + end) / 4


def chain_weights(u: Any) -> tuple[Any, Any, Any]:
    """Say how much start, bend and end count at `u`: max(1 − 2u, 0), the rest, and max(2u − 1, 0).

    Parameters
    ----------
    u
        Where on the chain, in [0, 1]: a number, an array or a tensor.

    Returns
    -------
    Three weights of the kind of `u`, each in [0, 1], with sum 1; the one of the far end is exactly 0.
    """
    # abs() serves all three kinds, which a branch on u would not.
    away = abs(1 - 2 * u)  # from the bend: 1 at both ends
    return (away + (1 - 2 * u)) / 2, 1 - away, (away - (1 - 2 * u)) / 2
