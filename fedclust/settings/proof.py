"""Settings of the proof: whether a run has one, on which rows, and which models serve its clients."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedclust.support.checks import DEFAULT_FRACTION, check_fraction

COMMON = "fedavg"
"""The strategy that trains one model for all, which a grouping must beat."""

NEEDS_PROOF = "auto"
"""The strategy that keeps a grouping only if held-out rows show it to be better."""

VOTES = "private_groups"
"""The strategy whose clients vote on held-out rows, also without the proof."""

SERVE = ("cluster", "best")
AUTO = "auto"
# A model per client, of whose few held-out rows no test can tell anything; and groups that one was told.
_OWN_MODELS = ("fedsoft", "known_groups", "local")
_AS_PUBLISHED = ("_paper", "_released")  # how presets that are to the letter end
_CHOOSES = "fedclust.personal.layers.Auto"
_FRACTION = "partition.validation_fraction"
_CLIENT_DP = "fedclust.privacy.ClientDP"


def resolve(config: DictConfig) -> None:
    """Replace ``auto`` in ``proof``, ``serve`` and ``partition.validation_fraction`` by a value.

    A preset to the letter of its paper or code, and an experiment of a paper, train on all rows and serve
    their clusters; everything else proves itself and serves what was shown to be best. A method that has a
    model for each client proves itself, and serves them. With ``personal=auto`` rows are held out in any
    case, for clients to choose on.

    Parameters
    ----------
    config
        A composed configuration with its ``choices``; changed in place. Invalid values are not changed;
        :func:`problem` reports them.
    """
    if "proof" not in config or "serve" not in config:  # a configuration of the user's own
        return
    strategy = str(config.choices.get("strategy", ""))
    to_the_letter = strategy.endswith(_AS_PUBLISHED)
    if config.proof == AUTO:
        needed = NEEDS_PROOF in (config.choices.get("strategy"), *_compared(config))
        own = not to_the_letter and config.choices.get("experiment") is None
        config.proof = needed or (own and not _withheld(config))
    proof = config.proof is True
    held_out = proof or _chooses_layers(config) or bool(config.get("drift_every")) or strategy == VOTES
    if config.serve == AUTO:
        own = to_the_letter or strategy in _OWN_MODELS
        best = proof and not own and COMMON in _compared(config)
        config.serve = "best" if best else "cluster"
    if OmegaConf.is_config(config.get("partition")):
        fraction = config.partition.get("validation_fraction", AUTO)
        if fraction == AUTO or not held_out:
            OmegaConf.update(
                config, _FRACTION, DEFAULT_FRACTION if held_out else 0.0, merge=False, force_add=True
            )


def problem(config: DictConfig) -> str | None:
    """Explain in one line what is wrong with these settings; None if nothing is."""
    proof, serve = config.get("proof", False), config.get("serve", "cluster")
    if not isinstance(proof, bool):
        return f"proof must be true, false or auto, got {proof!r}"
    if serve not in SERVE:
        return f"serve must be one of {', '.join(SERVE)} or auto, got {serve!r}"
    if proof and (setting := _withheld(config)):
        if config.choices.strategy == NEEDS_PROOF:
            return (
                f"{setting} cannot hold proof=true, which strategy={NEEDS_PROOF} is made of: it asks how "
                f"models compare, for each client's labels; strategy={VOTES} decides by a noisy vote instead"
            )
        return f"{setting} cannot hold proof=true: it asks how models compare, for each client's labels"
    fraction = OmegaConf.select(config, _FRACTION) or 0
    try:
        check_fraction(fraction)
    except ValueError as error:
        return f"partition.{error}"
    if proof and not fraction:
        return f"{_FRACTION} must be > 0 for proof=true, got {fraction}"
    if not proof and NEEDS_PROOF in (config.choices.strategy, *_compared(config)):
        return f"strategy={NEEDS_PROOF} must have proof=true: it tests groups on held-out rows"
    if config.choices.strategy == VOTES and not fraction:
        return f"{_FRACTION} must be > 0 for strategy={VOTES}, which votes on held-out rows, got {fraction}"
    if _chooses_layers(config) and not fraction:
        return f"{_FRACTION} must be > 0 for personal=auto, which chooses on held-out rows, got {fraction}"
    if config.get("drift_every") and not fraction:
        return f"{_FRACTION} must be > 0 for drift_every, which compares on held-out rows, got {fraction}"
    if serve == "best" and not proof:
        return "serve=best must have proof=true: without held-out rows nothing can be shown to be better"
    if serve == "best" and COMMON not in _compared(config) and config.choices.strategy != COMMON:
        return f"serve=best must have compare=[{COMMON}]: one model for all is what clusters must beat"
    return None


def _withheld(config: DictConfig) -> str | None:
    """Name the setting by which clients do not say what the proof needs; None where they do."""
    if OmegaConf.select(config, "privacy._target_") == _CLIENT_DP:
        return "privacy=client_dp"
    return "privacy.label_counts=false" if OmegaConf.select(config, "privacy.label_counts") is False else None


def _chooses_layers(config: DictConfig) -> bool:
    """Say whether clients choose between personal layers on held-out rows."""
    return OmegaConf.select(config, "personal._target_") == _CHOOSES


def _compared(config: DictConfig) -> list[Any]:
    compare = config.get("compare")
    return [compare] if isinstance(compare, str) else list(compare or ())
