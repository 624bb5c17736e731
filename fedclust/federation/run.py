"""A run in progress: a round, what layers change in it, its evaluations, and the state for a checkpoint."""

import dataclasses
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedclust import metrics
from fedclust.federation.answering import Failure
from fedclust.federation.clusters import Clusters, Findings
from fedclust.federation.federation import Federation, RosterState
from fedclust.messages.evaluation import EvaluateQuestion, Evaluation
from fedclust.messages.replies import Reply
from fedclust.messages.traffic import Traffic
from fedclust.messages.training import LOSS, NUM_EXAMPLES, Instruction
from fedclust.proof.paired import counted
from fedclust.settings.run_options import MIN_REPLIES
from fedclust.support.reasons import RunFailed
from fedclust.support.rng import draw, generator, number_of
from fedclust.typing import BoolArray, FloatArray, IntArray

# -- Evaluations --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Measured:
    """Each client's measurements in one round.

    Attributes
    ----------
    figures
        A value per client by name, NaN where unknown, each of shape (K,).
    outcomes
        After a full evaluation, each client's counts, from which pooled figures are computed.
    """

    figures: Mapping[str, FloatArray] = field(default_factory=dict)
    outcomes: Mapping[int, metrics.Outcomes] = field(default_factory=dict)

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation], num_clients: int) -> "Measured":
        """Combine the clients' replies; all figures of a client that did not reply are NaN."""
        figures: dict[str, FloatArray] = {}
        for evaluation in evaluations:
            for name, value in evaluation.metrics.items():
                if name not in figures:
                    figures[name] = np.full(num_clients, np.nan)
                figures[name][evaluation.client] = value
        counted = {each.client: each.outcomes for each in evaluations if each.outcomes is not None}
        return cls(figures, counted)

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """Names of the user's own metrics and of the target's among the figures, sorted."""
        errors = set(map(metrics.error_of, self.figures))
        return tuple(sorted(set(self.figures) - set(metrics.CLIENT_FIGURES) - errors))

    def served(self, other: "Measured", by_other: BoolArray) -> "Measured":
        """Combine each client's measurements of the model that serves it.

        Parameters
        ----------
        other
            The clients' measurements of another model.
        by_other
            Whether the other model serves each client, shape (K,).
        """
        unknown = np.full(len(by_other), np.nan)
        figures = {
            name: np.where(by_other, other.figures.get(name, unknown), self.figures.get(name, unknown))
            for name in {**self.figures, **other.figures}
        }
        counted = {
            client: (other if by_other[client] else self).outcomes.get(client)
            for client in range(len(by_other))
        }
        return Measured(figures, {client: each for client, each in counted.items() if each is not None})


def evaluation_sample(
    asked: int | float | None, num_clients: int, seed: int, server_round: int, online: Iterable[int]
) -> IntArray | None:
    """Draw the clients that evaluate in a round, uniformly, the same for every method with this seed.

    Parameters
    ----------
    asked
        Number of clients, or their share in (0, 1]; None for all.
    num_clients
        Number of clients K.
    seed
        The run's seed.
    server_round
        The round; every round has its own sample.
    online
        Ids of the clients that can be reached, from which the sample is drawn.

    Returns
    -------
    Client ids, sorted; None for all clients. Fewer than asked for if fewer can be reached.
    """
    number = num_clients if asked is None else number_of(asked, num_clients)
    if number == num_clients:
        return None
    there = np.arange(num_clients)
    there = there[np.isin(there, np.fromiter(online, dtype=np.int64))]
    return draw(there, min(number, len(there)), generator(seed, "evaluate", server_round))


