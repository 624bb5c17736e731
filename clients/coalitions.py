"""Train and score the models of coalitions on a site's rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clients.app import answers
from fedclust.clients.node import Answers, Node
from fedclust.clients.release import rare_classes
from fedclust.clustering import label_prior
from fedclust.data.targets import Target
from fedclust.messages.coalitions import (
    FOLDS,
    MOST_MENDS,
    ScoresAnswer,
    ScoresQuestion,
    SiteFigures,
    SiteFiguresQuestion,
    fold_of,
    number_of,
)
from fedclust.messages.models import from_stacked, to_state
from fedclust.messages.training import Instruction
from fedclust.proof.coalitions import Fit, Scores, folds
from fedclust.proof.units import Mend, conversion
from fedclust.support.reasons import reason_of
from fedclust.support.rng import generator
from fedclust.training.cohort import Job
from fedclust.typing import FloatArray, IntArray

_IDS = 2**32  # a job's id is made of the client's, which is smaller, and the model's number


def rows_of(node: Node, client: int) -> tuple[IntArray, IntArray]:
    """Return a site's training rows and the fold of each, shape (n,)."""
    rows = np.sort(node.data.train[client])
    persons = None if node.data.persons is None else node.data.persons[rows]
    return rows, folds(len(rows), generator(node.seed, "folds", client), persons)


def train_arms(
    node: Node, asked: Mapping[int, Instruction], weights: Mapping[int, FloatArray] = MappingProxyType({})
) -> dict[int, dict[str, ArrayRecord]]:
    """Train the further models of a round, each without its fold; all sites' and models' in the same passes.

    Parameters
    ----------
    node
        The node.
    asked
        The instructions.
    weights
        Of clients that weight their rows, those of all rows in the training of each model, the instruction's
        own first, shape (models, n).

    Returns
    -------
    The models by client id and name of the record; missing is one whose training failed, or of fewer rows
    without its fold than a site's rules let it train on.
    """
    distinct = {id(model): model for each in asked.values() for model in each.arms.values()}
    states = {key: to_state(model) for key, model in distinct.items()}
    jobs: dict[tuple[int, float | None], dict[int, Job]] = {}
    named: dict[int, tuple[int, str]] = {}
    for client, each in asked.items():
        rows, fold = rows_of(node, client)
        of_models = dict(zip(sorted(each.arms, key=number_of), weights.get(client, [])[1:], strict=False))
        for name, model in each.arms.items():
            number = client + _IDS * (1 + number_of(name))
            named[number] = client, name
            kept, own = fold != fold_of(name), of_models.get(name)
            if node.rules is not None and kept.sum() < node.rules.min_cell:
                continue
            job = Job(number, rows[kept], states[id(model)], weights=None if own is None else own[kept])
            jobs.setdefault((each.server_round, each.proximal_mu), {})[number] = job
    trained: dict[int, dict[str, ArrayRecord]] = {}
    for (server_round, proximal_mu), some in jobs.items():
        for update in node.trainer.train(list(some.values()), server_round, proximal_mu=proximal_mu):
            numbers = update.clients.tolist()
            for number, model in zip(numbers, from_stacked(update.state, range(len(numbers))), strict=True):
                if number not in update.failed:
                    client, name = named[number]
                    trained.setdefault(client, {})[name] = model
    return trained


