"""The server: plan a run, run its strategies over any grid, and write the results."""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp, strategy as flower
from hydra.errors import InstantiationException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedclust import data
from fedclust.aggregation.flower import FairAvg, check_aggregator
from fedclust.clustering.shared.number import KnownNumber
from fedclust.data.dataset import num_held_out
from fedclust.federation import Descriptions, Federation, FederationError, RunFailed
from fedclust.federation.answering import Answering, Flower, Here
from fedclust.federation.federation import (
    RosterState,
    capped_lines,
    few_passes_line,
    imbalance_line,
    left_out_line,
)
from fedclust.federation.questions import save_predictions
from fedclust.federation.run import RunState
from fedclust.grids.site_grid import SiteGrid
from fedclust.grids.superlink import PromptGrid, end_hung_actors
from fedclust.messages import coalitions, description, descriptors, evaluation, mixtures, training
from fedclust.messages.models import from_state
from fedclust.models import construction
from fedclust.personal.layers import MODELS, PRIOR, Auto as BestLayer, Personal, check_validation
from fedclust.personal.staying import Staying
from fedclust.privacy import ClientDP, DifferentialPrivacy, NoPrivacy, PatientDP, Privacy
from fedclust.privacy.accountant import require
from fedclust.proof.words import CLASSES, Words
from fedclust.results import Checkpoints, Progress, Recorder, SavedRun, print_report
from fedclust.results.page import LivePage
from fedclust.results.recorder import CannotWrite, another_run, rescuing, write_summary, writing
from fedclust.results.trackers import Tracker, Tracking
from fedclust.runs.own_data import AGREEMENT_FILE, join_sites
from fedclust.runs.runner import OnRound, StrategyRun
from fedclust.runs.sweep import take_from_sweep
from fedclust.selection import LeastSampled, Uniform
from fedclust.settings import checks, composition, folders
from fedclust.settings.allowed import from_run_config
from fedclust.settings.composition import ConfigError, build, build_strategy, is_own, plain, to_run_config
from fedclust.settings.run_options import AUTO, COMMON, RunSettings
from fedclust.strategies import ClusteredStrategy
from fedclust.strategies.yardsticks import Pooling
from fedclust.support.checks import few
from fedclust.support.provenance import made_with
from fedclust.support.reasons import RAISED, reason_of
from fedclust.training.cohort import num_steps
from fedclust.training.losses import least_loss
from fedclust.training.patients import patient_steps
from fedclust.typing import IntArray

logger = logging.getLogger(__name__)


USER_ERRORS = (ConfigError, OmegaConfBaseException, FederationError, FileExistsError)
"""Errors about a user's settings; their message is enough, without a traceback."""


@contextmanager
def _as_config_error(prefix: str = "") -> Iterator[None]:
    """Raise the error of a setting's check as a ConfigError."""
    try:
        yield
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(f"{prefix}{error}") from error


def make_engine(config: DictConfig) -> Any:
    """Build the engine that ``engine`` names, for the ClientApp that ``client_app`` names.

    Returns
    -------
    A Flower grid whose nodes run the app; or an object that submits the run to another machine.

    Raises
    ------
    ConfigError
        If there is no such app or the engine refuses its settings.
    """
    name: str = config.client_app
    try:
        app = get_object(name)
    except ImportError as error:
        why = error.__cause__ or error
        raise ConfigError(f"client_app must be importable, got {name!r}: {why}") from error
    if not isinstance(app, ClientApp):
        raise ConfigError(f"client_app must be a ClientApp, {name!r} is a {type(app).__name__}")
    return build(config.engine, app=app, run_config=to_run_config(config))


# -- The clients --------------------------------------------------------------------------------------------


def clients_here(node: Any, models: Path | None = None) -> Here:
    """Return the clients of a node in this process.

    Parameters
    ----------
    node
        A :class:`fedclust.clients.node.Node` that hosts all clients.
    models
        Folder for fine-tuned models; None to keep none.
    """
    from fedclust.clients.app import WORK

    if models is not None:
        node = replace(node, config={**node.config, MODELS: str(models)})
    return Here(node, WORK)


def _waits(settings: RunSettings) -> dict[str, float]:
    """How long a grid waits for nodes and clients."""
    outage = {"max_outage": settings.max_outage, "min_replies": settings.min_replies}
    return {"wait": settings.wait, "prepare": settings.timeout, **outage}


def _all_here(grid: Grid, settings: RunSettings, places: Sequence[Any]) -> bool:
    """Return whether one node in this process would run our app for all clients, as they are numbered."""
    from fedclust.clients import app

    in_order = list(places) == list(range(len(places)))
    return getattr(grid, "alone_with", None) is app and settings.hosts is None and in_order