def evaluation_questions(
    clusters: Clusters, online: Collection[int], sample: IntArray | None, **settings: Any
) -> dict[int, EvaluateQuestion]:
    """Make the questions that ask clients to evaluate their cluster's model.

    Parameters
    ----------
    clusters
        The clusters.
    online
        Ids of the clients that can be reached; others are not asked.
    sample
        Ids of the clients to ask, sorted; None for all.
    settings
        Fields of the questions besides the model.
    """
    asked = np.arange(clusters.num_clients) if sample is None else sample
    questions = [EvaluateQuestion(model, **settings) for model in clusters.models]
    # By id, not by position: a client that has just come is online but has no cluster yet.
    return {
        client: questions[cluster]
        for client, cluster in zip(asked.tolist(), clusters.assignment[asked].tolist(), strict=True)
        if client in online
    }


def round_figures(
    measured: Measured, sampled: bool = False, row_cap: float | None = None
) -> dict[str, float]:
    """Average the clients' measurements, for the round's line in ``rounds.jsonl``.

    Parameters
    ----------
    measured
        The measurements.
    sampled
        Whether only a sample of the clients was asked; ``evaluated_clients``, the number of clients with an
        accuracy, is then added.
    row_cap
        How many rows of a client count in means over rows, see :func:`fedclust.proof.counted`.

    Returns
    -------
    Over the clients with an accuracy: ``global_accuracy``, ``mean_client_accuracy`` and
    ``balanced_accuracy``; over all clients with test examples: ``test_loss`` (the mean over all their test
    examples, NaN if a client's loss is not finite) and the mean of each of the user's own metrics. None of
    these without such a client.
    """
    figures = measured.figures
    known = np.isfinite(figures.get("accuracy", figures.get(LOSS, np.zeros(0))))
    mark: dict[str, float] = {"evaluated_clients": int(known.sum())} if sampled else {}
    if not known.any():
        return mark
    testing = figures[NUM_EXAMPLES] > 0  # NaN, of a client that did not reply, is not
    losses = figures[LOSS][testing]
    weights = counted(figures[NUM_EXAMPLES][testing].astype(np.int64), row_cap)
    accuracies: dict[str, float] = {}
    if "accuracy" in figures:  # which a ClientApp of the user's own may not report
        accuracy, num_examples = figures["accuracy"][known], figures[NUM_EXAMPLES][known].astype(np.int64)
        accuracies["global_accuracy"] = metrics.global_accuracy(accuracy, counted(num_examples, row_cap))
        accuracies["mean_client_accuracy"] = float(accuracy.mean())
    if "balanced-accuracy" in figures:
        accuracies["balanced_accuracy"] = mean_of_known(figures["balanced-accuracy"][known])
    # A mean over the other clients would hide one client's overflow.
    loss = float(np.average(losses, weights=weights)) if np.isfinite(losses).all() else float("nan")
    return {
        **accuracies,
        "test_loss": loss,
        **{name: mean_of_known(figures[name][testing]) for name in measured.own_metrics},
        **mark,
    }


