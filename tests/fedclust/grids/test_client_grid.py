from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedclust.federation import (
    ClientGrid,
    CohortView,
    FederationError,
    LocalGrid,
    hosted_clients,
    pack,
    unpack,
)
from fedclust.grids.client_grid import Outages, WrappedGrid, error_reason
from fedclust.grids.local_grid import BlockingGrid, assume_identity
from fedclust.grids.superlink import PromptGrid
from fedclust.messages.codec import encode
from fedclust.messages.description import Hosted

K = 7


def _hosted(context: Context) -> tuple[int, ...]:
    return hosted_clients(context.node_config, int(context.run_config["num-clients"]))


def _echo_app(failing_clients: Iterable[int] = (), failing_nodes: Iterable[int] = ()) -> ClientApp:
    """Each client adds its id to the model and reports id + 1 samples."""
    app = ClientApp()
    app.bundles = []  # type: ignore[attr-defined]

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        content = encode(Hosted(_hosted(context), int(context.run_config["num-clients"])))
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] in failing_nodes:
            raise RuntimeError("out of memory")
        app.bundles.append(message.content)  # type: ignore[attr-defined]
        contents, _ = unpack(message.content)
        assert set(contents) <= set(_hosted(context))
        errors = {client: "no data" for client in contents if client in failing_clients}
        answers = {}
        for client, content in contents.items():
            if client not in errors:
                start = content.array_records["arrays"]["w"].numpy()
                arrays = ArrayRecord()
                arrays["w"] = Array(start + client)
                metrics = MetricRecord({"num-examples": client + 1, "loss": float(client)})
                answers[client] = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(pack(answers, errors), reply_to=message)

    return app


def _local(app: ClientApp, num_nodes: int = 3, num_clients: int = K) -> LocalGrid:
    return LocalGrid(app, {"num-clients": num_clients}, num_nodes)


def _grid(app: ClientApp, num_nodes: int = 3) -> ClientGrid:
    grid = ClientGrid(_local(app, num_nodes))
    grid.connect()
    return grid


def _model() -> ArrayRecord:
    arrays = ArrayRecord()
    arrays["w"] = Array(np.zeros(2))
    return arrays


def _messages(clients: Iterable[int]) -> list[Message]:
    content = RecordDict({"arrays": _model(), "config": ConfigRecord({"server-round": 1})})
    return [Message(content, dst_node_id=client, message_type=MessageType.TRAIN) for client in clients]


@pytest.mark.parametrize("num_nodes", [1, 2, K, K + 3])
def test_nodes_look_like_clients(num_nodes: int) -> None:
    grid = ClientGrid(_local(_echo_app(), num_nodes))
    assert grid.connect() == K
    assert grid.get_node_ids() == list(range(K))
    replies = grid.send_and_receive(_messages([5, 2, 3]))
    assert [reply.metadata.src_node_id for reply in replies] == [2, 3, 5]
    for reply in replies:
        client = reply.metadata.src_node_id
        np.testing.assert_array_equal(reply.content.array_records["arrays"]["w"].numpy(), [client, client])


def test_a_node_gets_one_message_with_the_model_once() -> None:
    app = _echo_app()
    _grid(app, num_nodes=2).send_and_receive(_messages(range(K)))
    assert len(app.bundles) == 2  # type: ignore[attr-defined]
    assert all(len(bundle.array_records) == 1 for bundle in app.bundles)  # type: ignore[attr-defined]


def test_a_failing_client_costs_its_own_reply() -> None:
    replies = _grid(_echo_app(failing_clients=[2])).send_and_receive(_messages(range(K)))
    assert [reply.metadata.src_node_id for reply in replies if reply.has_error()] == [2]
    assert replies[2].error.reason == "no data"


def test_a_failing_node_costs_its_clients_replies() -> None:
    # Node 1 of 3 hosts clients 1 and 4.
    replies = _grid(_echo_app(failing_nodes=[1])).send_and_receive(_messages(range(K)))
    failed = {reply.metadata.src_node_id: reply.error.reason for reply in replies if reply.has_error()}
    assert failed == {1: "RuntimeError: out of memory", 4: "RuntimeError: out of memory"}