def connect(
    config: DictConfig,
    grid: Grid,
    settings: RunSettings,
    say: Callable[[str], None],
    places: Sequence[Any] = (),
    models: Path | None = None,
) -> Answering:
    """Connect to the clients of a run over a pooled dataset.

    Parameters
    ----------
    config
        The composed configuration.
    grid
        The engine's grid. One whose nodes would all run our app in this process is not used: the clients
        then answer without messages.
    settings
        The run's settings.
    say
        Prints a line.
    places
        Places of the clients of a run to resume.
    models
        Folder for fine-tuned models of clients in this process; None to keep none.

    Raises
    ------
    ConfigError, ValueError
        If the hosts file cannot be read.
    FederationError
        If the clients' data or model cannot be prepared, or too few clients are online.
    """
    if _all_here(grid, settings, places):
        from fedclust.clients.node import node_here

        try:
            node = node_here(config)
        except RAISED as error:
            raise FederationError(reason_of(error)) from error
        if len(places) in (0, node.data.num_clients):  # else clients may join or have left
            return clients_here(node, models)
    from fedclust.grids.client_grid import ClientGrid
    from fedclust.grids.nodes import read_hosts

    hosts = None if settings.hosts is None else read_hosts(Path(settings.hosts).expanduser())
    clients = ClientGrid(grid, min_clients=settings.min_clients, hosts=hosts, say=say, **_waits(settings))
    clients.connect(places)
    return Flower(clients)


