"""The server: plan a run, run its strategies over any grid, and write the results."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from hydra.errors import InstantiationException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from torch import nn

from fedclust import data
from fedclust.aggregation.flower import check_aggregator
from fedclust.data.dataset import num_held_out
from fedclust.federation import (
    ClientGrid,
    Descriptions,
    Federation,
    FederationError,
    RunFailed,
    left_out_line,
)
from fedclust.federation.federation import RosterState, imbalance_line
from fedclust.federation.questions import save_predictions
from fedclust.federation.run import RunState
from fedclust.grids.client_grid import Outages
from fedclust.grids.local_grid import DirectGrid
from fedclust.grids.nodes import read_hosts
from fedclust.grids.superlink import PromptGrid, end_hung_actors
from fedclust.layers.pooling import Pooling
from fedclust.models import construction
from fedclust.personal.layers import Personal, check_validation
from fedclust.privacy import NoPrivacy, Privacy
from fedclust.results.checkpoints import Checkpoints
from fedclust.results.page import LivePage
from fedclust.results.progress import Progress
from fedclust.results.recorder import Recorder, rescuing, write_summary, writing
from fedclust.results.report import print_report
from fedclust.results.saved_run import SavedRun
from fedclust.results.trackers import Tracker, Tracking
from fedclust.runs.own_data import join_sites
from fedclust.runs.privacy_checks import check_delta, check_network, check_strategy, leaving_line, setting
from fedclust.runs.runner import OnRound, StrategyRun
from fedclust.runs.sweep import take_from_sweep
from fedclust.settings.allowed import from_run_config
from fedclust.settings.checks import check, check_num_clients, run_settings
from fedclust.settings.composition import (
    ConfigError,
    build,
    build_strategy,
    is_own,
    plain,
    to_run_config,
    with_strategy,
)
from fedclust.settings.folders import check_same_run, locked, named_by_time, results_folder
from fedclust.settings.run_options import COMMON, RunOptions, RunSettings
from fedclust.training.losses import least_loss

if TYPE_CHECKING:
    from fedclust.strategies import ClusteredStrategy


logger = logging.getLogger(__name__)


USER_ERRORS = (ConfigError, FederationError, FileExistsError)
"""Errors about a user's settings; their message is enough, without a traceback."""


@contextmanager
def _as_config_error(prefix: str = "") -> Iterator[None]:
    """Raise the error of a check on a setting as one of the configuration."""
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
    return build(config.engine, app=_client_app(config.client_app), run_config=to_run_config(config))


def _client_app(name: str) -> ClientApp:
    try:
        app = get_object(name)
    except ImportError as error:
        why = error.__cause__ or error
        raise ConfigError(f"client_app must be importable, got {name!r}: {why}") from error
    if not isinstance(app, ClientApp):
        raise ConfigError(f"client_app must be a ClientApp, {name!r} is a {type(app).__name__}")
    return app


@dataclass(frozen=True, eq=False)
class Plan:
    """The strategy of a run and those that it is compared with, built.

    Attributes
    ----------
    settings
        The run's settings.
    configs
        The configuration of each strategy, by name, the chosen one first.
    strategies
        The strategies, by name.
    layers
        What each client does with its model at the end, by the strategy's name.
    privacy
        What leaves clients.
    """

    settings: RunSettings
    configs: Mapping[str, Any]
    strategies: Mapping[str, "ClusteredStrategy"]
    layers: Mapping[str, Personal]
    privacy: Privacy

    @classmethod
    def of(cls, config: DictConfig, settings: RunSettings) -> "Plan":
        """Build all that a configuration names.

        Parameters
        ----------
        config
            The composed configuration.
        settings
            Its settings.

        Raises
        ------
        ConfigError
            If an option is wrong, or two cannot be had together.
        """
        chosen = str(config.choices.strategy)
        names = [chosen, *(name for name in settings.compare if name != chosen)]
        configs = {name: config if name == chosen else with_strategy(config, name) for name in names}
        strategies = {name: _strategy(configs[name], settings) for name in names}
        layers = {name: _personal(config, each) for name, each in strategies.items()}
        privacy = _privacy(config, settings, strategies, layers)
        return cls(settings, configs, strategies, layers, privacy)

    @property
    def chosen(self) -> str:
        """Name of the chosen strategy."""
        return next(iter(self.strategies))

    @property
    def config(self) -> DictConfig:
        """The run's configuration, which is that of the chosen strategy."""
        return self.configs[self.chosen]

    def check_num_clients(self, num_clients: int) -> int:
        """Check that the strategies and the privacy suit the number of clients.

        Parameters
        ----------
        num_clients
            Number of clients of the grid.

        Returns
        -------
        How many of them are held out.

        Raises
        ------
        ConfigError
            If they do not suit it.
        """
        pooled = any(Pooling in each.own_layers for each in self.strategies.values())
        if self.settings.min_clients is not None and pooled:
            raise ConfigError(
                "min_clients must be null with centralised training, which needs everyone's rows"
            )
        with _as_config_error():
            left_out = num_held_out(num_clients, self.settings.holdout_clients)
            nodes = {name: each.strategy for name, each in self.configs.items()}
            check_num_clients(nodes, num_clients - left_out)
            check_delta(self.privacy, num_clients - left_out)
        return left_out

    def check_described(self, described: Descriptions) -> None:
        """Check that clients have the rows that the run needs.

        Raises
        ------
        ConfigError
            If nobody has test examples, or somebody too few for what is done with the models at the end.
        """
        if self.privacy.tells != "nothing" and not described.num_test.any():
            raise ConfigError("clients must have test examples to measure an accuracy on, none has any")
        for name, personal in self.layers.items():
            with _as_config_error(f"{name}: "):
                check_validation(personal, described.num_validation)

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


