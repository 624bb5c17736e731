"""The label-prior correction: adjusts one model for all to the label distribution of each client.

A model learns the label distribution of all clients it was trained on. Adding ln(P_i(c)/q(c)) to its logits
replaces that distribution q by client i's own (Saerens, Latinne and Decaestecker, "Adjusting the outputs of a
classifier to new a priori probabilities", Neural Computation 14, 2002). It needs only the label counts, no
training and no further message.

A client's counts are few, so its distribution is shrunk towards q by a number of pseudo-examples that is
estimated from the federation: the intraclass correlation ρ of labels within clients, estimated from the X² of
the label counts (:func:`homogeneity`), is 1/(1 + m) when the clients' distributions are drawn from a
Dirichlet distribution with total concentration m. With half an example per class instead, IID clients lost
one percentage point.

The test of whether clients differ at all: Pearson's X² compares the table of label counts (clients × classes)
with the counts expected from one distribution for all. Its usual χ² reference fails if many cells expect less
than one example, which is common in a federation: with 20 examples per client, a cell expects 2 with 10
classes, but 1/3 with 62. The mean and variance of X² when labels are assigned to clients at random, all
totals fixed, are known exactly, whatever the cells expect. A Gamma distribution with these two moments gives
the p-value. Source of the two moments: Haldane, "The mean and variance of χ², when used as a test of
homogeneity, when expectations are small", Biometrika 31, 1940; the form used here is Mielke and Berry's
(1985).
"""

import math
from dataclasses import dataclass

import numpy as np

from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Homogeneity:
    """Outcome of the test that all clients draw their labels from one distribution.

    Attributes
    ----------
    statistic
        Pearson's X² of the label counts; 0 when all clients have the same shares.
    mean, variance
        Mean and variance of X² over all ways to assign the same labels to clients of the same sizes.
    p_value
        Probability of an X² at least as large when clients are alike, in [0, 1]; 1 if nothing can be tested
        (one client, one class, fewer than four examples, or one example on every client).
    """

    statistic: float
    mean: float
    variance: float
    p_value: float


def chi_square(counts: IntArray) -> float:
    """Compute how far label counts are from one distribution for all clients.

    X² = N (Σ n_ic² / (n_i N_c) − 1), which is Pearson's Σ (observed − expected)²/expected.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). Classes that no client has are ignored.

    Returns
    -------
    X² >= 0; at most N·(min(K, C) − 1).

    Examples
    --------
    >>> chi_square(np.array([[2, 0], [0, 2]]))  # 1 is expected in each of four cells
    4.0
    """
    table = np.asarray(counts, dtype=np.float64)
    table = table[:, table.sum(axis=0) > 0]
    total = table.sum()
    # Rows with the same shares must give exactly 0, not the round-off of a difference of two equal sums.
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    return float(((table - expected) ** 2 / expected).sum())


def permutation_moments(client_totals: IntArray, class_totals: IntArray) -> tuple[float, float]:
    """Return the exact mean and variance of X² over all ways to assign the labels to the clients.

    Source: Haldane (1940), in the form E = N(K−1)(C−1)/(N−1) and
    V = 2N/(N−3)·(v(K)−w_r)(v(C)−w_c) + N²/(N−1)·w_r·w_c with v(k) = (k−1)(N−k)/(N−1),
    w_r = (N Σ 1/n_i − K²)/(N−2) and w_c = (N Σ 1/N_c − C²)/(N−2).

    Parameters
    ----------
    client_totals
        Examples on each client, n_i > 0, shape (K,).
    class_totals
        Examples of each class, N_c > 0, shape (C,), with the same sum N >= 4.

    Returns
    -------
    mean, variance
        Mean and variance of X². The variance is 0 if X² is the same for every assignment.

    Examples
    --------
    >>> mean, variance = permutation_moments(np.array([2, 2]), np.array([2, 2]))
    >>> round(mean, 3), round(variance, 3)  # X² is 4 in two of six assignments, and 0 in the others
    (1.333, 3.556)
    """
    rows, columns = np.asarray(client_totals, np.float64), np.asarray(class_totals, np.float64)
    total = float(rows.sum())

    def freedom(number: int) -> float:
        return (number - 1) * (total - number) / (total - 1)

    def imbalance(totals: FloatArray) -> float:
        return float(total * (1 / totals).sum() - totals.size**2) / (total - 2)

    mean = total * (rows.size - 1) * (columns.size - 1) / (total - 1)
    by_row, by_column = imbalance(rows), imbalance(columns)
    variance = 2 * total / (total - 3) * (freedom(rows.size) - by_row) * (freedom(columns.size) - by_column)
    variance += total**2 / (total - 1) * by_row * by_column
    return mean, max(float(variance), 0.0)


def gamma_tail(value: float, mean: float, variance: float) -> float:
    """Return the probability that a Gamma variable with this mean and variance is at least `value`.

    Its shape is mean²/variance and its scale variance/mean. For a variance of 0 it is 1.

    Parameters
    ----------
    value
        Lower end of the tail, >= 0.
    mean
        Mean >= 0.
    variance
        Variance >= 0.

    Returns
    -------
    Probability in [0, 1].

    Examples
    --------
    >>> round(gamma_tail(1.0, mean=1.0, variance=1.0), 4)  # exp(−1)
    0.3679
    """
    if variance <= 0 or mean <= 0:
        return 1.0
    from scipy.special import gammaincc  # not needed by a run with one model for all

    return float(gammaincc(mean**2 / variance, value * mean / variance))


