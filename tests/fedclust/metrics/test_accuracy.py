import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, recall_score, roc_auc_score

from fedclust.metrics import auc, classification_by_client, fairness, global_accuracy

unhurried = settings(max_examples=50, deadline=None)  # a busy machine is no failure


def test_global_accuracy_counts_examples() -> None:
    # 30 of 40 examples and 5 of 10: 35 of 50.
    assert global_accuracy(np.array([0.75, 0.5]), np.array([40, 10])) == pytest.approx(0.7)


def test_client_without_examples_does_not_count() -> None:
    assert global_accuracy(np.array([np.nan, 0.5]), np.array([0, 10])) == 0.5


def test_fairness_is_the_distance_from_perfection_and_its_spread() -> None:
    # Distances 0, 0.4 and 0.2: mean 0.2; squares 0.04, 0.04 and 0 from it, by 3: sqrt(0.08 / 3).
    assert fairness(np.array([1.0, 0.6, 0.8])) == pytest.approx((0.2, math.sqrt(0.08 / 3)))


def test_single_client_has_no_spread() -> None:
    assert fairness(np.array([0.25])) == (0.75, 0.0)


@unhurried
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6))
def test_classification_matches_scikit_learn(seed: int, num_examples: int, num_classes: int) -> None:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, num_classes, num_examples)
    probabilities = np.round(draws.dirichlet(np.ones(num_classes), num_examples), 1)  # with ties
    predictions = probabilities.argmax(axis=1)
    everyone = np.zeros_like(labels)
    by_client = classification_by_client(everyone, labels, predictions, 1, num_classes)
    figures = {name: value for name, (value,) in by_client.items()} | {"auc": auc(labels, probabilities)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "accuracy": accuracy_score(labels, predictions),
            "balanced_accuracy": balanced_accuracy_score(labels, predictions),
            "macro_f1": f1_score(labels, predictions, average="macro"),
        }
    defined = [c for c in range(num_classes) if 0 < (labels == c).sum() < num_examples]
    areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in defined]
    expected["auc"] = np.mean(areas) if areas else math.nan
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, nan_ok=True), name


def test_one_class_leaves_the_area_undefined() -> None:
    assert math.isnan(auc(np.array([1, 1]), np.array([[0.1, 0.9], [0.6, 0.4]])))
    assert math.isnan(auc(np.zeros(0, dtype=int), np.zeros((0, 3))))


@unhurried
@given(st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 7), st.integers(1, 5))
def test_many_clients_at_once_are_each_client_alone(seed, num_examples, num_clients, num_classes) -> None:
    draws = np.random.default_rng(seed)
    clients = draws.integers(0, num_clients, num_examples)
    labels = draws.integers(0, num_classes, num_examples)
    predictions = draws.integers(0, num_classes, num_examples)
    figures = classification_by_client(clients, labels, predictions, num_clients, num_classes)
    for client in range(num_clients):
        mine, guessed = labels[clients == client], predictions[clients == client]
        alone = [math.nan] * 3
        if mine.size:
            macro_f1 = f1_score(mine, guessed, average="macro")
            alone = [
                accuracy_score(mine, guessed),
                recall_score(mine, guessed, labels=np.unique(mine), average="macro", zero_division=0),
                macro_f1,
            ]
        assert [float(values[client]) for values in figures.values()] == pytest.approx(alone, nan_ok=True)


by_client = classification_by_client
REFUSED = [
    (global_accuracy, ([0.5], [1, 2]), r"num_examples must have shape \(1\), got \(2,\)"),
    (global_accuracy, ([0.5, 0.5], [1, -2]), "num_examples must be >= 0, got -2"),
    (global_accuracy, ([0.5, 0.5], [0, 0]), "num_examples must be > 0 on some client, got none on 2 clients"),
    (global_accuracy, ([0.5, 1.5], [1, 1]), r"accuracy must be in \[0, 1\], got 1\.5"),
    (global_accuracy, ([0.5, np.nan], [1, 1]), r"accuracy must be in \[0, 1\], got nan"),
    (fairness, ([],), r"accuracy must have shape \(clients\), got \(0,\)"),
    (fairness, ([[0.5]],), r"accuracy must have shape \(clients\), got \(1, 1\)"),
    (fairness, ([-0.1],), r"accuracy must be in \[0, 1\], got -0\.1"),
    (by_client, ([0, 2], [0, 1], [0, 1], 2, 3), r"client_of_row must be in \[0, 2\), got 2"),
    (by_client, ([0, 1], [0, -1], [0, 1], 2, 3), r"labels must be in \[0, 3\), got -1"),
    (by_client, ([0, 1], [0, 1], [0, 3], 2, 3), r"predictions must be in \[0, 3\), got 3"),
    (by_client, ([0], [0, 1], [0, 1], 2, 3), r"client_of_row must have shape \(2\), got \(1,\)"),
]


@pytest.mark.parametrize(("figure", "arguments", "message"), REFUSED)
def test_what_has_no_figure_is_refused(figure, arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figure(*(np.array(each) if isinstance(each, list) else each for each in arguments))
