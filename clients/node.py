"""A node: the clients that it hosts, their data and their trainer; and the clients of a message, together."""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from flwr.app import ArrayRecord, Context
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file
from torch import nn

from fedclust import data
from fedclust.clients.sites import OwnSites, own_sites
from fedclust.data import FederatedData
from fedclust.data.dataset import newcomers_last
from fedclust.data.sites.rules import Rules
from fedclust.grids.nodes import hosted_clients
from fedclust.messages.models import from_state, to_state
from fedclust.models import construction
from fedclust.models.construction import Classifier
from fedclust.models.embeddings import embed
from fedclust.models.encoders import Encoder, PixelEncoder, RandomEncoder, build_encoder
from fedclust.personal.layers import MODELS
from fedclust.personal.staying import KEPT, Kept, Own
from fedclust.privacy.accountant import Noise, seeded, system
from fedclust.settings import allowed
from fedclust.settings.composition import build
from fedclust.support.flower import RUN_ID
from fedclust.support.reasons import RAISED, Sendable, about, reason_of
from fedclust.training import LocalTraining
from fedclust.training.cohort import Job
from fedclust.training.evaluation import Metric
from fedclust.training.losses import check_loss
from fedclust.training.trainer import Trainer
from fedclust.typing import State

Asked = TypeVar("Asked")
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

Answers = tuple[Mapping[int, Any], Mapping[int, str]]
"""The answers of clients and the errors of all others, by client id."""

Work = Callable[["Node", Mapping[int, Any]], Answers]
"""Answers questions by client id; clients that share a question get the same object."""


