"""What fedclust uses of Flower beyond its public interface, for Flower 1.41 and 1.42.

Public are the names that ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp`` with its ``strategy`` list.
A test checks that no other module imports anything else of Flower, so a new release is adapted to here.
"""

import gc
import sys
from collections.abc import Callable
from typing import Any

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode as ErrorCode
from flwr.proto.node_pb2 import NodeInfo as NodeInfo
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1  # of grids of our own, which have one run
SERVER = SUPERLINK_NODE_ID


def is_lost(reply: Message) -> bool:
    """Return whether a reply was lost with its node, so that asking again may succeed."""
    return reply.has_error() and reply.error.code in (
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
    )


def assume_identity(run_id: int = RUN_ID, node_id: int = SERVER) -> None:
    """Allow this process to create Flower messages.

    Parameters
    ----------
    run_id
        Id of the messages' run.
    node_id
        Id of the node that sends them; by default the server.
    """
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id


def set_message_id(message: Message, message_id: str) -> None:
    """Set the message id that the reply refers to; Flower sets it where a SuperLink takes the message."""
    message.metadata.__dict__["_message_id"] = message_id


def isolate_unreadable_replies() -> None:
    """Make Flower return an error for a reply that it cannot read, as for one that it cannot fetch.

    By itself it raises, and all replies of that poll are lost: the SuperLink hands each out only once.
    """
    from flwr.superlink.grid import http_grid

    def fetch(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, Any]:
        *_, message_id = object_ids  # its parts come first
        contents = pull_objects(object_ids, pull_object_fn)
        try:
            message = inflate_object_from_contents(message_id, contents)
            if not isinstance(message, Message):
                raise TypeError(f"a reply must be a message, got {type(message).__name__}")
        except Exception as error:  # the bytes are the node's, and Flower's readers raise anything
            raise ObjectPullError(message_id, f"it cannot be read: {error!r:.200}") from error
        return {message_id: message}

    vars(http_grid).update(pull_objects=fetch, inflate_object_from_contents=lambda name, of: of[name])


def simulation_actors() -> list[Any]:
    """List the Ray actors of Flower's simulation that this process runs; Flower lists them nowhere."""
    simulation = sys.modules.get("flwr.simulation.ray_transport.ray_actor")
    if simulation is None:
        return []
    pools = [each for each in gc.get_objects() if type(each) is simulation.BasicActorPool]
    return [actor for pool in pools for actor in pool._future_to_actor.values()]
