"""Check a configuration as far as possible without data and nodes."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import get_type_hints

from omegaconf import DictConfig, OmegaConf

from fedclust.settings import choices, composition
from fedclust.settings.composition import ConfigError, is_own, with_strategy
from fedclust.settings.run_options import AUTO, COMMON, SERVE, VALIDATION, RunOptions, RunSettings
from fedclust.support.checks import check_fraction, none_of
from fedclust.support.layout import CONF

_FRACTION = "partition.validation_fraction"
_TABLES = "fedclust.data.tables.Tables"
_PIXELS = "fedclust.models.encoders.PixelEncoder"
OURS = frozenset(path.stem for path in (CONF / "strategy").glob("*.yaml"))  # which a test checks


def run_settings(config: DictConfig) -> RunSettings:
    """Read the server's settings.

    Raises
    ------
    ConfigError
        If a value has the wrong type or is outside its range.
    """
    try:
        # `in config` resolves what it finds, in errors that do not name it
        given = {str(name) for name in config if not OmegaConf.is_missing(config, name)}
        needed = {field.name for field in fields(RunSettings) if field.default is MISSING}
        needed |= {field.name for field in fields(RunSettings) if field.name in {*config}}
        if missing := sorted(needed - given):
            raise ConfigError(f"{', '.join(missing)} must be given")
        values = {field.name: config[field.name] for field in fields(RunSettings) if field.name in given}
        values |= {"patience": OmegaConf.select(config, "stop.patience")}
        values |= {"compare": composition.compared(config), "hosts": config.hosts and str(config.hosts)}
        hints = get_type_hints(RunSettings)
        if problem := _proof_problem(config) or choices.wrong_value("", values, hints, null=False):
            raise ConfigError(problem)
        for field in fields(RunSettings):
            if hints[field.name] is float and field.name in values:
                values[field.name] = float(values[field.name])
        return RunSettings(**{**values, "compare": tuple(values["compare"])})
    except ValueError as error:
        raise ConfigError(composition.one_line(error)) from error


def _proof_problem(config: DictConfig) -> str | None:
    """Return the error of the proof's settings in one line; None if they are valid."""
    proof, serve = config.get("proof", False), config.get("serve", AUTO)
    if not isinstance(proof, bool):
        return f"proof must be true, false or auto, got {proof!r}"
    if serve not in SERVE:
        return none_of("serve", serve, SERVE)
    strategies = composition.parameters(config)
    if proof and (setting := composition.withheld(config)):
        instead = getattr(strategies[config.choices.strategy], "without_proof", "")
        if composition.private_choice(config) == "patient_dp":
            instead = "strategy=fedavg with compare=[] spends all of epsilon on one model"
        what = f"{setting} does not support proof=true, which asks how models compare on each class"
        return f"{what}; {instead}" if instead else what
    fraction = OmegaConf.select(config, _FRACTION) or 0
    try:
        check_fraction(fraction)
    except ValueError as error:
        return f"partition.{error}"
    proving = [name for name, each in strategies.items() if getattr(each, "proves_splits", False)]
    if proving and not proof:
        does = strategies[proving[0]].held_out_rows
        return f"strategy={proving[0]} must have proof=true: it {does} on held-out rows"
    if not fraction and (decides := next(composition.deciders(config), None)):
        return f"{_FRACTION} must be > 0 for {decides} on held-out rows, got {fraction}"
    if serve == "best" and not proof:
        return "serve=best must have proof=true: nothing else shows what is better"
    if serve == "best" and COMMON not in strategies:
        return f"serve=best must have compare=[{COMMON}]: one model for all is what clusters must beat"
    return None


