"""Messages about coalitions: models that travel with a round's, their scores, and their figures.

In a round the models of all coalitions that contain a site travel in the message that its cluster's model
travels in, a record each, and come back in its reply: the messages are larger, not more.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Annotated

import numpy as np
from flwr.app import ArrayRecord

from fedclust.messages import codec
from fedclust.messages.evaluation import FIGURES
from fedclust.messages.training import ARMS
from fedclust.proof.coalitions import FOLDS, Fit, Scores
from fedclust.proof.units import Mend
from fedclust.typing import FloatArray

ALL_ROWS = FOLDS
"""In place of a fold: the model that trains on all rows."""

_EACH = FOLDS + 1
_LONGEST = 300  # characters of a column's name
_MEND = 5  # numbers of a conversion
MOST_MENDS = 8
"""Most conversions of units that a site tries."""


def name_of(coalition: int, fold: int) -> str:
    """Return the name of a model's record: that of a coalition without a fold, or on all rows."""
    return f"{ARMS}{coalition * _EACH + fold}"


def number_of(name: str) -> int:
    """Return the number of a model by the name of its record; it counts coalitions' folds and all rows."""
    return int(name.removeprefix(ARMS))


def fold_of(name: str) -> int:
    """Return the fold that a model trains without; :data:`ALL_ROWS` for none."""
    return number_of(name) % _EACH


# -- The choice ---------------------------------------------------------------------------------------------


def _arms(at: codec.Reading) -> int:
    return 2 * at.asked.coalitions


def _coalitions(at: codec.Reading) -> int:
    return at.asked.coalitions


def _fit_numbers(at: codec.Reading) -> int:
    return Fit.width(at.asked.fit_classes) * (at.asked.others + 2)


def _ratios(at: codec.Reading) -> int:
    return 2 * (at.asked.others + 1)


@dataclass(frozen=True, eq=False)
class ScoresAnswer:
    """Cross-fitted scores of a site's arms, and how the other sites' own models fit its rows.

    Attributes
    ----------
    count, means, products, auc, auc_error, balanced, balanced_error
        As of :class:`~fedclust.proof.coalitions.Scores`; the products in one list.
    fits
        Of each further model, of all of them together, and of the site's own, cross-fitted, the numbers of a
        :class:`~fedclust.proof.coalitions.Fit`, in one list.
    ratios
        Of amounts, for each further model and the site's own, what :meth:`fedclust.data.targets.Target.ratio`
        returns, in one list.
    columns, mends
        Which columns may be in another unit, an empty name for the amounts themselves; and the five numbers
        of each :class:`~fedclust.proof.units.Mend`, in one list.
    """

    place = codec.IN_CONFIG

    count: Annotated[int, codec.Whole(0, codec.train_rows)]
    means: Annotated[FloatArray, codec.Numbers(0, 2 + 1e-9, count=_arms)]
    products: Annotated[FloatArray, codec.Numbers(0, 4 + 1e-9, count=lambda at: _arms(at) ** 2)]
    auc: Annotated[FloatArray, codec.Numbers(0, 1 + 1e-9, count=_coalitions)]
    auc_error: Annotated[FloatArray, codec.Numbers(0, 1, count=_coalitions)]
    balanced: Annotated[FloatArray, codec.Numbers(0, 1 + 1e-9, count=_arms)]
    balanced_error: Annotated[FloatArray, codec.Numbers(0, 1, count=_arms)]
    fits: Annotated[
        FloatArray, codec.Numbers(-1, lambda at: max(2, at.asked.fit_classes - 1), count=_fit_numbers)
    ]

    ratios: Annotated[tuple[float, ...], codec.Numbers(-100, 100, float, at_most=_ratios, sparse=True)] = ()
    columns: Annotated[tuple[str, ...], codec.Texts(_LONGEST, sparse=True)] = ()
    mends: Annotated[
        tuple[float, ...], codec.Numbers(0, to=float, at_most=_MEND * MOST_MENDS, sparse=True)
    ] = ()

    def check(self, at: codec.Reading) -> None:
        """Check that there may be such rows."""
        if len(self.ratios) not in (0, 2 * (at.asked.others + 1)) or min(self.ratios[1::2], default=1) <= 0:
            raise at.bad(f"ratios must be two for each model, errors > 0, got {codec.short(self.ratios)}")
        if not len(self.mends) == _MEND * len(self.columns) <= _MEND * MOST_MENDS or any(
            min(each.own, each.elsewhere, each.error) <= 0 or max(each.now, each.then) > 1 + 1e-9
            for each in self.mended
        ):
            raise at.bad(f"mends must be sizes > 0, shares and errors > 0, got {codec.short(self.mends)}")
        if not self.scores.possible():
            raise at.bad(f"means and products must be those of {self.count} rows, they are not")
        fits, classes = self.fits.reshape(at.asked.others + 2, -1), at.asked.fit_classes
        errors = np.hstack([fits[:, [2, 4]], fits[:, 5 + 2 * classes :]])
        if errors.min() <= 0:
            raise at.bad(f"errors of fits must be > 0, got {errors.min()}")

    @classmethod
    def of(cls, scores: Scores, fits: Sequence[Fit]) -> "ScoresAnswer":
        """Make the answer of what a site measured."""
        numbers = np.array([each.values for each in fits], dtype=float).ravel()
        given = {each.name: getattr(scores, each.name) for each in fields(scores)}
        return cls(**given | {"products": scores.products.ravel(), "fits": numbers})

    def with_units(
        self, ratios: Sequence[tuple[float, float] | None], mends: Sequence[Mend]
    ) -> "ScoresAnswer":
        """Add what the site found of units; of ratios nothing unless all are known."""
        known = [number for each in ratios if each is not None for number in each]
        return replace(
            self,
            ratios=tuple(known) if len(known) == 2 * len(ratios) else (),
            columns=tuple(each.column for each in mends),
            mends=tuple(number for each in mends for number in astuple(each)[1:]),
        )

    @property
    def mended(self) -> list[Mend]:
        """What the site would gain by conversions of units."""
        numbers = [self.mends[first : first + _MEND] for first in range(0, len(self.mends), _MEND)]
        return [Mend(name, *each) for name, each in zip(self.columns, numbers, strict=False)]

    @property
    def scores(self) -> Scores:
        """The site's scores."""
        given = {each.name: getattr(self, each.name) for each in fields(Scores)}
        return Scores(**given | {"products": self.products.reshape(len(self.means), -1)})


