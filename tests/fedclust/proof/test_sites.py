import math
import re
from dataclasses import replace

import numpy as np
import pytest

from fedclust.data.targets.times import TimeWords
from fedclust.metrics import wilson
from fedclust.proof.coalitions import Arm, Choice
from fedclust.proof.figure import Figure
from fedclust.proof.sites import (
    Site,
    advice,
    figures_of,
    findings,
    have_learnt,
    headline,
    partners_of,
)

NAMES = ["Cleveland", "Hungary", "Basel", "Long Beach"]
CLASSES = ["healthy", "disease"]
ALL = (0, 1, 2, 3)


def site(client: int, coalition: tuple[int, ...], *, prior: bool = False, gain: float = 0.02, **more) -> Site:
    """A site of 100 test rows, 50 of each class, with these accuracies; others are lower by 0.1."""
    counts = more.pop("counts", np.array([50, 50]))
    figures = {}
    for arm, value in more.items():
        measured = {"num-examples": 100, "accuracy": value, "balanced-accuracy": value - 0.1, "auc": value}
        figures[arm] = figures_of(measured, 0.3, counts, wilson)
    choice = Choice(Arm(0 if coalition == ALL else 5, prior), Arm(0, prior))
    over = Figure(100, (0.5, 0.6), gain, (gain - 0.08, gain + 0.1), 0.1, (0.0, 0.2), 1, 1, False)
    return Site(client, NAMES[client], coalition, choice, figures, 100, counts, ALL, over)


SITES = [
    site(0, (0,), chosen=0.82, everyone=0.6, alone=0.82, gain=0.22),
    site(1, (1, 2, 3), prior=True, chosen=0.81, everyone=0.74, alone=0.79),
    site(2, ALL, prior=True, chosen=0.97, everyone=0.97, alone=0.96, gain=0.01),
    replace(site(3, ALL), over_alone=None),
]


def told(each: Site, **given) -> str:
    return advice(each, NAMES, CLASSES, **given)


def test_each_site_is_advised_with_figures_that_agree() -> None:
    # Wilson's interval of 82, 81 and 97 of 100.
    assert [told(each) for each in SITES] == [
        "Cleveland: stay out: accuracy 0.82 (0.73 to 0.88), with everyone 0.60 (difference +0.22, +0.14 to "
        "+0.32).",
        "Hungary: train with everyone but Cleveland, with the prior correction: accuracy 0.81 (0.72 to "
        "0.87), alone 0.79 (difference +0.02, -0.06 to +0.12), with everyone 0.74.",
        "Basel: train with everyone, with the prior correction: accuracy 0.97 (0.92 to 0.99), alone 0.96 "
        "(difference +0.01, -0.07 to +0.11).",
        "Long Beach: no advice, it sent no figures after the last round.",
    ]
    assert partners_of(SITES[1], NAMES) == "everyone but Cleveland"
    assert partners_of(replace(SITES[1], coalition=(1, 3)), NAMES) == "Long Beach"


def test_no_sentence_recommends_what_its_figures_contradict() -> None:
    # 0.81 is no more than 0.02 below 0.83: a tie.
    assert told(site(1, ALL, chosen=0.81, everyone=0.81, alone=0.829)).startswith("Hungary: train with")
    text = told(site(1, (1, 2), chosen=0.77, everyone=0.67, alone=0.81, gain=-0.04))
    assert text == (
        "Hungary: undecided; by its training rows it is served the model that it trains with Basel: accuracy "
        "0.77 (0.68 to 0.84), alone 0.81 (difference -0.04, -0.12 to +0.06), with everyone 0.67, balanced "
        "accuracy 0.67, alone 0.71, AUC 0.77, alone 0.81."
    )
    assert "But" not in text
    # One figure alone is enough, here balanced accuracy against everyone's.
    one = site(1, (1, 2), chosen=0.9, everyone=0.6, alone=0.6)
    better = {**one.figures, "everyone": {**one.figures["everyone"], "balanced_accuracy": 0.85}}
    assert told(replace(one, figures=better)).endswith(
        "with everyone 0.60, balanced accuracy 0.80, with everyone 0.85."
    )


def test_a_turned_site_is_stopped_first() -> None:
    assert told(SITES[0], stop="Stop: look.") == (
        "Cleveland: Stop: look. Until then it is served its own model: accuracy 0.82 (0.73 to 0.88), with "
        "everyone 0.60 (difference +0.22, +0.14 to +0.32)."
    )
    # Whatever the figures say, nothing is recommended that would have to be taken back.
    worse = site(0, (0,), chosen=0.6, everyone=0.9, alone=0.6, gain=-0.3)
    assert "undecided" not in told(worse, stop="Stop: look.")