def _strategy(config: DictConfig, settings: RunSettings) -> "ClusteredStrategy":
    aggregator = build(config.aggregator)  # to find wrong options now: the clusters' are made in round 1
    with _as_config_error("aggregator."):
        check_aggregator(aggregator)
    options = RunOptions(
        participation=settings.participation,
        seed=settings.seed,
        aggregator=partial(build, config.aggregator),
        selection=build(config.selection) if config.selection else None,
        evaluate_every=settings.evaluate_every,
        evaluate_clients=settings.evaluate_clients,
        update_norm_cap=settings.update_norm_cap,
        update_pull_cap=settings.update_pull_cap,
        drift_every=settings.drift_every,
    )
    return build_strategy(config.strategy, options)


def _personal(config: DictConfig, strategy: "ClusteredStrategy") -> Personal:
    if not config.get("personal"):
        return strategy.own_personal()
    made = build(config.personal)
    if not isinstance(made, Personal):
        raise ConfigError(f"personal must be of fedclust.personal.layers, got {type(made).__name__}")
    return made


def _privacy(
    config: DictConfig,
    settings: RunSettings,
    strategies: Mapping[str, "ClusteredStrategy"],
    layers: Mapping[str, Personal],
) -> Privacy:
    """Build what leaves clients, and refuse what cannot be had with it."""
    privacy = build(config.privacy) if config.get("privacy") else NoPrivacy()
    if not isinstance(privacy, Privacy):
        raise ConfigError(f"privacy must be of fedclust.privacy, got {type(privacy).__name__}")
    if privacy.tells != "labels" and settings.task != "train":
        raise ConfigError(f"task must be train with {setting(privacy)}, got {settings.task}")
    chosen = str(config.choices.strategy)
    for name, strategy in strategies.items():
        beside = [other for other in strategies if other != chosen] if name == chosen else []
        with _as_config_error():
            check_strategy(privacy, name, strategy, layers[name], beside)
    return privacy


def saved_state(folder: Path, rounds: int) -> RunState | None:
    """Read the newest state of the run in a folder; None if it has no checkpoint yet.

    Raises
    ------
    ConfigError
        If it has checkpoints, and none can be used.
    """
    with _as_config_error(f"resume cannot continue {folder}: "):
        return Checkpoints(folder / "checkpoints", rounds).newest(Recorder.rounds_in(folder))


