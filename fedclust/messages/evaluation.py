"""Messages about models on the clients' own rows: figures, counts, and figures with personal layers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from fedclust.data.targets import CLASSES, Target
from fedclust.data.targets.base import LARGEST
from fedclust.messages import codec
from fedclust.messages.training import LOSS, NUM_EXAMPLES
from fedclust.metrics import CLIENT_FIGURES, NUM_BINS, Outcomes
from fedclust.personal.layers import FINETUNE, NONE, PRIOR, Finetune
from fedclust.proof.figure import Rows, margins
from fedclust.proof.paired import BETS, LARGEST_BRIER, Evidence, possible
from fedclust.support.array_bytes import from_numpy, serialised_bytes
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

# -- Figures ------------------------------------------------------------------------------------------------

_USUAL = frozenset(CLIENT_FIGURES)
_NEEDED = (NUM_EXAMPLES, LOSS, "accuracy", "balanced-accuracy")
_SHARES = frozenset({"accuracy", "balanced-accuracy", "macro-f1", "auc"})
_ROUND_OFF = 1e-9
_ROWS = codec.Whole(0, codec.test_rows)


def _write_figures(figures: Mapping[str, float]) -> MetricRecord:
    return codec.filled(MetricRecord, {name: float(value) for name, value in figures.items()})


def _read_figures(record: MetricRecord, at: codec.Reading) -> dict[str, float]:
    """Check figures on a client's test part; a non-finite loss is not the client's fault."""
    figures: dict[str, Any] = dict(record.items())  # a record's own look-ups are slow
    ranges = {} if at.bounds.target is None else at.bounds.target.reported_ranges()
    own = figures.keys() - _USUAL - ranges.keys()
    if own and (unknown := own - set(at.bounds.own_metrics)):
        raise at.bad(f"metrics must be {', '.join(CLIENT_FIGURES)}, got {codec.short(sorted(unknown))}")
    for key in _NEEDED:
        if key not in figures:
            raise at.lacks(key, figures)
    for name, value in figures.items():
        if type(value) is not float and type(value) is not int:
            raise at.bad(f"{name} must be a number, got {codec.short(value)}")
    num_examples = _ROWS.read(figures[NUM_EXAMPLES], NUM_EXAMPLES, at)
    for name, share in figures.items():
        if name not in _SHARES or (num_examples and 0 <= share <= 1):
            continue
        # A figure by class may be undefined, or stay with few rows of one; every figure is without test rows.
        undefined = math.isnan(share) and (name != "accuracy" or not num_examples)
        if not (undefined or (num_examples and -_ROUND_OFF <= share <= 1 + _ROUND_OFF)):
            rule = "in [0, 1]" if num_examples else "NaN without test rows"
            raise at.bad(f"{name} must be {rule}, got {share}")
    for name, (least, most) in ranges.items():
        value = figures.get(name, math.nan)
        if not math.isnan(value) and not (num_examples and least <= value <= most):
            rule = f"in [{least:g}, {most:g}]" if num_examples else "NaN without test rows"
            raise at.bad(f"{name} must be {rule}, or NaN where undefined, got {value}")
    _check_loss(figures[LOSS], LOSS, at)
    return {name: float(value) for name, value in figures.items()}


def _check_loss(loss: float, name: str, at: codec.Reading) -> None:
    """Check that a loss is in its range or not finite, which may be the model's fault."""
    least = codec.least_loss(at)
    if math.isfinite(loss) and not least <= loss <= codec.LARGEST_NUMBER:
        raise at.bad(f"{name} must be in [{least:g}, {codec.LARGEST_NUMBER:g}], got {loss}")


# -- Counts of rows by label, prediction and score ----------------------------------------------------------

