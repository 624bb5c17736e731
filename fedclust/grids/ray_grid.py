"""Nodes as Ray actors, on this machine or a Ray cluster."""

import logging
import math
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import ray
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from ray.actor import ActorHandle
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedclust.grids.local_grid import FIRST_NODE_ID, DirectGrid, RunConfig, answer
from fedclust.messages.description import QUERY_CLIENTS
from fedclust.support.checks import checked
from fedclust.support.flower import ErrorCode, assume_identity
from fedclust.support.reasons import FederationError, RunFailed

_MOST_NODES = 8  # default on CPUs: with more nodes, each has too few clients to train together
_ROUNDING = 1e-6  # tolerance, so that three thirds of a GPU make a whole


@dataclass(frozen=True)
class Machine:
    """The resources of one machine of a Ray cluster."""

    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True)
class Shares:
    """The number of nodes, and the CPUs and GPU share of each."""

    num_nodes: int
    cpus: float
    gpus: float


Nodes = Annotated[int, "a whole number >= 1"] | None
CPUs = Annotated[float, "> 0"] | None


@checked
def share_out(
    machines: Sequence[Machine], num_nodes: Nodes = None, num_cpus: CPUs = None, num_gpus: float | None = None
) -> Shares:
    """Divide a cluster among equal nodes, each on one machine and on at most one GPU.

    Parameters
    ----------
    machines
        The cluster.
    num_nodes
        The number of nodes; None for one per GPU, or without GPUs one per CPU, at most 8.
    num_cpus, num_gpus
        The CPUs of each node, and its GPU share; None for an equal share of all.

    Raises
    ------
    ValueError
        If a number is outside its range, or the nodes do not fit.
    """
    if num_gpus is not None and not (0 <= num_gpus <= 1 or num_gpus == int(num_gpus) > 0):
        raise ValueError(f"num_gpus must be in [0, 1] or a whole number, got {num_gpus}")
    total_cpus, total_gpus = sum(each.cpus for each in machines), sum(int(each.gpus) for each in machines)
    if num_gpus is None:
        per_gpu = 1 if num_nodes is None else max(1, math.ceil(num_nodes / max(1, total_gpus)))
        num_gpus = 1 / per_gpu if total_gpus else 0.0
    if num_nodes is None:
        bounded = num_gpus or num_cpus
        most = _places(machines, num_cpus or 0.0, num_gpus) if bounded else min(_MOST_NODES, total_cpus)
        num_nodes = max(1, int(most))
    cpus = _cpu_share(machines, num_nodes, num_gpus) if num_cpus is None else float(num_cpus)
    fitting = _places(machines, cpus, num_gpus)
    if fitting < num_nodes:
        offered = "; ".join(f"{machine.cpus:g} CPUs, {machine.gpus:g} GPUs" for machine in machines)
        raise ValueError(
            f"{num_nodes} nodes of {cpus:g} CPUs and {num_gpus:g} GPUs must fit into the Ray cluster, "
            f"{int(fitting)} do; its machines have {offered or 'nothing'}"
        )
    return Shares(num_nodes, cpus, float(num_gpus))


def _cpu_share(machines: Sequence[Machine], num_nodes: int, gpus: float) -> float:
    """Compute the most CPUs per node with which all nodes fit; a fraction if there are few CPUs."""
    most = int(sum(machine.cpus for machine in machines) / num_nodes)
    for cpus in [*map(float, range(most, 0, -1)), *(1 / each for each in range(1, num_nodes))]:
        if _places(machines, cpus, gpus) >= num_nodes:
            return cpus
    return 1 / num_nodes


def _places(machines: Iterable[Machine], cpus: float, gpus: float) -> float:
    """Count the nodes of a given size that fit."""
    places = 0.0
    for machine in machines:
        here = math.floor(machine.cpus / cpus + _ROUNDING) if cpus else math.inf
        if gpus:  # a share must be on one GPU: two GPUs fit two nodes of two thirds each, not three
            per_gpu = math.floor(1 / gpus + _ROUNDING)
            here = min(here, int(machine.gpus) * per_gpu if gpus < 1 else int(machine.gpus / gpus))
        places += here
    return places


