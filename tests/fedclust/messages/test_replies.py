"""Means of replies, and limits of how far each moves the model."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedclust.messages.replies import (
    Caps,
    Reply,
    by_cluster,
    limited_weights,
    too_long,
    update_norm,
    weighted_loss,
    weighted_mean,
)
from fedclust.support.array_bytes import to_numpy
from fedclust.support.flower import assume_identity


def _model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype=np.float32))})


# -- Means ----------------------------------------------------------------------------------------------


def reply(client: int, model: ArrayRecord, num_examples: int, loss: float = 0.0, **more: Any) -> Reply:
    given = {"cluster": 0, "losses": np.array([loss]), **more}
    return Reply(client=client, start=model, model=model, num_examples=num_examples, loss=loss, **given)


def counting(weight: float, steps: int) -> ArrayRecord:
    """A model with a weight in float32 and a counter, as BatchNorm has one."""
    return ArrayRecord({"w": Array(np.float32([weight])), "n": Array(np.array(steps))})


def test_means_by_hand() -> None:
    shared = counting(4.0, 2)  # of a node, for two clients that have 1 + 2 rows
    replies = [reply(0, shared, 1, 1.0), reply(1, shared, 2, 2.0), reply(2, counting(8.0, 5), 5, 3.0)]
    mean = {name: to_numpy(array) for name, array in weighted_mean(replies, ["n", "w"]).items()}
    # (3 · 4 + 5 · 8) / 8 = 6.5 in float64; of counters the largest.
    assert [*mean] == ["n", "w"]
    assert (mean["w"].dtype, mean["w"].tolist()) == (np.float64, [6.5])
    assert (mean["n"].dtype.kind, mean["n"].tolist()) == ("i", 5)
    assert weighted_mean(replies[:2], ["w"])["w"] is shared["w"]
    assert weighted_loss(replies) == 2.5  # (1 + 4 + 15) / 8
    assert weighted_loss([*replies, reply(3, shared, 9, math.nan)]) == 2.5  # who gives none does not count
    assert weighted_loss([reply(0, shared, 1, math.nan)]) is weighted_loss([]) is None


def test_a_mean_hardly_depends_on_which_clients_share_a_node() -> None:
    one, other = counting(0.1, 1), counting(0.7, 1)
    apart = [reply(0, one, 3), reply(1, counting(0.1, 1), 4), reply(2, other, 5)]
    together = [reply(0, one, 3), reply(1, one, 4), reply(2, other, 5)]
    first, second = (to_numpy(weighted_mean(each, ["w"])["w"]) for each in (apart, together))
    np.testing.assert_allclose(first, second, rtol=1e-15)


def test_replies_by_cluster() -> None:
    replies = [reply(client, _model(0.0), 1, cluster=cluster) for client, cluster in enumerate([1, 0, 1])]
    grouped = {cluster: [each.client for each in own] for cluster, own in by_cluster(replies).items()}
    assert grouped == {1: [0, 2], 0: [1]}


def test_an_aggregator_is_sent_only_what_was_checked() -> None:
    assume_identity()
    made = reply(3, _model(1.0), 7, 0.5)
    sent = made.as_message()
    assert sent.metadata.src_node_id == 3
    assert sent.content["metrics"] == {"num-examples": 7, "loss": 0.5}
    assert sent.content["arrays"] is made.model
    assert set(sent.content) == {"metrics", "arrays"}


# -- The cap --------------------------------------------------------------------------------------------


def test_the_length_of_an_update() -> None:
    assert update_norm(_model(4.0, 6.0), _model(1.0, 2.0)) == 5.0  # (3, 4)
    # 1e30 squared is beyond float32: sqrt(2) x 1e30.
    assert update_norm(_model(1e30, 1e30), _model(0.0, 0.0)) == pytest.approx(2**0.5 * 1e30, rel=1e-6)


def test_whole_numbers_have_no_length() -> None:
    one, other = (ArrayRecord({"n": Array(np.array([value]))}) for value in (0, 10**6))
    assert update_norm(one, other) == 0.0


def test_without_a_start_the_length_is_the_models() -> None:
    assert update_norm(_model(3.0, 4.0)) == 5.0


def test_too_long_beside_the_median_of_the_cluster() -> None:
    # Cluster 0: median of 1, 2, 3, 100 is 2.5, ten times is 25. Cluster 1 has two: everyone's median, of
    # 1, 2, 3, 100, 50, 8, is 5.5, ten times is 55.
    norms = [1.0, 2.0, 3.0, 100.0, 50.0, 8.0]
    assert too_long(norms, norms, [0, 0, 0, 0, 1, 1], 10.0) == {3: (2.5, 10.0)}
    assert too_long(norms, norms, [0, 0, 0, 0, 1, 1], 9.0) == {3: (2.5, 9.0), 4: (5.5, 9.0)}


def test_ten_updates_that_are_alike_leave_less_room() -> None:
    # Six of length 1 and three of 12: the median distance of logarithms is 0, so ten times the median.
    norms = [1.0] * 6 + [12.0] * 3
    assert too_long(norms, norms, [0] * 9, 30.0) == {}  # of nine, nobody knows how they spread
    assert too_long([1.0, *norms], [1.0, *norms], [0] * 10, 30.0) == dict.fromkeys((7, 8, 9), (1.0, 10.0))
    assert too_long([1.0, *norms], [1.0, *norms], [0] * 10, 9.0)[9] == (1.0, 9.0)  # what the run allows
    # Lengths e^x with x = ±0.4, four of each, 0, 0 and 3: the median distance is 0.4, and five deviations,
    # 5 · 1.4826 · 0.4 = 2.9652, make 19.4, of which e³ = 20.1 is more.
    logs = np.array([0.4, -0.4] * 4 + [0.0, 0.0, 3.0])
    ((place, (median, times)),) = too_long(np.exp(logs), np.exp(logs), [0] * 11, 30.0).items()
    assert (place, median) == (10, 1.0)
    assert times == pytest.approx(np.exp(2.9652))
    # With x = ±1 it would be e^7.4, and what the run allows remains.
    wide = np.exp(np.array([1.0, -1.0] * 4 + [-1.0, 0.0, 0.0, 3.3, 3.5]))
    assert too_long(wide, wide, [0] * 13, 30.0) == {12: (1.0, 30.0)}


def test_an_update_of_a_tenth_of_the_model_is_not_too_long() -> None:
    # Three clients whose losses are about 0, and one that still learns: 60 and 100 times their length.
    norms, starts = [1e-3, 1e-3, 1e-3, 0.06, 0.1], [1.0, 1.0, 1.0, 1.0, 0.5]
    assert too_long(norms, norms, [0] * 5, 30.0, starts) == {4: (1e-3, 30.0)}


@pytest.mark.parametrize("norms", [[], [1.0], [1.0, 1e30], [0.0, 0.0, 0.0, 5.0]])
def test_when_none_can_be_called_too_long(norms: list[float]) -> None:
    assert too_long(norms, norms, [0] * len(norms), 10.0) == {}


def test_a_pull_counts_for_at_most_ten_times_the_median() -> None:
    # Cluster 0: pulls 10, 20, 30 and 8000, median 25: at most 250, which 3 examples of length 80 make (240).
    # Cluster 1 has two: everyone's median, of 10, 20, 30, 8000, 40, 6000, is 35, at most 350 = 350 · 1.
    told, norms = [10, 20, 30, 100, 40, 6000], [1.0, 1.0, 1.0, 80.0, 1.0, 1.0]
    clusters = [0, 0, 0, 0, 1, 1]
    assert limited_weights(told, norms, clusters, 10.0) == [10, 20, 30, 3, 40, 350]


def test_a_pull_is_lowered_to_one_example_at_most() -> None:
    lengths, few = [1.0, 1.0, 1.0, 29.0], [0.0, 0.0, 1.0]
    assert limited_weights([1, 1, 1, 5], lengths, [0] * 4, 10.0) == [1, 1, 1, 1]
    # 2.5 examples of length 10 make 25, the median of pulls 10, 20, 30, 80: two are left.
    assert limited_weights([10, 20, 30, 8], [1.0, 1.0, 1.0, 10.0], [0] * 4, 1.0) == [10, 20, 25, 2]
    assert limited_weights([1, 10**6], lengths[2:], [0, 0], 10.0) == [1, 10**6]  # which is wrong?
    assert limited_weights([1, 1, 10**6], few, [0] * 3, 10.0) == [1, 1, 10**6]


def test_caps_of_rows_by_hand() -> None:
    # Rows 10, 20, 30 and 91: the median is 25, three times that 75. Of one, or of two, none counts for less.
    assert Caps(rows=3.0).most_rows(np.array([10, 20, 30, 91])) == 75
    assert Caps(rows=3.0).most_rows(np.array([10, 20, 30, 75])) is None
    # Of 20 clients two (a tenth) say a million: the next largest has 40, half of three times the median of 30
    # is 45. With others of 60 they count for that, with others of 100 for 90.
    for others, most in ((40, 45), (60, 60), (100, 90)):
        rows = np.array([10**6] * 2 + [others] * 2 + [30] * 16)
        assert Caps(rows=3.0).most_rows(rows) == most
        assert Caps(rows=3.0).most_rows(rows[2:]) == {40: None, 60: None, 100: 90}[others]
    for rows in ([10**6], [1, 10**6], []):
        assert Caps(rows=3.0).most_rows(np.array(rows, dtype=int)) is None
    assert Caps().most_rows(np.array([1, 1, 10**6])) is Caps(rows=3.0).most_rows(None) is None
