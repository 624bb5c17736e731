import pytest

from fedclust.strategies import ClusteredStrategy


@pytest.mark.parametrize(
    "name",
    [
        "clusters",
        "assignment",
        "aggregators",
        "num_clients",
        "failed_replies",
        "measured",
        "federation",
        "server_round",
        "attendance",
    ],
)
def test_a_run_that_has_not_begun_has_nothing_to_show(name: str) -> None:
    with pytest.raises(
        RuntimeError, match=r"^the strategy must have been started, start\(\) has not been called$"
    ):
        getattr(ClusteredStrategy(), name)


def test_before_the_run_nobody_has_been_asked() -> None:
    assert ClusteredStrategy().description_traffic is None
