"""FedCLS: clients are chosen for the classes that those chosen before them lack.

Source: C. Li and H. Wu, "FedCLS: A federated learning client selection algorithm based on cluster label
information", VTC2022-Fall, as Clust-PSI-PFL describes it (Section II d): Hamming distances between one-hot
label vectors guide the choice, with a preference for complementary labels, and a threshold τ that its Table
II searches over {0.1, 0.5, 0.95}. Neither says what τ is applied to: here a client counts as having a class
if at least this share of its samples is of it, so that at 0.95 a vector has at most a single one.
"""

import numpy as np

from fedclust.typing import BoolArray, IntArray


def label_vectors(counts: IntArray, threshold: float) -> BoolArray:
    """List which classes each client has.

    Parameters
    ----------
    counts
        Samples of each client and class, shape (K, C).
    threshold
        τ, the smallest share of a client's samples that counts, in (0, 1].

    Returns
    -------
    Whether each client has each class, shape (K, C).

    Examples
    --------
    >>> label_vectors(np.array([[3, 27], [2, 28]]), threshold=0.1)
    array([[ True,  True],
           [False,  True]])
    """
    # Compared as numbers of samples, not as shares, so that 0.1 of 30 samples is 3 in spite of rounding.
    needed = np.round(threshold * counts.sum(axis=1, keepdims=True), 9)
    return (counts >= needed) & (counts > 0)


def choose(vectors: BoolArray, size: int, generator: np.random.Generator) -> IntArray:
    """Choose clients one after another, each as different as possible from those already chosen.

    The first is drawn at random. Each next one has the largest sum of Hamming distances, Σ_j |v_i ⊕ v_j| over
    the chosen j; ties are drawn at random.

    Parameters
    ----------
    vectors
        Which classes each client has, shape (n, C).
    size
        Number of clients, at most n.

    Returns
    -------
    Positions in `vectors`, in the order in which they were chosen, shape (size,).

    Examples
    --------
    >>> vectors = np.array([[True, False], [True, False], [False, True]])
    >>> 2 in choose(vectors, 2, np.random.default_rng(0))  # whatever is drawn first
    True
    """
    apart = np.zeros(len(vectors), dtype=np.int64)
    left = np.ones(len(vectors), dtype=bool)
    chosen = np.empty(size, dtype=np.int64)
    for turn in range(size):
        farthest = np.flatnonzero(left & (apart == apart[left].max()))
        chosen[turn] = generator.choice(farthest)
        left[chosen[turn]] = False
        apart += (vectors != vectors[chosen[turn]]).sum(axis=1)
    return chosen
