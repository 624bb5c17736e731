"""What leaves a node: each answer passes here, where the site's rules decide.

A node with ``data`` of its own has rules (:mod:`fedclust.data.sites.rules`), from its operator's
``site.toml`` or the defaults. :mod:`fedclust.data.sites.rows` keeps to them where it describes the data
before round 1. Nothing that comes with a run is read here except the question.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock
from flwr.app import ArrayRecord

from fedclust.clients.node import Node
from fedclust.data import cache
from fedclust.data.sites.rules import Rules, RulesError
from fedclust.data.targets import Target
from fedclust.messages import coalitions, description, evaluation, mixtures, training
from fedclust.messages.codec import as_record
from fedclust.metrics import Outcomes
from fedclust.personal.layers import NONE
from fedclust.privacy.accountant import epsilon_of_runs
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.support.checks import replace_file
from fedclust.support.reasons import about
from fedclust.support.untrusted import read_json
from fedclust.training.cohort import num_steps
from fedclust.training.patients import patient_steps
from fedclust.typing import FloatArray, IntArray

_BY_PREDICTION = ("macro-f1",)
_BY_CLASS = ("balanced-accuracy", *_BY_PREDICTION, "auc")
_TRAINS = (training.Instruction.kind, training.UpdateQuestion.kind)


@contextmanager
def _account(node: Node, what: str, empty: Any) -> Iterator[tuple[Path, Any]]:
    """Lock one of the site's accounts, as runs train at the same time; give its file and what that holds.

    It is not in the cache, which may be deleted at any time.
    """
    chosen = os.environ.get("FEDCLUST_ACCOUNTS") or Path.home() / ".local" / "state" / "fedclust"
    folder = Path(chosen).expanduser().absolute()
    with about("the site's account"):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{what}-{cache.digest(str(node.config['name']))}.json"
        with FileLock(file.with_suffix(".lock")):
            held = read_json(file) if file.is_file() else empty
            if not isinstance(held, type(empty)):
                raise ValueError(f"{file} must hold a JSON {type(empty).__name__}, got {held!r:.40}")
            yield file, held


def check_question(node: Node, kind: str) -> None:
    """Check, before any work, that the site answers a type of question, and count the day's training.

    Raises
    ------
    RulesError
        If it does not, or has trained as often as its operator allows a day.
    """
    rules = node.rules
    if rules is None:
        return
    if not rules.answers(kind):
        raise RulesError(
            f"this site does not answer {kind.removeprefix('query.')}, by the rules of its operator"
        )
    if rules.rounds_per_day is None or kind not in _TRAINS:
        return
    with _account(node, "rounds", {}) as (file, counts):
        today = time.strftime("%Y-%m-%d")
        trained = int(counts.get(today, 0))
        if trained >= rules.rounds_per_day:
            most = f"{rules.rounds_per_day} times a day, by the rules of its operator"
            raise RulesError(f"this site trains {most}")
        later = {day: count for day, count in counts.items() if day > today}  # of a clock that was set back
        replace_file(file, json.dumps({today: trained + 1} | later))


def charge(node: Node, questions: Sequence[Any]) -> None:
    """Refuse, before any work, what patients' protection forbids; add to the site's account what they spend.

    Who is a patient, and which of them train, are the run's choice, so each question counts for all patients.
    What the rules refuse anyway costs nothing.

    Parameters
    ----------
    node
        The node that is asked.
    questions
        The question of each of its clients.

    Raises
    ------
    RulesError
        If a question asks for training without the protection that the rules demand, or they would spend more
        than the site's operator allows; nothing is added then.
    """
    rules = node.rules
    if rules is None:
        return
    for question in questions:
        if why := _refused(rules, node, question):
            raise RulesError(why)
    if rules.patient_epsilon is None:
        return
    asked = [each for each in (_spending(rules, node, question) for question in questions) if each]
    if not asked:
        return
    with _account(node, "patients", []) as (file, spent):
        account: dict[tuple[float, float], int] = {}
        for noise, sampling, number in [*spent, *asked]:
            account[noise, sampling] = account.get((noise, sampling), 0) + number
        after = [(*key, number) for key, number in account.items()]
        if epsilon_of_runs(after, rules.patient_delta) > rules.patient_epsilon:
            raise RulesError(
                f"this site's patients spend at most ε = {rules.patient_epsilon:g} in all runs, by the rules "
                "of its operator"
            )
        replace_file(file, json.dumps(after))


def _refused(rules: Rules, node: Node, question: Any) -> str | None:
    """Explain why a question is not worked on: an error could answer it, and what is trained a later one."""
    match question:
        case _ if node.keeps:
            return rules.unprotected(None, None)
        case training.Instruction() if not (question.arms or question.stays or question.pooled):
            return rules.unprotected(question.patient_clip and question.patient_noise, question.patient_clip)
        case evaluation.EvaluateQuestion():
            return rules.unprotected(question.noise, 0.0)
        case description.EncoderQuestion() | description.DescriptionQuestion():
            return None  # as far as the answer may leave
        case _:
            return rules.unprotected(None, None)


def _spending(rules: Rules, node: Node, question: Any) -> tuple[float, float, int] | None:
    """Return noise, sampling and number of what a question asks of patients; None if it is refused."""
    match question:
        case training.Instruction(patient_noise=noise, patient_sampling=sampling) if sampling:
            return noise, sampling, patient_steps(node.trainer.training, sampling)
        case evaluation.EvaluateQuestion(noise=noise):
            return None if noise is None or rules.unprotected(noise, 0.0) else (noise, 1.0, 1)
        case _:
            return None


def rare_classes(node: Node, client: int, part: Literal["train", "test"]) -> IntArray:
    """List the classes of which a client has a few rows, by its rules; none without rules or classes."""
    if node.rules is None or node.data.target.numeric:
        return np.zeros(0, dtype=np.int64)
    counts = node.data.label_counts(part)[client]
    return np.flatnonzero((counts > 0) & (counts < node.rules.min_cell))


@dataclass
class Release:
    """What may leave of the answers to one message.

    Attributes
    ----------
    node
        The node that answers.
    changed
        The models that have been clipped, by the one that they replace: clients share a mean.
    """

    node: Node
    changed: dict[int, tuple[ArrayRecord, dict[str, FloatArray]]] = field(default_factory=dict)

    def of(self, client: int, question: Any, answer: Any) -> Any:
        """Return what may leave of an answer.

        Raises
        ------
        RulesError
            If none of it may.
        """
        rules, data = self.node.rules, self.node.data
        if rules is None:
            return answer
        if why := _unprotected(rules, self.node, question, answer):
            raise RulesError(why)
        if len(data.train[client]) < rules.min_cell:
            raise RulesError(f"this client trains on fewer than {rules.min_cell} rows")
        released: Any
        match answer:
            case description.Description():
                held = (
                    data.label_counts("validation")[client]
                    if data.validation
                    else np.zeros(1, dtype=np.int64)
                )
                released = _description(rules, data.target, answer, held)
            case description.Prototypes():
                few = answer.counts < rules.min_cell
                means = np.where(few[:, None], 0, answer.prototypes).astype(answer.prototypes.dtype)
                released = replace(answer, prototypes=means, counts=np.where(few, 0, answer.counts))
                _check(rules, int(released.counts.sum()))
            case description.Subspaces():
                counts = data.label_counts("train")[client]
                few = counts < max(rules.min_cell, answer.subspaces.shape[2] + 1)
                bases = np.where(few[:, None, None], 0, answer.subspaces).astype(answer.subspaces.dtype)
                released = replace(answer, subspaces=bases)
            case training.TrainAnswer():
                self._check_seen(rules, self._rows(client, question), len(answer.losses))
                released = self._trained(rules, client, question, answer)
            case training.Update():
                rows = self._rows(client, question)
                steps = num_steps(np.array([rows]), self.node.trainer.training)
                self._check_seen(rules, rows, int(steps[0]))
                released = _update(rules, question, answer, self.node.trainer.trainable_names)
            case evaluation.Evaluation():
                figures, outcomes = self._figures(rules, client, answer.metrics, answer.outcomes)
                released = replace(answer, metrics=figures, outcomes=outcomes)
            case evaluation.PersonalAnswer():
                released = self._personal(rules, client, answer)
            case evaluation.Losses(wins=wins) if wins is not None:
                released = replace(answer, wins=np.where(wins < rules.min_cell, 0, wins))
                _check(rules, int(released.wins.sum()))
            case mixtures.Responsibilities():
                few = answer.sums.sum(axis=0) < rules.min_cell
                released = replace(answer, sums=np.where(few, 0.0, answer.sums))
                _check(rules, int(released.sums.sum()))
            case evaluation.Confusion():
                cells = answer.confusion
                released = replace(answer, confusion=np.where(cells < rules.min_cell, 0, cells))
            # A coalition's scores are made without classes of a few rows, by `rare_classes`.
            case evaluation.ProofAnswer() | evaluation.FigureAnswer() | coalitions.ScoresAnswer():
                _check(rules, answer.count)
                released = answer
            case evaluation.Predictions(num_examples=number):
                released = evaluation.Predictions(number * (number >= rules.min_cell))
            case coalitions.SiteFigures():
                _check(rules, len(data.test[client]))
                each = {k: self._figures(rules, client, of, None)[0] for k, of in answer.figures.items()}
                released = replace(answer, figures=each)
            case _:
                released = answer
        return released

    def _figures(
        self, rules: Rules, client: int, figures: Mapping[str, float], outcomes: Outcomes | None
    ) -> tuple[dict[str, float], Outcomes | None]:
        rare = bool(len(rare_classes(self.node, client, "test")))
        return _figures(rules, len(self.node.data.test[client]), figures, outcomes, rare)

    def _rows(self, client: int, question: training.Instruction | training.UpdateQuestion) -> int:
        """Count the rows that a client was asked to train on."""
        train = self.node.data.train
        others = question.pooled_rows or range(len(train)) if question.pooled else (client,)
        return sum(len(train[each]) for each in others)

    def _check_seen(self, rules: Rules, rows: int, steps: int) -> None:
        """Check that the batches of a round hold enough rows: a change by fewer shows them."""
        if rules.patient_noise is not None:  # noise hides each patient
            return
        if min(rows, steps * self.node.trainer.training.batch_size) < rules.min_cell:
            raise RulesError(f"training must take at least {rules.min_cell} rows a round at this site")

    def _trained(
        self, rules: Rules, client: int, question: training.Instruction, answer: training.TrainAnswer
    ) -> training.TrainAnswer:
        how, rows = self.node.trainer.training, self._rows(client, question)
        last = (rows - 1) % how.batch_size + 1 if len(answer.losses) * how.batch_size >= rows else rows
        if min(how.batch_size, last) < rules.min_cell:  # a step's loss is that of its batch
            answer = replace(answer, losses=np.full(len(answer.losses), answer.losses.mean()))
        if not rules.own_models:
            answer = replace(answer, arms={})
        if rules.clip is None:
            return answer
        arrays, change = self._clipped(rules, question.arrays, answer.arrays)
        arms = {
            name: self._clipped(rules, question.arms[name], each)[0] for name, each in answer.arms.items()
        }
        answer = replace(answer, arrays=arrays, arms=arms)
        if answer.projected is not None and question.projection is not None:
            trained = {name: change[name] for name in self.node.trainer.trainable_names}
            sums = question.projection.of({name: each[None] for name, each in trained.items()})[0]
            answer = replace(answer, projected=training.Projected(sums, _length(trained)))
        if answer.update_norm is not None:
            own = math.inf if rules.noise else answer.update_norm  # its length has no noise
            answer = replace(answer, update_norm=min(own, _length(change)))
        return answer

    def _clipped(
        self, rules: Rules, start: ArrayRecord, model: ArrayRecord
    ) -> tuple[ArrayRecord, dict[str, FloatArray]]:
        """Clip a model's change and add noise; return both, the same for all clients that share the model."""
        if id(model) not in self.changed:
            before = {name: to_numpy(each) for name, each in start.items()}
            after = {name: to_numpy(each) for name, each in model.items()}
            numbers = [name for name, each in before.items() if each.dtype.kind == "f"]
            change = {name: after[name].astype(np.float64) - before[name] for name in numbers}
            change = _hidden(rules, change)
            after |= {name: (before[name] + each).astype(before[name].dtype) for name, each in change.items()}
            self.changed[id(model)] = (
                as_record({name: from_numpy(each) for name, each in after.items()}),
                change,
            )
        return self.changed[id(model)]

    def _personal(
        self, rules: Rules, client: int, answer: evaluation.PersonalAnswer
    ) -> evaluation.PersonalAnswer:
        data = self.node.data
        held_out = len(data.validation[client]) if data.validation else 0
        few = held_out < rules.min_cell
        losses, chosen = ({}, NONE) if few else (answer.losses, answer.chosen)
        figures, outcomes = dict(answer.figures), dict(answer.outcomes)
        for layer, each in answer.figures.items():
            figures[layer], counted = self._figures(rules, client, each, outcomes.pop(layer, None))
            if counted is not None:
                outcomes[layer] = counted
        return replace(answer, losses=losses, chosen=chosen, figures=figures, outcomes=outcomes)