@dataclass(frozen=True, eq=False)
class Node:
    """A node's clients, their data, and their trainer.

    Attributes
    ----------
    data
        The federation's data; a node reads only the rows of its own clients.
    trainer
        Trains and evaluates models.
    device
        Device to compute on.
    threads
        Number of threads to compute with.
    seed
        The run's seed.
    encoder
        Function that returns the frozen encoder, built on first use.
    encoder_node
        The encoder in the run's configuration; None if objects were given.
    clients
        Ids of the node's clients, sorted.
    encoders
        The encoders that may embed the node's data, see
        :func:`fedclust.settings.allowed.encoders_here`; None for any.
    config
        The node's own configuration.
    run
        Flower's id of the run.
    rules
        What its sites let leave them; None in the user's own process, and for a pooled dataset.
    kept
        What stays with its clients.
    keeps
        Names of the runs of which models are completed by what clients keep: one, or those of a question's
        models A and B. Empty where nothing stays.
    """

    data: FederatedData
    trainer: Trainer
    device: str
    threads: int
    seed: int
    encoder: Callable[[], Encoder]
    encoder_node: Mapping[str, object] | None = None
    clients: tuple[int, ...] = ()
    encoders: tuple[str, ...] | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    run: int = 0
    rules: Rules | None = None
    kept: Kept = field(default_factory=Kept)
    keeps: tuple[str, ...] = ()

    @classmethod
    def of(cls, context: Context) -> "Node":
        """Return the node of a context; data and model are prepared once per process.

        Raises
        ------
        ValueError
            If the configuration does not compose or asks for something that this node does not allow, the
            data cannot be prepared, or the node's configuration does not specify its clients; or if the node
            has its own data but no agreement yet.
        """
        config, run_config, rules = context.node_config, context.run_config, None
        own = allowed.encoders_here(config)
        if (sites := own_sites(context)) is not None:
            prepared, clients = _of_sites(context, sites)
            if (rules := sites.rules) is not None and rules.encoders is not None:
                own = tuple(each for each in rules.encoders if own is None or each in own)
        else:
            prepared = _prepare(allowed.node_settings(run_config, allowed.allowed_here(config), encoders=own))
            clients = _hosted(tuple(config.items()), prepared.data.num_clients)
        if torch.get_num_threads() != prepared.threads:
            torch.set_num_threads(prepared.threads)
        run = context.run_id
        return replace(prepared, clients=clients, encoders=own, config=config, run=run, rules=rules)

    def without_holdout(self) -> "Node":
        """Return the node with the rows that are held out to decide on among those that train."""
        return replace(self, data=_without_holdout(self.data))

    def own(self, client: int, sent: State, *, serving: bool = False, side: int = 0) -> State:
        """Return the tensors of a client's own in place of those of a model that it was sent.

        Parameters
        ----------
        client
            The client. One that keeps nothing yet has the tensors that the network was built with.
        sent
            The model, which may lack some of the network's tensors.
        serving
            Whether a model of the client's own counts, with its share; else only what `sent` lacks.
        side
            Position in :attr:`keeps` of the model's run.
        """
        if not self.keeps:
            return {}
        held = self.kept.of(self.keeps[min(side, len(self.keeps) - 1)]).get(client)
        if serving and held is not None:
            return held.serving(sent)
        tensors = self.trainer.initial if held is None else held.tensors
        return {name: tensor for name, tensor in tensors.items() if name not in sent}

    def whole(self, client: int, sent: State, *, serving: bool = True, side: int = 0) -> State:
        """Return a model that a client was sent with the tensors of its own; see :meth:`own`."""
        own = self.own(client, sent, serving=serving, side=side)
        return {name: own.get(name, sent.get(name)) for name in self.trainer.initial} if own else sent  # type: ignore[misc]

    def noise(self, *, published: bool) -> Noise:
        """Return the source of the noise that protects patients.

        Parameters
        ----------
        published
            Whether the server asks for noise from the run's seed, which `config.yaml` publishes.

        Raises
        ------
        ValueError
            If it does and this is no process of the user who started the run.
        """
        if not published:
            return system
        if allowed.allowed_here(self.config).strip() != allowed.EVERYTHING:
            raise Sendable("published_noise must be false at a site, whose noise is secret, got true")
        return seeded(self.seed)

    def encoder_for(self, name: str, vocabulary_size: int | None = None) -> Encoder:
        """Return the encoder that a question names.

        Parameters
        ----------
        name
            ``"encoder"``, the configured one; ``"pixels"``, the normalised example itself; or
            ``"untrained"``, a network that every node draws from the same seed. Where the examples are
            embeddings by the configured encoder, the first two are the example itself.
        vocabulary_size
            Number of tokens, for an untrained network on texts; None for other inputs.

        Raises
        ------
        NotAllowed
            If the node's operator has listed encoders, and this one is not among them.
        ValueError
            If there is no encoder with that name.
        """
        embedded = bool(self.data.embedded_by)
        if name == "encoder" or (name == "pixels" and embedded):
            if self.encoder_node is not None:
                allowed.check_encoder(self.encoder_node, self.encoders)
            with about("encoder"):
                return PixelEncoder(self.data.input_shape) if embedded else self.encoder()
        if name == "pixels":
            allowed.check_encoder("pixels", self.encoders)
            return PixelEncoder(self.data.input_shape)
        if name == "untrained":
            allowed.check_encoder("random", self.encoders)
            return _untrained(self.data.input_shape, None if embedded else vocabulary_size)
        raise Sendable(f"input must be one of encoder, pixels, untrained, got {name!r}")


