"""Sites bound to registered keys."""

from pathlib import Path

import pytest

from fedclust.grids.claims import Host
from fedclust.grids.site_rules import Rules, read_site_hosts
from fedclust.records import Registered

NORTH = Registered({"north": ("north/w1",)}, {"west": "no such file"})


def test_a_site_is_of_the_node_that_the_file_names(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text('"site-a" = "north"\n"SHA256:abc" = "south"\n"site-c" = "west"\n')
    rules = Rules(hosts=read_site_hosts(tmp_path / "hosts.toml"))
    assert rules.hosts == {"north": "site-a", "south": "SHA256:abc", "west": "site-c"}
    mine, refused = rules.divided(NORTH, Host(7, (), "SHA256:abc", "site-a"))
    assert mine == Registered({"north": ("north/w1",)})
    assert refused == [
        "node 'site-a' claims site west, which belongs to 'site-c' by the file of hosts: refused"
    ]
    # By its key; and a name that a node only gives itself is none.
    south = Registered({"south": ("south",)})
    assert rules.divided(south, Host(8, (), "SHA256:abc")) == (south, [])
    nothing, refused = rules.divided(south, Host(9, (), "SHA256:other", "", "SHA256:abc"))
    assert nothing == Registered()
    assert refused == [
        "node 'SHA256:abc' claims site south, which belongs to 'SHA256:abc' by the file of hosts: refused"
    ]
    # Nor is one that looks like a key, under which another key was registered.
    assert rules.divided(south, Host(9, (), "SHA256:other", "SHA256:abc"))[0] == Registered()
    east = rules.divided(Registered({"east": ("east",)}), Host(3, (), "", "site-e"))
    assert east == (
        Registered(),
        ["node 'site-e' claims site east, which belongs to no node of the file of hosts: refused"],
    )


def test_without_a_file_every_node_names_its_own_sites() -> None:
    assert Rules().divided(NORTH, Host(1, ())) == (NORTH, [])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('"a" = 3', "hosts must give each node a site such as 'north', got 3 for 'a'"),
        ('"a" = "north"\n"b" = "north"', "hosts must name each site once, north is of 'a' and 'b'"),
        ("", "hosts must name at least one node"),
        ("[", "hosts must be a TOML file"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "hosts.toml").write_text(text)
    with pytest.raises(ValueError, match=error):
        read_site_hosts(tmp_path / "hosts.toml")
