"""Wait for clients that were lost, where too few are left to continue without them.

A message that is sent again is the same, and every draw of a run derives from its seed: a run that has waited
ends like one in which nobody was away.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from flwr.app import Message, MessageType

from fedclust.grids.node_registry import NODE_LOST
from fedclust.settings.options import MIN_REPLIES

__all__ = ["Outages"]

logger = logging.getLogger(__name__)

_OF_A_ROUND = (MessageType.TRAIN, MessageType.EVALUATE)
_SETTLE = 30.0  # seconds; once enough clients are back, how long nobody else must have come back
_TRIES = 5  # questions in a row to clients that are online, and yet lost: the question may kill their nodes


@dataclass(frozen=True)
class Outages:
    """How long to wait for clients, and for how many.

    Attributes
    ----------
    seconds
        How long after a reply was lost, >= 0; 0 to never wait.
    share
        Least share of the clients asked that must answer, in [0, 1]; with 0 there is nothing to wait for.
    poll
        Time between checks, in seconds.
    say
        Called with a message whenever the number of online clients changes while waiting.
    settle
        Once enough clients are back, for how many seconds nobody else must have come back.
    """

    seconds: float = 0.0
    share: float = MIN_REPLIES
    poll: float = 2.0
    say: Callable[[str], None] = logger.info
    settle: float = _SETTLE

    def needed(self, clients: int) -> int:
        """Return how many of so many clients must answer."""
        return max(1, math.ceil(self.share * clients)) if self.seconds and self.share and clients else 0

    def exchange(
        self,
        ask: Callable[[Sequence[Message]], list[Message]],
        messages: Sequence[Message],
        online: Callable[[], Collection[int]],
        num_clients: int,
    ) -> list[Message]:
        """Ask clients; until enough have answered, ask those that were lost again when they are back.

        A client that refuses or raises is not asked again. A question to half of the clients or fewer, other
        than to train or to evaluate, is asked once: the run can do without its answer.

        Parameters
        ----------
        ask
            Sends messages and returns a reply to each, an error where it was lost.
        messages
            The messages, at most one per client.
        online
            Returns the ids of the clients that are online.
        num_clients
            Number of clients K of the federation.

        Returns
        -------
        The last reply to each message.
        """
        replies = ask(messages)
        counts = 2 * len(messages) > num_clients or any(
            each.metadata.message_type in _OF_A_ROUND for each in messages
        )
        needed = self.needed(len(messages)) if counts else 0
        deadline, tries = time.monotonic() + self.seconds, _TRIES
        while lost := {each.metadata.src_node_id for each in replies if _is_lost(each)}:
            missing = needed - sum(not each.has_error() for each in replies)
            if not 0 < missing <= len(lost) or not tries:
                break
            tries = tries - 1 if lost <= set(online()) else _TRIES
            if not self.wait_for(lost, missing, online, deadline):
                break
            again = ask([each for each in messages if each.metadata.dst_node_id in lost])
            replies = [each for each in replies if each.metadata.src_node_id not in lost] + again
        return replies

    def wait_for(
        self,
        clients: Collection[int],
        number: int,
        online: Callable[[], Collection[int]],
        deadline: float | None = None,
    ) -> bool:
        """Wait until clients are online.

        Parameters
        ----------
        clients
            Their ids.
        number
            How many of them are enough: once they are online, the others have `settle` seconds.
        online
            Returns the ids of the clients that are online.
        deadline
            When to give up, on the monotonic clock; after `seconds` unless given.

        Returns
        -------
        Whether that many are online.
        """
        deadline = time.monotonic() + self.seconds if deadline is None else deadline
        shown = -1
        changed = time.monotonic()
        while (here := len(set(clients) & set(online()))) < len(clients):
            now = time.monotonic()
            if here != shown:
                shown, changed = here, now
                self.say(
                    f"waiting for clients: {here} of {len(clients)} online, {number} must answer "
                    f"(min_replies={self.share:g}), for {max(0, deadline - now) / 60:.0f} minutes at most"
                )
            if now >= deadline or (here >= number and now - changed >= self.settle):
                return here >= number
            time.sleep(min(self.poll, max(0.0, deadline - now)))
        return True


def _is_lost(reply: Message) -> bool:
    return reply.has_error() and reply.error.code in NODE_LOST
