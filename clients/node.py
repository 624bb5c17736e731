"""The data and the trainer of a node."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType

import torch
from flwr.app import Context
from torch import nn

from fedclust import data, models
from fedclust.clients.own_data import OwnSites, own_sites
from fedclust.clients.threads import worthwhile_threads
from fedclust.data import FederatedData
from fedclust.data.dataset import newcomers_last
from fedclust.federation import hosted_clients
from fedclust.models import Encoder, build_encoder
from fedclust.models.encoders import PixelEncoder
from fedclust.settings import NodeSettings, build, node_settings
from fedclust.settings.allowed import allowed_here, check_encoder, encoders_here
from fedclust.training import LocalTraining, Trainer
from fedclust.training.evaluation import Metric

__all__ = ["Node", "offered"]


@dataclass(frozen=True, eq=False)
class Node:
    """A node's clients, their data, and their trainer.

    Attributes
    ----------
    clients
        Ids of the node's clients, sorted.
    data
        The federation's data; a node reads the rows of its own clients only.
    trainer
        Trains and evaluates models.
    device
        Device to compute on.
    encoder
        Function that returns the frozen encoder, built on first use.
    encoders
        The encoders that may embed the node's data, see
        :func:`fedclust.settings.allowed.encoders_here`; None for any.
    """

    clients: tuple[int, ...]
    data: FederatedData
    trainer: Trainer
    device: str
    encoder: Callable[[], Encoder]
    encoders: tuple[str, ...] | None = None

    @classmethod
    def of(cls, context: Context) -> "Node":
        """Return the node of a context; data and model are prepared once per process.

        Raises
        ------
        ValueError
            If the configuration does not compose or asks for what this node does not allow, the data cannot
            be prepared, or the node's configuration does not specify its clients; or if the node holds its
            own data and has not been told how to encode it.
        """
        token = context.run_config.get(_OBJECTS)
        sites = own_sites(context)
        if sites is not None:
            prepared = _of_sites(context, sites)
        else:
            prepared = _configured(context) if token is None else _offered[str(token)]
        if torch.get_num_threads() != prepared.threads:
            torch.set_num_threads(prepared.threads)
        hosted = prepared.clients
        if hosted is None:
            hosted = _hosted(tuple(context.node_config.items()), prepared.data.num_clients)
        own = encoders_here(context.node_config)
        encoder = prepared.encoder if own is None else partial(prepared.pinned_encoder, own)
        return cls(hosted, prepared.data, prepared.trainer, prepared.device, encoder, own)


@dataclass(frozen=True, eq=False)
class _Prepared:
    data: FederatedData
    trainer: Trainer
    device: str
    threads: int
    encoder: Callable[[], Encoder]
    clients: tuple[int, ...] | None = None  # None: the node's configuration says which
    encoder_node: Mapping[str, object] | None = None  # of the configuration; None where objects were given

    def pinned_encoder(self, own: tuple[str, ...]) -> Encoder:
        """Return the encoder if it is one of a node's own."""
        if self.encoder_node is not None:
            check_encoder(self.encoder_node, own)
        return self.encoder()

    @classmethod
    def of(
        cls,
        data: FederatedData,
        model: nn.Module,
        training: LocalTraining,
        seed: int,
        device: str,
        encoder: Callable[[], Encoder],
        metrics: Mapping[str, Metric],
        clients: tuple[int, ...] | None = None,
    ) -> "_Prepared":
        models.check_outputs(model, data.inputs[:1], data.num_classes)
        device = _device(device)
        most = threads = _most_threads()
        if device == "cpu":
            threads = worthwhile_threads(model, data.inputs[:1], training.batch_size, most)
        trainer = Trainer(model, data, training, seed, device=device, threads=most, metrics=metrics)
        return cls(data, trainer, device, threads, encoder, clients)


_OBJECTS = "objects"
_offered: dict[str, _Prepared] = {}
_of_held: dict[tuple[NodeSettings, str], _Prepared] = {}


@contextmanager
def offered(
    data: FederatedData,
    model: nn.Module,
    training: LocalTraining,
    seed: int,
    device: str = "auto",
    encoder: Encoder | None = None,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> Iterator[dict[str, str]]:
    """Make nodes of this process use given objects instead of those that a configuration names.

    Yields
    ------
    The run configuration of such nodes, valid inside the context.
    """
    token = uuid.uuid4().hex

    def chosen() -> Encoder:
        return PixelEncoder(data.input_shape) if encoder is None else encoder

    _offered[token] = _Prepared.of(data, model, training, seed, device, chosen, metrics)
    try:
        yield {_OBJECTS: token}
    finally:
        del _offered[token]


def _configured(context: Context) -> "_Prepared":
    return _prepare(node_settings(context.run_config, allowed_here(context.node_config)))


@lru_cache(maxsize=4)  # a sweep's next job may use another dataset; keep the last few
def _prepare(settings: NodeSettings) -> _Prepared:
    federated = data.load(settings["dataset"], settings["partition"], settings["seed"])
    return _built(settings, newcomers_last(federated, settings["holdout_clients"], settings["seed"]))


def _of_sites(context: Context, sites: OwnSites) -> "_Prepared":
    held = sites.held(context)
    settings = node_settings(
        context.run_config, allowed_here(context.node_config), held.agreed.agreement.settings()
    )
    found = _of_held.get((settings, held.key))
    if found is None:
        ids = tuple(sorted(held.agreed.ids.values()))
        found = _built(settings, held.data(), ids)
        _of_held.clear()  # the last run's
        _of_held[settings, held.key] = found
    return found


def _built(
    settings: NodeSettings, federated: FederatedData, clients: tuple[int, ...] | None = None
) -> _Prepared:
    seed = settings["seed"]
    model = models.build(settings["model"], seed)
    models.check_outputs(model, federated.inputs[:1], federated.num_classes)
    training = build(settings["training"])
    encoder = lru_cache(maxsize=1)(partial(build_encoder, settings["encoder"]))
    metrics = {name: build(node) for name, node in settings["metrics"].items()}
    prepared = _Prepared.of(federated, model, training, seed, settings["device"], encoder, metrics, clients)
    return replace(prepared, encoder_node=settings["encoder"])


@lru_cache(maxsize=1)  # read before the first node changes the number
def _most_threads() -> int:
    return torch.get_num_threads()


@lru_cache(maxsize=1024)
def _hosted(node_config: tuple[tuple[str, object], ...], num_clients: int) -> tuple[int, ...]:
    return hosted_clients(dict(node_config), num_clients)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name