# -- The plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plan:
    """What runs: the chosen strategy and those that it is compared with, with everything that they need.

    Attributes
    ----------
    settings
        The run's settings.
    configs
        The configuration of each strategy, by name, the chosen one first.
    strategies
        The strategies, by name.
    layers
        The personal layer that clients add at the end, by the strategy's name.
    privacy
        What leaves clients.

    Raises
    ------
    ValueError
        If a strategy and its options cannot keep what the privacy promises.
    ModuleNotFoundError
        If the accountant's package is missing.
    """

    settings: RunSettings
    configs: Mapping[str, Any]
    strategies: Mapping[str, ClusteredStrategy]
    layers: Mapping[str, Personal]
    privacy: Privacy

    def __post_init__(self) -> None:
        for name, strategy in self.strategies.items():
            beside = [each for each in self.strategies if each != name] if name == self.chosen else []
            check_strategy(self.privacy, name, strategy, self.layers[name], beside)
            if hasattr(strategy, "may_correct"):
                strategy.may_correct = PRIOR in self.layers[name].asked

    @classmethod
    def of(cls, config: DictConfig, settings: RunSettings) -> "Plan":
        """Build everything that a configuration names.

        Parameters
        ----------
        config
            The composed configuration.
        settings
            Its settings.

        Raises
        ------
        ConfigError
            If an option is wrong, or two options cannot be combined.
        """
        chosen = str(config.choices.strategy)
        names = [chosen, *(name for name in settings.compare if name != chosen)]
        configs = {chosen: config} | {each: composition.with_strategy(config, each) for each in names[1:]}
        strategies = {name: _strategy(configs[name], settings) for name in names}
        layers = {name: strategy.own_personal() for name, strategy in strategies.items()}
        if config.get("personal"):
            layers = dict.fromkeys(names, _built_as(Personal, "personal", config))
        privacy = _built_as(Privacy, "privacy", config) if config.get("privacy") else NoPrivacy()
        if privacy.disclosed != "labels" and settings.task != "train":
            raise ConfigError(f"task must be train with {setting(privacy)}, got {settings.task}")
        with _as_config_error():
            return cls(settings, configs, strategies, layers, privacy)

    @property
    def chosen(self) -> str:
        """Name of the chosen strategy."""
        return next(iter(self.strategies))

    @property
    def proves(self) -> bool:
        """Whether strategies' groups are tested against one model for all."""
        return self.settings.proof and COMMON in self.strategies and len(self.strategies) > 1

    def serves(self, name: str) -> str:
        """Return whose model serves clients after the proof; by each strategy's own rule unless given."""
        return self.strategies[name].serves if self.settings.serve == AUTO else self.settings.serve

    @property
    def config(self) -> Any:
        """The run's configuration, which is that of the chosen strategy."""
        return self.configs[self.chosen]

    @property
    def _num_steps(self) -> Callable[[IntArray], IntArray] | None:
        """Counts the steps of clients by their rows; None where the user's own ClientApp trains."""
        if self.config.get("client_app", _OUR_APP) != _OUR_APP:
            return None
        node = self.config["training"]
        amount: Any = SimpleNamespace(**{name: node[name] for name in ("epochs", "steps", "batch_size")})
        if isinstance(self.privacy, PatientDP):
            steps = patient_steps(amount, self.privacy.sampling)
            return lambda rows: np.full(len(rows), steps)
        return partial(num_steps, training=amount)

    def federation(
        self, clients: Answering, loss: Any, metrics: Sequence[str] = (), attended: RosterState | None = None
    ) -> Federation:
        """Make the federation of the clients that take part.

        Parameters
        ----------
        clients
            Who answers for them.
        loss
            The loss that they train with, or its name.
        metrics
            Names of the user's own metrics.
        attended
            The clients of the run to resume.

        Raises
        ------
        ConfigError
            If the strategies or the privacy do not suit the number of clients.
        """
        num_clients = clients.num_clients
        pooled = any(each.layer(Pooling) for each in self.strategies.values())
        if self.settings.min_clients is not None and pooled:
            raise ConfigError("min_clients must be null with centralised training, it needs all rows")
        with _as_config_error():
            left_out = num_held_out(num_clients, self.settings.holdout_clients)
            check_delta(self.privacy, num_clients - left_out)
        for name, strategy in self.strategies.items():
            given = getattr(strategy, "parameters", None)
            asked = given.number if isinstance(given, KnownNumber) else getattr(given, "num_clusters", None)
            if isinstance(asked, int) and asked > num_clients - left_out:
                most = f"<= {num_clients - left_out}, the number of clients"
                raise ConfigError(f"strategy.parameters.num_clusters must be {most}, got {asked} for {name}")
        return Federation(
            clients,
            self.settings.rounds,
            self.settings.timeout,
            own_metrics=metrics,
            least_loss=least_loss(loss),
            num_steps=self._num_steps,
            num_newcomers=left_out,
            roster=attended.roster() if attended and attended.joined and not left_out else None,
            disclosed=self.privacy.disclosed,
        )

    def settle_rows(self, federation: Federation, network: nn.Module, saved: RunState | None = None) -> None:
        """Check that clients have the rows that the run needs, and let all train that nobody decides on.

        Whoever would decide on held-out rows may cross-fit instead: clients then hold none out of training.

        Parameters
        ----------
        federation
            The clients.
        network
            The network that all strategies start from.
        saved
            The state of the run to resume, whose clients go on as they began.

        Raises
        ------
        ConfigError
            If no client has test rows; nobody has held-out rows for a strategy to vote on, or one has too
            few for its personal layer; or a resumed run has trained on all rows and something is to decide
            on held-out ones now.
        """
        described, model = federation.describe(), from_state(network.state_dict())
        if self.privacy.disclosed != "nothing" and not described.num_test.any():
            raise ConfigError("clients must have test rows to measure an accuracy on, none has any")
        begun, rows = None if saved is None else saved.roster.described, described.rows
        if saved is not None and begun is not None:  # of those it began with
            rows = begun.rows[np.array(saved.roster.joined) == 0]
        crossing = {name for name, each in self.strategies.items() if each.cross_fits(rows, model)}
        for name, strategy in self.strategies.items():
            votes = strategy.holds_out_rows and not strategy.proves_splits
            if votes and self.privacy.disclosed == "labels" and not described.num_validation.any():
                raise ConfigError(f"clients must have validation rows for {name} to vote on, none has any")
            if name not in crossing:
                with _as_config_error(f"{name}: " if len(self.strategies) > 1 else ""):
                    check_validation(self.layers[name], described.num_validation)
            layer = self.layers[name]
            if isinstance(layer, Staying):
                with _as_config_error():
                    layer.staying(network)
                if name in crossing:
                    rule = f"strategy.parameters.coalitions must be none with personal={layer.choice}"
                    raise ConfigError(f"{rule}: models of coalitions train on other sites, which keep theirs")
                if getattr(getattr(federation.clients, "grid", None), "shares_clients", False):
                    why = "any of its nodes may train any client, which keeps its layers at one"
                    raise ConfigError(f"engine must not be ray with personal={layer.choice}: {why}")
                if self.config.get("client_app", _OUR_APP) != _OUR_APP:
                    raise ConfigError(f"client_app must be fedclust's own with personal={layer.choice}")
        needed = [name for name in self.strategies if self._holds_out(name, name in crossing)]
        all_rows = bool(crossing) and not needed if begun is None else not begun.num_validation.any()
        if all_rows and described.num_validation.any():
            if needed:
                raise ConfigError(
                    f"resume must not ask for held-out rows ({needed[0]}): all rows have trained"
                )
            federation.train_on_all_rows()

    def _holds_out(self, name: str, crossing: bool) -> bool:
        """Return whether a strategy decides on held-out rows, or something beside it does."""
        each = self.strategies[name]
        decides = each.holds_out_rows or isinstance(self.layers[name], BestLayer)
        decides |= each.forms_groups and self.serves(name) == "best"
        decides_anyhow = each.options.compares_rounds or self.settings.validates
        return decides_anyhow or bool(each.options.drift_every) or (decides and not crossing)

    def build_network(self) -> nn.Module:
        """Build the network that all strategies start from.

        Raises
        ------
        ConfigError
            If it cannot be built, or not trained with this privacy.
        """
        try:
            network = construction.build(plain(self.config.model), self.settings.seed)
        except (InstantiationException, ValueError, TypeError) as error:
            raise ConfigError(str(error.__cause__ or error)) from error
        with _as_config_error():
            check_network(self.privacy, network)
        return network


