"""HACCS: clients grouped by their label shares; groups drawn by loss and speed.

Source: J. Wolfrath, N. Sreekumar, D. Kumar, Y. Wang and A. Chandra, "HACCS: Heterogeneity-Aware Clustered
Client Selection for Accelerated Federated Learning", IPDPS 2022, and its released code
(NS-PhD-Research/HACCS).

Where this differs:

- ρ weights the loss and 1 − ρ the speed, as in :func:`weights`; the released code has them the other way
  round. The loss is the mean of a group's losses, not of their squares.
- Groups are formed as in the released code, by OPTICS with its clusters cut at one distance; a client without
  neighbours is a group of its own. OPTICS' own cut (xi, the other line of that code) found 11 to 20 groups
  where there were two, in each of three draws of 30 clients with 48 samples.
- Labels are reported without noise. If no latencies are known, all clients count as equally fast.
"""

import warnings

import numpy as np

from fedclust.support.rng import draw_order
from fedclust.typing import FloatArray, IntArray

_MIN_SAMPLES = 2  # released code; a client and one neighbour are a group


def hellinger(counts: IntArray) -> FloatArray:
    """Compute the Hellinger distance of each pair of clients' label shares.

    H(p, q) = ‖√p − √q‖₂ / √2, with p and q the share of each class.

    Parameters
    ----------
    counts
        Samples of each client and class, shape (K, C).

    Returns
    -------
    Distances in [0, 1], 1 where clients share no class, shape (K, K). A client without samples has distance
    1/√2 from every other.

    Examples
    --------
    >>> hellinger(np.array([[5, 0], [0, 5], [9, 0]]))
    array([[0., 1., 0.],
           [1., 0., 1.],
           [0., 1., 0.]])
    """
    from scipy.spatial.distance import cdist

    roots = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    return np.minimum(cdist(roots, roots) / np.sqrt(2), 1.0)


def groups(counts: IntArray, max_distance: float) -> IntArray:
    """Group clients with similar label shares, by OPTICS on their Hellinger distances.

    Parameters
    ----------
    counts
        Samples of each client and class, shape (K, C).
    max_distance
        Distance up to which two clients are neighbours.

    Returns
    -------
    Group of each client, from 0 without gaps, shape (K,).

    Examples
    --------
    >>> groups(np.array([[5, 0], [5, 0], [0, 5], [0, 5]]), max_distance=0.5)
    array([0, 0, 1, 1])
    """
    from sklearn.cluster import OPTICS

    num_clients = len(counts)
    if num_clients < _MIN_SAMPLES:
        return np.zeros(num_clients, dtype=np.int64)
    optics = OPTICS(min_samples=_MIN_SAMPLES, metric="precomputed", cluster_method="dbscan", eps=max_distance)
    with warnings.catch_warnings():
        # All reachability is infinite if no two clients are neighbours, which is a valid result.
        warnings.simplefilter("ignore")
        labels = np.asarray(optics.fit_predict(hellinger(counts)), dtype=np.int64)
    alone = labels < 0
    labels[alone] = labels.max(initial=-1) + 1 + np.arange(alone.sum())
    return labels


def weights(
    labels: IntArray, losses: FloatArray, latencies: FloatArray | None, rho: float
) -> dict[int, float]:
    """Compute the weights with which groups are drawn.

    ρ · L_g / Σ L + (1 − ρ) · (1 − t_g / max t), with L_g and t_g the means of the group's losses and
    latencies; without latencies L_g / Σ L. A mean loss below 0 counts as 0.

    Parameters
    ----------
    labels
        Group of each client, shape (n,).
    losses
        Loss of each client, in nats, shape (n,).
    latencies
        Seconds that each client takes, shape (n,); None where unknown.
    rho
        Weight ρ of the loss, in [0, 1].

    Returns
    -------
    Weight of each group that has clients, >= 0.

    Examples
    --------
    >>> weights(np.array([0, 0, 1]), np.array([1.0, 1.0, 3.0]), None, rho=1.0)
    {0: 0.25, 1: 0.75}
    """
    present = np.unique(labels)
    # A loss of the user's own may be below 0, which is no weight.
    mean_losses = np.array([max(losses[labels == group].mean(), 0.0) for group in present])
    total = mean_losses.sum()
    weight = mean_losses / total if total > 0 else np.full(len(present), 1 / max(len(present), 1))
    if latencies is not None:
        seconds = np.array([latencies[labels == group].mean() for group in present])
        weight = rho * weight + (1 - rho) * (1 - seconds / seconds.max(initial=0))
    return dict(zip(present.tolist(), weight.tolist(), strict=True))


def draw(
    clients: IntArray,
    labels: IntArray,
    losses: FloatArray,
    latencies: FloatArray | None,
    rho: float,
    size: int,
    generator: np.random.Generator,
) -> IntArray:
    """Draw groups by their weights, with replacement, and take the fastest client left in each drawn group.

    Parameters
    ----------
    clients
        Client ids, shape (n,).
    labels, losses, latencies, rho
        As for :func:`weights`.
    size
        Number of clients to draw; at most all n.

    Returns
    -------
    Client ids, sorted, shape (min(size, n),).

    Examples
    --------
    >>> clients, labels, losses = np.array([4, 5, 6]), np.array([0, 0, 1]), np.array([1.0, 1.0, 0.0])
    >>> seconds, generator = np.array([2.0, 1.0, 3.0]), np.random.default_rng(0)
    >>> draw(clients, labels, losses, seconds, rho=1.0, size=1, generator=generator)  # group 1 has weight 0
    array([5])
    """
    by_group = weights(labels, losses, latencies, rho)
    # Ties, and all clients if no latency is known, come in random order.
    order = draw_order(np.ones(len(clients)), generator)
    if latencies is not None:
        order = order[np.argsort(latencies[order], kind="stable")]
    remaining = {group: clients[order[labels[order] == group]].tolist() for group in by_group}
    chosen: list[int] = []
    while len(chosen) < min(size, len(clients)):
        left = [group for group in by_group if remaining[group]]
        parts = np.array([by_group[group] for group in left])
        shares = parts / parts.sum() if parts.sum() > 0 else None
        chosen.append(remaining[left[int(generator.choice(len(left), p=shares))]].pop(0))
    return np.array(sorted(chosen), dtype=np.int64)
