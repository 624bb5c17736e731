"""Amounts and columns that are in another unit at one site, and what it would gain if they were converted.

A unit changes all values of a site by one factor. The factor of a column is that between the sizes of its
values; that of amounts is the mean that the other sites' models predict for the site's rows, over the mean of
its amounts. Most of the others' models have to agree on it, and the site has to gain: no single site accuses
another, and a site that is named has no vote from then on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.proof.paired import holm
from fedclust.typing import FloatArray

CONVERSIONS: tuple[tuple[float, str, str], ...] = (
    (2.2046, "kg", "lb"),
    (2.54, "inches", "cm"),
    (7.0, "weeks", "days"),
    (10.0, "cm or g/dl", "mm or g/l"),
    (12.0, "years or feet", "months or inches"),
    (18.0182, "mmol/l", "mg/dl"),
    (24.0, "days", "hours"),
    (30.44, "months", "days"),
    (38.67, "mmol/l", "mg/dl"),
    (60.0, "hours or minutes", "minutes or seconds"),
    (88.42, "mg/dl", "µmol/l"),
    (100.0, "m or shares", "cm or per cent"),
    (365.25, "years", "days"),
    (1000.0, "kg, l or thousands", "g, ml or single ones"),
)
"""How many times larger numbers are in the second unit; of glucose, cholesterol and creatinine, too."""

_NEAR = 0.15  # in the logarithm
_FAR = 5.0  # a factor that no population explains
_LEAST = 1.8  # a known conversion is larger
_PRECISE = 0.06  # standard error of the logarithm up to which a factor below _FAR is told from others


def conversion(own: float, elsewhere: float) -> tuple[float, str, str]:
    """Return the factor by which a site's values are to be multiplied, and its unit and that of the others.

    Parameters
    ----------
    own, elsewhere
        Size of the values at the site and elsewhere, > 0.

    Returns
    -------
    That of the nearest of :data:`CONVERSIONS` if it is near, else their ratio and no names.

    Examples
    --------
    >>> conversion(6.3, 109.0)
    (18.0182, 'mmol/l', 'mg/dl')
    >>> conversion(109.0, 6.3)[1:]
    ('mg/dl', 'mmol/l')
    >>> conversion(1.0, 5000.0)
    (5000.0, '', '')
    """
    ratio = math.log(elsewhere / own)
    factor, small, large = min(CONVERSIONS, key=lambda each: abs(abs(ratio) - math.log(each[0])))
    if abs(abs(ratio) - math.log(factor)) > _NEAR:
        return elsewhere / own, "", ""
    return (factor, small, large) if ratio > 0 else (1 / factor, large, small)


@dataclass(frozen=True)
class Mend:
    """What a site would gain if values were converted to the others' unit.

    Attributes
    ----------
    column
        Name of the column; empty for the amounts that are predicted.
    own, elsewhere
        Size of the values at the site and elsewhere, > 0.
    now, then
        How right all others' models together are on its rows, as they are and converted, in [0, 1].
    error
        Standard error of the gain, > 0.
    """

    column: str
    own: float
    elsewhere: float
    now: float
    then: float
    error: float

    def text(self, how: str) -> str:
        """Describe it in one line.

        Parameters
        ----------
        how
            What is predicted right, with places for the shares then and now.

        Examples
        --------
        >>> Mend("stay", 2.5, 60.0, 0.71, 0.81, 0.02).text("be right").partition(";")[0][:68]
        'stay is about 24 times smaller than elsewhere (2.5, elsewhere 60): a'
        """
        factor, unit, usual = conversion(self.own, self.elsewhere)
        times = max(self.own / self.elsewhere, self.elsewhere / self.own)
        what = f"{self.column} is" if self.column else "its amounts are"
        size = "smaller" if self.own < self.elsewhere else "larger"
        likely = (
            f"a factor of {max(factor, 1 / factor):g}, as of {unit} instead of {usual}"
            if unit
            else "probably in another unit"
        )
        would = how.format(f"{self.then:.2f}", f"{self.now:.2f}")
        return (
            f"{what} about {times:.2g} times {size} than elsewhere ({self.own:.3g}, elsewhere "
            f"{self.elsewhere:.3g}): {likely}; with {'it' if self.column else 'them'} converted, the others' "
            f"models together would {would}"
        )


def gaining(found: Mapping[int, Sequence[Mend]], level: float) -> dict[int, list[Mend]]:
    """Return the conversions by which sites gain, in tests at one level for all (Holm).

    Examples
    --------
    >>> better, same = Mend("", 8.0, 144.0, 0.1, 0.8, 0.05), Mend("dose", 1.0, 20.0, 0.5, 0.52, 0.05)
    >>> gaining({0: [same], 2: [better, same]}, level=0.05)[2] == [better]
    True
    """
    from scipy.special import ndtr

    pairs = [(site, each) for site, some in found.items() for each in some]
    named: dict[int, list[Mend]] = {}
    values = [float(ndtr((each.now - each.then) / each.error)) for _, each in pairs]
    for (site, each), value in zip(pairs, holm(values), strict=True):
        if value <= level:
            named.setdefault(site, []).append(each)
    return named


def other_units(ratios: FloatArray) -> list[int]:
    """List the sites whose amounts are in another unit than most of the others' models predict.

    Parameters
    ----------
    ratios
        Logarithm of the mean that each site's own model (rows) predicts over the mean of the amounts, at each
        site (columns), and its standard error; NaN where unknown, shape (K, K, 2). A site's own are
        cross-fitted: by these a model's others are reduced.

    Returns
    -------
    Ids of the sites, sorted; of two sites both, because it is unknown which of them has another unit.

    Examples
    --------
    >>> far = np.log(18)  # amounts of site 2 are 18 times smaller
    >>> logs = np.array([[0.0, 0.1, far], [0.0, 0.0, far], [-far, -far, 0.0]])
    >>> other_units(np.stack([logs, np.full((3, 3), 0.05)], axis=-1))
    [2]
    """
    own = np.diagonal(ratios, axis1=0, axis2=1)  # (2, K)
    logs = ratios[..., 0] - own[0][:, None]
    errors = np.hypot(ratios[..., 1], own[1][:, None])
    known = np.log([factor for factor, *_ in CONVERSIONS])
    apart = np.abs(np.abs(logs)[..., None] - known).min(axis=-1)
    usual = (apart <= 2 * errors) & (errors <= _PRECISE) & (np.abs(logs) > math.log(_LEAST))
    far = (np.abs(logs) - 2 * errors > math.log(_FAR)) | usual
    far &= ~np.eye(len(far), dtype=bool)
    voting = np.ones(len(far), dtype=bool)
    while voting.sum() > 1:
        votes = np.maximum((far & (logs > 0))[voting].sum(axis=0), (far & (logs < 0))[voting].sum(axis=0))
        shares = np.where(voting, votes / (voting.sum() - 1), 0.0)
        if shares.max() <= 0.5:
            break
        voting &= shares < shares.max()
    return np.flatnonzero(~voting).tolist()
