"""One strategy's run over a federation: observe, record and save its rounds, and summarise it.

The command line, ``flwr run`` and the library all use this module.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from torch import nn

from fedclust import results
from fedclust.aggregation.flower import buffer_names
from fedclust.federation import Descriptions, Federation, Measured, RunFailed, Traffic, confuse_clusters
from fedclust.federation.encoder import ask_encoder
from fedclust.federation.personal import Serving, ask_personal
from fedclust.federation.proof import ask_differences
from fedclust.federation.run_state import RunState
from fedclust.grids.failures import check_answered, check_round
from fedclust.layers.client_dp import Guard
from fedclust.messages import NUM_EXAMPLES, from_state
from fedclust.newcomers.newcomers import Newcomers, against_common, place_newcomers
from fedclust.personal.layers import Personal
from fedclust.privacy import ClientDP, NoPrivacy, Privacy
from fedclust.proof import prove_grouping
from fedclust.results import Checkpoints, Progress, Recorder
from fedclust.results.progress import quiet_flower
from fedclust.results.recorder import writing
from fedclust.results.summary import (
    SERVED_FIGURES,
    attended,
    attended_summary,
    method_name,
    personal_summary,
    personal_table,
    proof_summary,
    summarise_decisions,
    without_large,
)
from fedclust.runs.newcomers import add_newcomers
from fedclust.settings.options import KEEP, MIN_REPLIES
from fedclust.typing import IntArray

if TYPE_CHECKING:
    from fedclust.strategies import ClusteredStrategy

__all__ = ["OnRound", "RunFigures", "Schedule", "StrategyRun", "meter"]


@dataclass(frozen=True)
class Schedule:
    """Length, seed, checkpoints and limits of a run.

    Attributes
    ----------
    rounds
        The last round.
    seed
        The run's seed.
    timeout
        Seconds that a client has to answer.
    checkpoint_every
        See :func:`fedclust.results.checkpoints.parse_interval`.
    min_replies
        See :func:`fedclust.grids.failures.check_round`.
    keep_matrices
        See :func:`fedclust.results.summary.without_large`.
    """

    rounds: int
    seed: int = 0
    timeout: float = 3600.0
    checkpoint_every: int | str = "1min"
    min_replies: float = MIN_REPLIES
    keep_matrices: bool | str = KEEP


def meter(
    grid: Grid,
    described: Descriptions,
    resume: RunState | None,
    strategy: "ClusteredStrategy | None" = None,
    *,
    separate: bool = False,
) -> Callable[[], Traffic]:
    """Make what reads the bytes of this run so far, those before it was resumed included.

    So are those of clients' descriptions, which were asked for before the run, if the strategy uses them: in
    round 1 at the latest, so that a run that goes on has counted them.

    With `separate`, totals too are counted as if every client had messages of its own: a model that clients
    of one node share is sent once, so the bytes as sent would say whether they are in one cluster.
    """
    nothing = np.zeros(len(described.num_train), dtype=np.int64)
    begin = getattr(grid, "traffic", Traffic(0, 0, nothing, nothing))  # of newcomers, too
    none = begin.since(begin)
    earlier = getattr(resume, "traffic", None) or none

    def read() -> Traffic:
        now = earlier.plus(getattr(grid, "traffic", none).since(begin))
        asked = None if strategy is None or resume is not None else strategy.description_traffic
        now = now if asked is None else now.plus(asked)
        if not separate:
            return now
        each = now.down_by_client, now.up_by_client
        return Traffic(int(each[0].sum()), int(each[1].sum()), *each)

    return read


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
    rows = measured.figures.get(NUM_EXAMPLES, np.zeros(num_clients))
    return np.nan_to_num(rows).astype(np.int64)


logger = logging.getLogger(__name__)

_NO_TRAFFIC = Traffic(0, 0, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

_NO_PRIVACY = NoPrivacy()

OnRound = Callable[[Mapping[str, Any]], None]
"""Called after every round with its line of ``rounds.jsonl``."""


class StrategyRun:
    """A strategy's run.

    Parameters
    ----------
    name
        Name of the strategy in the results.
    strategy
        The strategy; it must not have run before.
    schedule
        Its number of rounds, seed and checkpoints.
    recorder
        Writes its results.
    progress
        Shows its progress; None to show nothing.
    on_round
        Called after every round, in order.
    confusion
        Whether to measure, after the last round, each cluster's model on the other clusters' clients.
    say
        Called before round 1 with each warning that the method cannot work with these settings.
    privacy
        What leaves the clients.
    simulated
        Whether they are all simulated in processes of the user.
    """

    def __init__(
        self,
        name: str,
        strategy: "ClusteredStrategy",
        schedule: Schedule,
        recorder: Recorder,
        progress: Progress | None = None,
        on_round: Sequence[OnRound] = (),
        confusion: bool = True,
        say: Callable[[str], None] = logger.warning,
        privacy: Privacy = _NO_PRIVACY,
        simulated: bool = False,
    ) -> None:
        self._name, self._strategy, self._schedule = name, strategy, schedule
        self._recorder, self._progress, self._on_round = recorder, progress, on_round
        self._confusion, self._say = confusion and privacy.tells == "labels", say
        self._privacy, self._simulated = privacy, simulated
        self._checkpoints = Checkpoints(
            recorder.folder / "checkpoints", schedule.rounds, schedule.checkpoint_every
        )
        self._names: Sequence[str] | None = None
        self._travelled: Callable[[], Traffic] = lambda: _NO_TRAFFIC
        self._last = _NO_TRAFFIC
        self._done = 0
        self._figures_of_round = 0
        self._figures: RunFigures | None = None
        self._serving: Serving | None = None
        self._newcomers: Newcomers | None = None
        self._shown: tuple[pd.DataFrame, dict[str, object]] = pd.DataFrame(), {}
        strategy.observer = self

    def assignment(self, server_round: int, assignment: IntArray, reason: str) -> None:
        """Record the cluster of each client."""
        with suppress(OSError):  # in the middle of a round; it fails again at its end, with a whole state
            self._recorder.assignment(server_round, assignment, reason)

    def round(self, record: Mapping[str, Any]) -> None:
        """Record a round, show it, and keep a checkpoint if one is due."""
        self._done = int(record["round"])
        now = self._travelled()
        described = self._strategy.federation.descriptions  # with those who joined
        if described is not None:
            self._names = described.client_names
        failures = results.named(record["failures"], self._names)
        if "mean_client_accuracy" in record:
            accuracies = self._strategy.measured.figures["accuracy"]
            record = {**record, **results.round_accuracies(accuracies, self._strategy.assignment)}
        record = {**record, "failures": failures, **now.since(self._last).totals()}
        self._last = now
        with self._writing():
            self._recorder.round(record)
        if self._progress is not None:
            self._progress.update(record)
        for callback in self._on_round:
            callback(dict(record))  # theirs to change
        if "global_accuracy" in record:
            self._figures_of_round = int(record["round"])
        check_round(record, self._schedule.rounds, self._schedule.min_replies)
        if record["round"] == self._schedule.rounds:
            self._check_answered(record)
        if self._checkpoints.due(record["round"]):
            with self._writing():
                self._checkpoints.save(self._state())

    def _check_answered(self, record: Mapping[str, Any]) -> None:
        described = self._strategy.federation.descriptions
        tested = np.zeros(0, dtype=bool) if described is None else described.num_test > 0
        measured = self._strategy.measured.figures.get("accuracy", np.full(len(tested), np.nan))
        check_answered(
            record["failures"],
            int(np.isfinite(measured[tested]).sum()),
            int(tested.sum()),
            f"{record['round']} of {self._schedule.rounds}",
            self._schedule.min_replies,
        )

    def _state(self) -> RunState:
        return dataclasses.replace(self._strategy.run_state(), traffic=self._last)

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self._recorder.folder)

    @property
    def progress(self) -> str:
        """The last finished round, such as ``"3 of 9"``."""
        return f"{self._done} of {self._schedule.rounds}"

    def rescue(self, folder: Path) -> None:
        """Save the run in another folder, from which it can be resumed."""
        self._recorder.copy_to(folder)
        if self._done:
            Checkpoints(folder / "checkpoints", self._schedule.rounds).save(self._state())

    def _left(self) -> str:
        """Name the run's newest checkpoint, and what resumes it."""
        files, folder = self._checkpoints.files(), self._recorder.folder
        if not files:
            return f"it has no checkpoint yet, its rounds are in {folder}"
        whole = folder.parents[1] if folder.parent.name == "compare" else folder
        return f"its newest checkpoint is {files[-1].stem}; to go on from it: resume={whole}"

    def start(
        self,
        federation: Federation,
        model: nn.Module,
        published: Mapping[str, object] | None = None,
        resume: RunState | None = None,
    ) -> dict[str, object]:
        """Run all rounds that are left; write and return the summary.

        Parameters
        ----------
        federation
            The clients.
        model
            The network; all clients start from its weights.
        published
            The paper's figures for this setting.
        resume
            The state of an earlier run of the same folder, to go on from.

        Raises
        ------
        RunFailed
            If every client of a round failed, or no client has an accuracy at the end.
        """
        strategy, schedule = self._strategy, self._schedule
        described = federation.describe()
        self._names, class_names = described.client_names, described.class_names
        private = isinstance(self._privacy, ClientDP)  # then nothing else may be asked
        encoder = ask_encoder(federation) if self._confusion and not private else None
        self._done = self._figures_of_round = 0 if resume is None else resume.server_round
        hidden = private and not self._simulated
        self._travelled = meter(federation.grid, described, resume, strategy, separate=hidden)
        self._last = self._travelled()
        began = time.perf_counter()
        for caution in strategy.cautions(federation.num_clients, schedule.rounds):
            self._say(f"{self._name}: warning: {caution}")
        for note in strategy.notes(federation.num_clients, schedule.rounds):
            self._say(f"{self._name}: {note}")
        with self._writing():
            self._recorder.inputs(described.mean, described.std, encoder)
        if isinstance(self._privacy, ClientDP):
            trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
            strategy.guard = Guard(
                self._privacy, federation.num_clients, schedule.seed, self._simulated, trained
            )
        with quiet_flower(), self._progress or nullcontext():
            try:
                strategy.start(
                    federation.grid,
                    from_state(model.state_dict()),
                    schedule.rounds,
                    timeout=schedule.timeout,
                    buffers=buffer_names(model),
                    federation=federation,
                    resume=resume,
                )
            except RunFailed as error:
                raise RunFailed(f"{self._name}: {error}; {self._left()}") from error
        seconds = time.perf_counter() - began
        described = strategy.federation.descriptions or described  # of those who joined, too
        found = strategy.findings(strategy.clusters)
        federation.take_failures()  # those of before round 1 ended it, or are in its record
        confused = confuse_clusters(federation, strategy.clusters) if self._confusion else {}
        late = results.named(federation.take_failures(), self._names)
        arrays: dict[str, ArrayLike] = {**found.arrays, **confused}
        if described.class_names:
            arrays["class_names"] = described.class_names
        arrays, left_out = without_large(arrays, schedule.keep_matrices, strategy.num_clients)
        with self._writing():
            if arrays:
                self._recorder.matrices(**arrays)
            self._recorder.placing(found.placing)
        if federation.newcomers:
            self._newcomers = place_newcomers(strategy.place, strategy.clusters, federation, schedule.rounds)
        self._figures = RunFigures(
            self._name,
            strategy,
            schedule,
            seconds=seconds,
            traffic=self._last,
            figures_of_round=self._figures_of_round,
            class_names=class_names,
            tells_rows=self._privacy.tells != "nothing",
            published=published,
            late=late,
            left_out=left_out,
        )
        table = self._figures.table(described, strategy.measured)
        summary = self._figures.summary(table, strategy.measured)
        clusters, nobody = (strategy.assignment, strategy.clusters.models), np.zeros(len(table), dtype=bool)
        self._serving = Serving(strategy.measured, clusters, clusters, nobody)
        return self._show(table, summary)

    def prove(self, federation: Federation, common: RunState, *, serve: str) -> dict[str, object]:
        """Test the clusters that the run ended with against one model for all; write and return the summary.

        Nothing is drawn or trained, so it can be repeated after an interruption, with the same result.

        Parameters
        ----------
        federation
            The clients.
        common
            The last state of the run of one model for all.
        serve
            ``"cluster"`` to serve every client its cluster's model; ``"best"`` to serve it the common one
            where its cluster's was not shown to be better; a strategy that forms no groups always serves
            its own. Table and figures are of the models that serve.

        Raises
        ------
        RuntimeError
            If the run has not ended.
        """
        if self._figures is None:
            raise RuntimeError("the proof comes after the last round, start() has not ended")
        strategy, figures = self._strategy, self._figures
        serve = serve if strategy.forms_groups else "cluster"
        asking = federation.run(self._schedule.rounds, self._schedule.timeout)
        described = asking.describe()
        travelled = meter(federation.grid, described, None)
        measured, silent = ask_differences(
            asking,
            (common.assignment, common.models),
            (strategy.assignment, strategy.clusters.models),
        )
        best = serve == "best"
        proof = prove_grouping(
            strategy.assignment,
            measured,
            method=method_name(strategy),
            serve_best=best,
            proven_before=strategy.proves_splits,
        )
        verdict = proof.verdict
        if not strategy.forms_groups:
            text = f"No groups to test: {method_name(strategy)} forms none"
            verdict = dataclasses.replace(verdict, text=text)
        by_common = np.zeros(strategy.num_clients, dtype=bool)
        if best:
            by_common = ~proof.served_by_cluster(strategy.num_clients)
        if best and self._newcomers is not None:
            self._newcomers = against_common(
                self._newcomers, strategy.clusters, common.models[0], asking, by_common, common.server_round
            )
        served = strategy.measured.served(common.measured, by_common)
        table = figures.table(described, served, served=np.where(by_common, "common", "cluster"))
        own = figures.summary(figures.table(described, strategy.measured), strategy.measured)
        summary = {
            "verdict": verdict.summary(),
            **figures.summary(table, served),
            "serve": serve,
            **({"serve_cluster": {key: own[key] for key in SERVED_FIGURES}} if best else {}),
            "proof": proof_summary(proof, silent, described.client_names, travelled().totals()),
        }
        self._serving = Serving(
            served,
            (strategy.assignment, strategy.clusters.models),
            (common.assignment, common.models),
            by_common,
        )
        return self._show(table, summary)

    def personalise(self, federation: Federation, personal: Personal) -> dict[str, object]:
        """Try personal layers on top of the models that serve the clients; write and return the summary.

        Called last, once it is decided which models serve. It draws from the seed and the number of rounds
        only: after an interruption it is done again, to the same end.

        Parameters
        ----------
        federation
            The clients.
        personal
            The layers. Figures without a layer stay what they are; those with one stand beside them.

        Raises
        ------
        RuntimeError
            If the run has not ended.
        """
        if self._serving is None or self._figures is None:
            raise RuntimeError("personal layers come after the last round, start() has not ended")
        figures, (table, summary) = self._figures, self._shown
        if not personal.asked:
            return self._show(table, summary)
        rounds, began = self._schedule.rounds, time.perf_counter()
        asking = federation.run(rounds, self._schedule.timeout)
        described = asking.describe()
        travelled = meter(federation.grid, described, None)
        layered = ask_personal(asking, self._serving, personal, rounds + 1)
        found = personal_summary(
            personal,
            layered,
            summary,
            lambda measured: figures.summary(figures.table(described, measured), measured),
            self._serving.measured.own_metrics,
        )
        found["failures"] = results.named(found["failures"], described.client_names)
        found |= {key: travelled().totals()[key] for key in ("bytes_down", "bytes_up")}
        found["seconds"] = time.perf_counter() - began
        return self._show(personal_table(table, personal, layered), {**summary, "personal": found})

    def _show(self, table: pd.DataFrame, summary: dict[str, object]) -> dict[str, object]:
        """Write the table of clients and the summary."""
        self._shown = table, summary
        table, summary = add_newcomers(table, summary, self._newcomers)
        with self._writing():
            self._recorder.clients(table)
            self._recorder.summary(summary)
        return summary
