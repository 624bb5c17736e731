"""Write a run's models to a folder that can be used without the run."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedclust.data.input_encoders import to_values
from fedclust.personal.layers import FINETUNE
from fedclust.serving.card import cluster_card, index_card
from fedclust.serving.formats import FORMATS, write_format
from fedclust.serving.layout import CARD, CLUSTER, FORMAT, INDEX, WEIGHTS, cluster_folder
from fedclust.serving.served import Served, Site

if TYPE_CHECKING:
    from fedclust.results import SavedRun

__all__ = ["write_export"]


def write_export(
    served: Served,
    run: "SavedRun",
    target: Path,
    model: Mapping[str, Any] | None,
    formats: Sequence[str] = (),
    example: torch.Tensor | None = None,
) -> Path:
    """Write each cluster's model, with what turns raw rows into its inputs, into a folder of its own.

    Parameters
    ----------
    served
        The models.
    run
        The run that they come from, for the model cards.
    target
        The folder; it must not exist yet, or be empty.
    model
        How the network is built, the run's ``model:`` node; None if the run does not say.
    formats
        Further formats, of ``"onnx"`` and ``"torch"``.
    example
        Encoded rows to compare further formats on, at least 2; random ones unless given.

    Raises
    ------
    FileExistsError
        If the folder is not empty.
    ValueError
        If a format is unknown, or what it wrote predicts something else than the network.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ValueError(f"formats must be of {', '.join(FORMATS)}, got {', '.join(map(str, unknown))}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"target must not exist or be an empty folder, got {target}")
    existed = target.exists()
    try:
        _write(served, run, target, model, formats, example)
    except BaseException:  # an export that failed leaves nothing that looks like one
        shutil.rmtree(target, ignore_errors=True)
        if existed:
            target.mkdir()
        raise
    return target


def _write(
    served: Served,
    run: "SavedRun",
    target: Path,
    model: Mapping[str, Any] | None,
    formats: Sequence[str],
    example: torch.Tensor | None,
) -> None:
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    for cluster in served.clusters:
        folder = cluster_folder(target, cluster)
        folder.mkdir()
        network = served.network(cluster)
        state = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
        save_file(state, folder / WEIGHTS)
        _json(
            folder / CLUSTER,
            {
                "format": FORMAT,
                "cluster": cluster,
                "class_names": list(served.class_names),
                "csv_options": dict(served.csv_options),
                "model": None if model is None else dict(model),
                "encoder": to_values(served.encoder),
            },
        )
        for name in formats:
            write_format(name, network, folder, served.encoder, example)
        (folder / CARD).write_text(cluster_card(served, run, cluster), encoding="utf-8")
    _json(
        target / INDEX,
        {
            "format": FORMAT,
            "strategy": run.strategy,
            "clusters": list(served.clusters),
            "clients": [_site(site) for site in served.sites],
        },
    )
    (target / CARD).write_text(index_card(served, run), encoding="utf-8")


def _site(site: Site) -> dict[str, Any]:
    values: dict[str, Any] = {"client": site.client, "name": site.name, "cluster": site.cluster}
    if site.personal is not None:
        values["personal"] = site.personal
    if site.personal == FINETUNE:
        values["note"] = "the fine-tuned model stays with its client; this export has the model without it"
    if site.prior_shift is not None:
        values["prior_shift"] = list(site.prior_shift)
    return values


def _json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(
        json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )
