"""One model for all, split only where a split proves itself on held-out rows.

Nothing here is from a paper. A *look* lists proposals for a cluster by the directions of its clients' updates
(:mod:`fedclust.clustering.proposals`), some rounds of training put them on trial next to the unsplit cluster,
and paired tests (:mod:`fedclust.proof`) decide which is kept. This module decides when looks come, at which
level they are tested, what trials may cost at most, which proposals get a longer trial, and which are kept.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedclust.clustering.proposals import MOST_PROPOSALS
from fedclust.clustering.shared.wording import number_of
from fedclust.proof import Comparison, holm
from fedclust.support.checks import Checked
from fedclust.typing import FloatArray


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of proposals, trials and decisions.

    Attributes
    ----------
    warmup
        Rounds of one model for all before the first look, >= 1. Later looks come after 2, 4, 8 … times as
        many.
    probation
        Further rounds of training that the most promising proposals get after the first, >= 1.
    finalists
        Largest number of a cluster's proposals that get them, >= 1.
    min_cluster_size
        Least number of clients with held-out rows in a part, >= 1; a cluster needs twice as many for a look.
        A single client may be a part if its own held-out rows are enough to decide.
    most_asked
        Largest number of clients of one cluster that a look asks, >= 2. The others are assigned to a part
        later, by the losses of the parts' models.
    projection_size
        Length of the projection of its update that a client sends, >= 1.
    level
        Probability that a run in which no grouping helps keeps one, in (0, 1).
    coalitions
        Whether a handful of sites choose by cross-fitting with whom each trains: ``"all"`` for up to ten,
        ``"none"`` for never; None for up to ten whose rows and model are small enough, see
        :func:`fedclust.layers.coalitions.worthwhile`.
    min_gain
        Gain in Brier score that a grouping must exceed to be kept, in [0, 2). While models still learn,
        groups of similar labels gain a little, which later rounds take back; groups that name the classes
        differently or have rotated images gain ten times as much.

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    held_out_rows: ClassVar[str] = "tests groups"
    proves_splits: ClassVar[bool] = True
    without_proof: ClassVar[str] = "strategy=private_groups decides by a noisy vote instead"

    warmup: Annotated[int, ">= 1"] = 10
    probation: Annotated[int, ">= 1"] = 6
    finalists: Annotated[int, ">= 1"] = 2
    min_cluster_size: Annotated[int, ">= 1"] = 2
    most_asked: Annotated[int, ">= 2"] = 100
    projection_size: Annotated[int, ">= 1"] = 512
    level: Annotated[float, "in (0, 1)"] = 0.05
    min_gain: Annotated[float, "in [0, 2)"] = 0.01
    coalitions: Annotated[str | None, "all or none or None"] = None

    def can_split(self, num_members: int) -> bool:
        """Return whether a cluster of `num_members` voting clients is large enough for two parts."""
        return num_members >= 2 * self.min_cluster_size


@dataclass(frozen=True)
class Spending:
    """Upper bound on what trials cost.

    Attributes
    ----------
    trainings
        Number of times that a client trains for one round, in addition to the run's own.
    rounds
        The same, in rounds of the run.
    looks
        Number of looks.
    """

    trainings: int
    rounds: float
    looks: int


def due_rounds(warmup: int, rounds: int, probation: int = 0) -> list[int]:
    """List the rounds after which a look is due: warmup, 2·warmup, 4·warmup, …

    A look that is due during another's trials waits until they are over.

    Parameters
    ----------
    warmup
        Rounds before the first look, >= 1.
    rounds
        Rounds of the run.
    probation
        Rounds on trial after the first: only looks whose trials can end are listed. With 0, those that can
        begin.

    Examples
    --------
    >>> due_rounds(10, rounds=60)
    [10, 20, 40]
    >>> due_rounds(10, rounds=45, probation=6)  # trials of round 41 would end in round 47
    [10, 20]
    """
    due = []
    while warmup + 1 + probation <= rounds:
        due.append(warmup)
        warmup *= 2
    return due


def level_of_look(left: float, looks_left: int) -> float:
    """Return the level of all tests of a look: an equal share of what earlier looks have left.

    A look spends the share of each cluster for which it puts groupings on trial, unless one of them is kept:
    the level of a rejected hypothesis goes to the others (Bretz et al., "A graphical approach to sequentially
    rejective multiple test procedures", Statistics in Medicine 28, 2009). So all looks together have at most
    the level of the run, and no share is lost with a look that has nothing to test.

    Parameters
    ----------
    left
        What is left of the level of the run, in [0, 1).
    looks_left
        Looks that are still to come, this one included; fewer than one count as one.

    Examples
    --------
    >>> level_of_look(0.06, looks_left=3)
    0.02
    """
    return left / max(1, looks_left)


def most_spending(
    num_clients: int, participation: float, rounds: int, parameters: Parameters, *, named: bool = False
) -> Spending:
    """Bound what all trials of a run can cost.

    The first look is at one cluster; later ones are at no more than ⌊K/2s⌋ clusters, with s the smallest
    part, as a look needs a cluster of at least 2s clients. There are at most ⌊K/s⌋ clusters of several
    clients, and one of a single client more for each cluster that earlier looks were at; their cohorts
    together have at most min(K, ⌈ρK⌉ + clusters) clients. A look costs a training of each client that it
    asks, one round for each proposal and `probation` rounds for each finalist and for a client alone; a round
    of one proposal costs at most one training per client of its cluster's cohort. From the second look on,
    models for two clusters together may train for all rounds of a trial, each for clusters of their own.

    Parameters
    ----------
    num_clients
        Number of clients K.
    participation
        Share ρ of a cluster's clients that takes part in a round.
    rounds
        Rounds of the run.
    parameters
        Settings of looks and trials.
    named
        Whether there is a grouping by people, which is on trial from the first look on.

    Returns
    -------
    The bound; 0 for a federation that is too small for a look.

    Examples
    --------
    >>> most_spending(3, 1.0, 60, Parameters())  # too few for two parts of two
    Spending(trainings=0, rounds=0.0, looks=0)
    """
    if not parameters.can_split(num_clients):
        return Spending(0, 0.0, 0)
    cohort = math.ceil(round(participation * num_clients, 9))
    looks = len(due_rounds(parameters.warmup, rounds, parameters.probation))
    later, total = parameters.probation * min(parameters.finalists + 1, MOST_PROPOSALS), 0
    large, parts = (num_clients // (each * parameters.min_cluster_size) for each in (2, 1))
    for number in range(looks):
        asked = min(num_clients, parameters.most_asked * (large if number else 1))
        trained = min(num_clients, cohort + parts + number * large) if number else cohort
        union = 1 + parameters.probation if number else 0
        total += asked + (MOST_PROPOSALS + later + union) * trained
        total += (1 + parameters.probation) * trained if named and not number else 0
    return Spending(total, total / cohort, looks)


def nearest_pairs(vectors: Mapping[int, FloatArray]) -> list[tuple[int, int]]:
    """Pair clusters each of which is nearest to the other.

    Parameters
    ----------
    vectors
        Each cluster's model as a vector, shape (d,), by cluster.

    Returns
    -------
    Pairs in ascending order; no cluster is in two of them.

    Examples
    --------
    >>> nearest_pairs({0: np.array([0.0]), 1: np.array([5.0]), 2: np.array([1.0]), 4: np.array([7.0])})
    [(0, 2), (1, 4)]
    """
    nearest = {
        one: min((float(np.linalg.norm(own - vectors[other])), other) for other in vectors if other != one)[1]
        for one, own in vectors.items()
        if len(vectors) > 1
    }
    return sorted((one, other) for one, other in nearest.items() if one < other and nearest[other] == one)


def most_promising(
    comparisons: Sequence[Comparison],
    parts: Sequence[int],
    number: int,
    preferred: int | None = None,
    lone: int | None = None,
) -> list[int]:
    """Pick the preferred proposal and those with the smallest p-values, if they gained anything in one round.

    That of a client alone goes on besides: its own rows decide, which are too few to show in one round what
    they show at the end.

    Gains and p-values leave out the most and the least favourable votes: gains after one round are about
    0.01, and a single vote of −2 lowers the mean of 30 by 0.07. Ties go to the larger gain, then to the
    coarser proposal, then to the earlier. Real groups gain at once, while groups of similar clients mostly
    lose at first; so where there are no groups, this saves two thirds of the trials' cost. A dropped proposal
    cannot be kept by mistake.

    Parameters
    ----------
    comparisons
        Each proposal's models (B) against the unsplit cluster's (A).
    parts
        Number of parts of each.
    number
        How many to pick at most.
    preferred
        Position of the proposal that the clients' updates make most likely, if there is one.
    lone
        Position of the proposal of a client apart from all others, if there is one.

    Returns
    -------
    Their positions, ascending.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> pairs = (0.02, 0.2), (-0.01, 0.9), (0.05, 0.01)
    >>> tried = [SimpleNamespace(gain_of_others=gain, p_value_of_others=p) for gain, p in pairs]
    >>> most_promising(tried, parts=[2, 2, 3], number=1)
    [2]
    >>> most_promising(tried, parts=[2, 2, 3], number=1, preferred=0)
    [0]
    >>> most_promising(tried, parts=[2, 2, 3], number=1, lone=0)
    [0, 2]
    """

    def rank(index: int) -> tuple[bool, float, float, int, int]:
        of = comparisons[index]
        return index != preferred, of.p_value_of_others, -of.gain_of_others, parts[index], index

    gained = [index for index, each in enumerate(comparisons) if each.gain_of_others > 0]  # NaN: nobody voted
    return sorted({*sorted(gained, key=rank)[:number], *(each for each in gained if each == lone)})


def first_shares(num_proposals: int, alone: Sequence[int] = ()) -> FloatArray:
    """Divide the level of a look among the proposals for a cluster.

    Parameters
    ----------
    num_proposals
        Number of proposals.
    alone
        Positions of those that training rows alone have chosen, the preferred one and that of a client alone:
        they get half of the level, then half of what is left. The others share the rest.

    Returns
    -------
    Share of the level with which each is tested if no other passes, shape (proposals,).

    Examples
    --------
    >>> first_shares(4, alone=[0, 3])
    array([0.5  , 0.125, 0.125, 0.25 ])
    """
    shares = np.full(num_proposals, 0.5 ** len(alone) / max(1, num_proposals - len(alone)))
    shares[[*alone]] = [0.5**place for place in range(1, len(alone) + 1)]
    return shares


def corrected(
    p_values: Sequence[float], num_proposals: int, level: float, alone: Sequence[int] = ()
) -> tuple[float, ...]:
    """Correct the p-values of a cluster's finalists, so that all proposals of the look share one level.

    Those of :func:`first_shares` that have parts of their own are tested at these. The others share the rest
    by Holm's correction, with the parts of those that have passed (Bretz et al., "A graphical approach to
    sequentially rejective multiple test procedures", Statistics in Medicine 28, 2009). Proposals that were
    dropped after one round were chosen on the same rows as the finalists, so they count, with p = 1.

    Parameters
    ----------
    p_values
        Of each finalist against the unsplit cluster.
    num_proposals
        Proposals of the look for this cluster, the dropped ones included.
    level
        Level of all tests together.
    alone
        Positions of the finalists that have parts of the level of their own, in the order of these.

    Returns
    -------
    P-values to be compared with the level.

    Examples
    --------
    >>> corrected([0.001], num_proposals=3, level=0.05)  # Holm: 3 · 0.001
    (0.003,)
    >>> corrected([0.001], num_proposals=3, level=0.05, alone=[0])
    (0.002,)
    """
    found, left = {}, 0.5 ** len(alone)
    for each, share in zip(alone, first_shares(len(p_values), alone)[[*alone]].tolist(), strict=True):
        found[each] = min(1.0, p_values[each] / share)
        left += share if found[each] <= level else 0.0
    others = [each for each in range(len(p_values)) if each not in found]
    dropped = [1.0] * (num_proposals - len(p_values))
    shared = holm([*(p_values[each] for each in others), *dropped]) / left
    found |= dict(zip(others, np.minimum(shared, 1.0).tolist(), strict=False))
    return tuple(found[each] for each in range(len(p_values)))


def choose(
    passed: Sequence[int], parts: Sequence[int], gains: Sequence[float], finer_gains: bool = False
) -> int | None:
    """Choose which of the finalists that were shown to be better is kept.

    The choice among them needs no test: the coarsest is kept, unless the finer gains more; of equally coarse
    ones, that with the largest gain.

    Parameters
    ----------
    passed
        Positions of these finalists.
    parts, gains
        Number of parts of each finalist, and its gain over the unsplit cluster.
    finer_gains
        Whether the finer of two finalists gains more than the coarser, see :meth:`Comparison.exceeds`.

    Returns
    -------
    Position of the one that is kept, or None.

    Examples
    --------
    >>> choose([0, 1], parts=[3, 2], gains=[0.06, 0.05])
    1
    """
    fineness = -1 if finer_gains else 1
    return min(passed, key=lambda index: (fineness * parts[index], -gains[index], index), default=None)


def reason(index: int, passed: Sequence[int], kept: int | None, parts: Sequence[int], level: float) -> str:
    """Explain why a finalist was kept or not.

    Parameters
    ----------
    index
        Its position among the finalists.
    passed, kept, parts
        The result of :func:`choose`, and its arguments.
    level
        Level of all tests together.

    Examples
    --------
    >>> reason(0, passed=[], kept=None, parts=[2], level=0.05)
    'not shown to be better at the level of 0.05'
    """
    if kept is None or index not in passed:
        return f"not shown to be better at the level of {level:.2g}"
    if index == kept:
        return f"shown to be better at the level of {level:.2g}"
    if parts[index] > parts[kept]:
        return f"shown to be better than one model, but not than {parts[kept]} parts"
    same = parts[index] == parts[kept]
    return "another in as many parts gains more" if same else f"beaten by {parts[kept]} parts"


def decision(num_clusters: int, looks: int, tried: int, kept: int, on_trial: int) -> str:
    """Explain in one sentence how many clusters there are, and why.

    Parameters
    ----------
    num_clusters
        Clusters at the end.
    looks
        Looks that took place.
    tried, kept
        Number of groupings whose trial is over, and of those that were kept.
    on_trial
        Number of groupings whose trial the end of the run cut short.

    Returns
    -------
    Such as ``2 clusters: 1 of 18 groupings from 3 looks proved better on held-out rows``.

    Examples
    --------
    >>> decision(num_clusters=2, looks=3, tried=18, kept=1, on_trial=0)
    '2 clusters: 1 of 18 groupings from 3 looks proved better on held-out rows'
    """
    of_looks = number_of("look", looks)
    if tried:
        groupings = number_of("grouping", tried)
        why = f"{kept or 'none'} of {groupings} from {of_looks} proved better on held-out rows"
        why += f", {on_trial} still on trial when the run ended" if on_trial else ""
    elif on_trial:
        why = f"{number_of('grouping', on_trial)} still on trial when the run ended"
    else:
        why = f"{of_looks} proposed no grouping" if looks else "no trial took place"
    return f"{number_of('cluster', num_clusters)}: {why}"
