"""Start a run over sites that hold their own data; see docs/OWN_DATA.md."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from omegaconf import DictConfig, OmegaConf

from fedclust.data.sites import OwnSitesPartition, SiteError
from fedclust.data.sites.agreement import Agreement
from fedclust.data.sites.rows import builder_of, wanted_of
from fedclust.grids.nodes import read_site_hosts
from fedclust.grids.site_grid import Rules, SiteGrid
from fedclust.layers.patient_dp import Planned
from fedclust.messages.description import DescriptionQuestion
from fedclust.messages.evaluation import EvaluateQuestion
from fedclust.messages.training import Instruction
from fedclust.privacy import PatientDP
from fedclust.results.recorder import writing
from fedclust.settings.allowed import known_of
from fedclust.settings.composition import UNKNOWN, ConfigError, build, fill, with_strategy
from fedclust.settings.run_options import RunSettings
from fedclust.support.checks import replace_file
from fedclust.support.untrusted import read_json
from fedclust.training.patients import patient_steps

AGREEMENT_FILE = "agreement.json"
"""The sites' agreement, a file in the results folder: encodes new rows, and checks a resumed run."""


def join_sites(
    config: DictConfig,
    grid: Grid,
    settings: RunSettings,
    folder: Path,
    waits: Mapping[str, Any],
    places: Sequence[str],
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
        The results folder.
    waits
        How long to wait for clients, and where to print: options of :class:`SiteGrid`.
    places
        Names of the clients of a run to resume, in the order of their ids, including those that joined it.

    Returns
    -------
    The configuration completed by the sites' agreement, and the connected grid of clients.

    Raises
    ------
    ConfigError
        If a setting is impossible, or differs from the sites' data; or if a run to resume had other clients
        or another encoding.
    FederationError
        If too few clients can take part.
    """
    if settings.task == "partition":
        raise ConfigError("task=partition needs a pooled dataset: with partition=own nobody holds all rows")
    if OmegaConf.select(config, "training.loss.class_weights") == "balanced":
        raise ConfigError("loss.class_weights must be numbers with partition=own, got balanced")
    known = known_of(config)
    dataset, names = known["dataset"], known["dataset"].get("class_names")
    try:
        own, builder = OwnSitesPartition.of(known["partition"]), builder_of(dataset, Path())
        wanted = wanted_of(builder, dataset.get("num_classes"), None if names is None else tuple(names))
        hosts = None if settings.hosts is None else read_site_hosts(Path(settings.hosts).expanduser())
        rules = Rules(own.min_clients, own.settle, own.expected(), hosts, _asked(config, settings))
        if isinstance(privacy := build(config.privacy) if config.get("privacy") else None, PatientDP):
            steps = patient_steps(config.training, privacy.sampling)
            evaluations = -(-settings.rounds // settings.evaluate_every)
            planned = Planned.of(privacy, settings.rounds, steps, evaluations)
            least = min(planned.noise, planned.evaluation_noise or math.inf)
            spends = [(planned.noise, privacy.sampling, settings.rounds * steps)]
            if planned.evaluation_noise is not None:
                spends.append((planned.evaluation_noise, 1.0, evaluations))
            rules = replace(rules, noise=least, clip=privacy.clip, spends=spends)
    except (SiteError, ValueError, TypeError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from error
    file, resumed = folder / AGREEMENT_FILE, bool(config.get("resume"))
    try:
        saved = read_json(file) if resumed and file.is_file() else None
        before = None if saved is None else _agreed_in(saved)
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"resume must have the agreement of its sites in {file}: {error}") from error
    sites = SiteGrid(grid, rules, wanted, str((saved or {}).get("key") or ""), **waits)
    standing = before if places else None
    sites.connect(places, standing)
    agreed = sites.agreement.settings()
    unresolved: Any = OmegaConf.to_container(config, resolve=False)
    for key, value in agreed.items():
        group, _, name = key.partition(".")
        if (given := unresolved[group].get(name)) not in UNKNOWN and given != value:
            raise ConfigError(f"{key} must be {value}, as the sites have it, got {given}")
    if saved is not None:
        sites.cautions = tuple(dict.fromkeys((*saved.get("cautions", ()), *sites.cautions)))
        if sites.stood:  # then the agreement in the folder holds
            return fill(config, agreed), sites
    # Of a run to resume, other clients may have joined since.
    about = {
        "clients": list(standing[1] if standing else sites.names),
        "agreement": json.loads(sites.agreement.to_json()),
        "key": sites.key,
    }
    about |= {"refused": dict(sites.refused), "cautions": list(sites.cautions)}
    if resumed:
        _check_same(saved, json.loads(json.dumps(about)), folder)
    else:
        with writing(folder):
            replace_file(file, json.dumps(about, indent=1, ensure_ascii=False))
    return fill(config, agreed), sites


def _agreed_in(saved: Mapping[str, Any]) -> tuple[Agreement, tuple[str, ...]]:
    """Read the agreement of a run to resume, and the names of the clients that made it."""
    return Agreement.from_json(json.dumps(saved["agreement"])), tuple(saved["clients"])


def _asked(config: DictConfig, settings: RunSettings) -> dict[str, frozenset[str]]:
    """Return the types of the questions that each strategy of the run needs answers to, by its name."""
    from hydra.utils import get_class

    chosen, others = str(config.choices.strategy), [*settings.compare]
    configs = {each: with_strategy(config, each) for each in others} | {chosen: config}
    always = {DescriptionQuestion.kind, Instruction.kind, EvaluateQuestion.kind}
    classes: dict[str, Any] = {name: get_class(each.strategy._target_) for name, each in configs.items()}
    given: dict[str, Any] = {name: each.strategy.get("parameters") or {} for name, each in configs.items()}
    return {name: always | cls.needs(given[name]) for name, cls in classes.items()}


def _check_same(saved: dict[str, Any] | None, now: dict[str, Any], folder: Path) -> None:
    """Check that a run to resume had the same clients and the same encoding."""
    if saved is None:
        raise ConfigError(f"resume must be a run of sites with their own data, {folder} is not")
    before, names = set(saved["clients"]), set(now["clients"])
    if saved["clients"] != now["clients"]:
        lists = {"without": sorted(before - names), "also": sorted(names - before)}
        detail = "; ".join(f"{what} {', '.join(listed)}" for what, listed in lists.items() if listed)
        got = f"others, {detail}" if detail else "them in another order"
        raise ConfigError(f"resume must have the clients of {folder}, got {got}")
    if saved["agreement"] != now["agreement"]:
        parts = sorted(key for key, each in now["agreement"].items() if saved["agreement"].get(key) != each)
        why = f"another: a site's rows have changed ({', '.join(parts)})"
        raise ConfigError(f"resume must have the encoding of {folder}, got {why}")
