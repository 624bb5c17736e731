"""The Flower Baselines: run configurations are the papers' experiments; Flower accepts the declarations."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from fedclust.settings.allowed import from_run_config
from fedclust.settings.composition import CONF, compose, plain

BASELINES = CONF.parent / "benchmarks" / "baselines"
PSI = ["experiment=clust_psi_pfl_fmnist", "compare=[]"]
GWC = ["experiment=fedgwc_cifar100", "compare=[]", "partition.alpha=0.5"]
HEAD = ["rounds=5000", "features=encoder", "encoder=efficientnet_lite0", "model=linear"]
HEAD += ["training.augmentation=none"]


def _project(name: str) -> dict[str, Any]:
    return tomllib.loads((BASELINES / name / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("clust_psi_pfl", {}, [*PSI, "partition.alpha=0.05"]),
        ("clust_psi_pfl", {"similarity": 0.03, "seed": 4},
         [*PSI, "partition=similarity", "partition.similarity=0.03", "seed=4"]),
        ("clust_psi_pfl", {"strategy": "fedavg", "data": "/d", "overrides": "stop=patience"},
         [*PSI, "strategy=fedavg", "partition.alpha=0.05", "dataset.path=/d", "stop=patience"]),
        ("fedgwc", {}, [*GWC, *HEAD]),
        ("fedgwc", {"strategy": "fedavg", "seed": 2}, [*GWC, *HEAD, "strategy=fedavg", "seed=2"]),
        ("fedgwc", {"network": "own", "num-server-rounds": 20000, "data": "/d"}, [*GWC, "dataset.path=/d"]),
    ],
)  # fmt: skip
def test_the_run_configuration_is_the_papers(
    monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any], expected: list[str]
) -> None:
    monkeypatch.syspath_prepend(BASELINES / name)
    settings = importlib.import_module(f"{name}.settings")
    config = _project(name)["tool"]["flwr"]["app"]["config"] | given | {"output-dir": "/out"}
    context = settings.translated(Context(1, 2, {"partition-id": 3}, RecordDict(), config))
    both = [plain(from_run_config(context.run_config)), plain(compose(expected))]
    for composed in both:
        del composed["overrides"], composed["output_dir"]  # as written, and the time
    assert both[0] == both[1]
    assert (context.run_config["output-dir"], context.node_config) == ("/out", {"partition-id": 3})


@pytest.mark.parametrize("folder", sorted(BASELINES.iterdir()), ids=lambda folder: folder.name)
def test_flower_accepts_the_declarations(folder: Path) -> None:
    normalize_and_validate_fab_format(_project(folder.name))
    assert (folder / "LICENSE").read_bytes() == (CONF.parent / "LICENSE").read_bytes()