@answers(ScoresQuestion)
def scores(node: Node, asked: Mapping[int, ScoresQuestion]) -> Answers:
    """Return cross-fitted scores, reduced to what the choice needs, and how other sites' models fit."""
    found, errors, target = {}, {}, node.data.target
    for client, question in asked.items():
        rows, fold = rows_of(node, client)
        parts = [rows[fold == number] for number in range(FOLDS)]
        own = FOLDS * question.coalitions
        jobs = [
            Job(client, parts[place % FOLDS], to_state(each))
            for place, each in enumerate(question.models[:own])
        ]
        jobs += [Job(client, rows, to_state(each)) for each in question.models[own:]]
        try:
            measured = node.trainer.logits(jobs)
            crossed = [measured[first : first + FOLDS] for first in range(0, own, FOLDS)]
            brier, right = [], []
            made = (
                _fitted(node, jobs[:own], rows, fold, question)
                if target.fits_correction
                else _shifts(question, crossed[0])
            )
            for arms, shifts in zip(crossed, made, strict=True):
                for shift in (np.zeros_like(shifts), shifts):
                    both = [(*each, prior) for each, prior in zip(arms, shift, strict=True)]
                    brier.append(np.concatenate([target.scores(*each) for each in both]))
                    right.append(np.concatenate([target.hits(*each) for each in both]))
            rare = rare_classes(node, client, "train")
            answer = _answer(
                target, np.array(brier), np.array(right), crossed, measured[own:], fold, question, rare
            )
            found[client] = _with_units(node, answer, jobs[own:], crossed[-1], measured[own:], question)
        # The model is the user's code and may raise anything.
        except Exception as error:
            errors[client] = reason_of(error)
    return found, errors


def _answer(
    target: Target,
    brier: FloatArray,
    right: FloatArray,
    crossed: Sequence[Sequence[tuple[FloatArray, IntArray]]],
    further: Sequence[tuple[FloatArray, IntArray]],
    fold: IntArray,
    question: ScoresQuestion,
    rare: Sequence[int] | IntArray = (),
) -> ScoresAnswer:
    """Reduce what a site measured to what the choice needs.

    Parameters
    ----------
    target
        What is predicted.
    brier, right
        Brier score of each arm on each row, and whether it is right, shape (A, n).
    crossed
        Outputs and labels of each fold's rows by each coalition's model without it.
    further
        The same of all rows by other sites' models.
    fold
        Fold of each row, shape (n,).
    question
        The question.
    rare
        Classes of too few rows to leave: with any, what weighs each class alike is unknown, and their rows
        count for no fit.
    """
    values = np.concatenate([each for _, each in crossed[0]])
    logits = np.stack([np.concatenate([each for each, _ in parts]) for parts in crossed])
    classes = target.fit_classes(question.num_classes)
    blank = Fit.unknown(classes)
    if logits.ndim > 3:  # a class for every position of a row is in no order
        return ScoresAnswer.of(Scores.of(brier), [blank] * (len(further) + 2))

    def fit(outputs: FloatArray, labels: IntArray, parts: IntArray, *, within: bool = False) -> Fit:
        if len(rare):
            kept = ~np.isin(labels, rare)
            # Of two classes it is an area under the curve.
            if classes == 2 or len(np.unique(parts[kept])) < len(np.unique(parts)):
                return blank
            outputs, labels, parts = outputs[kept], labels[kept], parts[kept]
        return target.fit(outputs, labels, parts, within=within)

    fits = [fit(*each, fold) for each in further]
    fits.append(fit(_weighed(question, further), further[0][1], fold))
    fits.append(fit(logits[-1], values, np.sort(fold), within=True))
    if len(rare):
        return ScoresAnswer.of(Scores.of(brier), fits)
    ranks = target.ranking(logits, values, np.sort(fold))
    return ScoresAnswer.of(Scores.of(brier, ranks, target.balance(right, values)), fits)


def _with_units(
    node: Node,
    answer: ScoresAnswer,
    jobs: Sequence[Job],
    own: Sequence[tuple[FloatArray, IntArray]],
    further: Sequence[tuple[FloatArray, IntArray]],
    question: ScoresQuestion,
) -> ScoresAnswer:
    """Add to a site's answer what shows units, and what converting its values would gain.

    Parameters
    ----------
    node
        The node.
    answer
        The answer.
    jobs
        Of each further model, the site's rows.
    own, further
        Outputs and values of each fold's rows by the site's own model without it, and of all rows by each
        further model.
    question
        The question.
    """
    if not further or further[0][0].ndim > 2:
        return answer
    target, values, together = node.data.target, further[0][1], _weighed(question, further)
    now, mends = target.hits(together, values), list[Mend]()
    ratios = [target.ratio(*each) for each in further]
    ratios.append(target.ratio(*map(np.concatenate, zip(*own, strict=True))))
    if None not in ratios:
        size = float(values.mean())
        elsewhere = size * math.exp(float(np.median([each[0] for each in ratios[:-1] if each])))
        if elsewhere != size:
            then = target.hits(together, values * conversion(size, elsewhere)[0])
            mends.append(Mend("", size, elsewhere, *_gain(now, then)))
    for column, size, elsewhere, inputs in node.data.in_other_units(jobs[0].client)[:MOST_MENDS]:
        converted = node.trainer.on(replace(node.data, inputs=inputs)).logits(jobs)
        then = target.hits(_weighed(question, converted), values)
        mends.append(Mend(column, size, elsewhere, *_gain(now, then)))
    return answer.with_units(ratios, mends)


