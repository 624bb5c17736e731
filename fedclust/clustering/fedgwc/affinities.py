"""Affinities of FedGWC's clients, from the interaction matrix.

Eq. 4 of the paper, which :mod:`fedclust.clustering.fedgwc.algorithm` names.
"""

import numpy as np

from fedclust.clustering.fedgwc import large
from fedclust.clustering.fedgwc.interaction import Interaction
from fedclust.clustering.fedgwc.parameters import Parameters
from fedclust.typing import FloatArray

__all__ = ["affinity", "affinity_of"]


def affinity(interaction: FloatArray, kernel_width: float) -> FloatArray:
    """Compute the clients' affinities: how similarly the other clients perceive them.

    Source: FedGWC, Eq. 4. v_k^j, row k of the matrix without entries k and j, is how client k is perceived
    by all but itself and j; W_kj = exp(−β ‖v_k^j − v_j^k‖²).

    Parameters
    ----------
    interaction
        Interaction matrix P, shape (K, K).
    kernel_width
        β > 0.

    Returns
    -------
    Affinity W in [0, 1], symmetric, 1 on the diagonal, shape (K, K); float32 if `interaction` is, see
    :mod:`fedclust.clustering.fedgwc.large`.

    Raises
    ------
    ValueError
        If `interaction` is not square or `kernel_width` is outside its range.
    """
    single = interaction.dtype == np.float32
    matrix = interaction if single else np.ascontiguousarray(interaction, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"interaction must be square, got shape {matrix.shape}")
    if not kernel_width > 0:
        raise ValueError(f"kernel_width must be > 0, got {kernel_width}")
    if single:
        return large.affinity(matrix.copy(), kernel_width)
    # ‖v_k^j − v_j^k‖² is the squared distance of rows k and j less their entries k and j. NumPy computes
    # A @ A.T as one triangle and its mirror image; the other terms are symmetric because a + b = b + a.
    norms = np.einsum("kj,kj->k", matrix, matrix)
    excluded = np.square(matrix - matrix.diagonal())  # (P_kj − p_j)² at k, j
    distances = np.add.outer(norms, norms) - 2 * (matrix @ matrix.T) - (excluded + excluded.T)
    np.fill_diagonal(distances, 0.0)
    return np.exp(-kernel_width * np.maximum(distances, 0.0))  # round-off leaves values just below 0


def affinity_of(state: Interaction, parameters: Parameters) -> FloatArray:
    """Compute a cluster's affinities with the settings in `parameters`.

    Parameters
    ----------
    state
        The cluster.
    parameters
        The vectors to compare and the kernel's width.

    Returns
    -------
    Affinity as in :func:`affinity`, shape (K, K).
    """
    matrix = state.matrix
    if parameters.compare == "columns":  # as a whole, so that columns stay comparable
        lowest, highest = matrix.min(), matrix.max()
        matrix = (matrix.T - lowest) / (highest - lowest if highest > lowest else matrix.dtype.type(1))
    if matrix.dtype == np.float32:  # `matrix` is a copy, and another would be large
        return large.affinity(matrix, parameters.kernel_width)
    return affinity(matrix, parameters.kernel_width)
