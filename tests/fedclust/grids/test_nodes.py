from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedclust.grids.nodes import (
    Host,
    hosted_clients,
    key_fingerprint,
    longest_first,
    ranges,
    read_hosts,
    read_site_hosts,
    settle_claims,
)


@pytest.mark.parametrize(
    ("node_config", "num_clients", "hosted"),
    [
        ({"partition-id": 0, "num-partitions": 2}, 5, (0, 2, 4)),
        ({"partition-id": 1, "num-partitions": 2}, 5, (1, 3)),
        ({"clients": "7, 0,4-6"}, 8, (0, 4, 5, 6, 7)),
        ({"shared": True, "partition-id": 1, "num-partitions": 2}, 3, (0, 1, 2)),
        ({"shared": False, "partition-id": 1, "num-partitions": 2}, 3, (1,)),
    ],
)
def test_hosted_clients(node_config: dict, num_clients: int, hosted: tuple[int, ...]) -> None:
    assert hosted_clients(node_config, num_clients) == hosted


def test_longest_first() -> None:
    # Graham's worst case for three nodes. 5, 5, 4 go to nodes 7, 8, 9, with 5, 5, 4 steps then; 4 to node 9,
    # now 8; 3 to node 7, now 8; 3 to node 8, now 8; 3 to node 7, now 11. The best is 5+4, 5+4, 3+3+3 = 9, and
    # 11/9 = 4/3 - 1/9.
    steps = dict(enumerate([5, 5, 4, 4, 3, 3, 3]))
    assert longest_first(steps, [7, 8, 9]) == {0: 7, 1: 8, 2: 9, 3: 9, 4: 7, 5: 8, 6: 7}

    assert longest_first({4: 1, 2: 1, 9: 1}, [3, 5]) == {2: 3, 4: 5, 9: 3}  # equal clients take turns
    assert longest_first({4: 0, 2: 0, 9: 0}, [3, 5]) == {2: 3, 4: 5, 9: 3}  # clients without steps too
    assert longest_first({}, [3, 5]) == {}
    with pytest.raises(ValueError, match="nodes must have at least one id, got none"):
        longest_first({0: 1}, [])


