"""Try personal layers on top of the model that serves each client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, respond
from fedclust.clients.evaluate import scores
from fedclust.clients.node import Node
from fedclust.messages import (
    LOSS,
    Evaluation,
    PersonalAnswer,
    PersonalQuestion,
    personal_content,
    read_personal_question,
    to_state,
)
from fedclust.personal.layers import FINETUNE, NONE, PRIOR, Finetune
from fedclust.training import Job
from fedclust.typing import FloatArray, IntArray, State

__all__ = ["personal"]


@app.query("personal")
def personal(message: Message, context: Context) -> Message:
    """Measure each client's test part and validation rows with each personal layer.

    Fine-tuned models stay on the node; they are gone when it has answered.
    """
    return respond(message, context, _personal)


def _personal(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    asked = {client: read_personal_question(content) for client, content in contents.items()}
    # Clients that were sent one model share its state, and so their passes.
    distinct = {id(question.model): question.model for question in asked.values()}
    states = {key: to_state(model) for key, model in distinct.items()}
    trial = _Trial(node)
    served = {client: states[id(question.model)] for client, question in asked.items()}
    trial.measure(NONE, served, test=False)
    corrected = {client: question.shift for client, question in asked.items() if question.shift is not None}
    trial.measure(PRIOR, {client: served[client] for client in corrected}, corrected)
    kinds: dict[tuple[Finetune, int], list[int]] = {}
    for client, question in asked.items():
        if question.finetune is not None:
            kinds.setdefault((question.finetune, question.server_round), []).append(client)
    for (finetune, server_round), clients in kinds.items():
        trial.finetune(finetune, server_round, {client: served[client] for client in clients})
    return trial.answers(asked)


@dataclass
class _Trial:
    """What a node's clients measured so far."""

    node: Node
    tests: dict[int, dict[str, Evaluation]] = field(default_factory=dict)
    losses: dict[int, dict[str, float]] = field(default_factory=dict)
    failed: dict[int, dict[str, str]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def measure(
        self,
        layer: str,
        states: Mapping[int, State],
        shifts: Mapping[int, FloatArray] | None = None,
        *,
        test: bool = True,
    ) -> None:
        """Measure clients with a layer, each under its model and with what is added to its logits."""
        data, shifts = self.node.data, shifts or {}

        def jobs(part: Sequence[IntArray]) -> list[Job]:
            return [
                Job(client, part[client], state, shift=shifts.get(client))
                for client, state in states.items()
                if client not in self.errors
            ]

        nothing = np.zeros(0, dtype=np.int64)
        held_out = jobs(data.validation or (nothing,) * data.num_clients)
        validated, failed = scores(self.node, [job for job in held_out if len(job.rows)], False, own=False)
        self.errors |= failed
        for client, each in validated.items():
            self.losses.setdefault(client, {})[layer] = each.figures[LOSS]
        if test:
            tested, failed = scores(self.node, jobs(data.test), True)
            self.errors |= failed
            for client, each in tested.items():
                self.tests.setdefault(client, {})[layer] = Evaluation(client, each.figures, each.outcomes)

    def finetune(self, how: Finetune, server_round: int, states: Mapping[int, State]) -> None:
        """Train clients from their models, and measure them with what comes of it."""
        node = self.node
        jobs = [
            Job(client, node.data.train[client], state)
            for client, state in states.items()
            if client not in self.errors
        ]
        for update in node.trainer.finetuner(how).train(jobs, server_round, proximal_mu=0.0):
            for client, reason in update.failed.items():
                self.failed.setdefault(client, {})[FINETUNE] = reason
            self.measure(
                FINETUNE,
                {
                    client: {name: stacked[place] for name, stacked in update.state.items()}
                    for place, client in enumerate(update.clients.tolist())
                    if client not in update.failed
                },
            )

    def answers(self, asked: Mapping[int, PersonalQuestion]) -> Answers:
        """Write what each client measured."""
        return {
            client: personal_content(
                PersonalAnswer(
                    self.tests.get(client, {}), self.losses.get(client, {}), self.failed.get(client, {})
                )
            )
            for client in asked
            if client not in self.errors
        }, self.errors
