import numpy as np
import pandas as pd
import torch

from fedclust.messages.codec import ARRAYS, METRICS


def by_hand(network, federation, client):
    rows = federation.test[client]
    pixels = (federation.inputs[rows].float() / 255 - federation.mean[0]) / federation.std[0]
    with torch.no_grad():
        return rows, network(pixels).softmax(-1).numpy()


def test_a_deployed_node_keeps_its_rows(node, tell, network, federation, tmp_path) -> None:
    content = tell()
    asked = node({"clients": "0-3", "predictions": str(tmp_path)})
    contents, errors = asked.ask_clients("query.predictions", {2: content})
    assert errors == {}
    rows, chances = by_hand(network, federation, 2)
    # Only the number of rows leaves the node.
    assert list(contents[2]) == [METRICS]
    assert dict(contents[2].metric_records[METRICS]) == {"num-examples": len(rows)}
    table = pd.read_parquet(tmp_path / "run-1" / "client-2.parquet")
    assert table["row"].tolist() == rows.tolist()
    assert table["label"].tolist() == [str(label) for label in federation.labels[rows].tolist()]
    assert table["predicted"].tolist() == [str(label) for label in chances.argmax(1)]
    np.testing.assert_allclose(table[[f"p: {label}" for label in range(10)]], chances, atol=1e-6)


def test_a_deployed_node_without_a_folder_refuses_whatever_else_it_allows(node, tell) -> None:
    content = tell()
    for config in ({"clients": "0-3"}, {"clients": "0-3", "allow": "*"}):
        contents, errors = node(config).ask_clients("query.predictions", {1: content})
        assert contents == {}
        assert "no folder for predictions on this node" in errors[1]


def test_a_simulated_node_replies_with_its_rows(node, tell, network, federation) -> None:
    content = tell()
    contents, _ = node({"clients": "0-3", "predictions": "reply"}).ask_clients(
        "query.predictions", {1: content}
    )
    rows, chances = by_hand(network, federation, 1)
    arrays = contents[1].array_records[ARRAYS]
    np.testing.assert_array_equal(arrays["rows"].numpy(), rows)
    np.testing.assert_array_equal(arrays["labels"].numpy(), federation.labels[rows])
    np.testing.assert_allclose(arrays["probabilities"].numpy(), chances, atol=1e-6)
