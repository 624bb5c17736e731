"""FedGWC: clusters from losses, found and split while training goes on.

Licciardi, Leo, Fanì, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated
Learning", ICML 2025, arXiv:2502.03340. A client whose losses are near its cohort's mean is rewarded; who was
rewarded in whose company fills an interaction matrix; once that matrix settles, clients that the others
perceive alike form a cluster, which goes on as a federation of its own.

What the paper leaves open or we do otherwise:

- A step at which all losses are the same, where Eq. 1 divides 0 by 0, rewards every client with 1.
- The paper's rule splits a sparse matrix as soon as a few quiet rounds pass, and splits clients that are all
  alike. `Parameters` therefore asks by default that most pairs have met, that the matrix stays settled for
  some rounds, and that the clusters are well apart. `min_pair_coverage=0`, `patience=1` and
  `max_davies_bouldin=1` are the paper to the letter.
- After a test that did not end in a split, `patience` rounds must pass before the next.
- No split where the score is undefined: fewer than three clients, or clients all alike to each other.

The authors' released code differs in ways that `Parameters` can follow. Two of its habits are left out: mean
and variance of Eq. 1 weighted by numbers of examples, and the variance divided by n instead of n − 1.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fedclust.clustering.fedgwc_parameters import Parameters
from fedclust.clustering.interaction import Interaction
from fedclust.clustering.spectral import best, candidates
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "Interaction",
    "Outcome",
    "Parameters",
    "affinity",
    "affinity_of",
    "children",
    "rewards",
    "split",
    "start",
    "step",
    "update_interaction",
]

Number = TypeVar("Number", float, FloatArray)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a round. `labels` asks for a split; the rest is for logs.

    Attributes
    ----------
    rewards
        Reward ω of each client of the cohort in (0, 1], shape (n,); empty if fewer than two replied.
    mse
        Mean squared change of the matrix that this round was tested with.
    pair_coverage
        Share of the cluster's pairs that have met.
    settled
        Whether the matrix was settled this round.
    tried
        Whether a split was tried.
    davies_bouldin
        Score of each number of clusters tried.
    labels
        Part of each member, numbered from 0 without gaps, shape (K,), if the cluster is to be split; for
        :func:`children`.
    refused
        Why a split that was found was refused.
    """

    rewards: FloatArray
    mse: float
    pair_coverage: float
    settled: bool = False
    tried: bool = False
    davies_bouldin: dict[int, float] = field(default_factory=dict)
    labels: IntArray | None = None
    refused: str | None = None


def rewards(losses: FloatArray) -> FloatArray:
    """Score how typical each client's losses are of its cohort.

    Source: FedGWC, Eq. 1, averaged over local steps (Section 4.1).

    Parameters
    ----------
    losses
        Training loss before each local step, in nats, shape (cohort, steps).

    Returns
    -------
    Reward in (0, 1], shape (cohort,); 1 means at the cohort's mean on every step, as where all are equal.

    Raises
    ------
    ValueError
        If fewer than two clients or no steps are given, or a loss is not finite.
    """
    losses = np.asarray(losses, dtype=np.float64)
    if losses.ndim != 2 or len(losses) < 2 or losses.shape[1] < 1:
        raise ValueError(f"losses must be of >= 2 clients and >= 1 steps, got shape {losses.shape}")
    if not np.isfinite(losses).all():
        raise ValueError(f"losses must be finite, got {losses[~np.isfinite(losses)][0]}")
    # Rewards depend on neither origin nor unit of the losses. Measured from the smallest and in units of the
    # range, equal losses have a variance of exactly 0, and tiny or huge ones neither lose it nor overflow.
    lowest, highest = losses.min(axis=0), losses.max(axis=0)
    scaled = (losses - lowest) / np.where(highest > lowest, highest - lowest, 1.0)
    deviation = np.square(scaled - scaled.mean(axis=0))
    variance = scaled.var(axis=0, ddof=1)
    exponent = deviation / np.where(variance > 0, 2 * variance, 1.0)  # a variance of 0 has deviations of 0
    return np.exp(-exponent).mean(axis=1)