def _strategy(config: DictConfig, settings: RunSettings) -> ClusteredStrategy:
    aggregator = build(config.aggregator)  # finds wrong options now: clusters build theirs in round 1
    with _as_config_error("aggregator."):
        check_aggregator(aggregator)
    selection = build(config.selection) if config.selection else None
    # Copying one that was built is a hundred times as fast as building, and clusters need many.
    return build_strategy(config.strategy, settings.options(partial(deepcopy, aggregator), selection))


def _built_as(kind: Any, name: str, config: DictConfig) -> Any:
    made = build(config[name])
    if not isinstance(made, kind):
        raise ConfigError(f"{name} must be a {kind.__module__}.{kind.__name__}, got {type(made).__name__}")
    return made


# Aggregators that use only the replies' mean, to which the noise is added.
_MEANS = (
    *(flower.FedAvg, flower.FedAvgM, flower.FedProx, flower.FedAdam, flower.FedYogi, flower.FedAdagrad),
    FairAvg,
)
_SELECTIONS = (Uniform, LeastSampled)  # they look at no client's data
_HOLD_PATIENT_DP = "fedavg, known_groups and local"


def check_strategy(
    privacy: Privacy,
    name: str,
    strategy: ClusteredStrategy,
    personal: Personal,
    compare: Sequence[str] = (),
) -> None:
    """Check that a strategy and its options can keep what a choice of privacy promises.

    Parameters
    ----------
    privacy
        The choice.
    name
        The strategy's name, for messages.
    strategy
        The strategy.
    personal
        The personal layers after the last round.
    compare
        Names of further strategies that are run on the same clients.

    Raises
    ------
    ValueError
        If it cannot.
    ModuleNotFoundError
        If the accountant's package is missing.
    """
    if isinstance(personal, Staying):
        _check_staying(privacy, name, strategy, personal)
    if strategy.needs_last_round and strategy.options.patience is not None:
        raise ValueError(f"stop must be none with {name}, which does something in its last round")
    if privacy.disclosed == "labels":
        return
    chosen, options = setting(privacy), strategy.options
    unfit = f"{chosen} does not support"
    if options.compares_rounds:
        why = "they compare models on held-out rows"
        raise ValueError(f"stop and serve_round must be none and last with {chosen}: {why}")
    if personal.asked:
        raise ValueError(f"personal must be none with {chosen}, got {personal.choice} for {name}")
    if not isinstance(privacy, DifferentialPrivacy):
        for thing in (strategy, strategy.selection):
            if getattr(thing, "needs_label_counts", False):
                raise ValueError(f"{unfit} {name}: {type(thing).__name__} needs label counts")
        if description.PrototypesQuestion.kind in strategy.asks:
            raise ValueError(f"{unfit} {name}: its prototypes come with the number of rows of each class")
        return
    aggregator, selection = type(strategy.make_aggregator()), type(strategy.selection)
    if patients := isinstance(privacy, PatientDP):
        holds = bool(vars(type(strategy)).get("holds_patient_dp"))
        reads = f"it asks sites for more than private models; {_HOLD_PATIENT_DP} are supported"
    else:
        holds = vars(type(strategy)).get("holds_client_dp") is not None
        reads = "it uses more than a noisy mean; fedavg, known_groups and private_groups are supported"
    means = patients or aggregator in _MEANS  # what is made of private models costs patients nothing
    held = (
        ("strategy", name, holds, reads),
        ("selection", selection.__name__, selection in _SELECTIONS, "it chooses clients by what they report"),
        ("aggregator", aggregator.__name__, means, "it needs single clients' models"),
    )
    for what, called, holds, why in held:
        if not holds:
            raise ValueError(f"{unfit} {what} {called}: {why}")
    whole = "its noise is for the mean over all clients"
    rules = (
        ("compare", list(compare), "[]", "a second run on the same clients spends as much again"),
        ("evaluate_clients", not patients and options.evaluate_clients, "null", whole),
        ("drift_every", options.drift_every, "0", "it compares models on single clients' rows"),
    )
    for what, value, rule, why in rules:
        if value:
            raise ValueError(f"{what} must be {rule} with {chosen}, got {value}: {why}")
    require()


def _check_staying(privacy: Privacy, name: str, strategy: ClusteredStrategy, personal: Staying) -> None:
    chosen = f"personal={personal.choice}"
    if isinstance(privacy, DifferentialPrivacy):
        why = "what stays is trained without noise, and exports hold it"
        raise ValueError(f"privacy must be none with {chosen}, got {privacy.choice}: {why}")
    if strategy.layer(Pooling) is not None:
        raise ValueError(f"strategy must train on each client's own rows with {chosen}, got {name}")
    if strategy.needs_whole_models and not personal.twin:
        raise ValueError(f"strategy must not compute with whole models with {chosen}, got {name}")


def setting(privacy: Privacy) -> str:
    """Return the command-line override of a privacy choice that withholds label counts."""
    private = isinstance(privacy, DifferentialPrivacy)
    return f"privacy={privacy.choice}" if private else "privacy.label_counts=false"


