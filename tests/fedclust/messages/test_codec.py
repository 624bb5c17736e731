"""Tests of what turns messages into records and back: one contract over all, and what each refuses."""

import gc
import json
import weakref
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.data.sites.agreement import Agreement, Column, Moments, Pixels, Statement
from fedclust.messages.codec import (
    SERVER,
    BadReply,
    Bounds,
    Content,
    Reading,
    Whole,
    decode,
    encode,
    entries,
    of_kind,
)
from fedclust.messages.description import (
    Agreed,
    Description,
    DescriptionQuestion,
    Hosted,
    Names,
    Prototypes,
    PrototypesQuestion,
    Registered,
    Stated,
    Subspaces,
    SubspacesQuestion,
    read_from_node,
)
from fedclust.messages.evaluation import (
    Confusion,
    ConfusionQuestion,
    Evaluation,
    Losses,
    LossesQuestion,
    PersonalAnswer,
    PersonalQuestion,
    Predictions,
    PredictionsQuestion,
    ProofAnswer,
    ProofQuestion,
    Wins,
    WinsQuestion,
)
from fedclust.messages.training import (
    Instruction,
    Projected,
    TrainAnswer,
    TrainAsked,
    Update,
    UpdateQuestion,
    instruct,
    read_instruction,
)
from fedclust.metrics import outcomes
from fedclust.personal.layers import Finetune

FIGURES = {"num-examples": 4.0, "loss": 1.0, "accuracy": 0.5, "balanced-accuracy": 0.5}
COUNTED = outcomes(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]))


def _model(**arrays: np.ndarray) -> ArrayRecord:
    record = ArrayRecord()
    for name, values in arrays.items():
        record[name] = Array(values)
    return record


