import numpy as np
import torch

from fedclust.messages.codec import ARRAYS


def test_each_client_counts_answers_on_its_own_test_part(node, tell, network, federation) -> None:
    content = tell()
    contents, errors = node({"clients": "0-3"}).ask_clients("query.confusion", {1: content, 3: content})
    assert errors == {}
    for client in (1, 3):
        expected = np.zeros((10, 10), dtype=int)
        for row in federation.test[client]:  # one example after the other
            pixels = (federation.inputs[row].float() / 255 - federation.mean[0]) / federation.std[0]
            with torch.no_grad():
                answer = int(network(pixels.unsqueeze(0))[0].argmax())
            expected[int(federation.labels[row]), answer] += 1
        array = contents[client].array_records[ARRAYS]["confusion"]
        np.testing.assert_array_equal(array.numpy(), expected)
