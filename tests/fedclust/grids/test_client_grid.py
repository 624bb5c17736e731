from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedclust.federation import FederationError
from fedclust.grids import client_grid, joined as joined_module
from fedclust.grids.client_grid import ClientGrid, WrappedGrid, content_bytes, is_bundle, pack, unpack
from fedclust.grids.joined import joined, separated
from fedclust.grids.local_grid import BlockingGrid, LocalGrid
from fedclust.grids.nodes import error_reason, hosted_clients
from fedclust.grids.superlink import PromptGrid
from fedclust.messages.codec import encode
from fedclust.messages.description import Hosted
from fedclust.support.flower import SERVER, ErrorCode, NodeInfo, assume_identity

K = 7


@pytest.fixture(autouse=True)
def _server() -> None:
    assume_identity(1)  # Flower's messages ask who makes them


def _app(hosted=None, failing_clients=(), failing_nodes=(), mean=False) -> Any:
    """Each client adds its id to the model; node k of n hosts clients k, k + n, … unless `hosted` says.

    What nodes were given is in ``app.given``: node, clients, number of models.
    """
    app: Any = ClientApp()
    app.given = []

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        own = None if hosted else Hosted(hosted_clients(context.node_config, K), K)
        told = own or hosted(int(str(context.node_config["partition-id"])))  # type: ignore[misc]
        return Message(encode(told), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] in failing_nodes:
            raise RuntimeError("out of memory")
        contents, _ = unpack(message.content)
        app.given.append((context.node_id, sorted(contents), len(message.content.array_records)))
        answers, shared = {}, _model()
        for client in contents.keys() - set(failing_clients):
            start = contents[client].array_records["arrays"]["w"].numpy()
            arrays = shared if mean else _model(start + client)
            metrics = MetricRecord({"num-examples": client + 1, "loss": float(client)})
            answers[client] = RecordDict({"arrays": arrays, "metrics": metrics})
        errors = {client: "no data" for client in contents if client in failing_clients}
        return Message(pack(answers, errors), reply_to=message)

    return app


def _connected(app: ClientApp, num_nodes: int = 3) -> ClientGrid:
    grid = ClientGrid(LocalGrid(app, {}, num_nodes))
    grid.connect()
    return grid


def _model(values: Any = (0.0, 0.0)) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.asarray(values))})


def _messages(clients: Iterable[int], kind: str = "train") -> list[Message]:
    content = RecordDict({"arrays": _model(), "config": ConfigRecord({"server-round": 1})})
    return [Message(content, dst_node_id=client, message_type=kind) for client in clients]


def _failed(replies: Iterable[Message]) -> dict[int, str]:
    return {each.metadata.src_node_id: each.error.reason for each in replies if each.has_error()}


# -- Messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", [1, 2, K, K + 3])
def test_nodes_look_like_clients(num_nodes: int) -> None:
    app = _app()
    grid = ClientGrid(LocalGrid(app, {}, num_nodes))
    assert grid.connect() == K
    assert grid.get_node_ids() == list(range(K))
    replies = grid.send_and_receive(_messages([5, 2, 3]))
    assert [reply.metadata.src_node_id for reply in replies] == [2, 3, 5]
    for reply in replies:
        client = reply.metadata.src_node_id
        np.testing.assert_array_equal(reply.content.array_records["arrays"]["w"].numpy(), [client, client])
    # A node gets one message with the model once.
    assert len({node for node, _, _ in app.given}) == len(app.given) <= num_nodes
    assert {models for _, _, models in app.given} == {1}


def test_a_failing_client_costs_its_own_reply_and_a_failing_node_its_clients() -> None:
    app = _app(failing_clients=[2], failing_nodes=[1])  # node 1 of 3 hosts clients 1 and 4
    grid, lost = _connected(app), "RuntimeError: out of memory"
    assert _failed(grid.send_and_receive(_messages(range(K)))) == {1: lost, 2: "no data", 4: lost}
    # Flower's other way to send is the same.
    ids = grid.push_messages(_messages([0, 4, 6]))
    assert len(set(ids)) == 3
    replies = grid.pull_messages(ids)
    assert sorted(reply.metadata.src_node_id for reply in replies) == [0, 4, 6]
    assert _failed(replies) == {4: lost}
    assert grid.pull_messages(ids) == []