@dataclass(frozen=True, eq=False)
class Session:
    """The runs of one command: the chosen strategy's, and those of the strategies it is compared with.

    Attributes
    ----------
    folder
        Folder of the results.
    resumed
        Whether the runs go on from their newest checkpoints.
    say
        Prints a line.
    console
        Where progress is shown; None to show nothing.
    tracking
        Follows the runs; None to track nothing.
    page
        The folder's page, kept up to date; None to write none.
    opened
        What is closed at the end.
    runs
        The strategies' runs so far, the chosen one's first.
    """

    folder: Path
    resumed: bool
    say: Callable[[str], None]
    console: Console | None
    tracking: Tracking | None
    page: LivePage | None
    opened: ExitStack
    runs: dict[str, StrategyRun] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: Path,
        *,
        resumed: bool,
        say: Callable[[str], None] = logger.warning,
        console: Console | None = None,
        tracker: Callable[[], Tracker] | None = None,
        page: bool = True,
    ) -> Iterator["Session"]:
        """Lock the folder of the results; if it cannot be written, save the runs elsewhere.

        Raises
        ------
        FileExistsError
            If another process is writing a run into the folder.
        RunFailed
            If the folder can no longer be written; the message says where the runs are.
        """
        runs: dict[str, StrategyRun] = {}
        with locked(folder, resumed=resumed), ExitStack() as opened, rescuing(runs):
            tracking = None if tracker is None else opened.enter_context(Tracking(tracker, folder, say))
            live = LivePage(folder) if page else None
            yield cls(folder, resumed, say, console, tracking, live, opened, runs)

    def run(
        self,
        plan: Plan,
        federation: Federation,
        network: nn.Module,
        *,
        on_round: Sequence[OnRound] = (),
        simulated: bool = False,
        take: Callable[[str], dict[str, object] | None] = lambda _: None,
    ) -> tuple[dict[str, object], RunState | None]:
        """Run all strategies, prove the chosen one's groups, and personalise.

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
        simulated
            Whether all clients are simulated in processes of the user.
        take
            Returns the summary of a strategy to compare with that need not run; None where it must.

        Returns
        -------
        The chosen strategy's summary with those of the others, and the last state of one model for all if the
        groups were tested against it.
        """
        compared: dict[str, dict[str, object]] = {}
        for name in plan.strategies:
            chosen = name == plan.chosen
            if not chosen and (taken := take(name)):
                compared[name] = taken
                continue
            with self.page or nullcontext():
                run = self._open(name, plan, on_round if chosen else (), simulated)
                run.start(federation, network)
                federation.close()  # what the chosen strategy is compared with has the same clients
                if not chosen:
                    compared[name] = run.personalise(federation, plan.layers[name])
                    self.end_tracking(name)
        run, common = self.runs[plan.chosen], None
        if plan.settings.proof and COMMON in compared:
            common = self._one_for_all(plan.settings.rounds)
        if common is not None:
            run.prove(federation, common, serve=plan.settings.serve)
        summary = run.personalise(federation, plan.layers[plan.chosen])
        return {**summary, "compare": compared}, common

    def _open(self, name: str, plan: Plan, on_round: Sequence[OnRound], simulated: bool) -> StrategyRun:
        """Open a strategy's folder, new or to be resumed, and make its run."""
        rounds, names, config = plan.settings.rounds, list(plan.strategies), plan.configs[name]
        folder = self.folder if name == plan.chosen else Recorder.compared_folder(self.folder, name)
        written = OmegaConf.to_yaml(config, resolve=True) if OmegaConf.is_config(config) else config
        state = saved_state(folder, rounds) if self.resumed else None
        done = 0 if state is None else state.server_round
        if done > rounds:
            raise ConfigError(f"rounds must be >= {done}, the rounds that {folder} has, got {rounds}")
        with writing(folder):
            recorder = self.opened.enter_context(
                Recorder.resume(folder, done, written) if self.resumed else Recorder(folder, written)
            )
        progress = None
        if self.console is not None:
            progress = Progress(rounds, name, self.console, task=(names.index(name) + 1, len(names)))
        callbacks = [*on_round, *(() if self.page is None else (self.page,))]
        if self.tracking is not None:
            callbacks.append(self.tracking.begin(name, folder))
        run = self.runs[name] = StrategyRun(
            name,
            plan.strategies[name],
            plan.settings,
            recorder,
            resume=state,
            progress=progress,
            on_round=callbacks,
            confusion=name == plan.chosen,
            say=self.say,
            privacy=plan.privacy,
            simulated=simulated,
        )
        return run

    def end_tracking(self, name: str) -> None:
        """End to track a strategy's run, with the results that its folder has now."""
        if self.tracking is not None:
            self.tracking.end(name)

    def _one_for_all(self, rounds: int) -> RunState | None:
        """Read the last state of the run of one model for all, which the proof needs."""
        beside = Recorder.compared_folder(self.folder, COMMON) / "checkpoints"
        common = Checkpoints(beside, rounds).newest()
        if common is None:  # such as a run that another job of a sweep made, and whose files were removed
            self.say(f"no verdict: {COMMON} has no checkpoint in {beside}")
        return common


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation of the run configuration; ``flwr run`` calls this."""
    try:
        config = from_run_config(context.run_config)
        check(config)
        said = str(context.run_config.get("output-dir") or "")
        new = not said and named_by_time(config)
        with results_folder(Path(said or config.output_dir).absolute(), new=new) as folder:
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
        If a setting is not possible.
    FederationError
        If the federation cannot start.
    FileExistsError
        If the folder holds another run, or another process is writing the run to resume.
    RunFailed
        If too few clients of a round answered, too few have an accuracy at the end, or the folder can no
        longer be written. ``rounds.jsonl`` then has every round with its failures, the failed one last, and
        the run has no ``summary.json``.
    """
    console = console or Console()
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    tracked = config.task in ("train", "advise") and config.get("tracker")
    tracker = partial(build, config.tracker) if tracked else None
    resumed = bool(config.get("resume"))
    with Session.open(folder, resumed=resumed, say=say, console=console, tracker=tracker) as session:
        return _federate(config, grid, session, console)


