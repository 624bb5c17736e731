"""From what clients report to a verdict and to who is served what."""

import json

import numpy as np
import pytest

from fedclust.proof import evidence, prove_grouping
from fedclust.proof.figure import Rows
from fedclust.proof.paired import Evidence
from fedclust.proof.verdict import NO_BETTER as BEGINNING
from fedclust.proof.words import CLASSES

NO_BETTER = f"{BEGINNING} {CLASSES.guess}"

TWO = np.array([0, 0, 0, 1, 1, 1])
NOISE = np.tile([-0.1, 0.1], 50)  # standard deviation 0.1


def held_out(means: list[float], rows: int = 100) -> dict[int, Evidence]:
    return {client: evidence(mean + NOISE[:rows]) for client, mean in enumerate(means)}


def on_test_rows(gains: list[float], own: float = 0.9, rows: int = 100) -> dict[int, Rows]:
    """Report per client a gain in Brier scores around which rows vary, and accuracies of both models."""
    found = {}
    for client, gain in enumerate(gains):
        brier = np.stack([np.full(rows, 0.5), 0.5 - gain + NOISE[:rows]])
        hits = np.stack([np.arange(rows) < round(share * rows) for share in (0.6, own)]).astype(float)
        found[client] = Rows.of(brier, np.full(rows, 0.9), hits, rows < 100)
    return found


def test_groups_that_were_shown_to_be_better() -> None:
    found = prove_grouping(TWO, held_out([0.3] * 6), on_test_rows([0.25] * 6), method="FMCL")
    # 600 rows: 0.1/√600 = 0.0041, twice that is 0.008. They miss what is a share of 0.0061 with a probability
    # of 2.5 %: 0.0061 · 2.25 = 0.014 and 0.0061 · 1.75 = 0.011 are more. Accuracies differ by 1 in 30 % of
    # rows: 0.46/√600 = 0.0187, twice that is 0.037; a skewness of 0.87 moves both ends by 0.001 at most.
    assert found.verdict.text == (
        "Train in 2 groups: 0.900 instead of 0.600 of test rows predicted right (+0.300, 95 % interval +0.26 "
        "to +0.34), Brier score lower by 0.25 (0.24 to 0.26), for 6 of 6 clients"
    )
    assert found.verdict.grouped
    assert [each.proven for each in found.clusters] == [True, True]
    assert found.served_by_cluster(6).all()
    assert found.verdict.figure.gain == pytest.approx(0.25)
    assert found.clusters[0].figure.num_rows == 300


@pytest.mark.parametrize(
    ("gain", "own", "words"),
    [
        # 0.0061 of the rows may be of another kind: 2 ± the gain times that is 0.0122 or 0.0124.
        (-0.02, 0.6, "Brier score higher by 0.02 (0.01 to 0.03)"),
        (-0.004, 0.6, "Brier score higher by 0.00 (-0.01 to 0.02), which may be chance"),
        (0.004, 0.6, "Brier score lower by 0.00 (-0.01 to 0.02), which may be chance"),
        (0.02, 0.6, "Brier score lower by 0.02 (0.01 to 0.03), which held-out rows did not show"),
    ],
)
def test_groups_that_were_not_shown_to_be_better(gain: float, own: float, words: str) -> None:
    rows = on_test_rows([gain] * 6, own)
    found = prove_grouping(TWO, held_out([-0.1] * 6), rows, method="FMCL", serve_best=True)
    assert found.verdict.text.startswith(
        "Train one model for all: no grouping was shown to be better; FMCL's 2 clusters would have 0.600 "
        "instead of 0.600 of test rows predicted right (+0.000, "
    )
    assert found.verdict.text.endswith(words)
    assert not found.verdict.grouped
    assert not found.served_by_cluster(6).any()
    assert found.verdict.p_value == 1


def test_models_that_are_equal() -> None:
    brier, hits = np.full((2, 100), 0.5), np.ones((2, 100))
    rows = dict.fromkeys(range(6), Rows.of(brier, np.full(100, 0.9), hits, False))
    found = prove_grouping(TWO, dict.fromkeys(range(6), evidence(np.zeros(9))), rows, method="FMCL")
    assert found.verdict.text.endswith("; FMCL's 2 clusters predict every test row just as well")


def test_without_test_rows_the_verdict_speaks_of_held_out_ones() -> None:
    found = prove_grouping(TWO, held_out([0.3] * 6), {}, method="FMCL")
    assert found.verdict.text == (
        "Train in 2 groups: on held-out rows their Brier score is lower by 0.3, for 6 of 6 clients"
    )
    assert found.verdict.summary()["gain"] is None
    lost = prove_grouping(TWO, held_out([-0.3] * 6), {}, method="FMCL")
    assert lost.verdict.text.endswith("held-out rows the Brier score of FMCL's 2 clusters is higher by 0.3")


