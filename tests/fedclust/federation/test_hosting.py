import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.federation import hosted_clients


def test_nodes_take_turns() -> None:
    # 5 clients on 2 nodes: 0, 2, 4 and 1, 3.
    assert hosted_clients({"partition-id": 0, "num-partitions": 2}, 5) == (0, 2, 4)
    assert hosted_clients({"partition-id": 1, "num-partitions": 2}, 5) == (1, 3)


@given(st.integers(1, 60), st.integers(1, 60))
def test_every_client_is_hosted_once(num_clients: int, num_nodes: int) -> None:
    hosted = [
        client
        for node in range(num_nodes)
        for client in hosted_clients({"partition-id": node, "num-partitions": num_nodes}, num_clients)
    ]
    assert sorted(hosted) == list(range(num_clients))


def test_listed_clients() -> None:
    assert hosted_clients({"clients": "7, 0,4-6"}, 8) == (0, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("node_config", "rule"),
    [
        ({}, "must have 'clients', or 'partition-id' and 'num-partitions', got keys"),
        ({"partition-id": 2, "num-partitions": 2}, "partition-id must be in 0..1, got 2"),
        ({"clients": "1-x"}, "must be ids and ranges"),
        ({"clients": "3-9"}, r"clients must be in 0..7, got \[8, 9\]"),
    ],
)
def test_what_is_refused(node_config: dict, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        hosted_clients(node_config, 8)