MODEL = _model(w=np.ones(2))
STATEMENT = Statement(
    ("a", "b"),
    {"x": Column("number", Moments(3, 2, 0.5, 1.25)), "y": Column("category", Moments(3), ("n",), (True,))},
    (Pixels(4, 10, 30),),
    {"word": 3},
)
PROOF = ProofQuestion(MODEL, MODEL, np.array([0.5, 0.0]), np.zeros(2), on_training_rows=True)
PERSONAL = PersonalQuestion.of(MODEL, 4, np.array([0.5, -0.5]), Finetune(2, "last", 0.1))
UPDATE = UpdateQuestion(MODEL, 3, ("w",), 4, 7)
COUNTS, OTHERS = np.array([3, 0]), np.array([1, 0])
MESSAGES: list[tuple[Any, Any]] = [  # each with what it answers; None for a question
    (TrainAnswer(7, MODEL, 12, np.array([2.0, 1.0])), TrainAsked()),
    (
        TrainAnswer(7, MODEL, 5, np.ones(1), None, Projected(np.arange(4.0), 3.0), 2.0, False, 6),
        TrainAsked(4, pooled=True),
    ),
    (Update(7, 12, {"w": np.array([0.5, 2.0])}, Projected(np.arange(4.0), 3.0)), UPDATE),
    (Evaluation(7, FIGURES), None),
    (Evaluation(7, FIGURES, COUNTED), None),
    (PersonalAnswer(7, {"prior": FIGURES}, {"prior": COUNTED}, {"none": 0.5}, {"finetune": "no"}), PERSONAL),
    (Confusion(np.array([[3, 1], [0, 2]])), ConfusionQuestion(MODEL)),
    (Predictions(2), PredictionsQuestion(MODEL)),
    (Predictions(2, np.array([4, 5]), np.array([0, 1]), np.eye(2, dtype="f4")), PredictionsQuestion(MODEL)),
    (Losses(np.array([0.5, 1.5]), np.array([2, 1])), LossesQuestion((MODEL, MODEL))),
    (Losses(np.array([0.5])), LossesQuestion((MODEL,))),
    (ProofAnswer(0.5, 0.25, 3), PROOF),
    (Prototypes(np.eye(2, dtype="f4"), COUNTS, np.array([0.5, 0.0])), PrototypesQuestion()),
    (Subspaces(np.eye(3, 2, dtype="f4")[None]), SubspacesQuestion("pixels", 2)),
    *((Description.of(COUNTS, OTHERS, known_group=group), DescriptionQuestion()) for group in (None, 0, 2)),
    (
        Description.of(
            COUNTS,
            OTHERS,
            mean=(0.5,),
            std=(0.25,),
            name="x",
            names=Names(("a", "b"), {"c": 1}),
            num_validation=1,
        ),
        DescriptionQuestion(),
    ),
    (Description.of(COUNTS, OTHERS, "sizes", num_validation=1), DescriptionQuestion("sizes")),
    (Description.of(COUNTS, OTHERS, "nothing", num_validation=1), DescriptionQuestion("nothing")),
    (Hosted((3, 5), 9), None),
    (Hosted((0, 1), 2, "north", "abc", (7, 3)), None),
    (Registered.of({"n": ("n/a", "n/b"), "s": ("s",)}, {"w": "no such file"}), None),
    (Stated({"n": STATEMENT}, {"w": "no such file"}), None),
]
QUESTIONS = [
    UPDATE, PROOF, PERSONAL, replace(PERSONAL, epochs=None, layers_trained=None, learning_rate=None),
    LossesQuestion((MODEL, MODEL)), ConfusionQuestion(MODEL), PredictionsQuestion(MODEL),
    DescriptionQuestion(), DescriptionQuestion("sizes"), SubspacesQuestion("pixels", 2),
    PrototypesQuestion(), PrototypesQuestion("untrained", True, 10, 3, 1.5),
    Agreed(Agreement((0, 1), ("a", "b"), (2,)), {"n/a": 1}, 3),
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and one.dtype.kind == other.dtype.kind and np.array_equal(one, other)
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


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
    names = Names(("a",))
    shared: dict[int, RecordDict] = {}
    one, other = (encode(Description.of(COUNTS, OTHERS, names=names), shared) for _ in range(2))
    assert one["names"] is other["names"]
    assert decode(LossesQuestion, encode(LossesQuestion((MODEL,))), SERVER).models[0] is MODEL


def test_a_field_s_bound_may_be_known_of_the_client() -> None:
    @dataclass(frozen=True)
    class Rows:
        num_rows: Annotated[int, Whole(0, lambda at: at.most(at.bounds.num_test))]

    told, bounds = encode(Rows(3)), Bounds(num_test=np.array([5, 2]))
    assert decode(Rows, told, Reading(0, bounds=bounds)) == Rows(3)
    assert decode(Rows, told, Reading(2, bounds=bounds)) == Rows(3)  # came later
    with pytest.raises(BadReply, match=r"^client 1: num-rows must be in \[0, 2\], got 3$"):
        decode(Rows, told, Reading(1, bounds=bounds))
    assert entries(Rows, num_rows=4) == {"num-rows": 4}
    with pytest.raises(ValueError, match="must have the fields that are told, it has no rows"):
        entries(Rows, rows=4)


# -- What each message refuses ------------------------------------------------------------------------------


def _damaged(message: Any, **records: Any) -> RecordDict:
    content = encode(message)
    for name, record in records.items():
        if record is None:
            del content[name]
        else:
            content[name] = record
    return content


TRAINED = MESSAGES[0][0]
ONES = np.ones((3, 2), np.uint8)


@pytest.mark.parametrize(
    ("records", "rule"),
    [
        ({"losses": None}, r"no 'losses' in reply, keys are \['arrays', 'metrics'\]"),
        ({"arrays": None}, "no 'arrays' in reply"),
        ({"metrics": MetricRecord({"loss": 1.0})}, r"no 'num-examples' in reply, keys are \['loss'\]"),
        ({"metrics": MetricRecord({"num-examples": 0})}, r"num-examples must be in \[1, .*\], got 0"),
        ({"losses": ConfigRecord({"losses": [1.0, float("nan")]})}, "losses must be finite"),
        ({"losses": ConfigRecord({"losses": []})}, "losses must be a list of finite"),
        ({"losses": ConfigRecord()}, "no 'losses' in reply"),
    ],
)
def test_bad_train_replies(records: dict[str, Any], rule: str) -> None:
    with pytest.raises(BadReply, match=f"^client 7, round 3: {rule}"):
        decode(TrainAnswer, _damaged(TRAINED, **records), Reading(7, 3, asked=TrainAsked()))


def test_a_diverged_model_s_counts_have_no_bins() -> None:
    counted = outcomes(np.array([0, 1]), np.array([0, 0]), np.full((2, 2), np.nan))
    read = decode(Evaluation, encode(Evaluation(7, FIGURES, counted)), Reading(7)).outcomes
    assert read.bins is None
    assert read.predicted.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, r"no 'class-counts' in reply, keys are \[\]"),
        (
            {"class-counts": np.ones((3, 2))},
            "class-counts must be whole numbers without a sign, got dtype float64",
        ),
        ({"class-counts": np.ones((2, 2), np.uint8)}, r"class-counts must have shape \(3, C\), got \(2, 2\)"),
        ({"class-counts": np.array([[1], [1], [2]], np.uint8)}, "hits, at most as many"),
        (
            {"class-counts": ONES, "score-gaps": np.array([3, 0], np.uint8)},
            r"score-gaps must be finite and in \[1, ",
        ),
        ({"class-counts": ONES, "score-gaps": np.array([8193], np.uint16)}, "add up to at most 8192"),
        (
            {"class-counts": ONES, "score-gaps": np.array([1], np.uint16)},
            r"counts, got shapes \(1,\), \(0,\)",
        ),
    ],
)
def test_counts_that_do_not_fit(arrays: dict[str, np.ndarray], reason: str) -> None:
    content = _damaged(Evaluation(7, FIGURES), outcomes=_model(**arrays))
    with pytest.raises(BadReply, match=f"client 7, round 3: .*{reason}"):
        decode(Evaluation, content, Reading(7, 3))


