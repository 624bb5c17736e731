"""Start a run over sites that hold their own data; see docs/OWN_DATA.md."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from omegaconf import DictConfig, OmegaConf

from fedclust.data.sites import Own, SiteError
from fedclust.data.sites.agreement import Agreement
from fedclust.data.sites.rows import builder_of, wanted_of
from fedclust.grids.client_grid import Outages
from fedclust.grids.nodes import read_site_hosts
from fedclust.grids.site_grid import Rules, SiteGrid
from fedclust.settings.allowed import known_of
from fedclust.settings.composition import UNKNOWN, ConfigError, fill
from fedclust.settings.run_options import RunSettings

AGREEMENT_FILE = "agreement.json"
"""What the sites agreed on, in the folder of the results: to encode new rows, and to check a resumed run."""


def join_sites(
    config: DictConfig,
    grid: Grid,
    settings: RunSettings,
    folder: Path,
    say: Callable[[str], None],
    places: Sequence[str] = (),
) -> tuple[DictConfig, SiteGrid]:
    """Wait for the sites, have them agree on an encoding, and give the clients their ids.

    Parameters
    ----------
    config
        The composed configuration of a run with ``partition=own``.
    grid
        Any Flower grid whose nodes run our ClientApp.
    settings
        The run's settings.
    folder
        Folder of the results.
    say
        Prints a line.
    places
        Names of the clients of a run to resume, in the order of their ids, with those that joined it.

    Returns
    -------
    The configuration with what the sites agreed on, and the connected grid of clients.

    Raises
    ------
    ConfigError
        If a setting is impossible, or differs from what the sites' data has; or if a run to resume had other
        clients or another encoding.
    FederationError
        If too few clients can take part.
    """
    if settings.task == "partition":
        raise ConfigError("task=partition needs a pooled dataset: with partition=own nobody holds all rows")
    if OmegaConf.select(config, "training.loss.class_weights") == "balanced":
        raise ConfigError(
            "loss.class_weights must be a list of numbers with partition=own, got balanced: "
            "no site knows how many rows of each class the others have"
        )
    known = known_of(config)
    try:
        own = Own.of(known["partition"])
        dataset = known["dataset"]
        names = dataset.get("class_names")
        wanted = wanted_of(
            builder_of(dataset, Path()), dataset.get("num_classes"), None if names is None else tuple(names)
        )
        hosts = None if settings.hosts is None else read_site_hosts(Path(settings.hosts).expanduser())
        rules = Rules(own.min_clients, own.settle, own.expected(), hosts)
    except (SiteError, ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error
    outages = Outages(settings.max_outage, settings.min_replies, say=say)
    sites = SiteGrid(grid, rules, wanted, wait=settings.wait, say=say, outages=outages)
    resumed = bool(config.get("resume"))
    sites.connect(places, _standing(folder) if resumed and places else None)
    agreed = sites.agreement.settings()
    given: Any = OmegaConf.to_container(config.dataset, resolve=False)
    for key, value in agreed.items():
        if given.get(key) not in UNKNOWN and given[key] != value:
            raise ConfigError(
                f"dataset.{key} must be {value}, as the sites' data has it, got {given[key]}; or leave it out"
            )
    about = {
        "clients": list(sites.names),
        "agreement": asdict(sites.agreement),
        "refused": dict(sites.refused),
        "cautions": list(sites.cautions),
    }
    if not sites.stood:  # else what the folder holds is what counts
        _keep(folder, json.loads(json.dumps(about)), resumed=resumed)
    return fill(config, agreed), sites


def _standing(folder: Path) -> tuple[Agreement, tuple[str, ...]] | None:
    """Read the agreement of a run to resume, and the names of the clients that made it."""
    path = folder / AGREEMENT_FILE
    if not path.is_file():
        return None
    saved = json.loads(path.read_text(encoding="utf-8"))
    return Agreement.from_json(json.dumps(saved["agreement"])), tuple(saved["clients"])


def _keep(folder: Path, about: dict[str, Any], *, resumed: bool) -> None:
    path = folder / AGREEMENT_FILE
    if resumed:
        if not path.is_file():
            raise ConfigError(f"resume must be a run of sites with their own data, {folder} is not")
        saved = json.loads(path.read_text(encoding="utf-8"))
        for key, what in (("clients", "clients"), ("agreement", "encoding")):
            if saved.get(key) != about[key]:
                detail = f", {_changes(saved[key], about[key])}" if key == "clients" else ""
                raise ConfigError(f"resume must have the {what} of {folder}, got others{detail}")
    elif not (folder / "config.yaml").exists():  # else it holds another run, which the recorder refuses
        path.write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")


def _changes(before: list[str], now: list[str]) -> str:
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    return "; ".join(
        f"{what} {', '.join(names)}" for what, names in (("without", gone), ("also", new)) if names
    )
