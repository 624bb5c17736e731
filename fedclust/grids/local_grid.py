"""Run nodes in this process."""

import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedclust.support.checks import checked
from fedclust.support.flower import RUN_ID, SERVER, ErrorCode, Run, assume_identity, set_message_id
from fedclust.support.time_limit import interrupted, time_limit

logger = logging.getLogger(__name__)

FIRST_NODE_ID = SERVER + 1

RunConfig = Mapping[str, str | int | float | bool]


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """Call a ClientApp with a message; an exception becomes an error reply, as in Flower itself."""
    try:
        reply: object = app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"a ClientApp must return a Message, got {type(reply).__name__}")
        return reply
    # Whatever an app raises makes its own reply an error and never ends the run; so does its sys.exit().
    except BaseException as error:
        if interrupted(error):
            raise
        logger.debug("a node raised", exc_info=True)
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


class BlockingGrid(Grid):
    """Base class of our grids: a pushed message has been answered when :meth:`push_messages` returns.

    A subclass implements ``set_run``, ``run``, ``get_node_ids`` and ``send_and_receive``.
    """

    _pushed: Mapping[str, Message] = {}

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Refuse: deprecated in Flower in favour of ``Message(...)``."""
        raise NotImplementedError("Message(...) must make a message, create_message is deprecated")

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages and wait for the replies; return the ids to pull them by."""
        replies = {f"reply-{id(reply)}": reply for reply in self.send_and_receive(messages)}
        self._pushed = {**self._pushed, **replies}
        return list(replies)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to messages that were pushed, each once."""
        left = dict(self._pushed)
        found = [left.pop(name) for name in message_ids if name in left]
        self._pushed = left
        return found


class DirectGrid(BlockingGrid):
    """Base class of the grids that call their nodes directly.

    A subclass implements ``get_node_ids`` and ``send_and_receive``.
    """

    complete = True  # no further nodes can come

    def __init__(self) -> None:
        assume_identity()
        self._run = Run.create_empty(RUN_ID)
        self._message_ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Set the run of this grid."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run of this grid."""
        return self._run

    def context(
        self, node: int, num_nodes: int, run_config: RunConfig, **config: str | int | float | bool
    ) -> Context:
        """Make the context of a node by its number, from 0, with further settings for this node."""
        own: dict[str, Any] = {"partition-id": node, "num-partitions": num_nodes}
        own |= {"allow": "*", "predictions": "reply", **config}
        return Context(RUN_ID, FIRST_NODE_ID + node, own, RecordDict(), dict(run_config))

    def label(self, message: Message) -> None:
        """Set the message id that the reply refers to."""
        set_message_id(message, str(next(self._message_ids)))


class LocalGrid(DirectGrid):
    """Nodes in this process, called one after another.

    A node that does not return in time ends the run, see :mod:`fedclust.support.time_limit`: it runs in the
    server's own process and cannot be replaced. ``engine=ray`` replaces such a node.

    Parameters
    ----------
    app
        The ClientApp that every node runs.
    run_config
        The run's configuration, as a ClientApp finds it in ``context.run_config``.
    num_nodes
        Number of nodes, >= 1.

    Attributes
    ----------
    alone_with
        The ClientApp of the only node; None if there are several.

    Raises
    ------
    ValueError
        If ``num_nodes`` is below 1.
    """

    @checked
    def __init__(self, app: ClientApp, run_config: RunConfig, num_nodes: Annotated[int, ">= 1"] = 1) -> None:
        super().__init__()
        self._app = app
        self.alone_with = app if num_nodes == 1 else None
        contexts = [self.context(node, num_nodes, run_config) for node in range(num_nodes)]
        self._contexts = {context.node_id: context for context in contexts}

    def configure(self, settings: RunConfig) -> None:
        """Add settings to every node's own configuration."""
        for context in self._contexts.values():
            context.node_config.update(settings)

    @property
    def contexts(self) -> list[Context]:
        """The nodes' contexts, in the order of their numbers."""
        return list(self._contexts.values())

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes."""
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Call the nodes and return their replies.

        Raises
        ------
        RunFailed
            If a node does not answer within ``timeout`` seconds.
        """
        replies = []
        for message in messages:
            self.label(message)
            with time_limit(timeout, f"a node's work on a message of type {message.metadata.message_type}"):
                replies.append(answer(self._app, message, self._contexts[message.metadata.dst_node_id]))
        return replies