class KeptByNode(Kept):
    """What the clients of a Flower node keep: in its `context.state`, and in its folder if it has one.

    Flower starts a process for each message and passes `context.state` on, until the SuperNode ends. With a
    folder for models in the node's own configuration, ``models='/folder'``, what clients keep outlives it.

    Parameters
    ----------
    context
        The node's.
    clients
        Ids of its clients.
    """

    def __init__(self, context: Context, clients: tuple[int, ...]) -> None:
        super().__init__()
        self._context, self._clients, self._found = context, clients, dict[tuple[str, int], Own]()
        self._again = set[tuple[str, int]]()  # asked a second time in a round
        root = context.node_config.get(MODELS)
        self._root = None if root is None else Path(str(root)) / f"run-{context.run_id}"

    def of(self, run: str) -> dict[int, Own]:
        """Return what each client keeps of a run; read once per message."""
        if run not in self._own:
            read = {client: self._read(run, client) for client in self._clients}
            found = self._own[run] = {client: own for client, own in read.items() if own is not None}
            self._found |= {(run, client): own for client, own in found.items()}
        return self._own[run]

    def before(self, run: str, server_round: int, clients: Iterable[int]) -> None:
        """Go back to what was kept before a round, which is kept, too, until the next one."""
        kept = self.of(run)
        for client in [each for each in clients if each in kept and kept[each].round == server_round]:
            earlier = self._read(run, client, _BEFORE)
            if earlier is None:
                del kept[client]
            else:
                kept[client] = earlier
            self._again.add((run, client))

    def save(self) -> None:
        """Keep what has changed, and beside it what it was before the round."""
        for run, of_clients in self._own.items():
            for client in of_clients.keys() | {each for name, each in self._again if name == run}:
                own = of_clients.get(client)
                if own is self._found.get((run, client)):
                    continue
                if (run, client) not in self._again:
                    self._write(run, client, self._found.get((run, client)), _BEFORE)
                self._write(run, client, own)

    def _read(self, run: str, client: int, when: str = "") -> Own | None:
        record, file = self._context.state.get(_key(run, client, when)), self._file(run, client, when)
        if isinstance(record, ArrayRecord):
            return Own.of_file(to_state(record))
        return Own.of_file(load_file(file)) if file is not None and file.exists() else None

    def _write(self, run: str, client: int, own: Own | None, when: str = "") -> None:
        key, file = _key(run, client, when), self._file(run, client, when)
        if own is None:
            self._context.state.pop(key, None)
            if file is not None:
                file.unlink(missing_ok=True)
            return
        tensors = own.for_file()
        self._context.state[key] = from_state(tensors)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            about = {KEPT: f"client-{client}/{run}"}
            save_file({name: each.clone() for name, each in tensors.items()}, partial, about)
            partial.replace(file)

    def _file(self, run: str, client: int, when: str) -> Path | None:
        if self._root is None:
            return None
        return self._root / f"client-{client}" / f"{run}{when}.safetensors"


_BEFORE = ".before"  # of the last round


def _key(run: str, client: int, when: str) -> str:
    return f"stays/{run}/{client}{when}"


@lru_cache(maxsize=4)
def _without_holdout(data: FederatedData) -> FederatedData:
    return data.without_holdout()


_of_held: dict[tuple[allowed.NodeSettings, str], Node] = {}

_HERE = {"allow": allowed.EVERYTHING, "predictions": "reply"}
"""The configuration of a node in the user's own process."""


def node_here(config: DictConfig) -> Node:
    """Prepare the clients of a run's configuration in this process; data and model only once per process.

    Raises
    ------
    ValueError
        If the data or the model cannot be prepared.
    """
    return _all_here(_prepare(allowed.settings_of(config)))