def test_two_messages_of_a_kind_to_one_client_are_refused() -> None:
    with pytest.raises(ValueError, match="client 3 got two"):
        _connected(_app()).send_and_receive(_messages([3, 3]))


def test_stock_strategies_run_unmodified() -> None:
    # w starts at 0; client k returns w + k and weighs k + 1, so every round adds
    # sum k (k + 1) / sum (k + 1) = (0 + 2 + 6 + 12 + 20 + 30 + 42) / 28 = 4.
    result = FedAvg(fraction_evaluate=0.0).start(_connected(_app()), _model(), num_rounds=2)
    np.testing.assert_allclose(result.arrays["w"].numpy(), [8.0, 8.0])
    # Round 1: delta = 4, m = (1 - 0.9) 4 = 0.4, v = (1 - 0.99) 16 = 0.16;
    # rate = 0.1 sqrt(1 - 0.99^2) / (1 - 0.9^2) = 0.1 * 0.14106736 / 0.19 = 0.07424598;
    # w = 0.07424598 * 0.4 / (0.4 + 0.001) = 0.07406083.
    result = FedAdam(fraction_evaluate=0.0).start(_connected(_app()), _model(), num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), [0.07406083, 0.07406083], rtol=1e-6)


def test_only_the_apps_own_message_is_kept_of_an_error() -> None:
    # As Flower's simulation writes a failed client's error, shortened in the middle.
    ray = (
        "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor.run() (pid=29179)\n"
        'File "clients/app.py", line 24, in hosted\nValueError: num_clients must be at most 1797\n'
        "Exception ClientAppException occurred. Message: num_clients must be at most 1797'>"
    )
    assert error_reason(Error(2, ray)) == "num_clients must be at most 1797"
    # As a SuperNode writes that of an app that raises.
    refused = (
        "<class 'fedclust.settings.allowed.NotAllowed'>:<'encoder must be one of 'pixels'\ngot \"a'>b\"'>"
    )
    assert error_reason(Error(2, refused)) == "encoder must be one of 'pixels' got \"a'>b\""
    assert error_reason(Error(2, "out of memory")) == "out of memory"
    died = "<class 'ray.exceptions.ActorDiedError'>:<'The actor died.\n\tclass_name: A\n\tpid: 7'>"
    assert error_reason(Error(0, died)).startswith("the node died (ActorDiedError); Flower's simulation")
    assert error_reason(Error(5)) == "the node failed without a reason"


def test_a_wrapper_forwards_every_call_of_a_grid() -> None:
    """What Flower's base class answers instead lacks what the wrapped grid knows, such as names and keys."""
    public = {name for name in vars(Grid) if not name.startswith("_")}
    assert "get_nodes" in public
    assert public <= vars(WrappedGrid).keys() | vars(BlockingGrid).keys()


def test_registered_names_are_known_through_wrappers() -> None:
    class Registered(WrappedGrid):
        def get_nodes(self) -> list[NodeInfo]:
            ids = self.get_node_ids()
            return [NodeInfo(node_id=node, name=f"site-{place}") for place, node in enumerate(ids)]

    # Of three nodes, the one at place p hosts the clients p, p + 3, …
    hosts = {client: f"site-{client % 3}" for client in range(K)}
    nodes = PromptGrid(Registered(LocalGrid(_app(), {}, 3)))
    assert ClientGrid(nodes, wait=0.0, hosts=hosts).connect() == K


# -- Who is online ------------------------------------------------------------------------------------------


