"""What tests keep of compositions is what Hydra composes."""

import pytest
from omegaconf import OmegaConf

from fedclust.settings.composition import compose_with_hydra


@pytest.mark.parametrize(
    ("overrides", "others"),
    [
        (["strategy=fmcl", "seed=3"], ["strategy=fmcl", "rounds=2", "+metrics.two=1"]),
        (["dataset=csv", "partition=own"], ["dataset=csv", "partition=own", "partition.sites={a: b.csv}"]),
        (
            ["experiment=fedgwc_cifar100"],
            ["experiment=fedgwc_cifar100", "training.learning_rate=1", "seed=2"],
        ),
        ([], ["privacy=client_dp", "strategy=private_groups", "~tracker"]),
    ],
)
def test_kept_choices_are_composed_as_anew(
    overrides: list[str], others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [OmegaConf.to_yaml(compose_with_hydra(each)[1]) for each in (overrides, others, overrides)]
    monkeypatch.setattr("tests.compositions.active", False)
    anew = [OmegaConf.to_yaml(compose_with_hydra(each)[1]) for each in (overrides, others, overrides)]
    assert kept == anew
