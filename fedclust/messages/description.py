"""A client's description of its data, before round 1."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedclust.messages.bounds import (
    MOST_EXAMPLES,
    check_keys,
    finite_list,
    only_records,
    record_of,
    short,
    whole,
)
from fedclust.messages.keys import (
    _CLASS_NAMES,
    _GROUP,
    _LEFT_OUT,
    _LEFT_OUT_ROWS,
    _MEAN,
    _NAME,
    _NAMES,
    _NO_GROUP,
    _NUM_CLASSES,
    _NUM_TEST,
    _NUM_TRAIN,
    _STD,
    _TELLS,
    _TEST_COUNTS,
    _TRAIN_COUNTS,
    _VALIDATION,
    CONFIG,
    BadReply,
)
from fedclust.messages.kinds import of_kind
from fedclust.privacy.settings import Tells
from fedclust.typing import IntArray

__all__ = [
    "Description",
    "Names",
    "description_content",
    "description_question",
    "names_record",
    "read_description",
    "read_description_question",
]

_ALWAYS = (_GROUP, _NAME, _MEAN, _STD)  # a model is of no use without the numbers that images are scaled by
_KNOWN: Mapping[Tells, tuple[str, ...]] = {
    "labels": (_TRAIN_COUNTS, _TEST_COUNTS, _VALIDATION, *_ALWAYS),
    "sizes": (_NUM_CLASSES, _NUM_TRAIN, _NUM_TEST, _VALIDATION, *_ALWAYS),
    "nothing": (_NUM_CLASSES, *_ALWAYS),
}
_MOST_CLASSES = 2**24
_LONGEST = 1000  # characters of a name
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, eq=False)
class Description:
    """A client's description of its data, before round 1.

    Attributes
    ----------
    train_counts
        Number of its training samples of each class, shape (C,); where it was not asked for them, 0 but for
        the first, which is the number of them all, or 0 too.
    test_counts
        Number of its test samples of each class, shape (C,), likewise.
    group
        The known group it belongs to, or None.
    mean, std
        The numbers it subtracts from and divides each channel of its images by; empty if it does not.
    name
        Its name in the data (a hospital, a writer, a user), or None.
    names
        Names that are the same for all clients of its data.
    num_validation
        Number of its training rows that are held out for the proof.
    """

    train_counts: IntArray
    test_counts: IntArray
    group: int | None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    name: str | None = None
    names: "Names" = field(default_factory=lambda: Names())
    num_validation: int = 0


@dataclass(frozen=True)
class Names:
    """Names in a federation's data.

    Attributes
    ----------
    classes
        Names of the classes, in label order, shape (C,); empty if unknown.
    left_out
        Names of those with too few examples to be a client, and their numbers of examples.
    """

    classes: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


def names_record(names: Names) -> ConfigRecord:
    """Make the record of names that the clients of a node share, so that it is sent once."""
    return ConfigRecord(
        {
            _CLASS_NAMES: list(names.classes),
            _LEFT_OUT: list(names.left_out),
            _LEFT_OUT_ROWS: list(names.left_out.values()),
        }
    )


def description_question(tells: Tells = "labels") -> RecordDict:
    """Make the question for descriptions: with label counts, with numbers of rows, or with neither."""
    return RecordDict() if tells == "labels" else RecordDict({CONFIG: ConfigRecord({_TELLS: tells})})


def read_description_question(content: RecordDict) -> Tells:
    """Read what :func:`description_question` made.

    Raises
    ------
    ValueError
        If it asks for something else.
    """
    tells = of_kind(content, ConfigRecord).get(CONFIG, ConfigRecord()).get(_TELLS, "labels")
    if tells not in get_args(Tells):
        raise ValueError(f"{_TELLS} must be one of {', '.join(get_args(Tells))}, got {short(tells)}")
    return cast(Tells, tells)


def description_content(
    description: Description, names: ConfigRecord | None = None, tells: Tells = "labels"
) -> RecordDict:
    """Make a client's reply with its description.

    Parameters
    ----------
    description
        The description.
    names
        Its names as made by :func:`names_record`, if other clients share them; made here unless given.
    tells
        What is said of its rows.
    """
    config = ConfigRecord()
    if tells == "labels":
        config[_TRAIN_COUNTS] = [int(count) for count in description.train_counts]
        config[_TEST_COUNTS] = [int(count) for count in description.test_counts]
    else:
        config[_NUM_CLASSES] = len(description.train_counts)
    if tells == "sizes":
        config[_NUM_TRAIN] = int(description.train_counts.sum())
        config[_NUM_TEST] = int(description.test_counts.sum())
    config[_GROUP] = _NO_GROUP if description.group is None else int(description.group)
    config[_MEAN], config[_STD] = list(description.mean), list(description.std)
    if description.name is not None:
        config[_NAME] = description.name
    if description.num_validation and tells != "nothing":
        config[_VALIDATION] = int(description.num_validation)
    return RecordDict({CONFIG: config, _NAMES: names or names_record(description.names)})


def read_description(message: Message, tells: Tells = "labels") -> Description:
    """Read a client's description.

    Parameters
    ----------
    message
        The answer.
    tells
        What it was asked to say of its rows.

    Raises
    ------
    BadReply
        If it lacks the counts, has no training examples, or holds something that it cannot.
    """
    where = f"client {message.metadata.src_node_id}"
    content = message.content
    only_records(content, (CONFIG, _NAMES), where)
    config = content.get(CONFIG)
    needed = {"labels": (_TRAIN_COUNTS, _TEST_COUNTS), "sizes": (_NUM_CLASSES, _NUM_TRAIN, _NUM_TEST)}
    if not isinstance(config, ConfigRecord) or set(needed.get(tells, (_NUM_CLASSES,))) - config.keys():
        keys = list(config) if isinstance(config, ConfigRecord) else list(content)
        wanted = "label counts" if tells == "labels" else "number of classes or rows"
        raise BadReply(f"{where}: no {wanted} in reply, keys are {short(keys)}")
    check_keys(config, _KNOWN[tells], where, CONFIG)
    train, test = _rows(config, tells, where)
    group = whole(config.get(_GROUP, _NO_GROUP), _NO_GROUP, MOST_EXAMPLES, where, _GROUP)
    name = None if config.get(_NAME) is None else _text(config[_NAME], where, _NAME)
    largest = float(np.finfo(np.float32).max)
    mean = finite_list(config.get(_MEAN, []), -largest, largest, where, _MEAN)
    std = finite_list(config.get(_STD, []), float(np.finfo(np.float32).tiny), largest, where, _STD)
    if len(mean) != len(std):
        raise BadReply(f"{where}: {_MEAN} and {_STD} must be as long, got {len(mean)} and {len(std)}")
    names = ConfigRecord() if _NAMES not in content else record_of(content, _NAMES, ConfigRecord, where)
    return Description(
        train,
        test,
        None if group == _NO_GROUP else group,
        tuple(mean),
        tuple(std),
        name,
        _read_names(names, where),
        whole(config.get(_VALIDATION, 0), 0, MOST_EXAMPLES, where, _VALIDATION),
    )


def _rows(config: ConfigRecord, tells: Tells, where: str) -> tuple[IntArray, IntArray]:
    """Read what a client says of its training and test rows."""
    if tells == "labels":
        train, test = (_label_counts(config[key], where, key) for key in (_TRAIN_COUNTS, _TEST_COUNTS))
        if len(train) != len(test):
            raise BadReply(f"{where}: {_TEST_COUNTS} must be of {len(train)} classes, got {len(test)}")
        if not train.any():
            raise BadReply(f"{where}: {_TRAIN_COUNTS} must not all be 0")
        return train, test
    classes = whole(config[_NUM_CLASSES], 1, _MOST_CLASSES, where, _NUM_CLASSES)
    train, test = np.zeros(classes, dtype=np.int64), np.zeros(classes, dtype=np.int64)
    if tells == "sizes":
        train[0] = whole(config[_NUM_TRAIN], 1, MOST_EXAMPLES, where, _NUM_TRAIN)
        test[0] = whole(config[_NUM_TEST], 0, MOST_EXAMPLES, where, _NUM_TEST)
    return train, test


def _label_counts(values: Any, where: str, key: str) -> IntArray:
    counts = np.array(finite_list(values, 0, MOST_EXAMPLES, where, key))
    if counts.dtype.kind == "f" and (counts % 1).any():
        raise BadReply(f"{where}: {key} must be whole numbers, got {short(values)}")
    if not len(counts):
        raise BadReply(f"{where}: {key} must be of at least one class, got []")
    return counts.astype(np.int64)


def _read_names(names: Mapping[str, Any], where: str) -> Names:
    classes, left_out = (_texts(names.get(key, []), where, key) for key in (_CLASS_NAMES, _LEFT_OUT))
    rows = finite_list(names.get(_LEFT_OUT_ROWS, []), 0, MOST_EXAMPLES, where, _LEFT_OUT_ROWS)
    return Names(classes, dict(zip(left_out, map(int, rows), strict=False)))


def _texts(values: Any, where: str, key: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise BadReply(f"{where}: {key} must be a list of texts, got {short(values)}")
    return tuple(_text(value, where, key) for value in values)


def _text(value: Any, where: str, key: str) -> str:
    """Read a text, with spaces for control characters, which could write to the terminal that shows it."""
    if not isinstance(value, str):
        raise BadReply(f"{where}: {key} must be a text, got {short(value)}")
    if len(value) > _LONGEST:
        raise BadReply(f"{where}: {key} must be at most {_LONGEST} characters long, got {short(value)}")
    return _CONTROL.sub(" ", value)
