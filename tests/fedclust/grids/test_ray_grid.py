import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedclust import data
from fedclust.clients import app
from fedclust.federation import FederationError
from fedclust.grids import ray_grid
from fedclust.grids.client_grid import ClientGrid, pack, unpack
from fedclust.grids.local_grid import LocalGrid
from fedclust.grids.ray_grid import Machine, RayGrid, Shares, raylet_is_gone, share_out
from fedclust.messages.codec import encode
from fedclust.messages.description import Hosted
from fedclust.messages.models import from_state
from fedclust.settings.composition import compose, to_run_config
from fedclust.strategies import ClusteredStrategy

LAPTOP = [Machine(cpus=4)]
SERVER = [Machine(cpus=16, gpus=2)]
MIXED = [Machine(cpus=8, gpus=1), Machine(cpus=4), Machine(cpus=16, gpus=2)]


@pytest.mark.parametrize(
    ("machines", "asked", "shares"),
    [
        (LAPTOP, {}, Shares(4, 1, 0)),
        ([Machine(cpus=64)], {}, Shares(8, 8, 0)),  # at most eight unless asked for
        ([Machine(cpus=64)], {"num_nodes": 32}, Shares(32, 2, 0)),
        (LAPTOP, {"num_nodes": 3}, Shares(3, 1, 0)),
        (LAPTOP, {"num_nodes": 6}, Shares(6, 0.5, 0)),  # of halves of CPUs eight would fit
        (LAPTOP, {"num_cpus": 2}, Shares(2, 2, 0)),
        (LAPTOP, {"num_cpus": 0.5}, Shares(8, 0.5, 0)),
        ([Machine(cpus=1)], {}, Shares(1, 1, 0)),
        (SERVER, {}, Shares(2, 8, 1)),
        (SERVER, {"num_gpus": 0.5}, Shares(4, 4, 0.5)),
        (SERVER, {"num_gpus": 1 / 3}, Shares(6, 2, 1 / 3)),
        (SERVER, {"num_gpus": 2}, Shares(1, 16, 2)),
        (SERVER, {"num_gpus": 0}, Shares(8, 2, 0)),
        (SERVER, {"num_nodes": 3}, Shares(3, 5, 0.5)),  # two on one GPU, so halves
        (SERVER, {"num_nodes": 1}, Shares(1, 16, 1)),
        # Nodes lie on one machine: 8 + 2 × 8 CPUs, and the machine without a GPU takes no part.
        (MIXED, {}, Shares(3, 8, 1)),
        # Without GPUs eight nodes need 2 CPUs each: 8 CPUs take 4 nodes, 4 take 2, 16 take 8; of 3 CPUs
        # they take 2 + 1 + 5 = 8 as well.
        (MIXED, {"num_gpus": 0}, Shares(8, 3, 0)),
    ],
)
def test_shares(machines, asked, shares) -> None:
    assert share_out(machines, **asked) == shares