class _Nodes(WrappedGrid):
    """Nodes that come, go and fall silent."""

    def __init__(self, grid: LocalGrid, online: Iterable[int]) -> None:
        super().__init__(grid)
        self.all = list(grid.get_node_ids())
        self.online, self.silent = list(online), []

    def get_node_ids(self) -> list[int]:
        return [self.all[node] for node in self.online]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return [r for r in replies if r.metadata.src_node_id not in [self.all[node] for node in self.silent]]


def test_connect_waits_for_all_clients_and_says_how_many() -> None:
    nodes = _Nodes(_local(_echo_app()), online=[0])
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        nodes.online.append(len(nodes.online))  # another node comes

    assert ClientGrid(nodes, poll=0.0, say=say).connect() == K
    # Node 0 hosts 0, 3, 6 and node 1 hosts 1, 4.
    assert said == ["waiting for clients: 3 of 7 online", "waiting for clients: 5 of 7 online"]


def test_connect_names_the_missing_clients() -> None:
    nodes = _Nodes(_local(_echo_app()), online=[0, 2])
    with pytest.raises(FederationError, match="within 0.05 s, 2 of 7 are missing: 1, 4"):
        ClientGrid(nodes, wait=0.05, poll=0.01, say=lambda line: None).connect()


def test_connect_without_nodes() -> None:
    nodes = _Nodes(_local(_echo_app()), online=[])
    with pytest.raises(FederationError, match="no node came online"):
        ClientGrid(nodes, wait=0.01, poll=0.01, say=lambda line: None).connect()


def _claiming(hosted: dict[int, tuple[int, ...]], num_clients: dict[int, int]) -> ClientApp:
    app = ClientApp()

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        return Message(encode(Hosted(hosted[node], num_clients[node])), reply_to=message)

    return app


def test_a_client_claimed_twice_is_an_error_that_names_both_nodes() -> None:
    grid = LocalGrid(_claiming({0: (0, 1), 1: (1, 2)}, {0: 3, 1: 3}), {}, 2)
    first, second = grid.get_node_ids()
    with pytest.raises(FederationError, match=f"client 1 .* nodes {first} and {second} claim it"):
        ClientGrid(grid).connect()


def _sharing(steps: list[int], others: dict[int, str] | None = None) -> ClientApp:
    """Make an app whose nodes may train any client, and write down whom they were given."""
    app = ClientApp()
    app.given = []  # type: ignore[attr-defined]

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        everyone, data = tuple(range(len(steps))), (others or {}).get(context.node_id, "")
        content = encode(Hosted(everyone, len(steps), data=data, steps=steps))
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        contents, _ = unpack(message.content)
        app.given.append((context.node_id, sorted(contents)))  # type: ignore[attr-defined]
        return Message(pack(contents), reply_to=message)

    return app


class _Growing(_Nodes):
    """Nodes that any client may be sent to, of which one joins when it is looked for."""

    shared = True

    def __init__(self, grid: LocalGrid, online: list[int], joining: list[int]) -> None:
        super().__init__(grid, online)
        self.joining = joining

    def grow(self) -> None:
        self.online += self.joining


def test_where_any_node_may_train_anybody_the_longest_go_first() -> None:
    app = _sharing([1, 9, 2, 4, 3])
    nodes = _Growing(LocalGrid(app, {}, 3), online=[0, 1], joining=[])
    first, second, third = nodes._grid.get_node_ids()
    grid = ClientGrid(nodes)
    assert grid.connect() == 5
    replies = grid.send_and_receive(_messages(range(5)))
    assert [reply.metadata.src_node_id for reply in replies] == [0, 1, 2, 3, 4]
    # 9 to the first; 4, 3, 2 to the second, 9 then; 1 to the node with fewer clients, the first.
    assert sorted(app.given) == [(first, [0, 1]), (second, [2, 3, 4])]  # type: ignore[attr-defined]
    app.given.clear()  # type: ignore[attr-defined]
    nodes.joining = [2]
    assert not any(reply.has_error() for reply in grid.send_and_receive(_messages([0, 2, 3, 4])))
    # 4, 3 and 2 to a node each; 1 to the third, which has the fewest steps.
    assert sorted(app.given) == [(first, [3]), (second, [4]), (third, [0, 2])]  # type: ignore[attr-defined]


