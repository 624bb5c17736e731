from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from torch.nn import functional

from fedclust.models import build, build_encoder
from fedclust.models.checkpoint import CheckpointEncoder

MODEL: dict[str, Any] = {
    "_target_": "fedclust.models.dense.MLP",
    "input_shape": [3, 4, 4],
    "num_classes": 2,
    "hidden": [5],
}
TAGGER: dict[str, Any] = {
    "_target_": "fedclust.models.sequences.BiLSTMTagger",
    "input_shape": [6],
    "num_classes": 2,
    "vocabulary_size": 9,
    "embedding": 3,
    "hidden": 4,
}
NORMAL = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    torch.save(build(MODEL, seed=3).state_dict(), path)
    return path


def encoder(path: Path, **changes: Any) -> CheckpointEncoder:
    return CheckpointEncoder(str(path), **{"model": MODEL, "cluster": 0} | NORMAL | changes)


def test_the_embedding_is_what_the_head_sees(saved: Path) -> None:
    image = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    network = build(MODEL, seed=3)
    embedding = encoder(saved).encode(image, mean=(9.0,), std=(9.0,))  # the dataset's own do not count
    torch.testing.assert_close(embedding, network.features((image / 255 - 0.5) / 0.25))  # type: ignore[operator]
    assert embedding.shape[1] == encoder(saved).dimension == 5


def test_images_of_another_size_are_resized_and_grey_ones_repeated(saved: Path) -> None:
    grey = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    values = (grey.expand(-1, 3, -1, -1) / 255 - 0.5) / 0.25
    smaller = functional.interpolate(values, (4, 4), mode="bilinear", antialias=True)
    features = build(MODEL, seed=3).features(smaller)  # type: ignore[operator]
    torch.testing.assert_close(encoder(saved).encode(grey), features)
    # One colour stays that colour: 51 / 255 = 0.2, and (0.2 - 0.5) / 0.25 = -1.2.
    flat = torch.full((1, 1, 9, 5), 51, dtype=torch.uint8)
    expected = build(MODEL, seed=3).features(torch.full((1, 3, 4, 4), -1.2))  # type: ignore[operator]
    torch.testing.assert_close(encoder(saved).encode(flat), expected)


def test_reads_one_cluster_of_a_runs_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "round-000001.safetensors"
    models = [build(MODEL, seed) for seed in (4, 5)]
    save_file(
        {
            f"{k}/{name}": value
            for k, model in enumerate(models)
            for name, value in model.state_dict().items()
        },
        path,
    )
    image = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    for cluster, model in enumerate(models):
        features = model.features(torch.full((1, 3, 4, 4), -2.0))  # type: ignore[operator]
        torch.testing.assert_close(encoder(path, cluster=cluster).encode(image), features)
    with pytest.raises(ValueError, match=r"cluster must be one of \['0', '1'\], got 2"):
        encoder(path, cluster=2)


def test_positions_are_averaged(tmp_path: Path) -> None:
    path = tmp_path / "tagger.pt"
    network = build(TAGGER, seed=1)
    torch.save(network.state_dict(), path)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    embedding = encoder(path, model=TAGGER, mean=[], std=[]).encode(tokens)
    torch.testing.assert_close(embedding, network.features(tokens)[0].mean(0, keepdim=True))  # type: ignore[operator]


def test_the_fingerprint_names_weights_and_normalisation(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt"
    torch.save(build(MODEL, seed=4).state_dict(), other)
    prints = [encoder(saved), encoder(other), encoder(saved, mean=[0.4, 0.5, 0.5])]
    assert len({each.fingerprint for each in prints}) == 3
    assert encoder(saved).fingerprint == prints[0].fingerprint


def test_builds_from_a_node_with_the_model_inside(saved: Path) -> None:
    node = OmegaConf.load(Path(__file__).parents[3] / "conf" / "encoder" / "checkpoint.yaml")
    made = build_encoder(OmegaConf.merge(node, {"path": str(saved), "model": MODEL} | NORMAL))
    assert made.fingerprint == encoder(saved).fingerprint


def test_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="encoder checkpoint: path must be a file, got"):
        encoder(tmp_path / "none.pt")


@pytest.mark.parametrize("name", ["broken.pt", "broken.safetensors"])
def test_refuses_what_is_no_file_of_tensors(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not tensors")
    with pytest.raises(ValueError, match=r"path must be a \.safetensors file or a file of torch\.save"):
        encoder(tmp_path / name)


def test_refuses_weights_of_another_network(saved: Path) -> None:
    with pytest.raises(ValueError, match="path must hold the weights of model, got .*body.1.weight"):
        encoder(saved, model=MODEL | {"hidden": [6]})


def test_refuses_a_network_without_features(saved: Path) -> None:
    linear = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2}
    with pytest.raises(TypeError, match="model must build a Classifier, got Linear"):
        encoder(saved, model=linear)


def test_refuses_inputs_of_another_kind(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"inputs must have shape \(3, 4, 4\) as the model's, got \(7,\)"):
        encoder(saved).encode(torch.zeros(1, 7))
    with pytest.raises(ValueError, match="encoder checkpoint: images must have 1 or 3 channels, got 2"):
        encoder(saved).encode(torch.zeros(1, 2, 4, 4, dtype=torch.uint8))