class _Nodes(WrappedGrid):
    """Nodes that come, go and fall silent; `shared` ones that are joining come when they are looked for."""

    def __init__(self, app: ClientApp, online: Iterable[int], number: int = 3, shared: bool = False) -> None:
        super().__init__(LocalGrid(app, {}, number))
        self.all = list(self._grid.get_node_ids())
        self.online, self.silent, self.joining, self.shared = list(online), [], [], shared
        self.instead: Error | None = None  # of the SuperLink's, where a node is silent
        self.timeouts: list[float | None] = []

    def get_node_ids(self) -> list[int]:
        return [self.all[node] for node in self.online]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages, silent = list(messages), [self.all[node] for node in self.silent]
        self.timeouts.append(timeout)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        lost = [each for each in messages if each.metadata.dst_node_id in silent]
        errors = [Message(self.instead, reply_to=each) for each in lost if self.instead is not None]
        for each in errors:
            each.metadata.__dict__["_src_node_id"] = SERVER
        return [each for each in replies if each.metadata.src_node_id not in silent] + errors

    def grow(self) -> None:
        self.online += self.joining

    def comes(self, said: list[str]) -> Callable[[str], None]:
        """Keep what is said, and let another node come each time."""

        def say(line: str) -> None:
            said.append(line)
            self.online.append(len(self.online))

        return say


def test_connect_waits_for_all_clients_and_says_how_many() -> None:
    nodes, said = _Nodes(_app(), online=[0]), list[str]()
    grid = ClientGrid(nodes, poll=0.0, say=nodes.comes(said))
    with pytest.raises(FederationError, match="known once connect"):
        _ = grid.num_clients
    assert grid.connect() == K
    # Node 0 hosts 0, 3, 6 and node 1 hosts 1, 4.
    assert said == ["waiting for clients: 3 of 7 online", "waiting for clients: 5 of 7 online"]


@pytest.mark.parametrize(
    ("online", "fewest", "line"),
    [
        ([0, 2], None, "all clients must be online within 0.01 s, 2 of 7 are missing: 1, 4"),
        ([], None, "no node came online"),
        ([0], 4, r"4 clients \(min_clients\) must be online within"),
    ],
)
def test_connect_names_the_missing_clients(online: list[int], fewest: int | None, line: str) -> None:
    with pytest.raises(FederationError, match=line):
        ClientGrid(_Nodes(_app(), online), wait=0.01, poll=0.01, say=print, min_clients=fewest).connect()


def test_nodes_have_time_to_prepare_their_rows_before_the_start() -> None:
    nodes = _Nodes(_app(), online=[0, 1, 2])
    nodes.silent = [0, 1, 2]
    grid = ClientGrid(nodes, wait=0.01, poll=0.01, prepare=5.0, min_clients=2)
    with pytest.raises(FederationError, match=r"within 0\.01 s, 3 nodes were, and did not answer$"):
        grid.connect()
    nodes.online, nodes.silent = [0, 1], []
    grid.connect()
    nodes.online = [0, 1, 2]
    assert grid.newcomers() == [2, 5]
    assert {*nodes.timeouts[:-1]} == {5.0}
    assert nodes.timeouts[-1] == 0.01  # a node that comes late keeps nobody waiting


def _hosting(*clients: tuple[int, ...], data: Sequence[str] = "   ") -> Callable[[int], Hosted]:
    """Name each node's clients, of three, and the digest of its data."""
    return lambda node: Hosted(clients[node], 3, f"site-{node}", data[node].strip())


def _sharing(*steps: int, data: str = "   ") -> Callable[[int], Hosted]:
    everyone = tuple(range(len(steps)))
    return lambda node: Hosted(everyone, len(steps), f"site-{node}", data[node].strip(), steps)


def _told(node: int) -> Hosted:
    raise FileNotFoundError("no such folder: data")


@pytest.mark.parametrize(
    ("number", "hosted", "shared", "line"),
    [
        (2, _hosting((0, 1), (1, 2)), False, "client 1 must be hosted by one node, nodes . and . claim"),
        (2, lambda node: Hosted((2 * node,), 3 + node), False, "one has 3 and another 4"),
        (3, _hosting((0,), (1,), (2,), data="aba"), False, "of 3 .* the others: node 'site-1' .clients 1.$"),
        (2, _hosting((0, 1), (2,), data="ab"), False, "of 2 nodes these differ: .*'site-0' .*'site-1'"),
        (2, _hosting((0, 1), (2,), data=["d x-1", "d x-2"]), False, "0-1, encoder x-1.*2, encoder x-2"),
        (3, _sharing(1, 1, data="aba"), True, "of 3 nodes .* differ from the others: node "),
        # The grid must say so as well; else a node could get the messages of others' clients.
        (2, _sharing(1, 1), False, "client 0 must be hosted by one node"),
        (1, _told, False, "cannot serve its clients: FileNotFoundError: no such folder: data"),
    ],
)
def test_nodes_that_cannot_be_one_federation(number: int, hosted: Any, shared: bool, line: str) -> None:
    with pytest.raises(FederationError, match=line):
        ClientGrid(_Nodes(_app(hosted), range(number), number, shared)).connect()