def test_a_shared_node_with_other_data_is_named_before_the_start() -> None:
    grid = LocalGrid(_sharing([1, 1], {LocalGrid(_sharing([1]), {}, 3).get_node_ids()[1]: "abd"}), {}, 3)
    nodes = _Growing(grid, online=[0, 1, 2], joining=[])
    ClientGrid(nodes).connect()  # two say nothing of their data
    app = _sharing([1, 1], dict(zip(grid.get_node_ids(), ["abc", "abd", "abc"], strict=True)))
    with pytest.raises(FederationError, match="of 3 nodes .* is another: node "):
        ClientGrid(_Growing(LocalGrid(app, {}, 3), online=[0, 1, 2], joining=[])).connect()


def test_no_node_of_a_deployment_may_say_that_it_trains_anybody() -> None:
    # The grid must say so as well; else a node could get the messages of others' clients.
    with pytest.raises(FederationError, match="client 0 must be hosted by one node"):
        ClientGrid(LocalGrid(_sharing([1, 1]), {}, 2)).connect()


def test_nodes_that_disagree_on_the_federation_are_an_error() -> None:
    grid = LocalGrid(_claiming({0: (0, 1), 1: (2,)}, {0: 3, 1: 4}), {}, 2)
    with pytest.raises(FederationError, match="one has 3 and another 4"):
        ClientGrid(grid).connect()


def test_a_node_that_cannot_serve_is_an_error_with_itserror_reason() -> None:
    app = ClientApp()

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        raise FileNotFoundError("no such folder: data")

    with pytest.raises(FederationError, match="FileNotFoundError: no such folder: data"):
        ClientGrid(LocalGrid(app, {}, 1)).connect()


def test_a_round_that_everybody_misses_is_that_of_when_they_are_back() -> None:
    nodes = _Nodes(_local(_echo_app()), online=[0, 1, 2])

    def say(line: str) -> None:
        said.append(line)
        nodes.online.append(len(nodes.online))  # a node is back

    said: list[str] = []
    grid = ClientGrid(nodes, outages=Outages(60, 0.5, poll=0.0, say=say))
    grid.connect()
    nodes.online = []
    replies = grid.send_and_receive(_messages(range(K)))
    assert [reply.metadata.src_node_id for reply in replies if not reply.has_error()] == list(range(K))
    # Node 0 hosts 0, 3, 6 and node 1 hosts 1, 4; ceil(0.5 x 7) = 4 must answer.
    assert [line[: line.index(",")] for line in said] == [
        f"waiting for clients: {online} of 7 online" for online in (0, 3, 5)
    ]
    nodes.online = []
    assert grid.get_node_ids() == list(range(K))  # whom an evaluation goes to


def test_clients_of_a_node_that_left_are_offline_and_come_back_with_another() -> None:
    nodes = _Nodes(_local(_echo_app()), online=[0, 1, 2])
    grid = ClientGrid(nodes)
    grid.connect()
    nodes.online = [0, 2]
    assert grid.get_node_ids() == [0, 2, 3, 5, 6]
    replies = grid.send_and_receive(_messages(range(K)))
    assert {r.metadata.src_node_id: r.error.reason for r in replies if r.has_error()} == {
        1: "client 1 is offline",
        4: "client 4 is offline",
    }
    assert grid.num_clients == K
    nodes.online = [0, 1, 2]
    assert not any(reply.has_error() for reply in grid.send_and_receive(_messages(range(K))))


def test_a_node_that_joins_a_run_and_cannot_serve_is_left_out() -> None:
    # Node 0 hosts all of 2 clients; node 1, which comes later, believes in 5.
    nodes = _Nodes(_local(_claiming({0: (0, 1), 1: (1, 4)}, {0: 2, 1: 5}), num_nodes=2), online=[0])
    said: list[str] = []
    grid = ClientGrid(nodes, say=said.append)
    grid.connect()
    nodes.online.append(1)
    assert [grid.get_node_ids() for _ in range(2)] == [[0, 1], [0, 1]]
    assert said == [
        "node 3 is left out: all nodes must have the same number of clients, one has 2 and another 5"
    ]


def _holding(data: dict[int, str], hosted: dict[int, tuple[int, ...]]) -> ClientApp:
    app = ClientApp()

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        return Message(encode(Hosted(hosted[node], 3, f"site-{node}", data[node])), reply_to=message)

    return app


