"""What clients tell of their training without their models."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.messages.codec import ARRAYS, SERVER, BadReply, Reading, decode, encode
from fedclust.messages.training import Projected, Projection, TrainAnswer, TrainAsked, Update, UpdateQuestion

SEVERAL = {"clients": "0-3"}
PROJECTION = Projection(64, 5)


def _changes(node, tell, model, clients) -> dict[str, np.ndarray]:
    """Train in the ordinary way and subtract the model that was sent."""
    trained, errors = node(SEVERAL).ask_clients("train", dict.fromkeys(clients, tell()))
    assert errors == {}
    return {
        name: np.stack(
            [
                trained[client].array_records[ARRAYS][name].numpy().astype("f8") - array.numpy().astype("f8")
                for client in clients
            ]
        )
        for name, array in model.items()
    }


def test_a_projection_and_named_arrays_instead_of_the_model(node, tell, model) -> None:
    clients, names = [0, 2, 3], [list(model)[-1]]
    question = UpdateQuestion.of(model, 1, names, PROJECTION)
    answers, errors = node(SEVERAL).told(dict.fromkeys(clients, question))
    assert errors == {}
    changes = _changes(node, tell, model, clients)
    expected = PROJECTION.of(changes)
    for row, client in enumerate(clients):
        told = answers[client]
        np.testing.assert_allclose(told.projected.values, expected[row], rtol=1e-4, atol=1e-6)
        flat = np.concatenate([array[row].ravel() for array in changes.values()])
        assert told.projected.norm == pytest.approx(np.sqrt((flat**2).sum()), rel=1e-5)
        assert list(told.changes) == names
        np.testing.assert_allclose(told.changes[names[0]], changes[names[0]][row], rtol=1e-4, atol=1e-7)
        assert told.num_examples > 0


def test_training_answers_a_projection_beside_a_mean(node, tell, model) -> None:
    clients = [0, 1, 2, 3]
    content = tell(mean_reply=True, projection=PROJECTION)
    contents, errors = node(SEVERAL).ask_clients("train", dict.fromkeys(clients, content))
    assert errors == {}
    expected = PROJECTION.of(_changes(node, tell, model, clients))
    for client in clients:
        told = decode(TrainAnswer, contents[client], Reading(client, 1, asked=TrainAsked(PROJECTION.size)))
        np.testing.assert_allclose(told.projected.values, expected[client], rtol=1e-4, atol=1e-6)
    # Their mean model is unlike any of their own, so it is not the mean that was projected.
    assert not np.allclose(expected[0], expected[1])


def test_a_client_does_not_answer_for_another(node, model) -> None:
    question = UpdateQuestion.of(model, 1, [], PROJECTION)
    both, _ = node(SEVERAL).told({0: question, 1: question})
    alone, _ = node(SEVERAL).told({1: question})
    first, second = (told[1].projected for told in (both, alone))
    np.testing.assert_allclose(first.values, second.values, rtol=1e-5, atol=1e-7)


def test_a_client_whose_training_fails_is_an_error(node, broken) -> None:
    answers, errors = node(SEVERAL).told({1: UpdateQuestion.of(broken, 1, [], PROJECTION)})
    assert answers == {}
    assert "finite" in errors[1]


def test_a_name_that_the_model_lacks_is_refused(model) -> None:
    with pytest.raises(ValueError, match=r"names must be arrays of the model, .*, got \['nose'\]"):
        decode(UpdateQuestion, encode(UpdateQuestion(model, 1, ("nose",))), SERVER)


INFINITE = np.full(4, np.inf, "f4").tobytes()
GOOD = encode(Update(3, 7, {"w": np.zeros(2)}, Projected(np.arange(4.0), 3.0)))


@pytest.mark.parametrize(
    ("key", "record", "reason"),
    [
        ("metrics", None, "no 'metrics' in reply"),
        ("metrics", MetricRecord({"num-examples": 0}), "num-examples must be in [1, "),
        ("projection", None, "no 'projection' in reply"),
        ("projection", ConfigRecord({"projection": bytes(12), "norm": 1.0}), "4 finite numbers, got 3"),
        ("projection", ConfigRecord({"projection": [1.0] * 4, "norm": 1.0}), "bytes of float32"),
        (
            "projection",
            ConfigRecord({"projection": np.full(4, np.inf, "f4").tobytes(), "norm": 1.0}),
            "4 finite numbers",
        ),
        ("projection", ConfigRecord({"projection": bytes(16), "norm": -1.0}), "norm must be in [0, "),
        ("projection", ConfigRecord({"projection": bytes(16)}), "no 'norm' in reply"),
        ("arrays", None, "no 'arrays' in reply"),
        (
            "arrays",
            ArrayRecord({"w": ArrayRecord([np.zeros(3, "f4")])["0"]}),
            "of shape (2,), got float32, (3,)",
        ),
        ("arrays", ArrayRecord({"w": ArrayRecord([np.full(2, np.nan, "f4")])["0"]}), "must be finite"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(key: str, record: object, reason: str) -> None:
    at = Reading(3, asked=UpdateQuestion.of(GOOD.array_records["arrays"], 1, ["w"], Projection(4, 0)))
    read = decode(Update, GOOD, at)
    assert (read.client, read.num_examples, read.projected.norm) == (3, 7, 3.0)
    damaged = RecordDict({name: value for name, value in GOOD.items() if name != key})
    if record is not None:
        damaged[key] = record
    with pytest.raises(BadReply) as raised:
        decode(Update, damaged, at)
    assert reason in str(raised.value)
    assert str(raised.value).startswith("client 3: ")
