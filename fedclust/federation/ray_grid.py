"""Nodes as Ray actors, on this machine or on a Ray cluster."""

import logging
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from fedclust.federation.identity import assume_identity
from fedclust.federation.local_grid import DirectGrid, answer

__all__ = ["RayGrid"]

logger = logging.getLogger(__name__)

_MOST_NODES = 8  # by default, on CPUs: more would leave small cohorts too thin to train in one pass

# Ray stays up between the jobs of a sweep, and so do the nodes with all they have loaded.
_pools: dict[tuple[Any, ...], list[ActorHandle]] = {}


class RayGrid(DirectGrid):
    """Nodes that are Ray actors; replies are handed out as they become ready.

    An actor that dies is restarted by Ray. Its clients' replies to the message it was working on are lost,
    the run is not.

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
        If a number is outside its range, or the cluster has fewer CPUs or GPUs than the nodes ask for.
    ConnectionError
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
        for name, value in (("num_nodes", num_nodes), ("num_cpus", num_cpus)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if num_gpus is not None and num_gpus < 0:
            raise ValueError(f"num_gpus must be >= 0, got {num_gpus}")
        super().__init__()
        _start_ray(address)
        nodes, cpus, gpus = _share_out(ray.cluster_resources(), num_nodes, num_cpus, num_gpus)
        key = (id(app), nodes, cpus, gpus, str(runtime_env))
        if key not in _pools:
            _pools[key] = [_actor(app, cpus, gpus, dict(runtime_env or {})) for _ in range(nodes)]
        self._actors = {SUPERLINK_NODE_ID + 1 + position: actor for position, actor in enumerate(_pools[key])}
        self._contexts = {
            node: ray.put(
                Context(
                    run_id=self.run.run_id,
                    node_id=node,
                    node_config={"partition-id": position, "num-partitions": nodes},
                    state=RecordDict(),
                    run_config=dict(run_config),
                )
            )
            for position, node in enumerate(self._actors)
        }
        self._pending: dict[ray.ObjectRef, Message] = {}

    def get_node_ids(self) -> list[int]:
        """Get the ids of the nodes."""
        return list(self._actors)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send the messages to their nodes; return the ids to pull the replies by."""
        ids = []
        for message in messages:
            ids.append(self.label(message))
            node = message.metadata.dst_node_id
            reply = self._actors[node].answer.remote(message, self._contexts[node])
            self._pending[reply] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Hand out the replies to the messages of these ids that are ready, each once."""
        wanted = set(message_ids)
        waiting = [ref for ref, message in self._pending.items() if message.metadata.message_id in wanted]
        if not waiting:
            return []
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [self._take(ref) for ref in ready]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send the messages and wait for the replies, for at most ``timeout`` seconds."""
        ids = set(self.push_messages(messages))
        waiting = [ref for ref, message in self._pending.items() if message.metadata.message_id in ids]
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

    def _take(self, ref: ray.ObjectRef) -> Message:
        message = self._pending.pop(ref)
        try:
            reply: Message = ray.get(ref)
        except RayActorError as error:
            logger.warning("a node died and is restarted: %s", _short(error))
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, f"node died: {_short(error)}"), reply_to=message)
        except (RayError, GetTimeoutError) as error:
            return Message(
                Error(ErrorCode.CLIENT_APP_CRASHED, f"{type(error).__name__}: {_short(error)}"),
                reply_to=message,
            )
        return reply


@ray.remote
class _Node:
    """A node; it keeps what it has loaded from one message to the next, and from one run to the next."""

    def __init__(self, app: ClientApp, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._app = app

    def answer(self, message: Message, context: Context) -> Message:
        assume_identity(context.run_id, context.node_id)
        return answer(self._app, message, context)


def _actor(app: ClientApp, cpus: float, gpus: float, runtime_env: dict[str, Any]) -> ActorHandle:
    options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 0}
    if runtime_env:
        options["runtime_env"] = runtime_env
    return _Node.options(**options).remote(app, max(1, int(cpus)))  # type: ignore[attr-defined]


def _start_ray(address: str | None) -> None:
    if ray.is_initialized():
        return
    # Ray 2.55 asks to be told that it may leave CUDA_VISIBLE_DEVICES alone for nodes without a GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


def _share_out(
    available: Mapping[str, float], num_nodes: int | None, num_cpus: float | None, num_gpus: float | None
) -> tuple[int, float, float]:
    """Say how many nodes there are, and how many CPUs and which GPU share each has."""
    cpus, gpus = available.get("CPU", 1.0), available.get("GPU", 0.0)
    if num_nodes is None:
        if gpus and num_gpus != 0:
            num_nodes = int(gpus / num_gpus) if num_gpus else int(gpus)
        else:
            num_nodes = int(cpus / num_cpus) if num_cpus else min(_MOST_NODES, int(cpus))
        num_nodes = max(1, num_nodes)
    each_cpus = float(max(1, int(cpus / num_nodes)) if num_cpus is None else num_cpus)
    if num_cpus is None and num_nodes > cpus:
        each_cpus = cpus / num_nodes
    each_gpus = gpus / num_nodes if num_gpus is None else num_gpus
    if num_gpus is None and each_gpus > 1:
        each_gpus = float(int(each_gpus))
    for name, asked, there in (("CPUs", each_cpus, cpus), ("GPUs", each_gpus, gpus)):
        if asked * num_nodes > there + 1e-9:
            raise ValueError(
                f"{num_nodes} nodes of {asked:g} {name} must fit into Ray's {there:g}, "
                f"they ask for {asked * num_nodes:g}"
            )
    return num_nodes, each_cpus, each_gpus


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
