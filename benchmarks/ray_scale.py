"""A Ray cluster of four node processes on this machine, 1,000 clients of unequal sizes.

    python benchmarks/ray_scale.py [--cohorts 100 1000] [--turns 5] [--rounds 2] [--write]

Two ways to divide a round's clients take turns on the same nodes: each node its own clients, every fourth,
and the longest first, each to the node with the fewest steps so far, as engine=ray does. A node is idle from
its reply to the last one of the round. Clients train one after another, so that both ways must give the same
model to the bit, which is checked. --write puts the tables into docs/PERFORMANCE.md.
"""

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
import ray
from common import arguments, machine, records, show, spread
from flwr.app import Message
from ray.actor import ActorHandle
from ray.cluster_utils import Cluster
from settings import Setting, Training

from fedclust.data.partitioners import Assignment, ClientPartitioner, Examples
from fedclust.grids.client_grid import ClientGrid, unpack
from fedclust.grids.ray_grid import RayGrid
from fedclust.messages.models import from_state
from fedclust.settings.composition import to_run_config
from fedclust.typing import IntArray

NODES = 4
EXPONENT = 0.8
BY_ID, LONGEST_FIRST = "each node its own", "longest first"


@dataclass(frozen=True)
class PowerLaw(ClientPartitioner):
    """IID clients whose sizes fall with the power `exponent` of their rank; ranks are drawn."""

    num_clients: int
    exponent: float

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Draw who gets which size, then deal the examples at random."""
        weights = np.arange(1, self.num_clients + 1) ** -self.exponent
        sizes = np.maximum(4, (weights / weights.sum() * examples.size).astype(np.int64))
        sizes[0] += examples.size - sizes.sum()
        clients = np.repeat(draws.permutation(self.num_clients), sizes)
        return Assignment(clients[draws.permutation(len(clients))])


SETTING = Setting(
    "CNN of 62,006 parameters on 32×32×3, 1,000 clients of 60 samples on average, sizes by the power -0.8 "
    "of their rank, 1 epoch, batch 10, one after another",
    clients=1000,
    examples=60,
    side=32,
    channels=3,
    model="published.lenet",
    training={"learning_rate": 0.05, "batch_size": 10, "epochs": 1, "mode": "sequential"},
)


@dataclass
class Round:
    """What the nodes did in a round.

    Attributes
    ----------
    steps
        Steps of each node that had clients.
    seconds
        Seconds until the reply of each.
    """

    steps: dict[int, int]
    seconds: dict[int, float]

    def idle(self, nodes: int) -> list[float]:
        """Compute the share of the round for which each node had nothing to do, shape (nodes,)."""
        longest = max(self.seconds.values())
        return [1 - seconds / longest for seconds in self.seconds.values()] + [1.0] * (
            nodes - len(self.seconds)
        )


class TimedGrid(RayGrid):
    """A grid that notes when its nodes reply; `shared` says how clients are divided."""

    def __init__(self, run_config: Any, steps: IntArray, address: str, *, shared: bool) -> None:
        from fedclust.clients import app

        self.shared = shared
        self.rounds: list[Round] = []
        self._steps, self._began = steps, 0.0
        super().__init__(app, run_config, address=address)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send the messages and wait for the replies; a training message's clients are noted."""
        messages = list(messages)
        training = [message for message in messages if message.metadata.message_type == "train"]
        if training:
            self.rounds.append(
                Round(
                    {
                        m.metadata.dst_node_id: int(self._steps[[*unpack(m.content)[0]]].sum())
                        for m in training
                    },
                    {},
                )
            )
            self._began = time.perf_counter()
        return super().send_and_receive(messages, timeout=timeout)

    def _take(self, ref: ray.ObjectRef, message: Message, actor: ActorHandle) -> Message:
        if message.metadata.message_type == "train":
            self.rounds[-1].seconds[message.metadata.dst_node_id] = time.perf_counter() - self._began
        return super()._take(ref, message, actor)


