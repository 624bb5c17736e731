"""A federation without data: clients whose training is simple arithmetic."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; read when PyTorch and NumPy are imported
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from hypothesis import settings

from fedclust.federation import ClientGrid, LocalGrid, hosted_clients, pack, unpack
from fedclust.messages import (
    Description,
    Evaluation,
    Instruction,
    PersonalAnswer,
    Projected,
    clients_content,
    confusion_content,
    description_content,
    evaluate_content,
    losses_content,
    personal_content,
    proof_content,
    prototypes_content,
    read_instruction,
    read_losses_question,
    read_prototypes_question,
    read_update_names,
    subspaces_content,
    train_content,
    update_content,
)
from fedclust.models.class_prototypes import ClassPrototypes, pooled
from fedclust.proof import Difference

# A machine with other work to do takes longer for a single example than hypothesis allows by default.
settings.register_profile("fedclust", deadline=None)
settings.load_profile("fedclust")

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a worker that is through with its own takes the short tests of the folders."""
    items.sort(key=lambda item: (item.path.name != "test_contract.py", item.path.parent != _HERE))  # stable


@pytest.fixture(scope="session", autouse=True)
def _no_cache_in_the_home_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepare data below pytest's own folder, in this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCLUST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@dataclass
class Toy:
    """How toy clients behave.

    Attributes
    ----------
    move
        What training adds to the model, a number or one for each entry, from client and round; non-finite
        for a client that diverges.
    losses
        Losses before each step, from client and round.
    error
        Why a client fails, from client and round; None for one that does not.
    accuracy
        What a client measures, from client and the model's first entry.
    test_loss
        Its loss on its test part, likewise.
    wins
        On how many of a client's rows each model's loss is the smallest.
    num_examples, counts, prototypes, scatter, subspaces
        What a client has: training samples, those of each class, each class's prototype, the variance of its
        examples around it, and a basis of the subspace that they span.
    """

    num_clients: int = 6
    move: Callable[[int, int], float | list[float]] = lambda client, _: float(client)
    losses: Callable[[int, int], list[float]] = lambda client, _: [1.0 + client, 1.0]
    error: Callable[[int, int], str | None] = lambda *_: None
    accuracy: Callable[[int, float], float] = lambda client, weight: 1 / (1 + client)
    test_loss: Callable[[int, float], float] = lambda *_: 0.0
    num_examples: Callable[[int], int] = lambda client: client + 1
    counts: Callable[[int], list[int]] = lambda client: [client + 1, 1]
    prototypes: Callable[[int], list[list[float]]] = lambda client: [[1.0, 0.0], [0.0, 1.0]]
    scatter: Callable[[int], list[float]] = lambda client: [1.0, 1.0]
    wins: Callable[[int], list[int] | None] = lambda _: None
    subspaces: Callable[[int], np.ndarray] = lambda client: np.eye(2)[None]
    trained: list[tuple[int, int, float]] = field(default_factory=list)  # client, round, first entry
    proximal: set[float | None] = field(default_factory=set)

    def grid(self, num_nodes: int = 1) -> ClientGrid:
        """Connect to the clients, on so many nodes."""
        grid = ClientGrid(self.nodes(num_nodes))
        grid.connect()
        return grid

    def nodes(self, num_nodes: int) -> LocalGrid:
        """Spread the clients over so many nodes."""
        return LocalGrid(self._app(), {}, num_nodes)

    @staticmethod
    def model() -> ArrayRecord:
        """Make the model that all clients start from: two zeros."""
        arrays = ArrayRecord()
        arrays["w"] = Array(np.zeros(2, dtype=np.float32))
        return arrays

    def _app(self) -> ClientApp:
        app = ClientApp()

        @app.query("clients")
        def clients(message: Message, context: Context) -> Message:
            hosted = hosted_clients(context.node_config, self.num_clients)
            return Message(clients_content(hosted, self.num_clients), reply_to=message)

        @app.query("description")
        def describe(message: Message, context: Context) -> Message:
            answers = {
                client: description_content(
                    Description(
                        np.asarray(self.counts(client)),
                        np.asarray(self.counts(client)),
                        None,
                        num_validation=3,
                    )
                )
                for client in unpack(message.content)[0]
            }
            return Message(pack(answers), reply_to=message)

        @app.query("prototypes")
        def prototypes(message: Message, context: Context) -> Message:
            answers = {}
            for client, content in unpack(message.content)[0].items():
                told = self.prototypes(client), self.counts(client), self.scatter(client)
                found = ClassPrototypes(*(np.asarray(values)[None] for values in told))
                if read_prototypes_question(content).pooled:
                    found = pooled(found)
                answers[client] = prototypes_content(*(values[0] for values in found))
            return Message(pack(answers), reply_to=message)

        @app.query("subspaces")
        def subspaces(message: Message, context: Context) -> Message:
            answers = {
                client: subspaces_content(self.subspaces(client)) for client in unpack(message.content)[0]
            }
            return Message(pack(answers), reply_to=message)

        @app.query("update")
        def update(message: Message, context: Context) -> Message:
            answers, errors = {}, {}
            for client, content in unpack(message.content)[0].items():
                told = read_instruction(content)
                change = np.broadcast_to(self.move(client, told.server_round), 2)
                if reason := self.error(client, told.server_round):
                    errors[client] = reason
                    continue
                arrays = ArrayRecord()
                for name in read_update_names(content):
                    arrays[name] = Array(change.astype(np.float32))
                answers[client] = update_content(self.num_examples(client), _projected(told, change), arrays)
            return Message(pack(answers, errors), reply_to=message)

        @app.query("losses")
        def losses(message: Message, context: Context) -> Message:
            answers, errors = {}, {}
            for client, content in unpack(message.content)[0].items():
                models = read_losses_question(content)
                if reason := self.error(client, 0):
                    errors[client] = reason
                else:
                    apart = [abs(client - float(model["w"].numpy()[0])) for model in models]
                    answers[client] = losses_content(apart, self.wins(client))
            return Message(pack(answers, errors), reply_to=message)

        @app.query("personal")
        def personal(message: Message, context: Context) -> Message:
            answers = {}
            for client in unpack(message.content)[0]:
                share = 1 / (2 + client)
                told = {"num-examples": self.num_examples(client), "loss": 0.5}
                figures = {"accuracy": share, "balanced-accuracy": share, **told}
                answers[client] = personal_content(
                    PersonalAnswer({"prior": Evaluation(client, figures)}, {"none": 0.75, "prior": 0.5})
                )
            return Message(pack(answers), reply_to=message)

        @app.query("proof")
        def proof(message: Message, context: Context) -> Message:
            answers = {
                client: proof_content(Difference(0.1, 0.2, 3)) for client in unpack(message.content)[0]
            }
            return Message(pack(answers), reply_to=message)

        @app.query("confusion")
        def confusion(message: Message, context: Context) -> Message:
            answers = {
                client: confusion_content(np.array([[count, 0] for count in self.counts(client)]))
                for client in unpack(message.content)[0]
            }
            return Message(pack(answers), reply_to=message)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            answers, errors = {}, {}
            for client, content in unpack(message.content)[0].items():
                told = read_instruction(content)
                start = told.arrays["w"].numpy()
                self.trained.append((client, told.server_round, float(start[0])))
                self.proximal.add(told.proximal_mu)
                if reason := self.error(client, told.server_round):
                    errors[client] = reason
                    continue
                arrays = ArrayRecord()
                arrays["w"] = Array(
                    np.asarray(start + self.move(client, told.server_round), dtype=np.float32)
                )
                losses = np.asarray(self.losses(client, told.server_round))
                change = np.broadcast_to(self.move(client, told.server_round), 2)
                answers[client] = train_content(
                    arrays, self.num_examples(client), losses, _projected(told, change)
                )
            return Message(pack(answers, errors), reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            answers = {}
            for client, content in unpack(message.content)[0].items():
                weight = float(read_instruction(content).arrays["w"].numpy()[0])
                accuracy = self.accuracy(client, weight)
                measured = {
                    "num-examples": self.num_examples(client),
                    "loss": self.test_loss(client, weight),
                    "accuracy": accuracy,
                    "balanced-accuracy": accuracy,
                }
                answers[client] = evaluate_content(measured)
            return Message(pack(answers), reply_to=message)

        return app


def _projected(told: Instruction, change: np.ndarray) -> Projected | None:
    if told.projection is None:
        return None
    return Projected(told.projection.of({"w": change[None]})[0], float(np.linalg.norm(change)))


@pytest.fixture
def toy() -> type[Toy]:
    """Return the toy federation's class."""
    return Toy


class Watch:
    """An observer that keeps all events."""

    def __init__(self) -> None:
        self.rounds: list[dict] = []
        self.assignments: list[tuple[int, list[int], str]] = []

    def round(self, record: dict) -> None:
        self.rounds.append(dict(record))

    def assignment(self, server_round: int, assignment: np.ndarray, reason: str) -> None:
        self.assignments.append((server_round, assignment.tolist(), reason))


@pytest.fixture
def watch() -> Watch:
    """Return an observer that keeps all events."""
    return Watch()
