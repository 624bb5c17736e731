"""Run federations from Python, and open their results."""

import copy
import dataclasses
import io
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from flwr.serverapp import Grid
from rich.console import Console
from torch import nn

from fedclust.aggregation.flower import check_aggregator
from fedclust.data.arrays import from_arrays
from fedclust.data.dataset import FederatedData
from fedclust.federation import ClientGrid, Federation, LocalGrid, RunFailed
from fedclust.models import construction
from fedclust.models.encoders import build_encoder
from fedclust.personal.layers import Auto, Personal, check_validation, named
from fedclust.privacy import NoPrivacy, Privacy, named as named_privacy
from fedclust.results.recorder import write_summary, writing
from fedclust.runs.privacy_checks import check_delta, check_loss, check_network, check_strategy
from fedclust.runs.result import Result
from fedclust.runs.runner import OnRound
from fedclust.runs.server import Plan, Session, federate, make_engine
from fedclust.settings.allowed import EVERYTHING, check_folder
from fedclust.settings.checks import check, run_settings
from fedclust.settings.composition import ConfigError, build, compose
from fedclust.settings.folders import check_same_run, expand, named_by_time, results_folder
from fedclust.settings.run_options import COMMON, MIN_REPLIES, NEEDS_PROOF, SERVE, VOTES, RunSettings
from fedclust.support.checks import DEFAULT_FRACTION, plain
from fedclust.support.devices import check_device
from fedclust.training import LocalTraining
from fedclust.training.evaluation import Metric
from fedclust.training.losses import WeightedCrossEntropy, cross_entropy, least_loss

if TYPE_CHECKING:
    from fedclust.models.encoders import Encoder
    from fedclust.strategies import ClusteredStrategy

__all__ = ["Result", "describe_run", "load", "one_for_all", "run", "simulate", "strategy_of"]


def strategy_of(
    strategy: "ClusteredStrategy | str", model: nn.Module, data: FederatedData, seed: int
) -> tuple[str, "ClusteredStrategy"]:
    """Return the name that a strategy has in results, and the strategy; build a named one at its defaults."""
    from fedclust.strategies import ClusteredStrategy

    if not isinstance(strategy, str):
        if not isinstance(strategy, ClusteredStrategy):
            raise ValueError(
                "strategy must be one of fedclust.strategies, such as FedGWC(participation=0.5), or a name, "
                f"got {strategy!r}"
            )
        made = strategy.with_options(seed=seed)  # the caller's is not changed
        check_aggregator(made.make_aggregator())
        _check_num_clusters(made, data.num_clients)
        return type(strategy).__name__.lower(), made
    node = compose([f"strategy={strategy}"]).strategy
    own: dict[str, Any] = {}
    if "network" in node:
        own = {"network": model, "input_shape": data.input_shape}
        own = {key: value for key, value in own.items() if key in node}
    if "vocabulary_size" in node:
        tokens = data.inputs.dtype == torch.int64
        own["vocabulary_size"] = int(data.inputs.max()) + 1 if tokens else None
    rest = {key: value for key, value in node.items() if key not in own}
    built = build(rest, seed=seed, **own)
    _check_num_clusters(built, data.num_clients)
    return strategy, built


def _check_num_clusters(strategy: "ClusteredStrategy", num_clients: int) -> None:
    asked = getattr(getattr(strategy, "parameters", None), "num_clusters", None)
    if isinstance(asked, int) and asked > num_clients:
        raise ValueError(f"num_clusters must be <= {num_clients}, the number of clients, got {asked}")


def one_for_all(strategy: "ClusteredStrategy") -> "ClusteredStrategy":
    """Make the strategy that trains one model for all with the same settings as another strategy."""
    from fedclust.strategies import ClusteredStrategy  # which imports fedclust

    # A policy that is the method's own stays with the method, as on the command line.
    own = isinstance(strategy.selection, strategy.own_selection)
    selection = None if own else strategy.selection
    return ClusteredStrategy(
        options=dataclasses.replace(strategy.options, selection=selection, drift_every=0)
    )


