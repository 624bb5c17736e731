"""Nodes as Ray actors, on this machine or on a Ray cluster."""

import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from ray.actor import ActorHandle
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError, RuntimeEnvSetupError

from fedclust.federation.client_grid import FederationError
from fedclust.federation.identity import assume_identity
from fedclust.federation.local_grid import DirectGrid, answer
from fedclust.federation.ray_resources import Machine, Shares, share_out

__all__ = ["RayGrid"]

logger = logging.getLogger(__name__)

_FIRST_NODE_ID = SUPERLINK_NODE_ID + 1

_KNOCK_SECONDS = 10.0  # for a cluster's address to answer
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anyone, and start-up does not ask
    "RAY_worker_niceness": "0",  # nodes do the work: at Ray's 15 anything else on the machine goes first
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's new way, which it warns about where this is not set
}


@dataclass(frozen=True, eq=False)
class _Pool:
    """The actors of a cluster, kept from one grid to the next."""

    cluster: str  # Ray's id of the driver's machine, new whenever Ray starts anew
    app: ClientApp
    shares: Shares
    runtime_env: dict[str, Any]
    actors: list[ActorHandle]

    @classmethod
    def start(cls, cluster: str, app: ClientApp, shares: Shares, runtime_env: dict[str, Any]) -> "_Pool":
        pool = cls(cluster, app, shares, runtime_env, [])
        pool.actors.extend(pool._actor() for _ in range(shares.num_nodes))
        return pool

    def _actor(self) -> ActorHandle:
        options: dict[str, Any] = {"num_cpus": self.shares.cpus, "num_gpus": self.shares.gpus}
        if self.runtime_env:
            options["runtime_env"] = self.runtime_env
        return _Node.options(**options).remote(self.app, self.shares)  # type: ignore[attr-defined]

    def replace(self, actor: ActorHandle) -> None:
        """Start a new actor in the place of one that died.

        Ray could restart it, but loses every message sent until it is up again; to a new one they wait.
        """
        if actor in self.actors:  # else it has been replaced: several messages can die with one actor
            ray.kill(actor)  # Ray may only have lost sight of it
            self.actors[self.actors.index(actor)] = self._actor()

    def serves(self, cluster: str, app: ClientApp, shares: Shares, runtime_env: dict[str, Any]) -> bool:
        same = self.cluster == cluster and self.app is app
        return same and self.shares == shares and self.runtime_env == runtime_env


# Ray stays up between the jobs of a sweep, and so do the nodes with all they have loaded. One pool at a time:
# a second would wait for ever for the CPUs and GPUs that the first one holds.
_pool: _Pool | None = None
_address: str | None = None


