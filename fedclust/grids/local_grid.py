"""Nodes in this process."""

import itertools
import logging
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedclust.grids import options
from fedclust.grids.failures import time_limit


def assume_identity(run_id: int = 1, node_id: int = SUPERLINK_NODE_ID) -> None:
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


logger = logging.getLogger(__name__)

_RUN_ID = 1
FIRST_NODE_ID = SUPERLINK_NODE_ID + 1

RunConfig = Mapping[str, str | int | float | bool]


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """Call a ClientApp with a message; an exception becomes an error reply, as in Flower itself."""
    try:
        return app(message, context)
    # An app's exception makes its own reply an error and never ends the run; nor does its sys.exit().
    except (Exception, SystemExit) as error:
        logger.debug("a node raised", exc_info=True)
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


class DirectGrid(Grid):
    """Base class of the grids that call their nodes directly.

    A subclass implements ``get_node_ids``, ``push_messages`` and ``pull_messages``.
    """

    def __init__(self) -> None:
        assume_identity(_RUN_ID)
        self._run = Run.create_empty(_RUN_ID)
        self._message_ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Set the run of this grid."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run of this grid."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message; deprecated in Flower in favour of ``Message(...)``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def context(
        self, node: int, num_nodes: int, run_config: RunConfig, **config: str | int | float | bool
    ) -> Context:
        """Make the context of a node by its number, from 0, with further settings of it alone."""
        return Context(
            run_id=_RUN_ID,
            node_id=FIRST_NODE_ID + node,
            node_config={
                "partition-id": node,
                "num-partitions": num_nodes,
                "allow": "*",
                "predictions": "reply",
                **config,
            },
            state=RecordDict(),
            run_config=dict(run_config),
        )

    def label(self, message: Message) -> str:
        """Set and return the message id that the reply refers to."""
        message_id = str(next(self._message_ids))
        message.metadata.__dict__["_message_id"] = message_id
        return message_id


class LocalGrid(DirectGrid):
    """Nodes in this process, called one after another when their messages are pushed.

    A node that does not return in time ends the run, see :mod:`fedclust.grids.failures`: it runs in the
    server's own process, so there is no other node to go on with. ``engine=ray`` replaces it.

    Parameters
    ----------
    app
        The ClientApp that every node runs.
    num_nodes
        Number of nodes, >= 1.
    run_config
        The run's configuration, as a ClientApp finds it in ``context.run_config``.

    Raises
    ------
    ValueError
        If ``num_nodes`` is below 1.
    """

    def __init__(self, app: ClientApp, run_config: RunConfig, num_nodes: int = 1) -> None:
        options.LocalGrid(num_nodes)
        super().__init__()
        self._app = app
        contexts = [self.context(node, num_nodes, run_config) for node in range(num_nodes)]
        self._contexts = {context.node_id: context for context in contexts}
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Call the nodes with their messages; return the ids to pull the replies by."""
        return self._call(messages, None)

    def _call(self, messages: Iterable[Message], timeout: float | None) -> list[str]:
        ids = []
        for message in messages:
            ids.append(self.label(message))
            with time_limit(timeout, f"a node's work on a message of type {message.metadata.message_type}"):
                reply = answer(self._app, message, self._contexts[message.metadata.dst_node_id])
            self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages, each once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Call the nodes and return their replies.

        Raises
        ------
        RunFailed
            If a node does not answer within ``timeout`` seconds.
        """
        return self.pull_messages(self._call(messages, timeout))