def test_no_advice_of_models_that_have_not_learnt() -> None:
    assert told(SITES[2], learnt=False) == (
        "Basel: no advice, the models have learnt too little; it is served the model that it trains with "
        "everyone, with the prior correction: accuracy 0.97 (0.92 to 0.99), alone 0.96 (difference +0.01, "
        "-0.07 to +0.11)."
    )
    assert headline(SITES, NAMES, learnt=False).startswith("No advice on who trains with whom")


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((90, 10), ""),
        # The area of 5 rows of the rarer class has the interval of 4.5 of 5 right.
        ((95, 5), " Of its 100 test rows 5 are disease: AUC 0.90 ({:.2f} to {:.2f})."),
        ((1, 99), " Of its 100 test rows 1 is healthy: too few for an AUC."),
        ((0, 100), " Of its 100 test rows none are healthy: too few for an AUC."),
    ],
)
def test_few_rows_of_a_class_are_counted(counts, text) -> None:
    each = site(2, ALL, chosen=0.9, everyone=0.9, alone=0.9, counts=np.array(counts))
    low, high = wilson(4.5, 5)
    assert told(each).partition("+0.12).")[2] == text.format(low, high)
    assert each.summary(NAMES, CLASSES, "")["test_rows_of"] == dict(zip(CLASSES, counts, strict=True))


def test_of_more_classes_those_without_rows_do_not_count() -> None:
    measured = {"num-examples": 30, "accuracy": 0.5, "balanced-accuracy": 0.5, "auc": 0.5}
    assert figures_of(measured, 0.3, np.array([0, 12, 18]), wilson)["auc"] == 0.5
    assert figures_of(measured, 0.3, np.array([0, 3, 27]), wilson)["auc"] == 0.5
    assert figures_of(measured, 0.3, np.array([0, 2, 28]), wilson)["auc"] is None
    assert figures_of(measured, 0.3, np.array([0, 0, 30]), wilson)["auc"] is None
    nothing = figures_of(
        dict.fromkeys(measured, math.nan) | {"num-examples": 0}, 0.0, np.zeros(3, dtype=int), wilson
    )
    assert set(nothing.values()) == {None}


def test_the_summary_has_plain_values() -> None:
    found = SITES[1].summary(NAMES, CLASSES, "text")
    assert found["train_with"] == ["Basel", "Long Beach"]
    assert (found["leaves"], found["correction"], found["test_rows"]) == (True, "prior", 100)
    assert found["over_alone"] == {
        "accuracy_gain": 0.02,
        "accuracy_interval": [-0.06, 0.12000000000000001],
        "gain": 0.1,
        "interval": [0.0, 0.2],
    }
    assert "over_everyone" in SITES[0].summary(NAMES, CLASSES, "")
    assert replace(SITES[1], everyone=(1, 2, 3)).summary(NAMES, CLASSES, "")["leaves"] is False


def test_the_headline_sums_up() -> None:
    assert headline(SITES, NAMES) == (
        "Who trains with whom: 2 of 4 sites train with everyone; Hungary with some of the others; Cleveland "
        "stays out"
    )
    rest = [replace(each, coalition=(1, 2, 3), everyone=(1, 2, 3)) for each in SITES[1:]]
    assert headline([SITES[0], *rest], NAMES, ["Cleveland"]) == (
        "Stop: check the coding of Cleveland and run again. Until then: 3 of 4 sites train with everyone but "
        "Cleveland; Cleveland stays out"
    )
    halves = [
        replace(SITES[each], coalition=pair, everyone=pair)
        for each, pair in enumerate([(0, 1)] * 2 + [(2, 3)] * 2)
    ]
    assert headline(halves, NAMES, NAMES) == (
        "Stop: check the codings of all sites and run again. Until then: Cleveland and Hungary train "
        "together; Basel and Long Beach train together"
    )
    assert headline(SITES[2:], NAMES) == "Train one model for all: no site gains by leaving it"
    unsure = site(0, ALL, chosen=0.6, everyone=0.6, alone=0.7)
    assert headline([unsure, SITES[2]], NAMES) == (
        "Train one model for all: no site gains by leaving it; undecided by test rows: Cleveland"
    )
    assert headline([replace(unsure, coalition=(0,)), SITES[2]], NAMES, ["Cleveland"]).endswith(
        "Basel trains with everyone; Cleveland stays out"
    )


