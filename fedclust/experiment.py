"""Whether a run has the setting of its experiment, so that the paper's figures may stand beside it."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedclust.config import compose

__all__ = ["departures"]

_COMPARED = ("rounds", "participation", "partition", "model", "training")
# What concerns only speed, or where something lies.
_FREE = {
    "partition.file", "partition.seed", "model.pretrained", "training.mode", "training.chunk",
    "training.compile", "training.precision", "training.evaluation_batch_size",
}  # fmt: skip


def departures(config: DictConfig) -> dict[str, Any]:
    """Tell where a configuration is not the setting of its experiment.

    Keys that ``published.settings`` names may have any value: a table has a column for some of them. Other
    methods and aggregators are no departure, and nothing is one where no experiment is chosen.

    Parameters
    ----------
    config
        The composed configuration.

    Returns
    -------
    Key to the experiment's value, for what differs among rounds, participation, partition, model, training
    and the choices of dataset and partition.

    Raises
    ------
    ConfigError
        If the experiment does not compose.
    """
    experiment = config.choices.get("experiment")
    if experiment is None:
        return {}
    original = compose([f"experiment={experiment}"])
    settings = OmegaConf.select(original, "published.settings") or []
    free = _FREE.union(*(setting.keys() for setting in settings))
    partitions = {original.choices.partition, *(setting.get("choices.partition") for setting in settings)}
    changed = {}
    if config.choices.get("dataset") != original.choices.dataset:
        changed["choices.dataset"] = original.choices.dataset
    if config.choices.get("partition") not in partitions:
        changed["choices.partition"] = original.choices.partition
    elif config.choices.partition != original.choices.partition:
        original = compose([f"experiment={experiment}", f"partition={config.choices.partition}"])
    ours, theirs = _values(config), _values(original)
    for key, value in theirs.items():
        follows = isinstance(value, str) and value.startswith(("${", "???"))  # from others, or up to the user
        of_partition = key.startswith("partition.") and "choices.partition" in changed
        if key not in free and not follows and not of_partition and ours.get(key) != value:
            changed[key] = value
    return changed


def _values(config: DictConfig) -> dict[str, Any]:
    """List the compared values by key, as they are written, lists and nodes within nodes whole."""
    values: dict[str, Any] = {}
    whole = OmegaConf.to_container(config, resolve=False)
    for name in _COMPARED:
        node = whole[name]  # type: ignore[index, call-overload]
        if isinstance(node, dict):
            values |= {f"{name}.{key}": value for key, value in node.items()}
        else:
            values[name] = node
    return values