def test_a_node_that_does_not_list_its_clients_is_an_error() -> None:
    app = ClientApp()
    app.query("clients")(lambda message, _: Message(RecordDict(), reply_to=message))
    with pytest.raises(FederationError, match="a node's reply: no 'clients'"):
        ClientGrid(LocalGrid(app, {}, 3)).connect()


def test_where_any_node_may_train_anybody_the_longest_go_first() -> None:
    app = _app(_sharing(1, 9, 2, 4, 3, data=" a "))  # two say nothing of their data
    nodes = _Nodes(app, online=[0, 1], shared=True)
    first, second, third = nodes.all
    grid = ClientGrid(nodes)
    assert grid.connect() == 5
    assert _failed(grid.send_and_receive(_messages(range(5)))) == {}
    # 9 to the first; 4, 3, 2 to the second, 9 then; 1 to the node with fewer clients, the first.
    assert sorted(app.given) == [(first, [0, 1], 1), (second, [2, 3, 4], 1)]
    app.given.clear()
    nodes.joining = [2]
    assert _failed(grid.send_and_receive(_messages([0, 2, 3, 4]))) == {}
    # 4, 3 and 2 to a node each; 1 to the third, which has the fewest steps.
    assert sorted(app.given) == [(first, [3], 1), (second, [4], 1), (third, [0, 2], 1)]


def test_clients_of_a_node_that_left_are_offline_and_come_back_with_another() -> None:
    nodes = _Nodes(_app(), online=[0, 1, 2])
    grid = ClientGrid(nodes)
    grid.connect()
    nodes.online = [0, 2]
    assert grid.get_node_ids() == [0, 2, 3, 5, 6]
    offline = {1: "client 1 is offline", 4: "client 4 is offline"}
    assert _failed(grid.send_and_receive(_messages(range(K)))) == offline
    assert grid.num_clients == K
    nodes.online = [0, 1, 2]
    assert _failed(grid.send_and_receive(_messages(range(K)))) == {}
    nodes.silent = [1]
    silent = dict.fromkeys((1, 4), "no reply within 2.0 s")
    assert _failed(grid.send_and_receive(_messages(range(K)), timeout=2.0)) == silent


def _left_out(hosted: Callable[[int], Hosted], before: list[int], after: list[int]) -> tuple[Any, str]:
    """Return who is online once other nodes have come and gone, and what is said of that."""
    nodes, said = _Nodes(_app(hosted), before), list[str]()
    grid = ClientGrid(nodes, say=said.append)
    everyone = list(range(grid.connect()))
    nodes.online = after
    online, again = grid.get_node_ids(), grid.get_node_ids()
    nodes.online = [*after, *before]
    assert (again, grid.get_node_ids()) == (online, everyone)
    assert len(said) == len(set(said))  # each refusal is told once
    return online, "; ".join(said)