def test_a_model_that_collapsed_is_none_to_be_better_than() -> None:
    # A's Brier score is 0.5 on every row, B's about 0.1; class shares alone have 0.05.
    brier, hits = np.stack([np.full(100, 0.5), 0.1 + NOISE]), np.stack([np.zeros(100), np.ones(100)])
    rows = dict.fromkeys(range(6), Rows.of(brier, np.full(100, 0.05), hits, False))
    found = prove_grouping(TWO, held_out([0.3] * 6), rows, method="FMCL", serve_best=True)
    assert found.verdict.text.startswith(
        f"{NO_BETTER}: no verdict on groups against it; FMCL's 2 clusters have 1.000 instead of 0.000 of"
    )
    assert not found.verdict.grouped
    assert found.verdict.summary()["collapsed"] is True
    assert found.served_by_cluster(6).all()  # who is served what does not change
    named = prove_grouping(
        TWO, held_out([0.3] * 6), rows, method="FMCL", trouble="client 3 failed in 2 of 9 rounds"
    )
    assert f"{NO_BETTER} (client 3 failed in 2 of 9 rounds): no verdict" in named.verdict.text
    alone = prove_grouping(np.zeros(6, dtype=int), held_out([0.0] * 6), rows, method="FMCL")
    assert alone.verdict.text == f"{NO_BETTER}: no verdict on groups against it; FMCL found no groups"


def test_groups_that_contradict_each_other_are_found_where_one_model_cannot_learn() -> None:
    # Class shares have 0.45: A's 0.5 is no better, B's 0.1 is.
    brier, hits = np.stack([np.full(100, 0.5), 0.1 + NOISE]), np.stack([np.zeros(100), np.ones(100)])
    rows = dict.fromkeys(range(6), Rows.of(brier, np.full(100, 0.45), hits, False))
    verdict = prove_grouping(TWO, held_out([0.3] * 6), rows, method="FMCL").verdict
    assert verdict.text.startswith("Train in 2 groups: 1.000 instead of 0.000 of test rows predicted right")
    assert verdict.text.endswith(
        "; the one model for all predicts no better than each client's class shares, the groups' models do "
        "better"
    )
    assert (verdict.grouped, verdict.summary()["collapsed"]) == (True, True)
    # Held-out rows did not show them to be better than A.
    other = prove_grouping(TWO, held_out([0.0] * 6), rows, method="FMCL").verdict
    assert other.text.startswith(f"{NO_BETTER}: no verdict")
    assert not other.grouped


def test_what_a_search_for_groups_could_not_see_is_said() -> None:
    def text(**unseen: float) -> str:
        return prove_grouping(np.zeros(6, dtype=int), {}, {}, method="auto", unseen=unseen).verdict.text

    assert text(gain=0.0812, rows=1500) == (
        "Train one model for all: auto found no groups (groups may still be better by less than 0.081 in "
        "Brier score, which 1,500 held-out rows cannot show)"
    )
    assert text(gain=2.0, rows=3).endswith(
        "no groups, and could have shown none: 3 held-out rows are too few"
    )


def test_against_a_collapsed_model_the_figures_are_of_all_clusters() -> None:
    brier, hits = np.stack([np.full(100, 0.5), 0.1 + NOISE]), np.stack([np.zeros(100), np.ones(100)])
    right, wrong = (Rows.of(brier, np.full(100, 0.05), each, False) for each in (hits, np.zeros((2, 100))))
    found = prove_grouping(
        TWO, held_out([0.6] * 3 + [-0.6] * 3), {k: right if k < 3 else wrong for k in range(6)}, method="FMCL"
    )
    assert [each.proven for each in found.clusters] == [True, False]
    assert "FMCL's 2 clusters have 0.500 instead of 0.000 of" in found.verdict.text  # not cluster 0's 1.000


def test_a_model_that_is_a_little_better_than_class_shares_did_not_collapse() -> None:
    brier, hits = np.stack([np.full(100, 0.5) + NOISE, 0.1 + NOISE]), np.ones((2, 100))
    # 100 rows: 0.05 above 0.5 with standard error 0.01 is shown; 0.005 is neither shown nor worth it.
    for shares, collapsed in ((0.55, False), (0.505, True), (0.5, True)):
        rows = {0: Rows.of(brier, np.full(100, shares), hits, True)}
        found = prove_grouping(np.zeros(1, dtype=int), {}, rows, method="FMCL")
        assert found.verdict.figure.collapsed is collapsed
    # Three rows show nothing: they are called neither.
    few = {0: Rows.of(brier[:, :3], np.full(3, 0.55), hits[:, :3], True)}
    assert not prove_grouping(np.zeros(1, dtype=int), {}, few, method="FMCL").verdict.figure.collapsed