def _unprotected(rules: Rules, node: Node, question: Any, answer: Any) -> str | None:
    """Explain why an answer says more of a patient than the rules allow; None if it does not."""
    match answer:
        case _ if rules.patient_noise is None:
            return None
        case description.Encoder():  # the sites' agreement
            return None
        case description.Description(label_counts=None, num_train=None):
            return None
        case training.TrainAnswer():
            return _refused(rules, node, question)
        case evaluation.Evaluation():
            return rules.unprotected(question.noise, 0.0)
        case _:
            return rules.unprotected(None, None)


def _check(rules: Rules, rows: int) -> None:
    if rows < rules.min_cell:
        raise RulesError(f"this site sends no figure of fewer than {rules.min_cell} rows")


def _raised(least: int, counts: IntArray, total: int, *, all_stay: bool = False) -> IntArray:
    """Change counts of a few rows to the least that leaves, and the largest until the sum is `total`.

    Where there are too few rows for that, the smallest become 0, or, if all are to stay, the sum is larger.
    """
    places = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    if not all_stay:
        places = places[: total // least]
    raised = np.zeros_like(counts)
    raised[places] = np.maximum(counts[places], least)
    while raised.sum() > total and raised.max() > least:
        raised[raised.argmax()] -= 1
    raised[raised.argmax()] += max(0, total - raised.sum())
    return raised


def _description(
    rules: Rules, target: Target, answer: description.Description, held: IntArray
) -> description.Description:
    """Raise counts of a few rows; a test part or a held-out part of a few rows counts as none.

    A run may ask once more with the rows that are held out among those that train, and so may count them by
    class: the counts that train are those of both, without as many as the held-out part has by its own rule.
    """
    least, kinds = rules.min_cell, target.kinds

    def raised(counts: IntArray, *, test: bool = False) -> IntArray:
        if counts.sum() < least:
            return np.zeros_like(counts)
        sent, totals = np.zeros_like(counts), counts.reshape(-1, kinds).sum(axis=0)
        all_stay = not (target.numeric or test)  # a client must not lose a class of which it has a few rows
        for kind, total in enumerate(_raised(least, totals, int(totals.sum())).tolist()):
            sent[kind::kinds] = _raised(least, counts[kind::kinds], total, all_stay=all_stay)
        return sent

    counts, tested, rows = answer.label_counts, answer.test_label_counts, answer.num_train
    if held.any():
        if counts is not None:
            counts = np.maximum(raised(counts + held) - raised(held, test=True), counts > 0)
        if rows is not None and held.sum() < least:
            rows += int(held.sum())
    return replace(
        answer,
        label_counts=None if counts is None else raised(counts),
        num_train=rows,
        test_label_counts=None if tested is None else raised(tested, test=True),
        num_test=None if answer.num_test is None else answer.num_test * (answer.num_test >= least),
        num_validation=answer.num_validation * (answer.num_validation >= least),
    )


def _figures(
    rules: Rules, rows: int, figures: Mapping[str, float], outcomes: Outcomes | None, rare: bool
) -> tuple[dict[str, float], Outcomes | None]:
    """Return the figures of a test part and its counts by class, if each class has enough rows.

    Scores of single rows, and pairs of label and prediction, stay. Figures that weigh each class alike show
    the rows of a class with few, as the accuracy beside them does not.
    """
    if rows < rules.min_cell:
        none = dict.fromkeys(figures, math.nan)
        return none | {training.NUM_EXAMPLES: 0.0}, None
    counts = () if outcomes is None else (outcomes.there, outcomes.predicted)
    small = [bool(((each > 0) & (each < rules.min_cell)).any()) for each in counts]
    rare = rare or any(small[:1])
    few = rare or any(small)
    hidden = _BY_CLASS if rare else _BY_PREDICTION if few else ()
    figures = {name: math.nan if name in hidden else each for name, each in figures.items()}
    if outcomes is not None:
        blank = np.zeros(0, dtype=np.int64)
        outcomes = (
            None
            if few
            else replace(outcomes, bins=None, positives=blank, negatives=blank, confusion=None, sums=None)
        )
    return dict(figures), outcomes


def _update(
    rules: Rules, question: training.UpdateQuestion, answer: training.Update, trained: Iterable[str]
) -> training.Update:
    """Clip the change by its length before the projection, and add noise to what is sent of it."""
    if rules.clip is None:
        return answer
    share = min(1.0, rules.clip / max(answer.norm, np.finfo(float).tiny))
    changes = _hidden(rules, {name: share * each for name, each in answer.changes.items()})
    projected = answer.projected
    if projected is not None and question.projection is not None:
        # The sums of a change with noise on each parameter, however many sums there are.
        draws, spread = np.random.default_rng(), rules.noise * rules.clip
        noise = {name: spread * draws.normal(size=(1, *question.arrays[name].shape)) for name in trained}
        values = share * projected.values + question.projection.of(noise)[0]
        projected = training.Projected(
            values, float(np.linalg.norm(values)) if rules.noise else share * projected.norm
        )
    return replace(answer, changes=changes, projected=projected)


def _length(change: Mapping[str, FloatArray]) -> float:
    return math.sqrt(sum(float(np.square(each).sum()) for each in change.values()))


def _hidden(rules: Rules, change: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Clip a change to the rules' length, and add their noise, which nobody can draw again."""
    clip = rules.clip or math.inf
    share = min(1.0, clip / max(_length(change), np.finfo(float).tiny))
    draws, spread = np.random.default_rng(), rules.noise * clip if rules.noise else 0.0
    return {name: share * each + spread * draws.normal(size=each.shape) for name, each in change.items()}
