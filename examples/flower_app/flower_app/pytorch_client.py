"""A ClientApp in PyTorch."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_app.data import load

app = ClientApp()


def build(message: Message) -> torch.nn.Linear:
    """Return the network with the server's parameters."""
    network = torch.nn.Linear(64, 10)
    parameters = message.content["arrays"].to_numpy_ndarrays()
    network.load_state_dict(dict(zip(network.state_dict(), map(torch.tensor, parameters), strict=True)))
    return network


def parts(context: Context) -> list[torch.Tensor]:
    """Return the node's data as tensors."""
    config = context.node_config
    return [torch.tensor(each) for each in load(config["partition-id"], config["num-partitions"])]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the node's rows."""
    network, (rows, labels, _, _) = build(message), parts(context)
    optimiser = torch.optim.SGD(network.parameters(), message.content["config"]["lr"])
    for _ in range(20):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(rows), labels)
        loss.backward()
        optimiser.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(rows)})
    arrays = ArrayRecord([each.numpy() for each in network.state_dict().values()])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on the node's other rows."""
    network, (_, _, rows, labels) = build(message), parts(context)
    with torch.no_grad():
        scores = network(rows)
    metrics = {
        "eval_loss": torch.nn.functional.cross_entropy(scores, labels).item(),
        "eval_acc": (scores.argmax(1) == labels).float().mean().item(),
        "num-examples": len(rows),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