def test_one_cluster_should_train_apart() -> None:
    # Cluster 1, of clients 0 and 1, gains 0.2; the four others lose 0.2.
    means = [0.2, 0.2, -0.2, -0.2, -0.2, -0.2]
    assignment = np.array([1, 1, 0, 0, 0, 0])
    found = prove_grouping(assignment, held_out(means), on_test_rows(means), method="FMCL", serve_best=True)
    assert found.verdict.grouped
    assert found.verdict.text.startswith(
        "Train 2 of 6 clients apart (cluster 1) and one model for the others: 0.900 instead of 0.600 of test"
    )
    assert found.verdict.text.endswith("for 2 of 2 clients of them")
    assert found.verdict.figure.gain == pytest.approx(0.2)
    assert found.served_by_cluster(6).tolist() == [True, True, False, False, False, False]


def test_a_cluster_that_is_not_better_is_served_the_common_model() -> None:
    assignment, means = np.array([0, 1, 1, 2]), [0.3, 0.3, 0.3, -0.01]
    best = prove_grouping(assignment, held_out(means), on_test_rows(means), method="FMCL", serve_best=True)
    assert best.verdict.text.startswith("Train in 3 groups: ")
    assert best.verdict.text.endswith(
        "; 1 client of cluster 2 is served the model for all, as theirs was not shown to be better"
    )
    assert best.served_by_cluster(4).tolist() == [True, True, True, False]
    plain = prove_grouping(assignment, held_out(means), on_test_rows(means), method="FMCL")
    assert plain.verdict.text.endswith("for 3 of 4 clients")


def test_all_tests_of_a_run_share_one_level() -> None:
    # Three clusters of one client each and the whole: the smallest of four p-values counts four times.
    # 200 rows miss losses of 2 that are 0.035/2.035 of all with a probability of 0.031; half of it counts.
    reports = {client: evidence(mean + np.tile(NOISE, 2)) for client, mean in enumerate([0.035, -0.03, 0])}
    found = prove_grouping(np.array([0, 1, 2]), reports, {}, method="FMCL")
    first = found.clusters[0]
    assert first.comparison.p_value < 0.05 < 4 * first.comparison.p_value
    assert first.p_value == pytest.approx(4 * first.comparison.p_value)
    assert not first.proven


def test_one_group_is_none() -> None:
    found = prove_grouping(
        np.zeros(3, dtype=int), held_out([0.2] * 3), on_test_rows([0.2] * 3), method="FedGWC", serve_best=True
    )
    assert found.verdict.text == "Train one model for all: FedGWC found no groups"
    assert not found.verdict.grouped
    assert found.verdict.p_value is None
    assert found.served_by_cluster(3).all()  # its model won: it serves


def test_clients_that_did_not_vote_are_counted() -> None:
    measured = held_out([0.3] * 5)
    measured[1] = evidence(np.zeros(0))
    del measured[3]
    found = prove_grouping(TWO, measured, {}, method="FMCL")
    assert (found.too_few, found.silent) == ((1,), (3, 5))
    assert found.verdict.text.endswith(
        "(1 client has no held-out rows and did not vote) (2 clients have no usable answer and did not vote)"
    )


def test_nobody_answered_and_nobody_has_rows() -> None:
    found = prove_grouping(np.array([0, 1]), {}, {}, method="FMCL", serve_best=True)
    assert found.verdict.text == "Train one model for all: no client answered, so no grouping could be tested"
    assert not found.verdict.grouped
    assert not found.served_by_cluster(2).any()
    kept = prove_grouping(
        np.array([0, 1]), {}, {}, method="Auto", serve_best=True, proven_before=True
    )  # silence is no evidence against what was proven
    earlier = "held-out rows showed them to be better during training"
    assert kept.verdict.text == f"Train in 2 groups: {earlier}; at the end no client answered"
    assert (kept.verdict.grouped, kept.verdict.p_value) == (True, None)
    assert kept.served_by_cluster(2).all()
    nobody = prove_grouping(np.array([0, 1]), dict.fromkeys((0, 1), evidence(np.zeros(0))), {}, method="FMCL")
    assert nobody.verdict.text.startswith("Train one model for all: no client has held-out rows")
    unknown = ["p_value", "gain", "interval", "better_for", "accuracy_gain"]
    assert [nobody.verdict.summary()[key] for key in unknown] == [None] * 5


