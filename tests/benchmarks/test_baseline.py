"""The Flower Baseline: its run configuration is the paper's experiment; Flower accepts its declarations."""

import tomllib
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from fedclust.settings.allowed import from_run_config
from fedclust.settings.composition import CONF, compose, plain

ROOT = CONF.parent / "benchmarks" / "baselines" / "clust_psi_pfl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXPERIMENT = ["experiment=clust_psi_pfl_fmnist", "compare=[]"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["partition.alpha=0.05"]),
        ({"similarity": 0.03, "seed": 4}, ["partition=similarity", "partition.similarity=0.03", "seed=4"]),
        ({"strategy": "fedavg", "data": "/d", "overrides": "stop=patience"},
         ["strategy=fedavg", "partition.alpha=0.05", "dataset.path=/d", "stop=patience"]),
    ],
)  # fmt: skip
def test_the_run_configuration_is_the_papers(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: list[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from clust_psi_pfl.settings import translated  # type: ignore[import-not-found]

    config = PROJECT["tool"]["flwr"]["app"]["config"] | given | {"output-dir": "/out"}
    context = translated(Context(1, 2, {"partition-id": 3}, RecordDict(), config))
    both = [plain(from_run_config(context.run_config)), plain(compose([*EXPERIMENT, *expected]))]
    for composed in both:
        del composed["overrides"], composed["output_dir"]  # as written, and the time
    assert both[0] == both[1]
    assert (context.run_config["output-dir"], context.node_config) == ("/out", {"partition-id": 3})


def test_flower_accepts_the_declarations() -> None:
    normalize_and_validate_fab_format(PROJECT)
    assert (ROOT / "LICENSE").read_bytes() == (CONF.parent / "LICENSE").read_bytes()
