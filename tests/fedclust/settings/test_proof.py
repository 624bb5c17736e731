import pytest

from fedclust.settings.allowed import node_settings
from fedclust.settings.checks import check, run_settings
from fedclust.settings.composition import ConfigError, compose, to_run_config, with_strategy


@pytest.mark.parametrize(
    ("overrides", "proof", "serve", "fraction"),
    [
        ([], True, "best", 0.1),
        (["strategy=fmcl"], True, "best", 0.1),
        (["strategy=fedavg"], True, "best", 0.1),  # trains on the same rows as what it is compared with
        (["strategy=fedgwc_paper"], False, "cluster", 0.0),
        (["strategy=clust_psi_pfl_released"], False, "cluster", 0.0),
        (["strategy=fedgwc_paper", "proof=true"], True, "cluster", 0.1),
        (["experiment=fedgwc_cifar100"], False, "cluster", 0.0),
        (["proof=false"], False, "cluster", 0.0),
        (["strategy=auto"], True, "best", 0.1),
        (["strategy=auto", "experiment=fedgwc_cifar100"], True, "best", 0.1),  # it needs them
        (["strategy=fedgwc_paper", "compare=[fedavg,auto]"], True, "cluster", 0.1),
        (["compare=[]"], True, "cluster", 0.1),
        (["serve=cluster"], True, "cluster", 0.1),
        (["strategy=fedsoft"], True, "cluster", 0.1),  # a model of its own for each client
        (["strategy=ifca"], True, "best", 0.1),
        (["strategy=ifca_paper"], False, "cluster", 0.0),
        (["partition.validation_fraction=0.25"], True, "best", 0.25),
        (["partition.validation_fraction=0.25", "proof=false"], False, "cluster", 0.0),
        (["personal=finetune", "proof=false"], False, "cluster", 0.0),
        (["personal=auto", "proof=false"], False, "cluster", 0.1),  # clients choose on them
        (["personal=auto", "strategy=fedgwc_paper"], False, "cluster", 0.1),
        (["personal=auto", "partition.validation_fraction=0.25", "proof=false"], False, "cluster", 0.25),
    ],
)
def test_what_auto_stands_for(overrides: list[str], proof: bool, serve: str, fraction: float) -> None:
    config = compose(overrides)
    settings = run_settings(config)
    assert (settings.proof, settings.serve) == (proof, serve)
    assert config.partition.validation_fraction == fraction
    assert node_settings(to_run_config(config))["partition"]["validation_fraction"] == fraction


def test_compared_strategies_have_the_same_rows() -> None:
    assert with_strategy(compose([]), "fedgwc_paper").partition.validation_fraction == 0.1
    assert with_strategy(compose(["proof=false"]), "fmcl").partition.validation_fraction == 0.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["proof=yes"], "^proof must be true, false or auto, got 'yes'$"),
        (["serve=all"], "^serve must be one of cluster, best or auto, got 'all'$"),
        (["partition.validation_fraction=1"], r"^partition.validation_fraction must be in \[0, 1\), got 1$"),
        (["partition.validation_fraction=0"], "^partition.validation_fraction must be > 0 for proof=true"),
        (
            ["personal=auto", "proof=false", "partition.validation_fraction=0"],
            "^partition.validation_fraction must be > 0 for personal=auto, which chooses on held-out rows",
        ),
        (["serve=best", "proof=false"], "^serve=best must have proof=true"),
        (
            ["strategy=auto", "proof=false"],
            "^strategy=auto must have proof=true: it tests groups on held-out",
        ),
        (["compare=[fedavg,auto]", "proof=false"], "^strategy=auto must have proof=true"),
        (["serve=best", "compare=[fmcl]"], r"^serve=best must have compare=\[fedavg\]"),
    ],
)
def test_what_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(compose(overrides))