@pytest.mark.parametrize(
    ("hosted", "rule"),
    [
        (Hosted((0, 1), 2, steps=(7,)), r"steps must be a list of 2 numbers, got \[7\]"),
        (Hosted((0, 1), 2, steps=(7, -1)), r"steps must be finite numbers in \[0, "),
        (Hosted((0, 2), 2), r"clients must be in \[0, 1\]"),
        (Hosted((0, 0), 2), "clients must name each client once"),
        (Hosted((0,), 2, "a\nb"), "name must be printable"),
    ],
)
def test_a_node_that_cannot_be(hosted: Hosted, rule: str) -> None:
    with pytest.raises(BadReply, match=f"^a node's reply: {rule}"):
        read_from_node(Hosted, encode(hosted))


def test_names_in_a_description_cannot_write_to_a_terminal() -> None:
    names = Names(("well", "ill\x1b[2J"), {"a\r\nb": 3})
    at = Reading(7, asked=DescriptionQuestion())
    read = decode(Description, encode(Description.of(COUNTS, OTHERS, name="ward\x9b31m 7", names=names)), at)
    assert (read.name, read.names) == ("ward 31m 7", Names(("well", "ill [2J"), {"a  b": 3}))
    with pytest.raises(BadReply, match="client 7: name must be at most 1000 characters long"):
        decode(Description, encode(Description.of(COUNTS, OTHERS, name="x" * 1001)), at)


@pytest.mark.parametrize(
    ("prototypes", "counts", "scatter", "rule"),
    [
        (np.zeros((2, 3)), [1, 0, 0], [0, 0], r"counts and scatter \(classes,\), got \(2, 3\), \(3,\)"),
        (np.zeros((2, 3)), [1, 0], [0, 0, 0], r"got \(2, 3\), \(2,\) and \(3,\)"),
        (np.zeros(3), [1, 0, 0], [0, 0, 0], r"prototypes must have shape \(C, d\), got \(3,\)"),
        (np.full((2, 3), np.nan), [1, 1], [0, 0], "prototypes must be finite"),
        (np.zeros((2, 3)), [2, 2], [0, np.inf], "scatter must be finite"),
        (np.zeros((2, 3)), [2, -1], [0, 0], "counts must be finite and in"),
        (np.zeros((2, 3)), [2, 1], [-0.5, 0], "scatter must be finite and in"),
        (np.zeros((2, 3)), [0, 0], [0, 0], "counts must add up to a number in"),
    ],
)
def test_bad_prototypes(prototypes: np.ndarray, counts: list, scatter: list, rule: str) -> None:
    content = encode(Prototypes(prototypes, np.array(counts), np.array(scatter)))
    with pytest.raises(BadReply, match=f"^client 7: .*{rule}"):
        decode(Prototypes, content, Reading(7))


