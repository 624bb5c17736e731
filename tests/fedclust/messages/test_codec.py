"""Tests of what turns messages into records and back: one contract over all, and what each refuses."""

import gc
import math
import weakref
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.data.sites.agreement import Agreement, Column, Moments, Pixels, Statement
from fedclust.data.sites.rules import Rules
from fedclust.messages import coalitions, codec, description, descriptors, evaluation, mixtures, training
from fedclust.messages.coalitions import SiteFiguresQuestion
from fedclust.messages.codec import (
    SERVER,
    BadReply,
    Bounds,
    Content,
    Reading,
    Whole,
    decode,
    encode,
    keys_of,
    of_kind,
)
from fedclust.messages.mixtures import Responsibilities, ResponsibilitiesQuestion
from fedclust.metrics import outcomes
from fedclust.personal.layers import Finetune
from fedclust.proof import evidence
from fedclust.proof.figure import Rows
from fedclust.support.array_bytes import from_numpy
from tests.fedclust.messages.test_models import _model
from tests.fedclust.messages.test_packer import same

FIGURES = {"num-examples": 4.0, "loss": 1.0, "accuracy": 0.5, "balanced-accuracy": 0.5}
COUNTED = outcomes(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]))


MODEL = _model(w=np.ones(2))
NUMBERS, TEXTS = Column("number", Moments(3, 2, 0.5, 1.25)), Column("category", Moments(3), ("n",), (True,))
STATEMENT = Statement(("a", "b"), {"x": NUMBERS, "y": TEXTS}, (Pixels(4, 10, 30),), {"word": 3})
PROOF = evaluation.ProofQuestion(MODEL, MODEL, np.array([0.5, 0.0]), np.zeros(2), 0.25, 3, True)
FIGURE = evaluation.FigureQuestion(MODEL, MODEL, np.array([0.5, 0.0]), np.zeros(2), 3, True)
TESTED = Rows.of(np.array([[0.5, 2.0], [0.25, 0.0]]), np.array([1.0, 0.5]), np.tri(2), True)
PERSONAL = evaluation.PersonalQuestion.of(MODEL, 4, np.array([0.5, -0.5]), Finetune(2, "last", 0.1))
UPDATE = training.UpdateQuestion(MODEL, 3, ("w",), 4, 7)
COUNTS, OTHERS, SKETCH = np.array([3, 0]), np.array([1, 0]), training.Projected(np.arange(4.0), 3.0)
FAILED = {"finetune": "no"}
PERSONALLY = evaluation.PersonalAnswer(
    7, {"prior": FIGURES}, {"prior": COUNTED}, {"none": 1.0}, FAILED, "prior"
)
DESCRIBED = partial(description.Description.of, COUNTS, OTHERS)
FULL = {"mean": (0.5,), "std": (0.25,), "name": "x", "names": description.Names(("a", "b"), {"c": 1})}
ROWS = np.array([4, 5]), np.array([0.0, 1.0]), np.eye(2, dtype="f4")
ANSWERS: list[tuple[Any, list[Any]]] = [  # by question, if any
    (training.Instruction(MODEL), [training.TrainAnswer(7, MODEL, 12, np.array([2.0, 1.0]))]),
    (
        training.Instruction(MODEL, projection_size=4, pooled=(1,)),
        [training.TrainAnswer(7, MODEL, 5, np.ones(1), None, SKETCH, 2.0, False, 6)],
    ),
    (UPDATE, [training.Update(7, 12, {"w": np.array([0.5, 2.0])}, SKETCH)]),
    (PERSONAL, [PERSONALLY]),
    (evaluation.ConfusionQuestion(MODEL), [evaluation.Confusion(np.array([[3, 1], [0, 2]]))]),
    (evaluation.PredictionsQuestion(MODEL), [evaluation.Predictions(2), evaluation.Predictions(2, *ROWS)]),
    (evaluation.LossesQuestion((MODEL, MODEL)), [evaluation.Losses(np.array([0.5, 1.5]), np.array([2, 1]))]),
    (evaluation.LossesQuestion((MODEL,)), [evaluation.Losses(np.array([0.5]))]),
    (
        ResponsibilitiesQuestion.of((MODEL, MODEL), np.array([0.25, 0.75]), np.full((2, 2), 0.5)),
        [Responsibilities(np.array([[0.5, 1.5], [1.0, 0.0]]))],
    ),
    (PROOF, [evaluation.ProofAnswer.of(evidence(np.array([0.5, -1.0]), [0.25]))]),
    (FIGURE, [evaluation.FigureAnswer.of(TESTED)]),
    (description.PrototypesQuestion(), [description.Prototypes(ROWS[2], COUNTS)]),
    (description.SubspacesQuestion("pixels", 2), [description.Subspaces(np.eye(3, 2, dtype="f4")[None])]),
    (
        description.DescriptionQuestion(),
        [*(DESCRIBED(group=each) for each in (None, 0, 2)), DESCRIBED(**FULL)],
    ),
    (description.DescriptionQuestion("sizes"), [DESCRIBED("sizes", num_validation=1)]),
    (description.DescriptionQuestion("nothing"), [DESCRIBED("nothing", num_validation=1)]),
    (
        None,
        [
            *(evaluation.Evaluation(7, FIGURES, each) for each in (None, COUNTED)),
            *(description.Hosted((3, 5), 9), description.Hosted((0, 1), 2, "north", "abc", (7, 3))),
            description.Registered.of({"n": ("n/a", "n/b"), "s": ("s",)}, {"w": "no such file"}),
            description.Registered.of({"s": ("s",)}, {}, {"s": Rules(labels=("ill",), own_models=False)}),
            description.Stated({"n": STATEMENT}, {"w": "no such file"}),
        ],
    ),
]
MESSAGES = [(answer, question) for question, answers in ANSWERS for answer in answers]
QUESTIONS = [
    *(question for question, _ in ANSWERS[2:] if question is not None),
    replace(PERSONAL, epochs=None, layers_trained=None, learning_rate=None),
    evaluation.AloneQuestion(MODEL, MODEL, np.array([0.5, 0.0]), np.zeros(0), epochs=3),
    evaluation.AloneQuestion(MODEL, MODEL, np.zeros(2), np.zeros(0), 0.25, 3, False, 4, 9, 2, "last", 0.1),
    SiteFiguresQuestion((MODEL, MODEL), np.array([0.5, -0.5, 0.0, 0.0])),
    description.PrototypesQuestion("untrained", True, 10),
    description.Agreed(Agreement((0, 1), ("a", "b"), (2,)), {"n/a": 1}, 3),
]