def test_a_node_whose_data_is_another_is_named_before_the_start() -> None:
    app = _holding({0: "abc", 1: "abd", 2: "abc"}, {0: (0,), 1: (1,), 2: (2,)})
    with pytest.raises(FederationError, match=r"of 3 nodes .* is another: node 'site-1' \(clients 1\)$"):
        ClientGrid(LocalGrid(app, {}, 3)).connect()
    app = _holding({0: "abc", 1: "abd"}, {0: (0, 1), 1: (2,)})
    with pytest.raises(FederationError, match=r"of 2 nodes these differ: .*'site-0' .*'site-1'"):
        ClientGrid(LocalGrid(app, {}, 2)).connect()


def test_a_node_whose_data_is_another_is_left_out_later() -> None:
    app = _holding({0: "abc", 1: "abd", 2: "abc"}, {0: (0, 1), 1: (2,), 2: (2,)})
    nodes = _Nodes(LocalGrid(app, {}, 3), online=[0, 2])
    said: list[str] = []
    grid = ClientGrid(nodes, say=said.append)
    grid.connect()
    nodes.online = [0, 1]
    assert grid.get_node_ids() == [0, 1]
    assert said == [
        "node 'site-1' is left out: clients 2: all nodes must hold the same data and partition, "
        "its data is another"
    ]


def test_a_second_node_does_not_get_the_clients_of_one_that_is_away() -> None:
    app = _holding({0: "", 1: "", 2: ""}, {0: (0, 1), 1: (2,), 2: (0, 1, 2)})
    nodes = _Nodes(LocalGrid(app, {}, 3), online=[0, 1])
    said: list[str] = []
    grid = ClientGrid(nodes, say=said.append)
    grid.connect()
    nodes.online = [1, 2]
    assert grid.get_node_ids() == [2]
    assert said[0] == "node 'site-2' claims clients 0-1, which belong to node 'site-0': refused"
    nodes.online = [1, 2, 0]
    assert grid.get_node_ids() == [0, 1, 2]
    assert len(said) == 2  # each refusal is told once


def test_clients_that_come_after_the_start_join_when_they_are_admitted() -> None:
    # Node 0 hosts 0, 3, 6 and node 2 hosts 2, 5; node 1, with 1 and 4, comes later.
    app = _echo_app()
    nodes = _Nodes(_local(app), online=[0, 2])
    grid = ClientGrid(nodes, min_clients=5)
    assert grid.connect() == 5
    assert grid.places == (0, 2, 3, 5, 6)
    assert grid.newcomers() == []
    nodes.online = [0, 1, 2]
    assert grid.get_node_ids() == [0, 1, 2, 3, 4]
    assert grid.newcomers() == [1, 4]
    assert grid.admit(grid.newcomers()) == [5, 6]
    assert (grid.num_clients, grid.newcomers()) == (K, [])
    # Clients add their id in the partition to the model: here 1 is its client 2, and 6 its client 4.
    replies = {r.metadata.src_node_id: r for r in grid.send_and_receive(_messages([1, 6]))}
    for client, place in {1: 2, 6: 4}.items():
        np.testing.assert_array_equal(
            replies[client].content.array_records["arrays"]["w"].numpy(), [place] * 2
        )
    ids = grid.push_messages(_messages([6]))
    assert [reply.metadata.src_node_id for reply in grid.pull_messages(ids)] == [6]
    assert (grid.traffic.down_by_client > 0).tolist() == [False, True, False, False, False, False, True]


def test_a_run_that_goes_on_keeps_its_clients_ids() -> None:
    grid = ClientGrid(_local(_echo_app()))
    assert grid.connect(known=[5, 2]) == 2
    assert (grid.places, grid.newcomers()) == ((5, 2), [0, 1, 3, 4, 6])


def test_too_few_clients_to_start() -> None:
    nodes = _Nodes(_local(_echo_app()), online=[0])
    with pytest.raises(FederationError, match=r"4 clients \(min_clients\) must be online within"):
        ClientGrid(nodes, wait=0.01, poll=0.01, say=lambda line: None, min_clients=4).connect()


def test_a_node_that_does_not_list_its_clients_is_an_error() -> None:
    app = ClientApp()

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    with pytest.raises(FederationError, match="a node's reply: no 'clients'"):
        ClientGrid(_local(app)).connect()


