"""The figures of a run that has ended: its table of clients and its summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedclust import records, results
from fedclust.federation import Descriptions, Measured, Traffic
from fedclust.results.attendance import attended, attended_summary
from fedclust.results.decisions import summarise_decisions
from fedclust.runs.schedule import Schedule
from fedclust.typing import IntArray

if TYPE_CHECKING:  # strategies import fedclust, so fedclust may name their types but not import them
    from fedclust.strategies import ClusteredStrategy

__all__ = ["RunFigures"]


@dataclass(frozen=True, eq=False)
class RunFigures:
    """What the figures of an ended run need besides what clients measured.

    Attributes
    ----------
    name
        Name of the strategy in the results.
    strategy
        The strategy, after its last round.
    schedule
        Its number of rounds and seed.
    seconds
        How long the rounds of this process took.
    traffic
        The bytes of all rounds.
    figures_of_round
        The last round with an evaluation.
    class_names
        Names of the classes, or none.
    tells_rows
        Whether clients have told how many test rows they have.
    published
        The paper's figures for this setting.
    late
        Failures after the last round.
    left_out
        Names of the matrices that were too large to keep.
    """

    name: str
    strategy: "ClusteredStrategy" = field(repr=False)
    schedule: Schedule
    seconds: float
    traffic: Traffic
    figures_of_round: int
    class_names: Sequence[str]
    tells_rows: bool
    published: Mapping[str, object] | None
    late: Sequence[Mapping[str, Any]]
    left_out: Sequence[str]

    def table(self, described: Descriptions, measured: Measured, **columns: ArrayLike) -> pd.DataFrame:
        """Build the table of clients, with what they measured of the models that serve them.

        Parameters
        ----------
        described
            What clients told of themselves.
        measured
            What they measured.
        columns
            Further columns, each of shape (K,).
        """
        strategy = self.strategy
        return results.client_table(
            strategy.assignment,
            described.num_train,
            described.num_test if self.tells_rows else _tested(measured, strategy.num_clients),
            None if described.counts is None else described.train_counts,
            [
                {name: float(values[client]) for name, values in measured.figures.items()}
                for client in range(strategy.num_clients)
            ],
            described.groups,
            described.client_names,
            measured.outcomes,
            self.schedule.seed,
            **columns,
            **attended(strategy.federation.joined, strategy.attendance, strategy.server_round),
            **self.traffic.by_client(strategy.num_clients),
            **strategy.findings(strategy.clusters).clients,
            **(strategy.guard.columns() if strategy.guard else {}),
        )

    def summary(self, table: pd.DataFrame, measured: Measured) -> dict[str, object]:
        """Summarise what clients measured, for ``summary.json``.

        Parameters
        ----------
        table
            What :meth:`table` built of it.
        measured
            What clients measured.
        """
        strategy = self.strategy
        return results.summarise(
            table,
            strategy=self.name,
            seed=self.schedule.seed,
            rounds=self.schedule.rounds,
            seconds=self.seconds,
            failed_replies=strategy.failed_replies + len(self.late),
            outcomes=measured.outcomes.values(),
            own_metrics=measured.own_metrics,
            traffic=self.traffic.totals(),
            published=self.published,
            decisions=summarise_decisions(
                measured.outcomes, strategy.assignment, self.class_names, self.schedule.seed
            ),
            **self._about_files(),
            **attended_summary(table),
            **strategy.findings(strategy.clusters).summary,
            **(strategy.guard.summary() if strategy.guard else {}),
        )

    def _about_files(self) -> dict[str, Any]:
        """Return which round the figures are of, and what failed or was left out after the last round."""
        found: dict[str, Any] = {"figures_of_round": self.figures_of_round}
        if self.late:
            found["late_failures"] = list(self.late)
        if self.left_out:
            found["matrices_left_out"] = list(self.left_out)
        return found


def _tested(measured: Measured, num_clients: int) -> IntArray:
    """Return on how many rows each client measured, 0 where it did not."""
    rows = measured.figures.get(records.NUM_EXAMPLES, np.zeros(num_clients))
    return np.nan_to_num(rows).astype(np.int64)
