"""Write a run's models to a folder that can be used without the run.

Further formats, ONNX and ``torch.export``, are each compared with the network after writing.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedclust.data.input_encoders import ArrayEncoder, InputEncoder, TableEncoder, TextEncoder, to_values
from fedclust.data.targets import CLASSES, Target, to_values as to_values_of
from fedclust.personal.layers import weights_file
from fedclust.serving.card import card
from fedclust.serving.served import CARD, CLUSTER, FORMAT, INDEX, WEIGHTS, Part, Served, Site, cluster_folder
from fedclust.support.checks import few

if TYPE_CHECKING:
    from fedclust.results import SavedRun


_FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
_TOLERANCE = 1e-4  # of a probability; of the largest amount
_ROWS = 5
_SPARSE = "target", "margin", "stays"  # written only of what has them
_MOST = 50  # fine-tuned models that nobody asked for
_NOT_ASKED = "this is its cluster's model; `fedclust export … --sites NAME` adds the client's own"


def write_export(
    served: Served,
    run: "SavedRun",
    target: Path,
    model: Mapping[str, Any] | None,
    formats: Sequence[str] = (),
    example: torch.Tensor | None = None,
    sites: Sequence[str | int] | None = None,
    frozen: Mapping[str, Any] | None = None,
) -> Path:
    """Write each cluster's model and input encoder into a folder of its own, and fine-tuned clients' models.

    Parameters
    ----------
    served
        The models.
    run
        Their run, for the model cards.
    target
        The folder; it must be new or empty.
    model
        The run's ``model:`` node, from which the network is built; None if unknown.
    formats
        Further formats: ``"onnx"``, ``"torch"``.
    example
        Encoded rows on which to compare further formats, at least 2; random ones unless given.
    sites
        Names or ids of the clients whose fine-tuned models are written; unless given, all if they are at most
        50, otherwise none.
    frozen
        The run's ``encoder:`` node, from which its frozen encoder is built; None if unknown or without one.

    Raises
    ------
    FileExistsError
        If the folder is not empty.
    ValueError
        If a format is unknown, or its file's predictions differ from the network's; if formats are given and
        part of the network is with its clients.
    """
    from safetensors.torch import save_file

    if isinstance(formats, str):
        raise ValueError(f"formats must be a list of names, such as [{formats!r}], got {formats!r}")
    if unknown := [name for name in formats if name not in _FILES]:
        raise ValueError(f"formats must be among {', '.join(_FILES)}, got {', '.join(map(str, unknown))}")
    if formats and served.stays:
        rule = f"formats must be [] as {few(served.stays)} stay with each client, and no model here is whole"
        raise ValueError(f"{rule}, got {[*formats]}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"target must be a new or an empty folder, got {target}")
    own = [site for site in served.sites if site.is_tuned]
    if sites is not None or len(own) > _MOST:
        asked = [served.site(each) for each in sites or ()]
        own = [site for site in own if site in asked]
    noted = (site if site in own else site.without_model(site.note or _NOT_ASKED) for site in served.sites)
    served = replace(served, sites=tuple(noted))
    # An existing folder is kept: it may be a link, a mount, or the working directory.
    around = target if target.exists() else target.parent
    around.mkdir(parents=True, exist_ok=True)
    # A failed export leaves nothing that looks like one.
    with tempfile.TemporaryDirectory(dir=around) as place:
        root = Path(place) / "export"
        root.mkdir()
        places = [(cluster_folder(root, cluster), Site(-1, cluster)) for cluster in served.clusters]
        places += [(weights_file(root, site.client).parent, site) for site in own]
        encoder, embedder = to_values(served.encoder), served.embedder
        shaped = served.encoder
        if formats and embedder is not None:  # the files take embeddings, as the network
            shaped = ArrayEncoder((embedder.encoder.dimension,), "float32")
        last = ("", None) if embedder is None else (embedder.fingerprint, frozen)
        predicts = to_values_of(served.target)
        for folder, site in places:
            folder.mkdir()
            network, cluster = served.network(site), site.cluster
            whole = network.state_dict()
            state = {
                k: each.detach().clone().contiguous() for k, each in whole.items() if k not in served.stays
            }
            save_file(state, folder / WEIGHTS)
            names, options, margin = served.class_names, served.csv_options, served.margin(site)
            part = Part(
                FORMAT, cluster, names, encoder, options, model, *last, predicts, margin, served.stays
            )
            kept = {key: value for key, value in asdict(part).items() if key not in _SPARSE or value}
            _json(folder / CLUSTER, kept)
            for name in formats:
                write_format(name, network, folder, shaped, example, served.target, len(names))
            if site not in own:
                (folder / CARD).write_text(card(served, run, cluster), encoding="utf-8")
        index = {"format": FORMAT, "strategy": run.strategy, "clusters": list(served.clusters)}
        clients = [
            {key: value for key, value in asdict(site).items() if value is not None or key == "name"}
            for site in served.sites
        ]
        _json(root / INDEX, {**index, "clients": clients})
        (root / CARD).write_text(card(served, run), encoding="utf-8")
        target.mkdir(exist_ok=True)
        for each in list(root.iterdir()):
            each.rename(target / each.name)
    return target


def _json(path: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(f"{text}\n", encoding="utf-8")


class _Predictions(nn.Module):
    """A network with what makes predictions of its outputs."""

    def __init__(self, network: nn.Module, target: Target, classes: int | None) -> None:
        super().__init__()
        self.network, self.target, self.classes = network, target, classes

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return predictions for encoded rows, which a network may change in place."""
        outputs = self.network(inputs.clone()).float()  # as Served does: halves of amounts are coarse
        return self.target.predictions(outputs, num_bins=self.classes)


