"""The server: run a federation from a configuration over any grid."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from fedclust import data, results
from fedclust.aggregation.optimiser_state import StateValue
from fedclust.federation import (
    ClientGrid,
    Descriptions,
    Federation,
    FederationError,
    RunFailed,
    left_out_line,
)
from fedclust.federation.imbalance import imbalance_line
from fedclust.federation.predictions import save_predictions
from fedclust.federation.roster import Roster
from fedclust.federation.run_state import RunState
from fedclust.grids.client_grid import Outages
from fedclust.grids.local_grid import DirectGrid
from fedclust.grids.nodes import read_hosts
from fedclust.grids.superlink import PromptGrid
from fedclust.grids.watchdog import end_hung_actors
from fedclust.results import Checkpoints, Progress, Recorder
from fedclust.results.page import LivePage
from fedclust.results.recorder import rescuing, write_summary, writing
from fedclust.results.trackers import Tracking
from fedclust.runs.baselines import take_from_sweep
from fedclust.runs.leaving import leaving_line
from fedclust.runs.own_data import join_sites
from fedclust.runs.plan import Plan
from fedclust.runs.runner import Schedule, StrategyRun
from fedclust.settings import (
    ConfigError,
    RunSettings,
    build,
    from_run_config,
    plain,
    run_settings,
)
from fedclust.settings.checks import check
from fedclust.settings.folders import locked, named_by_time, results_folder
from fedclust.settings.own_data import is_own
from fedclust.settings.proof import COMMON
from fedclust.settings.resume import check_same_run
from fedclust.training.losses import least_loss

if TYPE_CHECKING:  # strategies import fedclust, so fedclust may name their types but not import them
    pass

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
    runs: dict[str, StrategyRun] = {}
    console = console or Console()
    tracked = config if config.task in ("train", "advise") else None
    with (
        locked(folder, resumed=bool(config.get("resume"))),
        ExitStack() as opened,
        rescuing(runs),
        _tracking(tracked, folder, console) as tracking,
    ):
        return _federate(config, grid, _Output(folder, console, tracking, opened, runs))


@dataclass(frozen=True, eq=False)
class _Output:
    """Where the runs of all strategies write, and what is closed or rescued with them."""

    folder: Path
    console: Console
    tracking: Tracking
    opened: ExitStack
    runs: dict[str, StrategyRun]

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _federate(config: DictConfig, grid: Grid, output: _Output) -> dict[str, object]:
    settings, folder, say = run_settings(config), output.folder, output.say
    resumed = bool(config.get("resume"))
    attended = _attended(folder, settings) if resumed else {}
    # Held-out clients are the grid's, too, and no run has them.
    places = [] if settings.holdout_clients else json.loads(str(attended.get("places", "[]")))
    clients: ClientGrid
    if is_own(config):
        config, clients = join_sites(config, grid, settings, folder, say, places)
    else:
        outages, fewest = Outages(settings.max_outage, settings.min_replies, say=say), settings.min_clients
        clients = ClientGrid(
            grid, wait=settings.wait, say=say, min_clients=fewest, hosts=_hosts(settings), outages=outages
        )
    if settings.task == "partition":
        return _save_partition(config, folder / "partition.parquet", output.console)
    plan = Plan.of(config, settings, say)
    if resumed:
        check_same_run(plain(config), folder)
    clients.connect(places)
    federation = _federation(plan, clients, attended)
    described = federation.describe()
    _print_description(described, say)
    if settings.task == "inspect":
        return _inspect(plan, described, output)
    plan.check_described(described)
    simulated = isinstance(grid, DirectGrid)
    summary, page = _run_strategies(plan, federation, output, simulated, resumed)
    _write_results(plan, federation, summary, page, output)
    return summary


def _federation(plan: Plan, clients: ClientGrid, attended: Mapping[str, StateValue]) -> Federation:
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
        roster=None if left_out else Roster.unpack(attended),
        num_newcomers=left_out,
    )


def _print_description(described: Descriptions, say: Callable[[str], None]) -> None:
    """Print who has too few examples to be a client, and how uneven the classes are."""
    if line := left_out_line(described.left_out):
        say(line)
    if described.counts is not None:
        say(imbalance_line(described.train_counts, described.class_names, described.client_names))


def _inspect(plan: Plan, described: Descriptions, output: _Output) -> dict[str, object]:
    """Describe the clients' data, without a round."""
    from fedclust.runs.inspect import inspect  # draws, and Matplotlib takes half a second to import

    config = plan.config
    with Recorder(output.folder, OmegaConf.to_yaml(config, resolve=True)) as recorder:
        partition = str(config.choices.partition)
        return inspect(recorder, described, partition, plan.settings.seed, output.console)


