"""One strategy's run over a federation: observe, record and save its rounds, and summarise it.

The command line, ``flwr run`` and the library all use this module.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from torch import nn

from fedclust.aggregation.flower import buffer_names
from fedclust.federation import Descriptions, Federation, Measured, RunFailed, Traffic
from fedclust.federation.clusters import Observer
from fedclust.federation.questions import (
    Serving,
    ask_differences,
    ask_encoder,
    ask_personal,
    confuse_clusters,
)
from fedclust.federation.run import RunState, check_answered, check_round
from fedclust.layers.client_dp import ClientPrivacy
from fedclust.messages.models import from_state
from fedclust.messages.training import NUM_EXAMPLES
from fedclust.newcomers.newcomers import Newcomers, against_common, place_newcomers
from fedclust.personal.layers import Personal
from fedclust.privacy import ClientDP, NoPrivacy, Privacy
from fedclust.proof import prove_grouping
from fedclust.results.checkpoints import Checkpoints
from fedclust.results.progress import Progress, quiet_flower
from fedclust.results.recorder import Recorder, writing
from fedclust.results.summary import (
    SERVED_FIGURES,
    attended_summary,
    client_table,
    method_name,
    named,
    personal_summary,
    personal_table,
    proof_summary,
    round_accuracies,
    summarise,
    summarise_decisions,
    without_large,
)
from fedclust.runs.newcomers import add_newcomers
from fedclust.settings.run_options import RunSettings

if TYPE_CHECKING:
    from fedclust.strategies import ClusteredStrategy


logger = logging.getLogger(__name__)

OnRound = Callable[[Mapping[str, Any]], None]
"""Called after every round with its line of ``rounds.jsonl``."""


class StrategyRun(Observer):
    """A strategy's run.

    Parameters
    ----------
    name
        Name of the strategy in the results.
    strategy
        The strategy; it must not have run before.
    settings
        The run's settings: rounds, seed, checkpoints, limits.
    recorder
        Writes its results.
    resume
        The state that it goes on from; None for a new run.
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
        settings: RunSettings,
        recorder: Recorder,
        *,
        resume: RunState | None = None,
        progress: Progress | None = None,
        on_round: Sequence[OnRound] = (),
        confusion: bool = True,
        say: Callable[[str], None] = logger.warning,
        privacy: Privacy = NoPrivacy(),  # noqa: B008
        simulated: bool = False,
    ) -> None:
        self._name, self._strategy, self._settings = name, strategy, settings
        self._recorder, self._resume, self._progress, self._on_round = recorder, resume, progress, on_round
        self._confusion, self._say = confusion and privacy.tells == "labels", say
        self._privacy, self._simulated = privacy, simulated
        folder = recorder.folder / "checkpoints"
        self._checkpoints = Checkpoints(folder, settings.rounds, settings.checkpoint_every)
        self._done = self._figures_of_round = 0 if resume is None else resume.server_round
        self._travelled: Callable[[], Traffic]  # this, and the next two: from the start on
        self._last: Traffic
        self._described: Descriptions
        self._seconds = 0.0
        self._late: Sequence[Mapping[str, Any]] = ()  # failures after the last round
        self._left_out: Sequence[str] = ()  # matrices that were too large to keep
        self._serving: Serving | None = None
        self._newcomers: Newcomers | None = None
        self._shown: tuple[pd.DataFrame, dict[str, object]] = pd.DataFrame(), {}
        strategy.observer = self

    # -- Its rounds -----------------------------------------------------------------------------------------

    def assignment(self, server_round: int, assignment: np.ndarray, reason: str) -> None:
        """Record the cluster of each client."""
        with suppress(OSError):  # in the middle of a round; it fails again at its end, with a whole state
            self._recorder.assignment(server_round, assignment, reason)

    def round(self, record: Mapping[str, Any]) -> None:
        """Record a round, show it, and keep a checkpoint if one is due."""
        strategy, settings, number = self._strategy, self._settings, int(record["round"])
        now, before, self._done = self._travelled(), self._last, number
        described = strategy.federation.descriptions or self._described  # with those who joined
        self._described, self._last = described, now
        if "mean_client_accuracy" in record:
            accuracies = strategy.measured.figures["accuracy"]
            record = {**record, **round_accuracies(accuracies, strategy.assignment)}
        failures = named(record["failures"], described.client_names)
        record = {**record, "failures": failures, **now.since(before).totals()}
        with self._writing():
            self._recorder.round(record)
        if self._progress is not None:
            self._progress.update(record)
        for callback in self._on_round:
            callback(dict(record))  # theirs to change
        if "global_accuracy" in record:
            self._figures_of_round = number
        check_round(record, settings.rounds, settings.min_replies)
        if number == settings.rounds:
            tested = described.num_test > 0
            accuracy = strategy.measured.figures.get("accuracy", np.full(len(tested), np.nan))
            measured = int(np.isfinite(accuracy[tested]).sum())
            where, least = f"{number} of {settings.rounds}", settings.min_replies
            check_answered(failures, measured, int(tested.sum()), where, least)
        if self._checkpoints.due(number):
            with self._writing():
                self._checkpoints.save(self._state())

    def _state(self) -> RunState:
        return dataclasses.replace(self._strategy.run_state(), traffic=self._last)

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self._recorder.folder)

    @property
    def progress(self) -> str:
        """The last finished round, such as ``"3 of 9"``."""
        return f"{self._done} of {self._settings.rounds}"

    def rescue(self, folder: Path) -> None:
        """Save the run in another folder, from which it can be resumed."""
        self._recorder.copy_to(folder)
        if self._done:
            Checkpoints(folder / "checkpoints", self._settings.rounds).save(self._state())

    def _left(self) -> str:
        """Name the run's newest checkpoint, and what resumes it."""
        files, folder = self._checkpoints.files(), self._recorder.folder
        if not files:
            return f"it has no checkpoint yet, its rounds are in {folder}"
        whole = folder.parents[1] if folder.parent.name == "compare" else folder
        return f"its newest checkpoint is {files[-1].stem}; to go on from it: resume={whole}"

    # -- From the first round to the last -------------------------------------------------------------------

    def start(self, federation: Federation, model: nn.Module) -> dict[str, object]:
        """Run all rounds that are left; write and return the summary.

        Parameters
        ----------
        federation
            The clients.
        model
            The network; all clients start from its weights.

        Raises
        ------
        RunFailed
            If every client of a round failed, or no client has an accuracy at the end.
        """
        strategy, settings = self._strategy, self._settings
        described = self._described = federation.describe()
        self._class_names = described.class_names
        private = isinstance(self._privacy, ClientDP)  # then nothing else may be asked
        encoder = ask_encoder(federation) if self._confusion and not private else None
        hidden = private and not self._simulated
        self._travelled = _meter(federation.grid, described, self._resume, strategy, separate=hidden)
        self._last = self._travelled()
        began = time.perf_counter()
        for caution in strategy.cautions(federation.num_clients, settings.rounds):
            self._say(f"{self._name}: warning: {caution}")
        for note in strategy.notes(federation.num_clients, settings.rounds):
            self._say(f"{self._name}: {note}")
        with self._writing():
            self._recorder.inputs(described.mean, described.std, encoder)
        if isinstance(self._privacy, ClientDP):
            trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
            asked = vars(type(strategy)).get("holds_client_dp") or frozenset()
            strategy.add_layers(
                ClientPrivacy(
                    self._privacy, federation.num_clients, settings.seed, self._simulated, trained, asked
                ),
                private=True,
            )
        with quiet_flower(), self._progress or nullcontext():
            try:
                strategy.start(
                    federation.grid,
                    from_state(model.state_dict()),
                    settings.rounds,
                    timeout=settings.timeout,
                    buffers=buffer_names(model),
                    federation=federation,
                    resume=self._resume,
                )
            except RunFailed as error:
                raise RunFailed(f"{self._name}: {error}; {self._left()}") from error
        self._seconds = time.perf_counter() - began
        described = self._described = strategy.federation.descriptions or described  # with those who joined
        found = strategy.findings(strategy.clusters)
        federation.take_failures()  # those of before round 1 ended it, or are in its record
        confused = confuse_clusters(federation, strategy.clusters) if self._confusion else {}
        self._late = named(federation.take_failures(), described.client_names)
        arrays: dict[str, ArrayLike] = {**found.arrays, **confused}
        if described.class_names:
            arrays["class_names"] = described.class_names
        arrays, self._left_out = without_large(arrays, settings.keep_matrices, strategy.num_clients)
        with self._writing():
            if arrays:
                self._recorder.matrices(**arrays)
            self._recorder.placing(found.placing)
        if federation.newcomers:
            self._newcomers = place_newcomers(strategy.place, strategy.clusters, federation, settings.rounds)
        table = self._table(described, strategy.measured)
        clusters = strategy.assignment, strategy.clusters.models
        self._serving = Serving(strategy.measured, clusters, clusters, np.zeros(len(table), dtype=bool))
        return self._show(table, self._summary(table, strategy.measured))

    def _table(self, described: Descriptions, measured: Measured, **columns: ArrayLike) -> pd.DataFrame:
        """Build the table of clients, with what they measured of the models that serve them."""
        strategy = self._strategy
        counts, num_test = described.counts, described.num_test
        if self._privacy.tells == "nothing":  # then only who measured has told on how many rows
            rows = measured.figures.get(NUM_EXAMPLES, np.zeros(strategy.num_clients))
            num_test = np.nan_to_num(rows).astype(np.int64)
        return client_table(
            strategy.assignment,
            described.num_train,
            num_test,
            None if counts is None else described.train_counts,
            [
                {name: float(values[client]) for name, values in measured.figures.items()}
                for client in range(strategy.num_clients)
            ],
            described.groups,
            described.client_names,
            measured.outcomes,
            self._settings.seed,
            **columns,
            **{name: each for layer in strategy.layers for name, each in layer.columns(strategy.run).items()},
            **self._last.by_client(strategy.num_clients),
            **strategy.findings(strategy.clusters).clients,
        )

    def _summary(self, table: pd.DataFrame, measured: Measured) -> dict[str, object]:
        """Summarise what clients measured, and built `table` of, for ``summary.json``."""
        strategy, seed = self._strategy, self._settings.seed
        late: dict[str, Any] = {
            "late_failures": list(self._late),
            "matrices_left_out": list(self._left_out),
        }
        return summarise(
            table,
            strategy=self._name,
            seed=seed,
            rounds=self._settings.rounds,
            seconds=self._seconds,
            failed_replies=strategy.run.failed_replies + len(self._late),
            outcomes=measured.outcomes.values(),
            own_metrics=measured.own_metrics,
            traffic=self._last.totals(),
            decisions=summarise_decisions(measured.outcomes, strategy.assignment, self._class_names, seed),
            figures_of_round=self._figures_of_round,
            **{name: values for name, values in late.items() if values},
            **attended_summary(table),
            **strategy.findings(strategy.clusters).summary,
            **{name: each for layer in strategy.layers for name, each in layer.summary(strategy.run).items()},
        )

    # -- After its last round -------------------------------------------------------------------------------

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
        if self._serving is None:
            raise RuntimeError("the proof comes after the last round, start() has not ended")
        strategy, name = self._strategy, method_name(self._strategy)
        best = serve == "best" and strategy.forms_groups
        asking = federation.run(self._settings.rounds, self._settings.timeout)
        described = asking.describe()
        travelled = _meter(federation.grid, described, None)
        clusters, theirs = (strategy.assignment, strategy.clusters.models), (common.assignment, common.models)
        measured, silent = ask_differences(asking, theirs, clusters)
        before = strategy.proves_splits
        proof = prove_grouping(
            strategy.assignment, measured, method=name, serve_best=best, proven_before=before
        )
        verdict = proof.verdict
        if not strategy.forms_groups:
            verdict = dataclasses.replace(verdict, text=f"No groups to test: {name} forms none")
        by_common = np.zeros(strategy.num_clients, dtype=bool)
        if best:
            by_common = ~proof.served_by_cluster(strategy.num_clients)
        if best and self._newcomers is not None:
            self._newcomers = against_common(
                self._newcomers, strategy.clusters, common.models[0], asking, by_common, common.server_round
            )
        served = strategy.measured.served(common.measured, by_common)
        table = self._table(described, served, served=np.where(by_common, "common", "cluster"))
        own = self._summary(self._table(described, strategy.measured), strategy.measured)
        summary = {
            "verdict": verdict.summary(),
            **self._summary(table, served),
            "serve": serve if strategy.forms_groups else "cluster",
            **({"serve_cluster": {key: own[key] for key in SERVED_FIGURES}} if best else {}),
            "proof": proof_summary(proof, silent, described.client_names, travelled().totals()),
        }
        self._serving = Serving(served, clusters, theirs, by_common)
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
        if self._serving is None:
            raise RuntimeError("personal layers come after the last round, start() has not ended")
        table, summary = self._shown
        if not personal.asked:
            return self._show(table, summary)
        rounds, began = self._settings.rounds, time.perf_counter()
        asking = federation.run(rounds, self._settings.timeout)
        described = asking.describe()
        travelled = _meter(federation.grid, described, None)
        layered = ask_personal(asking, self._serving, personal, rounds + 1)
        found = personal_summary(
            personal,
            layered,
            summary,
            lambda measured: self._summary(self._table(described, measured), measured),
            self._serving.measured.own_metrics,
        )
        found["failures"] = named(found["failures"], described.client_names)
        found |= {key: travelled().totals()[key] for key in ("bytes_down", "bytes_up")}
        found["seconds"] = time.perf_counter() - began
        return self._show(personal_table(table, personal, layered), {**summary, "personal": found})

    def _show(self, table: pd.DataFrame, summary: dict[str, object]) -> dict[str, object]:
        """Write the table of clients and the summary."""
        self._shown = table, summary
        if self._newcomers is not None:
            table, summary = add_newcomers(table, summary, self._newcomers)
        with self._writing():
            self._recorder.clients(table)
            self._recorder.summary(summary)
        return summary


def _meter(
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
        each = now.down_by_client, now.up_by_client
        return Traffic(int(each[0].sum()), int(each[1].sum()), *each) if separate else now

    return read
