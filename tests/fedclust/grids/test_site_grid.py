import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedclust.data.sites.agreement import Column, Moments, Statement, Wanted
from fedclust.data.sites.rules import Rules as SiteRules
from fedclust.federation import FederationError
from fedclust.grids import nodes, site_grid
from fedclust.grids.local_grid import LocalGrid
from fedclust.grids.nodes import Host, read_site_hosts
from fedclust.grids.site_grid import Rules, SiteGrid
from fedclust.messages.codec import SERVER, BadReply, decode, encode
from fedclust.messages.description import Agreed, Registered, Stated, read_from_node
from fedclust.support.flower import ErrorCode

NORTH = Registered.of({"north": ("north/w1",)}, {"west": "no such file"})


def test_a_site_is_of_the_node_that_the_file_names(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text('"site-a" = "north"\n"SHA256:abc" = "south"\n"site-c" = "west"\n')
    rules = Rules(hosts=read_site_hosts(tmp_path / "hosts.toml"))
    assert rules.hosts == {"north": "site-a", "south": "SHA256:abc", "west": "site-c"}
    mine, refused = rules.divided(NORTH, Host(7, (), "SHA256:abc", "site-a"))
    assert mine == Registered.of({"north": ("north/w1",)})
    assert refused == ["node 'site-a' claims site west, which belongs to 'site-c' by the hosts file: refused"]
    # By its key; and a name that a node only gives itself is none.
    south = Registered.of({"south": ("south",)})
    assert rules.divided(south, Host(8, (), "SHA256:abc")) == (south, [])
    nothing, refused = rules.divided(south, Host(9, (), "SHA256:other", "", "SHA256:abc"))
    assert nothing == Registered()
    assert refused == [
        "node 'SHA256:abc' claims site south, which belongs to 'SHA256:abc' by the hosts file: refused"
    ]
    # Nor is one that looks like a key, under which another key was registered.
    assert rules.divided(south, Host(9, (), "SHA256:other", "SHA256:abc"))[0] == Registered()
    east = rules.divided(Registered.of({"east": ("east",)}), Host(3, (), "", "site-e"))
    assert east == (
        Registered(),
        ["node 'site-e' claims site east, which belongs to no node of the hosts file: refused"],
    )


def test_without_a_file_every_node_names_its_own_sites() -> None:
    assert Rules().divided(NORTH, Host(1, ())) == (NORTH, [])


TABLE = Wanted(columns=True)
NOTHING: Mapping[str, Statement] = MappingProxyType({})
FINE = Statement(("ill", "well"), {"x": Column("number", Moments.of(np.array([1.0, 3.0])))})


def _app(
    nodes: Mapping[int, Registered], unable: Iterable[str] = (), stated: Mapping[str, Statement] = NOTHING
) -> ClientApp:
    app = ClientApp()

    def mine(context: Context) -> Registered:
        return nodes[int(str(context.node_config["partition-id"]))]

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        return Message(encode(mine(context)), reply_to=message)

    @app.query("statement")
    def statement(message: Message, context: Context) -> Message:
        answer = Stated({site: stated.get(site, FINE) for site in mine(context).clients})
        return Message(encode(answer), reply_to=message)

    @app.query("agreement")
    def agreement(message: Message, context: Context) -> Message:
        context.state["agreement"] = message.content["agreement"]
        sites = mine(context).clients
        refused = {site: "the disk is full" for site in unable if site in sites}
        return Message(encode(Stated(refused=refused)), reply_to=message)

    return app


def _grid(
    nodes, rules: Rules | None = None, unable: Iterable[str] = (), stated=NOTHING, **options
) -> SiteGrid:
    grid = LocalGrid(_app(nodes, unable, stated), {}, len(nodes))
    return SiteGrid(grid, rules or Rules(2, 0), TABLE, **{"poll": 0.001, "wait": 5, **options})


def _contexts(grid: SiteGrid) -> dict[int, Context]:
    local = grid._grid
    assert isinstance(local, LocalGrid)
    return local._contexts


def _told(grid: SiteGrid) -> dict[int, dict[str, int]]:
    """Return the ids that each node was told, by name."""
    return {
        node: dict(decode(Agreed, context.state, SERVER).ids)
        for node, context in _contexts(grid).items()
        if "agreement" in context.state
    }


NODES = {
    0: Registered.of({"south": ("south/w1", "south/w2")}),
    1: Registered.of({"north": ("north",)}, {"west": "no such file"}),
    2: Registered.of({"east": ("east",)}),
}


def test_ids_go_by_name_and_each_node_is_told_its_own() -> None:
    said: list[str] = []
    grid = _grid(NODES, say=said.append)
    assert grid.connect() == 4
    assert grid.names == ("east", "north", "south/w1", "south/w2")
    assert list(_told(grid).values()) == [{"south/w1": 2, "south/w2": 3}, {"north": 1}, {"east": 0}]
    assert grid.refused == {"west": "no such file"}
    assert "west is refused: no such file" in said
    (line,) = [line for line in said if line.startswith("north sent: ")]
    assert line.endswith("names and kinds of 1 column(s), count, mean and sum of squares of 1 column(s)")
    assert grid.connect() == 4  # and asks nobody again
    assert said.count(line) == 1


def test_a_site_that_cannot_use_the_encoding_is_refused_and_ids_close_up() -> None:
    grid = _grid(NODES, unable=["east"])
    assert grid.connect() == 3
    assert grid.names == ("north", "south/w1", "south/w2")
    assert grid.refused["east"] == "the disk is full"
    assert _told(grid)[3] == {"north": 0}


def test_named_sites_start_at_once_and_no_other_takes_part() -> None:
    grid = _grid(NODES, Rules(2, 1e9, ("north", "south", "west")))
    assert grid.connect() == 3
    assert grid.refused["east"] == "partition.sites names north, south, west"


def test_who_is_missing_at_the_end_of_the_wait_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each look at the clock is 2 s later: nobody waits, and a slow machine's nodes have all the time.
    clock = SimpleNamespace(monotonic=partial(next, itertools.count(0, 2)), sleep=lambda _: None)
    monkeypatch.setattr(site_grid, "time", clock)
    said: list[str] = []
    grid = _grid(NODES, Rules(2, 1e9, ("north", "south", "rome")), say=said.append)
    assert grid.connect() == 3
    assert "the run starts without rome, after 5 s" in said
    with pytest.raises(FederationError, match="min_clients=5 .* got 3; offline: rome; refused: .*west"):
        _grid(NODES, Rules(5, 1e9, ("north", "south", "rome"))).connect()


@pytest.mark.parametrize(
    ("clients", "sites", "quiet", "ready"),
    [(1, "a", 99, False), (2, "ab", 19, False), (2, "ab", 20, True), (3, "abc", 20, True)],
)
def test_unnamed_sites_start_when_no_more_came_for_a_while(clients, sites, quiet, ready) -> None:
    assert Rules(2, 20).ready(clients, sites, quiet) is ready


def test_two_sites_of_one_name_are_an_error() -> None:
    twice = {0: Registered.of({"north": ("north",)}), 1: Registered.of({"north": ("north/w",)})}
    with pytest.raises(FederationError, match="must have different names, nodes 2 and 3 both have north"):
        _grid(twice).connect()


def test_a_node_that_comes_back_gets_its_ids_and_the_encoding_again() -> None:
    grid = _grid(NODES)
    grid.connect()
    contexts = _contexts(grid)
    gone = contexts.pop(3)  # north's node
    assert grid.get_node_ids() == [0, 2, 3]
    gone.state.clear()
    gone.node_id = 9
    contexts[9] = gone
    assert grid.get_node_ids() == [0, 1, 2, 3]
    assert _told(grid)[9] == {"north": 1}


@pytest.mark.parametrize("back", ["same", "numbers", "labels"])
def test_a_site_that_comes_back_with_other_rows_is_left_out_until_it_has_its_own(
    back: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    stated = {"north": FINE}
    grid = _grid(NODES, stated=stated, say=said.append)
    grid.connect()
    contexts = _contexts(grid)

    def restart(node: int, new: int) -> list[int]:
        gone = contexts.pop(node)
        grid.get_node_ids()
        gone.state.clear()
        gone.node_id = new
        contexts[new] = gone
        return list(grid.get_node_ids())

    stated["north"] = {
        "same": FINE,
        "numbers": replace(FINE, columns={"x": Column("number", Moments.of(np.array([3.0, 2.0])))}),
        "labels": replace(FINE, labels=("ill",)),
    }[back]
    assert restart(3, 9) == ([0, 1, 2, 3] if back == "same" else [0, 2, 3])
    rule = "its rows must be as when it joined the run, or its test rows may have been trained on"
    lines = [line for line in said if rule in line]
    part = {"same": [], "numbers": ["x"], "labels": ["labels"]}[back]
    assert lines == [f"node 9 is left out: north: {rule}; others are: {each}" for each in part]
    assert grid.refused.keys() == {"west"}
    stated["north"] = FINE
    monkeypatch.setattr(nodes, "_AGAIN", 0.0)  # it is asked again, though the server has not seen it away
    assert list(grid.get_node_ids()) == [0, 1, 2, 3]
    assert restart(9, 10) == [0, 1, 2, 3]


def test_a_site_that_comes_back_under_other_rules_is_left_out_until_it_has_its_own() -> None:
    """They change what it states of the same rows, so that others could not be told from its own."""
    said: list[str] = []
    here, place = dict(NODES), next(node for node, each in NODES.items() if "north" in each.clients)
    ruled = Registered.of(NODES[place].clients, rules={"north": SiteRules()})
    here[place] = ruled
    grid = _grid(here, say=said.append)
    grid.connect()
    everyone, contexts = list(grid.get_node_ids()), _contexts(grid)
    (node,) = (each for each, context in contexts.items() if context.node_config["partition-id"] == place)

    def restart(new: int, rules: SiteRules) -> list[int]:
        here[place] = replace(ruled, rules={"north": rules})
        contexts[new] = contexts.pop(min({node, 9, 10} & contexts.keys()))
        grid.get_node_ids()
        contexts[new].state.clear()
        contexts[new].node_id = new
        return list(grid.get_node_ids())

    assert len(restart(9, SiteRules(min_cell=4))) == len(everyone) - 1
    rule = "its rules, by which its rows are compared, must be as when it joined the run"
    expected = f"north: {rule}, min_cell = 5; max_values = 100; got min_cell = 4; max_values = 100"
    assert f"node 9 is left out: {expected}" in said
    assert (
        restart(10, SiteRules(clip=1.0, questions=("train", "evaluate"))) == everyone
    )  # the statement's are its own


@pytest.mark.parametrize("during", ["statement", "agreement"])
def test_a_node_that_is_lost_while_sites_agree_is_away_and_joins_when_it_is_back(during: str) -> None:
    said: list[str] = []
    grid = _grid(NODES, say=said.append)
    honest, tries = grid._grid.send_and_receive, itertools.count(1)

    def send_and_receive(messages: Iterable[Message], **options: Any) -> list[Message]:
        asked, replies = list(messages), list[Message]()
        for each in asked:
            about = each.metadata.dst_node_id, each.metadata.message_type
            if about == (3, f"query.{during}") and next(tries) <= site_grid._TRIES:
                replies.append(Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=each))
            else:
                replies += honest([each], **options)
        return replies

    grid._grid.send_and_receive = send_and_receive
    assert grid.connect() == 3
    assert grid.names == ("east", "south/w1", "south/w2")
    assert list(grid.refused) == ["west"]
    assert "node 3 with north was lost while it was asked; it may join when it is back" in said
    assert {node: ids for node, ids in _told(grid).items() if node != 3} == {
        2: {"south/w1": 1, "south/w2": 2},
        4: {"east": 0},
    }
    # It is still there, and asked once more.
    assert grid.newcomers() == [3]
    assert _told(grid)[3] == {"north": 3}


def test_a_stranger_after_the_start_is_not_served() -> None:
    nodes = dict(NODES)
    grid = _grid(nodes)
    grid.connect()
    nodes[2] = Registered.of({"rome": ("rome",)})
    contexts = _contexts(grid)
    contexts[9] = contexts.pop(4)
    assert grid.get_node_ids() == [1, 2, 3]


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (Registered.of({}, {"north": "north.csv: it is gone"}), " (it says: north.csv: it is gone)"),
        (Registered.of({"north": ("north/more",)}), ""),
    ],
)
def test_a_node_that_comes_later_cannot_shut_out_another_s_site(claim: Registered, says: str) -> None:
    said: list[str] = []
    grid = _grid({**NODES, 3: claim}, say=said.append)
    contexts = _contexts(grid)
    evil = contexts.pop(5)
    grid.connect()
    contexts[5] = evil
    assert grid.newcomers() == []
    assert said[-1] == f"node 5 speaks for site north, which another node spoke for first: ignored{says}"
    gone = contexts.pop(3)  # north's node
    assert grid.get_node_ids() == [0, 2, 3]
    gone.node_id, contexts[9] = 9, gone
    assert grid.get_node_ids() == [0, 1, 2, 3]