def _run_strategies(
    plan: Plan, federation: Federation, output: _Output, simulated: bool, resumed: bool
) -> tuple[dict[str, object], LivePage]:
    """Run all strategies, prove the chosen one's groups, and personalise; return its summary and its page."""
    network, page = plan.build_network(), LivePage(output.folder)
    compared: dict[str, dict[str, object]] = {}
    for name in plan.configs:
        if name != plan.chosen and (taken := take_from_sweep(name, plan.configs[name], output.folder)):
            where = output.folder / str(taken["taken_from"])
            output.console.print(f"{name}: taken from {where.resolve()}", soft_wrap=True, highlight=False)
            compared[name] = taken
            continue
        with page:
            run, state = _open_run(name, plan, page, output, simulated, resumed)
            run.start(federation, network, plan.published if name == plan.chosen else None, state)
            federation.close()  # what the chosen strategy is compared with has the same clients
            if name != plan.chosen:
                compared[name] = run.personalise(federation, plan.layers[name])
                output.tracking.end(name)
    run = output.runs[plan.chosen]
    common = _one_for_all(plan, COMMON in compared, output)
    if common is not None:
        run.prove(federation, common, serve=plan.settings.serve)
    summary = run.personalise(federation, plan.layers[plan.chosen])
    if plan.settings.task == "advise" and common is not None:
        from fedclust.runs.advice.report import give_advice

        summary |= give_advice(federation, common, summary, plan.settings.seed, output.folder)
    summary["compare"] = compared
    return summary, page


def _open_run(
    name: str, plan: Plan, page: LivePage, output: _Output, simulated: bool, resumed: bool
) -> tuple[StrategyRun, RunState | None]:
    """Open a strategy's folder, and make its run; return also the state that it goes on from."""
    settings, names = plan.settings, list(plan.configs)
    folder, chosen = output.folder, name == plan.chosen
    here = folder if chosen else Recorder.compared_folder(folder, name)
    text = OmegaConf.to_yaml(plan.configs[name], resolve=True)
    state = _saved_state(here, settings.rounds) if resumed else None
    with writing(here):
        recorder = output.opened.enter_context(_recorder(here, text, resumed, state, settings.rounds))
    task = names.index(name) + 1, len(names)
    schedule = Schedule(
        settings.rounds,
        settings.seed,
        settings.timeout,
        settings.checkpoint_every,
        settings.min_replies,
        settings.keep_matrices,
    )
    run = output.runs[name] = StrategyRun(
        name,
        plan.strategies[name],
        schedule,
        recorder,
        Progress(settings.rounds, name, output.console, task=task),
        [page, output.tracking.begin(name, here)],
        confusion=chosen,
        say=output.say,
        privacy=plan.privacy,
        simulated=simulated,
    )
    return run, state


def _one_for_all(plan: Plan, compared: bool, output: _Output) -> RunState | None:
    """Read the last state of the run of one model for all, which the proof needs."""
    if not (plan.settings.proof and compared):
        return None
    beside = Recorder.compared_folder(output.folder, COMMON) / "checkpoints"
    common = Checkpoints(beside, plan.settings.rounds).newest()
    if common is None:  # such as a run that another job of a sweep made, and whose files were removed
        output.console.print(
            f"no verdict: {COMMON} has no checkpoint in {beside}", markup=False, soft_wrap=True
        )
    return common


def _write_results(
    plan: Plan, federation: Federation, summary: dict[str, object], page: LivePage, output: _Output
) -> None:
    """Write summary, predictions, page and pictures, and print the report."""
    folder, console = output.folder, output.console
    if plan.settings.save_predictions:
        from fedclust.runs.result import Result

        with writing(folder):
            write_summary(folder, summary)
            line = save_predictions(federation, *Result(folder).serving, folder)
        output.say(line)
    from fedclust.results import plots

    with writing(folder):
        write_summary(folder, summary)
        page.write()
        plots.draw(folder)
    output.tracking.end(plan.chosen)
    output.say(leaving_line(federation.asked, plan.privacy))
    results.print_report(results.SavedRun(folder), console)
    if "advice" in summary:
        from fedclust.runs.advice.report import print_advice

        print_advice(summary, folder, console)


def _attended(folder: Path, settings: RunSettings) -> Mapping[str, StateValue]:
    """Read who had joined a run to resume; nothing if it has no checkpoint yet."""
    newest = _saved_state(folder, settings.rounds)
    return {} if newest is None else newest.attendance


def _hosts(settings: RunSettings) -> dict[int, str] | None:
    """Read the file that says which node may host which client."""
    try:
        return None if settings.hosts is None else read_hosts(Path(settings.hosts).expanduser())
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


def _tracking(config: DictConfig | None, folder: Path, console: Console) -> Tracking:
    """Build what follows the run; None for a task without rounds."""
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    if config is None or not config.get("tracker"):
        return Tracking(None, folder, say)
    try:
        return Tracking(partial(build, config.tracker), folder, say)
    except TypeError as error:
        raise ConfigError(str(error)) from error
