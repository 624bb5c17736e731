"""Read the configuration that comes with a run on a node, and limit what the node builds from it.

A node builds its data, network and trainer from a configuration that the server sends. Hydra calls whatever a
``_target_`` names, so a server could otherwise start any program on every site. A deployed node therefore
builds only what is listed here, and what its own operator also allows:

    flower-supernode … --node-config "partition-id=0 num-partitions=3 allow='mine.models.,mine.top_two'"

A name that ends in a dot allows all names below it. Only the node's own configuration counts; nothing that
comes with a run adds to the list. Names are compared before anything is imported.

A node may also list the encoders that may embed its data; any other is then refused when it is needed:

    flower-supernode … --node-config "data='/data/images' name='north' encoder='/models/vit-tiny'"

Where clients are simulated in the process, or by the Ray workers, of the user who wrote the configuration, it
is that user's own program, and nothing is refused.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedclust.settings import composition
from fedclust.settings.choices import GROUP
from fedclust.settings.composition import COMPOSED, OVERRIDES, is_encoded, is_own, plain
from fedclust.settings.folders import expand
from fedclust.support.layout import CONF
from fedclust.support.reasons import Sendable, about

_HOW = "; its operator can allow it with --node-config \"allow='…'\""

EVERYTHING = "*"
"""A node's ``allow`` where the user's own process is the node."""

# Exact names: a prefix such as ``fedclust.`` would reach ``fedclust.data.cache.shutil.rmtree``.
_TARGET = r"^ *(?:_target_: |- /defaults_of/)([\w.]+)"
_CLASSES = "${dataset.num_classes}"  # in networks of users' own
_REFERENCE = r"\$\{(?:[^{}]|\$\{[^}]*\})*\}"  # one may stand in another
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "dataset": ("dataset",),
    "partition": ("partition",),
    "model": ("model",),
    "training": ("training", "loss"),
    "loss": ("loss",),
    "encoder": ("encoder", "model"),  # an encoder contains a network, but not the other way round
    "features": ("features",),
}
"""For each configuration node, the groups of ``conf/`` whose ``_target_`` it may contain at any depth."""

_LAYERS = frozenset(
    f"torch.nn.{name}"
    for name in (
        "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d", "Dropout",
        "Embedding", "Flatten", "GELU", "GRU", "GroupNorm", "Identity", "LSTM", "LayerNorm", "Linear",
        "MaxPool2d", "RNN", "ReLU", "Sequential", "Sigmoid", "Softmax", "Tanh", "Unflatten",
    )
)  # fmt: skip


@cache
def _in_conf(pattern: str, groups: tuple[str, ...]) -> frozenset[str]:
    """Find all matches of a pattern in this installation's own choices of some groups."""
    files = [path for group in groups for path in (CONF / group).glob("*.yaml")]
    return frozenset(found for path in files for found in re.findall(pattern, path.read_text("utf-8"), re.M))


class NotAllowed(Sendable):
    """A run asks a node to build something that the node does not allow."""


def allowed_here(node_config: Mapping[str, object]) -> str:
    """Read which further names a node's operator allows.

    Parameters
    ----------
    node_config
        The node's own configuration, which no server can change.

    Returns
    -------
    Its ``allow``; :data:`EVERYTHING` in a worker of a simulation on Ray, which its user has started.
    """
    allow = str(node_config.get("allow", ""))
    return allow or (EVERYTHING if _in_ray_worker() else "")


def _in_ray_worker() -> bool:
    # A deployed node has no Ray running in its process, and nothing in the list above starts it.
    ray = sys.modules.get("ray")
    return bool(ray is not None and ray.is_initialized() and os.environ.get("RAY_RAYLET_PID"))


