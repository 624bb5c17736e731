import dataclasses
import gc
import weakref

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedclust.grids.local_grid import assume_identity
from fedclust.messages import (
    ARRAYS,
    BadReply,
    Description,
    Hosted,
    Names,
    clients_content,
    confusion_content,
    description_content,
    description_question,
    evaluate_content,
    from_stacked,
    from_state,
    is_finite,
    join_models,
    like,
    losses_question,
    pooled_content,
    proof_question,
    prototypes_content,
    read_confusion,
    read_description,
    read_description_question,
    read_evaluate,
    read_hosted,
    read_instruction,
    read_losses_question,
    read_pooled,
    read_proof_question,
    read_prototypes,
    read_train,
    split_models,
    to_state,
    train_content,
)
from fedclust.messages.kinds import Content, of_kind
from fedclust.metrics import outcomes


@pytest.fixture(autouse=True)
def _identity() -> None:
    assume_identity()


FIGURES = {"num-examples": 4.0, "loss": 1.0, "accuracy": 0.5, "balanced-accuracy": 0.5}


def _reply(content: RecordDict, client: int = 7) -> Message:
    return Message(content, reply_to=Message(RecordDict(), dst_node_id=client, message_type="train"))


def _model(**arrays: np.ndarray) -> ArrayRecord:
    record = ArrayRecord()
    for name, values in arrays.items():
        record[name] = Array(values)
    return record


def test_state_there_and_back() -> None:
    state = {
        "b.weight": torch.tensor([[1.5, -2.0]]),
        "a.steps": torch.tensor(3),
        "half": torch.ones(2, dtype=torch.float16),
    }
    back = to_state(from_state(state))
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)


def test_rows_of_stacked_models() -> None:
    stacked = {"w": torch.arange(6.0).reshape(3, 2), "n": torch.tensor([7, 8, 9])}
    last, first = from_stacked(stacked, [2, 0])
    assert [array.numpy().tolist() for array in last.values()] == [[4.0, 5.0], 9]
    assert [array.numpy().tolist() for array in first.values()] == [[0.0, 1.0], 7]
    assert from_stacked(stacked, []) == []


def test_models_joined_and_split() -> None:
    models = [_model(w=np.zeros(2), **{"a/b": np.ones(1)}), _model(w=np.full(2, 5.0))]
    joined = join_models(models)
    assert list(joined) == ["0/w", "0/a/b", "1/w"]
    split = split_models(joined)
    assert list(split) == [0, 1]
    assert list(split[0]) == ["w", "a/b"]
    np.testing.assert_array_equal(split[1]["w"].numpy(), [5.0, 5.0])


def test_like_restores_types_and_order() -> None:
    template = _model(w=np.zeros(2, dtype=np.float32), steps=np.zeros((), dtype=np.int64))
    mean = _model(steps=np.array(2.6), w=np.array([0.5, 1.5]))
    restored = like(mean, template)
    assert list(restored) == ["w", "steps"]
    assert restored["w"].numpy().dtype == np.float32
    assert restored["steps"].numpy() == 3  # the nearest integer
    assert restored["steps"].numpy().dtype == np.int64


def test_a_mean_between_two_floats_falls_the_same_way_whatever_its_round_off() -> None:
    # 1 + 2^-24 lies halfway between the float32 numbers 1 and 1 + 2^-23; ties go to the even one, 1. One bit
    # of float64 more, 2^-52, would send it up.
    template = _model(w=np.zeros(3, dtype=np.float32))
    tie = 1 + 2.0**-24
    settled = like(_model(w=np.array([tie, tie + 2.0**-52, tie - 2.0**-53])), template)
    np.testing.assert_array_equal(settled["w"].numpy(), np.ones(3, dtype=np.float32))
    assert np.float32(tie + 2.0**-52) != 1


def test_like_refuses_another_model() -> None:
    template = _model(w=np.zeros(2))
    with pytest.raises(ValueError, match=r"arrays must be named \['w'\], got \['v'\]"):
        like(_model(v=np.zeros(2)), template)
    with pytest.raises(ValueError, match=r"array 'w' must have shape \(2,\), got \(3,\)"):
        like(_model(w=np.zeros(3)), template)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite(bad: float) -> None:
    assert is_finite(_model(w=np.zeros(2), steps=np.array(3)))
    assert not is_finite(_model(v=np.zeros(1), w=np.array([0.0, bad])))


