"""Names of the files of an exported folder."""

from pathlib import Path

__all__ = ["CARD", "CLUSTER", "FORMAT", "INDEX", "ONNX", "TORCH", "WEIGHTS", "cluster_folder"]

FORMAT = 1
INDEX = "index.json"
CLUSTER = "cluster.json"
WEIGHTS = "model.safetensors"
ONNX = "model.onnx"
TORCH = "model.pt2"
CARD = "README.md"


def cluster_folder(root: Path, cluster: int) -> Path:
    """Return the folder of a cluster."""
    return root / f"cluster-{cluster}"
