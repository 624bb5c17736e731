"""Which proposals go on, and which one stands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclust.clustering.shared import wording
from fedclust.proof import Comparison, Difference, compare, holm, num_set_aside

__all__ = ["Choice", "choose", "compare_beyond", "decision", "figures", "most_promising", "reason"]


@dataclass(frozen=True)
class Choice:
    """What came of the trials of one cluster.

    Attributes
    ----------
    kept
        Position of the proposal that stands, or None.
    p_values
        Corrected p-value of each finalist against the unsplit cluster.
    between
        Corrected p-value of the finer against the coarser finalist; None where that was not asked.
    """

    kept: int | None
    p_values: tuple[float, ...]
    between: float | None = None


def most_promising(comparisons: Sequence[Comparison], parts: Sequence[int], number: int) -> list[int]:
    """Pick the proposals that go on: of those that gained anything in one round, the smallest p-values.

    Both without the most and the least favourable votes: gains after one round are about 0.01, and a single
    vote of −2 takes 0.07 from the mean of 30. Of equal ones that with the larger gain, then the coarser, then
    the earlier. Real groups gain at once, groups of alike clients mostly lose at first, so two thirds of what
    trials cost is saved where there is nothing to find. A proposal that is dropped cannot be kept by mistake.

    Parameters
    ----------
    comparisons
        Each proposal's models (B) against the unsplit cluster's (A).
    parts
        Number of parts of each.
    number
        How many to pick at most.

    Returns
    -------
    Their positions, ascending.
    """
    gained = [index for index, each in enumerate(comparisons) if each.gain_of_others > 0]  # NaN: nobody voted
    order = sorted(
        gained,
        key=lambda i: (comparisons[i].p_value_of_others, -comparisons[i].gain_of_others, parts[i], i),
    )
    return sorted(order[:number])


def compare_beyond(differences: Sequence[Difference], min_gain: float) -> Comparison:
    """Compare two models, with the p-value of a gain above `min_gain`.

    Parameters
    ----------
    differences
        What each client reported.
    min_gain
        In Brier score, >= 0; with 0 it is :func:`fedclust.proof.compare`. In any case the gain must also be
        shown without the most and the least favourable votes, see :func:`fedclust.proof.num_set_aside`.

    Returns
    -------
    The comparison; all but its p-value is of the gain itself.
    """
    means = np.array([each.mean for each in differences])
    variances = [each.variance for each in differences]
    counts = [each.count for each in differences]
    odd = num_set_aside(sum(count >= 2 for count in counts))
    beyond = compare(np.maximum(means - min_gain, -2.0), variances, counts, set_aside=odd)
    return replace(compare(means, variances, counts, set_aside=odd), p_value=beyond.p_value)


def choose(
    comparisons: Sequence[Comparison],
    parts: Sequence[int],
    num_proposals: int,
    level: float,
    between: Comparison | None = None,
) -> Choice:
    """Say which of the finalists stands, if any.

    All proposals of the look share one level by Holm's correction, and so does the test of the finer finalist
    against the coarser. Proposals that were dropped after one round were chosen on the same rows as the
    finalists, so they count, with p = 1. Of those that pass the coarsest stands, of equally coarse ones
    that with the largest gain (both are shown to be better than one model, so which of them stands needs no
    test), unless a finer one beats it, too.

    Parameters
    ----------
    comparisons
        Each finalist's models (B) against the unsplit cluster's (A).
    parts
        Number of parts of each finalist.
    num_proposals
        Proposals of the look for this cluster, the dropped ones included.
    level
        Of all tests together.
    between
        The finer of two finalists (B) against the coarser (A); None where they are equally coarse, or did not
        both pass, or are not two.

    Returns
    -------
    The choice.
    """
    count = len(comparisons)
    several = len(set(parts)) > 1
    family = [each.p_value for each in comparisons] + [1.0] * (num_proposals - count)
    if several:
        family.append(1.0 if between is None else between.p_value)
    corrected = [float(value) for value in holm(family)]
    passed = [index for index in range(count) if corrected[index] <= level]
    values = tuple(corrected[:count])
    beaten = corrected[-1] if several and between is not None else None
    if not passed:
        return Choice(None, values, beaten)
    coarsest = min(passed, key=lambda index: (parts[index], -comparisons[index].gain, index))
    finer = [index for index in passed if parts[index] > parts[coarsest]]
    if finer and beaten is not None and beaten <= level:
        return Choice(finer[0], values, beaten)
    return Choice(coarsest, values, beaten)


def reason(index: int, choice: Choice, parts: Sequence[int], level: float) -> str:
    """Say in words why a finalist was kept or not.

    Parameters
    ----------
    index
        Its position among the finalists.
    choice, parts, level
        Of :func:`choose`, and what it was given.
    """
    if choice.p_values[index] > level:
        return f"not shown to be better at the level of {level:.2g}"
    if choice.kept is None or index == choice.kept:
        return f"shown to be better at the level of {level:.2g}"
    kept = parts[choice.kept]
    if parts[index] > kept:
        return f"shown to be better than one model, but not than {kept} parts"
    return f"beaten by {kept} parts" if parts[index] < kept else "another in as many parts gains more"


def figures(comparison: Comparison) -> dict[str, Any]:
    """List a comparison's figures as plain values, for JSON; what is unknown because nobody voted is None."""
    voted = comparison.num_clients > 0
    return {
        "gain": comparison.gain if voted else None,
        "interval": list(comparison.interval) if voted else None,
        "p_value": comparison.p_value,
        "better_for": comparison.better_for,
        "voted": comparison.num_clients,
    }


def decision(num_clusters: int, looks: int, tried: int, kept: int, on_trial: int) -> str:
    """Say in one sentence how many clusters there are, and why.

    Parameters
    ----------
    num_clusters
        Clusters at the end.
    looks
        Looks that took place.
    tried, kept
        Groupings whose trial is over, and how many of them were kept.
    on_trial
        Groupings whose trial the run's end cut short.

    Returns
    -------
    Such as ``2 clusters: 1 of 18 groupings from 3 looks proved better on held-out rows``.
    """
    of_looks = "one look" if looks == 1 else f"{looks} looks"
    groupings = "one grouping" if tried == 1 else f"{tried} groupings"
    if tried:
        why = f"{kept or 'none'} of {groupings} from {of_looks} proved better on held-out rows"
    else:
        why = f"{of_looks} proposed no grouping" if looks and not on_trial else "no trial took place"
    if on_trial:
        why = (
            f"{why}, {on_trial} still on trial when the run ended"
            if tried
            else (f"{on_trial} groupings were still on trial when the run ended")
        )
    return f"{wording.clusters(num_clusters)}: {why}"