def check_delta(privacy: Privacy, num_clients: int) -> None:
    """Check that δ is below one over the number of clients.

    Raises
    ------
    ValueError
        If it is not: publishing all of one client, drawn at random, would pass for private.
    """
    if isinstance(privacy, ClientDP) and privacy.delta * num_clients >= 1:
        rule = f"below one over the number of clients, {1 / num_clients:.3g}"
        raise ValueError(f"privacy.delta must be {rule}, got {privacy.delta:g}")


def check_network(privacy: Privacy, network: nn.Module) -> None:
    """Check that everything training changes in a network can be clipped and noised.

    Raises
    ------
    ValueError
        If it keeps batch statistics, shares parameters between layers, or has none to train; or, where
        patients are protected, mixes the rows of a batch.
    """
    if not isinstance(privacy, DifferentialPrivacy):
        return
    chosen, patients = setting(privacy), isinstance(privacy, PatientDP)
    for name, module in network.named_modules():
        mixes = patients and isinstance(module, _BatchNorm)
        if mixes or getattr(module, "track_running_stats", False):
            kind = f"{name} is a {type(module).__name__}: use GroupNorm"
            raise ValueError(f"{chosen} does not support a network with batch statistics, {kind}")
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(network.named_parameters())):
        raise ValueError(f"{chosen} does not support a network whose layers share parameters")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError(f"{chosen} must have a network with parameters to train, this has none")


def saved_state(folder: Path, rounds: int) -> RunState | None:
    """Read the newest state of the run in a folder; None if it has no checkpoint yet."""
    with _as_config_error(f"resume cannot continue {folder}: "):
        return Checkpoints(folder / "checkpoints", rounds).newest(Recorder.rounds_in(folder))


_PRINTED: set[tuple[str, str]] = set()  # notes of this process's jobs, with the folder of their sweep


