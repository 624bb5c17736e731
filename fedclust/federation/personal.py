"""Ask clients what personal layers do on top of the models that serve them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import RecordDict

from fedclust.federation.evaluations import Measured
from fedclust.federation.federation import Federation
from fedclust.federation.proof import Models, prior_shifts
from fedclust.messages import QUERY_PERSONAL, BadReply, Evaluation, personal_question, read_personal
from fedclust.personal.layers import NONE, PRIOR, Auto, Personal, choose
from fedclust.typing import BoolArray, FloatArray

__all__ = ["Layered", "Serving", "ask_personal"]


@dataclass(frozen=True, eq=False)
class Serving:
    """Which model serves each client, before any personal layer.

    Attributes
    ----------
    measured
        What clients measured with it.
    clusters
        Cluster of each client, and each cluster's model.
    common
        The same of one model for all; `clusters` again where there is none.
    by_common
        Whether the model for all serves each client, shape (K,).
    """

    measured: Measured
    clusters: Models
    common: Models
    by_common: BoolArray


@dataclass(frozen=True, eq=False)
class Layered:
    """What clients measured with personal layers.

    Attributes
    ----------
    measured
        By choice, what each client measured with the layer that it uses under that choice: each layer that
        was asked for, and the choice between them. A client that could not make a layer, or did not answer,
        uses none.
    used
        By choice, the layer that each client uses, shape (K,).
    losses
        By layer, none included, the mean loss of each client's validation rows, NaN where unknown, each of
        shape (K,).
    shifts
        What the label-prior correction adds to each client's logits, shape (K, C); None where nobody asked.
    failures
        Why clients could not make a layer or did not answer, by client id.
    """

    measured: Mapping[str, Measured]
    used: Mapping[str, np.ndarray]
    losses: Mapping[str, FloatArray]
    shifts: FloatArray | None
    failures: Mapping[int, str]


def ask_personal(federation: Federation, serving: Serving, personal: Personal, server_round: int) -> Layered:
    """Ask every client how well personal layers serve it: one message for all layers, no model comes back.

    Parameters
    ----------
    federation
        The clients.
    serving
        Which model serves each client. The label-prior correction takes the class shares of the clients that
        this model was trained on.
    personal
        The layers to try.
    server_round
        The round whose batches fine-tuning draws, from 1: the one after the last.
    """
    clients = range(federation.num_clients)
    shifts = _shifts(federation, serving) if PRIOR in personal.asked else None
    questions: dict[int, RecordDict] = {}
    for client in clients:
        assignment, models = serving.common if serving.by_common[client] else serving.clusters
        shift = None if shifts is None else shifts[client]
        model = models[int(assignment[client])]
        questions[client] = personal_question(model, server_round, shift, personal.finetune)
    answers = federation.ask(QUERY_PERSONAL, None, questions)
    failures = dict(answers.failures)
    tests: dict[str, list[Evaluation]] = {layer: [] for layer in personal.asked}
    losses = {layer: np.full(len(clients), np.nan) for layer in (NONE, *personal.asked)}
    for client, reply in answers.replies.items():
        try:
            answer = read_personal(reply, personal.asked, federation.bounds)
        except BadReply as error:
            failures[client] = str(error)
            continue
        for layer, reason in answer.failed.items():
            failures[client] = f"{layer}: {reason}"
        for layer, test in answer.tests.items():
            tests[layer].append(test)
        for layer, loss in answer.losses.items():
            losses[layer][client] = loss
    used = {layer: _made(tests[layer], layer, len(clients)) for layer in personal.asked}
    layers = {layer: Measured.of(tests[layer], len(clients)) for layer in personal.asked}
    if isinstance(personal, Auto):
        known = {layer: np.where(used[layer] == layer, losses[layer], np.nan) for layer in personal.asked}
        used[personal.choice] = choose({NONE: losses[NONE], **known})
    measured = {choice: _measured(serving.measured, layers, who) for choice, who in used.items()}
    return Layered(measured, used, losses, shifts, dict(sorted(failures.items())))


def _shifts(federation: Federation, serving: Serving) -> FloatArray:
    counts = federation.describe().train_counts
    own, common = (prior_shifts(counts, assignment) for assignment, _ in (serving.clusters, serving.common))
    return np.where(serving.by_common[:, None], common, own)


def _made(tests: list[Evaluation], layer: str, num_clients: int) -> np.ndarray:
    """Say who could make a layer; the others use none."""
    used = np.full(num_clients, NONE, dtype="<U16")
    used[[test.client for test in tests]] = layer
    return used


def _measured(none: Measured, layers: Mapping[str, Measured], used: np.ndarray) -> Measured:
    """Put together what each client measured with the layer that it uses."""
    for layer, measured in layers.items():
        none = none.served(measured, used == layer)
    return none
