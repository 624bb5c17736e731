"""Every file of conf/experiment works on tiny data."""

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from fedclust import data
from fedclust.data.dataset import Dataset
from fedclust.models import construction
from fedclust.settings.checks import run_settings
from fedclust.settings.composition import CONF, compose, plain
from fedclust.training.cohort import Job
from fedclust.training.trainer import Trainer

EXPERIMENTS = sorted((CONF / "experiment").glob("*.yaml"))
NAMES = [path.stem for path in EXPERIMENTS]

# What a file leaves to its user by ???, and what makes its images small.
IMAGES = ["dataset.input_shape=[3,32,32]"]
USERS = [*IMAGES, "dataset.num_classes=10", "model.pretrained=null"]
NEEDS = {
    "clust_psi_pfl_serengeti": ["dataset.input_shape=[4]"],
    "fmcl_busi": ["encoder.path=models/usfm", *IMAGES],
    "fmcl_imagenette": IMAGES,
    "fmcl_lunghist700": ["encoder.path=models/chief", *IMAGES],
    "fedgwc_landmarks": USERS,
    "fedgwc_inaturalist": USERS,
}
# What makes a partition small enough for 400 training examples.
SMALL: dict[str, dict[str, Any]] = {
    "Dirichlet": {"alpha": 100},
    "Heterogeneity": {"groups": [2, 1, 1], "test": "holdout"},
    "Domains": {"base.samples_per_client": 50},
    "Natural": {},
    "EmdKMeans": {},
    "FlippedFeatures": {"groups": [2, 2], "base.num_clients": 4},
}


@cache
def config_of(name: str) -> DictConfig:
    return compose([f"experiment={name}", *NEEDS.get(name, [])])


@pytest.mark.parametrize("name", NAMES)
def test_another_method_runs_in_every_setting(name: str) -> None:
    # What an experiment sets for its own method must not reach the others, which have other parameters.
    config = compose([f"experiment={name}", "strategy=pacfl", *NEEDS.get(name, [])])
    assert config.choices.strategy == "pacfl"
    instantiate(config.strategy, participation=0.5, seed=0)


class Tiny:
    """480 random examples of a dataset's shape, one in six of them for testing, of 8 users."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.node = node

    def load(self, cache_dir: Path | None) -> Dataset:
        draws, size = np.random.default_rng(0), 480
        shape, classes = tuple(self.node["input_shape"]), int(self.node["num_classes"])
        images = len(shape) == 3
        inputs: NDArray[Any] = draws.random((size, *shape), dtype=np.float32)
        if "vocabulary_size" in self.node:
            inputs = (inputs * self.node["vocabulary_size"]).astype(np.int64)
        elif images:
            inputs = (inputs * 255).astype(np.uint8)
        labels = np.arange(size) % classes
        if self.node.get("per_position"):
            labels = np.repeat(labels[:, None], shape[0], axis=1)
        pixels = {"mean": (0.5,) * shape[0] if images else (), "std": (0.25,) * shape[0] if images else ()}
        told = {"name": self.node["name"], "class_names": tuple(map(str, range(classes))), **pixels}
        rows = {"num_train": size * 5 // 6, "natural": np.arange(size) % 8, "fingerprint": "tiny"}
        given = torch.from_numpy(inputs), torch.from_numpy(labels)
        return Dataset(inputs=given[0], labels=given[1], num_classes=classes, **told, **rows)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=NAMES)
def test_the_first_comment_is_the_command(path: Path) -> None:
    package, command, *_ = path.read_text().splitlines()
    assert package == "# @package _global_"
    words = command.split()
    assert words[:5] == ["#", "python", "-m", "fedclust", f"experiment={path.stem}"]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_of_its_method_beside_fedavg(name: str) -> None:
    config = config_of(name)
    run_settings(config)
    assert name.startswith(str(config.choices.strategy))
    assert [each for each in config.compare if each != "centralised_groups"] == ["fedavg"]
    built = instantiate(config.strategy, participation=config.participation, seed=0)
    assert built.options.participation == config.participation


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_builds_on_tiny_data(name: str, tmp_path, monkeypatch) -> None:
    # `fedclust.data.load` is the function; the module of that name is only found so.
    monkeypatch.setattr(importlib.import_module("fedclust.data.loading"), "make_builder", Tiny)
    config = OmegaConf.create(plain(config_of(name)))
    config.training.update(epochs=None, steps=1, batch_size=4, mode="sequential")
    kind = config.partition._target_.rpartition(".")[2]
    for key, value in {"num_clients": 4, **SMALL[kind]}.items():
        OmegaConf.update(config.partition, key, value)
    if config.partition.get("samples_per_client") is not None:
        config.partition.samples_per_client = 50

    federation = data.load(plain(config.dataset), plain(config.partition), 0, tmp_path)
    assert federation.num_clients == 4
    assert min(map(len, federation.test)) > 0
    model = construction.build(plain(config.model), seed=0)
    trainer = Trainer(model, federation, instantiate(config.training), seed=0)
    (update,) = trainer.train([Job(0, federation.train[0], dict(model.state_dict()))], server_round=1)
    assert not update.failed
    assert np.isfinite(update.losses[0]).all()
