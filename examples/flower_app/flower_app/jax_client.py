"""A ClientApp in JAX."""

import jax
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from jax import numpy as jnp

from flower_app.data import load

app = ClientApp()


def loss_of(parameters: list[jax.Array], rows: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy."""
    weights, bias = parameters
    logs = jax.nn.log_softmax(rows @ weights.T + bias)
    return -jnp.take_along_axis(logs, labels[:, None], axis=1).mean()


slopes_of = jax.jit(jax.grad(loss_of))


def parts(message: Message, context: Context) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return the server's parameters, and the node's data."""
    config, sent = context.node_config, message.content["arrays"].to_numpy_ndarrays()
    data = load(config["partition-id"], config["num-partitions"])
    return [jnp.asarray(each) for each in sent], [jnp.asarray(each) for each in data]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the node's rows."""
    parameters, (rows, labels, _, _) = parts(message, context)
    rate = message.content["config"]["lr"]
    for _ in range(20):
        slopes = slopes_of(parameters, rows, labels)
        parameters = [each - rate * slope for each, slope in zip(parameters, slopes, strict=True)]
    metrics = MetricRecord({"num-examples": len(rows)})
    arrays = ArrayRecord([jax.device_get(each) for each in parameters])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on the node's other rows."""
    parameters, (_, _, rows, labels) = parts(message, context)
    loss = float(loss_of(parameters, rows, labels))
    metrics = MetricRecord({"eval_loss": loss, "num-examples": len(rows)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