@dataclass(eq=False)
class Session:
    """The runs of one command: the chosen strategy's, and those of the strategies it is compared with.

    Attributes
    ----------
    folder
        The results folder.
    resumed
        Whether the runs continue from their newest checkpoints.
    console
        Where progress, notes and the report are printed; None to print only warnings, as a log's.
    tracker
        Makes the tracker of a run; None to track nothing.
    page
        Whether to write the folder's page, and keep it up to date.
    elsewhere
        Whether who reads what is printed works in another folder than this process, see :func:`print_report`.
    runs
        The strategies' runs so far, the chosen one's first.
    texts
        Further files of the folder that a resumed run needs, by name.
    """

    folder: Path
    resumed: bool
    console: Console | None = None
    tracker: Callable[[], Tracker] | None = None
    page: bool = True
    elsewhere: bool = False
    runs: dict[str, StrategyRun] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def say(self, line: str) -> None:
        """Print a line; of a sweep's jobs, only if none before it in this process has printed it."""
        if folders.of_sweep(self.folder):
            sweep = str(self.folder.parent)
            if (sweep, line) in _PRINTED:
                return
            _PRINTED.add((sweep, line))
        if self.console is None:
            logger.warning(line)
        else:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def opened(self) -> Iterator["Session"]:
        """Lock the results folder; if it can no longer be written, save the runs elsewhere.

        Raises
        ------
        FileExistsError
            If another process is writing a run into the folder.
        RunFailed
            If the folder can no longer be written; the message says where the runs are.
        """
        with (
            folders.locked(self.folder, resumed=self.resumed),
            ExitStack() as opened,
            rescuing(self.runs, self.texts),
        ):
            if not self.resumed and (self.folder / "rounds.jsonl").exists():
                raise another_run(self.folder)  # before data is prepared
            self._opened, self._tracking = opened, None
            if self.tracker is not None:
                self._tracking = opened.enter_context(Tracking(self.tracker, self.folder, self.say))
            pictures = find_spec("altair") is not None
            if self.page and not pictures and self.console is None:  # else the report's end says so
                self.say("no page and no pictures: pip install 'fedclust[charts]'")
            self.live = LivePage(self.folder, shown=self.page and pictures)
            yield self

    def carry_out(
        self,
        plan: Plan,
        federation: Federation,
        network: nn.Module,
        *,
        on_round: Sequence[OnRound] = (),
        take: Callable[[str], dict[str, object] | None] = lambda _: None,
        sites: SiteGrid | None = None,
    ) -> dict[str, object]:
        """Run all strategies, prove the groups, personalise, and write and print the results.

        Parameters
        ----------
        plan
            The strategies, built.
        federation
            The clients.
        network
            The network that all strategies start from.
        on_round
            Called after every round of the chosen strategy.
        take
            Returns the summary of a compared strategy that need not run; None if it must.
        sites
            The sites with data of their own, if the clients are such.

        Returns
        -------
        The content of ``summary.json``: the chosen strategy's summary with those of the others.

        Raises
        ------
        ConfigError
            If clients lack rows that the run needs, or a finished private run would repeat a round.
        RunFailed
            As for :func:`federate`.
        """
        state = saved_state(self.folder, plan.settings.rounds) if self.resumed else None
        if self.resumed and (self.folder / "summary.json").is_file():  # after the last round was asked more
            finished = SavedRun(self.folder).summary
            federation.asked.update(finished.get("left_clients", ()))
            repeats = state is None or state.server_round < finished["rounds"]
            if repeats and isinstance(plan.privacy, DifferentialPrivacy) and not federation.clients.simulated:
                rule = (
                    f"rounds must be {finished['rounds']}, as {setting(plan.privacy)} was finished with these"
                )
                why = "more would repeat the last of these with fresh noise, which ε does not count"
                raise ConfigError(f"{rule}: {why}")
        plan.settle_rows(federation, network, state)
        cohort = plan.strategies[plan.chosen].cohort_size(federation.num_clients)
        often = plan.settings.rounds, cohort / federation.num_clients
        few_passes = few_passes_line(federation.describe(), *often, plan.config["training"])
        if self.console is not None and not folders.of_sweep(self.folder):
            say_data(federation.describe(), self.say)
            if few_passes:
                self.say(few_passes)
        summary = self._run(plan, federation, network, on_round, take)
        if few_passes:
            summary["few_passes"] = few_passes
        if sites is not None:
            summary |= {"sites_left_out": sites.left_out, "data_warnings": list(sites.cautions)}
            summary["site_rules"] = sites.site_rules
            if sites.left_out and isinstance(verdict := summary.get("verdict"), dict):
                verdict["text"] += f"; without {few(sites.left_out)}: left out"
        with writing(self.folder):
            if plan.settings.save_predictions:
                line = save_predictions(federation, *self.runs[plan.chosen].serving, self.folder)
                self.say(line + " (without personal layers)" * bool(plan.layers[plan.chosen].asked))
            summary["left_clients"] = left_clients(
                federation.asked, plan.privacy, federation.describe().target.words
            )
            summary["made"] = made_with()
            write_summary(self.folder, summary)
            self.live.write()
            if self.live.shown and self.tracker is not None:
                from fedclust.results.charts import draw  # Altair takes half a second to import

                draw(self.folder)  # for the tracker; others see them on the page, and can draw them later
        self.end_tracking(plan.chosen)
        if self.console is not None:
            print_report(SavedRun(self.folder), self.console, brief=True, elsewhere=self.elsewhere)
        return summary

    def _run(
        self,
        plan: Plan,
        federation: Federation,
        network: nn.Module,
        on_round: Sequence[OnRound],
        take: Callable[[str], dict[str, object] | None],
    ) -> dict[str, object]:
        compared: dict[str, dict[str, object]] = {}
        row_cap = plan.strategies[plan.chosen].options.row_cap
        for line in capped_lines(federation.describe(), row_cap, plan.config["training"]):
            self.say(line)
        pace = _pace(plan, federation, from_state(network.state_dict()))
        for name in plan.strategies:
            chosen = name == plan.chosen
            if not chosen and (taken := take(name)):
                compared[name] = taken
                continue
            with self.live:
                run = self._open(name, plan, pace, on_round if chosen else ())
                federation.asked.update(() if run.resume is None else run.resume.roster.asked)
                try:
                    run.start(federation, network)
                except CannotWrite:  # what is not written yet is saved elsewhere
                    raise
                except BaseException:
                    run.recorder.close()  # before the page is written
                    raise
                federation.close()  # compared strategies run on the same clients
        with self.live:
            if plan.proves and COMMON in compared.keys() | self.runs.keys():
                self._prove(plan, federation)
            for name, run in self.runs.items():
                if name != plan.chosen:
                    compared[name] = run.personalise(federation, plan.layers[name])
                    self.end_tracking(name)
            summary = self.runs[plan.chosen].personalise(federation, plan.layers[plan.chosen])
        in_order = {name: compared[name] for name in plan.strategies if name in compared}
        return {**summary, "compare": in_order}

    def _prove(self, plan: Plan, federation: Federation) -> None:
        """Test every strategy's groups against one model for all."""
        folder = self.folder if plan.chosen == COMMON else Recorder.compared_folder(self.folder, COMMON)
        common = Checkpoints(folder / "checkpoints", plan.settings.rounds).newest()
        if common is None:  # for example, another job of a sweep trained it, and its files were removed
            self.say(f"no verdict: {COMMON} has no checkpoint in {folder / 'checkpoints'}")
            return
        rounds = SavedRun(folder).rounds
        for name, run in self.runs.items():
            if name != COMMON:
                run.prove(federation, common, rounds, serve=plan.serves(name))

    def _open(
        self, name: str, plan: Plan, pace: Mapping[str, float], on_round: Sequence[OnRound]
    ) -> StrategyRun:
        """Open a strategy's folder, new or to be resumed, and make its run.

        `pace` is how long a round of each strategy takes; only how they compare matters.
        """
        rounds, names, config = plan.settings.rounds, list(plan.strategies), plan.configs[name]
        folder = self.folder if name == plan.chosen else Recorder.compared_folder(self.folder, name)
        written = OmegaConf.to_yaml(config, resolve=True) if OmegaConf.is_config(config) else config
        state = saved_state(folder, rounds) if self.resumed else None
        done = 0 if state is None else state.server_round
        if done > rounds:
            raise ConfigError(f"rounds must be >= {done}, the rounds that {folder} has, got {rounds}")
        if self.resumed:
            self.say(f"{name}: {f'resumed after round {done} of {rounds}' if done else 'starts at round 1'}")
        with writing(folder):
            recorder = Recorder.resume(folder, done, written) if self.resumed else Recorder(folder, written)
            self._opened.enter_context(recorder)
        progress, place = None, (names.index(name) + 1, len(names))
        if self.console is not None:
            later = ["proof"] * (plan.proves and plan.serves(name) == "best") + ["layers"] * bool(
                plan.layers[name].asked
            )
            then = sum(
                pace[each] * max(0, rounds - Recorder.rounds_in(Recorder.compared_folder(self.folder, each)))
                for each in names[place[0] :]
            )
            progress = Progress(
                *(rounds, name, self.console),
                task=place,
                then=then / pace[name],
                later=later,
                summarised=folders.of_sweep(self.folder),
                proves=plan.proves,
                first=folders.of_sweep(self.folder) and self.folder.name == "0",
            )
        callbacks: list[OnRound] = [*on_round, self.live]
        if self._tracking is not None:
            callbacks.append(self._tracking.begin(name, folder))
        parts = plan.strategies[name], plan.settings, recorder, state, progress, callbacks
        chosen = name == plan.chosen
        layer = plan.layers[name]
        staying = layer if isinstance(layer, Staying) else None
        self.runs[name] = StrategyRun(name, *parts, chosen, self.say, plan.privacy, staying)
        return self.runs[name]

    def end_tracking(self, name: str) -> None:
        """Stop tracking a strategy's run, with the results that its folder has now."""
        if self._tracking is not None:
            self._tracking.end(name)


