"""FedGWC: clusters from losses, split during training.

Licciardi, Leo, Fanì, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated
Learning", ICML 2025, arXiv:2502.03340. A client gets a reward if its losses are near its cohort's mean. An
interaction matrix records each client's rewards together with each other client. Once that matrix settles,
clients with similar rows form a cluster, which continues as its own federation. Eq. 4 is in
:mod:`.affinities`.

Choices where the paper is not specific, and differences from it:

- If all losses of a step are equal, where Eq. 1 divides 0 by 0, every client's reward is 1.
- The mean squared change is a running mean from 1 (Section 4.3: "in order to ensure stability in early
  updates, allowing a gradual decrease"), with the weight α of Eq. 3. With few clients per round, the last
  change alone is below ε at once: 823 similar clients, 10 a round, were split into 809 and 14 in round 4.
- The paper's rule splits even similar clients. By default `Parameters` therefore requires that most pairs
  have met, that the matrix stays settled for some rounds, that the clusters are well separated, and that none
  is small: a part that is too small joins the others before a division is scored. `min_pair_coverage=0`,
  `patience=1`, `max_davies_bouldin=1` and `min_cluster_size=1` follow the paper exactly.
- After a test that did not end in a split, `patience` rounds must pass before the next.
- There is no split if the score is undefined: fewer than three clients, or all affinities equal.

The authors' released code differs from the paper, and `Parameters` can follow it. Two differences are left
out: mean and variance of Eq. 1 weighted by numbers of examples, and the variance divided by n, not n − 1.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedclust.clustering.fedgwc.affinities import affinity_of
from fedclust.clustering.fedgwc.interaction import Interaction, Outcome
from fedclust.clustering.fedgwc.parameters import Parameters
from fedclust.clustering.fedgwc.spectral import AssignLabels, ScoreOn, best, candidates
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "Interaction",
    "Outcome",
    "Parameters",
    "children",
    "rewards",
    "split",
    "start",
    "step",
    "update_interaction",
    "update_mse",
    "update_weights",
]


def rewards(losses: FloatArray) -> FloatArray:
    """Compute each client's reward: how close its losses are to its cohort's mean.

    Source: FedGWC, Eq. 1, averaged over local steps (Section 4.1).

    Parameters
    ----------
    losses
        Training loss before each local step, in nats, shape (cohort, steps).

    Returns
    -------
    Reward in (0, 1], shape (cohort,); 1 if the client's loss equals the cohort's mean at every step.

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
    # Rewards do not depend on the losses' origin or unit. After scaling to [0, 1], equal losses have a
    # variance of exactly 0, and tiny or huge losses neither underflow nor overflow.
    lowest, highest = losses.min(axis=0), losses.max(axis=0)
    scaled = (losses - lowest) / np.where(highest > lowest, highest - lowest, 1.0)
    deviation = np.square(scaled - scaled.mean(axis=0))
    variance = scaled.var(axis=0, ddof=1)
    exponent = deviation / np.where(variance > 0, 2 * variance, 1.0)  # a variance of 0 has deviations of 0
    return np.exp(-exponent).mean(axis=1)


def update_weights(weights: FloatArray, rewards: FloatArray, step_size: float) -> FloatArray:
    """Update the Gaussian weights of a cohort with a round's rewards.

    Source: FedGWC, Eq. 2: γ_k ← (1 − α) γ_k + α ω_k; other clients keep theirs.

    Parameters
    ----------
    weights
        Gaussian weights γ of the cohort, shape (n,).
    rewards
        Their rewards ω, shape (n,).
    step_size
        Weight α of the round, in (0, 1).
    """
    return (1 - step_size) * weights + step_size * rewards


def update_interaction(interaction: FloatArray, rewards: FloatArray, step_size: float) -> FloatArray:
    """Update the interaction matrix with a round's rewards.

    Source: FedGWC, Eq. 3: P_kj ← (1 − α) P_kj + α ω_k for every ordered pair of the cohort, k = j included.
    All other entries stay the same, so only the cohort's n² of the K² entries are passed.

    Parameters
    ----------
    interaction
        Entries P_kj of the interaction matrix between the clients of the round, shape (n, n).
    rewards
        Their rewards ω, in the same order, shape (n,).
    step_size
        Weight α of the round, in (0, 1).

    Returns
    -------
    The new entries, shape (n, n).

    Raises
    ------
    ValueError
        If the shapes disagree or `step_size` is outside its range.
    """
    if interaction.shape != (len(rewards), len(rewards)):
        raise ValueError(f"interaction must have shape {(len(rewards),) * 2}, got {interaction.shape}")
    if not 0 < step_size < 1:
        raise ValueError(f"step_size must be in (0, 1), got {step_size}")
    return (1 - step_size) * interaction + step_size * rewards[:, None]


def update_mse(
    mse: float, before: FloatArray, after: FloatArray, num_entries: int, step_size: float
) -> float:
    """Update the running mean of the interaction matrix's squared change, which decides convergence.

    Source: FedGWC, Sections 4.2 and 4.3: MSE ← (1 − α) MSE + α d, from 1, where d is the mean of
    (P_t − P_{t−1})². The matrix has converged when the result is below ε.

    Parameters
    ----------
    mse
        Running mean before the round.
    before, after
        Entries that the round changed, before and after it, shape (n, n).
    num_entries
        Number of entries that d averages, including unchanged ones.
    step_size
        Weight α of the round, in (0, 1]; with 1 only the last change counts.
    """
    change = np.square(after - before).sum() / num_entries
    return float((1 - step_size) * mse + step_size * change)


