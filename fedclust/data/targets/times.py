"""Times: how long until an event, such as death or readmission, where some rows are censored.

Time is divided into intervals, and a network predicts for each the *hazard*: the probability of the event in
the interval for whoever reaches it. Sources: Gensheimer and Narasimhan, "A scalable discrete-time survival
model for neural networks", PeerJ 7, 2019; for federations, Andreux, Manoel, Menuet, Saillard and Simpson,
"Federated survival analysis with discrete-time Cox models", 2020.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedclust.data.targets.base import NORMAL, Calibration, Numbers, NumberWords, Survival
from fedclust.metrics.times import (
    concordance,
    concordance_by_row,
    integrated_brier,
    kaplan_meier,
    life_table,
    survival_at,
)
from fedclust.proof.coalitions import LEVEL
from fedclust.proof.paired import holm
from fedclust.proof.words import FEW, Words
from fedclust.support.checks import check_entries, check_shapes
from fedclust.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import torch

INTERVALS = 8
ENDS = 0.025, 0.975
_SCORED = 4  # intervals at most
_PARTS = 5  # of a calibration
_COUNTED = 1 / 3  # largest hazard that is scored
_STEPS = 50  # of Newton's method, which mostly needs five
_FEWEST_EVENTS = 5  # of a site that chooses with whom it trains
_CLEAR = 0.5  # of concordance: events that are coded the other way, not censoring that depends on the risk
_FURTHEST = 10.0  # from what a correction starts at


class TimeWords(NumberWords):
    """What results say of times."""

    share, shares = "concordance", "concordances"
    of_pairs = True
    label = "time"
    bin, bins = "interval with or without the event", "intervals with and without the event"
    bin_shares = label_shares = "shares of the intervals with and without the event"
    counts = "numbers of rows in each interval, with and without the event"
    guess = "each client's survival curve"
    correction = "correction of each client's hazards"
    own_correction = "correction of its hazards"
    exchanged = "risks or events look turned round"
    predicted = "columns of survival at the intervals' ends, and of risk"
    scale = (
        "Score: squared error of the predicted hazards in the intervals at risk, on a scale from 0 to 2; "
        "0 is best."
    )
    figures = (("concordance", "Harrell's concordance", 3), ("integrated_brier", "integrated Brier score", 3))
    would = "have concordance {} there instead of {}"
    compared = (("accuracy", "concordance"),)

    def in_shares(self, groups: float, common: float) -> str:
        """Compare two concordances.

        Examples
        --------
        >>> TimeWords().in_shares(0.75, 0.5)
        'concordance 0.750 instead of 0.500'
        """
        return f"concordance {groups:.3f} instead of {common:.3f}"

    def counted(self, rows: int, counts: IntArray) -> int:  # noqa: ARG002
        """Return the number of events."""
        return int(np.asarray(counts)[1::2].sum())

    def further(
        self,
        rows: int,
        counts: IntArray,
        classes: Sequence[str],  # noqa: ARG002
        figures: Mapping[str, Any],  # noqa: ARG002
    ) -> str:
        """Return how many test rows had the event, where few did."""
        events = self.counted(rows, counts)
        return f" Of its {rows:,} test rows {events or 'none'} had the event." if events < FEW else ""

    def renamed(self, fits: FloatArray, classes: Sequence[str]) -> tuple[str, str, str]:  # noqa: ARG002
        """Return whether risks look exchanged or the coding of events."""
        if np.isclose(fits[:, 3], 1 - 2 * fits[:, 0]).mean() > 0.5:
            return "risks look turned round", "a high risk", "a low one"
        return "events look coded the other way", "an event", "censored"

    def tested(self, fits: FloatArray) -> FloatArray:
        """Return fits in which another coding of events counts only if it raises concordance by more than ½.

        Who is censored often depends on the risk, so that others' models may order the times of censored rows
        better than those of events where all is well. Otherwise what counts is the opposite order.

        Examples
        --------
        >>> fits = np.array([[0.2, 0.5, 0.05, 0.7, 0.1], [0.4, 0.5, 0.05, 0.3, 0.1]])
        >>> TimeWords().tested(fits)[:, 3].round(6)
        array([0.7, 0.2])
        """
        order = np.concatenate([fits[..., :3], 1 - 2 * fits[..., :1], 2 * fits[..., 2:3]], axis=-1)
        return np.where(fits[..., 3:4] > _CLEAR, fits, order)

    def measured(self, together: FloatArray) -> dict[int, str]:
        """Return where others' models fit the other coding of events better, which alone names nobody.

        In one-sided tests at one level for all sites (Holm).

        Examples
        --------
        >>> fits = np.array([[0.41, 0.5, 0.05, 0.3, 0.06], [0.7, 0.5, 0.05, -0.2, 0.06]])
        >>> TimeWords().measured(fits)[0].partition(", ")[2][:63]
        "the others' models would have concordance 0.71 instead of 0.41:"
        """
        from scipy.special import ndtr

        tested, known = self.tested(together)[:, 3], together[:, 3] / together[:, 4]
        shown = (holm(ndtr(-np.nan_to_num(known))) <= LEVEL) & (together[:, 3] > tested)
        return {
            site: (
                "With its events and censored rows exchanged, the others' models would have concordance "
                f"{together[site, :4:3].sum():.2f} instead of {together[site, 0]:.2f}: who is censored there "
                "depends on the risk, or its events are coded the other way."
            )
            for site in np.flatnonzero(shown).tolist()
        }

    def few(self, counts: IntArray) -> str:
        """Return that a site has hardly any event: what little there is to compare agrees by chance.

        Examples
        --------
        >>> TimeWords().few(np.array([90, 3, 40, 1]))
        'Only 4 of its training rows had the event, too few to choose by.'
        >>> TimeWords().few(np.array([90, 3, 40, 2]))
        ''
        """
        events = self.counted(0, counts)
        if events >= _FEWEST_EVENTS or not np.any(counts):
            return ""
        number = f"Only {events}" if events else "None"
        return f"{number} of its training rows had the event, too few to choose by."

    def miscoded(self, counts: IntArray) -> dict[int, str]:
        """Return the sites whose share of events is the others' share of censored rows.

        It is twice as near to that as to the others' share of events, and differs from the latter by chance
        with a probability of at most 5 % for all sites together (an exact test each, Holm's correction).
        Sites that have been named do not count among the others.

        Examples
        --------
        >>> rows = np.array([[90, 10], [85, 15], [12, 88]])  # censored rows and events
        >>> TimeWords().miscoded(rows)
        {2: 'events look coded the other way (88 % of its rows have the event, of the others 12 %)'}
        """
        events = np.asarray(counts)[:, 1::2].sum(axis=1)
        rows, named = np.asarray(counts).sum(axis=1), dict[int, str]()
        while len(left := [site for site in range(len(rows)) if site not in named]) > 2:
            found = []
            for site in left:
                others = [other for other in left if other != site]
                share = events[site] / max(1, rows[site])
                rest = events[others].sum() / max(1, rows[others].sum())
                ahead_by = abs(share - rest) - 2 * abs(share - 1 + rest)
                found.append((ahead_by if rows[site] >= FEW else -1.0, site, share, rest, others))
            values = holm([_apart(events, rows, site, others) for _, site, _, _, others in found])
            ahead = [
                each for each, value in zip(found, values, strict=True) if each[0] > 0 and value <= LEVEL
            ]
            if not ahead:
                break
            _, site, share, rest, _ = max(ahead)
            named[site] = (
                f"events look coded the other way ({share:.0%} of its rows have the event, of the others "
                f"{rest:.0%})"
            ).replace("%", " %")
        return dict(sorted(named.items()))


@dataclass(frozen=True)
class Times(Numbers):
    """The time until an event: a hazard per interval.

    A row's value is its time and whether the event happened then, 1, or it was censored, 0. It is at risk in
    every interval that it survived, in that of its event, and, if it was censored, in that interval if it was
    observed for at least half of it (Gensheimer and Narasimhan's rule).

    Attributes
    ----------
    cuts
        Inner ends of the intervals, increasing, > 0, shape (J − 1,): quantiles of all clients' event times.
        The last interval is open.
    last
        End of the last interval, > the last cut: the 97.5 % quantile of all clients' times. A later time
        counts as in the last interval.
    base
        Logits of the intervals' hazards of all clients' training rows, shape (J,), to which a network's
        outputs are added: one that returns 0 predicts what happens on average, and weight decay draws it
        there. 0 unless given.
    unit
        The times' unit, for people.

    Raises
    ------
    ValueError
        If the cuts do not increase, or `base` is not one finite number for each interval.
    """

    kind: ClassVar[str] = "times"
    figure_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "concordance": (0.0, 1.0),
        "integrated_brier": (0.0, 1.0),
    }
    compared_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    tells: ClassVar[tuple[str, float] | None] = ("concordance", 0.5)
    predicted: ClassVar[str] = "survival"
    right = "in the right order (concordance)"
    per_row: ClassVar[int] = 2
    kinds: ClassVar[int] = 2  # without and with the event
    width: ClassVar[int] = INTERVALS

    cuts: tuple[float, ...]
    last: float
    base: tuple[float, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        ends = [0.0, *self.cuts, self.last]
        if not self.cuts or not np.isfinite(ends).all() or (np.diff(ends) <= 0).any():
            raise ValueError(
                f"target.cuts must be at least one time, increase, and lie between 0 and target.last, "
                f"got {list(self.cuts)} and {self.last:g}"
            )
        if self.base and (len(self.base) != self.num_intervals or not np.isfinite(self.base).all()):
            raise ValueError(
                f"target.base must be {self.num_intervals} finite numbers or none, got {list(self.base)}"
            )

    @classmethod
    def agreed(cls, values: FloatArray, **given: Any) -> "Times":
        """Make the target of all clients' training times and events, shape (N, 2), and of other attributes.

        Raises
        ------
        ValueError
            If no event happened.

        Examples
        --------
        >>> rows = np.stack([np.arange(1, 1002), np.ones(1001)], axis=1)
        >>> Times.agreed(rows).cuts[3]  # the median of the times of events
        501.0
        """
        happened = values[values[:, 1] > 0, 0]
        if not len(happened):
            raise ValueError(f"events must happen to some rows, all {len(values)} are censored")
        last = float(np.quantile(values[:, 0], ENDS[1]))
        made = cls.of(np.quantile(happened, levels()).tolist(), last, **given)
        return replace(made, base=tuple(made.without_inputs(values, 0).tolist()))

    def agreed_again(self, values: FloatArray) -> "Times":
        """Make the target of other training times and events, shape (N, 2), with this one's unit."""
        return self.agreed(values, unit=self.unit)

    @classmethod
    def strata(cls, values: FloatArray | IntArray) -> IntArray:
        """Return each row's quarter of a site's times, twice, plus one if the event happened.

        Examples
        --------
        >>> Times.strata(np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 1.0], [4.0, 0.0]]))
        array([0, 3, 5, 6])
        """
        quarter = np.searchsorted(np.quantile(values[:, 0], (0.25, 0.5, 0.75)), values[:, 0])
        return 2 * quarter + (values[:, 1] > 0)

    @classmethod
    def faults(cls, values: FloatArray) -> Iterator[tuple[str, int, BoolArray]]:
        """List times that are not above 0, events that are neither 0 nor 1, and rows that all are censored.

        Examples
        --------
        >>> rows = np.array([[5.0, 0.0], [0.0, 1.0], [7.0, 2.0]])
        >>> [(name, place, rows.tolist()) for name, place, rows in Times.faults(rows)]
        [('time', 0, [False, True, False]), ('event', 1, [False, False, True])]
        """
        time, event = values[:, 0], values[:, 1]
        finite = np.abs(time) <= np.finfo(np.float32).max
        coded = (event == 0) | (event == 1)
        for name, place, rows in (
            ("infinite", 0, ~finite),
            ("time", 0, finite & (time <= 0)),
            ("event", 1, ~coded),
        ):
            if rows.any():
                yield name, place, rows
        if len(values) and coded.all() and not event.any():
            yield "no event", 1, np.ones(len(values), dtype=bool)

    rules: ClassVar[Mapping[str, str]] = {
        **Numbers.rules,
        "time": "times must be > 0",
        "event": "events must be 1, or 0 for a row that is censored",
    }

    @classmethod
    def read(cls, values: Any, num_bins: int | None = None) -> FloatArray:
        """Convert times and events to float32.

        Raises
        ------
        ValueError
            If rows do not have two numbers, or as :attr:`rules` says.

        Examples
        --------
        >>> Times.read([[5, True]])
        array([[5., 1.]], dtype=float32)
        """
        shape = np.shape(values)
        if shape[1:] != (2,):
            raise ValueError(f"targets must be times and events, shape (N, 2), got {shape}")
        return super().read(values, num_bins)

    def opposite(self, values: FloatArray) -> FloatArray:
        """Return times and events in the reverse order: whoever had a high risk has a low one.

        Rows are ordered by the share of all that survive longer, by Kaplan and Meier's estimate Ŝ: Ŝ(t) after
        an event at t, and half of that, its expectation, if censored. The first row gets the time and event
        of the last and so on: survival and censoring stay the same for the rows as a whole.

        Examples
        --------
        >>> Times((10.0,), 90.0).opposite(np.array([[5.0, 1.0], [70.0, 0.0], [20.0, 1.0]]))
        array([[70.,  0.],
               [ 5.,  1.],
               [20.,  1.]])
        """
        time, event = values[:, 0], values[:, 1] > 0
        at, survival, _ = kaplan_meier(time, event)
        longer = survival_at(at, survival, time) * np.where(event, 1.0, 0.5)
        turned, order = values.copy(), np.argsort(longer, kind="stable")
        turned[order] = values[order[::-1]]
        return turned

    @classmethod
    def of(cls, quantiles: Sequence[float], last: float, **given: Any) -> "Times":
        """Make the target of agreed quantiles of event times.

        Parameters
        ----------
        quantiles
            Those of :func:`levels`, not decreasing; of equal ones, the first counts.
        last
            The largest time.
        given
            Other attributes.

        Raises
        ------
        ValueError
            If all of them are at the end.

        Examples
        --------
        >>> Times.of([10.0, 10.0, 30.0], last=90.0)
        Times(cuts=(10.0, 30.0), last=90.0, base=(), unit='')
        """
        cuts = tuple(each for each in dict.fromkeys(map(float, quantiles)) if 0 < each < last)
        if not cuts:
            rule = f"events must happen before {last:g}, by when 97.5 % of all rows have ended"
            raise ValueError(f"{rule}, got them from about {quantiles[0]:g} on")
        return cls(cuts, float(last), **given)

    @property
    def words(self) -> Words:
        """What a site's report says of it."""
        return TimeWords()

    @property
    def num_intervals(self) -> int:
        """Number of intervals J."""
        return len(self.cuts) + 1

    def outputs(self, num_bins: int) -> int:  # noqa: ARG002
        """Return J."""
        return self.num_intervals

    def bins(self, values: FloatArray | IntArray) -> IntArray:
        """Return the bin of each row, shape (n,): twice its interval, plus one if the event happened.

        Examples
        --------
        >>> Times((10.0, 30.0), 90.0).bins([[5, 1], [10, 0], [40, 1]])  # a cut ends its interval
        array([1, 0, 5])
        """
        values = np.asarray(values, dtype=np.float64)
        return 2 * np.searchsorted(self.cuts, values[..., 0], side="left") + (values[..., 1] > 0)

    def bin_names(self) -> tuple[str, ...]:
        """Return a name for each bin.

        Examples
        --------
        >>> Times((10.0,), 90.0).bin_names()
        ('censored until 10', 'event until 10', 'censored after 10', 'event after 10')
        """
        ends = [f"until {cut:g}" for cut in self.cuts] + [f"after {self.cuts[-1]:g}"]
        return tuple(f"{what} {end}" for end in ends for what in ("censored", "event"))

    def observed(self, values: Any) -> tuple[Any, Any]:
        """Return in which intervals each row was at risk, and in which the event happened.

        Parameters
        ----------
        values
            Time and event of each row, shape (n, 2); a tensor or an array.

        Returns
        -------
        Booleans of the same sort, each of shape (n, J).

        Examples
        --------
        >>> at_risk, happened = Times((10.0, 30.0), 90.0).observed(np.array([[15, 1], [15, 0], [20, 0]]))
        >>> at_risk.astype(int).tolist(), happened.astype(int).tolist()
        ([[1, 1, 0], [1, 0, 0], [1, 1, 0]], [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
        """
        time, event = values[..., :1], values[..., 1:] > 0
        starts = _like(values, [0.0, *self.cuts])
        ends = _like(values, [*self.cuts, np.inf])
        middles = _like(values, np.add([0.0, *self.cuts], [*self.cuts, self.last]) / 2)
        here = (time > starts) & (time <= ends)
        here[..., 0] |= time[..., 0] <= 0
        happened = here & event
        return (time > ends) | happened | (here & ~event & (time >= middles)), happened

    def loss(self, outputs: "torch.Tensor", values: "torch.Tensor") -> "torch.Tensor":
        """Compute J/2 times the negative log-likelihood of each row's intervals at risk, in nats, shape (n,).

        The factor makes a step move a hazard about as far as it moves the probability of one of two classes:
        of J intervals, a row's event is in one.

        Examples
        --------
        >>> import torch
        >>> Times((10.0,), 90.0).loss(torch.zeros(1, 2), torch.tensor([[20.0, 1.0]]))  # ln 2 in both
        tensor([1.3863])
        """
        from torch.nn import functional

        at_risk, happened = self.observed(values)
        logits = outputs[..., : self.num_intervals]  # a network may have more
        logits = logits + _like(outputs, self.base) if self.base else logits
        each = functional.binary_cross_entropy_with_logits(
            logits, happened.to(outputs.dtype), reduction="none"
        )
        return (each * at_risk).sum(-1) * (self.num_intervals / 2)

    def scores(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Compute each row's squared errors of hazards in the intervals at risk, shape (n,).

        Neighbouring intervals count together, as four, and of hazards above c = ⅓ only the third counts: of
        small hazards a row says little, and of a wide range of scores neither. In the interval of the event a
        hazard h then has an error from (1 − c)² to 1, in each other one up to c². The sum, less (1 − c)² for
        an event, is divided by what it can be at most, and doubled. Proper for each hazard up to c among
        those at risk, so that no weights for the censoring are needed; where most rows are censored within an
        interval, for hazards that are a few per cent higher, of all models alike.

        Raises
        ------
        ValueError
            If the shapes do not fit, or an output is not finite.

        Examples
        --------
        >>> times, outputs = Times((10.0,), 90.0), np.log([[1 / 3, 1 / 3]])  # hazards of a quarter
        >>> times.scores(outputs, [[20.0, 1.0]]).round(4)  # 2·(1/16 + 9/16 − 4/9)/(1 − 4/9 + 1/9)
        array([0.5417])
        """
        values = np.asarray(values, dtype=np.float64)
        survived = 1 - self.hazards(outputs, correction)
        check_shapes(values=(values, f"{len(survived)} 2"))
        firsts = self._firsts
        hazards = 1 - np.multiply.reduceat(survived, firsts, axis=-1)
        joined = self if len(firsts) == self.num_intervals else self._joined
        at_risk, happened = joined.observed(values)
        errors = (np.square(np.minimum(hazards, _COUNTED) - happened) * at_risk).sum(axis=-1)
        least = (1 - _COUNTED) ** 2
        most = 1 - least + (len(firsts) - 1) * _COUNTED**2
        return 2 * (errors - least * happened.any(axis=-1)) / most

    @property
    def _firsts(self) -> list[int]:
        """First of the intervals that are scored together."""
        return [
            int(each[0])
            for each in np.array_split(np.arange(self.num_intervals), min(_SCORED, self.num_intervals))
        ]

    @property
    def _joined(self) -> "Times":
        """The intervals that are scored."""
        return Times(tuple(self.cuts[first - 1] for first in self._firsts[1:]), self.last)

    def hits(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Return the share of each row's comparable pairs in the right order, ½ without one, shape (n,).

        Their mean is close to Harrell's concordance, in which a row with more pairs counts more.

        Examples
        --------
        >>> Times((10.0,), 90.0).hits([[1.0, 0.0], [0.0, 0.0], [0.5, 0.0]], [[5, 1], [20, 0], [25, 1]])
        array([1., 1., 1.])
        """
        values = np.asarray(values, dtype=np.float64)
        if not len(values):
            return np.zeros(0)
        pairs, concordant = concordance_by_row(
            values[:, 0], values[:, 1] > 0, self.risks(outputs, correction)
        )
        return np.where(pairs > 0, concordant / np.maximum(pairs, 1), 0.5)

    def hazards(self, outputs: ArrayLike, correction: FloatArray | None = None) -> FloatArray:
        """Return the hazard of each interval, in (0, 1), shape (n, J).

        Examples
        --------
        >>> Times((10.0,), 90.0).hazards([[0.0, np.log(3)]])
        array([[0.5 , 0.75]])
        """
        outputs = np.asarray(outputs, dtype=np.float64)
        check_shapes(outputs=(outputs, f"rows? {self.num_intervals}"))
        check_entries("finite", outputs=outputs)
        added = outputs if correction is None else outputs + np.asarray(correction)
        if self.base:
            added = added + np.asarray(self.base)
        return 1 / (1 + np.exp(-np.clip(added, -700, 700)))

    def survival(
        self, outputs: ArrayLike, moments: ArrayLike, correction: FloatArray | None = None
    ) -> FloatArray:
        """Return the probability of no event until given times, shape (n, m).

        Within an interval the logarithm of the probability falls evenly; the last one is taken to end at
        :attr:`last`, after which the probability stays.

        Parameters
        ----------
        outputs
            A network's, shape (n, J).
        moments
            Times >= 0, shape (m,).
        correction
            As for :meth:`scores`.

        Examples
        --------
        >>> Times((10.0,), 90.0).survival([[0.0, 0.0]], [0, 10, 90])
        array([[1.  , 0.5 , 0.25]])
        """
        kept = np.log1p(-np.minimum(self.hazards(outputs, correction), 1 - 1e-12))
        return np.exp(kept @ self._gone(np.asarray(moments, dtype=np.float64)).T)

    def _gone(self, moments: FloatArray) -> FloatArray:
        """Return the share of each interval that has gone by at given times, shape (m, J)."""
        starts, ends = np.array([0.0, *self.cuts]), np.array([*self.cuts, self.last])
        return np.clip((moments[:, None] - starts) / (ends - starts), 0.0, 1.0)

    def predictions(
        self,
        outputs: "torch.Tensor",
        moments: Sequence[float] | None = None,
        num_bins: int | None = None,  # noqa: ARG002
    ) -> "torch.Tensor":
        """Return the probability of no event until given times, shape (n, m), as :meth:`survival` does.

        Examples
        --------
        >>> import torch
        >>> times = Times((10.0,), 90.0)
        >>> times.predictions(torch.zeros(1, 2)), times.predictions(torch.zeros(1, 2), [50.0])  # ½·√½
        (tensor([[0.5000, 0.2500]]), tensor([[0.3536]]))
        """
        given = [*self.cuts, self.last] if moments is None else moments
        try:
            at = np.array(given, dtype=np.float64)
        except (TypeError, ValueError):
            at = np.zeros(0)
        if at.ndim != 1 or not len(at) or not ((at > 0) & np.isfinite(at)).all():
            raise ValueError(f"times must be numbers > 0, at least one, got {given!r}")
        logits = outputs[..., : self.num_intervals]
        if self.base:
            logits = logits + _like(outputs, self.base)
        from torch.nn import functional

        kept = -functional.softplus(logits)  # the logarithm of one minus the hazard
        return (kept @ _like(outputs, self._gone(at).T)).exp()

    def compared(self, outputs: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return zeros, as survival is not known of a censored row, and the predicted one at the horizon."""
        survival = self.survival(outputs, [self.horizon])[:, 0]
        return np.zeros(len(values)), survival

    @property
    def calibrated(self) -> str:  # type: ignore[override]
        """What :meth:`calibration` compares."""
        return f"share without the event at {self.horizon:.4g}{self.unit and f' {self.unit}'}"

    def calibration(self, confusion: IntArray, sums: FloatArray) -> Calibration:
        """Compare survival at the horizon, in up to five parts of about as many rows by the predicted one.

        What happened is the life table's estimate, with its interval, see :meth:`survival_of`.

        Examples
        --------
        >>> rows = np.zeros((4, 4), dtype=int)  # 2 censored and 2 events in the first interval, 4 survive it
        >>> rows[:, 2] = 2, 2, 0, 4
        >>> found = Times((10.0,), 90.0).calibration(rows, np.array([[0.0] * 4, [0, 0, 4.8, 0], [0.0] * 4]))
        >>> found.predicted, found.observed.round(4)  # 2 of the 8 − 2/2 at risk
        (array([0.6]), array([0.7143]))
        """
        rows = confusion.sum(axis=0)
        part = np.minimum(_PARTS * (rows.cumsum() - rows / 2) / max(1, rows.sum()), _PARTS - 1).astype(int)
        found = []
        for each in np.unique(part[rows > 0]):
            here = part == each
            curve = self.survival_of(confusion[:, here].sum(axis=1))
            place = int(np.searchsorted(curve.at, self.horizon))
            ends = curve.survival[place], curve.low[place], curve.high[place]
            found.append((sums[1, here].sum() / rows[here].sum(), *ends))
        return Calibration(*np.array(found).reshape(-1, 4).T)

    @property
    def horizon(self) -> float:
        """The time at which predicted survival is compared with what happened: the middle cut."""
        return self.cuts[len(self.cuts) // 2]

    def answers(self, outputs: "torch.Tensor", num_bins: int) -> "torch.Tensor":
        """Return in which of C equal parts of [0, 1] the predicted survival at the horizon is.

        Examples
        --------
        >>> import torch
        >>> Times((10.0,), 90.0).answers(torch.tensor([[0.0, 0.0], [-9.0, 0.0]]), 4)  # 0.5 and nearly 1
        tensor([2, 3])
        """
        survival = self.predictions(outputs, [self.horizon])[..., 0]
        return (survival * num_bins).long().clamp(0, num_bins - 1)

    def table(
        self,
        outputs: "torch.Tensor",
        class_names: Sequence[str],  # noqa: ARG002
        moments: Sequence[float] | None = None,
        margin: float | None = None,  # noqa: ARG002
    ) -> "tuple[list[str], torch.Tensor]":
        """Return a column of survival at each time, and the risk, see :meth:`risks`.

        Examples
        --------
        >>> import torch
        >>> Times((10.0,), 90.0, unit="days").table(torch.zeros(1, 2), ())
        (['survival at 10 days', 'survival at 90 days', 'risk'], tensor([[ 0.5000,  0.2500, -0.3750]]))
        """
        import torch

        survival = self.predictions(outputs, moments)  # which checks the times
        risk = -self.predictions(outputs).mean(dim=-1, keepdim=True)
        return self._columns(moments), torch.cat([survival, risk], dim=-1)

    def _columns(self, moments: Sequence[float] | None = None) -> list[str]:
        """Name the columns of survival at given times, the intervals' ends unless given, and of the risk."""
        at, unit = [*self.cuts, self.last] if moments is None else moments, f" {self.unit}" * bool(self.unit)
        return [*(f"survival at {each:g}{unit}" for each in at), "risk"]

    def saved(
        self,
        truth: FloatArray,
        predicted: FloatArray,
        class_names: Sequence[str],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the time, whether the event happened then, survival at the intervals' ends, and the risk.

        Examples
        --------
        >>> list(Times((10.0,), 90.0).saved(np.array([[5.0, 1.0]]), np.zeros((1, 3)), ()))
        ['time', 'event', 'survival at 10', 'survival at 90', 'risk']
        """
        names, when = self._columns(), f"time ({self.unit})" if self.unit else "time"
        if truth.shape[1:] != (2,) or predicted.shape[1:] != (len(names),):
            raise ValueError(f"predictions must be of times, got shapes {truth.shape} and {predicted.shape}")
        known = {when: truth[:, 0], "event": truth[:, 1].astype(np.int64)}
        return known | dict(zip(names, predicted.T, strict=True))

    def survival_of(self, counts: IntArray) -> Survival:
        """Estimate the survival of a group at the inner ends of the intervals, with 95 % intervals.

        Source of the intervals: Kalbfleisch and Prentice, "The Statistical Analysis of Failure Time Data",
        1980: those of the logarithm of minus the logarithm of the survival, which stay within 0 and 1.

        Examples
        --------
        >>> found = Times((10.0,), 90.0).survival_of(np.array([2, 2, 0, 1]))  # censored, event; by interval
        >>> found.at, found.survival, found.at_risk
        (array([ 0., 10.]), array([1. , 0.5]), array([5., 1.]))
        """
        censored, events = np.asarray(counts, dtype=np.float64).reshape(self.num_intervals, 2).T
        survival, errors, at_risk = life_table(events, censored)
        survival, errors = (
            np.concatenate([[first], each[:-1]]) for first, each in ((1, survival), (0, errors))
        )
        inside = (survival > 0) & (survival < 1)
        logs = np.log(np.where(inside, survival, 0.5))
        reach = np.exp(NORMAL * errors / np.where(inside, -survival * logs, 1.0))
        low, high = (np.where(inside, np.exp(logs * each), survival) for each in (reach, 1 / reach))
        return Survival(np.array([0.0, *self.cuts]), survival, low, high, at_risk, self.unit)

    def risks(self, outputs: ArrayLike, correction: FloatArray | None = None) -> FloatArray:
        """Return each row's risk, minus its mean survival at the intervals' ends, in [−1, 0], shape (n,).

        Examples
        --------
        >>> Times((10.0,), 90.0).risks([[0.0, 0.0]])
        array([-0.375])
        """
        return -np.cumprod(1 - self.hazards(outputs, correction), axis=-1).mean(axis=-1)

    def correction(self, outputs: FloatArray, values: FloatArray | IntArray) -> FloatArray:
        """Return what is added to all hazards of a client, from its training rows, shape (J,).

        The one number δ that maximises the likelihood of its intervals at risk, with a normal prior of
        standard deviation 1, so that a client with few events moves little.

        Examples
        --------
        >>> times = Times((10.0,), 90.0)
        >>> rows = np.array([[5.0, 1.0]] * 30 + [[11.0, 0.0]] * 10)  # 30 of 40 in the first interval
        >>> times.correction(np.zeros((40, 2)), rows).round(2)  # ln 3 is 1.1: a little less
        array([0.97, 0.97])
        """
        outputs, values = np.asarray(outputs, dtype=np.float64), np.asarray(values, dtype=np.float64)
        if not len(values):
            return np.zeros(self.num_intervals)
        at_risk, happened = self.observed(values)
        logits = outputs + np.asarray(self.base or 0.0)
        logits, truth = np.clip(logits[at_risk], -30, 30), happened[at_risk]
        delta = 0.0
        for _ in range(_STEPS):
            hazards = 1 / (1 + np.exp(-(logits + delta)))
            step = ((hazards - truth).sum() + delta) / ((hazards * (1 - hazards)).sum() + 1)
            delta = float(np.clip(delta - np.clip(step, -1, 1), -_FURTHEST, _FURTHEST))
            if abs(step) < 1e-9:
                break
        return np.full(self.num_intervals, delta)

    def without_inputs(self, values: FloatArray | IntArray, num_bins: int) -> FloatArray:  # noqa: ARG002
        """Return the outputs of the hazards that a client's training rows have, shape (J,).

        Of d events among n at risk the hazard is (d + h)/(n + 1), where h is that of all its intervals, or ½
        without any.

        Examples
        --------
        >>> times = Times((10.0,), 90.0)
        >>> outputs = times.without_inputs([[5, 1], [55, 0], [60, 0], [70, 1]], 4)
        >>> times.hazards([outputs])  # 1 of 4 and 1 of 3, 2/7 in all: (1 + 2/7)/5 and (1 + 2/7)/4
        array([[0.25714286, 0.32142857]])
        """
        values = np.asarray(values, dtype=np.float64).reshape(-1, 2)
        at_risk, happened = self.observed(values)
        events, numbers = happened.sum(axis=0), at_risk.sum(axis=0)
        overall = events.sum() / numbers.sum() if numbers.sum() else 0.5
        hazards = np.clip((events + overall) / (numbers + 1), 1e-6, 1 - 1e-6)
        return np.log(hazards / (1 - hazards)) - np.asarray(self.base or 0.0)

    def order(
        self, outputs: FloatArray, values: FloatArray | IntArray, turned: bool = False
    ) -> tuple[FloatArray, FloatArray, int]:
        """Count comparable pairs, and those in which the earlier event has the higher risk.

        Examples
        --------
        >>> times, rows = Times((10.0,), 90.0), np.array([[5, 1], [20, 0], [25, 1]])
        >>> times.order([[1.0, 0.0], [0.0, 0.0], [0.5, 0.0]], rows)
        (array([2., 1., 1.]), array([2., 1., 1.]), 2)
        """
        values = np.asarray(values, dtype=np.float64).reshape(-1, 2)
        happened = (values[:, 1] > 0) != turned
        return *concordance_by_row(values[:, 0], happened, self.risks(outputs)), int(happened.sum())

    def least_errors(self, values: FloatArray) -> dict[str, float]:
        """Return that of concordance: of a model that says nothing, each event's share of pairs is uniform.

        Examples
        --------
        >>> Times((10.0,), 90.0).least_errors(np.array([[5.0, 1.0], [20.0, 1.0], [30.0, 1.0], [40.0, 0.0]]))
        {'concordance': 0.16666666666666666}
        """
        events = int((np.asarray(values).reshape(-1, 2)[:, 1] > 0).sum())
        return {"concordance": 1 / math.sqrt(12 * events)} if events else {}

    turns_events: ClassVar[bool] = True

    def figures(self, outputs: FloatArray, values: FloatArray | IntArray) -> dict[str, float]:
        """Compute Harrell's concordance and the integrated Brier score.

        Returns
        -------
        ``concordance``, and ``integrated_brier`` over the inner ends of the intervals, by name.

        Examples
        --------
        >>> Times((10.0, 30.0), 90.0).figures(np.zeros((2, 3)), [[5, 1], [50, 1]])["concordance"]
        0.5
        """
        values = np.asarray(values, dtype=np.float64).reshape(-1, 2)
        time, event = values[:, 0], values[:, 1] > 0
        score = float("nan")
        if len(values) and len(self.cuts) > 1:
            moments = np.array(self.cuts)
            score = integrated_brier(time, event, self.survival(outputs, moments), moments)
        return {"concordance": concordance(time, event, self.risks(outputs)), "integrated_brier": score}


def levels(intervals: int = INTERVALS) -> FloatArray:
    """List the levels of the quantiles of event times that clients agree on.

    Examples
    --------
    >>> levels(4)
    array([0.25, 0.5 , 0.75])
    """
    return np.arange(1, intervals) / intervals


def _apart(events: IntArray, rows: IntArray, site: int, others: Sequence[int]) -> float:
    """Return the probability that a site's share of events differs from the others' as much by chance."""
    from scipy.stats import fisher_exact

    own, rest = events[site], events[list(others)].sum()
    table = [[own, rows[site] - own], [rest, rows[list(others)].sum() - rest]]
    return float(fisher_exact(np.array(table)).pvalue)


def _like(values: Any, numbers: ArrayLike) -> Any:
    """Return numbers as an array or a tensor, as `values` are, of their type and on their device."""
    if isinstance(values, np.ndarray):
        return np.asarray(numbers)
    return values.new_tensor(np.asarray(numbers).tolist())
