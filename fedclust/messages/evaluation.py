"""What clients measure of models on their own rows: figures and counts, and with personal layers on top."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from fedclust.messages.codec import (
    ARRAYS,
    IN_ARRAYS,
    IN_CONFIG,
    IN_METRICS,
    LARGEST_NUMBER,
    METRICS,
    Flag,
    Model,
    Numbers,
    Own,
    Place,
    Question,
    Reading,
    Real,
    Spread,
    Text,
    Values,
    Whole,
    as_record,
    least_loss,
    short,
    test_rows,
)
from fedclust.messages.training import LOSS, NUM_EXAMPLES
from fedclust.metrics import CLIENT_FIGURES, Outcomes
from fedclust.metrics.pooled import NUM_BINS
from fedclust.personal.layers import FINETUNE, NONE, PRIOR, Finetune
from fedclust.support.array_bytes import from_numpy, parse
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd


# -- Figures ------------------------------------------------------------------------------------------------

_FIGURES = frozenset(CLIENT_FIGURES)
_NEEDED = (NUM_EXAMPLES, LOSS, "accuracy", "balanced-accuracy")
_RANKING = frozenset({"macro-f1", "auc"})
_SHARES = _RANKING | {"accuracy", "balanced-accuracy"}
_ROUND_OFF = 1e-9
_ROWS = Whole(IN_METRICS, 0, test_rows)


def _write_figures(figures: Mapping[str, float]) -> MetricRecord:
    return MetricRecord({name: float(value) for name, value in figures.items()})


def _read_figures(record: MetricRecord, at: Reading) -> dict[str, float]:
    """Check figures on a client's test part; a loss that is not finite is none of the client's fault."""
    figures: dict[str, Any] = dict(record.items())  # a record's own look-ups are slow
    own = figures.keys() - _FIGURES
    if own and (unknown := own - set(at.bounds.own_metrics)):
        raise at.bad(f"metrics must be {', '.join(CLIENT_FIGURES)}, got {short(sorted(unknown))}")
    for key in _NEEDED:
        if key not in figures:
            raise at.lacks(key, figures)
    for name, value in figures.items():
        if type(value) is not float and type(value) is not int:
            raise at.bad(f"{name} must be a number, got {short(value)}")
    num_examples = _ROWS.read(figures[NUM_EXAMPLES], NUM_EXAMPLES, at)
    for name, share in figures.items():
        if name not in _SHARES or 0 <= share <= 1:
            continue
        # A ranking figure may be undefined, and so is every figure where there is nothing to measure it on.
        undefined = math.isnan(share) and (name in _RANKING or num_examples == 0)
        if not (undefined or -_ROUND_OFF <= share <= 1 + _ROUND_OFF):
            raise at.bad(f"{name} must be in [0, 1], got {share}")
    _check_loss(figures[LOSS], LOSS, at)
    return {name: float(value) for name, value in figures.items()}


def _check_loss(loss: float, name: str, at: Reading) -> None:
    """Check that a loss is in its range, or is not finite: the model may be to blame for that."""
    least = least_loss(at)
    if math.isfinite(loss) and not least <= loss <= LARGEST_NUMBER:
        raise at.bad(f"{name} must be in [{least:g}, {LARGEST_NUMBER:g}], got {loss}")


# -- Counts of rows by label, prediction and score ----------------------------------------------------------

_COUNTS, _GAPS, _POSITIVES, _NEGATIVES = "class-counts", "score-gaps", "score-positives", "score-negatives"
_CONFUSION = "confusion"
_KNOWN = frozenset({_COUNTS, _GAPS, _POSITIVES, _NEGATIVES, _CONFUSION})


def _write_outcomes(outcomes: Outcomes) -> ArrayRecord:
    """Write counts, each array in the narrowest type that holds it.

    Most counts of a bin take one byte; most gaps between bins that are not empty, one or two.
    """
    arrays = {_COUNTS: np.stack([outcomes.there, outcomes.predicted, outcomes.hits])}
    if outcomes.bins is not None:
        gaps = np.diff(outcomes.bins, prepend=-1)
        arrays |= {_GAPS: gaps, _POSITIVES: outcomes.positives, _NEGATIVES: outcomes.negatives}
    if outcomes.confusion is not None:
        arrays[_CONFUSION] = outcomes.confusion
    narrow = {name: np.min_scalar_type(values.max(initial=0)) for name, values in arrays.items()}
    return as_record({name: from_numpy(values.astype(narrow[name])) for name, values in arrays.items()})


def _read_outcomes(record: ArrayRecord, at: Reading) -> Outcomes:
    """Read counts, which must be of at most the client's rows and add up."""
    arrays, most = {}, test_rows(at)
    for name, array in record.items():
        try:
            arrays[name] = values = parse(array)
        except ValueError as error:
            raise at.bad(f"{name[:50]} {error}") from error
        if name not in _KNOWN or values.dtype.kind != "u":
            raise at.bad(f"{name[:50]} must be counts, got {values.dtype}")
        if (values > most).any() and name != _GAPS:
            raise at.bad(f"{name} must be counts of at most {most} rows, they are of more")
    if _COUNTS not in arrays:
        raise at.lacks(_COUNTS, arrays)
    counts = arrays[_COUNTS].astype(np.int64)
    if counts.ndim != 2 or len(counts) != 3 or (counts[2] > counts[:2]).any():
        raise at.bad(
            f"{_COUNTS} must be rows, predictions and hits, at most as many, of each class, "
            f"got shape {counts.shape}"
        )
    there, predicted, hits = counts
    classes = at.bounds.num_classes
    if classes not in (None, len(there)) or there.sum() > most or predicted.sum() != there.sum():
        raise at.bad(
            f"{_COUNTS} must be of {classes} classes and of at most {most} rows, each predicted once, "
            f"got {len(there)} classes, {there.sum()} rows and {predicted.sum()} predictions"
        )
    confusion = arrays[_CONFUSION].astype(np.int64) if _CONFUSION in arrays else None
    if confusion is not None and not _agree(confusion, there, predicted, hits):
        raise at.bad(f"{_CONFUSION} must add up to {_COUNTS}, got shape {confusion.shape}")
    none = np.zeros(0, dtype=np.int64)
    if _GAPS not in arrays:
        return Outcomes(there, predicted, hits, None, none, none, confusion)
    gaps, positives, negatives = (
        arrays.get(name, none).astype(np.int64) for name in (_GAPS, _POSITIVES, _NEGATIVES)
    )
    bins = NUM_BINS * len(there)
    fits = gaps.ndim == 1 and (gaps > 0).all() and (gaps <= bins).all() and gaps.sum() <= bins
    if not (fits and gaps.shape == positives.shape == negatives.shape):
        raise at.bad(
            f"{_GAPS} must be > 0, add up to at most {bins} and each have its counts, "
            f"got shapes {gaps.shape}, {positives.shape}, {negatives.shape}"
        )
    return Outcomes(there, predicted, hits, np.cumsum(gaps) - 1, positives, negatives, confusion)