@pytest.mark.parametrize(("message", "asked"), MESSAGES, ids=lambda each: type(each).__name__)
def test_an_answer_there_and_back(message: Any, asked: Any) -> None:
    read = decode(type(message), encode(message), Reading(7, 3, asked=asked))
    assert same(read, message)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: type(each).__name__)
def test_a_question_there_and_back(question: Any) -> None:
    content = encode(question)
    content["more"] = ConfigRecord({"a": 1})  # of a later version
    assert same(decode(type(question), content, SERVER), question)


@pytest.mark.parametrize(("message", "asked"), MESSAGES, ids=lambda each: type(each).__name__)
def test_what_nobody_asked_for_is_refused(message: Any, asked: Any) -> None:
    content = encode(message)
    content["more"] = ConfigRecord({"a": 1})
    with pytest.raises(BadReply, match="^client 7, round 3: records must be among .*, got .'more'"):
        decode(type(message), content, Reading(7, 3, asked=asked))
    for name, record in encode(message).items():
        if isinstance(record, ConfigRecord) and name != "failed":
            damaged = encode(message)
            damaged[name] = ConfigRecord({**record, "more": 1})
            with pytest.raises(BadReply, match=f"^client 7, round 3: {name} must be among .*'more'"):
                decode(type(message), damaged, Reading(7, 3, asked=asked))


def test_a_model_travels_as_it_is_and_what_several_say_once() -> None:
    names = description.Names(("a",))
    shared: dict[int, RecordDict] = {}
    one, other = (encode(description.Description.of(COUNTS, OTHERS, names=names), shared) for _ in range(2))
    assert one["names"] is other["names"]
    content = encode(evaluation.LossesQuestion((MODEL,)))
    assert decode(evaluation.LossesQuestion, content, SERVER).models[0] is MODEL


def test_a_field_s_bound_may_be_known_of_the_client() -> None:
    @dataclass(frozen=True)
    class Rows:
        num_rows: Annotated[int, Whole(0, lambda at: at.most(at.bounds.num_test))]

    told, bounds = encode(Rows(3)), Bounds(num_test=np.array([5, 2]))
    assert decode(Rows, told, Reading(0, bounds=bounds)) == Rows(3)
    assert decode(Rows, told, Reading(2, bounds=bounds)) == Rows(3)  # came later
    with pytest.raises(BadReply, match=r"^client 1: num-rows must be in \[0, 2\], got 3$"):
        decode(Rows, told, Reading(1, bounds=bounds))
    assert keys_of(Rows) == {"num-rows"}