def test_who_is_left_out_of_a_run() -> None:
    # Node 0 hosts all of 2 clients; node 1, which comes later, believes in 5.
    line = "node 3 is left out: all nodes must have the same number of clients, one has 2 and another 5"
    sizes = _left_out(lambda node: Hosted(((0, 1), (1, 4))[node], (2, 5)[node]), [0], [0, 1])
    assert sizes == ([0, 1], line)
    line = "all nodes must hold the same data and partition, its data differ"
    data = _left_out(_hosting((0, 1), (2,), (2,), data="aba"), [0, 2], [0, 1])
    assert data == ([0, 1], f"node 'site-1' is left out: clients 2: {line}")
    encoders = _left_out(_hosting((0, 1), (2,), (2,), data=["d x-1", "d x-2", "d x-1"]), [0, 2], [0, 1])
    line = "all nodes must hold the same data and partition, its encoder is x-2, not x-1"
    assert encoders == ([0, 1], f"node 'site-1' is left out: clients 2: {line}")
    # A second node does not get the clients of one that is away.
    line = "node 'site-2' claims clients 0-1, which belong to node 'site-0': refused; "
    line += "node 'site-2' claims clients 2, which belong to node 'site-1': refused"
    assert _left_out(_hosting((0, 1), (2,), (0, 1, 2)), [0, 1], [1, 2]) == ([2], line)


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        (None, "no answer within 600 s"),
        (Error(ErrorCode.MESSAGE_UNAVAILABLE, "gone"), "cannot serve its clients: gone"),
    ],
)
def test_a_node_that_comes_and_does_not_answer_is_asked_once(instead: Error | None, why: str) -> None:
    asked, said = list[int](), list[str]()

    def hosted(node: int) -> Hosted:
        asked.append(node)
        return Hosted((node,), 3)

    nodes = _Nodes(_app(hosted), online=[0, 1])
    grid = ClientGrid(nodes, min_clients=2, say=said.append)
    grid.connect()
    nodes.online, nodes.silent, nodes.instead = [0, 1, 2], [2], instead
    assert [grid.newcomers(), grid.newcomers(), asked] == [[], [], [0, 1, 2]]
    assert said == [f"node {nodes.all[2]} is left out: {why}"]
    nodes.online = [0, 1]
    assert grid.newcomers() == []
    nodes.online, nodes.silent = [0, 1, 2], []
    assert grid.newcomers() == [2]


def test_clients_that_come_after_the_start_join_when_they_are_admitted() -> None:
    # Node 0 hosts 0, 3, 6 and node 2 hosts 2, 5; node 1, with 1 and 4, comes later.
    nodes = _Nodes(_app(), online=[0, 2])
    grid = ClientGrid(nodes, min_clients=5)
    assert grid.connect() == 5
    assert (grid.places, grid.newcomers()) == ((0, 2, 3, 5, 6), [])
    nodes.online = [0, 1, 2]
    assert grid.get_node_ids() == [0, 1, 2, 3, 4]
    assert grid.newcomers() == [1, 4]
    assert grid.admit(grid.newcomers()) == [5, 6]
    assert (grid.num_clients, grid.newcomers()) == (K, [])
    # Clients add their id in the partition to the model: here 1 is its client 2, and 6 its client 4.
    for reply, place in zip(grid.send_and_receive(_messages([1, 6])), (2, 4), strict=True):
        np.testing.assert_array_equal(reply.content.array_records["arrays"]["w"].numpy(), [place] * 2)
    assert (grid.traffic.down_by_client > 0).tolist() == [False, True, False, False, False, False, True]


def test_a_run_that_goes_on_keeps_its_clients_ids() -> None:
    grid = ClientGrid(LocalGrid(_app(), {}, 3))
    assert grid.connect(known=[5, 2]) == 2
    assert (grid.places, grid.newcomers()) == ((5, 2), [0, 1, 3, 4, 6])


# -- Outages ------------------------------------------------------------------------------------------------


def test_a_round_that_everybody_misses_is_that_of_when_they_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, said = _Nodes(_app(), online=[0, 1, 2]), list[str]()
    grid = ClientGrid(nodes, max_outage=60, min_replies=0.5, poll=0.0, say=nodes.comes(said))
    grid.connect()
    nodes.online = []
    assert _failed(grid.send_and_receive(_messages(range(K)))) == {}
    # Node 0 hosts 0, 3, 6 and node 1 hosts 1, 4; ceil(0.5 x 7) = 4 must answer.
    assert [line[: line.index(",")] for line in said] == [
        f"waiting for clients: {online} of 7 online" for online in (0, 3, 5)
    ]
    nodes.online = []
    assert grid.get_node_ids() == list(range(K))  # whom an evaluation goes to


