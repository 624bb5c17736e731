import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from scipy.linalg import subspace_angles

from fedclust.messages.codec import ARRAYS, SERVER, BadReply, Reading, decode, encode
from fedclust.messages.description import Prototypes, PrototypesQuestion, Subspaces, SubspacesQuestion

TWO = {"clients": "1,5"}


def _told(content: RecordDict, vectors: int) -> np.ndarray:
    return decode(Subspaces, content, Reading(0, asked=SubspacesQuestion("pixels", vectors))).subspaces


def test_subspaces_are_the_left_singular_vectors_of_each_class(node, federation) -> None:
    question = encode(SubspacesQuestion("pixels", 2))
    contents, errors = node(TWO).ask_clients("query.subspaces", {1: question, 5: question})
    assert errors == {}
    for client in (1, 5):
        found = _told(contents[client], 2)
        assert found.shape == (10, 64, 2)
        rows = federation.train[client]
        for label in range(10):
            own = rows[(federation.labels[rows] == label).numpy()]
            pixels = federation.inputs[own].numpy().reshape(len(own), 64) / 255
            matrix = ((pixels - federation.mean[0]) / federation.std[0]).T  # examples as columns
            left = np.linalg.svd(matrix)[0][:, :2]
            np.testing.assert_allclose(found[label].T @ found[label], np.eye(2), atol=1e-5)
            np.testing.assert_allclose(np.degrees(subspace_angles(left, found[label])), 0, atol=0.05)


def test_an_encoder_makes_the_columns_where_it_is_asked_for(node) -> None:
    """The default encoder is the pixels."""
    answers = [
        node(TWO).ask_clients("query.subspaces", {1: encode(SubspacesQuestion(name, 1))})[0][1]
        for name in ("pixels", "encoder", "untrained")
    ]
    pixels, encoder, untrained = (_told(answer, 1) for answer in answers)
    np.testing.assert_array_equal(pixels, encoder)
    assert untrained.shape == (10, 128, 1)


def test_an_unknown_input_is_the_clients_error(node) -> None:
    contents, errors = node(TWO).ask_clients("query.subspaces", {1: encode(SubspacesQuestion("x", 1))})
    assert contents == {}
    assert errors == {1: "input must be one of encoder, pixels, untrained, got 'x'"}


def test_a_question_lacks_nothing() -> None:
    with pytest.raises(ValueError, match="the server's message: no 'config'"):
        decode(SubspacesQuestion, RecordDict(), SERVER)
    with pytest.raises(ValueError, match="vectors must be in"):
        decode(SubspacesQuestion, encode(SubspacesQuestion("pixels", 0)), SERVER)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (RecordDict(), r"no 'arrays' in reply, keys are \[\]"),
        (RecordDict({"config": ConfigRecord()}), r"records must be among \['arrays'\], got \['config'\]"),
        (RecordDict({"arrays": ArrayRecord()}), r"no 'subspaces' in reply"),
        (encode(Subspaces(np.ones((2, 3)))), r"must have shape \(C, d, p\), got \(2, 3\)"),
        (encode(Subspaces(np.ones((2, 3, 1)))), r"got \(2, 3, 1\)"),
        (encode(Subspaces(np.full((2, 3, 2), np.nan))), "subspaces must be finite and in"),
        (encode(Subspaces(np.full((2, 3, 2), 0.5))), "must be orthonormal, or 0"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(content: RecordDict, said: str) -> None:
    with pytest.raises(BadReply, match=said):
        _told(content, 2)


def test_pooled_prototypes_are_the_mean_over_all_examples(node, federation) -> None:
    question = encode(PrototypesQuestion("pixels", pooled=True))
    contents, _ = node(TWO).ask_clients("query.prototypes", {1: question})
    means, counts, scatter = decode(Prototypes, contents[1], Reading(1)).all
    pixels = federation.inputs[federation.train[1]].numpy().reshape(-1, 64) / 255
    examples = (pixels - federation.mean[0]) / federation.std[0]
    np.testing.assert_allclose(means, examples.mean(axis=0, keepdims=True), atol=1e-5)
    assert counts.tolist() == [len(examples)]
    np.testing.assert_allclose(scatter, [examples.var(axis=0, ddof=1).sum()], rtol=1e-4)


def test_prototypes_of_an_untrained_network_are_the_same_on_every_node(node) -> None:
    question = encode(PrototypesQuestion("untrained", pooled=True))
    answers = [
        node(config).ask_clients("query.prototypes", {1: question})[0][1]
        for config in (TWO, {"clients": "1"})
    ]
    one, other = (answer.array_records[ARRAYS]["prototypes"].numpy() for answer in answers)
    assert one.shape == (1, 128)
    np.testing.assert_array_equal(one, other)