def mean_of_known(values: FloatArray) -> float:
    """Compute the mean of the finite values; NaN of none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


# -- Whether a run can continue -----------------------------------------------------------------------------

_SHOWN = 5
_MOST_IN_A_ROW = 3
_BY_CHANCE = 10  # this many clients of a sample do not all fail by chance
# Client and round in a reason, removed to count equal reasons.
_CLIENT_AND_ROUND = re.compile(r"^client \d+( \(node \d+\))?((, round \d+)?: | is (?=offline))")


def check_round(record: Mapping[str, Any], num_rounds: int, min_replies: float = MIN_REPLIES) -> None:
    """Check that a round has trained and measured enough clients.

    A client that fails is only excluded from its round. A round in which every client failed changes no
    model, so reporting the final models as a result would be wrong.

    Parameters
    ----------
    record
        The round's line in the results: ``round``, ``cohort``, ``failures``, ``global_accuracy`` if a client
        measured one, ``evaluated_clients`` if only a sample was asked, and ``went_back`` with
        ``num_clusters`` and ``cluster_sizes`` if a cluster went back to an earlier model; each entry has the
        number of ``clients`` that the cluster had then.
    num_rounds
        Number of rounds of the run; the last one must have an accuracy.
    min_replies
        Least share of the round's clients that must be trained, in [0, 1]. Above 0, at least one client must
        be trained and one evaluated; with 0 a round without replies is allowed, unless it is the last.

    Raises
    ------
    RunFailed
        If too few clients were trained; if every evaluation failed, unless few clients were sampled; if the
        last round has no accuracy; or if the clusters of more than half of the clients go back to earlier
        models so often that nothing is learnt. (A single client could reject any model of its own cluster.)
    """
    server_round = record["round"]
    where = f"{RunFailed.PHRASE} {server_round} of {num_rounds}"
    reasons = {
        phase: [failure["reason"] for failure in record["failures"] if failure["phase"] == phase]
        for phase in ("train", "evaluate")
    }
    cohort = len(record["cohort"])
    back = record.get("went_back", ())
    # Clients are counted when the cluster went back: it may have been merged or renumbered since.
    stuck = {each["cluster"]: each for each in back if each["in_a_row"] >= _MOST_IN_A_ROW}
    if stuck and 2 * sum(each["clients"] for each in stuck.values()) > sum(record["cluster_sizes"]):
        cluster, first = next(iter(stuck.items()))
        raise RunFailed(
            f"{where}, cluster {cluster} went back to an earlier model for the "
            f"{_MOST_IN_A_ROW}rd time in a row: {first['reason']}"
        )
    clusters = {each["cluster"] for each in back}
    if back and server_round == num_rounds and len(clusters) >= record["num_clusters"]:
        raise RunFailed(f"{where}, no cluster made a model that is of use: {back[0]['reason']}")
    trained = cohort - len(reasons["train"])
    if min_replies and cohort and trained < max(1, min_replies * cohort):
        who = (
            "no client was trained" if trained < 1 else _too_few(trained, cohort, "were trained", min_replies)
        )
        raise RunFailed(f"{where}, {who}: {count_reasons(reasons['train'], cohort)}")
    if "global_accuracy" in record:
        return
    measured = len(reasons["evaluate"])
    chance = "evaluated_clients" in record and measured < _BY_CHANCE
    if measured and ((min_replies and not chance) or server_round == num_rounds):
        raise RunFailed(f"{where}, no client was evaluated: {count_reasons(reasons['evaluate'], measured)}")
    if server_round == num_rounds:
        raise RunFailed(f"{where}, no client has an accuracy: no test examples, or none is online")


def check_answered(
    failures: Sequence[Mapping[str, Any]], measured: int, clients: int, where: str, min_replies: float
) -> None:
    """Check that enough clients contribute to a run's figures.

    Parameters
    ----------
    failures
        Failures of the last round.
    measured
        Clients with an accuracy.
    clients
        Clients with test examples.
    where
        The round, for the message, such as ``"5 of 5"``.
    min_replies
        Least share of `clients` that must have an accuracy.

    Raises
    ------
    RunFailed
        If fewer clients have one.
    """
    if measured >= min_replies * clients:
        return
    reasons = [each["reason"] for each in failures if each["phase"] == "evaluate"]
    silent = clients - measured - len(reasons)
    reasons += ["offline"] * max(0, silent)
    raise RunFailed(
        f"{RunFailed.PHRASE} {where}, {_too_few(measured, clients, 'were evaluated', min_replies)}: "
        f"{count_reasons(reasons, clients)}"
    )


def _too_few(number: int, total: int, done: str, min_replies: float) -> str:
    least = math.ceil(min_replies * total)
    return f"{number} of {total} clients {done}, min_replies={min_replies:g} needs {least}"


def count_reasons(reasons: Iterable[str], total: int) -> str:
    """Format reasons, each with its number of clients, the most frequent first.

    Parameters
    ----------
    reasons
        A reason per failed client.
    total
        Number of clients asked.

    Returns
    -------
    ``"28 of 30 clients: disk full; 2 of 30 clients: no reply"``; after five reasons, the number of others.
    """
    counts = Counter(_CLIENT_AND_ROUND.sub("", " ".join(reason.split())) for reason in reasons).most_common()
    parts = [f"{count} of {total} clients: {reason}" for reason, count in counts[:_SHOWN]]
    if len(counts) > _SHOWN:
        clients = sum(count for _, count in counts[_SHOWN:])
        parts.append(f"{len(counts) - _SHOWN} more reasons of {clients} clients")
    return "; ".join(parts)


# -- The run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Round:
    """A round so far; every step takes it and returns it with what the step found or changed.

    Attributes
    ----------
    number
        Its number, from 1; 0 before the first.
    clusters
        The clusters as they are now.
    found
        The clusters before the cohort was drawn, with copies of those aggregators that remember anything.
    asked
        What each client of the cohort is asked to train, by client id.
    cohort
        Cluster of each of these clients, by client id in ascending order.
    sent
        The models that the cohort starts from, by cluster.
    replies, failures
        The valid replies, and why other clients gave none; from the evaluation on, why clients did not
        measure anything.
    unusable
        Why the next model of a cluster cannot be used, by cluster.
    online
        Ids of the clients that were online at the evaluation; None in a round without one.
    sampled
        Whether a sample of the clients evaluates.
    evaluations
        The clients' evaluations.
    record
        The round's line of ``rounds.jsonl``, as far as known.
    """

    number: int
    clusters: Clusters
    found: Clusters | None = None
    asked: Mapping[int, Instruction] = field(default_factory=dict)
    cohort: Mapping[int, int] = field(default_factory=dict)
    sent: Sequence[ArrayRecord] = ()
    replies: Sequence[Reply] = ()
    failures: Sequence[Failure] = ()
    unusable: Mapping[int, str] = field(default_factory=dict)
    online: Collection[int] | None = None
    sampled: bool = False
    evaluations: Sequence[Evaluation] = ()
    record: Mapping[str, Any] = field(default_factory=dict)

    def noting(self, **entries: Any) -> "Round":
        """Add entries to the record."""
        return dataclasses.replace(self, record={**self.record, **entries})


@dataclass(eq=False)
class Run:
    """A run in progress.

    Attributes
    ----------
    federation
        The clients.
    make_aggregator
        Makes a cluster's aggregator.
    initial
        The model that all clients start from.
    now
        The round in progress, or the last one.
    buffers
        Names of the model's floating-point buffers.
    train_config, evaluate_config
        The user's own settings for the clients in every round.
    server_round
        The last finished round.
    measured
        Each client's measurements at the last evaluation.
    failed_replies
        Number of replies that failed or never came, over all rounds.
    """

    federation: Federation
    make_aggregator: Callable[[], Strategy]
    initial: ArrayRecord
    now: Round
    buffers: frozenset[str] = frozenset()
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] = field(default_factory=dict)
    server_round: int = 0
    measured: Measured = field(default_factory=Measured)
    failed_replies: int = 0
    _began: float = field(default_factory=time.perf_counter)

    @property
    def clusters(self) -> Clusters:
        """The clusters as they are now."""
        return self.now.clusters

    @property
    def number(self) -> int:
        """The round in progress."""
        return self.server_round + 1

    @property
    def over(self) -> bool:
        """Whether the last round is finished."""
        return self.server_round >= self.federation.num_rounds

    def next_round(self) -> Round:
        """Begin a round with the clusters of the last one."""
        self.federation.server_round = self.number
        record = {"round": self.number, "cohort": [], "loss": None, "failures": []}
        clusters = dataclasses.replace(self.clusters, report={}, reason="")
        self.now = Round(self.number, clusters, record=record)
        return self.now

    def finish(self, last: Round, row_cap: float | None) -> tuple[dict[str, float], dict[str, Any]]:
        """Count a round; return the means of what was measured in it, and its whole record."""
        if last.evaluations or last.unusable:
            self.measured = Measured.of(last.evaluations, last.clusters.num_clients)
        figures = round_figures(self.measured if last.evaluations else Measured(), last.sampled, row_cap)
        sizes, now = last.clusters.sizes, time.perf_counter()
        record = {
            **last.record,
            "num_clusters": int(np.count_nonzero(sizes)),
            "cluster_sizes": sizes.tolist(),
            **figures,
            "strategy": dict(last.clusters.report),
            "seconds": now - self._began,
        }
        self.server_round, self._began = last.number, now
        self.now = dataclasses.replace(last, record=record)
        self.failed_replies += len(record["failures"])
        return figures, record

    def leave_out(self, seconds: float) -> float:
        """Take time that was none of the run's, as a tracker's, out of the next round's; return it."""
        self._began += seconds
        return seconds