def split(
    affinity: FloatArray,
    max_clusters: int = 5,
    seed: int = 0,
    *,
    max_davies_bouldin: float = 1.0,
    min_cluster_size: int = 1,
    score_on: ScoreOn = "affinity",
    assign_labels: AssignLabels = "kmeans",
) -> tuple[IntArray | None, dict[int, float]]:
    """Split a cluster's clients if a good division exists.

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
    min_cluster_size, score_on, assign_labels
        As for :func:`fedclust.clustering.fedgwc.spectral.candidates`.

    Returns
    -------
    labels
        Part of each client, numbered in order of first appearance, shape (K,); None when no split is
        justified.
    scores
        Davies–Bouldin score by number of clusters tried.

    Raises
    ------
    ValueError
        If `max_clusters` is outside its range.
    """
    if max_clusters < 2:
        raise ValueError(f"max_clusters must be >= 2, got {max_clusters}")
    found = candidates(
        affinity,
        max_clusters,
        seed,
        min_cluster_size=min_cluster_size,
        score_on=score_on,
        assign_labels=assign_labels,
    )
    scores = {number: candidate.davies_bouldin for number, candidate in found.items()}
    return best(found, max_davies_bouldin), scores


def start(members: IntArray, parameters: Parameters) -> Interaction:
    """Create the state of a cluster before its first round.

    Parameters
    ----------
    members
        Client ids in any order, shape (K,).
    parameters
        Determines the initial matrix.

    Returns
    -------
    State in which no clients have met.

    Raises
    ------
    ValueError
        If there are no members or one is listed twice.
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
    """Update a cluster with a round's losses, and decide whether to split it.

    Source: FedGWC, Algorithm 2, lines 11 to 17. Fewer than two replies change nothing.

    Parameters
    ----------
    state
        The cluster before the round.
    cohort
        Ids of the clients that replied, in any order, shape (n,).
    losses
        Loss of each of them before each local step, in nats, n arrays; only the steps that all ran are used.
    parameters
        How to measure and split, with `step_size` (or `cohort_size`) and `min_cluster_size` set.
    seed
        Seed >= 0 of spectral clustering.

    Returns
    -------
    state
        The cluster after the round.
    outcome
        Result of the round. If it has labels, :func:`children` creates the parts' states.

    Raises
    ------
    ValueError
        If a client is not a member or listed twice, `losses` does not match the cohort, a client has no
        losses, a loss is not finite, or `parameters` lack a value that `resolve` sets.
    """
    step_size = parameters.step_size_of(len(state.members))
    max_clusters = parameters.max_clusters_of(len(state.members))
    positions = state.positions(cohort)
    if len(losses) != len(positions):
        raise ValueError(f"losses must be of the cohort's {len(positions)} clients, got {len(losses)}")
    if len(positions) < 2:
        return state, Outcome(np.zeros(0), state.mse, state.pair_coverage)

    omega = rewards(_common_steps(losses))
    before = state.block(positions)
    after = update_interaction(before, omega / omega.sum() if parameters.reward_shares else omega, step_size)
    num_entries = before.size if parameters.change == "cohort" else len(state.members) ** 2
    share = 1.0 if parameters.change == "last" else step_size
    mse = update_mse(state.mse, before, after, num_entries, share)
    weights = update_weights(state.weights[positions], omega, step_size)
    state = state.with_cohort(positions, after, weights, mse)

    settled = state.pair_coverage >= parameters.min_pair_coverage and mse < parameters.tolerance
    state = dataclasses.replace(state, rounds_settled=state.rounds_settled + 1 if settled else 0)
    outcome = Outcome(omega, mse, state.pair_coverage, settled)
    if max_clusters < 2 or state.rounds_settled < parameters.patience_of(len(state.members)):
        return state, outcome

    labels, scores = split(
        affinity_of(state, parameters),
        max_clusters,
        seed,
        max_davies_bouldin=parameters.max_davies_bouldin,
        min_cluster_size=parameters.smallest_part,
        score_on=parameters.score_on,
        assign_labels=parameters.assign_labels,
    )
    mse = 1.0 if labels is None and parameters.reset_change else mse
    state = dataclasses.replace(state, rounds_settled=0, mse=mse)
    return state, dataclasses.replace(outcome, tried=True, davies_bouldin=scores, labels=labels)


def children(state: Interaction, labels: IntArray) -> list[Interaction]:
    """Create the states of the parts of a split cluster.

    Source: FedGWC, Algorithm 2, lines 18 and 19: each part takes its rows and columns of the matrix, and a
    mean squared change of 1. The pairs that have met and the Gaussian weights are kept.

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
        If `labels` does not have one entry per member or skips a number.
    """
    labels = np.asarray(labels)
    if labels.shape != state.members.shape:
        raise ValueError(f"labels must have shape {state.members.shape}, got {labels.shape}")
    numbers = np.unique(labels)
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise ValueError(f"labels must be 0, 1, … without gaps, got {numbers.tolist()}")
    return [state.part(np.flatnonzero(labels == number)) for number in numbers]


def _common_steps(losses: Sequence[FloatArray] | FloatArray) -> FloatArray:
    num_steps = min(len(series) for series in losses)
    return np.stack([series[:num_steps] for series in losses])
