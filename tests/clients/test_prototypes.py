import numpy as np
import pytest
from flwr.app import RecordDict

from fedclust.messages.codec import ARRAYS, Reading, decode, encode
from fedclust.messages.description import Prototypes, PrototypesQuestion

TWO = {"clients": "1,5"}


def test_prototypes_are_class_means_in_the_encoders_space(node, federation) -> None:
    """The default encoder is the normalised pixels themselves."""
    contents, errors = node(TWO).ask_clients("query.prototypes", {1: RecordDict(), 5: RecordDict()})
    assert errors == {}
    for client in (1, 5):
        prototypes = contents[client].array_records[ARRAYS]["prototypes"].numpy()
        examples = [[] for _ in range(10)]
        for row in federation.train[client]:
            label = int(federation.labels[row])
            pixels = federation.inputs[row].numpy().reshape(64) / 255
            examples[label].append((pixels - federation.mean[0]) / federation.std[0])
        np.testing.assert_allclose(prototypes, [np.mean(own, axis=0) for own in examples], atol=1e-5)
        record = contents[client].array_records[ARRAYS]
        np.testing.assert_array_equal(record["counts"].numpy(), [len(own) for own in examples])
        # Σ‖x − mean‖²/(n − 1) is the sum of the dimensions' sample variances.
        scatter = [np.var(own, axis=0, ddof=1).sum() for own in examples]
        np.testing.assert_allclose(record["scatter"].numpy(), scatter, rtol=1e-5)


def test_an_only_client_answers_a_plain_message(node) -> None:
    contents, _ = node(TWO).ask_clients("query.prototypes", {1: RecordDict()})
    reply = node({"clients": "1"}).ask("query.prototypes", RecordDict())
    bundled = contents[1].array_records[ARRAYS]
    told = decode(Prototypes, reply.content, Reading(1)).all
    for key, values in zip(("prototypes", "counts", "scatter"), told, strict=True):
        np.testing.assert_array_equal(values, bundled[key].numpy())


@pytest.mark.parametrize(
    ("asked", "own"), [("encoder", "random"), ("pixels", "random"), ("untrained", "pixels")]
)
def test_a_node_embeds_its_data_with_none_but_its_own_encoders(node, asked, own) -> None:
    # The run's encoder is the pixels.
    contents = {1: encode(PrototypesQuestion(input=asked))}
    named = {"encoder": "pixels", "untrained": "random"}.get(asked, asked)
    answers, errors = node({**TWO, "encoder": own}).ask_clients("query.prototypes", contents)
    assert not answers
    told = "encoder must be one that this node's operator lists in its --node-config, got"
    assert errors == {1: f'{told} "{named}"'}
    answers, errors = node({**TWO, "encoder": f"{own},{named}"}).ask_clients("query.prototypes", contents)
    assert list(answers) == [1]
    assert errors == {}
