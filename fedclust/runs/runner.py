"""One strategy's run over a federation: observe, record and save its rounds, and summarise it.

The command line, ``flwr run`` and the library all use this module.
"""

import dataclasses
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import ArrayRecord
from numpy.typing import ArrayLike
from torch import nn

from fedclust.aggregation.flower import buffer_names
from fedclust.data.input_encoders import to_values
from fedclust.data.targets import Times, to_values as values_of_target
from fedclust.federation import Descriptions, Federation, Measured, RunFailed, questions
from fedclust.federation.clusters import Clusters, Observer
from fedclust.federation.questions import Serving
from fedclust.federation.run import RunState, check_answered, check_round
from fedclust.layers.client_dp import ClientPrivacy
from fedclust.layers.patient_dp import Ledger, PatientPrivacy, Planned
from fedclust.layers.staying import Stays, completed, kept_by
from fedclust.messages.models import from_state
from fedclust.messages.traffic import Traffic
from fedclust.messages.training import NUM_EXAMPLES
from fedclust.newcomers.placing import Newcomers, against_common, place_newcomers
from fedclust.personal.layers import PRIOR, NoLayer, Personal
from fedclust.personal.staying import Staying
from fedclust.privacy import ClientDP, PatientDP, Privacy
from fedclust.proof import counted, prove_grouping
from fedclust.proof.verdict import NO_BETTER
from fedclust.results import summary as summaries
from fedclust.results.checkpoints import Checkpoints
from fedclust.results.names import paper_name
from fedclust.results.progress import Progress, quiet_flower
from fedclust.results.recorder import Recorder, writing
from fedclust.results.saved_run import SavedRun
from fedclust.runs.newcomers import add_newcomers
from fedclust.settings.run_options import COMMON, VALIDATION, RunSettings
from fedclust.strategies import ClusteredStrategy
from fedclust.support.checks import dumps, few, plural, replace_file
from fedclust.support.reasons import FederationError
from fedclust.support.untrusted import read_json
from fedclust.typing import IntArray

_SPENT = "spent.json"
OnRound = Callable[[Mapping[str, Any]], None]
"""Called after every round with its line of ``rounds.jsonl``."""


