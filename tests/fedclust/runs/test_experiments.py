"""When a paper's figures apply to a run."""

import sys
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from omegaconf import DictConfig

from fedclust.runs.experiments import changed_settings, published_beside
from fedclust.settings import compose, with_strategy

FMNIST = "experiment=clust_psi_pfl_fmnist"
# The recommended preset groups by another rule than the paper's, with other parameters.
OUR_RULE = {
    "strategy.parameters._target_": "fedclust.clustering.clust_psi_pfl.Parameters",
    "strategy.parameters.epsilon": 1e-4,
    "strategy.parameters.smoothing": "clip",
    "strategy.parameters.max_clusters": None,
    "strategy.parameters.one_cluster": False,
    "strategy.parameters.level": "unset",
    "strategy.parameters.max_error_ratio": "unset",
}


@pytest.fixture(scope="module", autouse=True)
def _experiments_composed_once() -> Iterator[None]:
    """Compose what runs are compared with once; it takes longer than to compare, and nobody changes it."""

    @cache
    def composed(overrides: tuple[str, ...], searchpath: tuple[str, ...]) -> DictConfig:
        return compose(overrides, searchpath=searchpath)

    def once(overrides: Sequence[str] = (), *, searchpath: Sequence[str] = ()) -> DictConfig:
        return composed(tuple(overrides), tuple(searchpath))

    with pytest.MonkeyPatch.context() as patch:
        for module in ("fedclust.runs.experiments", "fedclust.settings.composition"):
            patch.setattr(sys.modules[module], "compose", once)
        yield


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
        # Table II of Clust-PSI-PFL, as the experiment's own comment has it to be typed.
        [FMNIST, "strategy=fedavg", "aggregator=fedavgm", "aggregator.server_momentum=0.7"],
        [FMNIST, "strategy=fedavg", "aggregator=fedadagrad", "aggregator.tau=0.1", "aggregator.eta=0.3162"],
        [
            *(FMNIST, "strategy=fedavg", "aggregator=fedyogi", "aggregator.tau=0.01"),
            *("aggregator.eta=0.001", "+aggregator.beta_2=0.99"),
        ],
        # FedGWC's paper does not give its momentum.
        ["experiment=fedgwc_cifar100", "aggregator=fedavgm", "aggregator.server_momentum=0.5"],
        ["experiment=fmcl_imagenette", "strategy.parameters.num_clusters=5"],
        ["experiment=fmcl_imagenette", "encoder.path=."],  # a folder: where the model lies
    ],
)
def test_the_setting_of_the_experiment(overrides: list[str]) -> None:
    assert changed_settings(compose(overrides)) == {}


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
        (["strategy.parameters.epsilon=0.1"], {"strategy.parameters.epsilon": 1e-4}),
        (["strategy=clust_psi_pfl"], OUR_RULE),
        (["strategy=fedavg", "aggregator=fedavgm"], {"aggregator.server_momentum": 0.7}),
        (
            ["strategy=fedavg", "aggregator=fedprox", "aggregator.proximal_mu=1"],
            {"aggregator.proximal_mu": 0.01},
        ),
        (["+aggregator.weighted_by_key=x"], {"aggregator.weighted_by_key": "unset"}),
        (["dataset.resize=crop"], {"dataset.resize": "none"}),
        (["encoder=random"], {"choices.encoder": "pixels"}),
    ],
)
def test_another_setting(overrides: list[str], expected: dict[str, object]) -> None:
    assert changed_settings(compose([FMNIST, *overrides])) == expected


def test_a_column_is_of_one_strategy_setting() -> None:
    # Table 5 has a column per kernel width for plain FedGWC; Table 9's FedGWC over FedAvgM has the best one.
    overrides = ["experiment=fedgwc_cifar100", "strategy.parameters.kernel_width=2"]
    assert changed_settings(compose(overrides)) == {}
    assert changed_settings(compose([*overrides, "aggregator=fedavgm"])) == {
        "strategy.parameters.kernel_width": 0.5
    }