def describe_run(
    name: str,
    strategy: "ClusteredStrategy",
    data: FederatedData,
    training: LocalTraining,
    settings: RunSettings,
    metrics: Mapping[str, Metric],
    personal: Personal,
    encoder: "Encoder | None",
) -> dict[str, Any]:
    """Describe a run of objects, for ``config.yaml``; different runs have different descriptions."""
    described: dict[str, Any] = plain(
        {
            "choices": {"strategy": name, "dataset": data.name},
            "personal": {"choice": personal.choice, **dataclasses.asdict(personal)},
            "seed": settings.seed,
            "rounds": settings.rounds,
            "training": dataclasses.asdict(dataclasses.replace(training, loss=cross_entropy))
            | {"loss": _name(training.loss)},
            "metrics": {name: _name(metric) for name, metric in metrics.items()},
            "clients": data.num_clients,
            "data": data.fingerprint,
            "encoder": None if encoder is None else encoder.fingerprint,
            "settings": _settings(strategy),
            "selection": _settings(strategy.selection),
            "aggregator": _settings(strategy.make_aggregator()),
        }
    )
    return described


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _settings(thing: object) -> dict[str, Any]:
    """List an object's settings that are numbers, words or parameters."""
    found: dict[str, Any] = {"of": type(thing).__name__}
    given = vars(thing)
    options = vars(given["options"]) if "options" in given else {}
    for key, value in {**options, **given}.items():
        if key.startswith("_") or key in ("device", "options"):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found[key] = dataclasses.asdict(value)
        elif isinstance(value, tuple) and all(isinstance(each, int | float) for each in value):
            found[key] = list(value)
        elif isinstance(value, bool | int | float | str):
            found[key] = value
    return found