def test_instruction_as_flower_writes_it() -> None:
    arrays = _model(w=np.zeros(2))
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 4, "proximal-mu": 0.1})})
    read = read_instruction(content)
    assert read.arrays is arrays
    assert (read.server_round, read.proximal_mu, read.mean_reply, read.full) == (4, 0.1, False, False)


def test_instruction_without_a_config() -> None:
    read = read_instruction(RecordDict({"arrays": _model(w=np.zeros(2))}))
    assert (read.server_round, read.proximal_mu) == (0, None)


def test_instruction_without_a_model() -> None:
    with pytest.raises(ValueError, match=r"one ArrayRecord, its records are \['config'\]"):
        read_instruction(RecordDict({"config": ConfigRecord()}))


def test_train_reply_there_and_back() -> None:
    arrays = _model(w=np.ones(2))
    reply = read_train(_reply(train_content(arrays, 12, np.array([2.0, 1.0]))), 3)
    assert (reply.client, reply.num_examples, reply.loss) == (7, 12, 1.5)
    np.testing.assert_array_equal(reply.losses, [2.0, 1.0])
    assert reply.arrays is arrays


def _content(**changes: object) -> RecordDict:
    content = train_content(_model(w=np.ones(2)), 12, np.array([2.0, 1.0]))
    for key, record in changes.items():
        if record is None:
            del content[key]
        else:
            content[key] = record
    return content


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (_content(losses=None), r"client 7, round 3: no 'losses' in reply, keys are \['arrays', 'metrics'\]"),
        (_content(arrays=None), "no 'arrays' in reply"),
        (_content(metrics=MetricRecord({"loss": 1.0})), r"no 'num-examples' in reply, keys are \['loss'\]"),
        (_content(metrics=MetricRecord({"num-examples": 0})), r"num-examples must be in \[1, .*\], got 0"),
        (_content(losses=ConfigRecord({"losses": [1.0, float("nan")]})), "losses must be finite"),
        (_content(losses=ConfigRecord({"losses": []})), "losses must be a list of finite"),
        (_content(losses=ConfigRecord()), "losses must be a list of finite"),
    ],
)
def test_bad_train_replies(content: RecordDict, rule: str) -> None:
    with pytest.raises(BadReply, match=rule):
        read_train(_reply(content), 3)


def test_evaluate_reply_there_and_back() -> None:
    evaluation = read_evaluate(_reply(evaluate_content(FIGURES)), 3)
    assert evaluation.client == 7
    assert evaluation.metrics == FIGURES


def test_a_full_evaluation_carries_counts_there_and_back() -> None:
    counted = outcomes(
        np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8]])
    )
    read = read_evaluate(_reply(evaluate_content(FIGURES, counted)), 3).outcomes
    assert (read.there.tolist(), read.predicted.tolist(), read.hits.tolist()) == ([2, 1], [1, 2], [1, 1])
    # Each class has two bins, the lower score's first: for class 0 that of two rows, for class 1 of one.
    assert (read.positives.tolist(), read.negatives.tolist()) == ([1, 1, 0, 1], [1, 0, 1, 1])
    assert read.bins.tolist() == counted.bins.tolist()


def test_a_diverged_model_s_counts_there_and_back() -> None:
    counted = outcomes(np.array([0, 1]), np.array([0, 0]), np.full((2, 2), np.nan))
    read = read_evaluate(_reply(evaluate_content(FIGURES, counted)), 3).outcomes
    assert read.bins is None
    assert read.predicted.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, r"no 'class-counts' in reply, keys are \[\]"),
        ({"class-counts": np.ones((3, 2))}, "class-counts must be counts, got float64"),
        ({"class-counts": np.ones((2, 2), np.uint8)}, r"class-counts must be rows.* got shape \(2, 2\)"),
        ({"class-counts": np.array([[1], [1], [2]], np.uint8)}, "hits, at most as many"),
        ({"score-gaps": np.array([3, 0], np.uint8)}, "score-gaps must be > 0, add up to at most 8192"),
        ({"score-gaps": np.array([8193], np.uint16)}, "score-gaps must be > 0, add up to at most 8192"),
        ({"score-gaps": np.array([1], np.uint16)}, r"each have its counts, got shapes \(1,\), \(0,\)"),
    ],
)
def test_counts_that_do_not_fit(arrays: dict[str, np.ndarray], reason: str) -> None:
    counts = {"class-counts": np.ones((3, 2), np.uint8)} if "score-gaps" in arrays else {}
    content = RecordDict({"metrics": MetricRecord(FIGURES), "outcomes": _model(**{**counts, **arrays})})
    with pytest.raises(BadReply, match=f"client 7, round 3: .*{reason}"):
        read_evaluate(_reply(content), 3)


