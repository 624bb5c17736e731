"""Open an exported folder, whoever wrote it: nothing in it is executed or unpickled."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from torch import nn

from fedclust import models
from fedclust.data.input_encoders import InputEncoder, encoder_from
from fedclust.serving.layout import CLUSTER, FORMAT, INDEX, WEIGHTS, cluster_folder
from fedclust.serving.served import Served, Site
from fedclust.settings.allowed import check_folder

__all__ = ["load_export"]


def load_export(
    folder: Path | str, model: Callable[[], nn.Module] | nn.Module | None = None, *, allow: str = ""
) -> Served:
    """Open the models that :meth:`fedclust.Result.export` wrote.

    The folder may come from someone else: networks are built from fedclust's own list of names only (see
    :mod:`fedclust.settings.allowed`), weights are read from safetensors, and nothing is unpickled.

    Parameters
    ----------
    folder
        The exported folder, or the folder of one cluster in it.
    model
        The network, for a run of :func:`fedclust.simulate`, whose folder does not say how it is built; its
        weights do not matter.
    allow
        Further names that the folder may build, separated by commas, such as ``"mine.models.Net"``; a name
        that ends in a dot allows all below it.

    Raises
    ------
    FileNotFoundError
        If the folder holds no export.
    ValueError
        If a file in it is not what an export holds, names what is not allowed, or weights do not fit.
    """
    root = Path(folder)
    if (root / INDEX).is_file():
        index = _json(root / INDEX)
        clusters = _read(root / INDEX, lambda: tuple(_whole(each) for each in index["clusters"]))
        sites = _read(root / INDEX, lambda: tuple(_site(each, clusters) for each in index["clients"]))
        folders = {cluster: cluster_folder(root, cluster) for cluster in clusters}
    elif (root / CLUSTER).is_file():
        number = _read(root / CLUSTER, lambda: _whole(_json(root / CLUSTER)["cluster"]))
        clusters, sites, folders = (number,), (), {number: root}
    else:
        raise FileNotFoundError(
            f"folder must hold an export ({INDEX}, or {CLUSTER} of a cluster), got {root}"
        )
    if not clusters:
        raise ValueError(f"{root / INDEX}: clusters must be at least one, got none")
    parts = {cluster: _part(folders[cluster] / CLUSTER) for cluster in clusters}
    names, encoder, options = parts[clusters[0]][:3]
    for cluster, part in parts.items():
        if part[:3] != (names, encoder, options):
            raise ValueError(f"{folders[cluster] / CLUSTER}: must agree with those of the other clusters")
    for site in sites:
        if site.prior_shift is not None and len(site.prior_shift) != len(names):
            raise ValueError(f"{root / INDEX}: prior_shift must have {len(names)} values")

    @lru_cache(maxsize=8)
    def network(cluster: int) -> nn.Module:
        where = folders[cluster]
        return _network(where, parts[cluster][3], model, allow)

    for cluster in clusters:  # what does not load is refused now, not at some later prediction
        network(cluster)
    return Served(names, encoder, sites, clusters, network, options)


def _network(
    where: Path, config: Any, model: Callable[[], nn.Module] | nn.Module | None, allow: str
) -> nn.Module:
    import copy

    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if isinstance(model, nn.Module):
        made = copy.deepcopy(model)
    elif model is not None:
        made = model()
    elif config is None:
        raise ValueError(f"{where}: the export does not say how its network is built, model must be given")
    else:
        made = _built(where / CLUSTER, config, allow)
    try:
        made.load_state_dict(load_file(where / WEIGHTS))
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{where / WEIGHTS}: must hold the weights of the network: {reason}") from error
    if not all(torch.isfinite(value).all() for value in made.state_dict().values()):
        raise ValueError(f"{where / WEIGHTS}: weights must be finite, some are not")
    return made.eval()


def _built(path: Path, config: Any, allow: str) -> nn.Module:
    if not isinstance(config, Mapping) or not isinstance(config.get("_target_"), str):
        raise ValueError(f"{path}: model must have a _target_, got {str(config)[:80]}")
    check_folder({"model": config}, allow, path, "load_export")
    try:
        return models.build(config, seed=0)
    except (InstantiationException, ValueError, TypeError, RuntimeError, MemoryError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{path}: model cannot be built: {reason}") from error


def _part(path: Path) -> tuple[tuple[str, ...], InputEncoder, dict[str, Any], Any]:
    values = _json(path)

    def read() -> tuple[tuple[str, ...], InputEncoder, dict[str, Any], Any]:
        names = values["class_names"]
        if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
            raise ValueError(f"class_names must be at least two texts, got {str(names)[:80]}")
        options = values.get("csv_options", {})
        if not isinstance(options, dict):
            raise ValueError("csv_options must be options by name")
        return tuple(names), encoder_from(values["encoder"]), options, values.get("model")

    return _read(path, read)


def _site(values: Any, clusters: tuple[int, ...]) -> Site:
    client, cluster = _whole(values["client"]), _whole(values["cluster"])
    name, personal, shift = (values.get(key) for key in ("name", "personal", "prior_shift"))
    if cluster not in clusters:
        raise ValueError(f"client {client} must have a cluster with a model, got {cluster}")
    if not isinstance(name, str | None) or not isinstance(personal, str | None):
        raise ValueError(f"client {client} must have texts for name and personal")
    return Site(client, cluster, name, personal, None if shift is None else tuple(map(float, shift)))


def _json(path: Path) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: must be JSON: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"{path}: must be an export of format {FORMAT}")
    return values


def _read(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: {reason}") from error


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"clusters and clients must be whole numbers >= 0, got {value!r}")
    return value