def test_a_run_that_waits_asks_a_late_node_again() -> None:
    asked, said = list[int](), list[str]()

    def hosted(node: int) -> Hosted:
        asked.append(node)
        if asked.count(0) == 3:  # after the start, the second question; the answer to the next one is in time
            nodes.silent = []
        return Hosted((node,), 2)

    nodes = _Nodes(_app(hosted), online=[0, 1])
    grid = ClientGrid(nodes, min_clients=2, max_outage=60, min_replies=1.0, poll=0.0, say=said.append)
    grid.connect()
    nodes.online = [1]
    assert grid.newcomers() == []
    nodes.online, nodes.silent = [0, 1], [0]
    assert grid.newcomers() == []  # here asking once more would keep node 1 waiting
    assert asked == [0, 1, 0]
    assert grid.get_node_ids() == [0, 1]
    assert asked == [0, 1, 0, 0, 0]
    assert [line for line in said if "left out" in line] == [
        f"node {nodes.all[0]} is left out: no answer within 600 s"
    ]


class Lossy(ClientGrid):
    """Ten clients that lose their next replies, and are offline for so many looks."""

    def __init__(self, lost: dict[int, int], offline_for: int = 0, code: int = 0, **options: Any) -> None:
        super().__init__(LocalGrid(ClientApp(), {}), poll=0.0, **options)
        self.lost, self.offline_for, self.code = lost, offline_for, code or ErrorCode.NODE_UNAVAILABLE
        self.asked: list[list[int]] = []
        self.admit(range(10))

    def _exchange(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        self.asked.append([each.metadata.dst_node_id for each in messages])
        return [self._reply(each) for each in messages]

    def _reply(self, message: Message) -> Message:
        client = message.metadata.dst_node_id
        self.lost[client] = self.lost.get(client, 0) - 1
        made: Any = RecordDict() if self.lost[client] < 0 else Error(self.code, "gone")
        return Message(made, reply_to=message)

    def _online(self) -> list[int]:
        self.offline_for -= 1
        return list(range(10)) if self.offline_for < 0 else []


RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION


@pytest.mark.parametrize(
    ("lost", "losses", "options", "kind", "asked", "still_lost", "times"),
    [
        # 1 of 10 answers, ceil(0.2 x 10) = 2 must: those that were lost are asked again, and nobody else.
        (9, 1, {"offline_for": 3}, "train", 10, 0, 2),
        # Of ceil(0.25 x 10) = 3 only two have answered.
        (8, 1, {"min_replies": 0.25}, "train", 10, 0, 2),
        # Two have answered, so nobody is waited for.
        (8, 1, {"offline_for": 10**9}, "train", 10, 8, 1),
        # Without time or a least number everybody is asked once.
        (10, 1, {"max_outage": 0}, "train", 10, 10, 1),
        (10, 1, {"min_replies": 0.0}, "train", 10, 10, 1),
        # A client that raises is not asked again.
        (10, 1, {"code": RAISED}, "train", 10, 10, 1),
        # A question that kills its nodes is not repeated for ever.
        (4, 10**9, {}, "train", 4, 4, 1 + 5),
        # When the time is up the losses stay.
        (4, 1, {"offline_for": 10**9, "max_outage": 0.01}, "train", 4, 4, 1),
        # A question besides training is repeated if most of ten clients are asked.
        (5, 1, {}, "query.losses", 5, 5, 1),
        (6, 1, {}, "query.losses", 6, 0, 2),
    ],
)
def test_who_is_asked_again(lost, losses, options, kind, asked, still_lost, times, monkeypatch) -> None:
    monkeypatch.setattr(client_grid, "SETTLE", 0.0)
    said: list[str] = []
    grid = Lossy(dict.fromkeys(range(lost), losses), **{"max_outage": 60, "say": said.append, **options})
    assert len(_failed(grid.send_and_receive(_messages(range(asked), kind)))) == still_lost
    assert grid.asked[0] == list(range(asked))
    assert grid.asked[1:] == [list(range(lost))] * (times - 1)
    again = {(kind, client): times - 1 for client in range(lost) if times > 1}
    assert grid.repeats == again  # their replies were lost, not the messages
    if options.get("offline_for") == 3:
        assert said == [
            "waiting for clients: 0 of 9 online, 1 must answer (min_replies=0.2), for 1 minutes at most"
        ]


def test_a_client_that_never_got_a_message_is_not_asked_twice() -> None:
    class Offline(Lossy):
        def _reply(self, message: Message) -> Message:
            client = message.metadata.dst_node_id
            first = self.asked[0] is self.asked[-1]
            error = Error(self.code, f"client {client} is offline" if client else "gone")
            return Message(error if first and client < 9 else RecordDict(), reply_to=message)

    grid = Offline({}, max_outage=60)
    assert not _failed(grid.send_and_receive(_messages(range(10), "train")))
    assert grid.repeats == {("train", 0): 1}


@pytest.mark.parametrize(("settle", "left"), [(30.0, 0), (0.0, 2)])
def test_once_enough_are_back_the_others_have_some_time(settle: float, left: int, monkeypatch) -> None:
    monkeypatch.setattr(client_grid, "SETTLE", settle)
    grid, looks = Lossy({}, max_outage=60), iter([[], [0], [0, 1], [0, 1, 2]])  # one is needed
    monkeypatch.setattr(grid, "_online", lambda: next(looks))
    assert grid._wait_for(range(3), 1, float("inf"))
    assert len(list(looks)) == left


# -- Bundles and bytes --------------------------------------------------------------------------------------


def test_a_shared_record_travels_once_and_is_shared_again() -> None:
    shared = _model()
    contents = {k: RecordDict({"arrays": shared, "config": ConfigRecord({"c": k})}) for k in range(5)}
    bundle = pack(contents)
    assert len(bundle.array_records) == 1
    assert len(bundle.config_records) == 5 + 1  # the clients' and the index
    unpacked, _ = unpack(bundle)
    assert len({id(content["arrays"]) for content in unpacked.values()}) == 1
    assert [content.config_records["config"]["c"] for content in unpacked.values()] == list(range(5))
    unpacked, _ = unpack(pack({0: contents[0], 1: contents[0]}))  # and so is a shared content
    assert unpacked[0] is unpacked[1]


def test_only_a_bundle_is_one() -> None:
    assert is_bundle(pack({}))
    content = RecordDict({"arrays": _model()})
    assert not is_bundle(content)
    with pytest.raises(ValueError, match=r"must be a bundle .* got records \['arrays'\]"):
        unpack(content)
    with pytest.raises(ValueError, match=r"clients \[3\] have both"):
        pack({3: RecordDict()}, {3: "failed"})


MODEL_BYTES = 128 + 2 * 8  # a .npy header and two numbers of eight bytes
DOWN = len("arrays") + len("w") + MODEL_BYTES + len("config") + len("server-round") + 8
METRICS = len("metrics") + len("loss") + 8 + len("num-examples") + 8
UP = len("arrays") + len("w") + MODEL_BYTES + METRICS


def test_bytes_of_a_content() -> None:
    texts = {"name": "Ürich", "raw": b"12", "flags": [True, False], "none": [], "n": ["cat", "horse"]}
    metrics = MetricRecord({"loss": 0.5, "steps": [1, 2, 3]})
    content = RecordDict({"arrays": _model(), "metrics": metrics, "config": ConfigRecord(texts)})
    arrays = 6 + 1 + MODEL_BYTES
    metrics = 7 + (4 + 8) + (5 + 3 * 8)
    config = 6 + (4 + 6) + (3 + 2) + (5 + 2 * 1) + (4 + 0) + (1 + 3 + 5)  # Ü takes two bytes
    assert len(content["arrays"]["w"].data) == MODEL_BYTES
    assert content_bytes(content) == arrays + metrics + config


@pytest.mark.parametrize("num_nodes", [1, 2, K])
def test_a_shared_model_is_counted_once_per_node(num_nodes: int) -> None:
    clients, app = [0, 1, 2, 5], _app()
    grid = _connected(app, num_nodes)
    grid.send_and_receive(_messages(clients))
    expected = np.zeros(K, dtype=int)
    expected[clients] = 1
    np.testing.assert_array_equal(grid.traffic.down_by_client, DOWN * expected)
    np.testing.assert_array_equal(grid.traffic.up_by_client, UP * expected)
    nodes = len(app.given)
    # A bundle's own index names its clients and their records: some hundred bytes a node.
    assert nodes * DOWN <= grid.traffic.down <= nodes * (DOWN + 250)
    # Each has a model of its own to return; in a bundle, records bear shorter names (13 is arrays + metrics).
    assert 4 * (UP - 13) <= grid.traffic.up <= 4 * UP + nodes * 500


def test_a_mean_goes_up_once_per_node() -> None:
    mean, apart = _connected(_app(mean=True), 2), _connected(_app(), 2)
    for grid in (mean, apart):
        grid.send_and_receive(_messages(range(K)))
    # Two nodes: two models instead of seven, and the same to each client alone.
    assert 5 * MODEL_BYTES <= apart.traffic.up - mean.traffic.up <= 5 * (MODEL_BYTES + 30)
    assert mean.traffic.totals()["bytes_up_unbundled"] == K * UP


def test_bytes_since_and_totals() -> None:
    grid = _connected(_app(failing_clients=[2]), 1)
    before = grid.traffic
    assert before.totals() == dict.fromkeys(
        ("bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled"), 0
    )
    grid.send_and_receive(_messages([0]))
    first = grid.traffic
    grid.send_and_receive(_messages([0, 2]))  # a client that fails returns nothing
    lap = grid.traffic.since(first)
    assert lap.totals()["bytes_down_unbundled"] == 2 * DOWN
    assert grid.traffic.since(before).totals()["bytes_down_unbundled"] == 3 * DOWN
    assert lap.by_client(K)["bytes_up"].tolist() == [UP, 0, 0, 0, 0, 0, 0]
    assert lap.by_client(3)["bytes_down"].tolist() == [DOWN, 0, DOWN]


def test_nothing_is_serialised(monkeypatch: pytest.MonkeyPatch) -> None:
    content = RecordDict({"arrays": _model()})
    for kind in (RecordDict, ArrayRecord):
        monkeypatch.setattr(kind, "deflate", lambda *_: pytest.fail("serialised"))
    assert content_bytes(content) == 7 + MODEL_BYTES


def test_a_reply_of_more_bytes_than_it_may_have_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_grid, "_TIMES_SENT", 0)
    monkeypatch.setattr(client_grid, "_BYTES_PER_CLIENT", 10)
    monkeypatch.setattr(client_grid, "unpack", None)
    (reply, *_) = _connected(_app(), 1).send_and_receive(_messages([0, 1]))
    assert "the node's reply must have at most 20 bytes, it has" in reply.error.reason


