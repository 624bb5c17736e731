"""A node: its own sites, its data and its trainer."""

import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import nn

from fedclust import data
from fedclust.data import FederatedData
from fedclust.data.dataset import newcomers_last
from fedclust.data.sites.agreement import Statement
from fedclust.data.sites.own import Own, SiteError, sites_here
from fedclust.grids.nodes import hosted_clients
from fedclust.messages.codec import SERVER, decode
from fedclust.messages.description import Agreed, Registered, Stated
from fedclust.models import construction
from fedclust.models.construction import Classifier
from fedclust.models.encoders import Encoder, PixelEncoder, RandomEncoder, build_encoder
from fedclust.settings.allowed import (
    EVERYTHING,
    NodeSettings,
    NotAllowed,
    SiteSettings,
    allowed_here,
    check_encoder,
    encoders_here,
    node_settings,
    site_settings,
)
from fedclust.settings.composition import build
from fedclust.training import LocalTraining
from fedclust.training.evaluation import Metric
from fedclust.training.trainer import Trainer

if TYPE_CHECKING:
    from fedclust.data.sites.rows import SiteRows


# What reads and encodes rows is imported where a node has its own: every other process does without pandas.

_CSV = ("sep", "decimal", "encoding")
"""How this site's CSV is written, in the node's own configuration."""


_PREPARED, _SITES, _FOLDERS = "prepared", "sites", "folders"


@dataclass(frozen=True, eq=False)
class Held:
    """What a node keeps between messages: Flower starts a process for each, and hands `context.state` on.

    Attributes
    ----------
    agreed
        The encoding, and the ids of the node's clients.
    folders
        Where the encoded rows of each site are.
    dataset
        The run's ``dataset`` node.
    """

    agreed: Agreed
    folders: Mapping[str, str]
    dataset: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What the data depends on, as a text."""
        return json.dumps([self.agreed.agreement.digest(), dict(self.agreed.ids), dict(self.folders)])

    def data(self) -> FederatedData:
        """Read the encoded rows."""
        from fedclust.data.sites.encode import federated

        agreed = self.agreed
        folders = list(self.folders.values())
        return federated(folders, agreed.agreement, agreed.ids, agreed.num_clients, self.dataset)


@dataclass(frozen=True, eq=False)
class OwnSites:
    """A node's own sites.

    Attributes
    ----------
    paths
        File or folder of each site, by name.
    settings
        The run's settings as far as they are known before all sites agree.
    csv_options
        How the node's CSV files are written, as JSON.
    """

    paths: Mapping[str, Path]
    settings: SiteSettings
    csv_options: str

    def rows(self, site: str) -> "SiteRows":
        """Read a site's rows; once per process and version of its files.

        Raises
        ------
        SiteError
            If the site cannot take part.
        """
        from fedclust.data.sites.rows import builder_of, private

        dataset = self.settings["dataset"]
        if options := json.loads(self.csv_options):
            dataset["csv_options"] = {**dataset.get("csv_options", {}), **options}
        builder = builder_of(dataset, self.paths[site])
        with private(builder):
            version = json.dumps(builder.identity())
        return _rows(site, str(self.paths[site]), json.dumps(dataset, sort_keys=True), self.settings, version)

    def stated(self) -> Stated:
        """Say of each site what all must know to encode their rows alike, or why it cannot take part."""
        from fedclust.data.sites.rows import describe

        statements: dict[str, Statement] = {}
        refused: dict[str, str] = {}
        for site in self.paths:
            try:
                statements[site] = describe(self.rows(site))
            except SiteError as error:
                refused[site] = _reason(error)
        return Stated(statements, refused)

    def agree(self, context: Context, content: RecordDict) -> Stated:
        """Encode each site's rows as agreed, and keep where they are for the messages that follow.

        Returns
        -------
        Why each site that cannot be encoded like this cannot.
        """
        agreed = decode(Agreed, content, SERVER)
        prepared: dict[str, str] = {}
        refused: dict[str, str] = {}
        for site in self._of(agreed):
            try:
                prepared[site] = self._prepare(site, agreed)
            except SiteError as error:
                refused[site] = _reason(error)
        for key in content:
            context.state[key] = content[key]
        context.state[_PREPARED] = ConfigRecord({_SITES: list(prepared), _FOLDERS: list(prepared.values())})
        return Stated(refused=refused)

    def held(self, context: Context) -> "Held":
        """Return what :meth:`agree` has kept.

        Raises
        ------
        SiteError
            If the node has not been told how to encode its rows, or they have changed since.
        """
        where = context.state.get(_PREPARED)
        if not isinstance(where, ConfigRecord):
            raise SiteError("a node must be told the encoding before anything else, this one was not")
        agreed = decode(Agreed, context.state, SERVER)
        folders = dict(zip(map(str, where[_SITES]), map(str, where[_FOLDERS]), strict=True))  # type: ignore[arg-type]
        for site, folder in folders.items():
            # The cache may be emptied at any time.
            if not Path(folder).is_dir() and self._prepare(site, agreed) != folder:
                raise SiteError(f"the data of {site} must not change during a run")
        return Held(agreed, folders, self.settings["dataset"])

    def _of(self, agreed: Agreed) -> list[str]:
        return [
            site
            for site in self.paths
            if any(name == site or name.startswith(f"{site}/") for name in agreed.ids)
        ]

    def _prepare(self, site: str, agreed: Agreed) -> str:
        from fedclust.data.sites.encode import prepare_site

        dataset, partition = self.settings["dataset"], self.settings["partition"]
        partition.pop("sites", None)
        asked = [dataset, partition, self.settings["seed"], self.csv_options]
        return prepare_site(self.rows(site), agreed.agreement, str(dataset["name"]), asked)

    def registered(self) -> Registered:
        """Name the clients of each site, and say why each other site cannot take part."""
        clients: dict[str, tuple[str, ...]] = {}
        refused: dict[str, str] = {}
        for site in self.paths:
            try:
                clients[site] = self.rows(site).clients
            except SiteError as error:
                refused[site] = _reason(error)
        return Registered.of(clients, refused)


def _reason(error: SiteError) -> str:
    """Write an error in one line that can be printed, whatever the names in it."""
    line = " ".join(str(error).split())[:900]
    return "".join(character if character.isprintable() else "?" for character in line) or "unknown"


def own_sites(context: Context) -> OwnSites | None:
    """Return the node's own sites; None if the run is one over a pooled dataset.

    Raises
    ------
    NotAllowed
        If a node that serves its own data is asked for a dataset of the run's.
    SiteError
        If the node's configuration does not say what it serves.
    """
    allow = allowed_here(context.node_config)
    settings = site_settings(context.run_config, allow) if "objects" not in context.run_config else None
    if settings is None:
        if "data" in context.node_config:
            raise NotAllowed("partition must be own on this node, which serves its own data and nothing else")
        return None
    own = Own.of(settings["partition"])
    paths = sites_here(context.node_config, own, simulated=allow.strip() == EVERYTHING)
    options = {key: str(context.node_config[key]) for key in _CSV if key in context.node_config}
    return OwnSites(paths, settings, json.dumps(options, sort_keys=True))


@lru_cache(maxsize=64)
def _rows(site: str, path: str, dataset: str, settings: SiteSettings, version: str) -> "SiteRows":  # noqa: ARG001
    from fedclust.data.sites.rows import builder_of, read_site

    builder = builder_of(json.loads(dataset), Path(path))
    return read_site(site, builder, Own.of(settings["partition"]), settings["seed"])


# -- The node -----------------------------------------------------------------------------------------------


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
    config
        The node's own configuration.
    run
        Flower's id of the run.
    """

    clients: tuple[int, ...]
    data: FederatedData
    trainer: Trainer
    device: str
    encoder: Callable[[], Encoder]
    encoders: tuple[str, ...] | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    run: int = 0

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
        found = prepared.data, prepared.trainer, prepared.device
        return cls(hosted, *found, encoder, own, context.node_config, context.run_id)

    def encoder_for(self, name: str, vocabulary_size: int | None = None) -> Encoder:
        """Return the encoder that a question names.

        Parameters
        ----------
        name
            ``"encoder"``, the choice of ``encoder``; ``"pixels"``, the normalised example itself; or
            ``"untrained"``, a network that every node draws from the same seed.
        vocabulary_size
            Number of tokens, for an untrained network on texts; None for other inputs.

        Raises
        ------
        NotAllowed
            If the node's operator has listed encoders, and this is none of them.
        ValueError
            If there is no encoder of that name.
        """
        if name == "encoder":
            return self.encoder()
        if name == "pixels":
            check_encoder("pixels", self.encoders)
            return PixelEncoder(self.data.input_shape)
        if name == "untrained":
            check_encoder("random", self.encoders)
            return _untrained(self.data.input_shape, vocabulary_size)
        raise ValueError(f"input must be one of encoder, pixels, untrained, got {name!r}")


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
        construction.check_outputs(model, data.inputs[:1], data.num_classes)
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
    model = construction.build(settings["model"], seed)
    construction.check_outputs(model, federated.inputs[:1], federated.num_classes)
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