def _federate(config: DictConfig, grid: Grid, session: Session, console: Console) -> dict[str, object]:
    settings, folder, say = run_settings(config), session.folder, session.say
    newest = saved_state(folder, settings.rounds) if session.resumed else None
    attended = RosterState() if newest is None else newest.roster
    # Held-out clients are the grid's, too, and no run has them.
    places = [] if settings.holdout_clients else list(attended.places)
    clients: ClientGrid
    if is_own(config):
        config, clients = join_sites(config, grid, settings, folder, say, places)
    else:
        outages, fewest = Outages(settings.max_outage, settings.min_replies, say=say), settings.min_clients
        clients = ClientGrid(
            grid, wait=settings.wait, say=say, min_clients=fewest, hosts=_hosts(settings), outages=outages
        )
    if settings.task == "partition":
        path = folder / "partition.parquet"
        data.save_partition(plain(config.dataset), plain(config.partition), config.seed, path)
        say(f"partition: {path}")
        return {"task": "partition", "file": str(path)}
    plan = Plan.of(config, settings)
    if session.resumed:
        check_same_run(plain(config), folder)
    clients.connect(places)
    federation = _federation(plan, clients, attended)
    described = federation.describe()
    _print_description(described, say)
    if settings.task == "inspect":
        from fedclust.runs.inspect import inspect  # draws, and Matplotlib takes half a second to import

        with Recorder(folder, OmegaConf.to_yaml(config, resolve=True)) as recorder:
            return inspect(recorder, described, str(config.choices.partition), settings.seed, console)
    plan.check_described(described)

    def take(name: str) -> dict[str, object] | None:
        if taken := take_from_sweep(name, plan.configs[name], folder):
            say(f"{name}: taken from {(folder / str(taken['taken_from'])).resolve()}")
        return taken

    simulated, network = isinstance(grid, DirectGrid), plan.build_network()
    summary, common = session.run(plan, federation, network, simulated=simulated, take=take)
    if settings.task == "advise" and common is not None:
        from fedclust.runs.advice.report import give_advice

        summary |= give_advice(federation, common, summary, settings.seed, folder)
    _write_results(plan, federation, summary, session, console)
    return summary


def _federation(plan: Plan, clients: ClientGrid, attended: RosterState) -> Federation:
    """Make the federation of the grid's clients; `attended` says who had joined a run to resume."""
    config, settings = plan.config, plan.settings
    left_out = plan.check_num_clients(clients.num_clients)
    return Federation(
        clients,
        settings.rounds,
        settings.timeout,
        own_metrics=tuple(config.get("metrics") or ()),
        least_loss=least_loss(str(config.training.loss._target_)),
        tells=plan.privacy.tells,
        roster=attended.roster() if attended.joined and not left_out else None,
        num_newcomers=left_out,
    )


def _print_description(described: Descriptions, say: Callable[[str], None]) -> None:
    """Print who has too few examples to be a client, and how uneven the classes are."""
    if line := left_out_line(described.left_out):
        say(line)
    if described.counts is not None:
        say(imbalance_line(described.train_counts, described.class_names, described.client_names))


def _write_results(
    plan: Plan, federation: Federation, summary: dict[str, object], session: Session, console: Console
) -> None:
    """Write summary, predictions, page and pictures, and print the report."""
    folder = session.folder
    if plan.settings.save_predictions:
        from fedclust.runs.result import Result

        with writing(folder):
            write_summary(folder, summary)
            session.say(save_predictions(federation, *Result(folder).serving, folder))
    from fedclust.results import charts

    with writing(folder):
        write_summary(folder, summary)
        if session.page is not None:
            session.page.write()
        charts.draw(folder)
    session.end_tracking(plan.chosen)
    session.say(leaving_line(federation.asked, plan.privacy))
    print_report(SavedRun(folder), console)
    if "advice" in summary:
        from fedclust.runs.advice.report import print_advice

        print_advice(summary, folder, console)


def _hosts(settings: RunSettings) -> dict[int, str] | None:
    """Read the file that says which node may host which client."""
    with _as_config_error():
        return None if settings.hosts is None else read_hosts(Path(settings.hosts).expanduser())
