"""The label-prior correction: adjust one model for all to the label distribution of each client.

A model learns the label distribution of all clients it was trained on. Adding ln(P_i(c)/q(c)) to its logits
replaces that distribution q by client i's own (Saerens, Latinne and Decaestecker, "Adjusting the outputs of a
classifier to new a priori probabilities", Neural Computation 14, 2002). It needs only the label counts, no
training and no further message.

A client's counts are few, so its distribution is shrunk towards q by a number of pseudo-examples that is
estimated from the federation: the intraclass correlation ρ of labels within clients, estimated from the
X² of the label counts (:func:`fedclust.clustering.label_groups.homogeneity`), is 1/(1 + m) when the
clients' distributions are drawn from a Dirichlet distribution with total concentration m. With half an
example per class instead, IID clients lost a point.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedclust.clustering.label_groups import homogeneity
from fedclust.metrics import label_shares
from fedclust.support.checks import check
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters:
    """Settings of the correction.

    Attributes
    ----------
    level
        Logits are corrected if the p-value of the clients' homogeneity is below this, in (0, 1).

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    level: float = 0.05

    def __post_init__(self) -> None:
        check(self, level="in (0, 1)")


@dataclass(frozen=True, eq=False)
class Details:
    """Details of a correction, only for logs.

    Attributes
    ----------
    p_values
        P-value of the homogeneity of each cluster's clients, shape (G,).
    pseudo_examples
        m̂ of each cluster, infinite for no correction, shape (G,).
    """

    p_values: FloatArray
    pseudo_examples: FloatArray


def intraclass_correlation(counts: IntArray, statistic: float | None = None) -> float:
    """Estimate the correlation of labels within clients, beyond the federation's shares.

    ρ̂ = (X²/(C−1) − (K−1)) / (N − Σ n_i²/N − (K−1)), the moment estimate from Pearson's X².

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). Classes that no client has are ignored.
    statistic
        Pearson's X² of these counts, if it is known already; None to compute it.

    Returns
    -------
    About 0 for alike clients (by chance below), 1 for clients with one class each (by chance above); 0 if it
    cannot be estimated: one class, or one example on every client.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.
    """
    if statistic is None:
        statistic = homogeneity(counts).statistic
    sizes, classes = np.sum(counts, axis=1, dtype=np.float64), int((np.sum(counts, axis=0) > 0).sum())
    total = sizes.sum()
    rooms = total - (sizes**2).sum() / total - (sizes.size - 1)
    if classes < 2 or rooms <= 1e-9 * total:
        return 0.0
    return float((statistic / (classes - 1) - (sizes.size - 1)) / rooms)


def pseudo_examples(counts: IntArray, level: float = 0.05) -> float:
    """Compute the number of examples of the federation's distribution to add to a client's own counts.

    m̂ = (1 − ρ̂)/ρ̂, but at least 1/K: with few clients of one class each ρ̂ can be 1 or more, and an m̂
    of 0 would give classes that a client does not have probability 0.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    level
        Clients count as different if their p-value is below this.

    Returns
    -------
    m̂ > 0; infinite, for no correction, if clients may be alike or ρ̂ <= 0.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.
    """
    tested = homogeneity(counts)
    correlation = intraclass_correlation(counts, tested.statistic)
    if tested.p_value >= level or correlation <= 0:
        return math.inf
    return max((1 - correlation) / correlation, 1 / len(counts))


def correction(counts: IntArray, trained_on: IntArray, pseudo_examples: float) -> FloatArray:
    """Compute the correction of each client's logits: ln(P̂_ic / q_c).

    P̂_ic = (n_ic + m̂ q_c)/(n_i + m̂), with q the class shares of the examples that the model was trained on.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). A client without any gets 0.
    trained_on
        Examples of each class that the model was trained on, shape (C,).
    pseudo_examples
        m̂ > 0, infinite for no correction.

    Returns
    -------
    Numbers to add, shape (K, C); 0 for a class that the model never saw, whose logit has no meaning.

    Raises
    ------
    ValueError
        If shapes do not fit, a count is negative or not finite, `trained_on` is all 0, or `pseudo_examples`
        is not > 0.
    """
    own = np.asarray(counts, dtype=np.float64)
    if own.ndim != 2 or not own.size:
        raise ValueError(f"counts must have shape (clients, classes), got shape {own.shape}")
    if not (np.isfinite(own) & (own >= 0)).all():
        raise ValueError(f"counts must be finite and >= 0, got {own[~(np.isfinite(own) & (own >= 0))][0]}")
    seen = np.asarray(trained_on, dtype=np.float64)
    if seen.shape != own.shape[1:]:
        raise ValueError(f"trained_on must have shape {own.shape[1:]}, got shape {seen.shape}")
    if not pseudo_examples > 0:
        raise ValueError(f"pseudo_examples must be > 0, got {pseudo_examples}")
    if not (np.isfinite(seen) & (seen >= 0)).all() or not seen.any():
        raise ValueError(f"trained_on must be finite and >= 0 and not all 0, got {seen}")
    share = seen / seen.sum()
    if math.isinf(pseudo_examples):
        return np.zeros_like(own)
    mixed = (own + pseudo_examples * share) / (own.sum(axis=1, keepdims=True) + pseudo_examples)
    known = np.broadcast_to(share > 0, own.shape)
    return np.log(np.divide(mixed, share, out=np.ones_like(own), where=known))


def assign(counts: IntArray, assignment: IntArray, parameters: Parameters) -> tuple[FloatArray, Details]:
    """Compute every client's correction for the model of its cluster.

    Each cluster is treated as a separate federation: q, the test and m̂ are those of its clients.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, 0…G−1, shape (K,); zeros for one model for all.
    parameters
        Settings of the correction.

    Returns
    -------
    corrections
        Numbers to add to each client's logits, shape (K, C).
    details
        Details for logs.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, a client has no examples, or `assignment` does
        not fit.
    """
    table, assignment = np.asarray(counts), np.asarray(assignment)
    label_shares(table)
    if assignment.shape != table.shape[:1] or assignment.min() < 0:
        raise ValueError(f"assignment must be >= 0, shape {table.shape[:1]}, got shape {assignment.shape}")
    corrections = np.zeros(table.shape)
    p_values, pseudo = np.ones(assignment.max() + 1), np.full(assignment.max() + 1, math.inf)
    for number in np.unique(assignment):
        members = assignment == number
        own = table[members]
        p_values[number] = homogeneity(own).p_value
        pseudo[number] = pseudo_examples(own, parameters.level)
        corrections[members] = correction(own, own.sum(axis=0), pseudo[number])
    return corrections, Details(p_values=p_values, pseudo_examples=pseudo)