def _weighed(question: ScoresQuestion, further: Sequence[tuple[FloatArray, IntArray]]) -> FloatArray:
    """Return the outputs of all further models together."""
    weighed = zip(question.weights, further, strict=True)
    return np.sum([weight * outputs for weight, (outputs, _) in weighed], axis=0)


def _gain(now: FloatArray, then: FloatArray) -> tuple[float, float, float]:
    """Return how right rows are predicted before and after a change, and the standard error of the gain."""
    spread = max(float((then - now).std()), len(now) ** -0.5)
    return float(now.mean()), float(then.mean()), spread / math.sqrt(len(now))


def _fitted(
    node: Node, jobs: Sequence[Job], rows: IntArray, fold: IntArray, question: ScoresQuestion
) -> FloatArray:
    """Fit each coalition's correction for each fold to the other rows, shape (coalitions, folds, O)."""
    target, shape = node.data.target, (question.coalitions, FOLDS, node.data.num_outputs)
    if not question.pseudo_examples.any():
        return np.zeros(shape)
    without = [replace(job, rows=rows[fold != place % FOLDS]) for place, job in enumerate(jobs)]
    return np.reshape([target.correction(*each) for each in node.trainer.logits(without)], shape)


def _shifts(question: ScoresQuestion, parts: Sequence[tuple[FloatArray, IntArray]]) -> FloatArray:
    """Return each coalition's label-prior correction for each fold, shape (coalitions, folds, C).

    It is made of the site's labels without the fold: with them, it would have seen what it is scored on.
    """
    classes = question.num_classes
    held = np.stack([np.bincount(labels.ravel(), minlength=classes) for _, labels in parts])
    without = held.sum(axis=0) - held
    pairs = zip(question.shares.reshape(-1, classes), question.pseudo_examples, strict=True)
    return np.stack([label_prior.correction(without, own, each or math.inf) for own, each in pairs])


@answers(SiteFiguresQuestion)
def figures(node: Node, asked: Mapping[int, SiteFiguresQuestion]) -> Answers:
    """Return how well models predict each site's test rows."""
    found, errors = {}, {}
    for client, question in asked.items():
        shifts = question.shifts.reshape(len(question.models), -1)
        rows = node.data.test[client]
        try:
            jobs = [Job(client, rows, to_state(model)) for model in question.models]
            target, fitted = node.data.target, None
            if target.fits_correction:
                trained = [replace(job, rows=node.data.train[client]) for job in jobs]
                wanted = zip(node.trainer.logits(trained), shifts, strict=True)
                shifts = fitted = np.array([target.correction(*each) * shift.any() for each, shift in wanted])
            shifted = [replace(job, shift=shift) for job, shift in zip(jobs, shifts, strict=True)]
            measured = node.trainer.evaluate(shifted, full=True)
            brier = [
                target.scores(*each, shift).mean() if len(rows) else 0.0
                for each, shift in zip(node.trainer.logits(jobs), shifts, strict=True)
            ]
            figures = {str(place): each.figures for place, each in enumerate(measured)}
            found[client] = SiteFigures(figures, np.array(brier), None if fitted is None else fitted.ravel())
        # The model is the user's code and may raise anything.
        except Exception as error:
            errors[client] = reason_of(error)
    return found, errors
