"""A federation without data: clients whose training is simple arithmetic."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; read when PyTorch and NumPy are imported
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import settings

from fedclust.grids.client_grid import ClientGrid, pack, unpack
from fedclust.grids.local_grid import LocalGrid
from fedclust.grids.nodes import hosted_clients
from fedclust.messages import description, training
from fedclust.messages.codec import SERVER, decode, encode
from fedclust.messages.evaluation import (
    Confusion,
    ConfusionQuestion,
    EvaluateQuestion,
    Evaluation,
    FigureAnswer,
    FigureQuestion,
    Losses,
    LossesQuestion,
    PersonalAnswer,
    PersonalQuestion,
    ProofAnswer,
    ProofQuestion,
)
from fedclust.models.class_prototypes import ClassPrototypes, pooled
from fedclust.proof import evidence
from fedclust.proof.figure import Rows
from fedclust.results.page.write import LivePage
from tests.compositions import each_choice_once

# A machine with other work to do takes longer for a single example than hypothesis allows by default.
settings.register_profile("fedclust", deadline=None)
settings.load_profile("fedclust")

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

collect_ignore = ["forked.py"]  # a script, which --doctest-modules would import
_HERE = Path(__file__).parent
_WRITE = LivePage.write


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a worker that is through with its own takes the short tests of the folders."""
    items.sort(key=lambda item: (item.path.name != "test_contract.py", item.path.parent != _HERE))  # stable


def pytest_collection_finish() -> None:
    """What the imports have made stays, so the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Networks start alike whichever tests ran before; a file's fixtures are made after this."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _nothing_in_the_home_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepare data and keep accounts below pytest's own folder, in this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCLUST_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("FEDCLUST_ACCOUNTS", str(tmp_path_factory.mktemp("accounts")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _each_choice_once() -> Iterator[None]:
    with each_choice_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_pages() -> Iterator[None]:
    """Let runs end without their page, whose charts take a fifth of a small run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LivePage, "write", lambda self: None)
        yield