# -- What messages refuse; test_hostile_replies.py of the federation has many more ---------------------------

TRAINED = MESSAGES[0][0]


def test_a_message_with_slots_is_refused_before_its_fields_are_lost() -> None:
    @dataclass(frozen=True, slots=True)
    class Slotted(codec.Question[Finetune]):
        seen: Annotated[int, Whole(0, 9)] = 0

    with pytest.raises(TypeError, match="^a message must be declared without slots, got Slotted$"):
        encode(Slotted(3))


# -- Instructions -------------------------------------------------------------------------------------------


def test_instruction_as_flower_writes_it() -> None:
    content = RecordDict(
        {"model": MODEL, "told": ConfigRecord({"server-round": 4, "proximal-mu": 0.1, "lr": 1.0})}
    )
    read = training.read_sent(training.Instruction, content)
    assert read.arrays is MODEL
    assert (read.server_round, read.proximal_mu, read.mean_reply) == (4, 0.1, False)
    bare = training.read_sent(training.Instruction, RecordDict({"arrays": MODEL}))
    assert (bare.server_round, bare.proximal_mu, bare.pooled) == (0, None, ())
    with pytest.raises(ValueError, match=r"one ArrayRecord, got records \['config'\]"):
        training.read_sent(training.Instruction, RecordDict({"config": ConfigRecord()}))


def test_an_instruction_is_read_as_it_was_written() -> None:
    sketch = {"projection_size": 4, "projection_seed": 2}
    asked = training.Instruction(MODEL, clip=0.5, mean_reply=True, pooled=(2, 0), **sketch)
    read = training.read_sent(training.Instruction, encode(asked))
    assert (read.mean_reply, read.clip, read.projection.size, read.projection.seed, read.pooled) == (
        True,
        0.5,
        4,
        2,
        (2, 0),
    )
    assert isinstance(read, training.Instruction)


# -- Records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        (MetricRecord, {"rows": 3, "loss": 0.5}),
        (ConfigRecord, {"losses": [1.0, 2.0], "name": "a", "packed": b"b", "full": True}),
        (RecordDict, {"metrics": MetricRecord({"loss": 0.5}), "config": ConfigRecord({"full": True})}),
    ],
)
def test_a_record_filled_at_once_is_the_one_that_flower_makes(kind: Any, entries: dict[str, Any]) -> None:
    made, by_flower = codec.filled(kind, entries), kind(entries)
    assert type(made) is kind
    assert made.deflate() == by_flower.deflate()
    entries.clear()
    assert len(made) == len(by_flower)


def test_records_of_a_kind_are_those_of_flowers_views() -> None:
    told = {"a": ArrayRecord(), "b": ConfigRecord({"c": 1}), "d": MetricRecord({"e": 2.0})}
    told["f"] = ArrayRecord()
    content, plain = Content(told), RecordDict(told)
    assert of_kind(content, ArrayRecord) == content.array_records == plain.array_records
    assert of_kind(content, ConfigRecord) == content.config_records == plain.config_records
    assert of_kind(content, MetricRecord) == content.metric_records == plain.metric_records


def test_what_reads_a_content_does_not_keep_it() -> None:
    """Without a collection of circles: Flower's views, which refer to the content, are such circles."""
    gc.disable()
    try:
        for question in QUESTIONS:
            content = encode(question)
            alive = weakref.ref(content)
            decode(type(question), content, SERVER)
            del content
            assert alive() is None, question
    finally:
        gc.enable()


# -- Bounds that a type of NumPy's, a default or a text could hide -------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_what_is_not_finite_is_refused_in_any_size_of_float(dtype: str) -> None:
    arrays = {"prototypes": np.full((2, 3), np.inf, dtype), "counts": np.array([1, 2])}
    bad = RecordDict({"arrays": _model(**arrays)})
    with pytest.raises(BadReply, match="must be finite"):
        decode(description.Prototypes, bad, Reading(asked=description.PrototypesQuestion()))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_change_is_finite_in_any_size_of_float(bad: float, dtype: str) -> None:
    asked = training.UpdateQuestion(MODEL, 3, ("w",))
    told = {"metrics": MetricRecord({"num-examples": 3}), "arrays": _model(w=np.full(2, bad, dtype))}
    with pytest.raises(BadReply, match="change of 'w' must be finite"):
        decode(training.Update, RecordDict(told), Reading(asked=asked))