PROBE_SECONDS = 10.0
"""Timeout for connecting to an address."""


def raylet_is_gone() -> bool:
    """Return whether Ray's process on this machine has died; ten seconds later Ray ends this process, too."""
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["NodeID"] == here]
    return any(_unreachable(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes)


def _unreachable(host: str, port: int) -> Exception | None:
    """Return why an address does not accept connections; None if it does."""
    try:
        socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
    except (OSError, OverflowError) as error:
        return error
    return None


def machines_of_cluster() -> dict[str, Machine]:
    """List the machines of the cluster by their Ray ids."""
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return {name: Machine(of.get("CPU", 0.0), of.get("GPU", 0.0)) for name, of in alive.items()}


logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0  # between looks at the cluster's machines while nothing arrives
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage statistics, and no prompt at start-up
    "RAY_worker_niceness": "0",  # with Ray's default of 15, nodes would yield to every other process
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; unset, Ray warns
}


@dataclass(frozen=True)
class _Pool:
    """The actors of a cluster, kept between grids."""

    cluster: str  # Ray's id of the driver's machine, which changes when Ray restarts
    app: ClientApp
    shares: Shares
    runtime_env: dict[str, Any]
    actors: list[ActorHandle] = field(default_factory=list, compare=False)

    def actor(self, machine: str | None = None) -> ActorHandle:
        """Start an actor, on the machine with this Ray id if it has room."""
        options: dict[str, Any] = {"num_cpus": self.shares.cpus, "num_gpus": self.shares.gpus}
        if machine is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=True)
        if self.runtime_env:
            options["runtime_env"] = self.runtime_env
        return _Node.options(**options).remote(self.app, self.shares)  # type: ignore[attr-defined]


# Ray and the nodes, with their loaded data, stay up between the jobs of a sweep. Only one pool at a time: a
# second one would wait forever for the CPUs and GPUs of the first.
_pool: _Pool | None = None
_address: str | None = None


