"""Who is there at each evaluation, and what those measured last who have left."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclust.federation.findings import padded
from fedclust.typing import BoolArray, FloatArray, IntArray

__all__ = ["Attendance"]


@dataclass(frozen=True, eq=False)
class Attendance:
    """Of each client, whether it is there and what it measured last.

    Attributes
    ----------
    online
        Whether it was online at the last evaluation, shape (K,).
    last_round
        The last round in which it measured an accuracy, 0 for none, shape (K,).
    last_accuracy
        That accuracy, NaN for none, shape (K,).
    """

    online: BoolArray
    last_round: IntArray
    last_accuracy: FloatArray

    @classmethod
    def of(cls, num_clients: int) -> "Attendance":
        """Begin with all clients online."""
        nothing = np.zeros(num_clients, dtype=np.int64)
        return cls(np.ones(num_clients, dtype=bool), nothing, np.full(num_clients, np.nan))

    def grown(self, number: int) -> "Attendance":
        """Add clients that join."""
        return Attendance(
            padded(self.online, number, True),
            padded(self.last_round, number, 0),
            padded(self.last_accuracy, number),
        )

    def noted(self, online: Collection[int]) -> tuple["Attendance", dict[str, list[int]]]:
        """Note who is online.

        Returns
        -------
        attendance
            With them.
        changes
            Ids of the clients that ``left`` since the last evaluation and of those that are ``back``; only
            what is not empty.
        """
        now = np.isin(np.arange(len(self.online)), list(online))
        changes = {
            "left": np.flatnonzero(self.online & ~now).tolist(),
            "back": np.flatnonzero(now & ~self.online).tolist(),
        }
        return replace(self, online=now), {name: ids for name, ids in changes.items() if ids}

    def measured(self, server_round: int, accuracy: FloatArray) -> "Attendance":
        """Note what clients measured in a round; NaN for those that did not, shape (K,)."""
        known = np.isfinite(accuracy)
        return replace(
            self,
            last_round=np.where(known, server_round, self.last_round),
            last_accuracy=np.where(known, accuracy, self.last_accuracy),
        )

    def pack(self) -> dict[str, Any]:
        """List it as arrays by name, for a checkpoint."""
        return {name: getattr(self, name) for name in ("online", "last_round", "last_accuracy")}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any], num_clients: int) -> "Attendance":
        """Make it from what :meth:`pack` listed; checkpoints of before do not have it."""
        if "online" not in packed:
            return cls.of(num_clients)
        return cls(
            np.asarray(packed["online"], dtype=bool),
            np.asarray(packed["last_round"]),
            np.asarray(packed["last_accuracy"]),
        )