def test_counts_are_whole_numbers() -> None:
    content = encode(Prototypes(np.zeros((1, 2)), np.array([1]), np.array([0])))
    content["arrays"]["counts"] = Array(np.array([0.5]))
    with pytest.raises(BadReply, match="client 7: counts must be whole numbers, got dtype float64"):
        decode(Prototypes, content, Reading(7))


@pytest.mark.parametrize("counts", [np.zeros((2, 3)), np.zeros(4), np.array([[1, -1], [0, 0]])])
def test_bad_confusion(counts: np.ndarray) -> None:
    with pytest.raises(BadReply, match="client 7: confusion must"):
        decode(Confusion, encode(Confusion(counts)), Reading(7))


# -- Instructions -------------------------------------------------------------------------------------------


def test_instruction_as_flower_writes_it() -> None:
    content = RecordDict(
        {"model": MODEL, "told": ConfigRecord({"server-round": 4, "proximal-mu": 0.1, "lr": 1.0})}
    )
    read = read_instruction(content)
    assert read.arrays is MODEL
    assert (read.server_round, read.proximal_mu, read.mean_reply, read.full) == (4, 0.1, False, False)
    assert read.steps == ("send",)
    bare = read_instruction(RecordDict({"arrays": MODEL}))
    assert (bare.server_round, bare.proximal_mu, bare.pooled) == (0, None, ())
    with pytest.raises(ValueError, match=r"one ArrayRecord, its records are \['config'\]"):
        read_instruction(RecordDict({"config": ConfigRecord()}))


def test_an_instruction_names_its_steps() -> None:
    told = instruct(
        clip=0.5, clip_tells=False, projection_size=4, projection_seed=2, mean_reply=True, pooled=[2, 0]
    )
    read = read_instruction(RecordDict({"arrays": MODEL, "config": ConfigRecord(told)}))
    assert read.steps == ("clip", "project", "mean")
    assert (read.clip, read.projection.size, read.projection.seed, read.pooled) == (0.5, 4, 2, (2, 0))
    with pytest.raises(ValueError, match="Instruction must have the fields that are told, it has no rate"):
        instruct(rate=1)
    assert isinstance(read, Instruction)


# -- Records ------------------------------------------------------------------------------------------------


def test_records_of_a_kind_are_those_of_flowers_views() -> None:
    told = {
        "a": ArrayRecord(),
        "b": ConfigRecord({"c": 1}),
        "d": MetricRecord({"e": 2.0}),
        "f": ArrayRecord(),
    }
    content, plain = Content(told), RecordDict(told)
    assert of_kind(content, ArrayRecord) == content.array_records == plain.array_records
    assert of_kind(content, ConfigRecord) == content.config_records == plain.config_records
    assert of_kind(content, MetricRecord) == content.metric_records == plain.metric_records


def test_what_reads_a_content_does_not_keep_it() -> None:
    """Without a collection of circles: Flower's views, which refer to the content, are such circles."""
    gc.collect()
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


