"""When a paper's figures may stand beside a run."""

import pytest

from fedclust.config import compose
from fedclust.experiment import departures

FMNIST = "experiment=clust_psi_pfl_fmnist"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["rounds=3"],  # without an experiment there is nothing to depart from
        [FMNIST],
        [FMNIST, "partition.alpha=0.05", "seed=3", "training.mode=sequential", "dataset.path=data/fashion"],
        [FMNIST, "partition=similarity", "partition.similarity=0"],
        [FMNIST, "partition.file=split.parquet", "training.precision=bf16", "evaluate_every=10"],
        [FMNIST, "strategy=fedavg", "aggregator=fedprox", "compare=[]"],
        ["experiment=fedgwc_cifar100", "strategy.parameters.kernel_width=2"],
        ["experiment=fedgwc_landmarks", "model.pretrained=models/mobilenet"],
    ],
)
def test_the_setting_of_the_experiment(overrides: list[str]) -> None:
    assert departures(compose(overrides)) == {}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["rounds=1", "partition.alpha=0.05"], {"rounds": 40}),
        (["partition.num_clients=10"], {"partition.num_clients": 100}),
        (["partition=similarity", "partition.num_clients=10"], {"partition.num_clients": 100}),
        (["partition=quantity_skew"], {"choices.partition": "dirichlet_fedartml"}),
        (["partition=dirichlet"], {"choices.partition": "dirichlet_fedartml"}),
        (["dataset=mnist"], {"choices.dataset": "fashion_mnist"}),
        (["participation=1", "training.epochs=1"], {"participation": 0.5, "training.epochs": 5}),
        (["model.padding=[1,1,1]"], {"model.padding": [0, 0, 0]}),
    ],
)
def test_another_setting(overrides: list[str], expected: dict[str, object]) -> None:
    assert departures(compose([FMNIST, *overrides])) == expected
