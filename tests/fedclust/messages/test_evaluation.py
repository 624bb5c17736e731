"""What messages about models on clients' rows refuse."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedclust.data.targets import CLASSES, Amounts, Target, Times
from fedclust.messages import evaluation
from fedclust.messages.codec import BadReply, Bounds, Reading, decode, encode
from fedclust.messages.evaluation import AloneQuestion, PersonalQuestion
from fedclust.metrics import outcomes
from fedclust.personal.layers import Finetune
from fedclust.proof.figure import Rows
from tests.fedclust.messages.test_codec import FIGURE, FIGURES, MODEL, PERSONAL
from tests.fedclust.messages.test_models import _model

ONES = np.ones((3, 2), np.uint8)


def _scores(positives: list[int], negatives: list[int]) -> dict[str, np.ndarray]:
    """Make counts in the first bin of each of two classes."""
    counts = {"score-positives": positives, "score-negatives": negatives}
    return {"score-gaps": np.array([1, 4096], np.uint16), **{k: np.array(v, "u1") for k, v in counts.items()}}


def test_without_rows_every_share_is_undefined() -> None:
    none = {**dict.fromkeys(FIGURES, np.nan), "num-examples": 0.0}
    assert decode(evaluation.Evaluation, encode(evaluation.Evaluation(7, none)), Reading(7))
    told = encode(evaluation.Evaluation(7, {**none, "accuracy": 0.5}))
    with pytest.raises(BadReply, match=r"accuracy must be NaN without test rows, got 0\.5"):
        decode(evaluation.Evaluation, told, Reading(7))


_HUGE = float(np.finfo(np.float64).max)
_AMOUNTS, _TIMES = Amounts(0.0, 9.0, (5.0,)), Times((1.0, 2.0), 3.0)


@pytest.mark.parametrize(
    ("target", "name", "least", "most"),
    [
        *((_AMOUNTS, name, 0.0, _HUGE) for name in ("rmse", "mae", "rmse_error", "mae_error", "r2_error")),
        (_AMOUNTS, "r2", -_HUGE, 1.0),
        *((_TIMES, name, 0.0, 1.0) for name in ("concordance", "integrated_brier")),
        *((_TIMES, name, 0.0, _HUGE) for name in ("concordance_error", "integrated_brier_error")),
    ],
)
def test_figures_of_amounts_and_times_are_in_their_range(
    target: Target, name: str, least: float, most: float
) -> None:
    at = Reading(7, 3, Bounds(target=target))

    def read(value: float, rows: float = 4.0) -> dict[str, float]:
        shares = {} if rows else dict.fromkeys(("accuracy", "balanced-accuracy"), np.nan)
        told = evaluation.Evaluation(7, {**FIGURES, **shares, "num-examples": rows, name: value})
        return decode(evaluation.Evaluation, encode(told), at).metrics

    for value in (least, most, np.nan):
        np.testing.assert_equal(read(value)[name], value)
    for value in (math.nextafter(least, -math.inf), math.nextafter(most, math.inf), -math.inf):
        with pytest.raises(BadReply, match=rf"client 7, round 3: {name} must be in \["):
            read(value)
    np.testing.assert_equal(read(np.nan, 0.0)[name], np.nan)
    with pytest.raises(BadReply, match=f"{name} must be NaN without test rows"):
        read(0.5, 0.0)


def test_figures_of_another_target_are_refused() -> None:
    told = encode(evaluation.Evaluation(7, {**FIGURES, "rmse": 1.0}))
    for target in (_TIMES, CLASSES):
        with pytest.raises(BadReply, match=r"metrics must be .* got \['rmse'\]"):
            decode(evaluation.Evaluation, told, Reading(7, bounds=Bounds(target=target)))


@pytest.mark.parametrize(
    ("target", "sums", "fits"),
    [  # of two rows that are predicted to be in the first bin, and none in the second
        (_AMOUNTS, [[4.0, 0.0], [6.0, 0.0], [2.0, 0.0]], True),  # errors of 1 each
        (_AMOUNTS, [[4.0, 0.0], [6.0, 0.0], [1.9, 0.0]], False),  # an error of 2 in all: at least 2 · 1
        (_AMOUNTS, [[4.0, 0.0], [6.0, 0.0], [-2.0, 0.0]], False),
        (_AMOUNTS, [[4.0, 0.5], [6.0, 0.5], [2.0, 0.0]], False),
        (_AMOUNTS, [[np.nan, 0.0], [6.0, 0.0], [2.0, 0.0]], False),
        (_AMOUNTS, [[0.0, 0.0], [0.0, 0.0], [np.inf, 0.0]], False),
        (_TIMES, [[0.0, 0.0], [2.0, 0.0], [2.0, 0.0]], True),
        (_TIMES, [[0.0, 0.0], [2.1, 0.0], [2.3, 0.0]], False),
        (_TIMES, [[0.0, 0.0], [1.0, 0.0], [2.1, 0.0]], False),
        (CLASSES, [[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]], False),
        (None, [[0.0, 0.0], [9.0, 0.0], [50.0, 0.0]], True),
    ],
)
def test_sums_are_those_of_the_rows_in_each_bin(target: Target | None, sums: Any, fits: bool) -> None:
    content = encode(evaluation.Evaluation(7, FIGURES))
    counts = {"class-counts": np.array([[2, 0]] * 3, np.uint8), "confusion": np.diag([2, 0]).astype("u1")}
    content["outcomes"] = _model(**counts, sums=np.array(sums))
    at = Reading(7, 3, Bounds(target=target))
    if fits:
        assert decode(evaluation.Evaluation, content, at).outcomes.sums.tolist() == sums
    else:
        with pytest.raises(BadReply, match="client 7, round 3: sums must"):
            decode(evaluation.Evaluation, content, at)


def test_a_diverged_model_s_counts_have_no_bins() -> None:
    counted = outcomes(np.array([0, 1]), np.array([0, 0]), np.full((2, 2), np.nan))
    told = encode(evaluation.Evaluation(7, FIGURES, counted))
    read = decode(evaluation.Evaluation, told, Reading(7)).outcomes
    assert read.bins is None
    assert read.predicted.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, r"no 'class-counts' in reply, keys are \[\]"),
        ({"class-counts": np.array([[1], [1], [2]], np.uint8)}, "hits, at most as many"),
        ({"class-counts": ONES, "score-gaps": np.array([3, 0], np.uint8)}, r"score-gaps must be .* in \[1, "),
        ({"class-counts": ONES, "score-gaps": np.array([8193], np.uint16)}, "add up to at most 8192"),
        ({"class-counts": ONES, "score-gaps": np.array([1], np.uint16)}, r"got shapes \(\(1,\), \(0,\)"),
        ({"class-counts": ONES, "confusion": np.ones((2, 2), np.uint8)}, "must add up to class-counts"),
        # Two rows, one of each class: in each class's bins, one positive and one negative.
        ({"class-counts": ONES, **_scores([2, 0], [0, 2])}, "must add up to each class's rows"),
        ({"class-counts": ONES, **_scores([1, 1], [1, 2])}, "must add up to each class's rows"),
    ],
)
def test_counts_that_do_not_fit(arrays: dict[str, np.ndarray], reason: str) -> None:
    content = encode(evaluation.Evaluation(7, FIGURES))
    content["outcomes"] = _model(**arrays)
    with pytest.raises(BadReply, match=f"client 7, round 3: .*{reason}"):
        decode(evaluation.Evaluation, content, Reading(7, 3))


def test_no_more_hits_than_the_rows_that_a_client_says_it_has() -> None:
    told = evaluation.FigureAnswer.of(Rows.of(np.ones((2, 1)), np.ones(1), np.ones((2, 1)), True))
    at = Reading(7, asked=FIGURE)
    assert decode(evaluation.FigureAnswer, encode(told), at).hits.tolist() == [1, 1]
    with pytest.raises(BadReply, match="must be those of 1 rows"):  # 3 were asked for
        decode(evaluation.FigureAnswer, encode(replace(told, hits=np.full(2, 3.0))), at)


def test_a_model_that_has_diverged_does_not_cost_the_others_their_wins() -> None:
    told = RecordDict({"losses": ConfigRecord({"losses": [1.0, float("nan")], "wins": [3, 0]})})
    asked = evaluation.WinsQuestion((MODEL, MODEL))
    assert decode(evaluation.Wins, told, Reading(asked=asked)).wins.tolist() == [3, 0]
    with pytest.raises(BadReply, match="losses must be finite"):
        decode(evaluation.Losses, told, Reading(asked=evaluation.LossesQuestion((MODEL, MODEL))))
    for wins in ([3], [0, 0], [-1, 4], [2, 8]):
        told["losses"]["wins"] = wins
        with pytest.raises(BadReply, match="wins must"):
            decode(evaluation.Wins, told, Reading(0, bounds=Bounds(num_train=np.array([9])), asked=asked))


def test_a_loss_of_a_layer_that_nobody_asked_for_is_refused() -> None:
    asked = replace(PERSONAL, shift=None)
    answer = evaluation.PersonalAnswer(7, {"finetune": FIGURES}, losses={"none": 0.5, "prior": 0.5})
    with pytest.raises(BadReply, match=r"validation-losses must be among \['finetune', 'none'\]"):
        decode(evaluation.PersonalAnswer, encode(answer), Reading(7, asked=asked))


@pytest.mark.parametrize(
    ("labels", "chances"),
    [(np.zeros((2, 3, 4), int), np.zeros((2, 3, 4, 2))), (np.zeros(2, int), np.zeros((2, 0)))],
)
def test_predictions_that_make_no_table(labels: np.ndarray, chances: np.ndarray) -> None:
    told = encode(evaluation.Predictions(2, np.arange(2), labels, chances))
    with pytest.raises(BadReply, match="predictions must be of 2 rows"):
        decode(evaluation.Predictions, told, Reading(asked=evaluation.PredictionsQuestion(MODEL)))


@pytest.mark.parametrize(("epochs", "finetune"), [(None, None), (2, Finetune(2, "last", 0.1))])
def test_what_serves_a_client_is_tuned_as_its_layer_was(
    epochs: int | None, finetune: Finetune | None
) -> None:
    shift, none = np.zeros(2), np.zeros(0)
    asked = AloneQuestion(
        MODEL, MODEL, shift, none, tuning_epochs=epochs, layers_tuned="last", learning_rate=0.1
    )
    assert asked.finetune == finetune
    assert PersonalQuestion.of(MODEL, 4, None, finetune).finetune == finetune