class Way:
    """One way to divide clients, and what was measured of it."""

    def __init__(self, run_config: Any, steps: IntArray, address: str, *, shared: bool) -> None:
        self.nodes = TimedGrid(run_config, steps, address, shared=shared)
        self.clients = ClientGrid(self.nodes)
        self.clients.connect()
        self.model: Any = None
        self.forget()

    def forget(self) -> None:
        """Drop what was measured so far."""
        self.seconds: list[float] = []  # a round
        self.down: list[int] = []
        self.up: list[int] = []
        self.nodes.rounds.clear()

    def train(self, cohort: int, rounds: int, *, counts: bool) -> None:
        """Train some rounds, always the same ones; those that do not count are dropped."""
        strategy = Training(participation=cohort / SETTING.clients)
        start = from_state(SETTING.network().state_dict())
        before, noted = self.clients.traffic, len(self.nodes.rounds)
        began = time.perf_counter()
        strategy.start(self.clients, start, num_rounds=rounds)
        took = time.perf_counter() - began
        self.model = np.concatenate([a.numpy().ravel() for a in strategy.clusters.models[0].values()])
        if not counts:
            del self.nodes.rounds[noted:]
            return
        sent = self.clients.traffic.since(before)
        self.seconds.append(took / rounds)
        self.down.append(sent.down // rounds)
        self.up.append(sent.up // rounds)

    def row(self, name: str, cohort: int) -> dict[str, str]:
        """Write what was measured."""
        number = len(self.nodes.get_node_ids())
        idle = [round_.idle(number) for round_ in self.nodes.rounds]
        busiest = [max(each.steps.values()) * number / sum(each.steps.values()) for each in self.nodes.rounds]
        rates = spread([cohort / seconds for seconds in self.seconds])
        named = ("clients per second, median", "minimum", "maximum")
        return {
            "clients divided": name,
            "clients a round": f"{cohort:,}",
            "nodes": str(number),
            **dict(zip(named, rates, strict=True)),
            "MB down a round": f"{median(self.down) / 1e6:.2f}",
            "MB up a round": f"{median(self.up) / 1e6:.2f}",
            "idle, mean of nodes": f"{100 * mean(map(mean, idle)):.0f} %",
            "idlest node": f"{100 * mean(map(max, idle)):.0f} %",
            "busiest node's steps / mean": f"{mean(busiest):.2f}",
        }


def divided(
    cohorts: Sequence[int], turns: int, rounds: int, run_config: Any, steps: IntArray, address: str
) -> str:
    """Compare the two ways to divide clients."""
    rows = []
    for cohort in cohorts:
        # Both use the same actors: which clients a node gets is said with each message.
        ways = {
            BY_ID: Way(run_config, steps, address, shared=False),
            LONGEST_FIRST: Way(run_config, steps, address, shared=True),
        }
        for turn in range(1 + turns):
            for way in ways.values():
                way.train(cohort, rounds, counts=turn > 0)
        models = [way.model for way in ways.values()]
        if not np.array_equal(*models):
            raise SystemExit("both ways must give the same model to the bit")
        rows += [way.row(name, cohort) for name, way in ways.items()]
    return records(rows)


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="of a turn")
    asked = parser.parse_args()
    config = SETTING.config("engine=ray")
    config.partition["_target_"] = "ray_scale.PowerLaw"
    config.partition.exponent = EXPONENT
    run_config = to_run_config(config)
    from omegaconf import OmegaConf

    from fedclust import data
    from fedclust.training import LocalTraining
    from fedclust.training.cohort import num_steps

    plain: Any = OmegaConf.to_container(config, resolve=True)
    federation = data.load(plain["dataset"], plain["partition"], 0)
    sizes = np.array([len(rows) for rows in federation.train])
    steps = num_steps(sizes, LocalTraining(**SETTING.training))
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-")  # not where other clusters say who they are
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        text = divided(asked.cohorts, asked.turns, asked.rounds, run_config, steps, cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()
    largest = f"the largest has {sizes.max():,} samples, the median {np.median(sizes):.0f}"
    show(
        "ray-scale",
        f"{SETTING.title}; {largest}. {machine()}, {asked.turns} turns of {asked.rounds} rounds.\n\n{text}",
        asked.write,
    )


if __name__ == "__main__":
    main()
