"""A ClientApp in scikit-learn."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from flower_app.data import load

app = ClientApp()


def build(message: Message) -> SGDClassifier:
    """Return the classifier with the server's parameters."""
    rate = message.content["config"].get("lr", 0.5) / 10
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate, random_state=0)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = (each.copy() for each in message.content["arrays"].to_numpy_ndarrays())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the node's rows."""
    config = context.node_config
    rows, labels, _, _ = load(config["partition-id"], config["num-partitions"])
    model = build(message)
    model.fit(rows, labels, coef_init=model.coef_, intercept_init=model.intercept_)
    metrics = MetricRecord({"num-examples": len(rows)})
    arrays = ArrayRecord([model.coef_, model.intercept_])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on the node's other rows."""
    config = context.node_config
    _, _, rows, labels = load(config["partition-id"], config["num-partitions"])
    model = build(message)
    chances = model.predict_proba(rows)
    loss = log_loss(labels, chances, labels=range(10))
    metrics = MetricRecord({"loss": loss, "num-examples": len(rows)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