@dataclass(frozen=True, eq=False)
class ScoresQuestion(codec.Question[ScoresAnswer]):
    """Ask a site how well its arms predict rows that they have not seen.

    Attributes
    ----------
    models
        Of each coalition that contains the site, itself last, the models without each fold; then the further
        models.
    shares
        Share of each class in each coalition's training rows, shape (coalitions, C), in one list.
    weights
        How much the outputs of each further model count in all of them together.
    pseudo_examples
        m̂ of each coalition's label-prior correction, see :mod:`fedclust.clustering.label_prior`; 0 where it
        is infinite, for no correction. A site makes its own for each fold, from its labels without the fold.
    ordered
        Whether what is predicted is no class, so that fits are of the order of rows.
    """

    kind = "query.coalitions"
    place = codec.Place("coalitions", codec.ConfigRecord)

    models: Annotated[tuple[ArrayRecord, ...], codec.Spread(codec.Own(codec.Place("", ArrayRecord)))]
    shares: Annotated[FloatArray, codec.Numbers(0, 1)]
    weights: Annotated[FloatArray, codec.Numbers(0)]
    pseudo_examples: Annotated[FloatArray, codec.Numbers(0, at_least=1)]
    ordered: Annotated[bool, codec.Flag(sparse=True)] = False

    @classmethod
    def of(
        cls,
        models: Sequence[ArrayRecord],
        shares: FloatArray,
        pseudo_examples: Sequence[float],
        weights: FloatArray,
        ordered: bool = False,
    ) -> "ScoresQuestion":
        """Make the question; without a correction m̂ is infinite."""
        pseudo = np.array(pseudo_examples, dtype=float)
        return cls(tuple(models), shares, weights, np.where(np.isinf(pseudo), 0, pseudo), ordered)

    @property
    def coalitions(self) -> int:
        """Number of coalitions that contain the site."""
        return len(self.pseudo_examples)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.shares) // self.coalitions

    @property
    def fit_classes(self) -> int:
        """Number of classes of a fit, see :meth:`fedclust.data.targets.Target.fit_classes`."""
        return 2 if self.ordered else self.num_classes

    @property
    def others(self) -> int:
        """Number of further models."""
        return len(self.models) - FOLDS * self.coalitions


# -- The figure ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SiteFigures:
    """How well models predict a site's test rows.

    Attributes
    ----------
    figures
        Of each model, by its place, the figures of an evaluation with macro F1 and AUC.
    brier
        Mean Brier score of each, shape (models,); 0 without rows.
    shifts
        What the site added to the outputs of each, where it fitted that, in one list.
    """

    figures: Annotated[
        dict[str, dict[str, float]],
        codec.Spread(FIGURES, lambda at: [str(each) for each in range(len(at.asked.models))], "figures/"),
    ]
    brier: Annotated[FloatArray, codec.Numbers(0, 2 + 1e-9, count=lambda at: len(at.asked.models))]
    shifts: Annotated[FloatArray | None, codec.Numbers(place=codec.IN_CONFIG, at_most=4096)] = None

    def check(self, at: codec.Reading) -> None:
        """Check that every model was measured."""
        if len(self.figures) < len(at.asked.models):
            raise at.lacks(f"figures/{len(self.figures)}", self.figures)


@dataclass(frozen=True, eq=False)
class SiteFiguresQuestion(codec.Question[SiteFigures]):
    """Ask a site how well some models predict its test rows, after all choices are made.

    Attributes
    ----------
    models
        The models.
    shifts
        What is added to the outputs of each, shape (models, C), in one list; where sites fit that, 1 for a
        model that is to be corrected and 0 for others.
    """

    kind = "query.site_figures"
    place = codec.Place("shifts", codec.ConfigRecord)

    models: Annotated[tuple[ArrayRecord, ...], codec.Spread(codec.Own(codec.Place("", ArrayRecord)))]
    shifts: Annotated[FloatArray, codec.Numbers()]
