"""The server: run a federation from a configuration over any grid."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from fedclust import data, models, results
from fedclust.data.newcomers import num_held_out
from fedclust.federation import ClientGrid, Federation, FederationError, RunFailed, left_out_line
from fedclust.federation.aggregation import check_aggregator
from fedclust.federation.claims import read_hosts
from fedclust.federation.imbalance import imbalance_line
from fedclust.federation.local_grid import DirectGrid
from fedclust.federation.predictions import save_predictions
from fedclust.federation.roster import Roster
from fedclust.federation.run_state import RunState
from fedclust.own_data import join_sites
from fedclust.personal import Personal, check_validation
from fedclust.privacy import NoPrivacy, Privacy
from fedclust.privacy.checks import check_delta, check_network, check_strategy, setting
from fedclust.privacy.leaving import leaving_line
from fedclust.rescue import rescuing, writing
from fedclust.results import Checkpoints, Progress, Recorder
from fedclust.results.page import LivePage
from fedclust.results.recorder import write_summary
from fedclust.results.trackers import Tracking
from fedclust.runner import Schedule, StrategyRun
from fedclust.settings import (
    ConfigError,
    RunSettings,
    build,
    from_run_config,
    plain,
    run_settings,
    with_strategy,
)
from fedclust.settings.baselines import take_from_sweep
from fedclust.settings.checks import check, check_num_clients
from fedclust.settings.experiments import published_beside
from fedclust.settings.folders import named_by_time, results_folder
from fedclust.settings.own_data import is_own
from fedclust.settings.proof import COMMON
from fedclust.settings.resume import check_same_run
from fedclust.training.losses import least_loss

if TYPE_CHECKING:  # strategies import fedclust, so fedclust may name their types but not import them
    from fedclust.strategies import ClusteredStrategy

__all__ = ["USER_ERRORS", "app", "federate"]

USER_ERRORS = (ConfigError, FederationError, FileExistsError)
"""Errors about a user's settings; their message is enough, without a traceback."""

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
            federate(config, grid, folder)
    except (*USER_ERRORS, RunFailed) as error:
        # Flower prints the traceback, which does not help the user who set an impossible option.
        raise error.with_traceback(None) from None


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
        If the folder holds another run.
    RunFailed
        If too few clients of a round answered, too few have an accuracy at the end, or the folder can no
        longer be written. ``rounds.jsonl`` then has every round with its failures, the failed one last, and
        the run has no ``summary.json``.
    """
    runs: dict[str, StrategyRun] = {}
    console = console or Console()
    tracked = config if config.task in ("train", "advise") else None
    with ExitStack() as opened, rescuing(runs), _tracking(tracked, folder, console) as tracking:
        return _federate(config, grid, folder, console, runs, opened, tracking)


def _federate(
    config: DictConfig,
    grid: Grid,
    folder: Path,
    console: Console,
    runs: dict[str, StrategyRun],
    opened: ExitStack,
    tracking: Tracking,
) -> dict[str, object]:
    settings = run_settings(config)
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    resumed = bool(config.get("resume"))
    newest = _saved_state(folder, settings.rounds) if resumed else None
    attended = {} if newest is None else newest.attendance
    # Held-out clients are the grid's, too, and no run has them.
    places = [] if settings.holdout_clients else json.loads(str(attended.get("places", "[]")))
    clients: ClientGrid
    if is_own(config):
        config, clients = join_sites(config, grid, settings, folder, say, places)
    else:
        clients = ClientGrid(
            grid, wait=settings.wait, say=say, min_clients=settings.min_clients, hosts=_hosts(settings)
        )
    if settings.task == "partition":
        return _save_partition(config, folder / "partition.parquet", console)
    # Every strategy is built before anything is computed, so that a wrong option is reported at once.
    chosen = str(config.choices.strategy)
    names = [chosen, *(name for name in settings.compare if name != chosen)]
    configs = {name: config if name == chosen else with_strategy(config, name) for name in names}
    strategies = {name: _strategy(configs[name], settings) for name in names}
    layers = {name: _personal(config, each) for name, each in strategies.items()}
    privacy = _privacy(config, settings, strategies, layers)
    published = _published(configs, console)
    if resumed:
        check_same_run(plain(config), folder)
    clients.connect(places)
    if settings.min_clients is not None and any(each.pools_rows for each in strategies.values()):
        raise ConfigError("min_clients must be null with centralised training, which needs everyone's rows")
    left_out = _num_held_out(clients.num_clients, settings.holdout_clients)
    check_num_clients({name: each.strategy for name, each in configs.items()}, clients.num_clients - left_out)
    try:
        check_delta(privacy, clients.num_clients - left_out)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    federation = Federation(
        clients,
        settings.rounds,
        settings.timeout,
        own_metrics=tuple(config.get("metrics") or ()),
        least_loss=least_loss(str(config.training.loss._target_)),
        tells=privacy.tells,
        roster=None if left_out else Roster.unpack(attended),
        num_newcomers=left_out,
    )
    if line := left_out_line(federation.describe().left_out):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if (uneven := federation.describe()).counts is not None:
        line = imbalance_line(uneven.train_counts, uneven.class_names, uneven.client_names)
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if settings.task == "inspect":
        from fedclust.inspect import inspect  # draws, and Matplotlib takes half a second to import

        with Recorder(folder, OmegaConf.to_yaml(config, resolve=True)) as recorder:
            described = federation.describe()
            return inspect(recorder, described, str(config.choices.partition), settings.seed, console)
    if privacy.tells != "nothing" and not federation.describe().num_test.any():
        raise ConfigError("clients must have test examples to measure an accuracy on, none has any")
    for name, personal in layers.items():
        try:
            check_validation(personal, federation.describe().num_validation)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error
    network = _model(config, settings.seed)
    try:
        check_network(privacy, network)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    schedule = Schedule(
        settings.rounds,
        settings.seed,
        settings.timeout,
        settings.checkpoint_every,
        settings.min_replies,
        settings.keep_matrices,
    )
    summaries: dict[str, dict[str, object]] = {}
    page = LivePage(folder)
    for name in names:
        here = folder if name == chosen else Recorder.compared_folder(folder, name)
        if name != chosen and (taken := take_from_sweep(name, configs[name], folder)):
            where = folder / str(taken["taken_from"])
            console.print(f"{name}: taken from {where.resolve()}", soft_wrap=True, highlight=False)
            summaries[name] = taken
            continue
        text = OmegaConf.to_yaml(configs[name], resolve=True)
        state = _saved_state(here, settings.rounds) if resumed else None
        with page:
            with writing(here):
                recorder = opened.enter_context(_recorder(here, text, resumed, state, settings.rounds))
            task = names.index(name) + 1, len(names)
            progress = Progress(settings.rounds, name, console, task=task)
            runs[name] = StrategyRun(
                name,
                strategies[name],
                schedule,
                recorder,
                progress,
                [page, tracking.begin(name, here)],
                confusion=name == chosen,
                say=partial(console.print, highlight=False, markup=False, soft_wrap=True),
                privacy=privacy,
                simulated=isinstance(grid, DirectGrid),
            )
            summaries[name] = runs[name].start(
                federation, network, published if name == chosen else None, state
            )
            federation.close()  # what the chosen strategy is compared with has the same clients
            if name != chosen:
                summaries[name] = runs[name].personalise(federation, layers[name])
                tracking.end(name)
    del summaries[chosen]  # it may change until the end
    common = None
    if settings.proof and COMMON in summaries:
        beside = Recorder.compared_folder(folder, COMMON) / "checkpoints"
        common = Checkpoints(beside, settings.rounds).newest()
        if common is None:  # such as a run that another job of a sweep made, and whose files were removed
            console.print(f"no verdict: {COMMON} has no checkpoint in {beside}", markup=False, soft_wrap=True)
        else:
            runs[chosen].prove(federation, common, serve=settings.serve)
    summary = runs[chosen].personalise(federation, layers[chosen])
    if settings.task == "advise" and common is not None:
        from fedclust.advice.report import give_advice

        summary |= give_advice(federation, common, summary, settings.seed, folder)
    summary["compare"] = summaries
    if settings.save_predictions:
        from fedclust.result import Result

        with writing(folder):
            write_summary(folder, summary)
            line = save_predictions(federation, *Result(folder).serving, folder)
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    from fedclust.results import plots

    with writing(folder):
        write_summary(folder, summary)
        page.write()
        plots.draw(folder)
    tracking.end(chosen)
    console.print(leaving_line(federation.asked, privacy), highlight=False, markup=False, soft_wrap=True)
    results.print_report(results.SavedRun(folder), console)
    if "advice" in summary:
        from fedclust.advice.report import print_advice

        print_advice(summary, folder, console)
    return summary


def _hosts(settings: RunSettings) -> dict[int, str] | None:
    """Read the file that says which node may host which client."""
    try:
        return None if settings.hosts is None else read_hosts(Path(settings.hosts).expanduser())
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _num_held_out(num_clients: int, held_out: float) -> int:
    try:
        return num_held_out(num_clients, held_out)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _saved_state(folder: Path, rounds: int) -> RunState | None:
    """Read the newest state of the run in a folder; None if it has no checkpoint yet."""
    try:
        return Checkpoints(folder / "checkpoints", rounds).newest(Recorder.rounds_in(folder))
    except ValueError as error:
        raise ConfigError(f"resume cannot continue {folder}: {error}") from error


def _recorder(folder: Path, config: str, resumed: bool, state: RunState | None, rounds: int) -> Recorder:
    """Open a run's folder: a new one, or that of a run to resume."""
    if not resumed:
        return Recorder(folder, config)
    done = 0 if state is None else state.server_round
    if done > rounds:
        raise ConfigError(f"rounds must be >= {done}, the rounds that {folder} has, got {rounds}")
    return Recorder.resume(folder, done, config)


