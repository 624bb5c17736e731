"""What clients say of their data before round 1, and how its raw rows become inputs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from flwr.app import ConfigRecord

from fedclust.data.input_encoders import InputEncoder, encoder_from, to_values
from fedclust.messages.codec import (
    CONFIG,
    IN_CONFIG,
    MOST_EXAMPLES,
    Made,
    Numbers,
    Pairs,
    Place,
    Question,
    Reading,
    Text,
    Texts,
    Whole,
)
from fedclust.privacy import Tells
from fedclust.typing import IntArray

_NAMES = Place("names", ConfigRecord)


@dataclass(frozen=True)
class Names:
    """Names in a federation's data, the same for all clients.

    Attributes
    ----------
    classes
        Names of the classes, in label order, shape (C,); empty if unknown.
    left_out
        Names of those with too few examples to be a client, and their numbers of examples.
    """

    classes: Annotated[tuple[str, ...], Texts(_NAMES, key="class-names")] = ()
    left_out: Annotated[
        Mapping[str, int],
        Pairs(Texts(_NAMES), Numbers(_NAMES, 0, MOST_EXAMPLES, int, key="left-out-rows")),
    ] = field(default_factory=dict)


_COUNTS = {"least": 0, "most": MOST_EXAMPLES, "to": np.int64, "at_least": 1}
_TOLD: Mapping[Tells, tuple[str, ...]] = {
    "labels": ("label_counts", "test_label_counts"),
    "sizes": ("num_classes", "num_train", "num_test"),
    "nothing": ("num_classes",),
}
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class Description:
    """A client's description of its data, before round 1.

    Attributes
    ----------
    label_counts, test_label_counts
        Number of its training and test samples of each class, shape (C,); None where nobody asked.
    num_classes
        Number of classes C, where nobody asked for label counts.
    num_train, num_test
        Number of its training and test samples, where that is all that was asked for.
    known_group
        The known group it belongs to; −1 for none.
    mean, std
        The numbers it subtracts from and divides each channel of its images by; empty if it does not.
    name
        Its name in the data (a hospital, a writer, a user), or None.
    num_validation
        Number of its training rows that are held out for the proof.
    names
        Names that are the same for all clients of its data.
    """

    label_counts: Annotated[IntArray | None, Numbers(IN_CONFIG, **_COUNTS, key="train-counts")] = None
    test_label_counts: Annotated[IntArray | None, Numbers(IN_CONFIG, **_COUNTS, key="test-counts")] = None
    num_classes: Annotated[int | None, Whole(IN_CONFIG, 1, 2**24)] = None
    num_train: Annotated[int | None, Whole(IN_CONFIG, 1)] = None
    num_test: Annotated[int | None, Whole(IN_CONFIG)] = None
    known_group: Annotated[int, Whole(IN_CONFIG, -1, key="group")] = -1
    # A model is of no use without the numbers that images are scaled by.
    mean: Annotated[tuple[float, ...], Numbers(IN_CONFIG, to=float)] = ()
    std: Annotated[tuple[float, ...], Numbers(IN_CONFIG, _TINY, to=float)] = ()
    name: Annotated[str | None, Text(IN_CONFIG)] = None
    num_validation: Annotated[int, Whole(IN_CONFIG, key="validation", sparse=True)] = 0
    names: Names = field(default_factory=Names)

    @classmethod
    def of(
        cls, train_counts: IntArray, test_counts: IntArray, tells: Tells = "labels", **fields: Any
    ) -> "Description":
        """Describe a client by its label counts, as far as it is to tell them.

        Parameters
        ----------
        train_counts, test_counts
            Number of its training and test samples of each class, shape (C,).
        tells
            What is said of its rows.
        fields
            The others of the description; a ``known_group`` of None is none.
        """
        told: dict[str, Any] = {
            "label_counts": np.asarray(train_counts),
            "test_label_counts": np.asarray(test_counts),
            "num_classes": len(train_counts),
            "num_train": int(np.sum(train_counts)),
            "num_test": int(np.sum(test_counts)),
        }
        if fields.get("known_group") is None:
            fields["known_group"] = -1
        if tells == "nothing":
            fields.pop("num_validation", None)
        return cls(**{name: told[name] for name in _TOLD[tells]}, **fields)

    def check(self, at: Reading) -> None:
        """Check that the client says what was asked, and that lists are as long."""
        tells: Tells = "labels" if at.asked is None else at.asked.tells
        for name in _TOLD["labels"] + _TOLD["sizes"]:
            if (getattr(self, name) is None) == (name in _TOLD[tells]):
                raise at.bad(f"a description must have {' and '.join(_TOLD[tells])}, {name} is not as asked")
        if tells == "nothing" and self.num_validation:
            raise at.bad("a description must not tell its held-out rows")
        if self.label_counts is not None and self.test_label_counts is not None:
            if len(self.label_counts) != len(self.test_label_counts):
                classes, others = len(self.label_counts), len(self.test_label_counts)
                raise at.bad(f"test-counts must be of {classes} classes, got {others}")
            if not self.label_counts.any():
                raise at.bad("train-counts must not all be 0")
        if len(self.mean) != len(self.std):
            raise at.bad(f"mean and std must be as long, got {len(self.mean)} and {len(self.std)}")

    @property
    def train_counts(self) -> IntArray:
        """Number of its training samples of each class, shape (C,).

        Where nobody asked for them they are 0 but for the first, which is the number of them all, or 0 too.
        """
        return self._counts(self.label_counts, self.num_train)

    @property
    def test_counts(self) -> IntArray:
        """Number of its test samples of each class, likewise."""
        return self._counts(self.test_label_counts, self.num_test)

    def _counts(self, told: IntArray | None, rows: int | None) -> IntArray:
        if told is not None:
            return told
        counts = np.zeros(self.num_classes or 0, dtype=np.int64)
        counts[:1] = rows or 0
        return counts

    @property
    def group(self) -> int | None:
        """The known group it belongs to, or None."""
        return None if self.known_group < 0 else self.known_group


@dataclass(frozen=True)
class DescriptionQuestion(Question[Description]):
    """The question for descriptions.

    Attributes
    ----------
    tells
        What is said of rows: label counts, their number, or neither.
    """

    kind = "query.description"
    answer = Description

    tells: Annotated[Tells, Text(Place(CONFIG, ConfigRecord, optional=True), sparse=True)] = "labels"

    def check(self, at: Reading) -> None:
        """Check that it is a known choice."""
        if self.tells not in _TOLD:
            raise at.bad(f"tells must be one of {', '.join(_TOLD)}, got {self.tells!r}")


@dataclass(frozen=True)
class Encoder:
    """How raw rows become a network's inputs, for the run's folder."""

    encoder: Annotated[
        InputEncoder,
        Made(
            IN_CONFIG,
            key="input-encoder",
            writes=lambda encoder: json.dumps(to_values(encoder)),
            reads=lambda text: encoder_from(json.loads(text) if isinstance(text, str) else text),
        ),
    ]


@dataclass(frozen=True)
class EncoderQuestion(Question[Encoder]):
    """The question how a node encodes its inputs."""

    kind = "query.encoder"
    answer = Encoder
