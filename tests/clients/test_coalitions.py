"""What a site trains and scores for coalitions, against literal loops over its rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.nn import functional

from fedclust.clients import coalitions
from fedclust.clients.node import Node, node_of_objects
from fedclust.data.arrays import from_arrays
from fedclust.data.sites.rules import Rules
from fedclust.data.targets import CLASSES
from fedclust.messages.coalitions import ALL_ROWS, ScoresQuestion, SiteFiguresQuestion, name_of
from fedclust.messages.models import from_state, to_state
from fedclust.messages.training import Instruction
from fedclust.proof.coalitions import FOLDS, Fit
from fedclust.support.reasons import discreet
from fedclust.training import LocalTraining

RATE = 0.5


@pytest.fixture
def site() -> Node:
    """Return three clients of 23 training and 7 test rows in three classes."""
    draws, parts = np.random.default_rng(0), []
    for _ in range(3):
        pairs = [(draws.normal(size=(n, 2)).astype("f4"), draws.integers(0, 3, n)) for n in (23, 0, 7)]
        parts.append(tuple(pairs))
    how = LocalTraining(learning_rate=RATE, batch_size=100, epochs=1)  # one step on all rows
    return node_of_objects(from_arrays(parts), nn.Linear(2, 3), how, seed=0, device="cpu")


def models(number: int, seed: int = 0) -> tuple[ArrayRecord, ...]:
    draws = torch.Generator().manual_seed(seed)
    shapes = {"weight": (3, 2), "bias": (3,)}
    return tuple(
        from_state({name: torch.randn(shape, generator=draws) for name, shape in shapes.items()})
        for _ in range(number)
    )


def outputs(node: Node, model: ArrayRecord, rows) -> tuple[np.ndarray, np.ndarray]:
    state = to_state(model)
    logits = functional.linear(node.data.inputs[rows], state["weight"], state["bias"])
    return logits.double().numpy(), node.data.labels[rows].numpy()


def brier(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.square(chances - np.eye(3)[labels]).sum(axis=1)


def test_folds_are_of_the_client_and_the_run_alone(site) -> None:
    rows, fold = coalitions.rows_of(site, 1)
    assert rows.tolist() == sorted(site.data.train[1].tolist())
    assert sorted(np.bincount(fold).tolist()) == [4, 4, 5, 5, 5]
    assert (coalitions.rows_of(site, 1)[1] == fold).all()
    others = [coalitions.rows_of(site, 2)[1], coalitions.rows_of(replace(site, seed=1), 1)[1]]
    assert all((other != fold).any() for other in others)


def test_rows_of_one_person_are_in_one_fold(site) -> None:
    persons = np.arange(len(site.data.inputs)) // 3
    rows, fold = coalitions.rows_of(replace(site, data=replace(site.data, persons=persons)), 1)
    assert len(set(zip(persons[rows].tolist(), fold.tolist(), strict=True))) == len(set(persons[rows]))
    assert len(set(fold.tolist())) == FOLDS


@pytest.mark.parametrize("proximal_mu", [None, 0.0])
def test_each_model_trains_without_its_fold(site, proximal_mu) -> None:
    first, second, third = models(3)
    arms = {
        0: {name_of(0, 2): first, name_of(0, ALL_ROWS): second},
        2: {name_of(0, 2): first, name_of(1, 4): third},
    }
    asked = {
        client: Instruction(first, 1, proximal_mu=proximal_mu, arms=each) for client, each in arms.items()
    }
    trained = coalitions.train_arms(site, asked)
    without = {name_of(0, 2): 2, name_of(0, ALL_ROWS): None, name_of(1, 4): 4}
    assert {client: sorted(each) for client, each in trained.items()} == {
        client: sorted(each) for client, each in arms.items()
    }
    for client, each in arms.items():
        rows, fold = coalitions.rows_of(site, client)
        for name, model in each.items():
            kept = rows[fold != without[name]]
            assert len(kept) == 23 - (0 if without[name] is None else (fold == without[name]).sum())
            state = {key: tensor.requires_grad_() for key, tensor in to_state(model).items()}
            logits = functional.linear(site.data.inputs[kept], state["weight"], state["bias"])
            functional.cross_entropy(logits, site.data.labels[kept]).backward()
            for key, tensor in to_state(trained[client][name]).items():
                expected = state[key].detach() - RATE * state[key].grad
                torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)


def test_a_model_that_fails_is_missing(site) -> None:
    (fine,) = models(1)
    broken = from_state({name: tensor * torch.nan for name, tensor in to_state(fine).items()})
    arms = {name_of(0, 0): broken, name_of(0, 1): fine}
    assert list(coalitions.train_arms(site, {1: Instruction(fine, 1, arms=arms)})[1]) == [name_of(0, 1)]


def test_a_model_of_too_few_rows_without_its_fold_is_missing(site) -> None:
    names = [name_of(0, fold) for fold in (*range(FOLDS), ALL_ROWS)]
    asked = {1: Instruction(models(1)[0], server_round=1, arms=dict(zip(names, models(6), strict=True)))}
    sizes = np.bincount(coalitions.rows_of(site, 1)[1])  # of 23 rows, folds have 4 or 5
    left = [name for name, size in zip(names, [*sizes, 0], strict=True) if 23 - size >= 19]
    assert len(left) == 3
    ruled = replace(site, rules=Rules(min_cell=19))
    assert sorted(coalitions.train_arms(ruled, asked)[1]) == sorted(left)


def test_scores_are_those_of_rows_that_a_model_has_not_seen(site) -> None:
    sent = models(2 * FOLDS + 2)
    shares, weights = np.array([0.5, 0.3, 0.2, 0.2, 0.2, 0.6]), np.array([0.9, 0.1])
    answers, errors = coalitions.scores(site, {0: ScoresQuestion.of(sent, shares, [2.0, np.inf], weights)})
    assert errors == {}
    rows, fold = coalitions.rows_of(site, 0)
    counts = np.bincount(site.data.labels[rows].numpy(), minlength=3)
    expected, balanced = [], []
    for coalition, own in enumerate(shares.reshape(2, 3)):
        plain, corrected, hits = [], [], []
        for number in range(FOLDS):
            part = rows[fold == number]
            logits, labels = outputs(site, sent[coalition * FOLDS + number], part)
            left = counts - np.bincount(labels, minlength=3)
            shift = np.log((left + 2.0 * own) / (left.sum() + 2.0) / own) if coalition == 0 else 0.0
            plain.append(brier(logits, labels))
            corrected.append(brier(logits + shift, labels))
            hits.append([(each.argmax(axis=1) == labels, labels) for each in (logits, logits + shift)])
        expected += [np.concatenate(plain), np.concatenate(corrected)]
        for right, labels in (
            map(np.concatenate, zip(*each, strict=True)) for each in zip(*hits, strict=True)
        ):
            balanced.append(np.mean([right[labels == label].mean() for label in range(3)]))
    table = np.array(expected)
    np.testing.assert_allclose(answers[0].means, table.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(answers[0].scores.products, table @ table.T / 23, rtol=1e-5)
    np.testing.assert_allclose(answers[0].balanced, balanced)
    first, second, together, own = answers[0].fits.reshape(4, Fit.width(3))
    both = [outputs(site, each, rows) for each in sent[-2:]]  # the further models, on all rows
    both.append((0.9 * both[0][0] + 0.1 * both[1][0], both[0][1]))
    for fit, (logits, labels) in zip((first, second, together), both, strict=True):
        assert fit[0] == pytest.approx((logits.argmax(axis=1) == labels).mean())
    assert together[0] != first[0]
    assert answers[0].count == 23
    # The site's own is cross-fitted: the last coalition's models, each on the fold that it has not seen. In
    # the same way each coalition's area, of each class against the rest, in pairs of rows of one fold.
    areas: list[list[float]] = [[], []]
    for coalition in (0, 1):
        parts = [
            outputs(site, sent[coalition * FOLDS + number], rows[fold == number]) for number in range(FOLDS)
        ]
        for label in range(3):
            order = []
            for logits, labels in parts:
                chance = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))[:, label]
                order += [one > other for one in chance[labels == label] for other in chance[labels != label]]
            areas[coalition].append(np.mean(order))
        right = np.concatenate([logits.argmax(axis=1) == labels for logits, labels in parts])
    assert own[0] == pytest.approx(right.mean())
    np.testing.assert_allclose(answers[0].auc, np.mean(areas, axis=1))
    assert answers[0].auc_error[1] == 0 < answers[0].auc_error[0]


def test_classes_of_positions_have_no_order() -> None:
    brier, labels = np.full((2, 5), 0.5), np.zeros((1, 4), dtype=int)
    crossed = [[(np.zeros((1, 4, 3)), labels)] * FOLDS]
    further = [(np.zeros((5, 4, 3)), np.zeros((5, 4), dtype=int))]
    question = ScoresQuestion.of(models(FOLDS + 1), np.full(3, 1 / 3), [np.inf], np.ones(1))
    found = coalitions._answer(CLASSES, brier, np.ones((2, 5)), crossed, further, np.arange(5), question)
    assert (found.auc.tolist(), found.balanced.tolist()) == ([0.5], [0.5, 0.5])
    blank = [0.5, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert found.fits.tolist() == blank * 3


def test_figures_are_of_test_rows_with_each_models_shift(site) -> None:
    sent, shifts = models(2), np.array([[0.0, 0.0, 0.0], [2.0, -1.0, 0.5]])
    question = SiteFiguresQuestion(sent, shifts.ravel())
    empty = replace(site.data, test=(*site.data.test[:2], site.data.test[2][:0]))
    answers, errors = coalitions.figures(replace(site, data=empty), {1: question, 2: question})
    assert errors == {}
    for place, (model, shift) in enumerate(zip(sent, shifts, strict=True)):
        logits, labels = outputs(site, model, site.data.test[1])
        right = (logits + shift).argmax(axis=1) == labels
        assert answers[1].figures[str(place)]["accuracy"] == pytest.approx(right.mean())
        assert answers[1].brier[place] == pytest.approx(brier(logits + shift, labels).mean(), rel=1e-5)
    assert answers[2].brier.tolist() == [0.0, 0.0]  # no test rows


def test_a_site_that_cannot_score_is_an_error(site) -> None:
    wrong = from_state({"weight": torch.zeros(3, 2)})
    asked = ScoresQuestion.of((wrong,) * FOLDS, np.full(3, 1 / 3), [np.inf], np.zeros(0))
    answers, errors = coalitions.scores(site, {0: asked})
    assert answers == {}
    assert errors[0].startswith("ValueError: client 0: state must have the model's tensors, lacks ['bias']")
    with discreet():  # as on a deployed node: an error of a network may quote a row
        _, errors = coalitions.scores(site, {0: asked})
        _, more = coalitions.figures(site, {1: SiteFiguresQuestion((wrong,), np.zeros(3))})
    told = "the client's work failed on this node with ValueError, its log has the reason"
    assert (errors, more) == ({0: told}, {1: told})
    answers, errors = coalitions.figures(site, {0: SiteFiguresQuestion((wrong,), np.zeros(3))})
    assert (answers, sorted(errors)) == ({}, [0])