@pytest.mark.parametrize(
    ("node_config", "rule"),
    [
        ({}, "must have 'clients', or 'partition-id' and 'num-partitions', got keys"),
        ({"partition-id": 2, "num-partitions": 2}, "partition-id must be in 0..1, got 2"),
        ({"clients": "1-x"}, "must be ids and ranges"),
        ({"clients": "9-0"}, "must be ids and ranges"),  # it would host nobody, and the run wait for it
        ({"clients": "3-9"}, r"clients must be in 0..7, got \[8, 9\]"),
    ],
)
def test_what_is_refused(node_config: dict, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        hosted_clients(node_config, 8)


NORTH = Host(11, (0, 1), key="SHA256:n", registered="north")
SOUTH = Host(12, (2,), key="SHA256:s", registered="south")


def test_the_second_to_claim_a_site_s_clients_gets_none_of_them_and_the_first_has_them_again() -> None:
    mallory = Host(13, (0, 1, 2), key="SHA256:m", registered="mallory")
    claims, node_of, refused = settle_claims([NORTH, SOUTH], {})
    assert (node_of, refused) == ({0: 11, 1: 11, 2: 12}, [])
    # North is killed; its clients stay its own.
    claims, node_of, refused = settle_claims([SOUTH, mallory], claims)
    assert node_of == {2: 12}
    assert refused == [
        "node 'mallory' claims clients 0-1, which belong to node 'north': refused",
        "node 'mallory' claims clients 2, which belong to node 'south': refused",
    ]
    # Back with its key, and so its id, although mallory was there before it.
    _, node_of, _ = settle_claims([SOUTH, mallory, NORTH], claims)
    assert node_of == {0: 11, 1: 11, 2: 12}


def test_a_node_with_another_id_and_the_same_key_is_the_same() -> None:
    claims, _, _ = settle_claims([NORTH], {})
    again = Host(99, (0, 1), key="SHA256:n")
    _, node_of, refused = settle_claims([again], claims)
    assert (node_of, refused) == ({0: 99, 1: 99}, [])


@pytest.mark.parametrize(
    ("first", "second", "stands_in"),
    [
        (Host(1, (0,)), Host(2, (0,)), True),  # without names, exactly the same clients
        (Host(1, (0,)), Host(2, (0, 1)), False),
        (Host(1, (0,), declared="a"), Host(2, (0, 1), declared="a"), True),
        (Host(1, (0,), declared="a"), Host(2, (0,), declared="b"), False),
        (Host(1, (0,), declared="a"), Host(2, (0,)), False),
        (Host(1, (0,), key="k1"), Host(2, (0,), key="k2"), True),  # keys that nobody registered under a name
        (Host(1, (0,), registered="a"), Host(2, (0,), registered="a"), True),  # the site has a new key
        (Host(1, (0,), registered="a"), Host(2, (0,), declared="a"), False),  # anybody may call itself a
        (Host(1, (0,), declared="a"), Host(2, (0,), registered="a"), False),
        (Host(1, (0,), registered="a", declared="x"), Host(2, (0,), registered="b", declared="x"), False),
    ],
)
def test_who_may_stand_in_while_a_node_is_away(first: Host, second: Host, stands_in: bool) -> None:
    claims, _, _ = settle_claims([first], {})
    later, node_of, refused = settle_claims([second], claims)
    assert node_of.get(0) == (2 if stands_in else None)
    assert bool(refused) != stands_in or second.clients != first.clients
    # Beside the first it gets nothing, and once that is back it has nothing any more; one that may stand in
    # waits without a word.
    assert (settle_claims([first, second], claims)[2] == []) == stands_in
    for online in ([first, second], [second, first]):
        assert settle_claims(online, later)[1][0] == 1


def test_a_file_of_hosts_decides(tmp_path: Path) -> None:
    text = '"north" = "0-1"\n"SHA256:s" = "2"\n'
    windows = {"encoding": "utf-8-sig", "newline": "\r\n"}  # as its editor saves it
    (tmp_path / "hosts.toml").write_text(text, **windows)
    given = read_hosts(tmp_path / "hosts.toml")
    assert given == {0: "north", 1: "north", 2: "SHA256:s"}
    greedy = Host(14, (0, 2, 3), key="SHA256:s")  # first, and hosts one that is its own
    _, node_of, refused = settle_claims([greedy, NORTH], {}, given)
    assert node_of == {0: 11, 1: 11, 2: 14}
    assert refused == [
        "node 14 claims clients 0, which belong to 'north' by the hosts file: refused",
        "node 14 claims clients 3, which belong to no node of the hosts file: refused",
    ]
    # A name that a node gives itself proves nothing.
    assert settle_claims([Host(15, (0,), declared="north")], {}, given)[1] == {}
    # Nor does a name that looks like a key, under which another key was registered.
    imposter = Host(16, (2,), key="SHA256:other", registered="SHA256:s")
    assert settle_claims([imposter], {}, given)[1] == {}


@pytest.mark.parametrize(
    ("read", "text", "rule"),
    [
        (read_hosts, "north = 3", "hosts must give each node clients such as '0-9', got 3 for 'north'"),
        (read_hosts, 'north = "0-x"', "clients must be ids and ranges"),
        (read_hosts, 'a = "0-2"\nb = "2"', "must name each client once, client 2 belongs to 'a' and 'b'"),
        (read_hosts, "", "hosts must name at least one node"),
        (read_hosts, "north =", "hosts must be a TOML file"),
        (read_hosts, None, r"hosts\.toml"),
        (read_site_hosts, '"a" = 3', "hosts must give each node a site such as 'north', got 3 for 'a'"),
        (
            read_site_hosts,
            'a = "n/w1"',
            "hosts: a site's name must be 1 to 100 characters without '/', got 'n/w1'",
        ),
        (read_site_hosts, 'a = "n"\nb = "n"', "must name each site once, site n belongs to 'a' and 'b'"),
    ],
)
def test_files_of_hosts_that_are_refused(tmp_path: Path, read, text: str | None, rule: str) -> None:
    if text is not None:
        (tmp_path / "hosts.toml").write_text(text)
    with pytest.raises(ValueError, match=rule):
        read(tmp_path / "hosts.toml")


def test_fingerprints_are_those_of_ssh_keygen() -> None:
    # `ssh-keygen -lf` of this P-384 key, made from the private number 1, that is of the curve's base point.
    key = ec.derive_private_key(1, ec.SECP384R1()).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert key_fingerprint(pem) == "SHA256:vnUJs0Z9d/fcfX8fr8n5mGCtID9OxLbsrPpLZ0HA7DM"
    assert key_fingerprint(b"") == key_fingerprint(b"no key") == ""


def test_ranges() -> None:
    assert ranges([3, 0, 1, 2, 7, 9, 10]) == "0-3, 7, 9-10"
    assert ranges([]) == ""
