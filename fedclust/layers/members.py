"""Who joins a run, and who is there at its evaluations."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from fedclust.federation.clusters import Clusters, padded
from fedclust.federation.federation import Federation
from fedclust.federation.run import Run
from fedclust.layers.layer import Layer
from fedclust.typing import BoolArray, FloatArray, IntArray


class Method(Protocol):
    """What newcomers need of a method."""

    def join(
        self, clusters: Clusters, newcomers: list[int], server_round: int, federation: Federation
    ) -> Clusters:
        """Add clients that join before a round."""


class Newcomers(Layer):
    """Lets clients that wait join at the beginning of a round.

    Parameters
    ----------
    method
        Knows which clusters they join.
    """

    def __init__(self, method: Method) -> None:
        self._method = method

    def before_round(self, run: Run) -> Clusters:
        """Add those who join, and note them in the round's record."""
        joined = run.federation.welcome(run.number).tolist()
        if not joined:
            return run.clusters
        run.record["joined"] = joined
        return self._method.join(run.clusters, joined, run.number, run.federation)


@dataclass(frozen=True, eq=False)
class Seen:
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

    def grown(self, num_clients: int) -> "Seen":
        """Add clients that joined; they are taken to be online."""
        number = num_clients - len(self.online)
        return Seen(
            padded(self.online, number, True),
            padded(self.last_round, number, 0),
            padded(self.last_accuracy, number),
        )


_NOBODY = Seen(np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64), np.zeros(0))


class Attendance(Layer):
    """Notes at evaluations who left, who is back, and what each client measured last.

    It has columns of the clients' table: ``joined``, the round, if anybody joined after the start;
    ``last_round``, ``last_accuracy`` and ``left``, if anybody has left. The accuracy of a client that left,
    which is of the last round, is unknown, and no mean counts it.
    """

    memory_type: ClassVar[Any] = Seen

    def __init__(self) -> None:
        self._seen = _NOBODY

    def begin(self, run: Run) -> None:
        """Take all clients to be online."""
        self._seen = _NOBODY.grown(run.clusters.num_clients)

    def measured(self, run: Run) -> Clusters:
        """Note who is online and what they measured; who left or is back is in the round's record."""
        if run.online is None:
            return run.clusters
        before = self._seen.grown(run.clusters.num_clients)
        now = np.isin(np.arange(len(before.online)), list(run.online))
        changes = {"left": before.online & ~now, "back": now & ~before.online}
        run.record |= {name: np.flatnonzero(who).tolist() for name, who in changes.items() if who.any()}
        rounds, accuracy = before.last_round.copy(), before.last_accuracy.copy()
        for each in run.evaluations:
            if np.isfinite(measured := each.metrics.get("accuracy", np.nan)):
                rounds[each.client], accuracy[each.client] = run.number, measured
        self._seen = Seen(now, rounds, accuracy)
        return run.clusters

    def columns(self, run: Run) -> dict[str, Any]:
        """Return who joined when, who left, and what those measured last."""
        joined, seen = run.federation.joined, self._seen.grown(run.clusters.num_clients)
        left = (seen.last_round < run.server_round) & ~seen.online
        columns: dict[str, Any] = {"joined": joined} if joined.any() else {}
        if left.any():
            columns |= {"last_round": seen.last_round, "last_accuracy": seen.last_accuracy, "left": left}
        return columns

    def state(self, run: Run) -> Seen:
        """Return what was noted."""
        return self._seen.grown(run.clusters.num_clients)

    def restore(self, run: Run, state: Seen) -> None:
        """Take it up."""
        self._seen = state