def update_interaction(
    interaction: FloatArray, cohort: IntArray, rewards: FloatArray, step_size: float
) -> FloatArray:
    """Blend a round's rewards into the interaction matrix.

    Source: FedGWC, Eq. 3: P_kj ← (1 − α) P_kj + α ω_k for every ordered pair of the cohort, k = j included.

    Parameters
    ----------
    interaction
        Interaction matrix P, shape (K, K).
    cohort
        Positions in the matrix of the clients of the round, shape (n,).
    rewards
        Their rewards ω, shape (n,).
    step_size
        Weight α of the round, in (0, 1].

    Returns
    -------
    A new matrix, shape (K, K).

    Raises
    ------
    ValueError
        If `cohort` repeats a position or leaves the matrix, `rewards` has another length, or `step_size` is
        outside its range.
    """
    cohort = np.asarray(cohort)
    if not 0 < step_size <= 1:
        raise ValueError(f"step_size must be in (0, 1], got {step_size}")
    if len(np.unique(cohort)) < len(cohort) or not ((cohort >= 0) & (cohort < len(interaction))).all():
        raise ValueError(f"cohort must be different positions below {len(interaction)}, got {cohort}")
    if len(rewards) != len(cohort):
        raise ValueError(f"rewards must have an entry per client, {len(cohort)}, got {len(rewards)}")
    pairs = np.ix_(cohort, cohort)
    updated = np.array(interaction, dtype=np.float64)
    updated[pairs] = _blend(updated[pairs], np.asarray(rewards)[:, None], step_size)
    return updated


def affinity(interaction: FloatArray, kernel_width: float) -> FloatArray:
    """Measure how alike clients are perceived by the others.

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
    Affinity W in [0, 1], symmetric, 1 on the diagonal, shape (K, K).

    Raises
    ------
    ValueError
        If `interaction` is not square or `kernel_width` is outside its range.
    """
    matrix = np.ascontiguousarray(interaction, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"interaction must be square, got shape {matrix.shape}")
    if not kernel_width > 0:
        raise ValueError(f"kernel_width must be > 0, got {kernel_width}")
    # ‖v_k^j − v_j^k‖² is the squared distance of rows k and j less their entries k and j. NumPy computes
    # A @ A.T as one triangle and its mirror image; the other terms are symmetric because a + b = b + a.
    norms = np.einsum("kj,kj->k", matrix, matrix)
    excluded = np.square(matrix - matrix.diagonal())  # (P_kj − p_j)² at k, j
    distances = np.add.outer(norms, norms) - 2 * (matrix @ matrix.T) - (excluded + excluded.T)
    np.fill_diagonal(distances, 0.0)
    return np.exp(-kernel_width * np.maximum(distances, 0.0))  # round-off leaves values just below 0


def affinity_of(state: Interaction, parameters: Parameters) -> FloatArray:
    """Measure a cluster's affinities the way `parameters` say.

    Parameters
    ----------
    state
        The cluster.
    parameters
        Which vectors are compared, and the kernel's width.

    Returns
    -------
    Affinity as of :func:`affinity`, shape (K, K).
    """
    matrix = state.matrix
    if parameters.compare == "columns":  # as a whole, so that columns stay comparable
        lowest, highest = matrix.min(), matrix.max()
        matrix = (matrix.T - lowest) / (highest - lowest if highest > lowest else 1.0)
    return affinity(matrix, parameters.kernel_width)


def split(
    affinity: FloatArray, max_clusters: int = 5, seed: int = 0, *, max_davies_bouldin: float = 1.0
) -> IntArray:
    """Divide a cluster's clients if they divide well.

    Source: FedGWC, Algorithm 1: spectral clustering into 2 … n_max parts; the number with the smallest
    Davies–Bouldin score on the rows of W wins, if that score is at most `max_davies_bouldin`.

    Parameters
    ----------
    affinity
        Affinity W, shape (K, K).
    max_clusters
        n_max >= 2, cut to K − 1.
    seed
        Seed >= 0 of spectral clustering.
    max_davies_bouldin
        Largest score of an acceptable division.

    Returns
    -------
    Part of each client, numbered in order of first appearance, shape (K,); all 0 when no split is justified.

    Raises
    ------
    ValueError
        If `max_clusters` is outside its range.
    """
    if max_clusters < 2:
        raise ValueError(f"max_clusters must be >= 2, got {max_clusters}")
    labels = best(candidates(affinity, max_clusters, seed), max_davies_bouldin)
    return np.zeros(len(affinity), dtype=np.int64) if labels is None else labels


def start(members: IntArray, parameters: Parameters) -> Interaction:
    """Make the state of a cluster before its first round.

    Parameters
    ----------
    members
        Client ids in any order, shape (K,).
    parameters
        What the matrix starts at.

    Returns
    -------
    State in which nobody has met.

    Raises
    ------
    ValueError
        If there are no members or one is named twice.
    """
    uniform = parameters.initial == "uniform" and len(members)
    return Interaction.start(members, 1 / len(members) ** 2 if uniform else 0.0)