def test_a_node_without_reply_fails_its_clients() -> None:
    nodes = _Nodes(_local(_echo_app()), online=[0, 1, 2])
    grid = ClientGrid(nodes)
    grid.connect()
    nodes.silent = [1]
    replies = grid.send_and_receive(_messages(range(K)), timeout=2.0)
    assert {r.metadata.src_node_id: r.error.reason for r in replies if r.has_error()} == {
        1: "no reply within 2.0 s",
        4: "no reply within 2.0 s",
    }


def test_push_and_pull() -> None:
    grid = _grid(_echo_app(failing_clients=[4]))
    ids = grid.push_messages(_messages([0, 4, 6]))
    assert len(set(ids)) == 3
    replies = grid.pull_messages(ids)
    assert sorted(reply.metadata.src_node_id for reply in replies) == [0, 4, 6]
    assert [reply.metadata.src_node_id for reply in replies if reply.has_error()] == [4]
    assert grid.pull_messages(ids) == []


def test_two_messages_of_a_kind_to_one_client_are_refused() -> None:
    with pytest.raises(ValueError, match="client 3 got two"):
        _grid(_echo_app()).send_and_receive(_messages([3, 3]))


def test_the_number_of_clients_is_unknown_before_connecting() -> None:
    with pytest.raises(FederationError, match="known once connect"):
        _ = ClientGrid(_local(_echo_app())).num_clients


def test_a_view_has_only_its_clients() -> None:
    view = CohortView(_grid(_echo_app()), [4, 1])
    assert view.get_node_ids() == [4, 1]
    assert len(list(view.send_and_receive(_messages([1])))) == 1


def test_stock_fedavg_runs_unmodified() -> None:
    # w starts at 0; client k returns w + k and weighs k + 1, so every round adds
    # sum k (k + 1) / sum (k + 1) = (0 + 2 + 6 + 12 + 20 + 30 + 42) / 28 = 4.
    result = FedAvg(fraction_evaluate=0.0).start(_grid(_echo_app()), _model(), num_rounds=2)
    np.testing.assert_allclose(result.arrays["w"].numpy(), [8.0, 8.0])


def test_stock_fedadam_runs_unmodified() -> None:
    # Round 1: delta = 4, m = (1 - 0.9) 4 = 0.4, v = (1 - 0.99) 16 = 0.16;
    # rate = 0.1 sqrt(1 - 0.99^2) / (1 - 0.9^2) = 0.1 * 0.14106736 / 0.19 = 0.07424598;
    # w = 0.07424598 * 0.4 / (0.4 + 0.001) = 0.07406083.
    result = FedAdam(fraction_evaluate=0.0).start(_grid(_echo_app()), _model(), num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), [0.07406083, 0.07406083], rtol=1e-6)


def test_only_the_apps_own_message_is_kept_of_rays_traceback() -> None:
    # As Flower's simulation writes a failed client's error, shortened in the middle.
    ray = (
        "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor.run() (pid=29179)\n"
        'File "clients/app.py", line 24, in hosted\nValueError: num_clients must be at most 1797\n'
        "Exception ClientAppException occurred. Message: num_clients must be at most 1797'>"
    )
    assert error_reason(Error(2, ray)) == "num_clients must be at most 1797"
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
    assert ClientGrid(PromptGrid(Registered(_local(_echo_app()))), wait=0.0, hosts=hosts).connect() == K


QUICK = {"poll": 0.0, "settle": 0.0}


@pytest.fixture(autouse=True)
def _server() -> None:
    assume_identity(1)  # Flower's messages ask who makes them


class Clients:
    """Clients that lose their next replies, and are offline for so many looks."""

    def __init__(
        self, lost: dict[int, int], offline_for: int = 0, code: int = ErrorCode.NODE_UNAVAILABLE
    ) -> None:
        self.lost, self.offline_for, self.code = dict(lost), offline_for, code
        self.asked: list[list[int]] = []

    def ask(self, messages: Sequence[Message]) -> list[Message]:
        self.asked.append([each.metadata.dst_node_id for each in messages])
        return [self._reply(each) for each in messages]

    def _reply(self, message: Message) -> Message:
        client = message.metadata.dst_node_id
        if self.lost.get(client, 0):
            self.lost[client] -= 1
            return Message(Error(self.code, "gone"), reply_to=message)
        return Message(RecordDict(), reply_to=message)

    def online(self) -> Collection[int]:
        self.offline_for -= 1
        return range(100) if self.offline_for < 0 else ()


