import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedclust.federation import ClientGrid, LocalGrid, hosted_clients, is_bundle, pack, unpack
from fedclust.grids.client_grid import Meter, content_bytes
from fedclust.messages.codec import encode
from fedclust.messages.description import Hosted


def _arrays(value: float) -> ArrayRecord:
    return ArrayRecord([np.full(3, value)])


def test_what_is_packed_comes_out() -> None:
    contents = {
        4: RecordDict({"arrays": _arrays(1.0), "metrics": MetricRecord({"loss": 0.5})}),
        9: RecordDict({"arrays": _arrays(2.0)}),
    }
    unpacked, errors = unpack(pack(contents, {2: "no data"}))
    assert errors == {2: "no data"}
    assert list(unpacked) == [4, 9]
    assert list(unpacked[4]) == ["arrays", "metrics"]
    assert unpacked[4].metric_records["metrics"]["loss"] == 0.5
    np.testing.assert_array_equal(unpacked[9].array_records["arrays"]["0"].numpy(), [2.0, 2.0, 2.0])


def test_a_shared_record_travels_once_and_is_shared_again() -> None:
    shared = _arrays(1.0)
    contents = {
        client: RecordDict({"arrays": shared, "config": ConfigRecord({"c": client})}) for client in range(5)
    }
    bundle = pack(contents)
    assert len(bundle.array_records) == 1
    assert len(bundle.config_records) == 5 + 1  # the clients' and the index
    unpacked, _ = unpack(bundle)
    assert len({id(content["arrays"]) for content in unpacked.values()}) == 1
    assert [content.config_records["config"]["c"] for content in unpacked.values()] == list(range(5))


def test_a_shared_content_is_shared_again() -> None:
    content = RecordDict({"arrays": _arrays(1.0)})
    unpacked, _ = unpack(pack({0: content, 1: content}))
    assert unpacked[0] is unpacked[1]


def test_an_empty_bundle() -> None:
    assert unpack(pack({})) == ({}, {})


def test_only_a_bundle_is_one() -> None:
    assert is_bundle(pack({}))
    content = RecordDict({"arrays": _arrays(1.0)})
    assert not is_bundle(content)
    with pytest.raises(ValueError, match=r"must be a bundle .* its records are \['arrays'\]"):
        unpack(content)


def test_a_client_with_content_and_error_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clients \[3\] have both"):
        pack({3: RecordDict()}, {3: "failed"})


K = 6
MODEL_BYTES = 128 + 2 * 8  # a .npy header and two numbers of eight bytes
DOWN = len("arrays") + len("w") + MODEL_BYTES + len("config") + len("server-round") + 8
UP = len("arrays") + len("w") + MODEL_BYTES + len("metrics") + len("loss") + 8


def model() -> ArrayRecord:
    arrays = ArrayRecord()
    arrays["w"] = Array(np.zeros(2))
    return arrays


