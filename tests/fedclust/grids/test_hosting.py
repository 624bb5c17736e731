from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.federation import hosted_clients
from fedclust.grids.hosting import longest_first


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


def test_a_shared_node_may_train_anybody() -> None:
    assert hosted_clients({"shared": True, "partition-id": 1, "num-partitions": 2}, 3) == (0, 1, 2)
    assert hosted_clients({"shared": False, "partition-id": 1, "num-partitions": 2}, 3) == (1,)


def test_longest_first() -> None:
    # Graham's worst case for three nodes. 5, 5, 4 go to nodes 7, 8, 9, with 5, 5, 4 steps then; 4 to node 9,
    # now 8; 3 to node 7, now 8; 3 to node 8, now 8; 3 to node 7, now 11. The best is 5+4, 5+4, 3+3+3 = 9, and
    # 11/9 = 4/3 - 1/9.
    steps = dict(enumerate([5, 5, 4, 4, 3, 3, 3]))
    assert longest_first(steps, [7, 8, 9]) == {0: 7, 1: 8, 2: 9, 3: 9, 4: 7, 5: 8, 6: 7}


def test_equal_clients_take_turns() -> None:
    assert longest_first({4: 1, 2: 1, 9: 1}, [3, 5]) == {2: 3, 4: 5, 9: 3}
    assert longest_first({4: 0, 2: 0, 9: 0}, [3, 5]) == {2: 3, 4: 5, 9: 3}  # clients without steps too
    assert longest_first({}, [3, 5]) == {}


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 6), st.randoms())
def test_the_order_of_clients_does_not_matter(lengths: list[int], number: int, random: Random) -> None:
    steps = dict(enumerate(lengths))
    shuffled = list(steps.items())
    random.shuffle(shuffled)
    placed = longest_first(steps, range(number))
    assert longest_first(dict(shuffled), range(number)) == placed
    loads = [sum(steps[client] for client in placed if placed[client] == node) for node in range(number)]
    # Before its last client no node had more than the mean of all.
    assert max(loads) <= sum(lengths) / number + max(lengths, default=0)


def test_nobody_to_divide_among() -> None:
    with pytest.raises(ValueError, match="nodes must have at least one id, got none"):
        longest_first({0: 1}, [])


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