def check_allowed(settings: Mapping[str, Any], allow: str = "") -> None:
    """Check everything that a node is asked to build, before any of it is imported.

    Parameters
    ----------
    settings
        The nodes of the configuration, plain or not yet resolved.
    allow
        Further names that the node's operator allows, and prefixes that end in a dot, separated by commas;
        ``"*"`` allows everything.

    Raises
    ------
    NotAllowed
        If a ``_target_`` is not allowed, or a text in the configuration would be resolved on the node.
    """
    if allow.strip() == EVERYTHING:
        return
    own = tuple(part.strip() for part in allow.split(",") if part.strip())
    below = tuple(name for name in own if name.endswith("."))
    harmless = _in_conf(_REFERENCE, tuple(_GROUPS)) | {_CLASSES}
    for key, node in settings.items():
        groups = _GROUPS.get(key, ())
        listed = _in_conf(_TARGET, groups) | (_LAYERS if "model" in groups else frozenset()) | {*own}
        for path, name, value in _entries(node, key):
            if name == "_target_":
                if not (isinstance(value, str) and (value in listed or value.startswith(below))):
                    raise NotAllowed(f"{path} must be allowed on this node, got {_short(value)}{_HOW}")
            elif isinstance(value, str) and "${" in value and value not in harmless:
                raise NotAllowed(f"{path} must not be resolved on this node, got {_short(value)}")


def check_folder(settings: Mapping[str, Any], allow: str, path: Path, how: str) -> None:
    """Check the names that a folder, which may come from someone else, asks to build.

    Parameters
    ----------
    settings, allow
        As for :func:`check_allowed`.
    path
        The file with these names, for the message.
    how
        The function that takes ``allow``, for the message.

    Raises
    ------
    ValueError
        As for :func:`check_allowed`.
    """
    try:
        check_allowed(settings, allow)
    except NotAllowed as error:
        reason = str(error).partition("; its operator")[0].replace(" on this node", "")
        ways = f"{how}(…, allow='NAME') or fedclust predict … --allow NAME allows a name of your own"
        raise ValueError(f"{path}: {reason}; {ways}") from None


def encoders_here(node_config: Mapping[str, object]) -> tuple[str, ...] | None:
    """Read which encoders may embed a node's data.

    Parameters
    ----------
    node_config
        The node's own configuration.

    Returns
    -------
    The names in its ``encoder``, separated by commas: ``pixels``, ``random``, ``efficientnet_lite0``, or the
    `path` of a transformers or checkpoint encoder. None without one: any encoder that may be built.
    """
    names = node_config.get("encoder")
    return None if names is None else tuple(part.strip() for part in str(names).split(",") if part.strip())


_NAMED = {
    "encoders.PixelEncoder": "pixels",
    "encoders.RandomEncoder": "random",
    "foundation.EfficientNetLite0": "efficientnet_lite0",
}  # classes of fedclust.models


def check_encoder(encoder: Mapping[str, Any] | str, own: Sequence[str] | None) -> None:
    """Check that an encoder may embed a node's data, before it is built.

    Parameters
    ----------
    encoder
        The ``encoder`` node of the configuration; or its name, as in :func:`encoders_here`.
    own
        The names that the node's operator lists; None for any.

    Raises
    ------
    NotAllowed
        If it is not among them.
    """
    if own is None:
        return
    name = encoder
    if isinstance(encoder, Mapping):
        target = str(encoder.get("_target_"))
        ours = target.removeprefix("fedclust.models.")
        name = _NAMED.get(ours) or str(encoder.get("path", target))
    if name not in own:
        # The listed names are not shown: a folder's path is private to this site.
        rule = "must be one that this node's operator lists in its --node-config or site.toml"
        raise NotAllowed(f"encoder {rule}, got {_short(name)}")


def check_overrides(overrides: Sequence[str]) -> None:
    """Check the overrides from which a node composes its configuration.

    Raises
    ------
    NotAllowed
        If they would look something up on the node, or make it read configuration other than its own.
    """
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if "${" in override or key.startswith("hydra"):
            raise NotAllowed(f"overrides must not look anything up on this node, got {_short(override)}")
        # Composing with the first would import what it names; a choice of a group is a file's name.
        if key.startswith(GROUP) or ("." not in key.partition("@")[0] and ".." in value):
            raise NotAllowed(f"overrides must not name modules or other files here, got {_short(override)}")


