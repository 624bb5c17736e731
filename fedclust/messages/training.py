"""Messages of training and evaluation: the instruction, and the answer, a model or only its change."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import ArrayLike, NDArray

from fedclust.messages import codec
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.support.rng import generator
from fedclust.typing import FloatArray

NUM_EXAMPLES, LOSS, EQUAL_WEIGHTS = "num-examples", "loss", "equal-weights"
ARMS = "arm/"
"""What the names of records begin with that hold further models to train."""

Sent = TypeVar("Sent")

_FURTHER = codec.Spread(  # by whole names; a node's own reading of an instruction takes them out itself
    codec.Own(codec.Place("", ArrayRecord)), lambda at: tuple(getattr(at.asked, "arms", ()))
)


@dataclass(frozen=True)
class Projection:
    """A count sketch: each entry is added, with a random sign, to one of a few random sums.

    Inner products, and so lengths and angles, are kept on average: for changes x and y and m sums, the
    product of the sketches has mean xᵀy and variance at most (‖x‖²‖y‖² + (xᵀy)²) / m. Nothing is stored per
    entry: entry i of an array always gets the same sum and sign, by the seed, the array's name and i.

    Source: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002; the variance
    is that of Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009, Lemma 2.

    Parameters
    ----------
    size
        Number of sums m, >= 1.
    seed
        Seed of the sums and signs, >= 0. Only projections of one size and seed can be compared.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.seed < 0:
            raise ValueError(f"projection must have size >= 1 and seed >= 0, got {self.size} and {self.seed}")

    def of(self, changes: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
        """Project the changes of several clients.

        Parameters
        ----------
        changes
            By array name, the change of each client, shape (n, …).

        Returns
        -------
        The sums of each client, float64, shape (n, size). A client's row does not depend on the others.

        Raises
        ------
        ValueError
            If there is no array, or arrays are of different numbers of clients.
        """
        arrays = {name: np.asarray(array) for name, array in changes.items()}
        numbers = {len(array) for array in arrays.values()}
        if len(numbers) != 1:
            raise ValueError(f"changes must have one first axis, the clients, got lengths {sorted(numbers)}")
        (number,) = numbers
        projected = np.zeros((number, self.size))
        for name, array in arrays.items():
            rows = array.reshape(number, -1)
            draws = generator(self.seed, "projection", zlib.crc32(name.encode()))
            # One draw gives the sum and the sign: the upper half is subtracted.
            places = draws.integers(0, 2 * self.size, rows.shape[1])
            for row, sums in zip(rows, projected, strict=True):
                both = np.bincount(places, weights=row, minlength=2 * self.size)
                sums += both[: self.size] - both[self.size :]
        return projected


def _projection(asked: Any) -> Projection | None:
    """Return the projection that is asked for by its size and seed."""
    return Projection(asked.projection_size, asked.projection_seed or 0) if asked.projection_size else None


_TYPE = np.dtype("<f4")


def _sums(packed: Any) -> FloatArray:
    if not isinstance(packed, bytes) or len(packed) % _TYPE.itemsize:
        raise ValueError("must be bytes of float32")
    return np.frombuffer(packed, dtype=_TYPE).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Projected:
    """A projection of the change that training made to a client's model.

    Attributes
    ----------
    values
        The projection of the change of all trained parameters, shape (size,); sent as float32.
    norm
        Length of that change before the projection, ‖Δ‖₂.
    """

    place = codec.Place("projection", ConfigRecord, when="projection")

    # Bytes, because Flower checks each number of a list, and its aggregators refuse a second ArrayRecord.
    values: Annotated[
        FloatArray,
        codec.Made(
            key="projection",
            writes=lambda values: np.asarray(values, dtype=_TYPE).tobytes(),
            reads=_sums,
        ),
    ]
    norm: Annotated[float, codec.Real(0)]

    def check(self, at: codec.Reading) -> None:
        """Check the projection's length."""
        size = at.asked.projection.size
        if self.values.shape != (size,) or not np.isfinite(self.values).all():
            raise at.bad(f"projection must be {size} finite numbers, got {len(self.values)} numbers")

    @property
    def longest(self) -> float:
        """Length of the change: the larger of the reported one and the projection's, which hardly differ."""
        return max(self.norm, float(np.linalg.norm(self.values)))


_LOSSES = codec.Place("losses", ConfigRecord)
_POOLED = codec.Place("pooled", ConfigRecord, optional=True, when="pooled")


def _trained_rows(at: codec.Reading) -> int:
    rows = at.bounds.num_train
    pooled = at.asked is not None and at.asked.pooled and rows is not None and len(rows)
    return int(rows.sum()) if pooled else codec.train_rows(at)  # type: ignore[union-attr]


def _most_losses(at: codec.Reading) -> int:
    """Return the most steps of which a client may send the loss: those of its training, where known."""
    steps = at.bounds.num_steps
    pooled = at.asked is not None and at.asked.pooled
    return codec.MOST_LISTED if steps is None or pooled or at.client >= len(steps) else int(steps[at.client])


@dataclass(frozen=True, eq=False)
class TrainAnswer:
    """A client's reply to a round of training.

    Attributes
    ----------
    client
        Its id.
    arrays
        Its model, or the mean model of the clients of its cluster that share its node.
    num_examples
        Number of its training samples.
    losses
        Training loss before each local step, in nats, shape (steps,).
    mean_loss
        Mean of `losses`, for Flower's own strategies; the server computes it itself.
    projected
        Projection of its change; None if not asked for.
    update_norm
        Length of the change in this client's own model; sent if the model is a shared mean.
    within
        Whether its update was at most as long as the clip; None if it does not report this.
    pooled
        Number of clients whose training rows were used.
    arms
        The further models that it trained, by the names of their records.
    """

    place = codec.IN_METRICS

    client: int
    arrays: Annotated[ArrayRecord, codec.Model()]
    num_examples: Annotated[int, codec.Whole(1, _trained_rows)]
    # Not in the MetricRecord: lists of differing lengths break Flower's metric aggregation.
    losses: Annotated[
        FloatArray,
        codec.Numbers(codec.least_loss, codec.LARGEST_LOSS, at_least=1, at_most=_most_losses, place=_LOSSES),
    ]
    mean_loss: Annotated[float | None, codec.Made(key="loss", reads=lambda _: None)] = None
    projected: Projected | None = None
    update_norm: Annotated[float | None, codec.Real(0, math.inf)] = None
    within: Annotated[bool | None, codec.Flag(key="within-clip")] = None
    pooled: Annotated[int, codec.Whole(place=_POOLED, sparse=True)] = 1
    arms: Annotated[Mapping[str, ArrayRecord], _FURTHER] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Mean training loss over its steps, in nats."""
        return float(self.losses.sum()) / len(self.losses)


@dataclass(frozen=True, eq=False)
class Instruction(codec.Question[TrainAnswer]):
    """The server's instruction to train.

    Attributes
    ----------
    arrays
        The model to start from.
    server_round
        The round, from 1; 0 if the sender does not count rounds.
    proximal_mu
        Weight of FedProx's proximal term, or None if the sender does not use it.
    mean_reply
        Whether clients that got the same model may answer with their mean model.
    norm_cap
        Largest ratio of the lengths of two updates in one mean; None for any.
    most_rows
        How many of a client's rows count at most.
    projection_size, projection_seed
        Projection of the change by training to be returned; None for none.
    equal_weights
        Whether clients have equal weights in such a mean; otherwise they are weighted by samples.
    pooled
        To train on the rows of several clients at once: the clients that would take part, whose local
        training determines the number of samples to see. Otherwise empty.
    pooled_rows
        The clients on whose training rows to train then; empty for all clients.
    clip
        Length to which the client's update is clipped before it is used; None for no clipping.
    clip_tells
        Whether the client reports if its update was short enough.
    patient_clip, patient_noise, patient_sampling
        Length to which each patient's gradients are clipped, noise on their sum as a multiple of it, and the
        probability that a step draws a patient; None to train without protecting patients.
    published_noise
        Whether that noise comes from the run's seed, which a node outside of the user's processes refuses.
    arms
        Further models to train, by the names of their records, see :mod:`fedclust.messages.coalitions`.
    mixture, label_shares
        How much of each model the client is, and the share of each class in each model's rows, shapes
        (models,) and (models · C,), `arrays` first: a row's loss is then weighted by how much a model is
        responsible for it, see :mod:`fedclust.clustering.fedrc`. None for no weights.
    stays, stays_rate, stays_adapts
        By which rule of :mod:`fedclust.personal.staying` the client trains and keeps what the model lacks, or
        a model of its own; the rule's number, and whether the client adapts it. Empty to keep nothing.
    extra
        Entries of the user's own for a ClientApp of the user's own; ours does not read them.
    step_losses
        Whether the method reads the loss of each step, which ours always sends.
    """

    kind = "train"

    arrays: Annotated[ArrayRecord, codec.Model()]
    server_round: Annotated[int, codec.Whole()] = 0
    proximal_mu: Annotated[float | None, codec.Real()] = None
    mean_reply: Annotated[bool, codec.Flag()] = False
    norm_cap: Annotated[float | None, codec.Real(key="update-norm-cap")] = None
    most_rows: Annotated[int, codec.Whole(1, sparse=True)] = codec.MOST_EXAMPLES
    projection_size: Annotated[int | None, codec.Whole()] = None
    projection_seed: Annotated[int | None, codec.Whole(0, 2**64)] = None
    equal_weights: Annotated[bool, codec.Flag(sparse=True)] = False
    pooled: Annotated[tuple[int, ...], codec.Numbers(0, to=int, sparse=True)] = ()
    pooled_rows: Annotated[tuple[int, ...], codec.Numbers(0, to=int, sparse=True)] = ()
    clip: Annotated[float | None, codec.Real(0)] = None
    clip_tells: Annotated[bool, codec.Flag(sparse=True)] = False
    patient_clip: Annotated[float | None, codec.Real(0)] = None
    patient_noise: Annotated[float, codec.Real(0, sparse=True)] = 0.0
    patient_sampling: Annotated[float, codec.Real(0, 1, sparse=True)] = 1.0
    published_noise: Annotated[bool, codec.Flag(sparse=True)] = False
    arms: Annotated[Mapping[str, ArrayRecord], _FURTHER] = field(default_factory=dict)
    mixture: Annotated[FloatArray | None, codec.Numbers(0, 1)] = None
    label_shares: Annotated[FloatArray | None, codec.Numbers(0, 1)] = None
    stays: Annotated[str, codec.Text(sparse=True)] = ""
    stays_rate: Annotated[float, codec.Real(0, sparse=True)] = 0.0
    stays_adapts: Annotated[bool, codec.Flag(sparse=True)] = False
    extra: Mapping[str, Any] = field(default_factory=dict, metadata=codec.UNSENT)
    step_losses: bool = field(default=False, metadata=codec.UNSENT)

    projection = cached_property(_projection)

    def __post_init__(self) -> None:
        """Check that no client's rows count twice: noise is for each patient's once."""
        for name in ("pooled", "pooled_rows"):
            if len(set(clients := getattr(self, name))) < len(clients):
                raise ValueError(f"{name} must name each client once, got {codec.short(clients)}")


def read_sent(question: type[Sent], content: RecordDict) -> Sent:
    """Read a message to train or evaluate, including those of Flower's own strategies.

    Parameters
    ----------
    question
        :class:`Instruction` or :class:`~fedclust.messages.evaluation.EvaluateQuestion`.
    content
        The message's content: one model, under any name, and settings.

    Raises
    ------
    ValueError
        If it does not hold exactly one model.
    """
    sent = codec.of_kind(content, ArrayRecord)
    arms = {name: model for name, model in sent.items() if name.startswith(ARMS)}
    models = [model for name, model in sent.items() if name not in arms]
    if len(models) != 1:
        raise ValueError(f"message must hold one ArrayRecord, got records {list(content)}")
    config = next(iter(codec.of_kind(content, ConfigRecord).values()), ConfigRecord())
    read = codec.decode(question, {codec.ARRAYS: models[0], codec.CONFIG: config}, codec.SERVER)
    known: Any = question
    extra = {key: value for key, value in config.items() if key not in codec.keys_of(known)}
    further = ({"arms": arms} if arms else {}) | ({"extra": extra} if extra else {})
    return replace(read, **further) if further else read  # type: ignore[type-var]


# -- Only the change ----------------------------------------------------------------------------------------


def _write_changes(changes: Mapping[str, FloatArray]) -> ArrayRecord:
    return codec.as_record({name: from_numpy(np.asarray(each, np.float32)) for name, each in changes.items()})


def _read_changes(record: ArrayRecord, at: codec.Reading) -> dict[str, FloatArray]:
    """Read the requested changes, in float64, so that their squares do not overflow."""
    asked: UpdateQuestion = at.asked
    at.known(record, asked.names, codec.ARRAYS)
    changes: dict[str, FloatArray] = {}
    for name in asked.names:
        if name not in record:
            raise at.lacks(name, record)
        shape = tuple(asked.arrays[name].shape)
        try:
            sent = to_numpy(record[name])
        except ValueError as error:
            raise at.bad(f"{name} {error}") from error
        fits = sent.dtype.kind == "f" and sent.shape == shape
        with np.errstate(over="ignore"):
            change = sent.astype(np.float64) if fits else sent
        # Compared in float64, because the limit is infinite in float16.
        if not fits or not (np.abs(change) <= codec.LARGEST_NUMBER).all():
            raise at.bad(f"change of {name!r} must be finite, of shape {shape}, got {sent.dtype}{sent.shape}")
        changes[name] = change
    return changes


@dataclass(frozen=True, eq=False)
class Update:
    """The change that training made to a client's model.

    Attributes
    ----------
    client
        Its id.
    num_examples
        Number of its training samples.
    changes
        The change, model − start, of the requested arrays, by name; sent as float32.
    projected
        Projection of the change of all trained parameters; None if not requested.
    """

    place = codec.IN_METRICS

    client: int
    num_examples: Annotated[int, codec.Whole(1, codec.train_rows)]
    changes: Annotated[
        Mapping[str, FloatArray],
        codec.Own(codec.Place(codec.ARRAYS, ArrayRecord), _write_changes, _read_changes, rounds=True),
    ]
    projected: Projected | None = None

    @property
    def norm(self) -> float:
        """Length of the longest array or projection in the reply."""
        length = math.sqrt(sum(float(np.square(change).sum()) for change in self.changes.values()))
        return length if self.projected is None else max(length, self.projected.longest)


@dataclass(frozen=True, eq=False)
class UpdateQuestion(codec.Question[Update]):
    """Ask for the change that training would make, also from clients outside of the round.

    Attributes
    ----------
    arrays
        The model to start from.
    server_round
        The round whose batches and learning rate are used.
    names
        Arrays whose change is sent without projection.
    projection_size, projection_seed
        Projection of the change of all trained parameters; None for none.
    """

    kind = "query.update"

    arrays: Annotated[ArrayRecord, codec.Model()]
    server_round: Annotated[int, codec.Whole()]
    names: Annotated[tuple[str, ...], codec.Texts()] = ()
    projection_size: Annotated[int | None, codec.Whole()] = None
    projection_seed: Annotated[int | None, codec.Whole(0, 2**64)] = None

    proximal_mu: ClassVar[float | None] = None
    stays: ClassVar[str] = ""
    stays_rate: ClassVar[float] = 0.0
    stays_adapts: ClassVar[bool] = False
    pooled: ClassVar[tuple[int, ...]] = ()
    pooled_rows: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def of(
        cls, model: ArrayRecord, server_round: int, names: Sequence[str], projection: Projection | None
    ) -> "UpdateQuestion":
        """Make the question for some arrays, a projection, or both."""
        sketch = () if projection is None else (projection.size, projection.seed)
        return cls(model, server_round, tuple(names), *sketch)

    projection = cached_property(_projection)

    def check(self, at: codec.Reading) -> None:
        """Check that the model has the arrays."""
        if unknown := set(self.names) - set(self.arrays):
            raise at.bad(f"names must be arrays of the model, {list(self.arrays)}, got {sorted(unknown)}")
