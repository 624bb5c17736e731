"""Save what a model predicts for the clients' own test rows: on the node, unless this is a simulation."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, read_shared, respond
from fedclust.clients.node import Node
from fedclust.messages import predictions_content, to_state
from fedclust.messages.predictions import prediction_table
from fedclust.training import Job

__all__ = ["predictions"]

_REPLY = "reply"  # what a simulated node's configuration says


@app.query("predictions")
def predictions(message: Message, context: Context) -> Message:
    """Predict each client's test rows with the model it is sent.

    A deployed node writes them into the folder that its own configuration names, ``predictions='/folder'``,
    and replies only how many there are; without a folder, it refuses.
    """
    where = str(context.node_config.get("predictions", ""))
    return respond(message, context, partial(_predictions, where=where, run=context.run_id))


def _predictions(node: Node, contents: Mapping[int, RecordDict], *, where: str, run: int) -> Answers:
    if not where:
        reason = "no folder for predictions on this node: --node-config \"predictions='/folder'\" names one"
        return {}, dict.fromkeys(contents, reason)
    from scipy.special import softmax  # few runs ask for predictions

    answers: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    for instruction, clients in read_shared(contents):
        state = to_state(instruction.arrays)
        jobs = [Job(client, node.data.test[client], state) for client in clients]
        for client, (logits, labels) in zip(clients, node.trainer.logits(jobs), strict=True):
            rows = node.data.test[client]
            chances = softmax(logits.astype(np.float32), axis=-1)
            if where == _REPLY:
                answers[client] = predictions_content(rows, labels, chances)
                continue
            names = node.data.client_names
            table = prediction_table(
                client, None if names is None else names[client], rows, labels, chances, node.data.class_names
            )
            try:
                folder = Path(where) / f"run-{run}"
                folder.mkdir(parents=True, exist_ok=True)
                table.to_parquet(folder / f"client-{client}.parquet", index=False)
            except OSError as error:
                errors[client] = f"predictions cannot be written: {error}"
                continue
            answers[client] = predictions_content(rows)
    return answers, errors
