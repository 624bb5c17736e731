import pytest

from fedclust.settings import compose
from fedclust.settings.declared import declared_types
from fedclust.settings.option_types import hints_of, wrong_type

DIRICHLET = "partition=dirichlet"
READS = (declared_types, hints_of)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([DIRICHLET, "partition.alpha=abc"], "partition.alpha must be a number, got 'abc'"),
        ([DIRICHLET, "partition.num_clients=2.5"], "partition.num_clients must be a whole number, got 2.5"),
        ([DIRICHLET, "partition.num_clients=1e1"], "partition.num_clients must be a whole number, got 10.0"),
        ([DIRICHLET, "partition.num_clients=true"], "partition.num_clients must be a whole number, got True"),
        (
            ["partition.groups=[1,x]"],
            "partition.groups must be a list, each entry a whole number, got [1, 'x']",
        ),
        (["partition.groups=3"], "partition.groups must be a list, each entry a whole number, got 3"),
        (["training.epochs=all"], "training.epochs must be a whole number or null, got 'all'"),
        (["training.mode=fast"], "training.mode must be auto or vectorised or sequential, got 'fast'"),
        (
            ["strategy=fedgwc_paper", "strategy.parameters.kernel_width=wide"],
            "strategy.parameters.kernel_width must be a number, got 'wide'",
        ),
        (
            ["aggregator=fedavgm", "aggregator.server_momentum=x"],
            "aggregator.server_momentum must be a number, got 'x'",
        ),
        (["dataset.path=3"], "dataset.path must be a text or null, got 3"),
    ],
)
def test_key_rule_and_value(overrides: list[str], said: str) -> None:
    assert wrong_type(compose(overrides), READS) == said


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [DIRICHLET, "partition.alpha=1"],  # a whole number is a number
        ["training.epochs=null"],
        ["dataset=csv", "dataset.path=x.csv"],  # what is missing has no type yet
        ["strategy=fedgmcc"],  # its network is the model's node, which is checked there
        ["aggregator._target_=none.such"],  # said where it is built
        ["+partition.own=x"],  # the constructor refuses unknown arguments
    ],
)
def test_what_may_be(overrides: list[str]) -> None:
    assert wrong_type(compose(overrides), READS) is None