def _entries(node: Any, path: str, name: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the path, the key and the value of every entry."""
    if name == "_target_" or not isinstance(node, Mapping | list | tuple):
        yield path, name, node
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield f"{path}.{key}", "", str(key)
            yield from _entries(value, f"{path}.{key}", str(key))
    elif isinstance(node, list | tuple):
        for number, value in enumerate(node):
            yield from _entries(value, f"{path}[{number}]")


def _short(value: object) -> str:
    return json.dumps(str(value))[:200]


_HELD_OUT = "holdout_clients"
_NODE_KEYS = ("dataset", "partition", "features", "model", "training", "metrics", "encoder", "seed", "device")
_LATER = {_HELD_OUT: 0, "features": {"encoded": False}}  # keys that older configurations do not have
_READ = (*_NODE_KEYS, _HELD_OUT, "loss", "rounds")  # and the nodes that these refer to


@dataclass(frozen=True)
class NodeSettings:
    """The settings from which a Flower node builds its data, model and trainer; hashable.

    Attributes
    ----------
    text
        The configuration nodes that it reads, as JSON.
    """

    text: str

    def __getitem__(self, key: str) -> Any:
        """Get one of the configuration nodes that Flower nodes use."""
        return json.loads(self.text)[key]


@dataclass(frozen=True)
class SiteSettings(NodeSettings):
    """The settings of a site with its own data before the agreement; see :func:`known_of`."""


def node_settings(
    run_config: Mapping[str, Any],
    allow: str = EVERYTHING,
    agreed: Mapping[str, Any] | None = None,
    encoders: Sequence[str] | None = None,
) -> NodeSettings:
    """Get a node's settings from ``context.run_config``; parsed once per process.

    Parameters
    ----------
    run_config
        The configuration that came with the run.
    allow
        Names that the node may build besides those listed, see this module.
    agreed
        Values that the sites with their own data agreed on, by dotted key.
    encoders
        The encoders that may embed the node's data, see :func:`encoders_here`; None for any.

    Raises
    ------
    NotAllowed
        If the run asks for anything else; nothing of it has been imported or resolved.
    """
    text = json.dumps(dict(agreed or {}), sort_keys=True)
    return _node_settings(_sent(run_config), allow, text, None if encoders is None else tuple(encoders))


def asks_sites(run_config: Mapping[str, Any], allow: str = EVERYTHING) -> bool:
    """Return whether a run is over the data that each site holds; nothing is built, checked or resolved.

    Parameters
    ----------
    run_config, allow
        As for :func:`node_settings`.

    Raises
    ------
    NotAllowed
        If composing the configuration would look something up on the node.
    """
    return _asks_sites(_sent(run_config), allow)


def site_settings(
    run_config: Mapping[str, Any], allow: str = EVERYTHING, encoders: Sequence[str] | None = None
) -> SiteSettings:
    """Get the settings of a site with its own data that are known before the agreement.

    Parameters
    ----------
    run_config, allow, encoders
        As for :func:`node_settings`; of a run with ``partition=own``.

    Raises
    ------
    NotAllowed
        As for :func:`node_settings`.
    """
    return _site_settings(_sent(run_config), allow, None if encoders is None else tuple(encoders))


_Sent = tuple[tuple[str, Any], ...]
_Encoders = tuple[str, ...] | None


def _sent(run_config: Mapping[str, Any]) -> _Sent:
    return tuple((key, run_config[key]) for key in (COMPOSED, OVERRIDES) if key in run_config)


@lru_cache(maxsize=16)
def _node_settings(run_config: _Sent, allow: str, agreed: str, encoders: _Encoders) -> NodeSettings:
    return settings_of(composition.fill(_composed(run_config, allow, encoders), json.loads(agreed)))


@lru_cache(maxsize=16)  # asked with every message
def _asks_sites(run_config: _Sent, allow: str) -> bool:
    unresolved: Any = OmegaConf.to_container(_received(run_config, allow), resolve=False)
    return is_own(unresolved)


def settings_of(config: DictConfig) -> NodeSettings:
    """Get a node's settings from a composed configuration; nothing is checked."""
    chosen = {key: plain(config[key]) for key in _NODE_KEYS if key not in _LATER}
    chosen |= {key: plain(config.get(key, value)) for key, value in _LATER.items()}
    return NodeSettings(json.dumps(chosen, sort_keys=True))


@lru_cache(maxsize=16)
def _site_settings(run_config: _Sent, allow: str, encoders: _Encoders) -> SiteSettings:
    return SiteSettings(json.dumps(known_of(_composed(run_config, allow, encoders)), sort_keys=True))


def chosen(
    run_config: Mapping[str, Any], allow: str = EVERYTHING, encoders: Sequence[str] | None = None
) -> tuple[tuple[str, ...], str]:
    """Return the names of a run's strategies, those compared last, and of its personal layer, as it says.

    Parameters
    ----------
    run_config, allow, encoders
        As for :func:`node_settings`; nothing is resolved.
    """
    return _chosen(_sent(run_config), allow, None if encoders is None else tuple(encoders))


@lru_cache(maxsize=16)
def _chosen(run_config: _Sent, allow: str, encoders: _Encoders) -> tuple[tuple[str, ...], str]:
    config: Any = OmegaConf.to_container(_composed(run_config, allow, encoders), resolve=False)
    choices = config["choices"] if isinstance(config.get("choices"), Mapping) else {}
    compared = config["compare"] if isinstance(config.get("compare"), list) else []
    names = [choices.get("strategy"), *(str(each).partition(" ")[0] for each in compared)]
    return tuple(map(str, names)), str(choices.get("personal", "none"))


def known_of(config: DictConfig) -> dict[str, Any]:
    """Return what a site needs before the agreement as plain Python, without values not yet known.

    These are ``dataset``, ``partition`` and ``seed``, ``encoder`` if it embeds the rows, else None, and
    ``patients``: whether the run promises them differential privacy.

    Raises
    ------
    ConfigError
        If another mandatory value is missing.
    """
    dataset: Any = OmegaConf.to_container(config.dataset, resolve=True, throw_on_missing=False)
    unknown = {key for key in composition.OPEN if dataset.get(key) in (None, composition.MISSING)}
    known = {key: value for key, value in dataset.items() if key not in unknown}
    plain(OmegaConf.create({"dataset": known}))  # raises for missing values
    encoder = plain(config.encoder) if is_encoded(config) else None
    facts = {"partition": plain(config.partition), "seed": config.seed, "encoder": encoder}
    return {"dataset": known, **facts, "patients": composition.private_choice(config) == "patient_dp"}


@lru_cache(maxsize=16)
def _received(run_config: _Sent, allow: str) -> DictConfig:
    sent = dict(run_config)
    with about("the run's configuration"):
        if allow.strip() == EVERYTHING:
            return from_run_config(sent)
        if COMPOSED in sent:
            return OmegaConf.create(json.loads(str(sent[COMPOSED])))
        overrides = composition.split_overrides(str(sent.get(OVERRIDES, "")))
        check_overrides(overrides)
        return composition.compose(overrides)


@lru_cache(maxsize=16)
def _composed(run_config: _Sent, allow: str, encoders: _Encoders) -> DictConfig:
    config = _received(run_config, allow)
    with about("the run's configuration"):
        # Unresolved, as it was sent: resolving a text may already look something up.
        unresolved: Any = OmegaConf.to_container(config, resolve=False)
        check_allowed({key: unresolved.get(key) for key in _READ}, allow)
        if is_encoded(config):  # the encoder is built before anything is asked of it
            check_encoder(unresolved["encoder"], encoders)
    return config


def from_run_config(run_config: Mapping[str, Any]) -> DictConfig:
    """Get the configuration from ``context.run_config``, or compose it from the overrides there.

    Raises
    ------
    ConfigError
        If the overrides do not compose, or a mandatory value is missing.
    """
    if COMPOSED in run_config:
        return OmegaConf.create(json.loads(str(run_config[COMPOSED])))
    overrides = composition.split_overrides(str(run_config.get(OVERRIDES, "")))
    config = composition.compose(expand(overrides))
    if not is_own(config):
        plain(config)  # raises for missing values
    return config