def learning(brier: float, balanced: float, counts: tuple[int, int] = (50, 50)) -> Site:
    each = site(0, ALL, chosen=0.5, everyone=0.5, alone=0.5, counts=np.array(counts))
    chosen = each.figures["chosen"] | {"brier": brier, "balanced_accuracy": balanced}
    return replace(each, figures={**each.figures, "chosen": chosen})


@pytest.mark.parametrize(
    ("sites", "learnt"),
    [
        # Shares of one half have a Brier score of 0.5, one answer a balanced accuracy of 0.5, 100 coins two
        # standard errors of 0.1.
        ([learning(0.48, 0.51)], True),
        ([learning(0.495, 0.59)], False),
        ([learning(0.495, 0.61)], True),
        ([learning(0.3, 0.5)], False),  # one answer for all rows
        ([learning(0.3, 0.5), learning(0.3, 0.52)], True),
        ([learning(0.3, 1.0, counts=(0, 100))], True),  # nothing to learn there
        ([SITES[3]], True),  # nothing is known
    ],
)
def test_models_have_learnt_whose_score_or_balance_is_better_than_shares(sites, learnt) -> None:
    assert have_learnt(sites, np.array([[30, 30]])) is learnt


def fits(right: float, turned: int | None = None, number: int = 4) -> np.ndarray:
    """A cross-site matrix of areas: of right models, but for those of and at a turned site."""
    areas = np.full((number, number), right)
    if turned is not None:
        areas[:, turned], areas[turned] = 1 - right, 1 - right
    np.fill_diagonal(areas, max(right, 1 - right))
    ones = np.ones_like(areas)
    return np.stack([areas, 0.5 * ones, 0.05 * ones, 1 - 2 * areas, 0.1 * ones], axis=-1)


def odd_ones(sites, matrix, counts, classes, *, together=None) -> list[dict]:
    """Findings where all others' model is as the next site's own; the last site's as the first's."""
    number = len(sites)
    if together is None:
        together = matrix[np.roll(np.arange(number), -1), np.arange(number)]
    return findings(sites, matrix, together, counts, classes)


def test_what_is_odd_is_named() -> None:
    counts = np.array([[20, 20], [30, 10], [0, 9], [10, 30]])
    matrix = fits(0.9, turned=0)
    matrix[3, 0, [0, 3]] = 0.25, 0.5
    together = np.array([[0.2, 0.5, 0.05, 0.6, 0.1]] + [[0.9, 0.5, 0.05, -0.8, 0.1]] * 3)
    found = odd_ones(SITES, matrix, counts, CLASSES, together=together)
    assert [(each["name"], each["kind"], each["text"]) for each in found] == [
        (
            "Cleveland",
            "turned",
            "Stop: labels look exchanged (AUC of the others' models 0.10 to 0.25): what the others call "
            "healthy it calls disease. Check its coding and run again: corrected, the others' models "
            "together would have AUC 0.80 there.",
        ),
        ("Basel", "one_class", "It holds only disease: nothing else can be learnt or measured there."),
    ]
    (other,) = odd_ones(SITES, fits(0.5), counts + 5, CLASSES)
    assert (other["name"], other["kind"]) == ("Cleveland", "population")
    matrix = fits(0.5)
    matrix[2, 0, [0, 3]] = 0.9, -0.8  # one model that is better than chance there is enough
    assert odd_ones(SITES, matrix, counts + 5, CLASSES) == []


EXCHANGED = "With its events and censored rows exchanged"


@pytest.mark.parametrize(
    ("right", "gain", "learnt", "wanted"),
    [
        # The opposite order gains 1 − 2 · 0.2, the other coding of events more: over ½, and not.
        (0.2, 0.7, True, ("turned", "Stop: events look coded the other way")),
        (0.4, 0.45, True, ("censoring", f"{EXCHANGED}, the others' models would have concordance 0.85")),
        (0.1, 0.8, True, ("turned", "Stop: risks look turned round")),
        (0.55, 0.1, True, None),  # by two standard errors, which are not enough for four sites
        (0.2, 0.7, False, None),
        (0.4, 0.45, False, None),
        (0.1, 0.8, False, None),
    ],
)
def test_events_are_coded_the_other_way_only_where_much_is_gained(right, gain, learnt, wanted) -> None:
    sites = [replace(each, words=TimeWords(), coalition=ALL) for each in SITES]
    matrix = fits(0.8)
    matrix[1:, 0, [0, 3, 4]] = right, gain, 0.05
    together = matrix[1]
    counts = np.full((4, 2), 30)
    found = findings(sites, matrix, together, counts, ("censored", "event"), learnt=learnt)
    assert [(each["client"], each["kind"], re.split(r" \(| instead", each["text"])[0]) for each in found] == [
        (0, *each) for each in [wanted] if each
    ]