class RayGrid(DirectGrid):
    """Nodes that are Ray actors; replies are handed out as they become ready.

    An actor that dies is replaced. Its clients' replies to the message it was working on are lost, the run
    is not. The actors stay for the next grid of this process that asks for the same ones, with the data they
    have loaded; one that asks for others ends them.

    Parameters
    ----------
    app
        The ClientApp that every node runs.
    run_config
        The run's configuration, as a ClientApp finds it in ``context.run_config``.
    num_nodes
        Number of nodes; None for one per GPU, or per group of cores where there is no GPU.
    num_cpus
        CPUs of each node, which also is its number of threads; None to share all of them out.
    num_gpus
        GPU share of each node; None to share all of them out.
    address
        Ray cluster to connect to, such as ``"auto"`` or ``"ray://host:10001"``; None to start Ray here.
    runtime_env
        Ray runtime environment of the nodes, for clusters whose machines lack this package.

    Raises
    ------
    ValueError
        If a number is outside its range, or so many nodes do not fit into the cluster.
    FederationError
        If there is no cluster at ``address``.
    """

    def __init__(
        self,
        app: ClientApp,
        run_config: Mapping[str, str | int | float | bool],
        num_nodes: int | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _start_ray(address)
        shares = share_out(_machines(), num_nodes, num_cpus, num_gpus)
        self._pool = _pool_of(app, shares, dict(runtime_env or {}))
        self._contexts = {
            node: ray.put(
                Context(
                    run_id=self.run.run_id,
                    node_id=node,
                    node_config={"partition-id": position, "num-partitions": shares.num_nodes},
                    state=RecordDict(),
                    run_config=dict(run_config),
                )
            )
            for position, node in enumerate(self.get_node_ids())
        }
        self._pending: dict[ray.ObjectRef, tuple[Message, ActorHandle]] = {}

    def get_node_ids(self) -> list[int]:
        """Get the ids of the nodes."""
        return [_FIRST_NODE_ID + position for position in range(len(self._pool.actors))]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send the messages to their nodes; return the ids to pull the replies by."""
        ids = []
        for message in messages:
            ids.append(self.label(message))
            node = message.metadata.dst_node_id
            actor = self._pool.actors[node - _FIRST_NODE_ID]
            reply: ray.ObjectRef = actor.answer.remote(message, self._contexts[node])
            self._pending[reply] = message, actor
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Hand out the replies to the messages of these ids that are ready, each once."""
        wanted = set(message_ids)
        waiting = [
            ref for ref, (message, _) in self._pending.items() if message.metadata.message_id in wanted
        ]
        if not waiting:
            return []
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [self._take(ref) for ref in ready]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send the messages and wait for the replies, for at most ``timeout`` seconds."""
        ids = set(self.push_messages(messages))
        waiting = self._waiting_for(ids)
        deadline = None if timeout is None else time.monotonic() + timeout
        replies = []
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, waiting = ray.wait(waiting, timeout=left)
            if not ready:
                break
            replies += [self._take(ref) for ref in ready]
        for ref in waiting:
            del self._pending[ref]  # too late: whatever comes is dropped
        return replies

    def _waiting_for(self, message_ids: set[str]) -> list[ray.ObjectRef]:
        return [
            ref for ref, (message, _) in self._pending.items() if message.metadata.message_id in message_ids
        ]

    def _take(self, ref: ray.ObjectRef) -> Message:
        """Get a reply that is ready, or one that says why there is none."""
        message, actor = self._pending.pop(ref)
        try:
            return ray.get(ref)
        except RayError as error:
            code, reason = _explain(error)
            logger.warning("a node's reply is lost: %s", reason)
            if code == ErrorCode.NODE_UNAVAILABLE:
                self._pool.replace(actor)
            return Message(Error(code, reason), reply_to=message)


@ray.remote
class _Node:
    """A node; it keeps what it has loaded from one message to the next, and from one run to the next."""

    def __init__(self, app: ClientApp, shares: Shares) -> None:
        torch.set_num_threads(max(1, int(shares.cpus)))
        if shares.gpus == 0:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a node without a share of a GPU must not use one
        elif shares.gpus < 1 and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(shares.gpus)
        self._app = app

    def answer(self, message: Message, context: Context) -> Message:
        assume_identity(context.run_id, context.node_id)
        return answer(self._app, message, context)


def _pool_of(app: ClientApp, shares: Shares, runtime_env: dict[str, Any]) -> _Pool:
    """Get the actors of an earlier grid if they are the same, else start new ones in their place."""
    global _pool
    cluster = ray.get_runtime_context().get_node_id()
    if _pool is None or not _pool.serves(cluster, app, shares, runtime_env):
        if _pool is not None and _pool.cluster == cluster:
            for actor in _pool.actors:
                ray.kill(actor)
        _pool = _Pool.start(cluster, app, shares, runtime_env)
    return _pool


def _start_ray(address: str | None) -> None:
    """Start Ray or connect to it; one that runs is used unless it is another than the one asked for.

    Raises
    ------
    FederationError
        If there is no cluster at the address.
    """
    global _address
    if ray.is_initialized():
        if address in (None, "auto", _address):
            return
        ray.shutdown()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _knock(address)
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise FederationError(f"there must be a Ray cluster at {address}: {_short(error)}") from error
    _address = address


def _knock(address: str | None) -> None:
    """See whether anybody listens where the cluster should be: Ray itself would ask for many minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # auto, or what Ray has a message for
        return
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise FederationError(f"there must be a Ray cluster at {address}: {error}") from error


def _machines() -> list[Machine]:
    return [
        Machine(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]


def _explain(error: RayError) -> tuple[int, str]:
    """Say why there is no reply: the node died and will be back, or it cannot work at all."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return ErrorCode.LOAD_CLIENT_APP_EXCEPTION, f"the node does not start: {lines[-1]}"
    if isinstance(error, (RuntimeEnvSetupError, ActorUnschedulableError)):
        return ErrorCode.LOAD_CLIENT_APP_EXCEPTION, f"the node does not start: {lines[0]}"
    if isinstance(error, RayActorError):
        return ErrorCode.NODE_UNAVAILABLE, f"the node died and is replaced: {lines[0]}"
    return ErrorCode.CLIENT_APP_CRASHED, f"{type(error).__name__}: {lines[0]}"


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
