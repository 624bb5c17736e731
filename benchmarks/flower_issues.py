"""What parts of a round only Flower can change, each with the time that it takes: docs/PERFORMANCE.md.

    python benchmarks/flower_issues.py [--turns 7] [--write]

An exchange with two nodes in Flower's simulation. Where a row says "if", this script replaces the named
function of Flower by one with that change; nothing else here does.
"""

import logging
import os
import threading
import time
from itertools import product
from queue import Queue
from typing import Any

from common import show_parts, spread, table
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

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


def main() -> None:
    """Print the tables."""
    logging.disable(logging.INFO)
    show_parts({"simulation": simulation}, __doc__, "flower-")


if __name__ == "__main__":
    main()