def simulate(
    strategy: "ClusteredStrategy | str",
    model: nn.Module,
    clients: Sequence[Any] | FederatedData,
    *,
    rounds: int,
    training: LocalTraining,
    seed: int = 0,
    num_classes: int | None = None,
    encoder: "Encoder | None" = None,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
    num_nodes: int = 1,
    device: str = "auto",
    on_round: OnRound | Sequence[OnRound] = (),
    progress: bool = False,
    folder: Path | str | None = None,
    checkpoint_every: int | str = "1min",
    resume: bool = False,
    proof: bool = False,
    serve: Literal["cluster", "best"] = "best",
    personal: Personal | str | None = None,
    privacy: Privacy | str = "none",
    timeout: float = 3600.0,
    min_replies: float = MIN_REPLIES,
    keep_matrices: bool | Literal["auto"] = "auto",
) -> Result:
    """Train a federation of your own arrays with your own network, in this process.

    Parameters
    ----------
    strategy
        A strategy that has not run, such as ``FedGWC(participation=0.5)``; or the name of one of
        ``conf/strategy``, at its defaults.
    model
        The network; all clients start from its weights. It is copied, not changed. Its outputs are logits,
        shape (n, C).
    clients
        For each client ``(inputs, targets)`` or ``(train, validation, test)``, see
        :func:`fedclust.data.arrays.from_arrays`; or prepared data.
    rounds
        Rounds of training.
    training
        Hyperparameters of local training; its ``loss`` may be your own function of outputs and targets that
        returns one number per example, shape (n,).
    seed
        Seed of all random draws, those of the strategy too. Same seed, same result.
    num_classes
        Number of classes C; the largest target plus one unless given.
    encoder
        Frozen encoder for FMCL; the inputs themselves unless given.
    metrics
        Your own metrics, measured on every client's test part: by name, a function of outputs and targets
        that returns a number, or one per example, shape (n,), which are averaged. ``result.clients`` has a
        column of each, ``result.rounds`` and ``result.summary`` the mean over clients.
    num_nodes
        Nodes that the clients are spread over; the result does not depend on it.
    device
        ``"auto"`` for a GPU if there is one, or a torch device.
    on_round
        Called after every round with its record.
    progress
        Whether to print the progress.
    folder
        Folder for the results; it must not hold another run. Unless given, a temporary folder that is deleted
        together with the returned result.
    checkpoint_every
        See :func:`fedclust.results.checkpoints.parse_interval`.
    resume
        Whether to resume the run in `folder` from its newest checkpoint; results equal those of an
        uninterrupted run bit by bit. Give the same arguments again; `rounds` may be larger.
    proof
        Whether to train one model for all, too, and to test on held-out rows whether the clusters' models are
        better; the result then has a ``verdict``. The held-out rows are a client's validation rows; of
        clients given as ``(inputs, targets)``, a tenth of the training rows.
    serve
        With `proof`: ``"best"`` to serve a cluster the model for all unless its own was shown to be better,
        ``"cluster"`` to serve it its own.
    personal
        What clients finally use on top of the model that serves them: ``"none"``, ``"prior"``, ``"finetune"``
        or ``"auto"``, or one of :mod:`fedclust.personal.layers` such as ``Finetune(epochs=3)``; None for the
        strategy's own. For ``"auto"``, which chooses on validation rows, rows are held out as for `proof`.
    privacy
        What leaves the clients: ``"none"``, ``"client_dp"``, or one of :mod:`fedclust.privacy` such as
        ``ClientDP(noise_multiplier=2.0)``; see docs/PRIVACY.md.
    timeout
        Seconds that the clients of a round have, > 0; see :mod:`fedclust.grids.local_grid`.
    min_replies
        Share of a round's clients that must answer, in [0, 1]; 0 to go on whatever happens.
    keep_matrices
        Whether to keep matrices of clients by clients; ``"auto"`` for those of up to 500 clients.

    Raises
    ------
    ValueError
        If an argument is outside its range, the clients' arrays do not fit together, or the run to resume had
        other arguments.
    FileExistsError
        If the folder holds another run, or another process is writing the run to resume.
    RunFailed
        If too few clients of a round answered or have an accuracy at the end, a round took longer than
        `timeout`, or the folder can no longer be written.
    """
    if timeout <= 0 or not 0 <= min_replies <= 1:
        raise ValueError(f"timeout must be > 0 and min_replies in [0, 1], got {timeout} and {min_replies}")
    _check(rounds, seed, num_nodes, device, training, folder, resume)
    if serve not in SERVE:
        raise ValueError(f"serve must be one of {', '.join(SERVE)}, got {serve!r}")
    settings = RunSettings(
        task="train",
        seed=seed,
        rounds=rounds,
        participation=1.0,  # a strategy's own
        evaluate_every=1,
        checkpoint_every=checkpoint_every,
        compare=(COMMON,) if proof else (),
        wait=timeout,
        timeout=timeout,
        proof=proof,
        serve=serve,
        min_replies=min_replies,
        keep_matrices=keep_matrices,
    )
    layer = None if personal is None else named(personal)
    data = clients
    if not isinstance(data, FederatedData):
        tests = any(getattr(strategy, each, False) for each in ("proves_splits", "holds_out_rows"))
        held_out = proof or tests or strategy in (NEEDS_PROOF, VOTES) or isinstance(layer, Auto)
        fraction = DEFAULT_FRACTION if held_out else 0.0
        data = from_arrays(data, num_classes=num_classes, seed=seed, validation_fraction=fraction)
    elif not any(map(len, data.test)):
        raise ValueError("clients must have test rows to measure an accuracy on, none has any")
    _check_model(model, data)
    name, made = strategy_of(strategy, model, data, seed)
    if layer is None:
        layer = made.own_personal()  # a strategy that needs validation rows says so itself
    else:
        check_validation(layer, np.array([len(rows) for rows in data.validation]))
    chosen = named_privacy(privacy)
    check_strategy(chosen, name, made, layer, [COMMON] if proof else [])
    if getattr(made, "holds_out_rows", False) and not any(map(len, data.validation)):
        raise ValueError(f"clients must have validation rows for strategy {name} to vote on, none has any")
    check_network(chosen, model)
    check_loss(chosen, training.loss)
    check_delta(chosen, data.num_clients)
    if proof and chosen.tells != "labels":
        raise ValueError(f"proof must be False with privacy={chosen.choice} without label counts, got True")
    strategies = {name: made, **({COMMON: one_for_all(made)} if proof else {})}
    told = data, training, settings, metrics, layer
    described = {
        each: describe_run(each, strategies[each], *told, encoder if each == name else None)
        for each in strategies
    }
    if chosen != NoPrivacy():  # runs of before do not say
        described[name]["privacy"] = {"choice": chosen.choice, **dataclasses.asdict(chosen)}
    plan = Plan(settings, described, strategies, dict.fromkeys(strategies, layer), chosen)
    where = Path(tempfile.mkdtemp(prefix="fedclust-") if folder is None else folder)
    console, page = Console() if progress else None, folder is not None
    from fedclust.clients.app import app  # importing the client side takes as long as importing the server's
    from fedclust.clients.node import offered

    try:
        with (
            offered(data, model, training, seed, device, encoder, metrics) as run_config,
            Session.open(where, resumed=resume, console=console, page=page) as session,
        ):
            grid = ClientGrid(LocalGrid(app, run_config, num_nodes))
            grid.connect()
            if resume:
                check_same_run(described[name], where)
            least, names = least_loss(training.loss), tuple(metrics)
            federation = Federation(grid, rounds, own_metrics=names, least_loss=least, tells=chosen.tells)
            callbacks = [on_round] if callable(on_round) else list(on_round)
            summary, _ = session.run(plan, federation, model, on_round=callbacks, simulated=True)
            with writing(where):
                write_summary(where, summary)
            if session.page is not None:
                session.page.write()
    except BaseException as error:
        # A failed run's message names the folder with its rounds.
        if folder is None and not isinstance(error, RunFailed):
            shutil.rmtree(where, ignore_errors=True)
        raise
    network, loss = copy.deepcopy(model), training.loss  # the caller may change the original
    if isinstance(loss, WeightedCrossEntropy):
        loss = loss.fitted(data.label_counts().sum(axis=0).tolist())
    result = Result(where, lambda: copy.deepcopy(network), loss)
    if encoder is not None:
        result._encoder = lambda: encoder
    if folder is None:
        weakref.finalize(result, shutil.rmtree, where, ignore_errors=True)
    return result