def node_of_objects(
    data: FederatedData,
    model: nn.Module,
    training: LocalTraining,
    seed: int,
    device: str = "auto",
    encoder: Encoder | None = None,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> Node:
    """Make the clients of data in this process, which train with given objects."""

    def chosen() -> Encoder:
        return PixelEncoder(data.input_shape) if encoder is None else encoder

    return _all_here(_node(data, model, training, seed, device, chosen, metrics))


def _all_here(node: Node) -> Node:
    if torch.get_num_threads() != node.threads:
        torch.set_num_threads(node.threads)
    return replace(node, clients=tuple(range(node.data.num_clients)), config=_HERE, run=RUN_ID)


@lru_cache(maxsize=4)  # a sweep's next job may use another dataset; keep the last few
def _prepare(settings: allowed.NodeSettings) -> Node:
    with about("dataset"):
        federated = data.load(settings["dataset"], settings["partition"], settings["seed"])
        late = newcomers_last(federated, settings["holdout_clients"], settings["seed"])
    return _built(settings, late)


def _of_sites(context: Context, sites: OwnSites) -> tuple[Node, tuple[int, ...]]:
    """Return the node of its own sites, and its clients; only the last run's node is kept."""
    agreed, folders = sites.held(context)
    agreement, ids = agreed.agreement, dict(agreed.ids)
    allow = allowed.allowed_here(context.node_config)
    encoders = allowed.encoders_here(context.node_config)
    settings = allowed.node_settings(context.run_config, allow, agreement.settings(), encoders)
    key = settings, json.dumps([agreement.digest(), ids, folders])
    if key not in _of_held:
        from fedclust.data.sites.rows import federated

        dataset = sites.settings["dataset"]
        own = federated(list(folders.values()), agreement, ids, agreed.num_clients, dataset)
        _of_held.clear()
        _of_held[key] = _built(settings, own)
    return _of_held[key], tuple(sorted(ids.values()))


def _built(settings: allowed.NodeSettings, federated: FederatedData) -> Node:
    seed, encoder = settings["seed"], partial(build_encoder, settings["encoder"])
    if settings["features"]["encoded"]:
        with about("encoder"):
            federated = embed(federated, encoder(), device_here(settings["device"]))
    with about("model"):
        model = construction.build(settings["model"], seed)
    with about("training"):
        training = build(settings["training"])
    with about("metrics"):
        metrics = {name: build(node) for name, node in settings["metrics"].items()}
    node = _node(federated, model, training, seed, settings["device"], lru_cache(maxsize=1)(encoder), metrics)
    return replace(node, encoder_node=settings["encoder"])


def _node(
    data: FederatedData,
    model: nn.Module,
    training: LocalTraining,
    seed: int,
    device: str,
    encoder: Callable[[], Encoder],
    metrics: Mapping[str, Metric],
) -> Node:
    width = construction.check_outputs(model, data.inputs[:1], data.labels[:1], data.num_outputs)
    device = device_here(device)
    most = threads = _most_threads()
    if device == "cpu":
        threads = worthwhile_threads(model, data.inputs[:1], training.batch_size, most)
    trainer = Trainer(model, data, training, seed, device=device, threads=most, metrics=metrics)
    check_loss(trainer.training.loss, torch.zeros(1, *data.labels.shape[1:], width), data.truth[:1])
    return Node(data, trainer, device, threads, seed, encoder)


def device_here(device: str) -> str:
    """Return the device to compute on; for ``"auto"``, a GPU if there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


@lru_cache(maxsize=1)  # read before the first node changes the number
def _most_threads() -> int:
    return torch.get_num_threads()


@lru_cache(maxsize=1024)
def _hosted(node_config: tuple[tuple[str, object], ...], num_clients: int) -> tuple[int, ...]:
    return hosted_clients(dict(node_config), num_clients)


@lru_cache(maxsize=4)
def _untrained(input_shape: tuple[int, ...], vocabulary_size: int | None) -> Encoder:
    return RandomEncoder(input_shape, 128, 0, vocabulary_size)  # as in conf/encoder/random.yaml


# -- The clients of a message, together ---------------------------------------------------------------------


def grouped(keys: Mapping[int, Key]) -> dict[Key, list[int]]:
    """Group clients by their keys; groups are in the order of their first clients."""
    groups: dict[Key, list[int]] = {}
    for client, key in keys.items():
        groups.setdefault(key, []).append(client)
    return groups


def by_question(asked: Mapping[int, Asked]) -> list[tuple[Asked, list[int]]]:
    """List each question with its clients."""
    groups = grouped({client: id(question) for client, question in asked.items()})
    return [(asked[each[0]], each) for each in groups.values()]


def states_of(models: Mapping[int, ArrayRecord]) -> dict[int, State]:
    """Convert each client's model; clients that share a model share its state, and so their passes."""
    distinct = {id(model): model for model in models.values()}
    states = {key: to_state(model) for key, model in distinct.items()}
    return {client: states[id(model)] for client, model in models.items()}


def one_by_one(work: Callable[[Node, Any, list[int]], Answers]) -> Work:
    """Extend a function that answers one question for its clients to several questions."""

    def of_all(node: Node, asked: Mapping[int, Any]) -> Answers:
        replies: dict[int, Any] = {}
        errors: dict[int, str] = {}
        for question, clients in by_question(asked):
            some, failed = work(node, question, clients)
            replies |= some
            errors |= failed
        return replies, errors

    return of_all


def together(
    clients: list[int], work: Callable[[list[int]], Iterable[Result]]
) -> tuple[dict[int, Result], dict[int, str]]:
    """Work on clients together if possible; if the model raises on a client's data, only that client fails.

    Returns
    -------
    The result of each client, in the order of `work`'s results; and the errors.
    """
    try:
        return dict(zip(clients, work(clients), strict=True)), {}
    # The model is the user's code and may raise anything.
    except RAISED as error:
        if len(clients) == 1:
            return {}, {clients[0]: reason_of(error)}
    results: dict[int, Result] = {}
    errors: dict[int, str] = {}
    for client in clients:
        one, failed = together([client], work)
        results |= one
        errors |= failed
    return results, errors


def measured(
    jobs: Mapping[int, Job], measure: Callable[[list[Job]], Iterable[Result]]
) -> tuple[dict[int, Result], dict[int, str]]:
    """Measure a job of each client, all at once if possible; see :func:`together`."""
    return together(list(jobs), lambda clients: measure([jobs[client] for client in clients]))


# -- Threads ------------------------------------------------------------------------------------------------

# Least number of floating-point operations per thread in a batch's forward pass; a few ms of work.
_OPERATIONS_PER_THREAD = 50e6

# Layers whose operations are known from their outputs, and modules that only call their layers.
_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Linear)
_AROUND = (nn.Sequential.forward, Classifier.forward)