class RayGrid(DirectGrid):
    """Nodes that are Ray actors; replies are returned as they become ready.

    An actor that dies or does not answer in time is replaced: the replies to its current message are lost,
    but the run continues. If Ray's own process on this machine has died, the run fails. The next grid in this
    process reuses the actors and their loaded data if it needs the same ones; otherwise it replaces them.

    Any node may train any client, and the clients of a message are divided by their steps, see
    :func:`fedclust.grids.nodes.longest_first`. A machine that joins the cluster during a run gets nodes, too,
    which take part once they have loaded their data; with a given number of nodes, as many as are missing.
    The nodes of a machine that has left the cluster are left out if the others have no room for them.

    Parameters
    ----------
    app
        The ClientApp that every node runs.
    run_config
        The run's configuration, as a ClientApp finds it in ``context.run_config``.
    num_nodes
        Number of nodes; None for one per GPU, or per group of cores without GPUs.
    num_cpus
        CPUs, and threads, of each node; None divides all CPUs among the nodes.
    num_gpus
        GPU share of each node; None divides all GPUs among the nodes.
    address
        Ray cluster to connect to, such as ``"auto"`` or ``"ray://host:10001"``; None to start Ray here.
    runtime_env
        Ray runtime environment of the nodes, for clusters whose machines lack this package.

    Raises
    ------
    ValueError
        If a number is outside its range, or the nodes do not fit into the cluster.
    FederationError
        If there is no cluster at ``address``.
    """

    shared = True

    @checked
    def __init__(
        self,
        app: ClientApp,
        run_config: RunConfig,
        num_nodes: Nodes = None,
        num_cpus: CPUs = None,
        num_gpus: float | None = None,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _start_ray(address)
        machines = machines_of_cluster()
        shares = share_out(list(machines.values()), num_nodes, num_cpus, num_gpus)
        self._pool = _pool_of(app, shares, dict(runtime_env or {}))
        self._run_config = dict(run_config)
        self._actors = dict(enumerate(self._pool.actors, FIRST_NODE_ID))
        self._next = FIRST_NODE_ID + len(self._actors)  # id of the next node
        self._most = num_nodes
        self._replaced: set[int] = set()  # nodes with a new actor that has not answered yet
        self._contexts = {node: self._context(position) for position, node in enumerate(self._actors)}
        # The cluster's machines at the last check; None if there is only this machine.
        self._machines = set(machines) if address is not None else None
        self._starting: list[tuple[ActorHandle, ray.ObjectRef]] = []

    def _context(self, position: int) -> ray.ObjectRef:
        number = max(position + 1, len(self._pool.actors))
        return ray.put(self.context(position, number, self._run_config, shared=self.shared))

    def grow(self) -> None:
        """Start nodes on machines that have joined the cluster; use those that have loaded their data."""
        if self._machines is None:
            return
        machines = machines_of_cluster()
        self._leave_out(machines)
        for name in sorted(machines.keys() - self._machines):
            number = int(_places([machines[name]], self._pool.shares.cpus, self._pool.shares.gpus))
            if self._most is not None:
                number = min(number, self._most - len(self._actors) - len(self._starting))
            for _ in range(number):
                actor = self._pool.actor(name)
                # Every node's first question, which makes it load its data.
                node = self._next + len(self._starting)
                question = Message(RecordDict(), node, QUERY_CLIENTS)
                self.label(question)
                context = self._context(node - FIRST_NODE_ID)
                self._starting.append((actor, actor.answer.remote(question, context)))
        self._machines = set(machines)
        for actor, ready in list(self._starting):
            if not ray.wait([ready], timeout=0)[0]:
                continue
            self._starting.remove((actor, ready))
            try:
                ray.get(ready)
            except RayError as error:
                logger.warning("a machine that joined the cluster is not used: %s", _explain(error)[1])
                continue
            self._contexts[self._next] = self._context(self._next - FIRST_NODE_ID)
            self._actors[self._next] = actor
            self._pool.actors.append(actor)
            self._next += 1

    def _leave_out(self, machines: Mapping[str, Machine]) -> None:
        """Leave out nodes that died and that no machine has room for: they would wait for ever."""
        room = int(_places(machines.values(), self._pool.shares.cpus, self._pool.shares.gpus))
        for node in sorted(self._replaced, reverse=True):
            if len(self._actors) + len(self._starting) <= room:
                return
            logger.warning("a node died and is left out: the Ray cluster has room for %d", room)
            self._replaced.remove(node)
            self._pool.actors.remove(actor := self._actors.pop(node))
            ray.kill(actor)  # messages that wait for it fail

    def _replace(self, actor: ActorHandle) -> None:
        """Replace an actor that died: if Ray restarted it, messages sent in the meantime would be lost."""
        for node, each in self._actors.items():
            if each == actor:  # else it is already replaced: several messages can fail with one actor
                ray.kill(actor)  # it may still run if Ray only lost the connection
                made = self._actors[node] = self._pool.actor()
                self._pool.actors[self._pool.actors.index(actor)] = made
                self._replaced.add(node)
                return

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes."""
        return list(self._actors)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send the messages and wait for the replies, for at most ``timeout`` seconds."""
        pending: dict[ray.ObjectRef, tuple[Message, ActorHandle]] = {}
        for message in messages:
            self.label(message)
            node = message.metadata.dst_node_id
            actor = self._actors[node]
            pending[actor.answer.remote(message, self._contexts[node])] = message, actor
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        waiting, replies = list(pending), []
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            ready, waiting = ray.wait(waiting, timeout=min(left, _LOOK_SECONDS))
            if not ready and left == 0:
                break
            if not ready and self._replaced and self._machines is not None:
                self._leave_out(machines_of_cluster())  # messages that wait for such a node then fail
            replies += [self._take(ref, *pending[ref]) for ref in ready]
        for ref in waiting:
            # A hung node would hold up every later message to it, perhaps for ever.
            logger.warning("a node did not answer within %g s and is replaced", timeout)
            self._replace(pending[ref][1])
        return replies

    def _take(self, ref: ray.ObjectRef, message: Message, actor: ActorHandle) -> Message:
        """Return a reply that is ready, or an error reply with the reason."""
        node = message.metadata.dst_node_id
        try:
            reply, state = ray.get(ref)
            if self._actors.get(node) == actor:
                self._replaced.discard(node)
            if state is not None:  # later messages get it, as in Flower, even if the actor is replaced
                context = ray.get(self._contexts[node])
                context.state = state
                self._contexts[node] = ray.put(context)
            return reply
        except RayError as error:
            code, reason = _explain(error)
            logger.warning("a node's reply is lost: %s", reason)
            if code == ErrorCode.NODE_UNAVAILABLE:
                if raylet_is_gone():
                    raise RunFailed(
                        "Ray's own process on this machine, the raylet, has died: no node can be reached, or "
                        "replaced, from here"
                    ) from error
                self._replace(actor)
            return Message(Error(code, reason), reply_to=message)


@ray.remote
class _Node:
    """A node, which keeps its loaded data between messages and between runs."""

    def __init__(self, app: ClientApp, shares: Shares) -> None:
        torch.set_num_threads(max(1, int(shares.cpus)))
        if shares.gpus == 0:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a node without a GPU share must not use a GPU
        elif shares.gpus < 1 and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(shares.gpus)
        self._app = app

    def answer(self, message: Message, context: Context) -> tuple[Message, RecordDict | None]:
        """Return the reply, and the node's state if the app has changed it."""
        assume_identity(context.run_id, context.node_id)
        before = {key: id(record) for key, record in context.state.items()}
        reply = answer(self._app, message, context)
        changed = before != {key: id(record) for key, record in context.state.items()}
        return reply, context.state if changed else None


def _pool_of(app: ClientApp, shares: Shares, runtime_env: dict[str, Any]) -> _Pool:
    """Return the actors of an earlier grid if they match, else replace them with new ones."""
    global _pool
    before, _pool = _pool, _Pool(ray.get_runtime_context().get_node_id(), app, shares, runtime_env)
    # Fewer actors than needed are left if a machine had no room for some.
    if before is not None and before == _pool and len(before.actors) >= shares.num_nodes:
        _pool = before
        return before
    for actor in before.actors if before is not None and before.cluster == _pool.cluster else ():
        ray.kill(actor)
    _pool.actors.extend(_pool.actor() for _ in range(shares.num_nodes))
    return _pool


def _start_ray(address: str | None) -> None:
    """Start Ray or connect to it; a running Ray is reused unless another cluster is requested.

    Raises
    ------
    FederationError
        If no cluster answers at the address.
    """
    global _address
    if ray.is_initialized():
        if address in (None, "auto", _address):
            return
        ray.shutdown()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Ray itself would retry for many minutes. "auto" and an address that Ray reports have no host and port.
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit() and (reason := _unreachable(host, int(port))):
        raise FederationError(f"there must be a Ray cluster at {address}: {reason}") from reason
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise FederationError(f"there must be a Ray cluster at {address}: {_lines(error)[0]}") from error
    _address = address


def _explain(error: RayError) -> tuple[int, str]:
    """Return the error code and the reason of a missing reply."""
    lines = _lines(error)
    begun = not isinstance(error, (RuntimeEnvSetupError, ActorUnschedulableError))
    if not begun or (isinstance(error, RayActorError) and error.actor_init_failed):
        return ErrorCode.LOAD_CLIENT_APP_EXCEPTION, f"the node does not start: {lines[-1 if begun else 0]}"
    if isinstance(error, RayActorError):
        return ErrorCode.NODE_UNAVAILABLE, f"the node died and is replaced: {lines[0]}"
    return ErrorCode.CLIENT_APP_CRASHED, f"{type(error).__name__}: {lines[0]}"


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
