"""What a strategy shows of its run, during the run and after it."""

from flwr.serverapp.strategy import Strategy

from fedclust.federation import Clusters, Federation, Measured, Traffic
from fedclust.federation.attendance import Attendance
from fedclust.strategies.running import Running
from fedclust.typing import IntArray

__all__ = ["RunView"]


class RunView:
    """The properties through which results and users read a strategy's run.

    Raises
    ------
    RuntimeError
        If a property other than :attr:`description_traffic` is read before the run has begun.
    """

    _run: Running | None

    @property
    def clusters(self) -> Clusters:
        """The current clusters; known once :meth:`~fedclust.strategies.ClusteredStrategy.start` has begun."""
        return self._running.clusters

    @property
    def assignment(self) -> IntArray:
        """Current cluster of each client, shape (K,)."""
        return self.clusters.assignment

    @property
    def aggregators(self) -> tuple[Strategy, ...]:
        """The Flower strategy of each cluster."""
        return tuple(self._running.aggregators)

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return self.clusters.num_clients

    @property
    def failed_replies(self) -> int:
        """Replies that failed or never came, over all rounds."""
        return self._running.failed_replies

    @property
    def measured(self) -> Measured:
        """Each client's measurements at the last evaluation."""
        return self._running.measured

    @property
    def federation(self) -> Federation:
        """The clients of the run, with those that joined."""
        return self._running.federation

    @property
    def server_round(self) -> int:
        """The last finished round."""
        return self._running.server_round

    @property
    def attendance(self) -> Attendance:
        """Who is there, and what those measured last who are not."""
        return self._running.attendance

    @property
    def description_traffic(self) -> Traffic | None:
        """Bytes of asking clients to describe themselves, once the method has used the answers; else None."""
        return None if self._run is None else self._run.federation.description_traffic

    @property
    def _running(self) -> Running:
        if self._run is None:
            raise RuntimeError("the strategy must have been started, start() has not been called")
        return self._run