def check(config: DictConfig, *, light: bool = False) -> None:
    """Check names, types and ranges; builds nothing.

    Parameters
    ----------
    config
        The composed configuration.
    light
        Whether to leave out the options of classes whose import may take seconds.

    Raises
    ------
    ConfigError
        If a setting has the wrong type or is outside its range, or a strategy to compare with does not
        exist.
    """
    settings = run_settings(config)
    for key in ("output_dir", "client_app"):
        if not isinstance(text := config.get(key), str):
            raise ConfigError(f"{key} must be a text, got {text!r}")
        if not text.strip():
            raise ConfigError(f"{key} must be given, it is empty")
    composition.check_given_once(config.strategy)
    if problem := choices.wrong_option(config, light=light) or next(_conflicts(config, settings), None):
        raise ConfigError(problem)
    places = config.get("searchpath") or ()
    existing = composition.options("strategy", places)
    for name in settings.compare:
        if name not in existing:
            raise ConfigError(none_of("compare", name, existing, "must name strategies, of"))
        if name not in OURS:
            composition.check_given_once(composition.strategy_node(name, *places))


def _conflicts(config: DictConfig, settings: RunSettings) -> Iterator[str]:
    """Yield a line for each pair of settings that cannot be combined."""
    if settings.hosts is not None and settings.task == "partition":
        yield f"hosts must be null with task=partition, which asks no node, got {settings.hosts}"
    later, held_out = is_own(config) or settings.min_clients is not None, settings.holdout_clients
    if choice := composition.private_choice(config):
        if later and choice == "client_dp":
            yield "privacy=client_dp needs all clients from the start: no partition=own, no min_clients"
        if held_out:
            yield f"holdout_clients must be 0 with privacy={choice}, got {held_out}"
        if OmegaConf.select(config, "training.loss.class_weights") == "balanced":
            yield f"training.loss.class_weights must be numbers with privacy={choice}, got balanced"
        if settings.save_predictions:
            yield f"save_predictions must be false with privacy={choice}: they are of single rows"
        augmentation = OmegaConf.select(config, "training.augmentation")
        if choice == "patient_dp" and augmentation not in (None, "none"):
            yield f"training.augmentation must be none with privacy=patient_dp, got {augmentation}"
        if settings.validates:
            yield f"objective must be other than {VALIDATION} with privacy={choice}: it has no noise"
    if composition.is_encoded(config):
        if OmegaConf.select(config, "encoder._target_") == _PIXELS:
            yield "encoder must be other than pixels with features=encoder, such as efficientnet_lite0"
        if is_own(config) and OmegaConf.select(config, "dataset._target_") == _TABLES:
            yield "features must be inputs with tables and partition=own, got encoder"
        if (augmentation := OmegaConf.select(config, "training.augmentation")) not in (None, "none"):
            why = "rows are encoded once, before training"
            yield f"training.augmentation must be none with features=encoder: {why}, got {augmentation}"
    number = OmegaConf.select(config, "partition.num_clients")
    if isinstance(number, int) and not config.partition.get("file") and (settings.min_clients or 0) > number:
        yield f"min_clients must be <= partition.num_clients={number}, got {settings.min_clients}"
    if later and held_out:
        yield "holdout_clients must be 0 where clients may join later, which are newcomers already"


def check_built(config: DictConfig) -> None:
    """Build what a server builds before round 1, to find arguments that the constructors refuse.

    For a run that is sent to another machine, where the error would appear minutes later. The dataset and the
    encoder are not built: the files that they read are on that machine.

    Raises
    ------
    ConfigError
        If a constructor refuses its arguments, or a mandatory value is missing.
    """
    own = is_own(config)
    if not own:
        composition.plain(config)  # raises for missing values
    settings = run_settings(config)
    # With partition=own, sizes are not known before the agreement.
    for name in ("aggregator", "selection", "training", "personal", *(() if own else ("model",))):
        if config.get(name):
            composition.build(config[name])
    chosen = str(config.choices.strategy)
    for name in (chosen, *settings.compare):
        node = config.strategy if name == chosen else with_strategy(config, name).strategy
        text = str(OmegaConf.to_container(node, resolve=False))
        if own and re.search(r"\$\{(dataset|features|model)\b", text):
            if node.get("parameters"):  # one of people's own may have none
                composition.build(node.parameters)
        else:
            given = RunOptions(participation=settings.participation, seed=settings.seed)
            composition.build_strategy(node, given)
