import pytest

from fedclust.clustering.shared.number import KnownNumber
from fedclust.strategies import IFCA, CLoVE, ClusteredStrategy, FedRC, FedSoft, FeSEM


@pytest.mark.parametrize("method", [IFCA, FeSEM, CLoVE, FedRC, FedSoft])
def test_a_number_of_groups_that_nobody_gave_is_said(method) -> None:
    def notes(**given: int) -> list[str]:
        network = {} if method is FeSEM else {"network": None}
        return method(parameters=method.parameters_type(**given), **network).notes(None, 9, None)

    assert notes() == ["2 groups, a guess: strategy.parameters.num_clusters= says how many there are"]
    assert notes(num_clusters=2) == []
    assert ClusteredStrategy().notes(None, 9, None) == []


def test_the_number() -> None:
    assert [KnownNumber().number, KnownNumber(4).number] == [2, 4]
    with pytest.raises(ValueError, match=r"^num_clusters must be >= 1 or None, got 0$"):
        KnownNumber(0)
