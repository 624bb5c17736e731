"""What a handful of sites are worth to each other, by the cross-fitted scores of their coalitions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from fedclust.proof.coalitions import Choice, Coalition, Scores
from fedclust.proof.figure import CONFIDENCE


@dataclass(frozen=True)
class Difference:
    """A mean difference of scores.

    Attributes
    ----------
    mean
        Mean over rows.
    low, high
        Ends of its 95 % interval.
    rows
        Number of rows.
    """

    mean: float
    low: float
    high: float
    rows: int

    @classmethod
    def of(cls, mean: float, error: float, rows: int) -> "Difference":
        """Make the difference of a mean and its standard error.

        Examples
        --------
        >>> Difference.of(0.04, 0.01, rows=80).text
        '0.04 (0.02 to 0.06)'
        >>> Difference.of(-0.001, 0.0, rows=80).text
        '0.00 (0.00 to 0.00)'
        """
        reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * error
        return cls(mean, mean - reach, mean + reach, rows)

    @classmethod
    def pooled(cls, parts: Iterable[tuple[float, float, int]]) -> "Difference | None":
        """Pool the means, standard errors and numbers of rows of independent parts; None without rows.

        Examples
        --------
        >>> found = Difference.pooled([(0.1, 0.03, 30), (0.0, 0.04, 10)])
        >>> round(found.mean, 3), round(found.high - found.mean, 4)  # √(30²·0.03² + 10²·0.04²) / 40 · 1.96
        (0.075, 0.0483)
        """
        known = list(parts)
        rows = sum(count for *_, count in known)
        if not rows:
            return None
        mean = sum(mean * count for mean, _, count in known) / rows
        return cls.of(mean, math.hypot(*(error * count for _, error, count in known)) / rows, rows)

    @property
    def text(self) -> str:
        """The mean and its interval."""
        return f"{self.mean:z.2f} ({self.low:z.2f} to {self.high:z.2f})"

    @property
    def turned(self) -> "Difference":
        """The difference the other way round."""
        return Difference(-self.mean, -self.high, -self.low, self.rows)


def lost_without(
    site: int,
    listed: Sequence[Coalition],
    choices: Sequence[Choice | None],
    scores: Mapping[int, Scores],
) -> Difference | None:
    """Measure how much worse the others' rows are predicted where a site does not train with them.

    Parameters
    ----------
    site
        The site.
    listed
        The coalitions, everyone first.
    choices
        The sites' choices; each site's rows are compared with the correction of its arm of everyone.
    scores
        The sites' cross-fitted scores, those that answered.

    Returns
    -------
    Mean of the score without it minus that with everyone, over the others' rows; None if nobody answered.

    Examples
    --------
    >>> import numpy as np
    >>> from fedclust.proof.coalitions import Arm
    >>> listed, choice = [(0, 1), (0,), (1,)], Choice(Arm(0, False), Arm(0, False))
    >>> own = Scores.of(np.repeat([[0.2], [0.2], [0.5], [0.5]], 9, axis=1))  # everyone, then alone
    >>> lost_without(0, listed, [choice, choice], {1: own}).text
    '0.30 (0.30 to 0.30)'
    """
    others = tuple(each for each in listed[0] if each != site)
    return _gained(dict.fromkeys(others, (others, listed[0])), listed, choices, scores)


def gained_by_groups(
    groups: Sequence[str],
    listed: Sequence[Coalition],
    choices: Sequence[Choice | None],
    scores: Mapping[int, Scores],
) -> Difference | None:
    """Measure how much better rows are predicted where each site trains with those of its group only.

    Parameters
    ----------
    groups
        Name of each site's group, shape (K,).
    listed, choices, scores
        As for :func:`lost_without`.

    Returns
    -------
    Mean of the score with everyone minus that of the groups, over all sites' rows; None if there is one
    group, or nobody answered.

    Examples
    --------
    >>> import numpy as np
    >>> from fedclust.proof.coalitions import Arm
    >>> listed, choice = [(0, 1), (0,), (1,)], Choice(Arm(0, False), Arm(0, False))
    >>> own = Scores.of(np.repeat([[0.5], [0.5], [0.2], [0.2]], 9, axis=1))  # everyone, then alone
    >>> gained_by_groups(["siemens", "ge"], listed, [choice, choice], {0: own, 1: own}).text
    '0.30 (0.30 to 0.30)'
    """
    everyone = listed[0]
    if len({groups[site] for site in everyone}) < 2:
        return None
    own = {site: tuple(each for each in everyone if groups[each] == groups[site]) for site in everyone}
    return _gained({site: (everyone, members) for site, members in own.items()}, listed, choices, scores)


def _gained(
    pairs: Mapping[int, tuple[Coalition, Coalition]],
    listed: Sequence[Coalition],
    choices: Sequence[Choice | None],
    scores: Mapping[int, Scores],
) -> Difference | None:
    """Pool over sites by how much the score of the first of two coalitions exceeds that of the second."""
    found = []
    for site, pair in pairs.items():
        own, choice = [each for each in listed if site in each], choices[site]
        if site not in scores or choice is None or not set(pair) <= set(own):
            continue
        first, second = (2 * own.index(each) + choice.everyone.corrected for each in pair)
        found.append((*scores[site].difference(first, second), scores[site].count))
    return Difference.pooled(found)


def worth(name: str, lost: Difference) -> str:
    """Write what a site is worth to the others.

    Examples
    --------
    >>> worth("west", Difference.of(0.02, 0.01, 90))
    'without west, the others lose 0.02 (0.00 to 0.04)'
    >>> worth("west", Difference.of(-0.1, 0.01, 90))
    'without west, the others gain 0.10 (0.08 to 0.12)'
    """
    loses = lost.mean >= 0
    return f"without {name}, the others {'lose' if loses else 'gain'} {(lost if loses else lost.turned).text}"


def of_groups(by: str, gained: Difference, *, helps: bool | None = None) -> str:
    """Write whether training by groups that people named helps.

    Parameters
    ----------
    by
        What the groups are by, such as a column.
    gained
        How much better than everyone's model.
    helps
        Whether it was shown to; None to take the interval's word.

    Examples
    --------
    >>> of_groups("vendor", Difference.of(0.04, 0.01, 90))
    'vendor: training by vendor is better by 0.04 (0.02 to 0.06)'
    >>> of_groups("vendor", Difference.of(-0.01, 0.01, 90))
    'vendor: training by vendor is not shown to help: better by -0.01 (-0.03 to 0.01)'
    >>> of_groups("vendor", Difference.of(0.04, 0.01, 90), helps=False)
    "vendor: training by vendor seems better by 0.04 (0.02 to 0.06), which is not shown at the run's level"
    """
    seems = gained.low > 0
    if seems and helps is False:
        end = ", which is not shown at the run's level"
        return f"{by}: training by {by} seems better by {gained.text}{end}"
    verb = "is better by" if seems or helps else "is not shown to help: better by"
    return f"{by}: training by {by} {verb} {gained.text}"
