"""Other formats of a network: ONNX and ``torch.export``, each compared with the network after writing."""

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedclust.data.input_encoders import ArrayEncoder, ImageEncoder, InputEncoder, TextEncoder
from fedclust.serving.layout import ONNX, TORCH

__all__ = ["FORMATS", "write_format"]

FORMATS = ("onnx", "torch")
_TOLERANCE = 1e-4  # of a probability
_ROWS = 5


class _Probabilities(nn.Module):
    """A network with its softmax."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return probabilities for encoded rows."""
        chances: torch.Tensor = self.network(inputs).softmax(-1)
        return chances


def write_format(
    name: str, network: nn.Module, folder: Path, encoder: InputEncoder, example: torch.Tensor | None = None
) -> Path:
    """Write a network in another format, and compare it with the network on some rows.

    It takes encoded rows (images normalised) and returns probabilities. The number of rows is free.

    Parameters
    ----------
    name
        ``"onnx"`` or ``"torch"``.
    network
        The network, in evaluation mode.
    folder
        Where the file goes.
    encoder
        Encoder of the network's inputs, for their shape.
    example
        Encoded rows to compare on, at least 2; random ones unless given.

    Raises
    ------
    ModuleNotFoundError
        If the packages for ONNX are missing.
    ValueError
        If the network cannot be written, or the file predicts something else.
    """
    rows = _example(encoder) if example is None else example
    module = _Probabilities(network).eval()
    with torch.no_grad():
        expected = module(rows).numpy()
    write = _write_onnx if name == "onnx" else _write_torch
    path = folder / (ONNX if name == "onnx" else TORCH)
    # Compared on another number of rows, too: a number that was fixed in writing would not be noticed.
    for found, wanted in zip(write(module, rows, path), (expected, expected[:1]), strict=True):
        difference = float(np.abs(found - wanted).max()) if found.shape == wanted.shape else float("inf")
        if not difference <= _TOLERANCE:
            path.unlink(missing_ok=True)
            raise ValueError(
                f"format {name} must predict what the network does to {_TOLERANCE}, "
                f"it differs by {difference:.2g}"
            )
    return path


def _write_onnx(module: nn.Module, rows: torch.Tensor, path: Path) -> list[np.ndarray]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"formats=['onnx'] needs further packages: pip install 'fedclust[onnx]' ({error})"
        ) from error
    many = torch.export.Dim("rows", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module,
                (rows,),
                str(path),
                input_names=["inputs"],
                output_names=["probabilities"],
                dynamic_shapes=({0: many},),
                external_data=False,
                verbose=False,
                dynamo=True,
            )
        except Exception as error:  # the exporter has no common class of errors
            raise ValueError(f"format onnx cannot hold this network: {_first_line(error)}") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [session.run(None, {"inputs": part.numpy()})[0] for part in (rows, rows[:1])]


def _write_torch(module: nn.Module, rows: torch.Tensor, path: Path) -> list[np.ndarray]:
    many = torch.export.Dim("rows", min=1)
    try:
        program = torch.export.export(module, (rows,), dynamic_shapes=({0: many},))
        torch.export.save(program, path)
        loaded = torch.export.load(path).module()
    except Exception as error:  # the exporter has no common class of errors
        raise ValueError(f"format torch cannot hold this network: {_first_line(error)}") from error
    with torch.no_grad():
        return [loaded(part).numpy() for part in (rows, rows[:1])]


def _example(encoder: InputEncoder) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(0)
    if isinstance(encoder, TextEncoder):
        return torch.ones(_ROWS, encoder.length, dtype=torch.int64)  # the unknown word, which is in every one
    if isinstance(encoder, ImageEncoder | ArrayEncoder):
        if isinstance(encoder, ArrayEncoder) and encoder.dtype == "int64":
            return torch.ones(_ROWS, *encoder.shape, dtype=torch.int64)
        return torch.randn(_ROWS, *encoder.shape, generator=drawn)
    sizes = [len(column.values) for column in encoder.categories]
    if encoder.encoding == "index":
        columns = [torch.randint(size + 1, (_ROWS, 1), generator=drawn).float() for size in sizes]
        return torch.cat([torch.randn(_ROWS, len(encoder.numbers), generator=drawn), *columns], dim=1)
    return torch.randn(_ROWS, len(encoder.numbers) + sum(sizes), generator=drawn)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
