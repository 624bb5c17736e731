"""Nodes with handwritten digits, to send single messages to."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedclust import clients, data
from fedclust.data import FederatedData
from fedclust.grids.client_grid import pack, unpack
from fedclust.messages.codec import Question, Reading, decode, encode
from fedclust.messages.evaluation import EvaluateQuestion
from fedclust.messages.models import from_state, to_state
from fedclust.messages.training import Instruction
from fedclust.models import construction
from fedclust.settings.composition import compose, plain, to_run_config
from fedclust.support.flower import assume_identity

CONFIG = compose(
    [
        "partition.num_clients=6",
        "partition.groups=[4,2]",
        "training.steps=3",
        "training.batch_size=16",
        "training.mode=sequential",  # auto times passes first, and these are short
    ]
)


@dataclass(frozen=True)
class Asked:
    """A node to send messages to.

    Attributes
    ----------
    config
        Its node configuration.
    """

    config: Mapping[str, str | int]

    def ask(self, kind: str, content: RecordDict) -> Message:
        """Send a message to the node unchanged."""
        assume_identity()
        own = {"allow": "*", **self.config}  # a process of the user's own
        context = Context(1, 2, own, RecordDict(), to_run_config(CONFIG))
        return clients.app(Message(content, 2, kind), context)

    def told(self, questions: Mapping[int, Question], **more) -> tuple[dict, dict[int, str]]:
        """Ask clients questions; return their answers, read as a server reads them, and errors by client."""
        contents = {id(each): encode(each) for each in questions.values()}
        kind = next(iter(questions.values())).kind
        answers, errors = self.ask_clients(kind, {k: contents[id(each)] for k, each in questions.items()})
        read = {}
        for client, content in answers.items():
            at = Reading(client, asked=questions[client], **more)
            read[client] = decode(questions[client].answer, content, at)
        return read, errors

    def answers(self, questions: Mapping[int, Question]) -> dict:
        """Ask clients questions that none of them fails to answer."""
        told, errors = self.told(questions)
        assert errors == {}
        return told

    def contents(self, kind: str, clients: Iterable[int], content: RecordDict) -> dict[int, RecordDict]:
        """Send clients the same, which none of them fails to answer."""
        contents, errors = self.ask_clients(kind, dict.fromkeys(clients, content))
        assert errors == {}
        return contents

    def ask_clients(self, kind: str, contents: Mapping[int, RecordDict]) -> tuple[dict, dict[int, str]]:
        """Send a bundle to the node; return contents and errors by client."""
        return unpack(self.ask(kind, pack(contents)).content)


@pytest.fixture(scope="session")
def node() -> type[Asked]:
    """Return a node's class, to be called with its configuration."""
    return Asked


@pytest.fixture(scope="session")
def federation() -> FederatedData:
    """Return the data that the nodes prepare."""
    return data.load(plain(CONFIG.dataset), plain(CONFIG.partition), CONFIG.seed)


@pytest.fixture
def network() -> torch.nn.Module:
    """Return the initial network, one for each test: some train it."""
    return construction.build(plain(CONFIG.model), CONFIG.seed)


@pytest.fixture(scope="session")
def model() -> ArrayRecord:
    """Return the initial model."""
    return from_state(construction.build(plain(CONFIG.model), CONFIG.seed).state_dict())


@pytest.fixture(scope="session")
def tell(model: ArrayRecord) -> Callable[..., RecordDict]:
    """Return a function that makes a message's content: the initial model or another, and its settings."""

    def content(arrays: ArrayRecord | None = None, **config) -> RecordDict:
        question = EvaluateQuestion if "full" in config else Instruction
        return encode(question(arrays or model, **{"server_round": 1, **config}))

    return content


@pytest.fixture(scope="session")
def broken(model: ArrayRecord) -> ArrayRecord:
    """Return a model of NaN only."""
    return from_state({name: torch.full_like(tensor, torch.nan) for name, tensor in to_state(model).items()})