def test_a_node_that_comes_later_sets_no_rules_of_another_s_site() -> None:
    """Neither while that is online, nor while it is away: it may only wait, or stay out itself."""
    said: list[str] = []
    rules = {"north": SiteRules(questions=("description",))}
    grid = _grid(
        {**NODES, 3: Registered.of({"north": ("north",)}, {}, rules)},
        Rules(2, 0, asks={"fedavg": ["train"]}),
        say=said.append,
    )
    contexts = _contexts(grid)
    evil = contexts.pop(5)
    grid.connect()
    before = list(said)
    contexts[5] = evil
    assert grid.get_node_ids() == [0, 1, 2, 3]
    assert said == before
    gone = contexts.pop(3)  # north's node
    evil.node_id, contexts[6] = 6, contexts.pop(5)  # it starts again
    assert grid.get_node_ids() == [0, 2, 3]
    assert said[len(before) :] == [
        "node 6 is left out: north: its rules do not answer train, which fedavg asks for"
    ]
    gone.node_id, contexts[9] = 9, gone
    assert grid.get_node_ids() == [0, 1, 2, 3]
    assert grid.refused == {"west": "no such file"}
    assert grid.site_rules == {}


def test_a_node_s_name_may_have_braces() -> None:
    grid = _grid(NODES)
    grid.connect()
    _, said = grid._own(Registered.of({"north": ("north/more",)}), Host(9, (), registered="{x}"))
    assert said == ["node '{x}' speaks for site north, which another node spoke for first: ignored"]