@pytest.mark.parametrize(
    ("prototypes", "scatter"), [("f2", None), (None, "f2"), (None, "f4")], ids=["prototypes", "", "scatter"]
)
def test_what_is_not_finite_is_refused_in_any_size_of_float(
    prototypes: str | None, scatter: str | None
) -> None:
    bad = _model(
        prototypes=np.full((2, 3), np.inf if prototypes else 1, prototypes or "f4"),
        counts=np.array([1, 2]),
        scatter=np.full(2, np.inf if scatter else 1, scatter or "f8"),
    )
    with pytest.raises(BadReply, match="must be finite"):
        decode(Prototypes, RecordDict({"arrays": bad}), Reading(asked=PrototypesQuestion()))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_change_is_finite_in_any_size_of_float(bad: float, dtype: str) -> None:
    asked = UpdateQuestion(MODEL, 3, ("w",))
    told = {"metrics": MetricRecord({"num-examples": 3}), "arrays": _model(w=np.full(2, bad, dtype))}
    with pytest.raises(BadReply, match="change of 'w' must be finite"):
        decode(Update, RecordDict(told), Reading(asked=asked))


def test_losses_of_the_users_own_do_not_overflow() -> None:
    low = ConfigRecord({"losses": [-1.7e308, -1.7e308]})
    with pytest.raises(BadReply, match="losses must be finite numbers in"):
        decode(TrainAnswer, _damaged(TRAINED, losses=low), Reading(7, 3, asked=TrainAsked()))
    with pytest.raises(BadReply, match="losses must be finite numbers in"):
        decode(Losses, RecordDict({"losses": low}), Reading(asked=LossesQuestion((MODEL, MODEL))))


def test_a_model_that_has_diverged_does_not_cost_the_others_their_wins() -> None:
    told = RecordDict({"losses": ConfigRecord({"losses": [1.0, float("nan")], "wins": [3, 0]})})
    asked = WinsQuestion((MODEL, MODEL))
    assert decode(Wins, told, Reading(asked=asked)).wins.tolist() == [3, 0]
    with pytest.raises(BadReply, match="losses must be finite"):
        decode(Losses, told, Reading(asked=LossesQuestion((MODEL, MODEL))))
    for wins in ([3], [0, 0], [-1, 4], [2, 8]):
        told["losses"]["wins"] = wins
        with pytest.raises(BadReply, match="wins must be"):
            decode(Wins, told, Reading(0, bounds=Bounds(num_train=np.array([9])), asked=asked))


@pytest.mark.parametrize("cls", [Registered, Stated])
def test_a_node_that_says_nothing_has_not_answered(cls: type) -> None:
    for content in (RecordDict(), RecordDict({"registration": ConfigRecord(), "statements": ConfigRecord()})):
        with pytest.raises(BadReply, match="a node's reply: "):
            read_from_node(cls, content)
    (name,) = encode(cls())
    with pytest.raises(BadReply, match="no '.*' in reply"):
        read_from_node(cls, RecordDict({name: ConfigRecord()}))


def test_values_of_a_column_are_as_the_site_s_rows_have_them() -> None:
    values = ("a\tb", "a b", "a~", "a\x7f")
    column = Column("category", Moments(3), values, (True,) * 4)
    stated = Stated({"n": Statement(("x\ny", "x y"), {"c\x85": column}, (), {})})
    assert read_from_node(Stated, encode(stated)) == stated
    (body,) = encode(stated)["statements"]["bodies"]
    assert json.loads(body)["columns"]["c\x85"]["values"] == list(values)


def test_a_loss_of_a_layer_that_nobody_asked_for_is_refused() -> None:
    asked = replace(PERSONAL, shift=None)
    answer = PersonalAnswer(7, {"finetune": FIGURES}, losses={"none": 0.5, "prior": 0.5})
    with pytest.raises(BadReply, match=r"validation-losses must be among \['finetune', 'none'\]"):
        decode(PersonalAnswer, encode(answer), Reading(7, asked=asked))


@pytest.mark.parametrize(
    ("labels", "chances"),
    [(np.zeros((2, 3, 4), int), np.zeros((2, 3, 4, 2))), (np.zeros(2, int), np.zeros((2, 0)))],
)
def test_predictions_that_make_no_table(labels: np.ndarray, chances: np.ndarray) -> None:
    told = encode(Predictions(2, np.arange(2), labels, chances))
    with pytest.raises(BadReply, match="predictions must be of 2 rows"):
        decode(Predictions, told, Reading(asked=PredictionsQuestion(MODEL)))