def _save_partition(config: DictConfig, path: Path, console: Console) -> dict[str, object]:
    data.save_partition(plain(config.dataset), plain(config.partition), config.seed, path)
    console.print(f"partition: {path}", soft_wrap=True, highlight=False)
    return {"task": "partition", "file": str(path)}


def _strategy(config: DictConfig, settings: RunSettings) -> "ClusteredStrategy":
    aggregator = build(config.aggregator)  # to find wrong options now: the clusters' are made in round 1
    try:
        check_aggregator(aggregator)
    except ValueError as error:
        raise ConfigError(f"aggregator.{error}") from error
    chosen = {"selection": build(config.selection)} if config.selection else {}
    return build(
        config.strategy,
        participation=settings.participation,
        seed=settings.seed,
        aggregator=partial(build, config.aggregator),
        evaluate_every=settings.evaluate_every,
        evaluate_clients=settings.evaluate_clients,
        update_norm_cap=settings.update_norm_cap,
        drift_every=settings.drift_every,
        **chosen,
    )


def _tracking(config: DictConfig | None, folder: Path, console: Console) -> Tracking:
    """Build what follows the run; None for a task without rounds."""
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    if config is None or not config.get("tracker"):
        return Tracking(None, folder, say)
    try:
        return Tracking(partial(build, config.tracker), folder, say)
    except TypeError as error:
        raise ConfigError(str(error)) from error


def _personal(config: DictConfig, strategy: "ClusteredStrategy") -> Personal:
    if not config.get("personal"):
        return strategy.own_personal()
    made = build(config.personal)
    if not isinstance(made, Personal):
        raise ConfigError(f"personal must be of fedclust.personal, got {type(made).__name__}")
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
        try:
            check_strategy(privacy, name, strategy, layers[name], beside)
        except (ValueError, ModuleNotFoundError) as error:
            raise ConfigError(str(error)) from error
    return privacy


def _published(configs: Mapping[str, DictConfig], console: Console) -> dict[str, Any] | None:
    try:
        found, left_out = published_beside(configs)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for name, changed in left_out.items():
        setting = ", ".join(f"{key}={'null' if value is None else value}" for key, value in changed.items())
        line = f"{name}: published figures are for {setting}: left out"
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return found


def _model(config: DictConfig, seed: int) -> Any:
    try:
        return models.build(plain(config.model), seed)
    except (InstantiationException, ValueError, TypeError) as error:
        raise ConfigError(str(error.__cause__ or error)) from error