def run(overrides: Sequence[str] = (), console: Console | None = None) -> Result:
    """Run with the overrides of a command line, such as ``run(["strategy=fmcl", "seed=3"])``.

    Raises
    ------
    ConfigError
        If the overrides name something that does not exist, or a value that is not allowed.
    FederationError
        If the federation cannot start.
    FileExistsError
        If the results' folder holds another run.
    """
    config = compose(expand(overrides))
    check(config)
    if run_settings(config).task not in ("train", "advise"):
        raise ConfigError(f"task must be train or advise to get a result, got {config.task}")
    grid = make_engine(config)
    if not isinstance(grid, Grid):
        raise ConfigError(
            f"engine must run on this machine to get a result, such as local or ray, "
            f"got {config.choices.engine}"
        )
    with results_folder(Path(config.output_dir).absolute(), new=named_by_time(config)) as folder:
        federate(config, grid, folder, console or Console(file=io.StringIO()))
    return load(folder, allow=EVERYTHING)


def load(folder: Path | str, model: nn.Module | None = None, *, allow: str = "") -> Result:
    """Open a run from its folder, which may come from someone else.

    What its ``config.yaml`` names is built from fedclust's own list of names only, see
    :mod:`fedclust.settings.allowed`; weights are read from safetensors, and nothing is unpickled.

    Parameters
    ----------
    folder
        The run's folder.
    model
        The network that it trained, with any weights; unless given, the one that the run's ``config.yaml``
        names. Runs of :func:`simulate` do not name one.
    allow
        Further names that the folder may build, separated by commas, such as ``"mine.models.Net"``; a name
        that ends in a dot allows all below it, and ``"*"`` everything, for a run of your own.

    Raises
    ------
    FileNotFoundError
        If the folder does not hold a run.
    ValueError
        If its configuration names what is not allowed.
    """
    result = Result(folder)
    config = result.saved.config
    built = ("encoder",) if model is not None else ("encoder", "model", "training")
    given = {name: config[name] for name in built if isinstance(config.get(name), Mapping)}
    check_folder(given, allow, result.folder / "config.yaml", "load")
    if model is not None:
        network = copy.deepcopy(model)
        result._module = lambda: copy.deepcopy(network)
    elif isinstance(config.get("model"), Mapping):
        result._module = lambda: construction.build(config["model"], int(config.get("seed", 0)))
        counts = result.saved.label_counts
        loss = build(config["training"]).loss
        if isinstance(loss, WeightedCrossEntropy) and counts is not None:
            loss = loss.fitted(counts.sum(axis=0).tolist())
        result._loss = loss
    if isinstance(config.get("encoder"), Mapping):
        result._encoder = partial(build_encoder, config["encoder"])
    return result


def _check(
    rounds: int,
    seed: int,
    num_nodes: int,
    device: str,
    training: LocalTraining,
    folder: Path | str | None,
    resume: bool,
) -> None:
    for name, value, least in (("rounds", rounds, 1), ("seed", seed, 0), ("num_nodes", num_nodes, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
    if not isinstance(training, LocalTraining):
        raise ValueError(f"training must be a LocalTraining, got {type(training).__name__}")
    if resume and folder is None:
        raise ValueError("folder must be that of the run to resume, got None")
    check_device(device)


def _check_model(model: nn.Module, data: FederatedData) -> None:
    """Check that a network accepts the data; for tokens, the rows with the smallest and the largest."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    construction.check_outputs(model, data.inputs[:1], data.num_classes)
    if data.inputs.dtype == torch.int64:
        tokens = data.inputs.flatten(1)
        for row in (tokens.amin(1).argmin(), tokens.amax(1).argmax()):
            try:
                construction.check_outputs(model, data.inputs[row : row + 1], data.num_classes)
            except ValueError as error:
                low, high = int(tokens.min()), int(tokens.max())
                raise ValueError(f"model must take tokens from {low} to {high}: {error}") from error