def test_a_site_that_joined_a_run_may_be_away_when_it_is_resumed() -> None:
    first, nodes = _grid({0: NODES[0], 1: NODES[2]}), {0: NODES[0], 1: NODES[2], 2: NODES[1]}
    first.connect()
    grid = _grid(nodes)
    contexts = _contexts(grid)
    away = contexts.pop(4)
    assert grid.connect((*first.names, "north"), (first.agreement, first.names)) == 4
    assert (grid.names, grid.get_node_ids()) == (("east", "south/w1", "south/w2", "north"), [0, 1, 2])
    assert not grid.stood  # so that data that have changed are noticed
    contexts[4] = away
    assert grid.get_node_ids() == [0, 1, 2, 3]
    assert list(_told(grid).values()) == [{"south/w1": 1, "south/w2": 2}, {"east": 0}, {"north": 3}]


def test_a_run_is_not_resumed_with_sites_that_no_longer_fit() -> None:
    first = _grid(NODES)
    first.connect()
    said: list[str] = []
    nodes = {place: NODES[place] for place in (0, 1)}  # east, which made the agreement too, is away
    one = _grid(nodes, unable=["north"], say=said.append)
    assert one.connect(first.names, (first.agreement, first.names)) == 4
    assert one.get_node_ids() == [2, 3]
    assert "node 'north' is left out: north: the disk is full" in said
    none = _grid(nodes, unable=["north", "south"])
    with pytest.raises(
        FederationError, match=r"must be online, got 0; .*'north' is left out: .*disk is full"
    ):
        none.connect(first.names, (first.agreement, first.names))


