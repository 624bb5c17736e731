"""What every kind of target can do."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedclust.metrics import Outcomes, error_of
from fedclust.proof.coalitions import Fit, fit_of_pairs, in_pairs
from fedclust.proof.words import CLASSES as WORDS, Words
from fedclust.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import torch


LARGEST = sys.float_info.max
NORMAL = 1.959964  # 97.5 % of a normal distribution are below
_GROUPS = 10
_MOST_BLOCKS = 200  # of a site's amounts, or of its times with and without the event each
_MOST_ROWS = 1e6  # that an agreement counts with, whatever sites state


@dataclass(frozen=True)
class Block:
    """Neighbouring training values of a site.

    Attributes
    ----------
    rows
        Number of rows.
    mean
        Their mean amount; or their mean time, and their event, 0 or 1.
    spread
        Standard deviation of the amounts or times.
    """

    rows: int
    mean: tuple[float, ...]
    spread: float = 0.0

    def values(self, rows: int) -> FloatArray:
        """Return values with this mean and spread, at equal distances, shape (rows, 1 or 2).

        Examples
        --------
        >>> Block(2, (10.0, 1.0), spread=3.0).values(2)
        array([[ 7.,  1.],
               [13.,  1.]])
        """
        apart = 2 * np.arange(rows) - (rows - 1.0)
        first = self.mean[0] + self.spread * apart / np.sqrt(max(rows**2 - 1, 1) / 3)
        return np.column_stack([first, *(np.full(rows, each) for each in self.mean[1:])])


_LEARNT = 0.02  # of the score without inputs


@dataclass(frozen=True, eq=False)
class Scores:
    """A model's scores on one client's rows.

    Attributes
    ----------
    figures
        ``num-examples``, ``loss``, ``accuracy``, ``balanced-accuracy``, after a full evaluation ``macro-f1``
        and ``auc`` and the target's own, see :attr:`Target.figure_ranges`, and the user's own metrics; NaN if
        undefined.
    outcomes
        After a full evaluation of classes, the counts from which metrics over all clients' rows are computed.
    """

    figures: dict[str, float]
    outcomes: Outcomes | None = None


@dataclass(frozen=True, eq=False)
class Survival:
    """A group's survival curve.

    Attributes
    ----------
    at
        Times, beginning with 0, shape (m,).
    survival, low, high
        Probability of no event until then, and the ends of its 95 % interval, shape (m,).
    at_risk
        Rows that reach each time, shape (m,).
    unit
        The times' unit.
    """

    at: FloatArray
    survival: FloatArray
    low: FloatArray
    high: FloatArray
    at_risk: FloatArray
    unit: str = ""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Means of what was predicted and of what happened, of m parts of the rows.

    Attributes
    ----------
    predicted, observed
        Means of each part, shape (m,).
    low, high
        Ends of the 95 % interval of the observed mean, shape (m,).
    spread
        Root mean squared error in each part, shape (m,); None where a row has no error.
    """

    predicted: FloatArray
    observed: FloatArray
    low: FloatArray
    high: FloatArray
    spread: FloatArray | None = None


def check_no_moments(target: "Target", moments: Sequence[float] | None) -> None:
    """Raise an error if times are asked for that a target does not have."""
    if moments is not None:
        raise ValueError(f"times must be None for {target.kind}, got {list(moments)}")