def step(
    state: Interaction,
    cohort: IntArray,
    losses: Sequence[FloatArray] | FloatArray,
    parameters: Parameters,
    seed: int,
) -> tuple[Interaction, Outcome]:
    """Fold a round's losses into a cluster's matrix, and say whether the cluster is to be split.

    Source: FedGWC, Algorithm 2, lines 11 to 17. Fewer than two replies change nothing.

    Parameters
    ----------
    state
        The cluster before the round.
    cohort
        Ids of the clients that replied, in any order, shape (n,).
    losses
        Loss of each of them before each local step, in nats, n arrays; the first steps that all ran count.
    parameters
        How to measure and split, with `step_size` (or `cohort_size`) and `min_cluster_size` set.
    seed
        Seed >= 0 of spectral clustering.

    Returns
    -------
    state
        The cluster after the round.
    outcome
        What came of it. Where it has labels, :func:`children` makes the states to go on with.

    Raises
    ------
    ValueError
        If a client is not a member or named twice, `losses` is not of the cohort, a client reports none, a
        loss is not finite, or `parameters` lack what `resolve` fills in.
    """
    step_size = parameters.step_size_of(len(state.members))
    max_clusters = parameters.max_clusters_of(len(state.members))
    positions = state.positions(cohort)
    if len(losses) != len(positions):
        raise ValueError(f"losses must be of the cohort's {len(positions)} clients, got {len(losses)}")
    if len(positions) < 2:
        return state, Outcome(np.zeros(0), state.mse, state.pair_coverage)

    scores = rewards(_common_steps(losses))
    state = _updated(state, positions, scores, step_size, parameters)
    settled = state.pair_coverage >= parameters.min_pair_coverage and state.mse < parameters.tolerance
    state = dataclasses.replace(state, rounds_settled=state.rounds_settled + 1 if settled else 0)
    outcome = Outcome(scores, state.mse, state.pair_coverage, settled)
    if max_clusters < 2 or state.rounds_settled < parameters.patience_of(len(state.members)):
        return state, outcome

    found = candidates(
        affinity_of(state, parameters),
        max_clusters,
        seed,
        score_on=parameters.score_on,
        assign_labels=parameters.assign_labels,
    )
    labels, refused = best(found, parameters.max_davies_bouldin), None
    if labels is not None and (smallest := np.bincount(labels).min()) < parameters.min_cluster_size:
        labels = None
        refused = f"a part of {smallest} clients is below min_cluster_size {parameters.min_cluster_size}"
    mse = 1.0 if labels is None and parameters.reset_change else state.mse
    state = dataclasses.replace(state, rounds_settled=0, mse=mse)
    scored = {number: candidate.davies_bouldin for number, candidate in found.items()}
    return state, dataclasses.replace(
        outcome, tried=True, davies_bouldin=scored, labels=labels, refused=refused
    )


def children(state: Interaction, labels: IntArray) -> list[Interaction]:
    """Make the states of the parts of a split cluster.

    Source: FedGWC, Algorithm 2, lines 18 and 19: each part takes its rows and columns of the matrix, and a
    mean squared change of 1. Who has met stays known, and so do the Gaussian weights.

    Parameters
    ----------
    state
        The cluster.
    labels
        Part of each member, numbered from 0 without gaps, shape (K,).

    Returns
    -------
    One state per part, in the order of their numbers; every member is in exactly one.

    Raises
    ------
    ValueError
        If `labels` does not have an entry per member or leaves a number out.
    """
    labels = np.asarray(labels)
    if labels.shape != state.members.shape:
        raise ValueError(f"labels must have shape {state.members.shape}, got {labels.shape}")
    numbers = np.unique(labels)
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise ValueError(f"labels must be 0, 1, … without gaps, got {numbers.tolist()}")
    return [state.part(np.flatnonzero(labels == number)) for number in numbers]


def _updated(
    state: Interaction, positions: IntArray, scores: FloatArray, step_size: float, parameters: Parameters
) -> Interaction:
    """Apply Eq. 2 and Eq. 3 to the cohort's entries, and measure how much these changed."""
    entering = scores / scores.sum() if parameters.reward_shares else scores
    before = state.block(positions)
    after = _blend(before, entering[:, None], step_size)
    change = np.square(after - before)
    if parameters.change == "cohort":
        mse = _blend(state.mse, change.mean(), step_size)
    else:
        mse = change.sum() / len(state.members) ** 2  # all other entries stayed as they were
    weights = _blend(state.weights[positions], scores, step_size)
    return state.with_cohort(positions, after, weights, float(mse))


def _common_steps(losses: Sequence[FloatArray] | FloatArray) -> FloatArray:
    num_steps = min(len(series) for series in losses)
    return np.stack([series[:num_steps] for series in losses])


def _blend(old: Number, new: Number, step_size: float) -> Number:
    return (1 - step_size) * old + step_size * new
