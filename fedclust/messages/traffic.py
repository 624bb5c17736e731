"""Count the bytes that questions and answers have as messages.

The bytes of messages' contents are counted in both directions, including those before round 1: the bytes of
an ArrayRecord's arrays, which are sent unchanged; in other records eight bytes per number, one per truth
value and the length of texts; and the length of all names. Nothing is serialised for counting.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedclust.typing import IntArray


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes sent and received, from the server's side.

    Attributes
    ----------
    down, up
        To and from all nodes, as sent: one message per node, with shared records stored once.
    down_by_client, up_by_client
        To and from each client, as if each had a separate message, shape (K,).
    """

    down: int
    up: int
    down_by_client: IntArray
    up_by_client: IntArray

    def plus(self, other: "Traffic", sign: int = 1) -> "Traffic":
        """Add another reading, or subtract it with a `sign` of −1."""
        return Traffic(
            self.down + sign * other.down,
            self.up + sign * other.up,
            _sum_of(self.down_by_client, sign * other.down_by_client),
            _sum_of(self.up_by_client, sign * other.up_by_client),
        )

    def since(self, earlier: "Traffic") -> "Traffic":
        """Return the bytes since an earlier reading of the same meter."""
        return self.plus(earlier, -1)

    def totals(self) -> dict[str, int]:
        """Return the totals over clients, under the keys of ``rounds.jsonl`` and ``summary.json``.

        Returns
        -------
        ``bytes_down`` and ``bytes_up`` as sent, and ``bytes_down_unbundled`` and ``bytes_up_unbundled`` as
        if every client had separate messages.
        """
        return {
            "bytes_down": self.down,
            "bytes_up": self.up,
            "bytes_down_unbundled": int(self.down_by_client.sum()),
            "bytes_up_unbundled": int(self.up_by_client.sum()),
        }

    def by_client(self, num_clients: int) -> dict[str, IntArray]:
        """Return the columns of ``clients.parquet`` for the first K clients, each of shape (K,)."""
        nothing = np.zeros(num_clients, dtype=np.int64)
        each = {"bytes_down": self.down_by_client, "bytes_up": self.up_by_client}
        return {name: _sum_of(values, nothing)[:num_clients] for name, values in each.items()}


def _sum_of(one: IntArray, other: IntArray) -> IntArray:
    """Add two vectors over clients, the later of which may have more clients."""
    total = np.zeros(max(len(one), len(other)), dtype=np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


class Meter:
    """Adds up the bytes that are sent and received."""

    def __init__(self) -> None:
        self._bytes = {"down": 0, "up": 0}
        self._by_client: dict[str, Counter[int]] = {"down": Counter(), "up": Counter()}

    def count(self, way: str, sent: int, by_client: Mapping[int, int]) -> None:
        """Count a message.

        Parameters
        ----------
        way
            ``"down"`` for a message to a node, ``"up"`` for its reply.
        sent
            The message's bytes.
        by_client
            The bytes of each client's content in it, by client id.
        """
        self._bytes[way] += sent
        self._by_client[way].update(by_client)

    def read(self, num_clients: int) -> Traffic:
        """Return the bytes sent and received so far by the first K clients; others may have withdrawn."""
        clients = range(num_clients)
        each = {way: np.array([of[k] for k in clients], np.int64) for way, of in self._by_client.items()}
        return Traffic(self._bytes["down"], self._bytes["up"], each["down"], each["up"])
