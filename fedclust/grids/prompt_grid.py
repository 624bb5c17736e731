"""Notice replies soon after they arrive.

Flower 1.41's own grids look for replies at fixed times: on real nodes every 3 s
(``HttpGrid.send_and_receive``), in its simulation every 0.1 s (``InMemoryGrid.send_and_receive``). A round of
a small model takes less than that.
"""

import time
from collections.abc import Iterable

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedclust.grids.wrapped_grid import WrappedGrid

__all__ = ["PromptGrid"]

_SHORTEST, _LONGEST = 0.001, 1.0  # seconds
_NOT_TAKEN = "Flower did not take the message: it is too large for the SuperLink, or malformed"


class PromptGrid(WrappedGrid):
    """Wait for the replies of another grid's nodes by looking for them, often at first and then less often.

    A reply is noticed at most a tenth of the time later that it took to arrive, and at most a second. Looking
    takes at most about a tenth of the time, however slow it is.
    """

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies.

        Returns
        -------
        The replies, in the order of their arrival; those that arrived within ``timeout`` seconds. A message
        that the other grid did not take has an error.
        """
        messages = list(messages)
        pushed: list[str | None] = list(self.push_messages(messages))
        missing = {str(message_id) for message_id in pushed if message_id}
        # One id is missing for a malformed message, all are where one is too large.
        taken = pushed or [None] * len(messages)
        replies = [
            Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, _NOT_TAKEN), reply_to=message)
            for message, message_id in zip(messages, taken, strict=True)
            if not message_id
        ]
        began = time.monotonic()
        while missing:
            looked = time.monotonic()
            # Asked before the look, so that there is always one after the time is up.
            late = timeout is not None and looked - began >= timeout
            found = list(self.pull_messages(missing))
            replies += found
            missing -= {reply.metadata.reply_to_message_id for reply in found}
            if late:
                break
            if missing:
                now = time.monotonic()
                pause = max(_SHORTEST, 0.1 * (now - began), 10 * (now - looked))
                left = pause if timeout is None else began + timeout - now
                time.sleep(max(0.0, min(pause, left, _LONGEST)))
        return replies