def write_format(
    name: str,
    network: nn.Module,
    folder: Path,
    encoder: InputEncoder,
    example: torch.Tensor | None = None,
    target: Target = CLASSES,
    classes: int | None = None,
) -> Path:
    """Write a network in another format, and compare the file with the network on some rows.

    The file takes any number of encoded rows (images normalised) and returns probabilities, amounts in their
    unit, or survival at the ends of the intervals.

    Parameters
    ----------
    name
        ``"onnx"`` or ``"torch"``.
    network
        The network, in evaluation mode.
    folder
        Folder for the file.
    encoder
        Encoder of the network's inputs, for their shape.
    example
        Encoded rows for the comparison, at least 2; random ones unless given.
    target
        What is predicted.
    classes
        Number of classes, of which a network may have more outputs; None for all outputs.

    Raises
    ------
    ModuleNotFoundError
        If the packages for ONNX are missing.
    ValueError
        If the example does not fit the network, that cannot be written, or the file's predictions differ.
    """
    rows = _example(encoder) if example is None else example
    if len(rows) < 2:
        raise ValueError(f"example must have at least 2 rows, got {len(rows)}")
    module = _Predictions(network, target, classes).eval()
    try:
        with torch.no_grad():
            expected = module(rows).numpy()
    except (RuntimeError, IndexError) as error:
        shape = f"{rows.dtype} of shape {tuple(rows.shape)} does not"
        raise ValueError(f"example must fit the network, {shape}: {_first_line(error)}") from error
    write = _write_onnx if name == "onnx" else _write_torch
    path = folder / _FILES[name]
    # Compared on one row, too, to notice a number of rows that was fixed on export.
    for actual, wanted in zip(write(module, rows, path), (expected, expected[:1]), strict=True):
        difference = float("inf")
        if actual.shape == wanted.shape:
            difference = float(np.abs(actual - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
        if not difference <= _TOLERANCE:
            path.unlink(missing_ok=True)
            raise ValueError(
                f"format {name} must predict within {_TOLERANCE} of the network, got {difference:.2g}"
            )
    return path


def _write_onnx(module: "_Predictions", rows: torch.Tensor, path: Path) -> list[np.ndarray]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        advice = f"formats=['onnx'] needs further packages: pip install 'fedclust[onnx]' ({error})"
        raise ModuleNotFoundError(advice) from error
    many = torch.export.Dim("rows", min=1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names operators of packages that are missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module,
                (rows,),
                str(path),
                input_names=["inputs"],
                output_names=[module.target.predicted],
                dynamic_shapes=({0: many},),
                external_data=False,
                verbose=False,
                dynamo=True,
            )
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            return [session.run(None, {"inputs": part.numpy()})[0] for part in (rows, rows[:1])]
        except Exception as error:  # the exporter's errors have no common class
            path.unlink(missing_ok=True)
            raise ValueError(f"format onnx does not support this network: {_first_line(error)}") from error


def _write_torch(module: nn.Module, rows: torch.Tensor, path: Path) -> list[np.ndarray]:
    many = torch.export.Dim("rows", min=1)
    try:
        program = torch.export.export(module, (rows,), dynamic_shapes=({0: many},))
        torch.export.save(program, path)
        loaded = torch.export.load(path).module()
    except Exception as error:  # the exporter's errors have no common class
        raise ValueError(f"format torch does not support this network: {_first_line(error)}") from error
    with torch.no_grad():
        return [loaded(part).numpy() for part in (rows, rows[:1])]


def _example(encoder: InputEncoder) -> torch.Tensor:
    draws = np.random.default_rng(0)
    if isinstance(encoder, TableEncoder):
        codes = [draws.integers(-1, len(column.values), _ROWS) for column in encoder.categories]
        return torch.from_numpy(encoder.encoded(draws.normal(size=(len(encoder.numbers), _ROWS)), codes))
    shape = (encoder.length,) if isinstance(encoder, TextEncoder) else encoder.shape
    if isinstance(encoder, TextEncoder) or (isinstance(encoder, ArrayEncoder) and encoder.dtype == "int64"):
        return torch.ones(_ROWS, *shape, dtype=torch.int64)  # the unknown word, which is in every vocabulary
    return torch.from_numpy(draws.normal(size=(_ROWS, *shape)).astype(np.float32))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
