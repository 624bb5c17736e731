"""A ClientApp in NumPy."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_app.data import load

app = ClientApp()


def predict(weights: np.ndarray, bias: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the probability of each digit."""
    scores = rows @ weights.T + bias
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the node's rows."""
    config, rate = context.node_config, message.content["config"]["lr"]
    rows, labels, _, _ = load(config["partition-id"], config["num-partitions"])
    weights, bias = message.content["arrays"].to_numpy_ndarrays()
    for _ in range(20):
        slope = (predict(weights, bias, rows) - np.eye(10)[labels]) / len(rows)
        weights, bias = weights - rate * slope.T @ rows, bias - rate * slope.sum(axis=0)
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": ArrayRecord([weights, bias]), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on the node's other rows."""
    config = context.node_config
    _, _, rows, labels = load(config["partition-id"], config["num-partitions"])
    chances = predict(*message.content["arrays"].to_numpy_ndarrays(), rows)
    loss = -np.log(chances[np.arange(len(labels)), labels] + 1e-12).mean()
    metrics = MetricRecord({"loss": float(loss), "num-examples": len(rows)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