def worthwhile_threads(model: nn.Module, example: torch.Tensor, batch_size: int, most: int) -> int:
    """Return the number of threads to train a model with on CPUs.

    Parameters
    ----------
    model
        The model.
    example
        One example as the dataset stores it, shape (1, *shape); types other than int64 become float32.
    batch_size
        Examples per step.
    most
        Number of available threads.

    Returns
    -------
    A number in [1, most]. Threads wait for each other after every operation, which for a small model takes
    longer than the operation, and longer still on a busy machine: with two threads on two busy cores, a
    64-64-10 network trained 4 to 20 times more slowly than with one. Processes (``engine=ray``) do not wait
    for each other.
    """
    if most == 1:
        return 1
    training = model.training
    model.eval()
    inputs = torch.cat([example, example])  # as check_outputs does, for the same reasons
    try:
        with torch.no_grad():
            operations = _operations(model, inputs if inputs.dtype == torch.int64 else inputs.float())
    finally:
        model.train(training)
    return max(1, min(most, int(operations / 2 * batch_size / _OPERATIONS_PER_THREAD)))


def _operations(model: nn.Module, inputs: torch.Tensor) -> int:
    """Count the multiplications and additions of a forward pass's matrix products and convolutions."""
    if not all(map(_is_known, model.modules())):
        # PyTorch's own counter knows every operation, and takes a second to import.
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            model(inputs)
        return counter.get_total_flops()
    counts: list[int] = []

    def count(weight: torch.Tensor, _module: nn.Module, _inputs: object, outputs: torch.Tensor) -> None:
        counts.append(2 * outputs.numel() // len(weight) * math.prod(weight.shape))

    counted = [module for module in model.modules() if isinstance(module, _COUNTED)]
    hooks = [module.register_forward_hook(partial(count, module.weight)) for module in counted]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


def _is_known(module: nn.Module) -> bool:
    """Return whether a module is counted, multiplies no matrices, or only calls its submodules."""
    if isinstance(module, (*_COUNTED, nn.Embedding)) or type(module).forward in _AROUND:
        return True
    no_matrix = all(parameter.ndim < 2 for parameter in module.parameters(recurse=False))
    return type(module).__module__.startswith("torch.nn.modules.") and no_matrix
