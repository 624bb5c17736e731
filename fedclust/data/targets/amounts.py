"""Amounts: a number per row, such as a length of stay, a laboratory value or a price."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from fedclust.data.targets.base import LARGEST, NORMAL, Calibration, Numbers, NumberWords, check_no_moments
from fedclust.metrics.times import concordance_by_row
from fedclust.proof.words import Words
from fedclust.support.checks import check_entries, check_shapes, check_value
from fedclust.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import torch

_TENTHS = 10
_SPAN = 2.5  # of a network's output over the range; of normal amounts, one unit is one standard deviation
_MOST = 6.0  # a training row counts as at most so far from the middle: a typing error moves no model far
_NINE_OF_TEN = 1.644854  # times the standard deviation, of normal residuals
_HUBER = 1.0  # in a network's units
_WITHIN = 0.2  # of the range: of normal amounts, half a standard deviation


class AmountWords(NumberWords):
    """What results say of amounts."""

    label = "amount"
    bin, bins = "tenth of all amounts", "tenths of all amounts"
    bin_shares = label_shares = "shares of the amounts' tenths"
    counts = "numbers of rows in each tenth of all amounts"
    guess = "each client's mean amount"
    correction = "correction by each client's mean residual"
    own_correction = "correction by its mean residual"
    exchanged = "amounts look turned round"
    predicted = "a column of amounts"

    def __init__(self, target: "Amounts") -> None:
        self._right, unit = target.right, f" {target.unit}" if target.unit else ""
        self._digits = 3 + max(0, -math.floor(math.log10(target.high - target.low)))
        self._name(self._right.removeprefix("predicted "), target.unit)
        self.scale = (
            f"Score: twice the squared error over the squared range of amounts, {target.low:.4g} to "
            f"{target.high:.4g}{unit}, beyond which an amount counts as its end."
        )

    def _name(self, within: str, unit: str) -> None:
        self.share, self.shares, self.unit = f"share {within}", f"shares {within}", unit
        self.compared = (("accuracy", self.share), ("r2", "R²"))
        self.figures = (
            ("rmse", f"root mean squared error{unit and ', '}{unit}", self._digits),
            ("mae", f"mean absolute error{unit and ', '}{unit}", self._digits),
            ("r2", "R²", 3),
        )

    def beside(self, others: Iterable[Words]) -> "AmountWords":
        """Return words that hold of other runs, too, whose range or unit may be another one.

        Examples
        --------
        >>> days, weeks = (Amounts(0, 10, (), unit=unit).words for unit in ("days", "weeks"))
        >>> days.beside([days]).share, days.beside([weeks]).share
        ('share within 2 days', "share within a fifth of a run's range")
        """
        alike, every = copy(self), [each for each in others if isinstance(each, AmountWords)]
        if any(each.share != self.share for each in every):
            same = all(each.unit == self.unit for each in every)
            alike._name("within a fifth of a run's range", self.unit if same else "")
        return alike

    def in_shares(self, groups: float, common: float) -> str:
        """Compare the shares of rows that are predicted within an error.

        Examples
        --------
        >>> Amounts(0, 10, (), unit="days").words.in_shares(0.75, 0.5)
        '0.750 instead of 0.500 of test rows predicted within 2 days'
        """
        return f"{groups:.3f} instead of {common:.3f} of test rows {self._right}"

    def renamed(self, fits: FloatArray, classes: Sequence[str]) -> tuple[str, str, str]:  # noqa: ARG002
        """Return that large and small amounts look exchanged."""
        return self.exchanged, "much", "little"


@dataclass(frozen=True)
class Amounts(Numbers):
    """An amount: one output, squared error.

    A network's output is the amount from the middle of a range, where 2.5 is the range's width. A row's score
    is the squared error of the clipped prediction on the clipped amount: proper for the mean of the clipped
    amount, and bounded, so that no single row decides.

    Attributes
    ----------
    low, high
        The range: where a tenth of all clients' training amounts end and the last tenth begins, low < high.
    edges
        Inner ends of the bins, increasing, tenths of all training amounts, shape (C − 1,).
    unit
        The amounts' unit, for people.
    error
        Loss of a row: half the ``"squared"`` error, the ``"absolute"`` error, or ``"huber"``, the first up to
        1 in a network's units and the second beyond, less a half.

    Raises
    ------
    ValueError
        If the range is empty, or the edges do not increase.
    """

    kind: ClassVar[str] = "amounts"
    figure_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "rmse": (0.0, LARGEST),
        "mae": (0.0, LARGEST),
        "r2": (-LARGEST, 1.0),
    }
    compared_range: ClassVar[tuple[float, float] | None] = (-LARGEST, LARGEST)
    tells: ClassVar[tuple[str, float] | None] = ("r2", 0.0)
    width: ClassVar[int] = 1

    low: float
    high: float
    edges: tuple[float, ...]
    unit: str = ""
    error: Literal["squared", "huber", "absolute"] = "squared"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            check_value(f"target.{name}", getattr(self, name), "finite")
        if not self.low < self.high:
            raise ValueError(
                f"target.low must be < target.high, got {self.low:g} and {self.high:g}: there is nothing to "
                "learn of amounts of which eight in ten are alike, as numbers of single precision"
            )
        if (np.diff(self.edges) <= 0).any():
            raise ValueError(f"target.edges must increase, got {list(self.edges)}")
        check_value("target.error", self.error, Literal["squared", "huber", "absolute"])

    @classmethod
    def agreed(cls, values: FloatArray, **given: Any) -> "Amounts":
        """Make the target of all clients' training amounts, shape (N,), and of other attributes.

        No bin is empty: where a tenth of the amounts or more are the least one, bins begin above it.

        Examples
        --------
        >>> Amounts.agreed(np.arange(1001.0)).high
        900.0
        >>> Amounts.agreed(np.repeat([0.0, 1.0, 2.0], 100)).edges
        (1.0, 2.0)
        """
        made = cls.of(np.quantile(values, levels()).tolist(), **given)
        return replace(made, edges=tuple(edge for edge in made.edges if edge > values.min()))

    def agreed_again(self, values: FloatArray) -> "Amounts":
        """Make the target of other training amounts, shape (N,), with this one's unit and loss.

        Examples
        --------
        >>> Amounts(0.0, 1.0, (), unit="days").agreed_again(np.arange(1001.0)).unit
        'days'
        """
        return self.agreed(values, unit=self.unit, error=self.error)

    @classmethod
    def strata(cls, values: FloatArray | IntArray) -> IntArray:
        """Return each row's tenth of a site's amounts.

        Raises
        ------
        ValueError
            If the amounts are all alike.

        Examples
        --------
        >>> Amounts.strata(np.arange(20.0))[:4]
        array([0, 0, 1, 1])
        """
        if (values == values[0]).all():
            raise ValueError("amounts must differ between rows, all are alike")
        return np.searchsorted(np.quantile(values, levels()), values, side="right")

    @classmethod
    def faults(cls, values: FloatArray) -> Iterator[tuple[str, int, BoolArray]]:
        """List infinite amounts, and amounts that are all alike but for a tenth at each end.

        Examples
        --------
        >>> [(name, rows.tolist()) for name, _, rows in Amounts.faults(np.array([1.0, np.inf, 2.0]))]
        [('infinite', [False, True, False])]
        """
        finite = np.abs(values) <= np.finfo(np.float32).max
        if not finite.all():
            yield "infinite", 0, ~finite
        if finite.any():
            low, *_, high = np.quantile(values[finite], levels())
            if low == high:
                yield "one amount", 0, np.ones(len(values), dtype=bool)

    @classmethod
    def read(cls, values: Any, num_bins: int | None = None) -> FloatArray:
        """Convert amounts to float32, shape (N,); a single column is one, too.

        Examples
        --------
        >>> Amounts.read([[1], [2]])
        array([1., 2.], dtype=float32)
        """
        amounts = super().read(values, num_bins)
        return amounts[:, 0] if amounts.ndim == 2 and amounts.shape[1] == 1 else amounts

    def opposite(self, values: FloatArray) -> FloatArray:
        """Return the amounts mirrored at the middle of the range.

        Examples
        --------
        >>> Amounts(0, 10, ()).opposite(np.array([1.0, 12.0]))
        array([ 9., -2.])
        """
        return self.low + self.high - values

    @classmethod
    def of(cls, quantiles: Sequence[float], **given: Any) -> "Amounts":
        """Make the target of agreed quantiles.

        Parameters
        ----------
        quantiles
            Those of :func:`levels`, of all clients' training amounts, not decreasing.
        given
            Other attributes.

        Examples
        --------
        >>> Amounts.of([1.0, 2.0, 2.0, 5.0])
        Amounts(low=1.0, high=5.0, edges=(1.0, 2.0, 5.0), unit='', error='squared')
        """
        edges = tuple(dict.fromkeys(map(float, quantiles)))
        return cls(edges[0], edges[-1], edges, **given)

    @property
    def within(self) -> float:
        """Largest error of a prediction that counts as right: a fifth of the range."""
        return (self.high - self.low) * _WITHIN

    @property
    def right(self) -> str:  # type: ignore[override]
        """What :meth:`hits` counts."""
        return f"predicted within {self.within:.3g}{f' {self.unit}' if self.unit else ''}"

    @property
    def words(self) -> Words:
        """What a site's report says of it."""
        return AmountWords(self)

    def outputs(self, num_bins: int) -> int:  # noqa: ARG002
        """Return 1."""
        return 1

    loss_unit: ClassVar[str] = ""
    predicted: ClassVar[str] = "amounts"

    @property
    def column(self) -> str:
        """Name of the column of predictions."""
        return f"amount ({self.unit})" if self.unit else "amount"

    def predictions(
        self,
        outputs: "torch.Tensor",
        moments: Sequence[float] | None = None,
        num_bins: int | None = None,  # noqa: ARG002
    ) -> "torch.Tensor":
        """Return the amounts in their unit, shape (n,).

        Examples
        --------
        >>> import torch
        >>> Amounts(0, 10, ()).predictions(torch.tensor([[1.25], [0.0]]))
        tensor([10.,  5.])
        """
        check_no_moments(self, moments)
        return cast("torch.Tensor", self.amounts(outputs))

    def table(
        self,
        outputs: "torch.Tensor",
        class_names: Sequence[str],  # noqa: ARG002
        moments: Sequence[float] | None = None,
        margin: float | None = None,
    ) -> "tuple[list[str], torch.Tensor]":
        """Return a column of amounts and, if a margin is known, the ends of the intervals.

        Examples
        --------
        >>> import torch
        >>> Amounts(0, 10, (), unit="days").table(torch.tensor([[1.25]]), (), margin=2.0)
        (['amount (days)', '90 % from', '90 % to'], tensor([[10.,  8., 12.]]))
        """
        amounts = self.predictions(outputs, moments)[:, None]
        if margin is None:
            return [self.column], amounts
        return [self.column, "90 % from", "90 % to"], amounts + amounts.new_tensor([0.0, -margin, margin])

    def margin(self, figures: Mapping[str, ArrayLike], rows: ArrayLike) -> float | None:
        """Return 1.645 times the root mean squared error of all rows, as if residuals were normal.

        Examples
        --------
        >>> round(Amounts(0, 10, ()).margin({"rmse": [1.0, 7.0]}, [10, 10]), 3)  # of 5, the root of 50/2
        8.224
        """
        errors, weights = np.asarray(figures.get("rmse", ()), dtype=float), np.asarray(rows, dtype=float)
        if not (known := np.isfinite(errors)).any() or not weights[known].sum():
            return None
        return float(_NINE_OF_TEN * np.sqrt(np.average(np.square(errors[known]), weights=weights[known])))

    def saved(
        self,
        truth: FloatArray,
        predicted: FloatArray,
        class_names: Sequence[str],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the amount, and the predicted one.

        Examples
        --------
        >>> list(Amounts(0, 10, (), unit="days").saved(np.array([4.0]), np.array([[5.0]]), ()))
        ['amount (days)', 'predicted amount (days)']
        """
        if truth.ndim != 1 or predicted.shape[1:] != (1,):
            raise ValueError(
                f"predictions must be of amounts, got shapes {truth.shape} and {predicted.shape}"
            )
        return {self.column: truth, f"predicted {self.column}": predicted[:, 0]}

    def answers(self, outputs: "torch.Tensor", num_bins: int) -> "torch.Tensor":  # noqa: ARG002
        """Return the tenth of the predicted amount.

        Examples
        --------
        >>> import torch
        >>> Amounts(0, 10, (2.0, 5.0)).answers(torch.tensor([[0.0], [-1.25]]), 3)  # 5 and 0
        tensor([2, 0])
        """
        import torch

        return torch.bucketize(self.amounts(outputs), outputs.new_tensor(self.edges), right=True)

    def compared(self, outputs: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the amounts, and the predicted ones."""
        predicted, known = self._checked(outputs, values, None)
        return known, predicted

    @property
    def calibrated(self) -> str:  # type: ignore[override]
        """What :meth:`calibration` compares."""
        return self.column

    def calibration(self, confusion: IntArray, sums: FloatArray) -> Calibration:
        """Compare mean amounts by the tenth of the predicted one.

        Examples
        --------
        >>> rows = np.array([1.0, 3.0]), np.array([2.0, 2.0])  # known and predicted
        >>> counted = np.array([[2, 0], [0, 0]]), np.array([[4.0, 0.0], [4.0, 0.0], [2.0, 0.0]])
        >>> found = Amounts(0, 10, (5.0,)).calibration(*counted)
        >>> found.predicted, found.observed, found.spread
        (array([2.]), array([2.]), array([1.]))
        """
        rows = confusion.sum(axis=0)
        number = rows[rows > 0]
        observed, predicted, squares = sums[:, rows > 0] / number
        # The errors' variance around their mean, which is that of the amounts given the prediction.
        variance = np.maximum(squares - (observed - predicted) ** 2, 0.0)
        reach = NORMAL * np.sqrt(variance / np.maximum(number - 1, 1))
        return Calibration(predicted, observed, observed - reach, observed + reach, np.sqrt(squares))

    def bins(self, values: FloatArray | IntArray) -> IntArray:
        """Return the bin of each amount, 0 to C − 1, shape (n,).

        Examples
        --------
        >>> Amounts(0, 10, (2.0, 5.0)).bins([1, 2, 7])
        array([0, 1, 2])
        """
        return np.searchsorted(self.edges, np.asarray(values, dtype=np.float64), side="right")

    def bin_names(self) -> tuple[str, ...]:
        """Return a name for each bin.

        Examples
        --------
        >>> Amounts(0, 10, (2.0, 5.0)).bin_names()
        ('< 2', '2 to 5', '≥ 5')
        """
        ends = [f"{edge:g}" for edge in self.edges]
        if not ends:
            return ("all",)
        between = [f"{low} to {high}" for low, high in pairwise(ends)]
        return f"< {ends[0]}", *between, f"≥ {ends[-1]}"

    def scaled(self, values: Any) -> Any:
        """Return amounts in a network's units; a tensor or an array, as given.

        Examples
        --------
        >>> Amounts(0, 10, ()).scaled(np.array([0.0, 5.0, 10.0]))
        array([-1.25,  0.  ,  1.25])
        """
        return (values - (self.low + self.high) / 2) * (_SPAN / (self.high - self.low))

    def amounts(self, outputs: Any, correction: ArrayLike | None = None) -> Any:
        """Return the predicted amounts, shape (n,); a tensor or an array, as given.

        Parameters
        ----------
        outputs
            A network's, shape (n, 1).
        correction
            Added to them, shape (1,).

        Examples
        --------
        >>> Amounts(0, 10, ()).amounts(np.array([[1.25], [0.0]]))
        array([10.,  5.])
        """
        added = outputs[..., 0] if correction is None else outputs[..., 0] + float(np.asarray(correction)[0])
        return added * ((self.high - self.low) / _SPAN) + (self.low + self.high) / 2

    def loss(self, outputs: "torch.Tensor", values: "torch.Tensor") -> "torch.Tensor":
        """Compute the loss of each row, shape (n,), in a network's units.

        Examples
        --------
        >>> import torch
        >>> Amounts(0, 10, ()).loss(torch.tensor([[0.25]]), torch.tensor([10.0]))  # (0.25 − 1.25)²/2
        tensor([0.5000])
        """
        apart = outputs[..., 0] - self.scaled(values).clamp(-_MOST, _MOST)
        if self.error == "squared":
            return apart.square() / 2
        if self.error == "absolute":
            return apart.abs()
        from torch.nn import functional

        return functional.huber_loss(
            apart, apart.new_zeros(()).expand_as(apart), reduction="none", delta=_HUBER
        )

    def scores(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Compute each row's squared error within the range, over its square, times two, shape (n,).

        Raises
        ------
        ValueError
            If the shapes do not fit, or an output is not finite.

        Examples
        --------
        >>> Amounts(0, 10, ()).scores([[1.25], [9.0]], [5.0, 99.0])  # 2·(5/10)², and both at the upper end
        array([0.5, 0. ])
        """
        predicted, values = self._checked(outputs, values, correction)
        ends = self.low, self.high
        apart = (np.clip(predicted, *ends) - np.clip(values, *ends)) / (self.high - self.low)
        return 2 * np.square(apart)

    def hits(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Return whether each prediction is within a fifth of the range, 1.0 or 0.0, shape (n,).

        Examples
        --------
        >>> Amounts(0, 10, ()).hits([[0.0], [0.0]], [6.5, 7.5])
        array([1., 0.])
        """
        predicted, values = self._checked(outputs, values, correction)
        return (np.abs(predicted - values) <= self.within).astype(np.float64)

    def correction(self, outputs: FloatArray, values: FloatArray | IntArray) -> FloatArray:
        """Return the mean residual of a client's training rows, as far as it exceeds its error, shape (1,).

        The mean m̄ of n residuals with standard error s counts m̄·max(0, 1 − s²/m̄²), the positive-part
        estimate of James and Stein (1961): a client with few rows moves little.

        Examples
        --------
        >>> amounts = [7.0, 11.0]  # 0.5 and 1.5 in a network's units: 1 − 0.25/1
        >>> Amounts(0, 10, ()).correction(np.zeros((2, 1)), amounts).round(6)
        array([0.75])
        """
        outputs, values = np.asarray(outputs, dtype=np.float64), np.asarray(values, dtype=np.float64)
        apart = np.clip(self.scaled(values), -_MOST, _MOST) - outputs[..., 0]
        if len(apart) < 2 or not (mean := float(apart.mean())):
            return np.zeros(1)
        variance = float(apart.var(ddof=1)) / len(apart)
        return np.array([mean * max(0.0, 1 - variance / mean**2)])

    def without_inputs(self, values: FloatArray | IntArray, num_bins: int) -> FloatArray:  # noqa: ARG002
        """Return the output that predicts the mean of the clipped training amounts, shape (1,).

        Examples
        --------
        >>> Amounts(0, 10, ()).without_inputs([0.0, 99.0], 1)  # 0 and 10: the middle
        array([0.])
        """
        values = np.asarray(values, dtype=np.float64)
        return np.array(
            [float(self.scaled(np.clip(values, self.low, self.high)).mean()) if len(values) else 0.0]
        )

    def order(
        self,
        outputs: FloatArray,
        values: FloatArray | IntArray,
        turned: bool = False,  # noqa: ARG002
    ) -> tuple[FloatArray, FloatArray, int]:
        """Count pairs of rows with different amounts, and those whose predictions are in the same order.

        Examples
        --------
        >>> Amounts(0, 10, ()).order([[0.0], [2.0], [1.0]], [1.0, 2.0, 3.0])
        (array([2., 2., 2.]), array([2., 1., 1.]), 3)
        """
        predicted, values = self._checked(outputs, values, None)
        pairs, in_order = concordance_by_row(values, np.ones(len(values)), -predicted)
        return pairs, in_order, len(values)

    def ratio(self, outputs: FloatArray, values: FloatArray | IntArray) -> tuple[float, float] | None:
        """Compare the mean prediction with the mean amount; None for amounts below 0, which have no unit.

        Examples
        --------
        >>> logarithm, _ = Amounts(0, 10, ()).ratio([[0.0], [0.0]], [0.5, 2.0])
        >>> round(float(np.exp(logarithm)), 6)  # 5 and 1.25
        4.0
        """
        predicted, values = self._checked(outputs, values, None)
        if len(values) < 2 or values.min() < 0 or not values.mean() or predicted.mean() <= 0:
            return None
        parts = (each.std(ddof=1) / each.mean() for each in (predicted, values))
        error = float(np.sqrt(sum(np.square(part) for part in parts) / len(values)))
        return float(np.log(predicted.mean() / values.mean())), max(error, 1e-6)

    def figures(self, outputs: FloatArray, values: FloatArray | IntArray) -> dict[str, float]:
        """Compute the root mean squared and the mean absolute error in the amounts' unit, and R².

        Returns
        -------
        ``rmse``, ``mae`` and ``r2`` by name; R² is against the mean of these rows, NaN if they are all alike.

        Examples
        --------
        >>> Amounts(0, 10, ()).figures([[0.0], [0.0]], [2.0, 8.0])
        {'rmse': 3.0, 'mae': 3.0, 'r2': 0.0}
        """
        predicted, values = self._checked(outputs, values, None)
        if not len(values):
            return dict.fromkeys(self.figure_ranges, float("nan"))
        errors, spread = predicted - values, float(values.var())
        squared = float(np.square(errors).mean())
        return {
            "rmse": float(np.sqrt(squared)),
            "mae": float(np.abs(errors).mean()),
            "r2": 1 - squared / spread if spread else float("nan"),
        }

    def _checked(
        self, outputs: ArrayLike, values: ArrayLike, correction: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]:
        outputs, values = np.asarray(outputs, dtype=np.float64), np.asarray(values, dtype=np.float64)
        check_shapes(values=(values, "rows?"), outputs=(outputs, "rows? outputs"))
        check_entries("finite", outputs=outputs)
        return self.amounts(outputs, correction), values


def levels() -> FloatArray:
    """List the levels of the quantiles that clients agree on: tenths.

    Examples
    --------
    >>> levels()[:3]
    array([0.1, 0.2, 0.3])
    """
    return np.arange(1, _TENTHS) / _TENTHS