class Target(ABC):
    """What a client learns to predict.

    A row's *value* is what is known of it: a class index; an amount; or a time and an event. A client's
    *correction* is added to all its outputs, because its rows differ from those that trained the model. A row
    is a *hit* as far as its prediction is right: the mean of a client's hits is called its accuracy.
    """

    kind: ClassVar[str]
    """``"classes"``, ``"amounts"`` or ``"times"``."""

    right: str
    """What a hit is, in words that follow a share of rows."""

    figure_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """What people decide by besides the accuracy, see :meth:`figures`, and the range of each."""

    compared_range: ClassVar[tuple[float, float] | None] = None
    """Range of the numbers of :meth:`compared`; None where there are none."""

    tells: ClassVar[tuple[str, float] | None] = None
    """One of :attr:`figure_ranges` that tells whether a model has learnt anything, larger is better, and its
    value without inputs; None for Brier scores and balanced accuracies."""

    fits_correction: ClassVar[bool] = True
    """Whether a client fits its correction to its training rows; if not, it is sent one."""

    loss: Callable[[Any, Any], Any] | None = None
    """Loss of each row, shape (n,), from outputs and values; None for the run's cross-entropy."""

    numeric: ClassVar[bool]
    """Whether rows have numbers, which fall into bins; if not, their classes are the bins."""

    per_row: ClassVar[int] = 1
    """Numbers of a row's value."""

    kinds: ClassVar[int] = 1
    """Number of kinds of rows, whose totals matter: every `kinds`-th bin is of one kind."""

    width: ClassVar[int] = 0
    """Number of outputs that are enough for a network, whatever the data; 0 for one per bin."""

    def reported_ranges(self) -> dict[str, tuple[float, float]]:
        """Return the range of each figure and of its standard error; both may be NaN, neither infinite.

        Examples
        --------
        >>> from fedclust.data.targets import Times
        >>> list(Times((10.0,), 90.0).reported_ranges())
        ['concordance', 'concordance_error', 'integrated_brier', 'integrated_brier_error']
        """
        ranges: dict[str, tuple[float, float]] = {}
        for name, each in self.figure_ranges.items():
            ranges |= {name: each, error_of(name): (0.0, LARGEST)}
        return ranges

    @classmethod
    @abstractmethod
    def agreed(cls, values: FloatArray, **given: Any) -> "Target":
        """Make the target of all clients' training values, shape (N,) or (N, 2), and of other attributes."""

    @abstractmethod
    def agreed_again(self, values: FloatArray) -> "Target":
        """Make the target of other training values; what people have chosen stays."""

    @classmethod
    @abstractmethod
    def read(cls, values: Any, num_bins: int | None = None) -> Any:
        """Check what people give as rows' values, and convert it.

        Parameters
        ----------
        values
            Numbers, shape (n,), (n, positions) or (n, 2).
        num_bins
            Number of classes, if known.

        Raises
        ------
        ValueError
            If a value is not of this kind.
        """

    @classmethod
    @abstractmethod
    def strata(cls, values: FloatArray | IntArray) -> IntArray:
        """Return the stratum of each of a site's rows, by which its test rows are drawn, shape (n,).

        Raises
        ------
        ValueError
            If nothing can be learned from the values.
        """

    @classmethod
    def faults(cls, values: FloatArray) -> Iterator[tuple[str, int, BoolArray]]:  # noqa: ARG003
        """List what keeps rows from being learned from.

        Parameters
        ----------
        values
            None missing, shape (n,), or (n, 2).

        Yields
        ------
        A fault's name, see :mod:`fedclust.data.check`; the column of the values that has it; and which rows
        have it, shape (n,).
        """
        yield from ()

    @classmethod
    @abstractmethod
    def stated(cls, values: FloatArray, floor: int) -> tuple["Block", ...]:
        """Describe a site's training values, so that sites can agree on a target.

        Parameters
        ----------
        values
            Shape (n,), or (n, 2).
        floor
            Least number of rows of a block.
        """

    @classmethod
    @abstractmethod
    def from_stated(cls, blocks: Iterable["Block"], **given: Any) -> "Target":
        """Make the target of all sites' blocks, and of other attributes.

        Raises
        ------
        ValueError
            If the values are no target's, or there are none.
        """

    def coded(self, labels: Any, class_names: Sequence[str], numbered: bool = False) -> Any:  # noqa: ARG002
        """Return rows' values as :meth:`read` takes them, from what a table has.

        Parameters
        ----------
        labels
            A column, or columns.
        class_names
            Names of the C classes.
        numbered
            Whether the run has named classes whose labels are numbers, so that a label may be an index.

        Raises
        ------
        ValueError
            If a label is not among the names, nor an index of them where that may be.
        """
        return labels

    @abstractmethod
    def outputs(self, num_bins: int) -> int:
        """Return how many outputs O a network needs."""

    @abstractmethod
    def bins(self, values: FloatArray | IntArray) -> IntArray:
        """Return the bin of each row, from 0, shape (n,)."""

    @abstractmethod
    def bin_names(self) -> tuple[str, ...]:
        """Return a name for each bin; nothing where the data name them."""

    @abstractmethod
    def scores(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Compute each row's proper score in [0, 2], shape (n,): 0 for a prediction certain and right."""

    @abstractmethod
    def hits(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Return how right each row's prediction is, in [0, 1], shape (n,)."""

    @abstractmethod
    def without_inputs(self, values: FloatArray | IntArray, num_bins: int) -> FloatArray:
        """Return the outputs, shape (O,), of the best prediction without inputs, from training values."""

    @abstractmethod
    def correction(self, outputs: FloatArray, values: FloatArray | IntArray) -> FloatArray:
        """Fit a client's correction, shape (O,).

        Parameters
        ----------
        outputs, values
            The model's outputs for the client's training rows, shape (n, O), and their values.
        """

    @abstractmethod
    def predictions(
        self,
        outputs: "torch.Tensor",
        moments: Sequence[float] | None = None,
        num_bins: int | None = None,
    ) -> "torch.Tensor":
        """Return what is predicted, from a network's outputs.

        Parameters
        ----------
        outputs
            Corrected outputs, shape (n, O), or (n, positions, O) for classes; a network may have more than O.
        moments
            Times at which survival is predicted, > 0, shape (m,); the intervals' ends unless given.
        num_bins
            Number of classes C, as a network may have more outputs; all outputs unless given.
        """

    @abstractmethod
    def table(
        self,
        outputs: "torch.Tensor",
        class_names: Sequence[str],
        moments: Sequence[float] | None = None,
        margin: float | None = None,
    ) -> "tuple[list[str], torch.Tensor]":
        """Return the names of the columns of a table of predictions, M of them, and its values, shape (n, M).

        Parameters
        ----------
        outputs, moments
            As for :meth:`predictions`.
        class_names
            Names of the C classes.
        margin
            As of :meth:`margin`.
        """

    @abstractmethod
    def saved(self, truth: FloatArray, predicted: FloatArray, class_names: Sequence[str]) -> dict[str, Any]:
        """Return columns of a table of test rows: what is known of each, and what is predicted.

        Parameters
        ----------
        truth
            The rows' values, shape (n,), (n, positions), or (n, 2).
        predicted
            Those of :meth:`table`, shape (n, M), or (n, positions, M).
        class_names
            Names of the C classes.

        Raises
        ------
        ValueError
            If the values cannot be of this target and these classes.
        """

    predicted: ClassVar[str] = "predictions"
    """What :meth:`predictions` are."""

    loss_unit: ClassVar[str] = " nats"
    """Unit of :attr:`loss`, after a space."""

    def log_chances(self, outputs: "torch.Tensor") -> "torch.Tensor | None":  # noqa: ARG002
        """Return each row's log-probability of each class, shape (n, C); None where there are no classes."""
        return None

    def named(self, table: FloatArray, class_names: Sequence[str]) -> list[str]:  # noqa: ARG002
        """Return the most probable class of each row of :meth:`table`; empty where there are no classes."""
        return []

    def guess(self, values: "torch.Tensor", num_bins: int) -> float:
        """Return the mean loss of a network that returns 0 for every row: what a guess has.

        Parameters
        ----------
        values
            The rows' values.
        num_bins
            C.
        """
        if self.loss is None:
            return float(np.log(num_bins))
        return float(self.loss(values.new_zeros(len(values), self.outputs(num_bins)), values).mean())

    def survival_of(self, counts: IntArray) -> Survival | None:  # noqa: ARG002
        """Estimate the survival of a group from its rows in each bin, shape (C,); None without times."""
        return None

    def calibration(self, confusion: IntArray, sums: FloatArray) -> "Calibration | None":  # noqa: ARG002
        """Compare what was predicted with what happened, from counts and sums of test rows; None of classes.

        Parameters
        ----------
        confusion, sums
            Those of :class:`fedclust.metrics.Outcomes`, of all clients of a group, (C, C) and (3, C).
        """
        return None

    calibrated: str = ""
    """What :meth:`calibration` compares."""

    def margin(self, figures: Mapping[str, ArrayLike], rows: ArrayLike) -> float | None:  # noqa: ARG002
        """Return within what a prediction is right nine times of ten; None if that is not known.

        Parameters
        ----------
        figures
            Figures of clients, by name, shape (n,).
        rows
            Their test rows, shape (n,).
        """
        return None

    @property
    def words(self) -> Words:
        """What results say of it."""
        return WORDS

    # -- How well rows are ordered, for a handful of sites --------------------------------------------------

    def fit_classes(self, num_bins: int) -> int:  # noqa: ARG002
        """Return the number of classes of a :class:`~fedclust.proof.coalitions.Fit`: 2 for an order."""
        return 2

    def ratio(self, outputs: FloatArray, values: FloatArray | IntArray) -> tuple[float, float] | None:  # noqa: ARG002
        """Compare the sizes of predictions and values, which shows a site's unit; None if they have none.

        Returns
        -------
        Logarithm of the mean prediction over the mean value, and its standard error.
        """
        return None

    turns_events: ClassVar[bool] = False
    """Whether values have an event that a site may code the other way."""

    @abstractmethod
    def ranking(
        self, outputs: FloatArray, values: FloatArray | IntArray, fold: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Measure how well each coalition's models order a site's rows.

        Parameters
        ----------
        outputs
            For each row by each coalition's model without its fold, shape (coalitions, n, O); the last
            coalition is the site alone.
        values
            The rows' values.
        fold
            Fold of each row, shape (n,); only pairs within a fold are compared.

        Returns
        -------
        As of :func:`~fedclust.proof.coalitions.ranking`.
        """

    @abstractmethod
    def balance(self, right: FloatArray, values: FloatArray | IntArray) -> tuple[FloatArray, FloatArray]:
        """Return arms' balanced accuracies and errors, see :func:`~fedclust.proof.coalitions.balance`."""

    @abstractmethod
    def fit(
        self, outputs: FloatArray, values: FloatArray | IntArray, fold: IntArray, *, within: bool = False
    ) -> Fit:
        """Measure how well a model orders rows that it has not seen.

        Parameters
        ----------
        outputs, values
            Shape (n, O), and the rows' values.
        fold, within
            As of :func:`~fedclust.proof.coalitions.fit_of`.
        """

    # -- Evaluations ----------------------------------------------------------------------------------------

    @abstractmethod
    def kept(self, outputs: "torch.Tensor", width: int, full: bool) -> "tuple[torch.Tensor, ...]":
        """Reduce the outputs of a batch to what :meth:`measured` needs.

        Parameters
        ----------
        outputs
            Shape (B, O), or (B, positions, O), where a network may have more than O.
        width
            O.
        full
            Whether it is a full evaluation.
        """

    @abstractmethod
    def measured(
        self,
        counts: IntArray,
        losses: FloatArray,
        values: FloatArray | IntArray,
        kept: Sequence[Any],
        num_bins: int,
        full: bool,
    ) -> list[Scores]:
        """Reduce results per row to scores per client.

        Parameters
        ----------
        counts
            Rows of each client, shape (n,); rows lie client by client in the other arguments.
        losses
            Loss of each row, shape (N,).
        values
            Value of each row, shape (N,), or (N, 2).
        kept
            What :meth:`kept` returned, of all rows.
        num_bins
            Number of bins C.
        full
            Whether it is a full evaluation.

        Returns
        -------
        Scores of each client.
        """


class NumberWords(Words):
    """The words of rows that have numbers."""

    score = "score"
    certain = ""
    order_in = "concordance"
    without = ("balanced_accuracy", "macro_f1", "auc", "answer", "confusion")
    must_learn = True

    @property
    def ordered(self) -> str:  # type: ignore[override]
        """Explanation of the cross-site matrix."""
        whose = f"a site whose {self.label}s are the wrong way round for the others"
        return f"Right: {self.order_in}. A column below 0.5 is {whose}."

    def title(self, key: str) -> str:
        """Return the title of a key of ``summary.json`` or ``clients.parquet``, which is made of figures."""
        own = {name: title for name, title, _ in self.figures}
        named = key.replace("accuracy", self.share).replace("brier", self.score)
        return own.get(key) or named.replace("_", " ")

    def further(
        self,
        rows: int,  # noqa: ARG002
        counts: IntArray,  # noqa: ARG002
        classes: Sequence[str],  # noqa: ARG002
        figures: Mapping[str, Any],  # noqa: ARG002
    ) -> str:
        """Return nothing."""
        return ""

    def doubt(self, counts: IntArray, figures: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Return nothing: there are no classes to tell apart."""
        return ""

    def contrast(self, chosen: Mapping[str, Any], alone: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Return nothing, for the same reason."""
        return ""

    def learnt(
        self,
        chosen: Sequence[Mapping[str, Any]],
        there: IntArray,  # noqa: ARG002
        train: FloatArray,  # noqa: ARG002
        rows: IntArray,
        over: FloatArray,
    ) -> bool:
        """Return whether the mean score is better than without inputs by more than a fiftieth."""
        known = np.isfinite(over)
        gained = float(over[known] @ rows[known])
        scored = float(np.array([each["brier"] for each in chosen])[known] @ rows[known])
        return not known.any() or gained > _LEARNT * (gained + scored)

    def in_order(self, num_bins: int) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def only(self, counts: IntArray, everyone: IntArray, classes: Sequence[str]) -> str:  # noqa: ARG002
        """Return nothing: a bin is not all that a site has."""
        return ""


class Numbers(Target):
    """What rows have numbers for, amounts and times, whose bins are shares of all numbers."""

    numeric: ClassVar[bool] = True

    rules: ClassVar[Mapping[str, str]] = {"infinite": "targets must be finite as float32"}
    """What values must be by the name of a fault of one row."""

    @classmethod
    def read(cls, values: Any, num_bins: int | None = None) -> FloatArray:  # noqa: ARG003
        """Convert numbers to float32.

        Raises
        ------
        ValueError
            If a row has one of the faults that :attr:`rules` names.
        """
        with np.errstate(over="ignore"):
            numbers = np.asarray(values, dtype=np.float32)
        for name, place, rows in cls.faults(numbers.astype(np.float64)) if len(numbers) else ():
            if name in cls.rules:
                wrong = numbers.reshape(len(numbers), -1)[rows.ravel(), place][0]
                raise ValueError(f"{cls.rules[name]}, got {wrong:g}")
        return numbers

    @classmethod
    def stated(cls, values: FloatArray, floor: int) -> tuple["Block", ...]:
        """Return blocks of neighbouring rows.

        Rows are sorted by amount or time, with and without the event apart, and cut into at most 200 blocks
        of nearly equal numbers of rows, each of `floor` rows or more. Fewer rows than that are left out.
        """
        table = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        parts = [table] if table.shape[1] == 1 else [table[table[:, 1] == event] for event in (0, 1)]
        found = []
        for part in parts:
            number = min(_MOST_BLOCKS, len(part) // floor)
            ordered = part[np.argsort(part[:, 0], kind="stable")]
            found += [
                Block(len(each), tuple(each.mean(axis=0).tolist()), float(each[:, 0].std()))
                for each in (np.array_split(ordered, number) if number else ())
            ]
        return tuple(found)

    @classmethod
    def from_stated(cls, blocks: Iterable["Block"], **given: Any) -> "Target":
        """Make the target of blocks, whose rows lie at equal distances.

        From blocks of one or two rows, the target is that of :meth:`agreed`.
        """
        listed = list(blocks)
        if not listed:
            raise ValueError("no site has enough rows for the agreement on a target")
        share = min(1.0, _MOST_ROWS / sum(each.rows for each in listed))
        values = np.concatenate([each.values(math.ceil(each.rows * share)) for each in listed])
        return cls.agreed(values[:, 0] if cls.per_row == 1 else values, **given)

    @abstractmethod
    def opposite(self, values: FloatArray) -> FloatArray:
        """Return values that contradict those of the same rows, as at a site that turns them round.

        Parameters
        ----------
        values
            Those of a client's rows.
        """

    @abstractmethod
    def answers(self, outputs: "torch.Tensor", num_bins: int) -> "torch.Tensor":
        """Return in which of C bins each row's prediction is, from 0 to C − 1, shape (n,)."""

    @abstractmethod
    def compared(self, outputs: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return a number that is known of each row, 0 if that is none, and its prediction, shape (n,)."""

    @abstractmethod
    def figures(self, outputs: FloatArray, values: FloatArray | IntArray) -> dict[str, float]:
        """Compute the figures of :attr:`figure_ranges`; NaN where undefined."""

    def least_errors(self, values: FloatArray) -> dict[str, float]:  # noqa: ARG002
        """Return the least standard errors of figures, by name, from test rows' values; none unless given."""
        return {}

    @abstractmethod
    def order(
        self, outputs: FloatArray, values: FloatArray, turned: bool = False
    ) -> tuple[FloatArray, FloatArray, int]:
        """Count comparable pairs of rows.

        Parameters
        ----------
        outputs, values
            Shape (n, O), and the rows' values.
        turned
            Whether to take events for censored rows and the other way round.

        Returns
        -------
        Pairs that each row is in, those that are in the right order, shape (n,), and how many rows begin one.
        """

    def ranking(
        self, outputs: FloatArray, values: FloatArray | IntArray, fold: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Measure the share of pairs that are in order."""
        counted = [self._within(each, values, fold) for each in outputs]
        pairs, in_order = (np.stack([each[place] for each in counted]) for place in (0, 1))
        return in_pairs(pairs, in_order)

    def balance(self, right: FloatArray, values: FloatArray | IntArray) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002
        """Return one half, with an error of 1, of which nothing follows: there are no classes."""
        return np.full(len(right), 0.5), np.ones(len(right))

    def fit(
        self, outputs: FloatArray, values: FloatArray | IntArray, fold: IntArray, *, within: bool = False
    ) -> Fit:
        """Measure the share of pairs that are in order."""
        parts = fold if within else np.zeros(len(fold), dtype=np.int64)
        turned = self._within(outputs, values, parts, turned=True) if self.turns_events else None
        return fit_of_pairs(*self._within(outputs, values, parts), turned)

    def _within(
        self, outputs: FloatArray, values: FloatArray | IntArray, fold: IntArray, turned: bool = False
    ) -> tuple[FloatArray, FloatArray, int]:
        """Count comparable pairs within folds."""
        pairs, in_order, began = np.zeros(len(fold)), np.zeros(len(fold)), 0
        for number in np.unique(fold):
            here = fold == number
            pairs[here], in_order[here], some = self.order(outputs[here], values[here], turned)
            began += some
        return pairs, in_order, began

    def kept(self, outputs: "torch.Tensor", width: int, full: bool) -> "tuple[torch.Tensor, ...]":  # noqa: ARG002
        """Return the outputs themselves."""
        return (outputs[..., :width],)

    def measured(
        self,
        counts: IntArray,
        losses: FloatArray,
        values: FloatArray | IntArray,
        kept: Sequence[Any],
        num_bins: int,
        full: bool,
    ) -> list[Scores]:
        """Reduce results per row to scores per client.

        The balanced accuracy is the mean over bins of that of the bin's rows. A model that has diverged has
        no hits.
        """
        (outputs,), ends = kept, np.cumsum(counts)[:-1]
        found = []
        for own, truth, loss in zip(
            *(np.split(each, ends) for each in (outputs, values, losses)), strict=True
        ):
            sane = bool(np.isfinite(own).all())
            hits = self.hits(own, truth) if sane else np.zeros(len(truth))
            bins = self.bins(truth)
            rows = np.bincount(bins, minlength=num_bins)
            with np.errstate(invalid="ignore"):
                by_bin = np.bincount(bins, hits, num_bins) / rows
            figures = {
                "num-examples": float(len(truth)),
                "loss": float(loss.mean()) if len(loss) else float("nan"),
                "accuracy": float(hits.mean()) if len(hits) else float("nan"),
                "balanced-accuracy": float(by_bin[rows > 0].mean()) if len(hits) else float("nan"),
            }
            if full:
                figures |= {"macro-f1": float("nan"), "auc": float("nan")}
                nothing = dict.fromkeys(self.reported_ranges(), float("nan"))
                figures |= self._figures(own, truth) if sane else nothing
            found.append(Scores(figures, self._counted(own, truth, num_bins) if full and sane else None))
        return found

    def _figures(self, outputs: FloatArray, values: FloatArray) -> dict[str, float]:
        """Compute the figures, and their standard errors by the jackknife.

        Source: Quenouille, "Notes on bias in estimation", Biometrika 43, 1956, and Tukey: of n groups of
        rows, of which one is left out in turn, the error is √((n − 1)/n · Σ(θᵢ − θ̄)²). Few rows may all
        agree by chance, so that no error is below :meth:`least_errors`.
        """
        least = self.least_errors(values)
        figures, group = self.figures(outputs, values), np.arange(len(values)) % _GROUPS
        without = [self.figures(outputs[group != each], values[group != each]) for each in np.unique(group)]
        for name in self.figure_ranges:
            parts = np.array([each[name] for each in without])
            n = len(parts)
            error = math.sqrt((n - 1) / n * np.square(parts - parts.mean()).sum()) if n > 1 else math.nan
            figures[error_of(name)] = float(np.fmax(error, least.get(name, math.nan)))
        return figures

    def _counted(self, outputs: FloatArray, values: FloatArray, num_bins: int) -> Outcomes:
        """Count rows by their bin and the predicted one, with sums."""
        import torch

        bins, known, predicted = self.bins(values), *self.compared(outputs, values)
        answers = self.answers(torch.from_numpy(outputs), num_bins).numpy()
        cells = np.bincount(bins * num_bins + answers, minlength=num_bins**2).reshape(num_bins, num_bins)
        each_sum = (known, predicted, np.square(known - predicted))
        sums = np.array([np.bincount(answers, each, num_bins) for each in each_sum], dtype=np.float64)
        nothing = np.zeros(0, dtype=np.int64)
        there, answered = cells.sum(axis=1), cells.sum(axis=0)
        return Outcomes(there, answered, cells.diagonal(), None, nothing, nothing, cells, sums)
