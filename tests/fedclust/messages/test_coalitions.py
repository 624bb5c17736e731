"""What messages about coalitions refuse."""

from dataclasses import replace

import numpy as np
import pytest

from fedclust.messages.coalitions import (
    ScoresAnswer,
    ScoresQuestion,
    SiteFigures,
    SiteFiguresQuestion,
    fold_of,
    name_of,
    number_of,
)
from fedclust.messages.codec import BadReply, Bounds, Reading, decode, encode
from fedclust.proof.coalitions import Fit, Scores
from tests.fedclust.messages.test_codec import FIGURES, MODEL


def answer(scores: Scores, fits: list[Fit]) -> ScoresAnswer:
    """Decode an answer about one coalition, one further model and the site's own."""
    asked = ScoresQuestion.of((MODEL,) * 6, np.full(2, 0.5), [np.inf], np.ones(1))
    bounds = Bounds(num_train=np.array([25]))
    content = encode(ScoresAnswer.of(scores, fits))
    return decode(ScoresAnswer, content, Reading(0, 3, bounds, asked))


BRIER = np.random.default_rng(0).uniform(0, 2, (2, 25))


def test_scores_arrive_as_they_were_sent() -> None:
    balanced = np.array([0.6, 0.5]), np.array([0.1, 0.0])
    sent = Scores.of(BRIER, (np.array([0.75]), np.array([0.125])), balanced)
    found = answer(sent, [Fit(), Fit(), Fit(0.9, 0.5, 0.1, -0.8, 0.2)])
    np.testing.assert_allclose(found.scores.products, BRIER @ BRIER.T / 25)
    assert (found.scores.auc.tolist(), found.scores.auc_error.tolist()) == ([0.75], [0.125])
    assert (found.scores.balanced.tolist(), found.scores.balanced_error.tolist()) == ([0.6, 0.5], [0.1, 0.0])
    assert found.fits.tolist() == [0.5, 0.5, 1.0, 0.0, 1.0] * 2 + [0.9, 0.5, 0.1, -0.8, 0.2]


@pytest.mark.parametrize(
    ("share", "error"),
    [(1.01, 0.1), (-0.01, 0.1), (np.nan, 0.1), (0.5, -0.1), (0.5, 1.1), (0.5, np.inf), (0.5, np.nan)],
)
@pytest.mark.parametrize("figure", ["auc", "balanced"])
def test_shares_are_bounded(figure, share, error) -> None:
    scores = Scores.of(BRIER)
    number = len(getattr(scores, figure))
    for value, spread in (([share] * number, [error] * number), ([0.5] * (number + 1), [0.1] * number)):
        wrong = replace(scores, **{figure: np.array(value), f"{figure}_error": np.array(spread)})
        with pytest.raises(BadReply, match=figure):
            answer(wrong, [Fit()] * 3)
    ends = {figure: np.ones(number), f"{figure}_error": np.zeros(number)}
    assert getattr(answer(replace(scores, **ends), [Fit()] * 3), figure).tolist() == [1.0] * number


def test_scores_are_bounded() -> None:
    for scores in (
        Scores.of(np.tile(BRIER, 2)),  # 50 rows of 25
        Scores.of(BRIER + 1),
        replace(Scores.of(BRIER), means=np.array([1.0, 1.0]), products=np.full((2, 2), 0.5)),
        Scores.of(np.tile(BRIER, (2, 1))),
    ):
        with pytest.raises(BadReply):
            answer(scores, [Fit()] * 3)
    wrong = Fit(error=0.0), Fit(renaming_error=-0.1), Fit(right=2.1), Fit(renaming=-1.1)
    for fits in ([Fit()] * 2, [Fit()] * 4, *([Fit(), each, Fit()] for each in wrong)):
        with pytest.raises(BadReply, match="fits"):
            answer(Scores.of(BRIER), fits)


def test_every_model_is_measured() -> None:
    at = Reading(7, asked=SiteFiguresQuestion((MODEL, MODEL), np.zeros(4)))
    both = SiteFigures({"0": FIGURES, "1": FIGURES}, np.array([0.5, 2.0]))
    assert decode(SiteFigures, encode(both), at).brier.tolist() == [0.5, 2.0]
    with pytest.raises(BadReply, match="no 'figures/1' in reply"):
        decode(SiteFigures, encode(SiteFigures({"0": FIGURES}, both.brier)), at)
    for brier in ([0.5], [0.5, 2.1], [0.5, -0.1]):
        with pytest.raises(BadReply, match="brier must be "):
            decode(SiteFigures, encode(SiteFigures(both.figures, np.array(brier))), at)


def test_the_name_of_a_model_is_that_of_its_coalition_and_fold() -> None:
    # Five folds and all rows: six models of each coalition, in order.
    named = {(coalition, fold): name_of(coalition, fold) for coalition in range(3) for fold in range(6)}
    assert [number_of(name) for name in named.values()] == list(range(18))
    assert all(fold_of(name) == fold for (_, fold), name in named.items())