def amended(asked: Mapping[int, Instruction], **fields: Any) -> dict[int, Instruction]:
    """Change fields of instructions; clients that share one still do."""
    distinct = {id(each): each for each in asked.values()}
    changed = {key: dataclasses.replace(each, **fields) for key, each in distinct.items()}
    return {client: changed[id(each)] for client, each in asked.items()}


class Layer:
    """One thing that happens in every round beside the method.

    Four functions are called in every round, one after each of its steps: they take the round so far and
    return it, changed or as it is. A layer passes nothing to the loop or another layer except in that value;
    the loop calls the layers in the order of their list and does not know which they are.

    Attributes
    ----------
    needs_client_models
        Whether it needs each client's model, not a node's mean.
    memory_type
        Type of what :meth:`state` returns; None for a layer that remembers nothing.
    """

    needs_client_models: bool = False
    memory_type: ClassVar[Any] = None

    def begin(self, run: Run, state: Any) -> Round:
        """Prepare for a new run, or go on from what :meth:`state` returned before an interruption."""
        return run.now

    def instruct(self, run: Run, now: Round) -> Round:
        """Change who trains in the round, and by what instruction: ``now.asked``."""
        return now

    def screen(self, run: Run, now: Round) -> Round:
        """Leave out or change replies before they are aggregated, and name the failures."""
        return now

    def before_evaluation(self, run: Run, now: Round) -> Round:
        """Change the clusters before clients evaluate, in rounds with an evaluation."""
        return now

    def after_evaluation(self, run: Run, now: Round) -> Round:
        """Leave out or change what clients measured; without an evaluation, ``now.online`` is None."""
        return now

    def findings(self, run: Run) -> Findings:
        """Return entries of the run's summary, and columns of the clients' table, each of shape (K,)."""
        return Findings()

    def state(self, run: Run) -> Any:
        """Return what is remembered after a round: a frozen dataclass of arrays, numbers and names."""
        return None


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything needed to resume a run.

    Every draw of a run derives from (seed, purpose, round, client), so no generator needs to be saved.

    Attributes
    ----------
    server_round
        The last finished round.
    assignment
        Cluster of each client, shape (K,).
    models
        Model of each cluster.
    turns
        Number of rounds for which each client has been chosen, shape (K,).
    memory
        The method's own state, packed by :func:`fedclust.messages.packer.pack`.
    aggregators
        State of each cluster's aggregator, see :mod:`fedclust.aggregation.flower`.
    measured
        Each client's measurements at the last evaluation.
    failed_replies
        Number of replies that failed or never came, over all rounds.
    traffic
        Bytes sent and received so far; None if not counted.
    roster
        The clients that have joined, see :meth:`fedclust.federation.Federation.roster_state`.
    layers
        Each layer's own state, packed, by the layer's name.
    """

    server_round: int
    assignment: IntArray
    models: tuple[ArrayRecord, ...]
    turns: IntArray
    memory: Any = None
    aggregators: tuple[Mapping[str, Any], ...] = ()
    measured: Measured = field(default_factory=Measured)
    failed_replies: int = 0
    traffic: Traffic | None = None
    roster: RosterState = field(default_factory=RosterState)
    layers: Mapping[str, Any] = field(default_factory=dict)
