import pytest

from fedclust.clustering.shared import wording


@pytest.mark.parametrize(
    ("p_value", "text"),
    [
        (1.0, "p = 1"),
        (0.4321, "p = 0.43"),
        (0.0456, "p = 0.046"),
        (0.001, "p = 0.001"),
        (0.00099, "p < 0.001"),
    ],
)
def test_chance_has_two_digits(p_value: float, text: str) -> None:
    assert wording.chance(p_value) == text


def test_one_cluster_is_written_out() -> None:
    assert (wording.number_of("cluster", 1), wording.number_of("cluster", 2)) == ("one cluster", "2 clusters")