def test_a_site_with_few_events_is_told_so() -> None:
    sites = [replace(each, words=TimeWords(), coalition=ALL) for each in SITES]
    matrix, counts = fits(0.8), np.array([[30, 4], [30, 5], [30, 9], [30, 9]])
    (odd,) = findings(sites, matrix, matrix[1], counts, ("censored", "event"))
    assert (odd["client"], odd["kind"], odd["text"][:6]) == (0, "few", "Only 4")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (0, ". Of its 100 test rows none had the event."),  # no pair of rows is in an order
        (3, ": concordance 0.81 (0.72 to 0.87), alone 0.79 (difference +0.02, -0.06 to +0.12). Of its 100 "),
    ],
)
def test_no_concordance_is_told_of_no_events(events: int, said: str) -> None:
    one = replace(site(1, ALL, chosen=0.81, everyone=0.81, alone=0.79), words=TimeWords())
    text = told(replace(one, test_counts=np.array([100 - events, events])))
    assert text.startswith(f"Hungary: train with everyone{said}")


def test_a_site_that_harms_the_others_is_named() -> None:
    matrix, counts = fits(0.9), np.full((4, 2), 9)
    (odd,) = findings(SITES, matrix, matrix[0], counts, CLASSES, harmful=[2])
    assert (odd["client"], odd["kind"]) == (2, "harmful")
    assert odd["text"].startswith("Its updates harm the others, so nobody trains with it")


def test_those_who_accuse_a_site_are_named_unless_all_do() -> None:
    matrix = fits(0.9, turned=0)
    matrix[2, 0, [0, 3]] = 0.5, 0.0
    (found,) = odd_ones(SITES, matrix, np.full((4, 2), 9), CLASSES)
    assert (
        "(AUC of the models of Hungary and Long Beach 0.10): what Hungary and Long Beach call"
        in found["text"]
    )
    matrix[3, 0, [0, 3]] = 0.5, 0.0
    (found,) = odd_ones(SITES, matrix, np.full((4, 2), 9), CLASSES)
    assert "(AUC of the model of Hungary 0.10): what Hungary calls healthy it calls" in found["text"]


def test_of_two_sites_one_is_turned() -> None:
    found = odd_ones(SITES[:2], fits(0.1, number=2), np.full((2, 2), 9), ("benign", "malignant"))
    text = "Stop: labels look exchanged (AUC of the model of {0} 0.10): what {0} calls benign it calls "
    text += "malignant."
    assert [(each["client"], each["text"]) for each in found] == [
        (0, f"{text.format('Hungary')} Check both codings."),
        (1, f"{text.format('Cleveland')} Check both codings."),
    ]
    # With three classes, by the best renaming: here what Hungary calls low is high in Cleveland, and so on.
    levels = "low", "mid", "high"
    found = odd_ones(SITES[:2], renamed(fits(0.1, number=2), 2, 0, 1), np.full((2, 3), 9), levels)
    assert found[0]["text"].startswith(
        "Stop: labels look exchanged (the model of Hungary right on a share of 0.10): what Hungary calls "
        "low, mid and high it calls high, low and mid."
    )


def renamed(crossed: np.ndarray, *names: int) -> np.ndarray:
    """Add the new names, and that renaming gains the same on rows of every class."""
    by_class = [[each] * len(names) for each in (crossed[..., 3], crossed[..., 4] * math.sqrt(len(names)))]
    new = np.broadcast_to(names, (*crossed.shape[:2], len(names)))
    return np.concatenate([crossed, new, *(np.stack(each, axis=-1) for each in by_class)], axis=-1)


def test_a_turned_site_is_told_which_class_is_which() -> None:
    crossed = renamed(fits(0.9, turned=0), 0, 2, 1)
    crossed[1, 0, 5:8] = 1, 0, 2  # one of three models takes other classes for one another
    (only,) = odd_ones(SITES, crossed, np.full((4, 3), 9), ("low", "mid", "high"))
    assert "what the others call mid and high it calls high and mid. Check its coding" in only["text"]
    assert only["text"].endswith("corrected, the others' models together would have 90% right there.")
    # The three do not agree on any class.
    crossed[2, 0, 5:8], crossed[3, 0, 5:8] = (2, 1, 0), (0, 2, 1)
    (only,) = odd_ones(SITES, crossed, np.full((4, 3), 9), ("0", "1", "2"))
    assert "what the others call one class it calls another." in only["text"]
