import math

import numpy as np

from fedclust.metrics import wilson
from fedclust.proof.coalitions import Arm, Choice
from fedclust.proof.sites import Site, figures_of, findings, headline

NAMES = ["Cleveland", "Hungary", "Basel", "Long Beach"]


def site(client: int, coalition: tuple[int, ...], arm: Arm, **accuracies: float) -> Site:
    figures = {}
    for each, value in accuracies.items():
        told = {"num-examples": 100, "accuracy": value, "balanced-accuracy": value - 0.1, "auc": math.nan}
        figures[each] = figures_of(told, 0.3, wilson(100 * value, 100).tolist())
    return Site(client, NAMES[client], coalition, Choice(arm, Arm(0, False)), figures, 100)


ALL = (0, 1, 2, 3)
SITES = [
    site(0, (0,), Arm(9, False), chosen=0.82, everyone=0.6, alone=0.82),
    site(1, (1, 2, 3), Arm(2, True), chosen=0.81, everyone=0.74, alone=0.9),
    site(2, ALL, Arm(0, True), chosen=0.97, everyone=0.97, alone=0.96),
    site(3, ALL, Arm(0, False)),
]


def test_each_site_has_a_sentence() -> None:
    # Wilson's interval of 82, 81 and 97 of 100.
    assert [each.summary(NAMES)["text"] for each in SITES] == [
        "Cleveland: stay out: 0.82 (0.73 to 0.88), with everyone 0.60.",
        "Hungary: train with Basel and Long Beach, with the prior correction: 0.81 (0.72 to 0.87), with "
        "everyone 0.74, alone 0.90. But its balanced accuracy is lower, 0.71 instead of 0.80 alone.",
        "Basel: train with everyone, with the prior correction: 0.97 (0.92 to 0.99), alone 0.96.",
        "Long Beach: train with everyone.",
    ]
    better = figures_of(
        {"num-examples": 10, "accuracy": 0.9, "balanced-accuracy": 0.9, "auc": 0.8}, 0.1, (0.6, 1)
    )
    worse = figures_of(
        {"num-examples": 10, "accuracy": 0.8, "balanced-accuracy": 0.7, "auc": 0.5}, 0.1, (0.5, 1)
    )
    both = Site(
        3, "Basel", (3,), Choice(Arm(1, False), Arm(0, False)), {"chosen": worse, "everyone": better}, 10
    )
    assert both.summary(NAMES)["text"].endswith(
        " But its balanced accuracy is lower, 0.70 instead of 0.90 with everyone, and its AUC is lower, 0.50 "
        "instead of 0.80 with everyone."
    )
    told = SITES[0].summary(NAMES, ["Check it."])
    assert (told["train_with"], told["correction"], told["chosen"]["auc"]) == ([], "none", None)
    assert told["text"].endswith("0.60. Check it.")


def test_the_headline_sums_up() -> None:
    assert headline(SITES, ["Cleveland"]) == (
        "Who trains with whom: 2 of 4 sites train with everyone; Hungary with some of the others; Cleveland "
        "stays out; check the coding of Cleveland first"
    )
    assert headline(SITES[:3]).startswith(
        "Who trains with whom: Basel trains with everyone; Hungary with some of the others; "
    )
    assert headline(SITES[2:]) == "Train one model for all: no site gains by leaving it"


def fits(right: float, turned: int | None = None, number: int = 4) -> np.ndarray:
    areas = np.full((number, number), right)
    if turned is not None:
        areas[:, turned], areas[turned] = 1 - right, 1 - right
    np.fill_diagonal(areas, np.nan)
    ones = np.ones_like(areas)
    return np.stack([areas, 0.5 * ones, 0.05 * ones, 1 - 2 * areas, 0.1 * ones], axis=-1)


def test_what_is_odd_is_named() -> None:
    counts = np.array([[20, 20], [30, 10], [0, 9], [10, 30]])
    found = findings(SITES, fits(0.9, turned=0), counts, ("healthy", "disease"))
    assert [(each["name"], each["kind"], each["text"]) for each in found] == [
        ("Cleveland", "turned", "What the others call healthy it calls disease. Check its coding."),
        ("Basel", "one_class", "It holds only disease: nothing else can be learnt or measured there."),
    ]
    (other,) = findings(SITES, fits(0.5), counts + 5, ())
    assert (other["name"], other["kind"]) == ("Cleveland", "population")


def test_of_two_sites_one_is_turned() -> None:
    found = findings(SITES[:2], fits(0.1, number=2), np.full((2, 2), 9), ("benign", "malignant"))
    text = (
        "Of Cleveland and Hungary, what Cleveland calls benign Hungary calls malignant. Check both codings."
    )
    assert [(each["client"], each["text"]) for each in found] == [(0, text), (1, text)]
    # With three classes, by the best renaming: here what Cleveland calls low is high in Hungary, and so on.
    levels = "low", "mid", "high"
    found = findings(SITES[:2], renamed(fits(0.1, number=2), 2, 0, 1), np.full((2, 3), 9), levels)
    text = "what Cleveland calls low, mid and high Hungary calls high, low and mid. Check both codings."
    assert [each["text"] for each in found] == [f"Of Cleveland and Hungary, {text}"] * 2


def renamed(crossed: np.ndarray, *names: int) -> np.ndarray:
    return np.concatenate([crossed, np.full((*crossed.shape[:2], len(names)), names)], axis=-1)


def test_a_turned_site_is_told_which_class_is_which() -> None:
    crossed = renamed(fits(0.9, turned=0), 0, 2, 1)
    crossed[1, 0, 5:] = 1, 0, 2  # one of three models takes other classes for one another
    (only,) = findings(SITES, crossed, np.full((4, 3), 9), ("low", "mid", "high"))
    assert only["text"] == "What the others call mid and high it calls high and mid. Check its coding."
    # The three do not agree on any class.
    crossed[2, 0, 5:], crossed[3, 0, 5:] = (2, 1, 0), (0, 2, 1)
    (only,) = findings(SITES, crossed, np.full((4, 3), 9), ())
    assert only["text"] == "What the others call one class it calls another. Check its coding."