@dataclass(eq=False)
class StrategyRun(Observer):
    """One strategy's run.

    Attributes
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
        The state to resume from; None for a new run.
    display
        Shows its progress; None to show nothing.
    on_round
        Called after every round that counts, in order.
    confusion
        Whether to measure, after the last round, each cluster's model on the other clusters' clients.
    say
        Prints a line, such as the method's warnings and notes on these settings before round 1.
    privacy
        What leaves the clients.
    staying
        What stays with each client, which models then lack; None for nothing.
    """

    name: str
    strategy: ClusteredStrategy
    settings: RunSettings
    recorder: Recorder
    resume: RunState | None
    display: Progress | None
    on_round: Sequence[OnRound]
    confusion: bool
    say: Callable[[str], None]
    privacy: Privacy
    staying: Staying | None = None
    _clients: Any = field(init=False)  # set by start, like the next three
    _last: Traffic = field(init=False)
    _described: Descriptions = field(init=False)
    _serving: Serving = field(init=False)
    _newcomers: Newcomers | None = field(default=None, init=False)
    _trains_alone: bool = field(default=False, init=False)  # to be compared with what serves
    _with_common: Collection[int] = field(default=(), init=False)  # served the common model, elsewhere

    def __post_init__(self) -> None:
        self._chosen = self.confusion
        self.confusion &= self.privacy.disclosed == "labels"
        folder = self.recorder.folder / "checkpoints"
        self._checkpoints = Checkpoints(folder, self.settings.rounds, self.settings.checkpoint_every)
        self._done = self._figures_of_round = 0 if self.resume is None else self.resume.server_round
        self._aside = 0.0  # seconds of callbacks
        self._late: Sequence[Mapping[str, Any]] = ()  # failures after the last round
        self._left_out: Sequence[str] = ()  # matrices that were too large to keep
        self._shown: tuple[pd.DataFrame, dict[str, object]] = pd.DataFrame(), {}
        self._written: dict[str, object] = {}  # with the newcomers
        self._spent = ""  # by patients, as in the folder
        self.strategy.observer = self

    # -- Its rounds -----------------------------------------------------------------------------------------

    def assignment(self, server_round: int, assignment: np.ndarray, reason: str) -> None:
        """Record the cluster of each client."""
        with suppress(OSError):  # the round's end writes again, and raises with a complete state
            self.recorder.assignment(server_round, assignment, reason)

    def round(self, record: Mapping[str, Any]) -> None:
        """Record a round, show it, and keep a checkpoint if one is due."""
        strategy, settings, number = self.strategy, self.settings, int(record["round"])
        now, before, self._done = self._traffic(), self._last, number
        described = strategy.run.federation.descriptions or self._described  # includes clients that joined
        self._described, self._last = described, now
        if "mean_client_accuracy" in record:
            accuracies = strategy.measured.figures["accuracy"]
            record = {**record, **summaries.round_accuracies(accuracies, strategy.assignment)}
        failures = summaries.named(record["failures"], described.client_names)
        record = {**record, "failures": failures, **now.since(before).totals()}
        with self._writing():
            self.recorder.round(record)
        if self.display is not None:
            self.display.update(record)
        if "global_accuracy" in record:
            self._figures_of_round = number
        last = strategy.run.federation.num_rounds
        check_round(record, last, settings.min_replies)
        if number == last:
            tested = described.num_test > 0
            accuracy = strategy.measured.figures.get("accuracy", np.full(len(tested), np.nan))
            measured = int(np.isfinite(accuracy[tested]).sum())
            check_answered(failures, measured, int(tested.sum()), self.progress, settings.min_replies)
        began = time.perf_counter()
        for callback in self.on_round:  # not of a round that does not count, which a resumed run has anew
            callback(dict(record))  # a copy, which the callback may change
        self._aside += strategy.run.leave_out(time.perf_counter() - began)
        if number == last or self._checkpoints.due(number):
            with self._writing():
                self._checkpoints.save(self._state())

    def _state(self) -> RunState:
        return dataclasses.replace(self.strategy.run_state(), traffic=self._last)

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.recorder.folder)

    @property
    def progress(self) -> str:
        """The last finished round, such as ``"3 of 9"``."""
        return f"{self._done} of {self.settings.rounds}"

    def rescue(self, folder: Path) -> None:
        """Save the run in another folder, from which it can be resumed."""
        self.recorder.copy_to(folder)
        if self._done:
            Checkpoints(folder / "checkpoints", self.settings.rounds).save(self._state())
        if self._spent:
            (folder / _SPENT).write_text(self._spent, encoding="utf-8")

    def _left(self) -> str:
        """Name the run's newest checkpoint, and the override that resumes it."""
        files, folder = self._checkpoints.files(), self.recorder.folder
        if not files:
            return f"it has no checkpoint yet, its rounds are in {folder}"
        whole = folder.parents[1] if folder.parent.name == "compare" else folder
        return (
            f"its newest checkpoint is {files[-1].stem}; to go on from it: resume={shlex.quote(str(whole))}"
        )

    # -- From the first round to the last -------------------------------------------------------------------

    def start(self, federation: Federation, model: nn.Module) -> dict[str, object]:
        """Run the remaining rounds; write and return the summary.

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
        strategy, settings, private = self.strategy, self.settings, isinstance(self.privacy, ClientDP)
        described = self._described = federation.describe()
        if self.display is not None:
            self.display.share = described.target.words.share
        encoder = questions.ask_encoder(federation) if self._chosen and not private else None
        self._clients, self._separate = federation.clients, private and not federation.clients.simulated
        self._begin = self._clients.traffic  # counts newcomers, too
        self._last = self._traffic()
        began = time.perf_counter()
        earlier = sum(each["seconds"] for each in SavedRun(self.recorder.folder).lines())  # of a resumed run
        number = federation.num_clients
        cautions = strategy.cautions(number, settings.rounds)
        if (of_selection := getattr(strategy.selection, "cautions", None)) is not None:
            cautions = [*cautions, *of_selection(strategy.cohort_size(number), number)]
        for caution in cautions:
            self.say(f"{self.name}: warning: {caution}")
        self._initial = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        stays = self._stay(model)
        arrays = from_state({name: each for name, each in self._initial.items() if name not in stays})
        for note in strategy.notes(federation, settings.rounds, arrays):
            self.say(f"{self.name}: {note}")
        with self._writing():
            known = (None, "") if encoder is None else (to_values(encoder.encoder), encoder.embedded_by)
            mean, std, target = described.mean, described.std, described.target
            self.recorder.inputs(mean, std, known[0], known[1], target)
        if isinstance(self.privacy, ClientDP):
            trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
            asked = vars(type(strategy)).get("holds_client_dp") or frozenset()
            facts = self.privacy, federation.num_clients, settings.seed, federation.clients.simulated
            strategy.add_layers(ClientPrivacy(*facts, trained, asked), capped=False, blames=False)
        if isinstance(self.privacy, PatientDP):
            patients = self._patients(self.privacy, federation)
            strategy.add_layers(patients, blames=patients.exact)  # a noisy figure has no loss
            self.say(f"{self.name}: {patients.note}")
        given: dict[str, Any] = {"timeout": settings.timeout, "buffers": buffer_names(model)}
        with quiet_flower(), self.display or nullcontext():
            try:
                for _ in strategy.run_rounds(
                    federation, arrays, settings.rounds, resume=self.resume, **given
                ):
                    pass
            except RunFailed as error:
                raise RunFailed(f"{self.name}: {error}; {self._left()}") from error
        self._seconds = earlier + time.perf_counter() - began - self._aside
        described = strategy.run.federation.descriptions or described  # includes clients that joined
        self._described, num_clients = described, strategy.clusters.num_clients
        findings = strategy.findings(strategy.clusters)
        if isinstance(self.privacy, PatientDP):
            most, spent = patients.planned.epsilon, float(patients.epsilons().max())
            if spent > most * (1 + 1e-9):
                what = f"patients spend up to ε = {spent:.3g}, more than the planned {most:.3g}"
                self.say(f"{self.name}: warning: {what}: what sites were asked again counts")
        federation.take_failures()  # earlier ones ended the run or are in its records
        matrices: dict[str, ArrayLike] = dict(findings.arrays)
        if self.confusion and "confusion" not in described.target.words.without:
            matrices |= questions.confuse_clusters(federation, strategy.clusters)
        self._late = summaries.named(federation.take_failures(), described.client_names)
        if described.class_names:
            matrices["class_names"] = described.class_names
        matrices, self._left_out = summaries.without_large(matrices, settings.keep_matrices, num_clients)
        with self._writing():
            if matrices:
                self.recorder.matrices(**matrices)
            self.recorder.placing(findings.placing)
        if federation.newcomers:
            whole = self._completed(strategy.clusters)
            self._newcomers = place_newcomers(strategy.place, whole, federation, settings.rounds)
        table = self._table(described, strategy.measured)
        clusters = strategy.assignment, strategy.clusters.models
        self._serving = Serving(strategy.measured, clusters, clusters, np.zeros(len(table), dtype=bool))
        return self._show(table, self._summary(table, strategy.measured))

    def _stay(self, model: nn.Module) -> list[str]:
        """Let what stays do so; return the entries of the model that stay.

        Raises
        ------
        FederationError
            If the run to resume began with another choice.
        """
        before = None if self.resume is None else self.resume.layers.get(Stays.__name__)
        if self.resume is not None and (before is None) != (self.staying is None):
            now = "personal without layers that stay" if self.staying is None else self.staying.overrides
            began = "without such a choice of personal" if before is None else f"with {before['rule']}"
            raise FederationError(f"the run to resume must go on {began}, got {now}")
        if self.staying is None:
            return []
        if self.resume is not None and self._clients.kept is None:
            rule = f"resume must be of a run in one process with personal={self.staying.choice}"
            raise FederationError(f"{rule}: nodes keep what stays with clients for one run")
        entries = self.staying.staying(model)
        if entries and self._clients.kept is None and self.settings.holdout_clients:
            rule = f"holdout_clients must be 0 with personal={self.staying.choice} over nodes"
            raise FederationError(
                f"{rule}, got {self.settings.holdout_clients:g}: {few(entries)} stay with the clients, so "
                "newcomers have no whole model"
            )
        if entries and self._clients.kept is None:
            where = "in the folder of models= in its --node-config, and nowhere without"
            self.say(f"{self.name}: {few(entries)} stay with each client at its node, {where}")
        self.strategy.add_layers(Stays(self.staying, self.name, entries))
        self._keeping(self.name)
        return entries

    def _keeping(self, *names: str, common: Collection[int] = ()) -> None:
        """Tell clients of which runs they are sent models; some are sent those of the common one."""
        self._clients.keeps = () if self.staying is None else names
        self._clients.keeps_of = dict.fromkeys(common, (COMMON,))

    def _completed(self, clusters: Clusters, name: str = "") -> Clusters:
        """Complete clusters' models for clients that keep nothing."""
        if self.staying is None:
            return clusters
        own = kept_by(self._clients.kept, name or self.name)
        models = completed(clusters.models, clusters.assignment, own, self._initial)
        return dataclasses.replace(clusters, models=models)

    def _patients(self, privacy: PatientDP, federation: Federation) -> PatientPrivacy:
        """Plan what patients spend."""
        if federation.num_steps is None:
            raise RunFailed("client_app must be fedclust's own with privacy=patient_dp")
        rounds, every = self.settings.rounds, self.settings.evaluate_every
        steps = int(federation.num_steps(np.ones(1, dtype=np.int64))[0])
        simulated = federation.clients.simulated
        evaluations = 0 if privacy.exact(simulated) else -(-rounds // every)
        if evaluations and federation.describe().target.kind == Times.kind:
            raise RunFailed(
                "privacy=patient_dp must have classes or amounts at sites, got times: a concordance compares "
                "patients with each other, and noise hides none of them"
            )
        try:
            planned = Planned.of(privacy, rounds, steps, evaluations)
        except ValueError as error:
            raise RunFailed(str(error)) from error
        return PatientPrivacy(privacy, planned, simulated, None if simulated else self._ledger())

    def _ledger(self) -> Ledger:
        """Keep what patients have spent in a file, which no checkpoint can put back."""
        file = self.recorder.folder / _SPENT

        def write(trained: IntArray, measured: IntArray) -> None:
            self._spent = dumps({"trained": trained, "measured": measured}) + "\n"
            with self._writing():
                replace_file(file, self._spent)

        if not file.is_file():
            return Ledger(None, write)
        held = read_json(file)
        counts = [held.get(key) for key in ("trained", "measured")] if isinstance(held, dict) else []
        if not counts or not all(
            isinstance(each, list) and all(type(n) is int and n >= 0 for n in each) for each in counts
        ):
            raise RunFailed(
                f"{file} must hold the rounds of each client, trained and measured, got {held!r:.80}"
            )
        trained, measured = (np.array(each, dtype=np.int64) for each in counts)
        return Ledger((trained, measured), write)

    def _table(self, described: Descriptions, measured: Measured, **columns: ArrayLike) -> pd.DataFrame:
        """Build the table of clients, with the figures of the models that serve them."""
        strategy, figures = self.strategy, measured.figures
        counts, num_test, clients = described.counts, described.num_test, range(strategy.clusters.num_clients)
        if self.privacy.disclosed == "nothing":  # only clients that measured reported how many rows
            num_test = np.nan_to_num(figures.get(NUM_EXAMPLES, np.zeros(len(clients)))).astype(np.int64)
        return summaries.client_table(
            strategy.assignment,
            described.num_train,
            num_test,
            None if counts is None else described.train_counts,
            [{name: float(values[client]) for name, values in figures.items()} for client in clients],
            described.groups,
            described.client_names,
            measured.outcomes,
            **columns,
            **{name: each for found in strategy.beside() for name, each in found.clients.items()},
            **self._last.by_client(strategy.clusters.num_clients),
            **strategy.findings(strategy.clusters).clients,
        )

    def _summary(self, table: pd.DataFrame, measured: Measured) -> dict[str, object]:
        """Summarise the clients' measurements, and `table` made from them, for ``summary.json``."""
        strategy, seed, names = self.strategy, self.settings.seed, self._described.class_names
        late: dict[str, Any] = {"late_failures": list(self._late), "matrices_left_out": list(self._left_out)}
        late["target"] = values_of_target(self._described.target)
        late["collapsed"] = summaries.collapsed(table, measured.outcomes, self._described.target)
        late["groups_guessed"] = strategy.groups_guessed
        described, cap = (self._described.num_train, self._described.num_test), strategy.options.row_cap
        late["capped"] = sorted(
            {each for n in described for each in np.flatnonzero(counted(n, cap) < n).tolist()}
        )
        return summaries.summarise(
            table,
            strategy=self.name,
            seed=seed,
            rounds=strategy.run.federation.num_rounds,
            seconds=self._seconds,
            failed_replies=strategy.run.failed_replies + len(self._late),
            outcomes=measured.outcomes.values(),
            own_metrics=measured.own_metrics,
            row_cap=strategy.options.row_cap,
            traffic=self._last.totals(),
            decisions=summaries.summarise_decisions(measured.outcomes, strategy.assignment, names),
            figures_of_round=self._figures_of_round,
            **{name: values for name, values in late.items() if values},
            **summaries.attended_summary(table),
            **strategy.findings(strategy.clusters).summary,
            **{name: each for found in strategy.beside() for name, each in found.summary.items()},
        )

    # -- After its last round -------------------------------------------------------------------------------

    @property
    def serving(self) -> tuple[IntArray, list[ArrayRecord]]:
        """Cluster of each client, shape (K,), and the model that serves each cluster at the end."""
        assignment, own = self._serving.clusters
        models = list(own)
        for cluster in np.unique(assignment[self._serving.by_common]):
            models[int(cluster)] = self._serving.common[1][0]
        return assignment, models

    def prove(
        self,
        federation: Federation,
        common: RunState,
        rounds: Sequence[Mapping[str, Any]] = (),
        *,
        serve: str,
    ) -> dict[str, object]:
        """Test the clusters that the run ended with against one model for all; write and return the summary.

        Nothing is drawn or trained, so repeating it after an interruption gives the same result.

        Parameters
        ----------
        federation
            The clients.
        common
            The last state of the run of one model for all.
        rounds
            The lines of its ``rounds.jsonl``.
        serve
            ``"cluster"`` to serve every client its cluster's model; ``"best"`` to serve it the common one
            where its cluster's was not shown to be better; a strategy that forms no groups always serves
            its own. The table and the figures are of the models that serve.
        """
        strategy = self.strategy
        name = paper_name(self.name).removesuffix(" (released)")
        decided = strategy.decided()
        best = serve == "best" and strategy.forms_groups and decided is None
        asking = federation.run(self.settings.rounds, self.settings.timeout)
        described, begin = asking.describe(), self._clients.traffic
        self._keeping(COMMON, self.name)
        clusters, theirs = self._serving.clusters, (common.assignment, common.models)
        # What clients chose for themselves has trained on all rows, those held out too.
        held_out = bool(described.num_validation.any()) and decided is None
        measured, silent = questions.ask_differences(asking, theirs, clusters) if held_out else ({}, {})
        how: dict[str, Any] = {"method": name, "serve_best": best, "proven_before": strategy.proves_splits}
        how["held_out"] = held_out
        how["unseen"] = strategy.findings(strategy.clusters).summary.get("unseen")
        shifts = None if decided is None else decided.shifts * (decided.layers == PRIOR)[:, None]
        asking.take_failures()  # of held-out rows; the proof lists them
        tested, trouble = questions.ask_figures(asking, theirs, clusters, shifts), summaries.trouble(rounds)
        self._late = [*self._late, *summaries.named(asking.take_failures(), described.client_names)]
        how["words"] = described.target.words
        proof = prove_grouping(strategy.assignment, measured, tested, trouble=trouble, **how)
        verdict = proof.verdict
        if not strategy.forms_groups:
            text = f"No groups to test: {name} looks for none"
            verdict = dataclasses.replace(verdict, text=text, grouped=False, p_value=None)
        if decided is not None:
            text = decided.text
            if verdict.figure.collapsed:
                text += f". {NO_BETTER} {described.target.words.guess}"
            verdict = dataclasses.replace(verdict, text=text, grouped=decided.grouped, p_value=None)
        by_common = np.zeros(strategy.clusters.num_clients, dtype=bool)
        if best:
            by_common = ~proof.served_by_cluster(strategy.clusters.num_clients)
        if best and self._newcomers is not None:
            of_common = self._completed(Clusters(common.assignment, common.models), COMMON)
            facts = of_common.models[0], asking, by_common, common.server_round
            self._newcomers = against_common(self._newcomers, self._completed(strategy.clusters), *facts)
        self._trains_alone = held_out and strategy.proves_splits
        travelled = self._clients.traffic.since(begin).totals()
        served = strategy.measured.served(common.measured, by_common)
        table = self._table(described, served, served=np.where(by_common, "common", "cluster"))
        own = self._summary(self._table(described, strategy.measured), strategy.measured)
        summary = {
            "verdict": verdict.summary(),
            **self._summary(table, served),
            "serve": serve if strategy.forms_groups and decided is None else "cluster",
            **({"serve_cluster": {key: own[key] for key in summaries.SERVED_FIGURES}} if best else {}),
            "proof": summaries.proof_summary(proof, silent, described.client_names, travelled),
        }
        self._serving = Serving(served, clusters, theirs, by_common)
        served_common = np.flatnonzero(by_common).tolist()
        if self.staying is not None and (kept := self._clients.kept) is not None:
            with_common = kept.of(COMMON)  # what serves these clients from now on
            chosen = [client for client in served_common if client in with_common]
            kept.of(self.name).update({client: with_common[client] for client in chosen})
        elif self.staying is not None:
            self._with_common = served_common
        return self._show(table, summary)

    def personalise(self, federation: Federation, personal: Personal) -> dict[str, object]:
        """Try personal layers on top of the models that serve the clients; write and return the summary.

        Called last, once it is decided which models serve. Where the strategy tests its groups during the
        run, clients then compare what serves them with a model that each trains alone. Draws depend on the
        seed and the number of rounds only: repeating it after an interruption gives the same result.

        Parameters
        ----------
        federation
            The clients.
        personal
            The layers. Figures without a layer are kept; those with one are added.

        Returns
        -------
        The content of ``summary.json``.
        """
        asking = federation.run(self.settings.rounds, self.settings.timeout)
        self._keeping(self.name, common=self._with_common)
        layered = self._try_layers(asking, personal) if personal.asked else None
        if self.settings.validates:
            self._validate(asking, personal, layered)
        if self._trains_alone:
            self._compare_alone(asking, personal, layered)
        return self._written

    def _try_layers(self, asking: Federation, personal: Personal) -> questions.Layered:
        (table, summary), serving = self._shown, self._serving
        began = time.perf_counter()
        described, begin = asking.describe(), self._clients.traffic
        decided = self.strategy.decided()
        chosen = None if decided is None else (decided.layers, decided.shifts)
        layered = questions.ask_personal(asking, serving, personal, self.settings.rounds + 1, chosen)

        def summed(measured: Measured) -> dict[str, object]:
            return self._summary(self._table(described, measured), measured)

        own_metrics = serving.measured.own_metrics
        layers = summaries.personal_summary(personal, layered, summary, summed, own_metrics)
        layers["failures"] = summaries.named(layers["failures"], described.client_names)
        travelled = self._clients.traffic.since(begin)
        layers |= {"bytes_down": travelled.down, "bytes_up": travelled.up}
        layers["seconds"] = time.perf_counter() - began
        # What is served has its layer: its figures replace those of the models without one.
        served = layered.measured[personal.choice]
        kept = {name: table[name] for name in ("served",) if name in table}
        figures = self._table(described, served, **kept)
        without = {key: summary.get(key) for key in summaries.SERVED_FIGURES}
        now = self._summary(figures, served)
        changed = {key: now[key] for key in (*summaries.OF_SERVED, *own_metrics) if key in now}
        summary = {key: value for key, value in summary.items() if key != "collapsed"} | changed
        summary |= {"without_layer": without, "personal": layers}
        self._show(summaries.personal_table(figures, table, personal, layered), summary)
        return layered

    def _validate(self, asking: Federation, personal: Personal, layered: questions.Layered | None) -> None:
        """Add to the summary how well what serves predicts held-out rows."""
        if layered is None:
            personal = NoLayer()
            layered = questions.ask_personal(asking, self._serving, personal, self.settings.rounds + 1)
        rows, used = asking.describe().num_validation, layered.used.get(personal.choice)
        score = summaries.validation_brier(layered.losses, used, rows, layered.failures)
        table, summary = self._shown
        self._show(table, summary | {VALIDATION: score})

    def _compare_alone(
        self, asking: Federation, personal: Personal, layered: questions.Layered | None
    ) -> None:
        (table, summary), begin = self._shown, self._clients.traffic
        model, last = self.strategy.run.initial, self.settings.rounds + 1
        better, asked = questions.ask_alone(asking, self._serving, model, personal, layered, last)
        found: Mapping[str, Any] = summary
        verdict, proof = dict(found["verdict"]), dict(found["proof"])
        if asked:
            epochs = min(asking.num_rounds, questions.ALONE_EPOCHS)
            what = f"a model of their own, trained for {plural(epochs, 'epoch')}, is better"
            verdict["text"] += f"; for {better} of {plural(asked, 'client')} {what}"
        travelled = self._clients.traffic.since(begin).totals()
        proof |= {key: proof[key] + travelled[key] for key in ("bytes_down", "bytes_up")}
        counted = {"better_alone": {"better": better, "clients": asked}}
        self._show(table, summary | {"verdict": verdict, "proof": proof} | counted)

    def _show(self, table: pd.DataFrame, summary: dict[str, object]) -> dict[str, object]:
        """Write the table of clients and the summary."""
        self._shown = table, summary
        if self._newcomers is not None:
            table, summary = add_newcomers(table, summary, self._newcomers)
        with self._writing():
            self.recorder.clients(table)
            self.recorder.summary(summary)
        self._written = summary
        return summary

    def _traffic(self) -> Traffic:
        """Count the bytes of this run so far, including those before it was resumed.

        The bytes of clients' descriptions, which are asked for before the run, are included if the strategy
        uses them; it first does so in round 1 at the latest, so a resumed run has counted them.

        Under differential privacy of clients that are not simulated, totals are counted as if every client
        had messages of its own: a model that a node's clients share is sent once, so the bytes as sent would
        reveal whether they are in one cluster.
        """
        now = self._clients.traffic.since(self._begin)
        earlier = self.strategy.description_traffic if self.resume is None else self.resume.traffic
        now = now if earlier is None else earlier.plus(now)
        if not self._separate:
            return now
        each = now.down_by_client, now.up_by_client
        return Traffic(int(each[0].sum()), int(each[1].sum()), *each)
