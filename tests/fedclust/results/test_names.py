import pytest

from fedclust.results.names import paper_name


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("clust_psi_pfl", "Clust-PSI-PFL"), ("fedgwc_released", "FedGWC (released)"), ("fl_hc", "FL+HC"),
        ("fedclust_weights", "FedClust"), ("auto", "auto"), ("known_groups", "known_groups"),
    ],
)  # fmt: skip
def test_a_method_is_named_as_its_paper_does(strategy: str, name: str) -> None:
    assert paper_name(strategy) == name