def _questions(number: int, kind: str = MessageType.TRAIN) -> list[Message]:
    return [Message(RecordDict(), dst_node_id=client, message_type=kind) for client in range(number)]


def _failed(replies: Sequence[Message]) -> list[int]:
    return sorted(each.metadata.src_node_id for each in replies if each.has_error())


def test_those_that_were_lost_are_asked_again_and_nobody_else() -> None:
    # 1 of 10 answers, ceil(0.2 x 10) = 2 must.
    clients = Clients(dict.fromkeys(range(9), 1), offline_for=3)
    said: list[str] = []
    outages = Outages(60, 0.2, say=said.append, **QUICK)
    assert _failed(outages.exchange(clients.ask, _questions(10), clients.online, 10)) == []
    assert clients.asked == [list(range(10)), list(range(9))]
    assert said == [
        "waiting for clients: 0 of 9 online, 1 must answer (min_replies=0.2), for 1 minutes at most"
    ]


def test_where_enough_have_answered_nobody_is_waited_for() -> None:
    clients = Clients(dict.fromkeys(range(8), 1), offline_for=10**9)
    assert _failed(Outages(60, 0.2).exchange(clients.ask, _questions(10), clients.online, 10)) == list(
        range(8)
    )
    assert len(clients.asked) == 1


@pytest.mark.parametrize("outages", [Outages(0, 0.2), Outages(60, 0.0), Outages()])
def test_without_time_or_a_least_number_everybody_is_asked_once(outages: Outages) -> None:
    clients = Clients(dict.fromkeys(range(10), 1), offline_for=10**9)
    assert _failed(outages.exchange(clients.ask, _questions(10), clients.online, 10)) == list(range(10))
    assert len(clients.asked) == 1


def test_a_client_that_raises_is_not_asked_again() -> None:
    clients = Clients(dict.fromkeys(range(10), 1), code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
    Outages(60, 0.2, **QUICK).exchange(clients.ask, _questions(10), clients.online, 10)
    assert len(clients.asked) == 1


def test_a_question_that_kills_its_nodes_is_not_repeated_for_ever() -> None:
    clients = Clients(dict.fromkeys(range(4), 10**9))
    replies = Outages(3600, 0.2, **QUICK).exchange(clients.ask, _questions(4), clients.online, 4)
    assert _failed(replies) == [0, 1, 2, 3]
    assert len(clients.asked) == 1 + 5


def test_when_the_time_is_up_the_losses_stay() -> None:
    clients = Clients(dict.fromkeys(range(4), 1), offline_for=10**9)
    replies = Outages(0.01, 0.2, **QUICK).exchange(clients.ask, _questions(4), clients.online, 4)
    assert _failed(replies) == [0, 1, 2, 3]
    assert len(clients.asked) == 1


@pytest.mark.parametrize(("number", "times"), [(5, 1), (6, 2)])
def test_a_question_besides_training_is_repeated_if_most_clients_are_asked(number: int, times: int) -> None:
    # Of ten clients: half of them, such as those that have just joined, can be done without.
    clients = Clients(dict.fromkeys(range(number), 1))
    messages = _questions(number, "query.losses")
    Outages(60, 0.2, **QUICK).exchange(clients.ask, messages, clients.online, 10)
    assert len(clients.asked) == times


def test_once_enough_are_back_the_others_have_some_time() -> None:
    looks = iter([set(), {0}, {0, 1}, {0, 1, 2}])  # one is needed, and the last one comes within `settle`
    assert Outages(60, 0.2, poll=0.0, settle=30.0).wait_for(range(3), 1, lambda: next(looks))
    assert list(looks) == []


def test_once_enough_are_back_the_others_are_not_waited_for_long() -> None:
    looks = iter([set(), {0}, *[{0}] * 1000])
    assert Outages(60, 0.2, poll=0.001, settle=0.01).wait_for(range(3), 1, lambda: next(looks))
    assert len(list(looks)) > 0