def test_an_encoder_of_the_hub_is_compared() -> None:
    overrides = ["experiment=fmcl_imagenette", "encoder.path=facebook/dinov2-base"]
    theirs = compose(["experiment=fmcl_imagenette"]).encoder.path
    assert changed_settings(compose(overrides)) == {"encoder.path": theirs}


def published_of(*overrides: str) -> tuple[set[str], dict[str, dict[str, object]]]:
    """Names of the methods whose figures are shown, and what is said of the others."""
    config = compose([FMNIST, "partition.alpha=0.05", *overrides])
    names = [str(config.choices.strategy), *(name for name in config.compare)]
    configs = {name: config if at == 0 else with_strategy(config, name) for at, name in enumerate(names)}
    found, changed = published_beside(configs)
    return set() if found is None else set(found["figures"]), changed


def test_published_figures_of_the_papers_setting() -> None:
    figures, changed = published_of()
    assert {"clust_psi_pfl", "fedavg", "cfl"} <= figures
    assert changed == {}


def test_momentum_that_is_not_the_papers_prints_no_published_figure() -> None:
    momentum = {"aggregator.server_momentum": 0.7}
    overrides = ("strategy=fedavg", "compare=[]", "aggregator=fedavgm")
    assert published_of(*overrides) == (set(), {"fedavg": momentum})
    assert published_of(*overrides, "aggregator.server_momentum=0.7") == ({"fedavg"}, {})


def test_figures_are_left_out_if_only_the_compared_preset_differs() -> None:
    figures, changed = published_of("compare=[fedavg,clust_psi_pfl]")
    assert changed == {"clust_psi_pfl": OUR_RULE}
    assert {"clust_psi_pfl_paper", "fedavg"} <= figures
    assert "clust_psi_pfl" not in figures  # so that no figure is found for it


def test_what_every_method_shares_leaves_out_all() -> None:
    assert published_of("rounds=3") == (
        set(),
        {"clust_psi_pfl_paper": {"rounds": 40}, "fedavg": {"rounds": 40}},
    )


@pytest.mark.parametrize(
    ("experiment", "strategy", "figures"),
    [  # FedGWC, Table 8, for 2 to 5 clusters
        ("fedgwc_cifar100", "ifca_paper", [0.467, 0.440, 0.451, 0.475]),
        ("fedgwc_cifar100", "fesem", [0.433, 0.480, 0.509, 0.534]),
        ("fedgwc_femnist", "ifca_paper", [0.761, 0.759, 0.766, 0.767]),
        ("fedgwc_femnist", "fesem", [0.756, 0.755, 0.750, 0.749]),
    ],
)
def test_the_baselines_have_the_figures_of_their_number_of_clusters(experiment, strategy, figures) -> None:
    for number, figure in zip((2, 3, 4, 5), figures, strict=True):
        chosen = [f"experiment={experiment}", f"strategy={strategy}", "compare=[]"]
        config = compose([*chosen, f"strategy.parameters.num_clusters={number}"])
        found, changed = published_beside({strategy: config})
        row = found["figures"][strategy.removesuffix("_paper")]
        assert (row["share_weighted_accuracy"][0], row["num_clusters"]) == (figure, number)
        assert changed == {}


def test_a_column_may_be_for_a_setting_of_the_partition_below() -> None:
    chosen = ["experiment=fedgmcc_sensg_a", "compare=[]", "partition.base.target=0.78"]
    found, changed = published_beside({"fedgmcc_paper": compose(chosen)})
    assert changed == {}
    assert found["figures"]["fedgmcc"]["global_accuracy"] == 0.835
    assert found["figures"]["centralised_groups"]["global_accuracy"] == 0.88  # cSGD0 and cSGD1
    assert changed_settings(compose([*chosen, "partition.base.bins=7"])) == {"partition.base.bins": 20}