def test_losses_of_the_users_own_do_not_overflow() -> None:
    low = {"losses": ConfigRecord({"losses": [-1.7e308, -1.7e308]})}
    trained = training.TrainAnswer, {**encode(TRAINED), **low}, training.Instruction(MODEL)
    measured = evaluation.Losses, low, evaluation.LossesQuestion((MODEL, MODEL))
    for cls, told, asked in (trained, measured):
        with pytest.raises(BadReply, match="losses must be finite numbers in"):
            decode(cls, RecordDict(told), Reading(7, 3, asked=asked))


def test_a_truth_value_in_metrics_is_a_number() -> None:
    @dataclass(frozen=True)
    class Yes:
        place = codec.IN_METRICS
        there: Annotated[bool, codec.Flag()]

    class Asked(codec.Question):
        answer = Yes

    content = encode(Yes(True))
    assert dict(content["metrics"]) == {"there": 1}
    assert decode(Asked.answer, content, Reading()) == Yes(True)


def test_the_largest_loss_is_where_neighbouring_float32_numbers_are_2_apart() -> None:
    assert np.spacing(np.float32(codec.LARGEST_LOSS)) == 2
    assert np.spacing(np.nextafter(np.float32(codec.LARGEST_LOSS), np.float32(0))) == 1


@pytest.mark.parametrize(("count", "rule"), [(2, "2 finite numbers"), (None, "a list of finite numbers")])
def test_a_list_that_is_none_is_refused_with_how_many_numbers_there_must_be(count: Any, rule: str) -> None:
    with pytest.raises(BadReply, match=f"^client 7: losses must be {rule}, got 'abc'$"):
        codec.Numbers(count=count).read("abc", "losses", Reading(7))


# -- The bounds of a reply ----------------------------------------------------------------------------------

_ASKED = SimpleNamespace(
    models=[None] * 3,
    coalitions=2,
    others=1,
    num_classes=2,
    fit_classes=2,
    pooled=(),
    projection=None,
    layers=(),
    rows=1000,
    on_training_rows=False,
)
_LONGEST = {  # of a run of two classes and 3 models, in which client 0 trains 3 steps
    ("TrainAnswer", "losses"): 3,
    ("Losses", "losses"): 3,
    ("Losses", "wins"): 3,
    ("Wins", "wins"): 3,
    ("ProofAnswer", "sums"): 3,
    ("ProofAnswer", "log_wealth"): 8,
    ("SiteFigures", "brier"): 3,
    ("SiteFigures", "shifts"): 4096,
    ("PersonalAnswer", "shift"): 1024,
    # Two coalitions, each with and without its correction: 4 arms; of 3 fits 5 numbers each.
    ("ScoresAnswer", "means"): 4,
    ("ScoresAnswer", "products"): 16,
    ("ScoresAnswer", "auc"): 2,
    ("ScoresAnswer", "auc_error"): 2,
    ("ScoresAnswer", "balanced"): 4,
    ("ScoresAnswer", "balanced_error"): 4,
    ("ScoresAnswer", "fits"): 3 * 5,
    ("ScoresAnswer", "ratios"): 2 * 2,
    ("ScoresAnswer", "mends"): 5 * 8,
    **{("Description", name): 2**20 for name in ("label_counts", "test_label_counts", "mean", "std")},
    ("Hosted", "clients"): 10**7,
    ("Hosted", "steps"): 10**7,
}