def homogeneity(counts: IntArray) -> Homogeneity:
    """Test whether all clients draw their labels from one distribution.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). Classes that no client has are ignored.

    Returns
    -------
    The outcome; a small p-value refutes that clients are alike.

    Examples
    --------
    >>> homogeneity(np.array([[5, 5], [3, 3]])).statistic  # the same shares
    0.0
    """
    statistic = chi_square(counts)
    rows, columns = np.sum(counts, axis=1), np.sum(counts, axis=0)
    columns = columns[columns > 0]
    if rows.sum() < 4 or rows.size < 2 or columns.size < 2:
        return Homogeneity(statistic, 0.0, 0.0, 1.0)
    mean, variance = permutation_moments(rows, columns)
    # If every assignment has the same X² (one client has one example, the other the rest, classes of one
    # size), its computed variance is only round-off.
    if variance <= 1e-12 * mean**2:
        variance = 0.0
    return Homogeneity(statistic, mean, variance, gamma_tail(statistic, mean, variance))


def intraclass_correlation(counts: IntArray, statistic: float) -> float:
    """Estimate how much more the labels of one client agree than those of different clients.

    ρ̂ = (X²/(C−1) − (K−1)) / (N − Σ n_i²/N − (K−1)), the moment estimate from Pearson's X².

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). Classes that no client has are ignored.
    statistic
        Pearson's X² of these counts.

    Returns
    -------
    About 0 for similar clients (by chance below), 1 for clients with one class each (by chance above); 0 if
    it cannot be estimated: one class, or one example on every client.

    Examples
    --------
    >>> intraclass_correlation(np.array([[5, 5], [5, 5]]), statistic=3.0)  # (3 − 1)/(20 − 10 − 1)
    0.2222222222222222
    """
    sizes, classes = np.sum(counts, axis=1, dtype=np.float64), int((np.sum(counts, axis=0) > 0).sum())
    total = sizes.sum()
    capacity = total - (sizes**2).sum() / total - (sizes.size - 1)
    if classes < 2 or capacity <= 1e-9 * total:
        return 0.0
    return float((statistic / (classes - 1) - (sizes.size - 1)) / capacity)


def pseudo_examples(counts: IntArray, level: float = 0.05) -> float:
    """Compute the number of examples of the federation's distribution to add to a client's own counts.

    m̂ = (1 − ρ̂)/ρ̂, but at least 1/K: with few clients of one class each ρ̂ can be 1 or more, and an m̂
    of 0 would give classes that a client does not have probability 0.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    level
        Clients count as different if the test's p-value is below this.

    Returns
    -------
    m̂ > 0; infinite, for no correction, if clients may be alike or ρ̂ <= 0.

    Examples
    --------
    >>> pseudo_examples(np.array([[5, 5], [5, 5]]))  # clients are alike: no correction
    inf
    >>> pseudo_examples(np.array([[50, 0], [0, 50]]))  # ρ̂ > 1: one over the number of clients
    0.5
    """
    tested = homogeneity(counts)
    correlation = intraclass_correlation(counts, tested.statistic)
    if tested.p_value >= level or correlation <= 0:
        return math.inf
    return max((1 - correlation) / correlation, 1 / len(counts))


def correction(counts: IntArray, trained_on: IntArray | FloatArray, pseudo_examples: float) -> FloatArray:
    """Compute the correction of each client's logits: ln(P̂_ic / q_c).

    P̂_ic = (n_ic + m̂ q_c)/(n_i + m̂), with q the class shares of the examples that the model was trained on.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). A client without any gets 0.
    trained_on
        Examples of each class that the model was trained on, or their shares, shape (C,).
    pseudo_examples
        m̂ > 0, infinite for no correction.

    Returns
    -------
    Numbers to add, shape (K, C); 0 for a class that the model never saw, whose logit has no meaning.

    Examples
    --------
    >>> np.exp(correction(np.array([[3, 1]]), np.array([1, 1]), pseudo_examples=1.0))  # 0.7/0.5 and 0.3/0.5
    array([[1.4, 0.6]])
    """
    own = np.asarray(counts, dtype=np.float64)
    if math.isinf(pseudo_examples):
        return np.zeros_like(own)
    share = np.asarray(trained_on, dtype=np.float64) / np.sum(trained_on, dtype=np.float64)
    mixed = (own + pseudo_examples * share) / (own.sum(axis=1, keepdims=True) + pseudo_examples)
    known = np.broadcast_to(share > 0, own.shape)
    return np.log(np.divide(mixed, share, out=np.ones_like(own), where=known))


def assign(counts: IntArray, assignment: IntArray) -> FloatArray:
    """Compute every client's correction for the model of its cluster.

    Each cluster is treated as a separate federation: q, the test and m̂ are those of its clients.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C); every client has some.
    assignment
        Cluster of each client, shape (K,); zeros for one model for all.

    Returns
    -------
    Numbers to add to each client's logits, shape (K, C).

    Examples
    --------
    >>> counts = np.array([[50, 0], [0, 50]])
    >>> np.exp(assign(counts, np.array([0, 0]))).round(4)  # m̂ = 1/2: 2·50.25/50.5, 2·0.25/50.5
    array([[1.9901, 0.0099],
           [0.0099, 1.9901]])
    >>> assign(counts, np.array([0, 1]))  # one client in each cluster
    array([[0., 0.],
           [0., 0.]])
    """
    corrections = np.zeros(counts.shape)
    for number in np.unique(assignment):
        members = assignment == number
        own = counts[members]
        corrections[members] = correction(own, own.sum(axis=0), pseudo_examples(own))
    return corrections
