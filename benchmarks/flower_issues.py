"""What parts of a round only Flower can change, each with the time that it takes: docs/PERFORMANCE.md.

    python benchmarks/flower_issues.py [simulation sweep writes] [--turns 7] [--write]

``simulation``: an exchange with two nodes in Flower's simulation; ``sweep``: one look for messages
to N nodes; ``writes``: an entry written into a record. Where a row says "if", this script replaces the named
function of Flower by one with that change; nothing else here does.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from queue import Queue
from typing import Any
from uuid import uuid4

from common import in_turns, show_parts, spread, table
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedclust.grids.local_grid import assume_identity
from fedclust.grids.superlink import PromptGrid

EXCHANGES = 20
NODES = 2
WORK = (0.0, 0.05)  # seconds that a node takes for its reply


def look_every(seconds: float, pause: list[float] | None = None) -> None:
    """Make Flower's simulation look for messages at this interval; ``pause`` may change it later."""
    from flwr.server.superlink.fleet.vce import vce_api

    pause = [seconds] if pause is None else pause

    def add_messages_to_queue(
        state: Any, queue: Queue[Message], nodes_mapping: dict[int, int], f_stop: threading.Event
    ) -> None:
        while not f_stop.is_set():  # as vce_api.add_messages_to_queue, but for the interval
            for node_id in nodes_mapping:
                for message in state.get_message_ins(node_id=node_id, limit=1):
                    queue.put(message)
            f_stop.wait(pause[0])

    vce_api.add_messages_to_queue = add_messages_to_queue


def simulation(turns: int) -> str:
    """Exchange empty messages with two nodes, in ways that take turns within one simulation."""
    from flwr.simulation import run_simulation

    pause = [0.1]
    look_every(0.1, pause)
    server, client = ServerApp(), ClientApp()
    took: dict[tuple[str, float], list[float]] = {}

    @client.query()
    def answer(message: Message, _: Context) -> Message:
        time.sleep(float(message.metadata.group_id))
        return Message(RecordDict(), reply_to=message)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < NODES:
            time.sleep(0.1)
        ways: dict[str, tuple[Grid, float]] = {
            "Flower as it is": (grid, 0.1),
            "fedclust's PromptGrid": (PromptGrid(grid), 0.1),
            "PromptGrid, if Flower looked every 1 ms": (PromptGrid(grid), 0.001),
        }
        for turn in range(turns + 1):
            for work, (name, (way, seconds)) in product(WORK, ways.items()):
                pause[0] = seconds
                time.sleep(0.2)  # a look that began with the last interval
                began = time.perf_counter()
                for _ in range(EXCHANGES):
                    asked = [Message(RecordDict(), node, "query", group_id=str(work)) for node in nodes]
                    list(way.send_and_receive(asked))
                if turn:  # the first one starts Ray's actors
                    key = name, work
                    took.setdefault(key, []).append(1000 * (time.perf_counter() - began) / EXCHANGES)

    backend = {"client_resources": {"num_cpus": max(1, (os.cpu_count() or 1) // NODES), "num_gpus": 0.0}}
    run_simulation(server, client, NODES, backend_config=backend)  # type: ignore[arg-type]
    head = ["ms per exchange", "nodes take, ms", "median", "minimum", "maximum"]
    rows = [[name, f"{1000 * work:.0f}", *spread(values, 1)] for (name, work), values in took.items()]
    return table(head, rows)


def sweep(turns: int) -> str:
    """Look once for the messages of N nodes, with one message waiting for each."""
    assume_identity(1)
    rows = []
    for number in (10, 100, 300):
        took = []
        for _ in range(turns):
            state, nodes = _state(number)
            for node in nodes:
                message = Message(RecordDict(), node, "query")
                message.metadata.__dict__.update(_message_id=str(uuid4()))
                if state.store_message_ins(message) is None:
                    raise RuntimeError("Flower's state must take the message, it did not")
            began = time.perf_counter()
            found = [state.get_message_ins(node_id=node, limit=1) for node in nodes]
            took.append(1000 * (time.perf_counter() - began))
            if sum(map(len, found)) != number:
                raise RuntimeError(f"each of {number} nodes must get its message")
        rows.append([f"{number:,}", *spread(took, 1)])
    return table(["nodes with a message each", "ms per look, median", "minimum", "maximum"], rows)


def _state(number: int) -> tuple[Any, list[int]]:
    """Make the state of a simulation with N nodes, as ``run_simulation`` does."""
    from flwr.proto.task_pb2 import Task
    from flwr.server.superlink.fleet.vce.vce_api import _register_nodes
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.run import Run
    from flwr.superlink.federation import NoOpFederationManager

    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    state, run = factory.state(), Run.create_empty(run_id=1)
    run.federation_id, run.primary_task_id = NOOP_FEDERATION_ID, 1
    state.run_ids[run.run_id] = RunRecord(run=run)
    state.task_store[1] = Task(task_id=1, run_id=run.run_id)
    return state, list(_register_nodes(number, factory))


class _Uncast(MetricRecord):
    """A record whose writes evaluate no type expression."""

    def __setitem__(self, key: Any, value: Any) -> None:
        own = self.__dict__
        own["_check_key_fn"](key)
        own["_check_value_fn"](value)
        own["_data"][key] = value


class _Unchecked(MetricRecord):
    """A record whose writes check nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["_data"][key] = value


def writes(turns: int) -> str:
    """Write numbers into records."""
    kinds = {
        "Flower as it is": MetricRecord,
        "if `cast` took its types as texts": _Uncast,
        "without the checks, too": _Unchecked,
    }
    number = 20_000

    def write(kind: type[MetricRecord], _: int) -> float:
        record = kind()
        began = time.perf_counter()
        for _ in range(number):
            record["loss"] = 0.5
        return 1e6 * (time.perf_counter() - began) / number

    took = in_turns({name: partial(write, kind) for name, kind in kinds.items()}, turns)
    head = ["µs per number written into a MetricRecord", "median", "minimum", "maximum"]
    return table(head, [[name, *spread(values, 2)] for name, values in took.items()])


PARTS: dict[str, Callable[[int], str]] = {"writes": writes, "sweep": sweep, "simulation": simulation}


def main() -> None:
    """Print the tables."""
    logging.disable(logging.INFO)
    show_parts(PARTS, __doc__, "flower-")


if __name__ == "__main__":
    main()