def _agree(confusion: IntArray, there: IntArray, predicted: IntArray, hits: IntArray) -> bool:
    return confusion.shape == (len(there), len(there)) and all(
        map(
            np.array_equal,
            (confusion.sum(axis=1), confusion.sum(axis=0), confusion.diagonal()),
            (there, predicted, hits),
        )
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
        Of a full evaluation, the counts that figures over all clients' rows are computed from.
    """

    client: int
    metrics: Annotated[dict[str, float], Own(Place(METRICS, MetricRecord), _write_figures, _read_figures)]
    outcomes: Annotated[
        Outcomes | None, Own(Place("outcomes", ArrayRecord), _write_outcomes, _read_outcomes)
    ] = None


@dataclass(frozen=True, eq=False)
class EvaluateQuestion(Question[Evaluation]):
    """The question how a model does on a client's test part, outside of a round's evaluation.

    Attributes
    ----------
    arrays
        The model.
    server_round
        The last round.
    full
        Whether to measure macro F1 and AUC too, and count outcomes.
    """

    kind = "evaluate"
    answer = Evaluation

    arrays: Annotated[ArrayRecord, Model()]
    server_round: Annotated[int, Whole(IN_CONFIG)]
    full: Annotated[bool, Flag(IN_CONFIG, key="full-metrics")] = True


# -- Personal layers ----------------------------------------------------------------------------------------

_TOLD, _HOW = Place("personal", ConfigRecord), Place("finetune", ConfigRecord, optional=True)
_REASON = Text(Place("failed", ConfigRecord), 10**6)


def _layers(at: Reading) -> tuple[str, ...]:
    return at.asked.layers


def _read_losses(record: MetricRecord, at: Reading) -> dict[str, float]:
    """Read validation losses; one that is not finite becomes NaN, as the model may be to blame."""
    at.known(record, (NONE, *_layers(at)), "validation-losses")
    told: dict[str, Any] = dict(record.items())
    for layer, loss in told.items():
        if type(loss) is not float:
            raise at.bad(f"validation loss of {layer} must be a number, got {short(loss)}")
        _check_loss(loss, f"validation loss of {layer}", at)
    return {layer: loss if math.isfinite(loss) else math.nan for layer, loss in told.items()}


def _read_reasons(record: ConfigRecord, at: Reading) -> dict[str, str]:
    said = {layer: _REASON.read(reason, "failed", at) for layer, reason in record.items()}
    return {layer: said[layer] for layer in _layers(at) if layer in said}


@dataclass(frozen=True, eq=False)
class PersonalAnswer:
    """What a client measured; no model of its own leaves it.

    Attributes
    ----------
    figures, outcomes
        By layer, what it scored on the client's test part, as in an evaluation.
    losses
        By layer, ``"none"`` included, the mean loss of its validation rows in nats, NaN where it is not
        finite; empty without such rows.
    failed
        By layer, why the client could not make it.
    """

    client: int
    figures: Annotated[
        Mapping[str, dict[str, float]],
        Spread(Own(Place("", MetricRecord), _write_figures, _read_figures), _layers, "figures/"),
    ]
    outcomes: Annotated[
        Mapping[str, Outcomes],
        Spread(Own(Place("", ArrayRecord), _write_outcomes, _read_outcomes), _layers, "outcomes/"),
    ] = field(default_factory=dict)
    losses: Annotated[
        Mapping[str, float], Own(Place("validation-losses", MetricRecord), _write_figures, _read_losses)
    ] = field(default_factory=dict)
    failed: Annotated[
        Mapping[str, str],
        Own(Place("failed", ConfigRecord), lambda failed: ConfigRecord(dict(failed)), _read_reasons),
    ] = field(default_factory=dict)

    def check(self, at: Reading) -> None:
        """Check that each layer is either measured or said to have failed."""
        for layer in _layers(at):
            if layer not in self.figures and layer not in self.failed:
                raise at.lacks(f"figures/{layer}", self.figures)

    @property
    def tests(self) -> dict[str, Evaluation]:
        """By layer, what the client scored with it."""
        return {
            layer: Evaluation(self.client, figures, self.outcomes.get(layer))
            for layer, figures in self.figures.items()
        }


@dataclass(frozen=True, eq=False)
class PersonalQuestion(Question[PersonalAnswer]):
    """The question how well personal layers serve a client.

    The model is a record that clients may share and that travels once; the rest is the client's own.

    Attributes
    ----------
    model
        The model that serves it.
    server_round
        The round whose batches fine-tuning draws: the one after the last.
    shift
        What the label-prior correction adds to its logits, shape (C,); None where that is not asked for.
    epochs, layers_trained, learning_rate
        How to fine-tune, see :class:`~fedclust.personal.layers.Finetune`; None where that is not asked for.
    """

    kind = "query.personal"
    answer = PersonalAnswer

    model: Annotated[ArrayRecord, Model()]
    server_round: Annotated[int, Whole(_TOLD)]
    shift: Annotated[FloatArray | None, Numbers(_TOLD, key="prior-shift")] = None
    epochs: Annotated[int | None, Whole(_HOW)] = None
    layers_trained: Annotated[str | None, Text(_HOW, key="layers")] = None
    learning_rate: Annotated[float | None, Real(_HOW)] = None

    @classmethod
    def of(
        cls, model: ArrayRecord, server_round: int, shift: FloatArray | None, finetune: Finetune | None
    ) -> "PersonalQuestion":
        """Make the question for a correction, for fine-tuning, or for both."""
        if finetune is None:
            return cls(model, server_round, shift)
        return cls(model, server_round, shift, finetune.epochs, finetune.layers, finetune.learning_rate)

    @property
    def finetune(self) -> Finetune | None:
        """How to fine-tune; None where that is not asked for."""
        if self.epochs is None or self.layers_trained is None:
            return None
        return Finetune(self.epochs, self.layers_trained, self.learning_rate)  # type: ignore[arg-type]

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers to try."""
        asked = ((PRIOR, self.shift), (FINETUNE, self.finetune))
        return tuple(layer for layer, said in asked if said is not None)


# -- Counts and predictions ---------------------------------------------------------------------------------

_KEPT = Place(ARRAYS, ArrayRecord, optional=True)


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each label (rows) was predicted as each class (columns) on a client's test part.

    Attributes
    ----------
    confusion
        Shape (C, C).
    """

    confusion: Annotated[IntArray, Values(IN_ARRAYS, "i8", "C C", 0, test_rows, (0, test_rows))]

    def check(self, at: Reading) -> None:
        """Check that there are as many rows as columns."""
        if len(set(self.confusion.shape)) > 1:
            raise at.bad(f"confusion must be counts of shape (C, C), got shape {self.confusion.shape}")


@dataclass(frozen=True, eq=False)
class ConfusionQuestion(Question[Confusion]):
    """The question what a model predicts on a client's test part."""

    kind = "query.confusion"
    answer = Confusion

    arrays: Annotated[ArrayRecord, Model()]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a client's test rows, for a simulation; a deployed node says only how many there are.

    Attributes
    ----------
    num_examples
        Number of rows n.
    rows
        Rows of the dataset, shape (n,); None if the node keeps its predictions, and so for what follows.
    labels
        Their classes, shape (n,) or (n, positions).
    probabilities
        Shape (n, C) or (n, positions, C).
    """

    num_examples: Annotated[int, Whole(IN_METRICS, 0, test_rows)]
    rows: Annotated[IntArray | None, Values(_KEPT, "i8", "n", None)] = None
    labels: Annotated[IntArray | None, Values(_KEPT, "i8", "n ...", None)] = None
    probabilities: Annotated[FloatArray | None, Values(_KEPT, "f4", "n ...", None)] = None

    def table(self, client: int, name: str | None, class_names: Sequence[str]) -> "pd.DataFrame":
        """Build the table of a client's predictions.

        Parameters
        ----------
        client, name
            The client's id, and its name or None.
        class_names
            Names of the classes, shape (C,).

        Returns
        -------
        A row per row, or per row and position, with ``client``, ``name`` where there is one, ``row``,
        ``position`` where there are some, ``label`` and ``predicted`` by name, and a column ``p: <class>``
        each.
        """
        import pandas as pd

        rows, labels, chances = (np.asarray(each) for each in (self.rows, self.labels, self.probabilities))
        names = np.array(class_names, dtype=object)
        flat = chances.reshape(-1, chances.shape[-1])[:, : len(names)]
        positions = labels.shape[1] if labels.ndim > 1 else 1
        table: dict[str, object] = {"client": np.full(len(flat), client)}
        if name is not None:
            table["name"] = name
        table["row"] = np.repeat(rows, positions)
        if labels.ndim > 1:
            table["position"] = np.tile(np.arange(positions), len(rows))
        table["label"] = names[labels.reshape(-1)]
        table["predicted"] = names[flat.argmax(axis=1)]
        table |= {f"p: {each}": flat[:, place] for place, each in enumerate(class_names)}
        return pd.DataFrame(table)

    def check(self, at: Reading) -> None:
        """Check that the arrays are of as many rows."""
        shapes = [() if each is None else each.shape for each in (self.rows, self.labels, self.probabilities)]
        one, other, last = shapes
        fits = one == (self.num_examples,) == other[:1] and len(other) <= 2 and last[:-1] == other
        if any(shapes) and not (fits and last[-1]):
            raise at.bad(f"predictions must be of {self.num_examples} rows, got {one}, {other}, {last}")


@dataclass(frozen=True, eq=False)
class PredictionsQuestion(Question[Predictions]):
    """The question what a model predicts for a client's test rows."""

    kind = "query.predictions"
    answer = Predictions

    arrays: Annotated[ArrayRecord, Model()]