@pytest.fixture(scope="module")
def pages(_without_pages: None) -> Iterator[None]:
    """Let runs end with their page, for tests that look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LivePage, "write", _WRITE)
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
    num_examples, counts, prototypes, subspaces
        What a client has: training samples, those of each class, each class's prototype, and a basis of the
        subspace that its examples span.
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
            told = description.Hosted(hosted_clients(context.node_config, self.num_clients), self.num_clients)
            return Message(encode(told), reply_to=message)

        def answer(kind: str, read: Callable[[RecordDict], Any], work: Callable[[int, Any], Any]) -> None:
            def handle(message: Message, context: Context) -> Message:
                answers, errors = {}, {}
                for client, content in unpack(message.content)[0].items():
                    asked = read(content)
                    number = getattr(asked, "server_round", 0)
                    reason = self.error(client, number) if kind in _FAILING else None
                    if reason and kind == "train":
                        work(client, asked)  # it counts as trained
                    if reason:
                        errors[client] = reason
                    else:
                        answers[client] = encode(work(client, asked))
                return Message(pack(answers, errors), reply_to=message)

            register = {"train": app.train(), "evaluate": app.evaluate()}
            register.get(kind, app.query(kind.removeprefix("query.")))(handle)

        for question, work in (
            (description.DescriptionQuestion, self._describe),
            (description.PrototypesQuestion, self._prototypes),
            (description.SubspacesQuestion, lambda client, _: description.Subspaces(self.subspaces(client))),
            (training.UpdateQuestion, self._update),
            (LossesQuestion, self._losses),
            (PersonalQuestion, self._personal),
            (ProofQuestion, lambda _, asked: ProofAnswer.of(evidence(DIFFERENCES, [asked.margin]))),
            (FigureQuestion, lambda _, asked: FigureAnswer.of(Rows.of(*TESTED, asked.bets))),
            (ConfusionQuestion, lambda client, _: Confusion(np.array([[n, 0] for n in self.counts(client)]))),
        ):
            answer(question.kind, partial(decode, question, at=SERVER), work)
        answer("train", partial(training.read_sent, training.Instruction), self._train)
        answer("evaluate", partial(training.read_sent, EvaluateQuestion), self._evaluate)
        return app

    def _describe(self, client: int, asked: description.DescriptionQuestion) -> description.Description:
        counts = np.asarray(self.counts(client))
        return description.Description.of(counts, counts, num_validation=3)

    def _prototypes(self, client: int, asked: description.PrototypesQuestion) -> description.Prototypes:
        told = self.prototypes(client), self.counts(client)
        found = ClassPrototypes(*(np.asarray(values)[None] for values in told))
        return description.Prototypes(*(values[0] for values in (pooled(found) if asked.pooled else found)))

    def _update(self, client: int, asked: training.UpdateQuestion) -> training.Update:
        change = np.broadcast_to(self.move(client, asked.server_round), 2)
        changes = dict.fromkeys(asked.names, change)
        return training.Update(client, self.num_examples(client), changes, _projected(asked, change))

    def _losses(self, client: int, asked: LossesQuestion) -> Losses:
        apart = [abs(client - float(model["w"].numpy()[0])) for model in asked.models]
        return Losses(np.array(apart), self.wins(client))

    def _personal(self, client: int, asked: PersonalQuestion) -> PersonalAnswer:
        share = 1 / (2 + client)
        told = {"num-examples": self.num_examples(client), "loss": 0.5}
        figures = {"accuracy": share, "balanced-accuracy": share, **told}
        return PersonalAnswer(client, {"prior": figures}, losses={"none": 0.75, "prior": 0.5})

    def _train(self, client: int, asked: training.Instruction) -> training.TrainAnswer:
        start = asked.arrays["w"].numpy()
        self.trained.append((client, asked.server_round, float(start[0])))
        self.proximal.add(asked.proximal_mu)
        move = self.move(client, asked.server_round)
        arrays = ArrayRecord()
        arrays["w"] = Array(np.asarray(start + move, dtype=np.float32))
        losses = np.asarray(self.losses(client, asked.server_round))
        told = {"mean_loss": losses.mean(), "projected": _projected(asked, np.broadcast_to(move, 2))}
        return training.TrainAnswer(client, arrays, self.num_examples(client), losses, **told)

    def _evaluate(self, client: int, asked: training.Instruction) -> Evaluation:
        weight = float(asked.arrays["w"].numpy()[0])
        accuracy = self.accuracy(client, weight)
        told = {"num-examples": self.num_examples(client), "loss": self.test_loss(client, weight)}
        return Evaluation(client, {**told, "accuracy": accuracy, "balanced-accuracy": accuracy})


DIFFERENCES = np.array([0.0, 0.1, 0.2])
"""Of two models' Brier scores on the held-out rows of each toy client."""

TESTED = np.array([[0.5, 1.0], [0.4, 0.8]]), np.array([0.9, 1.2]), np.array([[0.0, 1.0], [1.0, 1.0]])
"""Brier scores of two models and of class shares, and hits, on each toy client's two test rows."""

_FAILING = ("train", "query.update", "query.losses")


def _projected(asked: Any, change: np.ndarray) -> Any:
    if asked.projection is None:
        return None
    return training.Projected(asked.projection.of({"w": change[None]})[0], float(np.linalg.norm(change)))


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


class Outcome(NamedTuple):
    """How a command ended, and what it wrote to its two streams."""

    code: int
    printed: str
    complained: str


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Outcome]]:
    """Run the command line in this process, in an empty folder."""
    from fedclust.runs.command_line import main

    root = logging.getLogger()
    handlers, level, terminate = root.handlers[:], root.level, signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    # This process runs the other tests, too.
    monkeypatch.setattr("fedclust.support.time_limit.end_process_when_stuck", lambda: None)
    monkeypatch.setattr("gc.freeze", lambda: None)  # garbage of other tests is not to stay
    # Hydra would close all handlers, and that of absl with it the stream that pytest writes to.
    monkeypatch.setattr("logging.config._clearExistingHandlers", lambda: None)

    def typed(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedclust", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    yield typed
    # Hydra has the root logger write to a stream that ends with this test.
    root.handlers[:], root.level = handlers, level
    signal.signal(signal.SIGTERM, terminate)
