import numpy as np
from flwr.app import RecordDict

from fedclust import records

TWO = {"clients": "1,5"}


def test_prototypes_are_class_means_in_the_encoders_space(node, federation) -> None:
    """The default encoder is the normalised pixels themselves."""
    contents, errors = node(TWO).ask_clients("query.prototypes", {1: RecordDict(), 5: RecordDict()})
    assert errors == {}
    for client in (1, 5):
        prototypes = contents[client].array_records[records.ARRAYS]["prototypes"].numpy()
        shares = contents[client].array_records[records.ARRAYS]["shares"].numpy()
        sums, counts = np.zeros((10, 64)), np.zeros(10)
        for row in federation.train[client]:
            label = int(federation.labels[row])
            pixels = federation.inputs[row].numpy().reshape(64) / 255
            sums[label] += (pixels - federation.mean[0]) / federation.std[0]
            counts[label] += 1
        np.testing.assert_allclose(prototypes, sums / counts[:, None], atol=1e-5)
        np.testing.assert_allclose(shares, counts / counts.sum())


def test_an_only_client_answers_a_plain_message(node) -> None:
    contents, _ = node(TWO).ask_clients("query.prototypes", {1: RecordDict()})
    reply = node({"clients": "1"}).ask("query.prototypes", RecordDict())
    prototypes, shares = records.read_prototypes(reply)
    bundled = contents[1].array_records[records.ARRAYS]
    np.testing.assert_array_equal(prototypes, bundled["prototypes"].numpy())
    np.testing.assert_array_equal(shares, bundled["shares"].numpy())