def app(shares_a_mean: bool = False, failing: int = -1) -> ClientApp:
    app = ClientApp()

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        return Message(encode(Hosted(hosted_clients(context.node_config, K), K)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        mean = model()
        answers = {
            client: RecordDict(
                {"arrays": mean if shares_a_mean else model(), "metrics": MetricRecord({"loss": 0.5})}
            )
            for client in unpack(message.content)[0]
            if client != failing
        }
        return Message(pack(answers, {failing: "no data"} if failing >= 0 else {}), reply_to=message)

    return app


def grid(num_nodes: int, **options: object) -> ClientGrid:
    grid = ClientGrid(LocalGrid(app(**options), {}, num_nodes))
    grid.connect()
    return grid


def messages(clients: list[int]) -> list[Message]:
    content = RecordDict({"arrays": model(), "config": ConfigRecord({"server-round": 1})})
    return [Message(content, dst_node_id=client, message_type="train") for client in clients]


def test_bytes_of_a_content() -> None:
    content = RecordDict(
        {
            "arrays": model(),
            "metrics": MetricRecord({"loss": 0.5, "steps": [1, 2, 3]}),
            "config": ConfigRecord({"name": "Ürich", "raw": b"12", "flags": [True, False], "none": []}),
        }
    )
    arrays = 6 + 1 + MODEL_BYTES
    metrics = 7 + (4 + 8) + (5 + 3 * 8)
    config = 6 + (4 + 6) + (3 + 2) + (5 + 2 * 1) + (4 + 0)  # Ü takes two bytes
    assert len(content["arrays"]["w"].data) == MODEL_BYTES
    assert content_bytes(content) == arrays + metrics + config


def test_bytes_of_a_list_of_texts() -> None:
    assert content_bytes(RecordDict({"c": ConfigRecord({"n": ["cat", "horse"]})})) == 1 + 1 + 3 + 5


@pytest.mark.parametrize("num_nodes", [1, 2, K])
@pytest.mark.parametrize("pull", [False, True])
def test_a_shared_model_travels_once_per_node(num_nodes: int, pull: bool) -> None:
    clients = [0, 1, 2, 5]
    over = grid(num_nodes)
    if pull:
        over.pull_messages(over.push_messages(messages(clients)))
    else:
        over.send_and_receive(messages(clients))
    found = over.traffic
    expected = np.zeros(K, dtype=int)
    expected[clients] = 1
    np.testing.assert_array_equal(found.down_by_client, DOWN * expected)
    np.testing.assert_array_equal(found.up_by_client, UP * expected)
    nodes = len({over._nodes.node_of[client] for client in clients})
    # A bundle's own index names its clients and their records: some hundred bytes a node.
    assert nodes * DOWN <= found.down <= nodes * (DOWN + 250)
    # Each has a model of its own to return; in a bundle, records bear shorter names (13 is arrays + metrics).
    assert 4 * (UP - 13) <= found.up <= 4 * UP + nodes * 500


def test_a_mean_goes_up_once_per_node() -> None:
    found = grid(2, shares_a_mean=True)
    found.send_and_receive(messages(list(range(K))))
    apart = grid(2)
    apart.send_and_receive(messages(list(range(K))))
    # Two nodes of three clients: two models instead of six, and the same to each client alone.
    saved = apart.traffic.up - found.traffic.up
    assert 4 * MODEL_BYTES <= saved <= 4 * (MODEL_BYTES + 30)
    assert found.traffic.totals()["bytes_up_unbundled"] == K * UP


def test_clients_that_fail_or_are_offline_return_nothing() -> None:
    over = grid(1, failing=2)
    over.send_and_receive(messages([1, 2]))
    assert over.traffic.up_by_client.tolist() == [0, UP, 0, 0, 0, 0]
    assert over.traffic.down_by_client.tolist() == [0, DOWN, DOWN, 0, 0, 0]


def test_since_and_totals() -> None:
    over = grid(1)
    before = over.traffic
    over.send_and_receive(messages([0]))
    first = over.traffic
    over.send_and_receive(messages([0, 1]))
    lap = over.traffic.since(first)
    assert lap.totals()["bytes_down_unbundled"] == 2 * DOWN
    assert over.traffic.since(before).totals()["bytes_down_unbundled"] == 3 * DOWN
    assert lap.by_client(K)["bytes_up"].tolist() == [UP, UP, 0, 0, 0, 0]
    assert before.totals() == dict.fromkeys(
        ("bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled"), 0
    )


def test_nothing_is_serialised(monkeypatch: pytest.MonkeyPatch) -> None:
    content = RecordDict({"arrays": model()})
    for kind in (RecordDict, ArrayRecord):
        monkeypatch.setattr(kind, "deflate", lambda *_: pytest.fail("serialised"))
    meter = Meter()
    meter.count("down", pack({0: content, 1: content}), {0: content, 1: content})
    assert meter.read(2).down_by_client.tolist() == [7 + MODEL_BYTES] * 2


def test_a_reply_of_more_bytes_than_it_may_have_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedclust.grids import client_grid

    monkeypatch.setattr(client_grid, "_TIMES_SENT", 0)
    monkeypatch.setattr(client_grid, "_BYTES_PER_CLIENT", 10)
    monkeypatch.setattr(client_grid, "unpack", None)
    grid = ClientGrid(LocalGrid(app(), {}, 1))
    grid.connect()
    (reply, *_) = grid.send_and_receive(messages([0, 1]))
    assert "the node's reply must have at most 20 bytes, it has" in reply.error.reason
