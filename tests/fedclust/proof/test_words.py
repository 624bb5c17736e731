"""Nouns, and what depends on what is predicted."""

import numpy as np
import pytest

from fedclust.proof.words import CLASSES, joined, rarest


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [([], (0, 0)), ([3, 0], (1, 0)), ([0, 9], (0, 0)), ([0, 9, 4], (2, 4)), ([0, 0, 7], (2, 0))],
)
def test_the_rarest_class(counts: list[int], wanted: tuple[int, int]) -> None:
    # Of two classes a missing one is the rarest; of several only those with rows count.
    assert rarest(np.array(counts, dtype=int)) == wanted


def test_joined_names() -> None:
    assert (joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])) == ("a", "a and b", "a, b and c")


@pytest.mark.parametrize(
    ("counts", "figures", "wanted"),
    [
        ([90, 10], {}, ""),
        ([90, 1], {}, " Of its 91 test rows 1 is ill: too few for an AUC."),
        (
            [90, 3],
            {"auc": 0.75, "auc_low": 0.3, "auc_high": 0.96},
            " Of its 93 test rows 3 are ill: AUC 0.75 (0.30 to 0.96).",
        ),
        ([0, 0, 5], {}, ""),  # of one class alone nothing could be ordered
    ],
)
def test_few_rows_of_a_class(counts: list[int], figures: dict, wanted: str) -> None:
    names = ["well", "ill", "other"][: len(counts)]
    assert CLASSES.further(sum(counts), np.array(counts), names, figures) == wanted


def test_a_site_with_one_class() -> None:
    everyone = np.array([5, 5])
    text = "It holds only b: nothing else can be learnt or measured there."
    assert CLASSES.only(np.array([0, 5]), everyone, ["a", "b"]) == text
    assert CLASSES.only(np.array([1, 5]), everyone, ["a", "b"]) == ""
    assert CLASSES.only(np.array([0, 5]), np.array([0, 9]), ["a", "b"]) == ""


@pytest.mark.parametrize(
    ("counts", "balanced", "doubted"),
    [([50, 50], 0.519, True), ([50, 50], 0.521, False), ([9, 9, 9], 0.35, True), ([9, 0], 0.5, False)],
)
def test_a_model_that_hardly_tells_classes_apart(counts: list[int], balanced: float, doubted: bool) -> None:
    # A guess has one half of two classes and a third of three; with one class there is nothing to tell.
    assert bool(CLASSES.doubt(np.array(counts), {"balanced_accuracy": balanced})) == doubted


def test_a_better_score_and_worse_decisions() -> None:
    alone = {"brier": 0.4, "balanced_accuracy": 0.7, "auc": 0.7}
    assert "depends on" in CLASSES.contrast({"brier": 0.3, "balanced_accuracy": 0.5, "auc": 0.6}, alone)
    for better in ({"brier": 0.4}, {"balanced_accuracy": 0.7}, {"auc": None}):
        chosen = {"brier": 0.3, "balanced_accuracy": 0.5, "auc": 0.6, **better}
        assert CLASSES.contrast(chosen, alone) == ""