def test_evaluate_reply_without_metrics() -> None:
    with pytest.raises(BadReply, match="client 7, round 3: no 'metrics' in reply"):
        read_evaluate(_reply(RecordDict()), 3)


def test_hosted_there_and_back() -> None:
    assert read_hosted(clients_content((3, 5), 9)) == Hosted((3, 5), 9)
    told = Hosted((), 9, "north", "abc")
    assert read_hosted(clients_content((), 9, "north", "abc")) == told
    shared = Hosted((0, 1), 2, steps=(7, 3))
    assert read_hosted(clients_content((0, 1), 2, steps=[7, 3])) == shared
    with pytest.raises(BadReply, match="no 'clients'"):
        read_hosted(RecordDict())
    with pytest.raises(BadReply, match=r"steps must be a list of 2 numbers, got \[7\]"):
        read_hosted(clients_content((0, 1), 2, steps=[7]))
    with pytest.raises(BadReply, match="steps must be in"):
        read_hosted(clients_content((0, 1), 2, steps=[7, -1]))


@pytest.mark.parametrize("group", [None, 0, 2])
def test_description_there_and_back(group: int | None) -> None:
    description = Description(np.array([3, 0]), np.array([1, 0]), group, (0.5,), (0.25,))
    read = read_description(_reply(description_content(description)))
    np.testing.assert_array_equal(read.train_counts, [3, 0])
    np.testing.assert_array_equal(read.test_counts, [1, 0])
    assert (read.group, read.mean, read.std) == (group, (0.5,), (0.25,))


def test_description_without_counts() -> None:
    with pytest.raises(BadReply, match="client 7: no label counts"):
        read_description(_reply(RecordDict({"config": ConfigRecord({"x": 1})})))


def test_names_in_a_description_cannot_write_to_a_terminal() -> None:
    names = Names(("well", "ill\x1b[2J"), {"a\r\nb": 3})
    description = Description(np.array([1, 2]), np.array([1, 0]), None, (), (), "ward\x9b31m 7", names)
    read = read_description(_reply(description_content(description)))
    assert (read.name, read.names) == ("ward 31m 7", Names(("well", "ill [2J"), {"a  b": 3}))
    description = Description(np.array([1]), np.array([1]), None, (), (), "x" * 1001)
    with pytest.raises(BadReply, match="name must be at most 1000 characters long"):
        read_description(_reply(description_content(description)))
    description = dataclasses.replace(description, name=3)
    with pytest.raises(BadReply, match="name must be a text, got 3"):
        read_description(_reply(description_content(description)))


def test_prototypes_there_and_back() -> None:
    prototypes = np.array([[1.0, 2.0], [0.0, 0.0]], dtype=np.float32)
    counts, scatter = np.array([3, 0]), np.array([0.5, 0.0])
    read = read_prototypes(_reply(prototypes_content(prototypes, counts, scatter)))
    for values, sent in zip(read, (prototypes, counts, scatter), strict=True):
        np.testing.assert_array_equal(values, sent)
        assert values.dtype == sent.dtype