def test_a_reply_may_have_the_more_entries_the_more_arrays_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_grid, "_ENTRIES_PER_CLIENT", 0)
    monkeypatch.setattr(client_grid, "_ARRAYS_PER_CLIENT", 0)
    # One array was sent, so 16 are allowed. The reply has a model of one, two metrics and an index of one.
    grid = _connected(_app(), 1)
    assert _failed(grid.send_and_receive(_messages([0]))) == {}
    monkeypatch.setattr(client_grid, "_TIMES_SENT", 6)
    line = "the node's reply must have at most 6 records and entries, it has 7"
    assert _failed(grid.send_and_receive(_messages([0]))) == {0: line}


class _Joins(WrappedGrid):
    """Answers in the joined form, as nodes do over a SuperLink."""

    complete = False

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        for each in (asked := list(messages)):
            each.content = separated(each.content)
        replies = list(self._grid.send_and_receive(asked, timeout=timeout))
        for reply in replies:
            reply.content = joined(reply.content)
        return replies


def test_a_reply_of_more_arrays_than_it_may_have_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_module, "_MANY", 0)
    grid = ClientGrid(_Joins(LocalGrid(_app(), {}, 1)))
    grid.connect()
    assert _failed(grid.send_and_receive(_messages([0, 1]))) == {}
    monkeypatch.setattr(client_grid, "_TIMES_SENT", 0)
    monkeypatch.setattr(client_grid, "_BYTES_PER_CLIENT", 10**6)
    monkeypatch.setattr(client_grid, "_ARRAYS_PER_CLIENT", 0)
    failed = _failed(grid.send_and_receive(_messages([0, 1])))
    assert {*failed} == {0, 1}
    assert "arrays must be joined as their layout says: ValueError('at most 0 characters')" in failed[0]
