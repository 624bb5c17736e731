"""The settings that the server reads of a run's configuration."""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from fedclust.settings import proof
from fedclust.settings.compose import ConfigError
from fedclust.settings.intervals import parse_interval
from fedclust.settings.options import KEEP, MAX_OUTAGE, MIN_REPLIES, check_keep
from fedclust.support.fractions import check_held_out, check_number_or_share

__all__ = ["RunSettings", "run_settings"]


TASKS = ("train", "advise", "inspect", "partition")


@dataclass(frozen=True)
class RunSettings:
    """The server's settings, besides the objects that the configuration builds.

    Raises
    ------
    ConfigError
        If a value is outside its range.
    """

    task: str
    seed: int
    rounds: int
    participation: float
    evaluate_every: int
    checkpoint_every: int | str
    compare: tuple[str, ...]
    wait: float
    timeout: float
    proof: bool = False
    serve: str = "cluster"
    update_norm_cap: float | None = None
    update_pull_cap: float | None = None
    evaluate_clients: int | float | None = None
    save_predictions: bool = False
    min_clients: int | None = None
    hosts: str | None = None
    holdout_clients: float = 0
    drift_every: int = 0
    min_replies: float = MIN_REPLIES
    max_outage: float = MAX_OUTAGE
    keep_matrices: bool | str = KEEP

    def __post_init__(self) -> None:
        rules = (
            ("task", self.task in TASKS, f"one of {', '.join(TASKS)}"),
            ("seed", self.seed >= 0, ">= 0"),
            ("rounds", self.rounds >= 1, ">= 1"),
            ("participation", 0 < self.participation <= 1, "in (0, 1]"),
            ("evaluate_every", self.evaluate_every >= 1, ">= 1"),
            ("drift_every", self.drift_every >= 0, ">= 0"),
            ("wait", self.wait > 0, "> 0"),
            ("timeout", self.timeout > 0, "> 0"),
            ("max_outage", self.max_outage >= 0, ">= 0"),
            ("min_replies", 0 <= self.min_replies <= 1, "in [0, 1]"),
            ("update_norm_cap", self.update_norm_cap is None or self.update_norm_cap > 1, "> 1, or null"),
            ("update_pull_cap", self.update_pull_cap is None or self.update_pull_cap > 1, "> 1, or null"),
            ("min_clients", self.min_clients is None or self.min_clients >= 1, ">= 1, or null"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise ConfigError(f"{name} must be {rule}, got {getattr(self, name)}")
        try:
            check_number_or_share("evaluate_clients", self.evaluate_clients)
            check_held_out(self.holdout_clients)
            parse_interval(self.checkpoint_every)
            check_keep(self.keep_matrices)
        except ValueError as error:
            raise ConfigError(str(error)) from error


def run_settings(config: DictConfig) -> RunSettings:
    """Read the server's settings.

    Raises
    ------
    ConfigError
        If a value has the wrong type or is outside its range.
    """
    kinds: dict[str, Any] = {
        "task": str,
        "seed": int,
        "rounds": int,
        "participation": float,
        "evaluate_every": int,
        "wait": float,
        "timeout": float,
        "min_replies": float,
        "max_outage": float,
    }
    later = {"min_replies": MIN_REPLIES, "max_outage": MAX_OUTAGE}  # saved runs of before do not have them
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = config.get(name, later[name]) if name in later else config[name]
        number = isinstance(value, int) or (kind is float and isinstance(value, float))
        if isinstance(value, bool) or (kind is not str and not number):
            raise ConfigError(f"{name} must be of type {kind.__name__}, got {value!r}")
        values[name] = kind(value)
    compare = config.compare
    names = [compare] if isinstance(compare, str) else list(compare or ())
    values["checkpoint_every"] = config.checkpoint_every
    values["keep_matrices"] = config.get("keep_matrices", KEEP)
    if wrong := proof.problem(config):
        raise ConfigError(wrong)
    for name in ("update_norm_cap", "update_pull_cap"):
        cap = values[name] = config.get(name)
        if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int | float)):
            raise ConfigError(f"{name} must be a number or null, got {cap!r}")
    save = values["save_predictions"] = config.get("save_predictions", False)
    if not isinstance(save, bool):
        raise ConfigError(f"save_predictions must be true or false, got {save!r}")
    values["evaluate_clients"] = config.get("evaluate_clients")
    fewest = values["min_clients"] = config.get("min_clients")
    if fewest is not None and (isinstance(fewest, bool) or not isinstance(fewest, int)):
        raise ConfigError(f"min_clients must be a whole number or null, got {fewest!r}")
    values |= {"proof": config.get("proof", False), "serve": config.get("serve", "cluster")}
    hosts = config.get("hosts")
    values["hosts"] = None if hosts is None else str(hosts)
    values["drift_every"] = config.get("drift_every", 0)
    values["holdout_clients"] = config.get("holdout_clients", 0)
    return RunSettings(**values, compare=tuple(map(str, names)))