def _pace(plan: Plan, federation: Federation, model: ArrayRecord) -> dict[str, float]:
    """Guess how many times as long as one of FedAvg a round of each strategy takes, to estimate a run's time.

    A client's models train at once: 24 to 48 of them took 4 to 9 times as long as one. Other methods took 0.7
    to 4 times as long as FedAvg.
    """
    trained = {name: each.models_per_client(federation, model) for name, each in plan.strategies.items()}
    return {name: 1.0 if name == COMMON else max(2.0, math.sqrt(each)) for name, each in trained.items()}


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation of the run configuration; ``flwr run`` calls this."""
    try:
        config = from_run_config(context.run_config)
        checks.check(config)
        output_dir = str(context.run_config.get("output-dir") or "")
        new = not output_dir and folders.named_by_time(config)
        with folders.results_folder(Path(output_dir or config.output_dir).absolute(), new=new) as folder:
            federate(config, PromptGrid(grid), folder)
    except (*USER_ERRORS, RunFailed) as error:
        # Flower prints the traceback, which does not help the user who set an impossible option.
        raise error.with_traceback(None) from None
    finally:
        end_hung_actors()


def federate(
    config: DictConfig, grid: Grid, folder: Path, console: Console | None = None
) -> dict[str, object]:
    """Run a federation, and the strategies it is compared with, and write the results.

    Parameters
    ----------
    config
        The composed configuration.
    grid
        Any Flower grid whose nodes run our ClientApp.
    folder
        Folder for the results; it must not hold those of another run.
    console
        Where to print; standard output unless given.

    Returns
    -------
    The content of ``summary.json``.

    Raises
    ------
    ConfigError
        If a setting is impossible.
    FederationError
        If the federation cannot start.
    FileExistsError
        If the folder holds another run, or another process is writing the run to resume.
    RunFailed
        If too few clients of a round answered, too few have an accuracy at the end, or the folder can no
        longer be written. ``rounds.jsonl`` then has every round with its failures, the failed one last, and
        the run has no ``summary.json``.
    """
    config.output_dir = str(folder)  # a run that `flwr run` starts is told it beside the configuration
    tracked = config.task == "train" and config.get("tracker")
    tracker = partial(build, config.tracker) if tracked else None
    elsewhere = isinstance(grid, PromptGrid)
    made = Session(folder, bool(config.get("resume")), console or Console(), tracker, elsewhere=elsewhere)
    with made.opened() as session:
        return _federate(config, grid, session)


def _federate(config: DictConfig, grid: Grid, session: Session) -> dict[str, object]:
    settings, folder, say = checks.run_settings(config), session.folder, session.say
    newest = saved_state(folder, settings.rounds) if session.resumed else None
    attended = RosterState() if newest is None else newest.roster
    # Held-out clients are in the grid, too, but in no run.
    places = [] if settings.holdout_clients else list(attended.places)
    sites = None
    if is_own(config):
        config, sites = join_sites(config, grid, settings, folder, {"say": say, **_waits(settings)}, places)
        sites.cautions = tuple(dict.fromkeys((*attended.cautions, *sites.cautions)))
        session.texts[AGREEMENT_FILE] = (folder / AGREEMENT_FILE).read_text(encoding="utf-8")
    if settings.task == "partition":
        path = folder / "partition.parquet"
        data.save_partition(plain(config.dataset), plain(config.partition), config.seed, path)
        say(f"partition: {path}")
        return {"task": "partition", "file": str(path)}
    plan = Plan.of(config, settings)
    if session.resumed:
        folders.check_same_run(plain(config), folder)
    if sites is None:
        with _as_config_error():
            clients: Answering = connect(config, grid, settings, say, places)
    else:
        sites.connect(places)
        clients = Flower(sites)
    metrics = tuple(config.get("metrics") or ())
    federation = plan.federation(clients, str(config.training.loss._target_), metrics, attended)
    if settings.task == "inspect":
        from fedclust.runs.inspect import inspect  # draws, and Altair takes half a second to import

        say_data(federation.describe(), say)
        facts = federation.describe(), str(config.choices.partition), settings.seed
        with Recorder(folder, OmegaConf.to_yaml(config, resolve=True)) as recorder:
            return inspect(recorder, *facts, session.console or Console())

    def take(name: str) -> dict[str, object] | None:
        return take_from_sweep(name, plan.configs[name], folder)

    return session.carry_out(plan, federation, plan.build_network(), take=take, sites=sites)


def say_data(described: Descriptions, say: Callable[[str], None]) -> None:
    """Print which sources were left out, and how the classes are distributed."""
    if line := left_out_line(described.left_out):
        say(line)
    if len(described.num_train) == 1:
        say("warning: one client trains with nobody; partition.num_clients= or dataset.natural= makes more")
    if described.counts is not None:
        words = described.target.words
        say(imbalance_line(described.train_counts, described.class_names, described.client_names, words))


_OUR_APP = "fedclust.clients.app"

# docs/SECURITY.md says what each gives away.
_DESCRIBED = {
    "labels": "{0.counts}",
    "sizes": "numbers of rows",
    "nothing": "that they take part, with names and known groups",
}
_WHAT = {  # in the order of a run; of the first three everybody has some
    description.DescriptionQuestion.kind: "",
    training.Instruction.kind: (
        "models, a node's mean where the method allows it, with row counts and losses of each step"
    ),
    evaluation.EvaluateQuestion.kind: "test figures",
    description.PrototypesQuestion.kind: "class prototypes",
    description.SubspacesQuestion.kind: "class subspaces",
    evaluation.LossesQuestion.kind: "losses of models",
    descriptors.DescriptorQuestion.kind: "moments of latent features",
    mixtures.ResponsibilitiesQuestion.kind: "sums by class of models' responsibilities for rows",
    training.UpdateQuestion.kind: "changes by training",
    evaluation.ProofQuestion.kind: "how models compare on held-out rows",
    evaluation.AloneQuestion.kind: "how models of their own compare on held-out rows",
    evaluation.FigureQuestion.kind: "how models compare on test rows",
    coalitions.ScoresQuestion.kind: "models of coalitions, how well each fits, and other sites' models",
    coalitions.SiteFiguresQuestion.kind: "figures of the models that sites chose",
    evaluation.ConfusionQuestion.kind: "counts of {0.label} and prediction",
    evaluation.PersonalQuestion.kind: "figures of held-out and test rows, with personal layers if there are",
    evaluation.PredictionsQuestion.kind: "predictions of test rows, in a deployment only their number",
}


def left_clients(asked: Collection[str], privacy: Privacy, words: Words = CLASSES) -> dict[str, str]:
    """List what left the clients, for ``summary.json``.

    Parameters
    ----------
    asked
        Types of the questions that they were asked, besides to describe their data, train and evaluate.
    privacy
        How clients answered them and trained.
    words
        What is predicted, in words.

    Returns
    -------
    In words, by type of question; a type that is not ours is its own word.
    """
    what = _WHAT | {description.DescriptionQuestion.kind: _DESCRIBED[privacy.disclosed]}
    if isinstance(privacy, ClientDP):
        what[training.Instruction.kind] = (
            "updates clipped on their node, to a server that is trusted with them and adds the noise"
        )
    if isinstance(privacy, PatientDP):
        what[training.Instruction.kind] = (
            "models trained with noise that their node adds for each patient, with numbers of patients"
        )
    always = list(_WHAT)[:3]
    kinds = [kind for kind in what if kind in asked or kind in always]
    return {
        kind: what[kind].format(words) if kind in what else kind
        for kind in [*kinds, *sorted({*asked} - what.keys())]
    }