_ROWS, _NUMBER, _COUNT = 2**20, codec.LARGEST_NUMBER, codec.MOST_EXAMPLES
_MOST = {  # of the same run, of which client 0 has 2^20 rows, and 1,000 are asked for
    "TrainAnswer": {
        "num_examples": _ROWS,
        "losses": codec.LARGEST_LOSS,
        "update_norm": np.inf,
        "pooled": _COUNT,
    },
    "Projected": {"norm": _NUMBER},
    "Update": {"num_examples": _ROWS},
    "Losses": {"losses": _NUMBER, "wins": _ROWS},
    "Wins": {"wins": _ROWS},
    "ProofAnswer": {"count": 1000, "sums": _NUMBER, "log_wealth": _NUMBER},
    "FigureAnswer": {"count": 1000, "hits": 1000, "sums": _NUMBER, "bets": _NUMBER},
    "SiteFigures": {"brier": 2 + 1e-9, "shifts": _NUMBER},
    "PersonalAnswer": {"chosen": 1000, "shift": _NUMBER},
    "Predictions": {"num_examples": _ROWS, "rows": None, "truth": None, "predicted": None},
    "Confusion": {"confusion": _ROWS},
    "Responsibilities": {"sums": _ROWS * (1 + 1e-6)},
    "Descriptor": {
        "moments": _NUMBER,
        "width": 2**16,
        "most": _NUMBER,
        "right": _ROWS,
        "num_examples": _ROWS,
    },
    "ScoresAnswer": {
        "count": _ROWS,
        "means": 2 + 1e-9,
        "products": 4 + 1e-9,
        **dict.fromkeys(("auc", "balanced"), 1 + 1e-9),
        **dict.fromkeys(("auc_error", "balanced_error"), 1),
        "fits": 2,
        "ratios": 100,
        "columns": 300,
        "mends": _NUMBER,
    },
    "Prototypes": {"prototypes": _NUMBER, "counts": _ROWS},
    "Subspaces": {"subspaces": 1 + 1e-3},
    "Description": {
        **dict.fromkeys(("label_counts", "test_label_counts"), _COUNT),
        **dict.fromkeys(("num_train", "num_test", "num_validation", "group"), _COUNT),
        "num_classes": 2**24,
        **dict.fromkeys(("mean", "std"), _NUMBER),
        "name": 1000,
        "named_group": 200,
    },
    "Names": {"classes": 1000, "grouped_by": 200},
    "Encoder": {"embedded_by": 200},
    "Hosted": {
        **dict.fromkeys(("clients", "num_clients"), 10**7),
        **dict.fromkeys(("name", "data"), 200),
        "steps": 2**40,
    },
}
"""Largest number, or most characters; None where none is read of a deployed node."""


def _entries() -> dict[tuple[str, str], codec.Entry]:
    """Find every entry with bounds that a reply may have."""
    modules = (coalitions, description, descriptors, evaluation, mixtures, training)
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    questions = [each for each in classes if issubclass(each, codec.Question) and each is not codec.Question]
    found = {}
    parts = {description.Hosted, description.Names, training.Projected}
    for answer in {*(each.answer for each in questions), *parts}:
        for name, hint in get_type_hints(answer, include_extras=True).items():
            for how in getattr(hint, "__metadata__", ()):
                found[answer.__name__, name] = how
    bounded = codec.Real | codec.Numbers | codec.Values | codec.Texts
    return {key: how for key, how in found.items() if isinstance(how, bounded)}


_BOUNDS = Bounds(*[np.array([_ROWS])] * 3, 2, num_steps=np.array([3]))
_AT = Reading(0, asked=_ASKED, bounds=_BOUNDS)


def test_every_list_of_a_reply_has_a_longest() -> None:
    lists = {key: how for key, how in _entries().items() if isinstance(how, codec.Numbers)}
    assert lists.keys() == _LONGEST.keys()
    for key, how in lists.items():
        longest = _LONGEST[key]
        with pytest.raises(BadReply, match=f"got {longest + 1}$|{longest} finite numbers, got"):
            how.read([1.0] * (longest + 1), key[1], _AT)
        assert len(how.read([1] * longest, key[1], _AT)) == longest


def _with(how: Any, value: Any) -> Any:
    """Make an entry with a value in it, and else the least there may be."""
    if type(how) is codec.Texts:
        return [value]
    if isinstance(how, codec.Numbers):
        count = how.count(_AT) if callable(how.count) else how.count or 1
        least = how.least(_AT) if callable(how.least) else how.least
        return [value, *[least] * (count - 1)]
    if isinstance(how, codec.Values):
        values = np.full([2] * len(how.shape.split()), how.least, "i8" if how.dtype[0] == "i" else "f8")
        values.flat[0] = value
        return from_numpy(values)
    return value


@pytest.mark.parametrize(("answer", "name"), [(each, name) for each in _MOST for name in _MOST[each]])
def test_one_above_each_bound_of_a_reply_is_refused(answer: str, name: str) -> None:
    how, most = _entries()[answer, name], _MOST[answer][name]
    if most is None:
        assert how.least is None
        return
    good, bad = most, math.nextafter(most, math.inf)
    if isinstance(how, codec.Texts):
        good, bad = "a" * most, "a" * (most + 1)
    elif isinstance(how, codec.Whole) or issubclass(getattr(how, "to", float), int | np.integer):
        bad = most + 1
    elif isinstance(how, codec.Values):
        bad = most + 1 if how.dtype[0] == "i" else bad
    elif most == np.inf:
        bad = np.nan
    how.read(_with(how, good), name, _AT)
    with pytest.raises(BadReply, match=rf"{name} must be .*(in \[|characters long)"):
        how.read(_with(how, bad), name, _AT)


def test_every_bound_of_a_reply_is_listed() -> None:
    assert _entries().keys() == {(answer, name) for answer in _MOST for name in _MOST[answer]}
