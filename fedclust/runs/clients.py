"""Bring a run's clients together: in this process, or through a Flower grid."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from omegaconf import DictConfig

from fedclust.federation.answering import Answering, Flower, Here
from fedclust.personal.layers import MODELS
from fedclust.settings.run_options import RunSettings
from fedclust.support.reasons import RAISED, FederationError, reason_of


def clients_here(node: Any, models: Path | None = None) -> Here:
    """Let a node's clients answer in this process.

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
            return clients_here(node_here(config), models)
        except RAISED as error:
            raise FederationError(reason_of(error)) from error
    from fedclust.grids.client_grid import ClientGrid
    from fedclust.grids.nodes import read_hosts

    hosts = None if settings.hosts is None else read_hosts(Path(settings.hosts).expanduser())
    waits: dict[str, Any] = {"max_outage": settings.max_outage, "min_replies": settings.min_replies}
    clients = ClientGrid(
        grid, min_clients=settings.min_clients, hosts=hosts, wait=settings.wait, say=say, **waits
    )
    clients.connect(places)
    return Flower(clients)