_COUNTS, _GAPS, _POSITIVES, _NEGATIVES = "class-counts", "score-gaps", "score-positives", "score-negatives"
_CONFUSION, _SUMS = "confusion", "sums"
_PARTS = {
    _COUNTS: codec.Values("u8", "3 C", 0, codec.test_rows),
    _CONFUSION: codec.Values("u8", "C C", 0, codec.test_rows),
    _SUMS: codec.Values("f8", "3 C", None),
    _GAPS: codec.Values("u8", "n", 1, 2**31),
    **dict.fromkeys((_POSITIVES, _NEGATIVES), codec.Values("u8", "n", 0, codec.test_rows)),
}


def _outcomes_arrays(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """Return the arrays of counts, each in the narrowest type that holds it.

    Most counts of a bin take one byte; most gaps between non-empty bins take one or two.
    """
    arrays = {_COUNTS: np.stack([outcomes.there, outcomes.predicted, outcomes.hits])}
    if outcomes.bins is not None:
        gaps = np.diff(outcomes.bins, prepend=-1)
        arrays |= {_GAPS: gaps, _POSITIVES: outcomes.positives, _NEGATIVES: outcomes.negatives}
    if outcomes.confusion is not None:
        arrays[_CONFUSION] = outcomes.confusion
    narrow = {name: each.astype(np.min_scalar_type(each.max(initial=0))) for name, each in arrays.items()}
    if outcomes.sums is not None:
        narrow[_SUMS] = outcomes.sums
    return narrow


def _write_outcomes(outcomes: Outcomes) -> ArrayRecord:
    arrays = _outcomes_arrays(outcomes)
    return codec.as_record({name: from_numpy(each) for name, each in arrays.items()})


def _outcomes_bytes(outcomes: Outcomes) -> int:
    arrays = _outcomes_arrays(outcomes)
    return len("".join(arrays)) + serialised_bytes(arrays.values())


def _read_outcomes(record: ArrayRecord, at: codec.Reading) -> Outcomes:
    """Read counts; they must add up, to at most the client's rows."""
    at.known(record, _PARTS, "outcomes")
    arrays = {name: _PARTS[name].read(array, name, at) for name, array in record.items()}
    sums = arrays.pop(_SUMS, None)
    arrays = {name: each.astype(np.int64) for name, each in arrays.items()}
    if _COUNTS not in arrays:
        raise at.lacks(_COUNTS, arrays)
    (actual, predicted, hits), most = arrays[_COUNTS], codec.test_rows(at)
    number, answers, _ = arrays[_COUNTS].sum(axis=1).tolist()
    if (hits > np.minimum(actual, predicted)).any() or not answers == number <= most:
        rule = f"at most {most} rows, as many predictions, and hits, at most as many in each class"
        raise at.bad(f"{_COUNTS} must be {rule}, got {number} and {answers} in all")
    confusion, none = arrays.get(_CONFUSION), np.zeros(0, dtype=np.int64)
    if confusion is not None:
        added = confusion.sum(axis=1), confusion.sum(axis=0), confusion.diagonal()
        if not all(map(np.array_equal, added, arrays[_COUNTS])):
            raise at.bad(f"{_CONFUSION} must add up to {_COUNTS}, got shape {confusion.shape}")
    gaps, positives, negatives = (arrays.get(name, none) for name in (_GAPS, _POSITIVES, _NEGATIVES))
    bins = NUM_BINS * len(actual)
    shapes = gaps.shape, positives.shape, negatives.shape
    if gaps.sum() > bins or len(set(shapes)) > 1:
        raise at.bad(f"{_GAPS} must add up to at most {bins} and each have its counts, got shapes {shapes}")
    places = np.cumsum(gaps) - 1 if _GAPS in arrays else None
    if places is not None:
        scored = [np.bincount(places // NUM_BINS, each, len(actual)) for each in (positives, negatives)]
        if not np.array_equal(scored, [actual, number - actual]):
            rule = "each class's rows and to all others"
            raise at.bad(f"{_POSITIVES} and {_NEGATIVES} must add up to {rule}, they do not")
    if sums is not None:
        _check_sums(sums, predicted, at)
    return Outcomes(actual, predicted, hits, places, positives, negatives, confusion, sums)


def _check_sums(sums: FloatArray, rows: IntArray, at: codec.Reading) -> None:
    """Check that these can be the sums of so many rows of each bin, within the rounding of sums."""
    target = at.bounds.target
    ends = (-LARGEST, LARGEST) if target is None else target.compared_range
    if ends is None:
        raise at.bad(f"{_SUMS} must not be sent of {CLASSES.kind}")
    known, predicted, squares = sums
    off = _ROUND_OFF * (np.abs(known) + np.abs(predicted))
    with np.errstate(over="ignore", invalid="ignore"):
        least, most = (np.where(rows > 0, rows * each, 0.0) for each in ends)
        inside = [(least - off <= each) & (each <= most + off) for each in (known, predicted)]
        apart = np.maximum(np.abs(known - predicted) - off, 0.0)  # squares by Cauchy and Schwarz
        fits = np.sqrt(rows) * np.sqrt(squares) >= apart * (1 - _ROUND_OFF)
        widest = np.sqrt(squares) <= np.where(rows > 0, np.sqrt(rows) * (ends[1] - ends[0]), 0.0) * (
            1 + _ROUND_OFF
        )
    if not (np.isfinite(sums).all() and np.all(inside) and fits.all() and widest.all()):
        raise at.bad(f"{_SUMS} must be finite and those of {rows.sum()} rows, they are not")


def _figures_bytes(figures: Mapping[str, float]) -> int:
    return len("".join(figures)) + 8 * len(figures)


FIGURES = codec.Own(codec.IN_METRICS, _write_figures, _read_figures, num_bytes=_figures_bytes)
_OUTCOMES = codec.Own(
    codec.Place("outcomes", ArrayRecord), _write_outcomes, _read_outcomes, num_bytes=_outcomes_bytes
)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A client's reply to a round of evaluation.

    Attributes
    ----------
    client
        Its id.
    metrics
        Figures on its own test part, by name.
    outcomes
        Counts of a full evaluation, from which pooled figures are computed.
    """

    client: int
    metrics: Annotated[dict[str, float], FIGURES]
    outcomes: Annotated[Outcomes | None, _OUTCOMES] = None


@dataclass(frozen=True, eq=False)
class EvaluateQuestion(codec.Question[Evaluation]):
    """Ask how well a model does on a client's test part.

    Attributes
    ----------
    arrays
        The model.
    server_round
        The round, or the last one; 0 if the sender does not count rounds.
    full
        Whether to measure macro F1 and AUC too, and count outcomes, which takes longer.
    noise
        Standard deviation of the noise on the sum of patients' accuracies; the accuracy is then all that is
        measured. None for figures without noise.
    published_noise
        As of :class:`~fedclust.messages.training.Instruction`.
    extra
        As of :class:`~fedclust.messages.training.Instruction`.
    """

    kind = "evaluate"

    arrays: Annotated[ArrayRecord, codec.Model()]
    server_round: Annotated[int, codec.Whole()] = 0
    full: Annotated[bool, codec.Flag(key="full-metrics")] = False
    noise: Annotated[float | None, codec.Real(0)] = None
    published_noise: Annotated[bool, codec.Flag(sparse=True)] = False
    extra: Mapping[str, Any] = field(default_factory=dict, metadata=codec.UNSENT)


# -- Personal layers ----------------------------------------------------------------------------------------

_HOW = codec.Place("finetune", ConfigRecord, optional=True)
_CHOSEN = codec.Place("chosen", ConfigRecord, optional=True)


def _layers(at: codec.Reading) -> tuple[str, ...]:
    return at.asked.layers


def _read_losses(record: MetricRecord, at: codec.Reading) -> dict[str, float]:
    """Read validation losses; a non-finite one becomes NaN, it may be the model's fault."""
    at.known(record, (NONE, *_layers(at)), "validation-losses")
    losses: dict[str, Any] = dict(record.items())
    for layer, loss in losses.items():
        if type(loss) is not float:
            raise at.bad(f"validation loss of {layer} must be a number, got {codec.short(loss)}")
        _check_loss(loss, f"validation loss of {layer}", at)
    return {layer: loss if math.isfinite(loss) else math.nan for layer, loss in losses.items()}


def _read_reasons(record: ConfigRecord, at: codec.Reading) -> dict[str, str]:
    reasons = {layer: codec.Text(10**6).read(reason, "failed", at) for layer, reason in record.items()}
    return {layer: reasons[layer] for layer in _layers(at) if layer in reasons}


@dataclass(frozen=True, eq=False)
class PersonalAnswer:
    """A client's measurements with personal layers; no model of its own leaves it.

    Attributes
    ----------
    figures, outcomes
        Scores of each layer on the client's test part, as in an evaluation.
    losses
        Mean Brier score of its validation rows with each layer and with ``"none"``, NaN if not finite;
        empty without such rows.
    failed
        Why the client could not make a layer, by layer.
    chosen
        The layer that these rows favour, see :func:`~fedclust.personal.layers.choose`; ``"none"`` without.
    shift
        The correction that the client fitted to its training rows; None where it was sent one, or none.
    """

    client: int
    figures: Annotated[dict[str, dict[str, float]], codec.Spread(FIGURES, _layers, "figures/")]
    outcomes: Annotated[dict[str, Outcomes], codec.Spread(_OUTCOMES, _layers, "outcomes/")] = field(
        default_factory=dict
    )
    losses: Annotated[
        dict[str, float],
        codec.Own(codec.Place("validation-losses", MetricRecord), _write_figures, _read_losses),
    ] = field(default_factory=dict)
    failed: Annotated[
        dict[str, str],
        codec.Own(
            codec.Place("failed", ConfigRecord), lambda failed: ConfigRecord(dict(failed)), _read_reasons
        ),
    ] = field(default_factory=dict)
    chosen: Annotated[str, codec.Text(place=_CHOSEN, key="layer", sparse=True)] = NONE
    shift: Annotated[FloatArray | None, codec.Numbers(place=_CHOSEN, at_most=1024)] = None

    def check(self, at: codec.Reading) -> None:
        """Check that each layer was either measured or has failed, and that one of these was chosen."""
        if self.chosen not in (NONE, *self.figures):
            raise at.bad(f"chosen must be one of {[NONE, *self.figures]}, got {codec.short(self.chosen)}")
        for layer in _layers(at):
            if layer not in self.figures and layer not in self.failed:
                raise at.lacks(f"figures/{layer}", self.figures)

    @property
    def tests(self) -> dict[str, Evaluation]:
        """The client's scores with each layer."""
        return {
            layer: Evaluation(self.client, figures, self.outcomes.get(layer))
            for layer, figures in self.figures.items()
        }


def _finetune(epochs: int | None, layers: str | None, learning_rate: float | None) -> Finetune | None:
    if epochs is None or layers is None:
        return None
    return Finetune(epochs, layers, learning_rate)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class PersonalQuestion(codec.Question[PersonalAnswer]):
    """Ask how well personal layers serve a client.

    Clients may share the model's record, which is then sent once; the rest is the client's own.

    Attributes
    ----------
    model
        The model that serves it.
    server_round
        The round whose batches fine-tuning draws: the one after the last.
    shift
        The label-prior correction of its logits, shape (C,); None if not asked for.
    epochs, layers_trained, learning_rate
        How to fine-tune, see :class:`~fedclust.personal.layers.Finetune`; None if not asked for.
    """

    kind = "query.personal"
    place = codec.Place("personal", ConfigRecord)

    model: Annotated[ArrayRecord, codec.Model()]
    server_round: Annotated[int, codec.Whole()]
    shift: Annotated[FloatArray | None, codec.Numbers(key="prior-shift")] = None
    epochs: Annotated[int | None, codec.Whole(place=_HOW)] = None
    layers_trained: Annotated[str | None, codec.Text(place=_HOW, key="layers")] = None
    learning_rate: Annotated[float | None, codec.Real(place=_HOW)] = None

    @classmethod
    def of(
        cls, model: ArrayRecord, server_round: int, shift: FloatArray | None, finetune: Finetune | None
    ) -> "PersonalQuestion":
        """Make the question for a correction, fine-tuning, or both."""
        if finetune is None:
            return cls(model, server_round, shift)
        return cls(model, server_round, shift, finetune.epochs, finetune.layers, finetune.learning_rate)

    @property
    def finetune(self) -> Finetune | None:
        """How to fine-tune; None if not asked for."""
        return _finetune(self.epochs, self.layers_trained, self.learning_rate)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers to try."""
        asked = ((PRIOR, self.shift), (FINETUNE, self.finetune))
        return tuple(layer for layer, value in asked if value is not None)


# -- Counts and predictions ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each label (rows) was predicted as each class (columns) on a client's test part.

    Attributes
    ----------
    confusion
        Shape (C, C).
    """

    confusion: Annotated[IntArray, codec.Values("i8", "C C", 0, codec.test_rows, (0, codec.test_rows))]

    def check(self, at: codec.Reading) -> None:
        """Check that there are as many rows as columns."""
        if len(set(self.confusion.shape)) > 1:
            raise at.bad(f"confusion must be counts of shape (C, C), got shape {self.confusion.shape}")


@dataclass(frozen=True, eq=False)
class ConfusionQuestion(codec.Question[Confusion]):
    """Ask for the confusion matrix of a model on a client's test part."""

    kind = "query.confusion"

    arrays: Annotated[ArrayRecord, codec.Model()]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a client's test rows, in a simulation; a deployed node returns only their number.

    Attributes
    ----------
    num_examples
        Number of rows n.
    rows
        Rows of the dataset, or of the site's own file, shape (n,); this and the next two are None if the
        node keeps its predictions.
    truth
        Their values: classes, shape (n,) or (n, positions); amounts; times and events, shape (n, 2).
    predicted
        Probabilities, shape (n, C) or (n, positions, C); or the columns of amounts or survival, shape (n, M).
    """

    place = codec.Place(codec.ARRAYS, ArrayRecord, optional=True)

    num_examples: Annotated[int, codec.Whole(0, codec.test_rows, place=codec.IN_METRICS)]
    rows: Annotated[IntArray | None, codec.Values("i8", "n", None)] = None
    truth: Annotated[FloatArray | None, codec.Values("f8", "n ...", None)] = None
    predicted: Annotated[FloatArray | None, codec.Values("f4", "n ...", None)] = None

    def table(
        self, client: int, name: str | None, target: Target, class_names: Sequence[str]
    ) -> "pd.DataFrame":
        """Build the table of a client's predictions.

        Parameters
        ----------
        client, name
            The client's id, and its name or None.
        target
            What is predicted.
        class_names
            Names of the classes, shape (C,).

        Returns
        -------
        A row per row, or per row and position, with ``client``, ``name`` if there is one, ``row``,
        ``position`` if there are any, and the columns of :meth:`fedclust.data.targets.Target.saved`.

        Raises
        ------
        ValueError
            If the answer is not of this target and these classes.
        """
        import pandas as pd

        rows, truth, predicted = (np.asarray(each) for each in (self.rows, self.truth, self.predicted))
        positions = predicted.shape[1] if predicted.ndim > 2 else 1
        columns = target.saved(truth, predicted, class_names)
        table: dict[str, object] = {"client": np.full(len(rows) * positions, client)}
        if name is not None:
            table["name"] = name
        table["row"] = np.repeat(rows, positions)
        if predicted.ndim > 2:
            table["position"] = np.tile(np.arange(positions), len(rows))
        return pd.DataFrame(table | columns)

    def check(self, at: codec.Reading) -> None:
        """Check that all arrays have this number of rows."""
        shapes = [() if each is None else each.shape for each in (self.rows, self.truth, self.predicted)]
        one, other, last = shapes
        fits = one == (self.num_examples,) == other[:1] == last[:1] and len(other) <= 2 <= len(last) <= 3
        if any(shapes) and not (fits and last[-1]):
            raise at.bad(f"predictions must be of {self.num_examples} rows, got {one}, {other}, {last}")


@dataclass(frozen=True, eq=False)
class PredictionsQuestion(codec.Question[Predictions]):
    """Ask for a model's predictions of a client's test rows."""

    kind = "query.predictions"

    arrays: Annotated[ArrayRecord, codec.Model()]


# -- How models compare on a client's rows ------------------------------------------------------------------

_LOSSES = codec.Place("losses", ConfigRecord)


def _num_models(at: codec.Reading) -> int:
    return len(at.asked.models)


_WINS = codec.Numbers(0, codec.train_rows, np.int64, count=_num_models, total=(1, codec.train_rows))


@dataclass(frozen=True, eq=False)
class Losses:
    """How well each of several models fits a client's training part.

    Attributes
    ----------
    losses
        Mean loss of each model, in nats, in the question's order, shape (models,). One that is not finite
        is sent as :func:`diverged_last` writes it.
    wins
        For each model, the number of training rows on which its loss is the smallest, shape (models,).
    """

    place = _LOSSES

    losses: Annotated[FloatArray, codec.Numbers(codec.least_loss, codec.LARGEST_NUMBER, count=_num_models)]
    wins: Annotated[IntArray | None, _WINS] = None


def diverged_last(losses: FloatArray) -> FloatArray:
    """Write a loss that is not finite as one above all others, so that one model costs nobody the answer.

    Parameters
    ----------
    losses
        Mean loss of each model, shape (models,).

    Returns
    -------
    Losses with the same order, shape (models,); the same array if none is finite.

    Examples
    --------
    >>> diverged_last(np.array([0.5, np.nan, 2.0])).tolist()
    [0.5, 5.0, 2.0]
    """
    known = np.abs(losses) <= codec.LARGEST_NUMBER  # NaN is not
    if known.all() or not known.any():
        return losses
    most = losses[known].max()
    return np.where(known, losses, min(most + abs(most) + 1, codec.LARGEST_NUMBER))


@dataclass(frozen=True, eq=False)
class LossesQuestion(codec.Question[Losses]):
    """Ask for the loss of each of several models on a client's training part."""

    kind = "query.losses"

    models: Annotated[tuple[ArrayRecord, ...], codec.Spread(codec.Own(codec.Place("", ArrayRecord)))]


@dataclass(frozen=True, eq=False)
class Wins:
    """The number of a client's training rows that each model fits best, from the same answer.

    Attributes
    ----------
    wins
        As in :class:`Losses`; a model whose loss is not finite wins no row.
    losses
        Not read: one model that has diverged must not cost the others their rows.
    """

    place = _LOSSES

    wins: Annotated[IntArray, _WINS]
    losses: Annotated[None, codec.Made(reads=lambda _: None)] = None


@dataclass(frozen=True, eq=False)
class WinsQuestion(codec.Question[Wins]):
    """Ask the same as :class:`LossesQuestion`, but read only the wins."""

    kind = LossesQuestion.kind

    models: Annotated[tuple[ArrayRecord, ...], codec.Spread(codec.Own(codec.Place("", ArrayRecord)))]


# -- The proof ----------------------------------------------------------------------------------------------


def _compared_rows(at: codec.Reading) -> int:
    held = codec.train_rows(at) if at.asked.on_training_rows else at.most(at.bounds.num_validation)
    return min(at.asked.rows, held)


@dataclass(frozen=True, eq=False)
class ProofAnswer:
    """The differences of two models' Brier scores on a client's rows, added up; nothing else leaves it.

    Attributes
    ----------
    count, sums, log_wealth
        As of :class:`~fedclust.proof.Evidence`, A's scores minus B's, with bets on the question's margin.
    """

    place = codec.Place("difference", ConfigRecord)

    count: Annotated[int, codec.Whole(0, _compared_rows)]
    sums: Annotated[FloatArray, codec.Numbers(count=3)]
    log_wealth: Annotated[FloatArray, codec.Numbers(count=len(BETS))]

    def check(self, at: codec.Reading) -> None:
        """Check that these are the numbers of some rows."""
        if not possible(self.evidence, [at.asked.margin]):
            rule = f"those of {self.count} differences in [-2, 2]"
            raise at.bad(f"sums and log-wealth must be {rule}, got {codec.short(self.sums.tolist())}")

    @classmethod
    def of(cls, evidence: Evidence) -> "ProofAnswer":
        """Make the answer of a client's evidence about one margin."""
        return cls(evidence.count, evidence.sums, evidence.log_wealth[0])

    @property
    def evidence(self) -> Evidence:
        """What is known of the client's differences."""
        return Evidence(self.count, self.sums, self.log_wealth[None])


@dataclass(frozen=True, eq=False)
class Pair:
    """Two models that a question compares on a client's rows.

    Clients may share the records of the models, which are then sent once; the shifts are the client's own.

    Attributes
    ----------
    model_a, model_b
        The two models.
    shift_a, shift_b
        Added to this client's logits of each model: the label-prior correction, shape (C,).
    """

    place = codec.Place("prior-shifts", ConfigRecord)

    model_a: Annotated[ArrayRecord, codec.Model("model-a")]
    model_b: Annotated[ArrayRecord, codec.Model("model-b")]
    shift_a: Annotated[FloatArray, codec.Numbers(key="model-a")]
    shift_b: Annotated[FloatArray, codec.Numbers(key="model-b")]


@dataclass(frozen=True, eq=False)
class ProofQuestion(Pair, codec.Question[ProofAnswer]):
    """Ask how much better model B predicts a client's held-out rows than model A.

    Attributes
    ----------
    margin
        What B's Brier score must be lower by.
    rows
        How many of the client's rows count, at most: the first in an order of its own, which is drawn once
        for a run. It is three times the median of those that are asked, so not the same in all comparisons.
    on_training_rows
        Whether to compare on the training rows, which are held out from both models if the client trained
        neither.
    """

    kind = "query.proof"

    margin: Annotated[float, codec.Real(-2, 2, sparse=True)] = 0.0
    rows: Annotated[int, codec.Whole(1, sparse=True)] = codec.MOST_EXAMPLES
    on_training_rows: Annotated[bool, codec.Flag(sparse=True)] = False


@dataclass(frozen=True, eq=False)
class AloneQuestion(ProofQuestion):
    """Ask how much better a model of the client's own, trained from B, predicts its held-out rows than A.

    A is what serves the client: with its correction, or fine-tuned as it was for :class:`PersonalQuestion`.

    Attributes
    ----------
    epochs
        Epochs that the client trains B on its training rows; that model stays with it.
    server_round, tuning_epochs, layers_tuned, learning_rate
        How the client fine-tunes A, as of :class:`PersonalQuestion`; None if it does not.
    """

    kind = "query.alone"

    epochs: Annotated[int, codec.Whole(1)] = 20
    server_round: Annotated[int, codec.Whole(sparse=True)] = 0
    tuning_epochs: Annotated[int | None, codec.Whole(place=_HOW, key="epochs")] = None
    layers_tuned: Annotated[str | None, codec.Text(place=_HOW, key="layers")] = None
    learning_rate: Annotated[float | None, codec.Real(place=_HOW)] = None

    @property
    def finetune(self) -> Finetune | None:
        """How the client fine-tunes A; None if it does not."""
        return _finetune(self.tuning_epochs, self.layers_tuned, self.learning_rate)


def _measured_rows(at: codec.Reading) -> int:
    return min(at.asked.rows, codec.test_rows(at))


@dataclass(frozen=True, eq=False)
class FigureAnswer:
    """How well two models predict a client's test rows, added up.

    Attributes
    ----------
    count
        Rows that count.
    hits
        Rows that A and that B predict right, shape (2,).
    sums
        Of four differences, lines of shape (3,) as of :class:`~fedclust.proof.Evidence`: Brier scores,
        accuracies, and the Brier score by class shares minus A's and minus B's.
    bets
        Bets on the last two; and, where the question asks for them, before them on each margin for the Brier
        score, against it, and likewise for the accuracy.
    """

    place = codec.Place("figure", ArrayRecord)

    count: Annotated[int, codec.Whole(0, _measured_rows, place=codec.IN_METRICS)]
    hits: Annotated[FloatArray, codec.Values("f8", "n", 0, _measured_rows)]
    sums: Annotated[FloatArray, codec.Values("f8", "n n")]
    bets: Annotated[FloatArray, codec.Values("f8", "n n")]

    def check(self, at: codec.Reading) -> None:
        """Check that these are the numbers of some rows."""
        tried = [margins(limit) if at.asked.bets else np.zeros(0) for limit in _LIMITS]
        shapes = self.hits.shape, self.sums.shape, self.bets.shape
        wanted = (2,), (4, 3), (2 + 4 * len(tried[0]), len(BETS))
        if shapes != wanted:
            raise at.bad(f"hits, sums and bets must have shapes {wanted}, got {shapes}")
        rows = self.rows
        pairs = [(rows.brier, rows.brier_below), (rows.accuracy, rows.accuracy_below)]
        fits = [
            possible(each, on, limit)
            for pair, on, limit in zip(pairs, tried, _LIMITS, strict=True)
            for each in pair
        ]
        off = _ROUND_OFF * (1 + self.count)
        more = abs(self.hits[1] - self.hits[0] - self.sums[1, 0])
        fits += [possible(rows.by_shares), possible(rows.by_shares_less_b)]
        if not all(fits) or more > off or self.hits.max() > self.count + off:
            raise at.bad(f"hits, sums and bets must be those of {self.count} rows, they are not")

    @classmethod
    def of(cls, rows: Rows) -> "FigureAnswer":
        """Make the answer of what a client measured."""
        shares = rows.by_shares, rows.by_shares_less_b
        bets = (rows.brier, rows.brier_below, rows.accuracy, rows.accuracy_below, *shares)
        sums = np.stack([each.sums for each in (rows.brier, rows.accuracy, *shares)])
        return cls(rows.brier.count, rows.hits, sums, np.concatenate([each.log_wealth for each in bets]))

    @property
    def rows(self) -> Rows:
        """What the client measured."""
        bets, turned = np.split(self.bets[:-2], 4), np.array([-1, 1, -1])
        brier, accuracy, by_shares, less_b = self.sums
        return Rows(
            hits=self.hits,
            brier=Evidence(self.count, brier, bets[0]),
            brier_below=Evidence(self.count, turned * brier, bets[1]),
            accuracy=Evidence(self.count, accuracy, bets[2]),
            accuracy_below=Evidence(self.count, turned * accuracy, bets[3]),
            by_shares=Evidence(self.count, by_shares, self.bets[-2:-1]),
            by_shares_less_b=Evidence(self.count, less_b, self.bets[-1:]),
        )


_LIMITS = (LARGEST_BRIER, 1.0)


@dataclass(frozen=True, eq=False)
class FigureQuestion(Pair, codec.Question[FigureAnswer]):
    """The question how well two models predict a client's test rows.

    Attributes
    ----------
    rows
        As of :class:`ProofQuestion`.
    bets
        Whether to bet on margins for an interval, as rows are few.
    """

    kind = "query.figure"

    rows: Annotated[int, codec.Whole(1)]
    bets: Annotated[bool, codec.Flag(sparse=True)] = False