def test_a_run_is_resumed_without_a_site_whose_columns_have_changed() -> None:
    """All are online, and would agree again: the others keep what was agreed with it."""
    first = _grid(NODES)
    first.connect()
    said: list[str] = []
    other = replace(FINE, columns={"y": FINE.columns["x"]})
    grid = _grid(NODES, stated={"east": other}, say=said.append)
    assert grid.connect(first.names, (first.agreement, first.names)) == 4
    assert (grid.stood, grid.agreement) == (True, first.agreement)
    assert grid.get_node_ids() == [1, 2, 3]
    assert "node 'east' is left out: east: it lacks the columns x, which the run uses" in said


def _column(moments: dict[str, float]) -> dict:
    column = {"kind": "number", "moments": moments, "values": [], "trained": [], "unfit": ""}
    return {"columns": {"x": column}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": []}, "all texts or all numbers"),
        ({"labels": [1, "x"]}, "all texts or all numbers"),
        ({"labels": [float("nan")]}, "labels: must be .*, got nan"),
        ({"columns": {"x": {"kind": "date"}}}, "kind: must be one of number, category, empty, got .date"),
        ({"words": {"a": 0}}, r"words must be finite numbers in \[1, "),
        ({"pixels": [{"count": 1, "total": 256, "squares": 1}]}, "pixels must be at most 255"),
        (_column({"rows": 1, "count": 2, "mean": 0, "squares": 0}), "must have at most 1 values"),
        (_column({"rows": 2, "count": 2, "mean": 0, "squares": -1}), "squares of .* must be in"),
        (_column({"rows": 2, "count": 2, "mean": 1e39, "squares": 0}), "mean of .* must be in"),
        ({"labels": [], "values": [{"rows": 0, "mean": [1.0]}]}, "rows of a block must be"),
        ({"labels": [], "values": [{"rows": 2, "mean": [1e39]}]}, "mean of a block must be"),
        ({"labels": [], "values": [{"rows": 2, "mean": [1.0], "spread": -1.0}]}, "spread of a block must be"),
        ({"values": [{"rows": 2, "mean": [1.0], "spread": 0.0}]}, "all texts or all numbers"),
        (
            {"more": 1},
            "must have the values columns, embedding, labels, pixels, values, warnings, words, got .*more",
        ),
    ],
)
def test_a_statement_that_no_data_can_have_is_a_bad_reply(changed: dict, message: str) -> None:
    content = encode(Stated({"a": FINE}))
    record = content["statements"]
    body = json.loads(str(record["bodies"][0]))  # type: ignore[index,call-overload]
    record["bodies"] = [json.dumps({**body, **changed})]  # type: ignore[index,call-overload,assignment]
    with pytest.raises(BadReply, match=message):
        read_from_node(Stated, content)


@pytest.mark.parametrize(
    ("registered", "message"),
    [
        (Registered.of({"a": ("b",)}), "must be named after it"),
        (Registered.of({"a": ("a",)}, {"a": "why"}), "must occur once"),
        (Registered.of({"a": ("a\n",)}), "must be printable"),
    ],
)
def test_names_that_are_none_are_a_bad_reply(registered: Registered, message: str) -> None:
    with pytest.raises(BadReply, match=message):
        read_from_node(Registered, encode(registered))


def test_a_node_whose_key_is_not_registered_gets_no_site_of_the_file_of_hosts() -> None:
    said: list[str] = []
    rules = Rules(1, 0, hosts={"north": "site-a", "east": "site-e", "south": "site-s"})
    grid = _grid(NODES, rules, wait=0.05, say=said.append)
    # Its nodes, which are all there are, are not even asked: no reply of theirs can do anything.
    grid._grid.send_and_receive = pytest.fail
    with pytest.raises(FederationError, match="no node can take part; node . is left out: the hosts file"):
        grid.connect()
    assert grid.refused == {}  # the sites themselves are not: their own nodes may still come
    assert len(said) == len(NODES)