@pytest.mark.parametrize(
    ("machines", "asked", "complaint"),
    [
        (
            LAPTOP,
            {"num_nodes": 3, "num_cpus": 2},
            "3 nodes of 2 CPUs .* must fit .* 2 do; its .* 4 CPUs, 0 GPUs",
        ),
        (LAPTOP, {"num_gpus": 1}, "1 nodes of 1 CPUs and 1 GPUs must fit into the Ray cluster, 0 do"),
        # Ten CPUs in all, but no machine of six.
        ([Machine(cpus=5)] * 2, {"num_cpus": 6}, "0 do; its machines have 5 CPUs, 0 GPUs; 5 CPUs, 0 GPUs"),
        # Two GPUs with a third left on each have no place for a third node.
        (SERVER, {"num_nodes": 3, "num_gpus": 2 / 3}, "2 do"),
        ([], {}, "its machines have nothing"),
        (LAPTOP, {"num_nodes": 0}, "num_nodes must be a whole number >= 1, got 0"),
        (LAPTOP, {"num_nodes": 1.5}, "num_nodes must be a whole number >= 1, got 1.5"),
        (LAPTOP, {"num_cpus": 0}, "num_cpus must be > 0, got 0"),
        (SERVER, {"num_gpus": -1}, r"num_gpus must be in \[0, 1\] or a whole number, got -1"),
        (SERVER, {"num_gpus": 1.5}, r"num_gpus must be in \[0, 1\] or a whole number, got 1.5"),
    ],
)
def test_what_cannot_be(machines, asked, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        share_out(machines, **asked)


ray = pytest.importorskip("ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLIENTS = 4
SMALL = ["partition=iid", "partition.num_clients=6", "training.steps=2", "device=cpu"]


def _app(steps: list[int] | None = None) -> ClientApp:
    """Make an app whose clients follow the message's config; with `steps` its nodes may train any client."""
    app = ClientApp()

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        nodes = int(context.node_config["num-partitions"])
        own = range(int(context.node_config["partition-id"]), CLIENTS, nodes)
        hosted = tuple(range(CLIENTS) if steps else own)
        return Message(encode(Hosted(hosted, CLIENTS, steps=steps or ())), reply_to=message)

    @app.query("do")
    def do(message: Message, context: Context) -> Message:
        answers = {}
        for client, content in unpack(message.content)[0].items():
            told = content.config_records["told"]
            if client == told.get("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            if client == told.get("sleep"):
                time.sleep(30 if told.get("long") else 1)
            machine = ray.get_runtime_context().get_node_id()
            said = {"pid": os.getpid(), "machine": machine, "threads": torch.get_num_threads()}
            answers[client] = RecordDict({"said": ConfigRecord(said)})
        return Message(pack(answers), reply_to=message)

    @app.query("memory")
    def memory(message: Message, context: Context) -> Message:
        config = json.loads(to_run_config(compose(SMALL))["config"])
        cache = Path(str(message.content.config_records["told"]["cache"]))
        federation = data.load(config["dataset"], config["partition"], 0, cache)
        total = int(federation.inputs.sum())  # every page is read
        own = {"Anonymous": 0, "Rss": 0}  # kB of the pages in memory, and of those that are not the file's
        mapped = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            key, *values = line.split()
            if not key.endswith(":"):
                mapped = line.endswith("inputs.npy")
            elif mapped and key[:-1] in own:
                own[key[:-1]] += int(values[0])
        return Message(RecordDict({"said": ConfigRecord({"total": total, **own})}), reply_to=message)

    return app


APP = _app()  # one app, so that the tests share their nodes
TWO = {"num_nodes": 2, "num_cpus": 0.5}


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    yield
    ray.shutdown()


@pytest.fixture
def grid() -> ClientGrid:
    clients = ClientGrid(RayGrid(APP, {}, **TWO))
    clients.connect()
    return clients


def _ask(grid: ClientGrid, timeout: float | None = None, **told: int) -> dict[int, Message]:
    content = RecordDict({"told": ConfigRecord(told)})
    messages = [Message(content, dst_node_id=client, message_type="query.do") for client in range(CLIENTS)]
    replies = grid.send_and_receive(messages, timeout=timeout)
    return {reply.metadata.src_node_id: reply for reply in replies}


def _said(reply: Message, key: str) -> int | str:
    return reply.content.config_records["said"][key]


def _pids(grid: ClientGrid) -> list[int]:
    return [int(_said(reply, "pid")) for reply in _ask(grid).values()]


def test_a_raylet_that_takes_no_connection_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "here"
    with socket.create_server(("127.0.0.1", 0)) as raylet, socket.create_server(("127.0.0.1", 0)) as other:
        nodes = [
            {"NodeID": name, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": server.getsockname()[1]}
            for name, server in ((here, raylet), ("elsewhere", other))
        ]
        other.close()
        context = SimpleNamespace(get_node_id=lambda: here)
        monkeypatch.setattr(ray, "nodes", lambda: nodes)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        assert not raylet_is_gone()
        raylet.close()
        assert raylet_is_gone()


def test_each_node_is_a_process_that_the_next_grid_finds(grid) -> None:
    replies = _ask(grid)
    pids = [_said(reply, "pid") for reply in replies.values()]
    assert pids[0] == pids[2] != pids[1] == pids[3]  # clients 0 and 2 on one node, 1 and 3 on the other
    assert os.getpid() not in pids
    assert {_said(reply, "threads") for reply in replies.values()} == {1}  # as many as CPUs
    again = ClientGrid(RayGrid(APP, {"another": "job"}, **TWO))
    again.connect()
    assert _pids(again) == pids


def test_a_dead_node_costs_its_clients_the_round(grid) -> None:
    before = _pids(grid)
    replies = _ask(grid, die=2)
    assert [client for client, reply in replies.items() if reply.has_error()] == [0, 2]
    assert "the node died and is replaced" in replies[0].error.reason
    after = _pids(grid)  # sent at once: it waits for the new process
    assert after[1] == before[1]
    assert after[0] == after[2] != before[0]


def test_nobody_waits_longer_than_the_timeout(grid) -> None:
    pids = _pids(grid)
    began = time.monotonic()
    replies = _ask(grid, timeout=1, sleep=1, long=1)
    assert time.monotonic() - began < 10
    assert {client: replies[client].error.reason for client in _failed(replies)} == {
        1: "no reply within 1 s",
        3: "no reply within 1 s",
    }
    after = _pids(grid)  # the node that sleeps on is replaced, the others are not
    assert [new == old for new, old in zip(after, pids, strict=True)] == [True, False, True, False]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's account of memory")
def test_the_dataset_is_mapped_not_copied(tmp_path) -> None:
    nodes, content = RayGrid(APP, {}, **TWO), RecordDict({"told": ConfigRecord({"cache": str(tmp_path)})})
    messages = [Message(content, node, "query.memory") for node in nodes.get_node_ids()]
    for reply in nodes.send_and_receive(messages):
        assert int(_said(reply, "Rss")) > 100  # 1,797 images of 64 bytes
        assert _said(reply, "Anonymous") == 0


def test_other_nodes_take_the_place_of_those_there_are(grid) -> None:
    before = _pids(grid)
    # All CPUs of the cluster: these could never start at the same time as the others.
    whole = ClientGrid(RayGrid(APP, {}, num_nodes=1), wait=60)
    whole.connect()
    assert len(set(_pids(whole))) == 1
    assert not set(_pids(whole)) & set(before)


class _Unreadable:
    def __reduce__(self) -> tuple:
        return _fail, ()


def _fail() -> None:
    raise ModuleNotFoundError("No module named 'clients'")


def test_a_node_that_cannot_start_is_reported_at_once() -> None:
    app = ClientApp()
    app.unreadable = _Unreadable()
    grid = ClientGrid(RayGrid(app, {}, num_nodes=1, num_cpus=0.5), wait=60)
    with pytest.raises(FederationError, match="the node does not start: .*No module named 'clients'"):
        grid.connect()


# -- The real app -----------------------------------------------------------------------------------------


def _trained(grid: ClientGrid, overrides: list[str]) -> np.ndarray:
    config = compose(overrides)
    grid.connect()
    from fedclust.models.construction import build

    model = from_state(build(json.loads(to_run_config(config)["config"])["model"], 0).state_dict())
    strategy = ClusteredStrategy(participation=0.5, seed=3)
    strategy.start(grid, model, num_rounds=3)
    assert strategy.run.failed_replies == 0
    return np.concatenate([array.numpy().ravel() for array in strategy.clusters.models[0].values()])


class _Sharing(LocalGrid):
    """Nodes in this process of which any may train anybody, called in the reverse order."""

    shared = True

    def __init__(self, run_config: dict, num_nodes: int) -> None:
        super().__init__(app, run_config, num_nodes)
        for context in self._contexts.values():
            context.node_config["shared"] = True

    def grow(self) -> None: ...

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return super().send_and_receive(list(messages)[::-1], timeout=timeout)


# One after another, each client is computed in the same way everywhere. In one pass PyTorch's kernels depend
# on the sizes of the clients beside it, so that clients of unequal sizes differ in the last digits.
@pytest.mark.parametrize(("mode", "tolerance"), [("sequential", 0), ("vectorised", 1e-6)])
def test_who_trains_a_client_does_not_change_the_model(mode: str, tolerance: float) -> None:
    overrides = ["partition=quantity_skew", "partition.num_clients=9", "device=cpu", f"training.mode={mode}"]
    overrides += ["training.epochs=1", "training.steps=null"]
    run_config = to_run_config(compose(overrides))
    alone = _trained(ClientGrid(_Sharing(run_config, 1)), overrides)
    # In the last each node has its own clients.
    for grid in (_Sharing(run_config, 4), LocalGrid(app, run_config, 3)):
        spread = _trained(ClientGrid(grid), overrides)
        np.testing.assert_allclose(spread, alone, rtol=0, atol=tolerance)


# -- Clusters ---------------------------------------------------------------------------------------------


def _machines(grid: ClientGrid, until: Callable[[set[int | str]], bool]) -> list[int | str]:
    """Go on with rounds until these machines have answered; return that of each client."""
    deadline = time.monotonic() + 120
    while True:
        replies = _ask(grid)
        machines = [_said(reply, "machine") for reply in replies.values() if not reply.has_error()]
        if (len(machines) == CLIENTS and until(set(machines))) or time.monotonic() > deadline:
            return machines
        time.sleep(0.2)


# Ray's own defaults take half a minute to notice that a machine is gone.
NOTICING = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300}
NOTICING |= {"health_check_failure_threshold": 3, "health_check_timeout_ms": 5000}


def test_machines_of_a_cluster_join_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(ray_grid, "_LOOK_SECONDS", 0.2)
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": NOTICING})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        app = _app(steps=[8, 1, 1, 1])  # any node may train any client
        grid = ClientGrid(RayGrid(app, {}, address=cluster.address))  # one node per CPU
        grid.connect()
        machines = [_said(reply, "machine") for reply in _ask(grid).values()]
        # 8 steps on one node, three times 1 on the other.
        assert machines[0] != machines[1] == machines[2] == machines[3]
        # Who was on a machine that is gone loses the round, and the next one while the cluster still believes
        # that it is there; the others train its clients.
        cluster.remove_node(second, allow_graceful=False)
        lost = [len(_failed(_ask(grid))) for _ in range(3)]
        assert (lost[0] > 0, lost[2]) == (True, 0)
        (machine,) = set(_machines(grid, lambda found: second.node_id not in found))
        third = cluster.add_node(num_cpus=1)
        assert set(_machines(grid, lambda found: len(found) == 2)) == {machine, third.node_id}
        # With a given number of nodes, a machine that joins when none is missing gets none.
        nodes = RayGrid(app, {}, num_nodes=2, address=cluster.address)
        joined = {**ray_grid.machines_of_cluster(), "fourth": Machine(cpus=1)}
        monkeypatch.setattr(ray_grid, "machines_of_cluster", lambda: joined)
        monkeypatch.setattr(type(nodes._pool), "actor", lambda *_: pytest.fail("a node more than asked for"))
        nodes.grow()
        assert len(nodes.get_node_ids()) == 2
    finally:
        ray.shutdown()
        cluster.shutdown()


def _failed(replies: dict[int, Message]) -> list[int]:
    return [client for client, reply in replies.items() if reply.has_error()]


def test_no_cluster_at_the_address(monkeypatch) -> None:
    ray.shutdown()

    def nobody_there(**options) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", nobody_there)  # this machine may run a cluster of somebody else's
    with pytest.raises(FederationError, match="there must be a Ray cluster at auto: "):
        RayGrid(APP, {}, address="auto")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nobody_listens_at_the_address(scheme: str) -> None:
    ray.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(FederationError, match=f"there must be a Ray cluster at {scheme}127.0.0.1:{port}: "):
        RayGrid(APP, {}, address=f"{scheme}127.0.0.1:{port}")
    assert time.monotonic() - began < 15