@lru_cache(maxsize=4)
def _untrained(input_shape: tuple[int, ...], vocabulary_size: int | None) -> Encoder:
    return RandomEncoder(input_shape, 128, 0, vocabulary_size)  # as conf/encoder/random.yaml has them


# -- Threads ------------------------------------------------------------------------------------------------

# Least number of floating-point operations per thread in a batch's forward pass; a few ms of work.
_OPERATIONS_PER_THREAD = 50e6

# Whose operations are known from their outputs, those that PyTorch counts as none, and those around them.
_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Linear)
_FREE = (
    *(
        nn.AvgPool2d,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.Dropout,
        nn.Embedding,
        nn.Flatten,
        nn.GELU,
        nn.GroupNorm,
    ),
    *(nn.Identity, nn.LayerNorm, nn.MaxPool2d, nn.ReLU, nn.Sigmoid, nn.Softmax, nn.Tanh, nn.Unflatten),
)
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
    try:
        with torch.no_grad():
            operations = _operations(model, example if example.dtype == torch.int64 else example.float())
    finally:
        model.train(training)
    return max(1, min(most, int(operations * batch_size / _OPERATIONS_PER_THREAD)))


def _operations(model: nn.Module, inputs: torch.Tensor) -> int:
    """Count a forward pass's multiplications and additions, those of matrix products and convolutions."""
    if not all(
        type(module) in (*_COUNTED, *_FREE) or type(module).forward in _AROUND for module in model.modules()
    ):
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