def test_the_summary_is_plain_json() -> None:
    found = prove_grouping(TWO, held_out([0.3] * 6), on_test_rows([0.25] * 6), method="FMCL")
    read = json.loads(json.dumps(found.verdict.summary(), allow_nan=False))
    assert read["grouped"] is True
    assert read["gain"] == pytest.approx(0.25)
    assert (read["accuracy_of_one_model"], read["accuracy_of_groups"]) == pytest.approx((0.6, 0.9))
    assert len(read["interval"]) == 2
    cluster = json.loads(json.dumps(found.clusters[1].summary(), allow_nan=False))
    assert [cluster[key] for key in ("cluster", "clients", "voted", "held_out_rows")] == [1, 3, 3, 300]
    assert cluster["held_out_gain"] == pytest.approx(0.3)
    assert cluster["test_rows"] == 300


def test_splits_that_were_proven_before_stay_while_they_gain() -> None:
    # The whole gains (2 · 0.02 − 2 · 0.001 − 0.01)/5 = 0.0056, which 25 rows do not show.
    assignment, means = np.array([0, 0, 1, 1, 2]), [0.02, 0.02, -0.001, -0.001, -0.01]
    told, rows = held_out(means, 6), on_test_rows(means)
    plain = prove_grouping(assignment, told, rows, method="Auto", serve_best=True)
    assert not plain.verdict.grouped
    assert not plain.served_by_cluster(5).any()
    kept = prove_grouping(assignment, told, rows, method="Auto", serve_best=True, proven_before=True)
    assert kept.verdict.grouped
    assert kept.served_by_cluster(5).tolist() == [True, True, False, False, False]
    assert kept.verdict.text.startswith(
        "Train in 3 groups: held-out rows showed them to be better during training; at the end 0.900 instead"
    )
    assert kept.verdict.text.endswith(
        "which by itself may be chance; 3 clients of clusters 1 and 2 are served the model for all, as "
        "theirs was not shown to be better"
    )


def test_of_many_clusters_ten_are_listed() -> None:
    told = held_out([*[-0.001] * 12, *[0.02] * 20], 6)  # the whole gains; clusters 0 to 11 lose
    found = prove_grouping(np.arange(32), told, {}, method="Auto", serve_best=True, proven_before=True)
    assert found.verdict.text.endswith(
        "; 12 clients of clusters 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more are served the model for all, as "
        "theirs was not shown to be better"
    )


def test_splits_that_were_proven_before_go_where_they_lose() -> None:
    told = held_out([-0.1, -0.1, 0.05, 0.05], 6)
    found = prove_grouping(np.repeat([0, 1], 2), told, {}, method="Auto", serve_best=True, proven_before=True)
    assert not found.verdict.grouped  # (−0.2 + 0.1)/4 < 0
    assert found.verdict.text.startswith("Train one model for all: ")
    assert found.served_by_cluster(4).tolist() == [False] * 4


def test_a_split_that_was_proven_before_stays_where_nobody_answers() -> None:
    told = {client: each for client, each in held_out([0.3] * 6).items() if client < 3}
    found = prove_grouping(TWO, told, {}, method="Auto", serve_best=True, proven_before=True)
    assert found.served_by_cluster(6).all()
    assert found.verdict.text == (
        "Train in 2 groups: on held-out rows their Brier score is lower by 0.3, for 3 of 3 clients (3 "
        "clients have no usable answer and did not vote)"
    )
    plain = prove_grouping(TWO, told, {}, method="FMCL", serve_best=True)  # nothing has shown it to be better
    assert plain.served_by_cluster(6).tolist() == [True] * 3 + [False] * 3


def test_for_whom_a_score_is_lower_after_a_mean_that_is_higher() -> None:
    # The mean is higher by (4 · 0.2 − 2 · 0.1)/6 = 0.1; it is lower for the last two clients. Of 600 rows the
    # variance is 0.01 + 0.02, and 1.96 · √(0.03/600) = 0.014.
    rows = on_test_rows([-0.2] * 4 + [0.1] * 2)
    found = prove_grouping(TWO, {}, rows, method="FMCL", held_out=False)
    assert "Brier score higher by 0.10 (0.09 to 0.11), lower for 2 of 6 clients; no" in found.verdict.text


def test_one_cluster_was_never_split() -> None:
    found = prove_grouping(np.zeros(3), held_out([0.1] * 3), {}, method="Auto", proven_before=True)
    assert not found.verdict.grouped