@pytest.mark.parametrize(
    ("prototypes", "counts", "scatter", "rule"),
    [
        (np.zeros((2, 3)), [0, 0, 0], [0, 0], r"counts and scatter \(classes,\), got \(2, 3\), \(3,\)"),
        (np.zeros((2, 3)), [0, 0], [0, 0, 0], r"got \(2, 3\), \(2,\) and \(3,\)"),
        (np.zeros(3), [0, 0, 0], [0, 0, 0], r"got \(3,\), \(3,\) and \(3,\)"),
        (np.full((2, 3), np.nan), [1, 1], [0, 0], "must be finite"),
        (np.zeros((2, 3)), [2, 2], [0, np.inf], "must be finite"),
        (np.zeros((2, 3)), [2, -1], [0, 0], "counts and scatter must be >= 0, got -1 and 0.0"),
        (np.zeros((2, 3)), [2, 1], [-0.5, 0], "counts and scatter must be >= 0, got 1 and -0.5"),
    ],
)
def test_bad_prototypes(prototypes: np.ndarray, counts: list, scatter: list, rule: str) -> None:
    with pytest.raises(BadReply, match=rule):
        read_prototypes(_reply(prototypes_content(prototypes, counts, scatter)))


def test_counts_of_prototypes_are_whole_numbers() -> None:
    content = prototypes_content(np.zeros((1, 2)), [1], [0])
    content[ARRAYS]["counts"] = Array(np.array([0.5]))
    with pytest.raises(BadReply, match="client 7: counts must be whole numbers, got dtype float64"):
        read_prototypes(_reply(content))


def test_no_prototypes() -> None:
    with pytest.raises(BadReply, match="client 7: no 'arrays' in reply"):
        read_prototypes(_reply(RecordDict()))


def test_confusion_there_and_back() -> None:
    counts = np.array([[3, 1], [0, 2]])
    np.testing.assert_array_equal(read_confusion(_reply(confusion_content(counts))), counts)


@pytest.mark.parametrize("counts", [np.zeros((2, 3)), np.zeros(4), np.array([[1, -1], [0, 0]])])
def test_bad_confusion(counts: np.ndarray) -> None:
    with pytest.raises(
        BadReply, match=r"client 7: confusion must be counts of shape|confusion must be whole numbers"
    ):
        read_confusion(_reply(confusion_content(counts)))
    with pytest.raises(BadReply, match="client 7: no .* in reply"):
        read_confusion(_reply(RecordDict()))


def test_what_a_node_is_told_of_pooling_and_what_it_answers() -> None:
    content = RecordDict({"arrays": _model(w=np.zeros(2)), "config": ConfigRecord({"pooled": [2, 0, 5]})})
    assert read_instruction(content).pooled == (2, 0, 5)
    content = RecordDict({"arrays": _model(w=np.zeros(2)), "config": ConfigRecord({"server-round": 1})})
    assert read_instruction(content).pooled == ()
    answer = train_content(_model(w=np.zeros(2)), 5, np.ones(2))
    assert read_pooled(_reply(answer)) == 1
    assert read_pooled(_reply(pooled_content(answer, 7))) == 7


def test_records_of_a_kind_are_those_of_flowers_views() -> None:
    told = {
        "a": ArrayRecord(),
        "b": ConfigRecord({"c": 1}),
        "d": MetricRecord({"e": 2.0}),
        "f": ArrayRecord(),
    }
    content, plain = Content(told), RecordDict(told)
    assert of_kind(content, ArrayRecord) == plain.array_records == {"a": told["a"], "f": told["f"]}
    assert of_kind(content, ConfigRecord) == plain.config_records == {"b": told["b"]}
    assert of_kind(content, MetricRecord) == plain.metric_records == {"d": told["d"]}
    assert content.array_records == plain.array_records
    assert content.config_records == plain.config_records
    assert content.metric_records == plain.metric_records


def test_what_reads_a_content_does_not_keep_it() -> None:
    """Without a collection of circles: Flower's views, which refer to the content, are such circles."""
    model = ArrayRecord({"weight": Array(np.ones(2, dtype=np.float32))})
    questions = [
        (losses_question([model]), read_losses_question),
        (proof_question(model, model, np.zeros(2), np.zeros(2)), read_proof_question),
        (description_question("sizes"), read_description_question),
        (RecordDict({"arrays": model, "config": ConfigRecord({"round": 1})}), read_instruction),
    ]
    gc.collect()
    gc.disable()
    try:
        for content, read in questions:
            copied = RecordDict(dict(content))
            alive = weakref.ref(copied)
            read(copied)
            del copied
            assert alive() is None, read.__name__
    finally:
        gc.enable()
