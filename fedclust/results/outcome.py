"""What a strategy's ``start`` returns: Flower's result, with the clusters and what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from fedclust.federation.clusters import Findings, Observer
from fedclust.federation.run import Measured
from fedclust.messages.traffic import Traffic
from fedclust.messages.training import NUM_EXAMPLES
from fedclust.proof.verdict import Verdict
from fedclust.typing import IntArray

if TYPE_CHECKING:
    import pandas as pd  # which takes half a second


@dataclass(frozen=True, eq=False)
class Ended:
    """The end of a run, of which :meth:`Outcome.report` makes its files.

    Attributes
    ----------
    strategy, seed
        Name of the strategy, and the run's seed.
    measured
        The clients' measurements at the last evaluation.
    num_train
        Rows that each client said to train on, 0 if it never trained, shape (K,).
    names
        Name of each client, such as its node's.
    findings
        Those of the method and of each layer.
    traffic
        Bytes sent and received; None if not counted.
    seconds
        Time of the run.
    failed_replies
        Number of replies that failed or never came, over all rounds.
    row_cap
        How many rows of a client count in the global accuracy.
    votes
        Whether clients compared models by their losses, one vote each.
    config
        What the user has set, for ``config.yaml``.
    """

    strategy: str
    seed: int
    measured: Measured
    num_train: IntArray
    names: Sequence[str]
    findings: Sequence[Findings]
    traffic: Traffic | None
    seconds: float
    failed_replies: int
    row_cap: float | None
    votes: bool
    config: Mapping[str, Any]


@dataclass(repr=False)
class Outcome(Result):
    """Flower's result, whose arrays hold every cluster's model, with the clusters.

    Attributes
    ----------
    assignment
        Cluster of each client, shape (K,).
    models
        Model of each cluster.
    nodes
        Flower's id of each client's node, shape (K,); of fedclust's own clients their places.
    verdict
        Whether groups were shown to be better than one model for all; None where nothing was compared.
    rounds
        The record of each round, as a line of ``rounds.jsonl`` has it.
    changes
        Each assignment with its round and reason, as ``clusters.json`` has them.
    """

    assignment: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    models: tuple[ArrayRecord, ...] = ()
    nodes: list[Any] = field(default_factory=list)
    verdict: Verdict | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    ended: Ended | None = None

    @property
    def clients(self) -> "pd.DataFrame":
        """A row per client, as ``clients.parquet`` has it."""
        from fedclust.results import client_table

        end, number = self._ended, len(self.assignment)
        # Who came after the last evaluation has none.
        late = {name: np.full(number - len(of), np.nan) for name, of in end.measured.figures.items()}
        figures = {name: np.append(of, late[name]) for name, of in end.measured.figures.items()}
        tested = np.nan_to_num(figures.get(NUM_EXAMPLES, np.zeros(number))).astype(np.int64)
        columns: dict[str, Any] = {} if end.traffic is None else {**end.traffic.by_client(number)}
        for found in end.findings:
            columns |= found.clients
        evaluation = [{name: float(of[each]) for name, of in figures.items()} for each in range(number)]
        return client_table(
            self.assignment, end.num_train, tested, None, evaluation, names=end.names, **columns
        )

    @property
    def summary(self) -> dict[str, Any]:
        """The run's figures, as ``summary.json`` has them."""
        from fedclust.results import summarise
        from fedclust.results.summary import attended_summary

        end, clients = self._ended, self.clients
        verdict = {} if self.verdict is None else {"verdict": self.verdict.summary()}
        details: dict[str, Any] = {"votes": True} if end.votes else {}
        for found in end.findings:
            details |= found.summary
        return verdict | summarise(
            clients,
            strategy=end.strategy,
            seed=end.seed,
            rounds=len(self.rounds),
            seconds=end.seconds,
            failed_replies=end.failed_replies,
            own_metrics=end.measured.own_metrics,
            row_cap=end.row_cap,
            traffic=None if end.traffic is None else end.traffic.totals(),
            figures_of_round=max((each["round"] for each in self.rounds if "test_loss" in each), default=0),
            **attended_summary(clients),
            **details,
        )

    def report(self, folder: str | Path) -> Path:
        """Write the run's files into a folder, and ``report.html`` where the charts are installed.

        `fedclust report` and `fedclust compare` read the folder like any other run's. It has no models: they
        are :attr:`models`.

        Returns
        -------
        The folder.

        Raises
        ------
        FileExistsError
            If the folder holds a run.
        RuntimeError
            If the run has not ended.
        """
        from importlib.util import find_spec

        from fedclust.results import Recorder
        from fedclust.results.page import write_page

        path, summary = Path(folder), self.summary
        arrays = {name: each for found in self._ended.findings for name, each in found.arrays.items()}
        with Recorder(path, self._ended.config) as recorder:
            for change in self.changes:
                recorder.assignment(change["round"], change["assignment"], change["reason"])
            for record in self.rounds:
                recorder.round(record)
            if arrays:
                recorder.matrices(**arrays)
            recorder.clients(self.clients)
            recorder.summary(summary)
        if find_spec("altair"):
            write_page(path)
        return path

    @property
    def _ended(self) -> Ended:
        if self.ended is None:
            raise RuntimeError("the run must have ended, it has not")
        return self.ended


class Kept(Observer):
    """Keeps the assignments of a run, and passes its events on.

    Parameters
    ----------
    observer
        Receives the events, too.
    changes
        Each assignment is added to it.
    """

    def __init__(self, observer: Observer, changes: list[dict[str, Any]]) -> None:
        self._observer, self._changes = observer, changes

    def assignment(self, server_round: int, assignment: IntArray, reason: str) -> None:
        """Keep an assignment."""
        entry = {"round": server_round, "assignment": assignment.tolist(), "reason": reason}
        self._changes.append(entry)
        self._observer.assignment(server_round, assignment, reason)

    def round(self, record: Mapping[str, Any]) -> None:
        """Pass a round on."""
        self._observer.round(record)
