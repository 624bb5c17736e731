"""The server: run a federation from a configuration over any grid."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from fedclust import data
from fedclust.federation import (
    ClientGrid,
    Descriptions,
    Federation,
    FederationError,
    RunFailed,
    left_out_line,
)
from fedclust.federation.federation import RosterState
from fedclust.federation.imbalance import imbalance_line
from fedclust.federation.predictions import save_predictions
from fedclust.grids.client_grid import Outages
from fedclust.grids.local_grid import DirectGrid
from fedclust.grids.nodes import read_hosts
from fedclust.grids.superlink import PromptGrid
from fedclust.grids.watchdog import end_hung_actors
from fedclust.results.recorder import Recorder, write_summary, writing
from fedclust.results.report import print_report
from fedclust.results.saved_run import SavedRun
from fedclust.runs.baselines import take_from_sweep
from fedclust.runs.leaving import leaving_line
from fedclust.runs.own_data import join_sites
from fedclust.runs.plan import Plan
from fedclust.runs.runner import Session, saved_state
from fedclust.settings import (
    ConfigError,
    RunSettings,
    build,
    from_run_config,
    plain,
    run_settings,
)
from fedclust.settings.checks import check
from fedclust.settings.composition import is_own
from fedclust.settings.folders import named_by_time, results_folder
from fedclust.settings.resume import check_same_run
from fedclust.training.losses import least_loss

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
    from fedclust.results import plots

    with writing(folder):
        write_summary(folder, summary)
        if session.page is not None:
            session.page.write()
        plots.draw(folder)
    session.tracking.end(plan.chosen)
    session.say(leaving_line(federation.asked, plan.privacy))
    print_report(SavedRun(folder), console)
    if "advice" in summary:
        from fedclust.runs.advice.report import print_advice

        print_advice(summary, folder, console)


def _hosts(settings: RunSettings) -> dict[int, str] | None:
    """Read the file that says which node may host which client."""
    try:
        return None if settings.hosts is None else read_hosts(Path(settings.hosts).expanduser())
    except ValueError as error:
        raise ConfigError(str(error)) from error
