"""From three numbers per client to a verdict and to who is served what."""

import json

import numpy as np
import pytest

from fedclust.proof import Comparison, Difference, compare, compare_differences, prove_grouping, verdict


def comparison(
    gain: float, interval: tuple[float, float], p_value: float, *, abstained: tuple[int, ...] = ()
) -> Comparison:
    return Comparison(gain, interval, 0.95, p_value, 0.01, 20.0, 30, 28, abstained)


def test_groups_that_were_shown_to_be_better() -> None:
    found = verdict(comparison(0.361, (0.342, 0.380), 1e-9), method="FedGWC", num_groups=2)
    assert found.text == (
        "Train in 2 groups: on held-out rows their models beat one model for all by 0.36 "
        "(95 % interval 0.34 to 0.38), for 28 of 30 clients"
    )
    assert found.grouped
    assert (found.gain, found.interval, found.p_value) == (0.361, (0.342, 0.380), 1e-9)
    assert found.better_for == 28


@pytest.mark.parametrize(
    ("gain", "interval", "words"),
    [
        (-0.011, (-0.018, -0.004), "would cost 0.011 (95 % interval 0.004 to 0.018)"),
        (0.004, (-0.003, 0.011), "gain 0.004 (95 % interval -0.003 to 0.011), which may be chance"),
        (-0.004, (-0.011, 0.003), "cost 0.004 (95 % interval -0.003 to 0.011), which may be chance"),
        (0.0, (0.0, 0.0), "predict every held-out row just as well"),
        (-0.00001, (-0.02, 0.02), "cost 0.00 (95 % interval -0.02 to 0.02), which may be chance"),
    ],
)
def test_groups_that_were_not_shown_to_be_better(
    gain: float, interval: tuple[float, float], words: str
) -> None:
    found = verdict(comparison(gain, interval, 0.4), method="FMCL", num_groups=2)
    shown = "Train one model for all: no grouping was shown to be better"
    assert found.text == f"{shown}; FMCL's 2 clusters {words}"
    assert not found.grouped


def test_other_tests_of_the_run_count() -> None:
    result = comparison(0.02, (0.001, 0.039), 0.02)
    assert verdict(result, method="FMCL", num_groups=2).grouped
    found = verdict(result, method="FMCL", num_groups=2, p_value=0.06)  # 0.02 of three tests
    assert not found.grouped
    assert found.p_value == 0.06
    assert "which may be chance" in found.text
    assert verdict(result, method="FMCL", num_groups=2, p_value=0.06, level=0.1).grouped


def test_clients_that_did_not_vote_are_counted() -> None:
    one = verdict(comparison(0.3, (0.2, 0.4), 0.0, abstained=(4,)), method="FMCL", num_groups=2)
    assert one.text.endswith(" (1 client has fewer than two held-out rows and did not vote)")
    two = verdict(comparison(0.3, (0.2, 0.4), 0.9, abstained=(4, 7)), method="FMCL", num_groups=2)
    assert two.text.endswith(" (2 clients have fewer than two held-out rows and did not vote)")


def test_nothing_to_compare() -> None:
    found = verdict(compare([], [], []), method="FedGWC", num_groups=1)
    assert found.text == "Train one model for all: FedGWC found no groups"
    unknown = dict.fromkeys(("gain", "interval", "p_value", "better_for"))
    assert found.summary() == {"text": found.text, "grouped": False, **unknown}
    nobody = verdict(compare([], [], []), method="FedGWC", num_groups=2)
    assert nobody.text.startswith("Train one model for all: no client has two held-out rows")
    assert nobody.gain is None


def test_figures_are_fit_for_json() -> None:
    silent = {"gain": None, "interval": None, "p_value": 1.0, "better_for": 0, "voted": 0}
    assert compare([], [], []).figures() == silent
    assert comparison(0.1, (0.0, 0.2), 0.01).figures()["gain"] == 0.1


def test_the_summary_is_plain_json() -> None:
    found = verdict(compare([0.3, 0.1], [0.02, 0.02], [20, 20]), method="FMCL", num_groups=2)
    read = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert read["grouped"] is True
    assert read["gain"] == pytest.approx(0.2)
    assert len(read["interval"]) == 2


def _measured(means: list[float], variance: float = 0.01, count: int = 100) -> dict[int, Difference]:
    return {client: Difference(mean, variance, count) for client, mean in enumerate(means)}


def test_every_group_is_better() -> None:
    # Each client's mean is 0.3 with standard error √(0.01/100) = 0.01: of three, 0.01/√3, of all six 0.01/√6.
    found = prove_grouping(np.array([0, 0, 0, 1, 1, 1]), _measured([0.3] * 6), method="FMCL")
    assert found.verdict.text == (
        "Train in 2 groups: on held-out rows their models beat one model for all by 0.300 "
        "(95 % interval 0.292 to 0.308), for 6 of 6 clients"  # 1.964 · 0.01/√6 = 0.008
    )
    assert found.verdict.grouped
    assert [each.proven for each in found.clusters] == [True, True]
    assert found.served_by_cluster(6).all()
    assert found.clusters[1].clients == (3, 4, 5)
    assert found.clusters[0].comparison.standard_error == pytest.approx(0.01 / np.sqrt(3))


def test_no_group_is_better() -> None:
    found = prove_grouping(np.array([0, 0, 1, 1]), _measured([-0.1] * 4), method="FMCL", serve_best=True)
    assert "FMCL's 2 clusters would cost 0.10" in found.verdict.text
    assert not found.verdict.grouped
    assert not found.served_by_cluster(4).any()


def test_one_group_is_better_off_apart() -> None:
    # The whole: (2·0.2 − 4·0.2)/6 < 0.
    measured = _measured([0.2, 0.2, -0.2, -0.2, -0.2, -0.2])
    found = prove_grouping(np.array([1, 1, 0, 0, 0, 0]), measured, method="FMCL", serve_best=True)
    assert found.verdict.grouped
    assert found.verdict.text.startswith(
        "Train 2 of 6 clients apart (cluster 1) and one model for the others: on held-out rows its model "
        "beats one model for all by 0.20"
    )
    assert found.verdict.text.endswith("for 2 of 2 of them")
    assert found.verdict.gain == pytest.approx(0.2)
    assert found.served_by_cluster(6).tolist() == [True, True, False, False, False, False]


def test_a_group_that_gains_nothing_of_a_better_grouping_is_named() -> None:
    measured = _measured([0.3, 0.3, 0.3, 0.0])
    assignment = np.array([0, 0, 2, 1])
    best = prove_grouping(assignment, measured, method="FMCL", serve_best=True)
    assert best.verdict.text.startswith("Train in 3 groups: ")
    assert best.verdict.text.endswith(
        "; 1 client of cluster 1 is served the model for all, as theirs was not shown to be better"
    )
    assert best.served_by_cluster(4).tolist() == [True, True, True, False]
    plain = prove_grouping(assignment, measured, method="FMCL")
    assert plain.verdict.text.endswith("for 3 of 4 clients")


def test_all_tests_share_one_level() -> None:
    # A cluster of one: standard error √(0.01/100) = 0.01, t = 1.9 with 99 degrees of freedom, p = 0.030. It
    # is the smallest of four tests, three clusters and the whole: Holm makes 4 · 0.030 = 0.12 of it.
    measured = _measured([0.019, -0.05, -0.05])
    found = prove_grouping(np.array([0, 1, 2]), measured, method="FMCL")
    assert found.clusters[0].comparison.p_value == pytest.approx(0.030, abs=0.001)
    assert found.clusters[0].p_value == pytest.approx(4 * found.clusters[0].comparison.p_value)
    assert not found.served_by_cluster(3).any()


def test_one_group_is_tested_for_serving_only() -> None:
    found = prove_grouping(np.zeros(3, dtype=int), _measured([0.2] * 3), method="FedGWC", serve_best=True)
    assert found.verdict.text == "Train one model for all: FedGWC found no groups"
    assert found.clusters[0].p_value == found.clusters[0].comparison.p_value  # the only test
    assert found.served_by_cluster(3).all()


def test_who_did_not_vote() -> None:
    measured = _measured([0.3] * 5)
    measured[1] = Difference(0.0, 0.0, 1)
    del measured[3]
    found = prove_grouping(np.array([0, 0, 0, 1, 1, 1]), measured | {5: measured[4]}, method="FMCL")
    assert (found.too_few, found.silent) == ((1,), (3,))
    assert found.clusters[1].comparison.num_clients == 2
    assert found.verdict.text.endswith(
        "for 4 of 4 clients (1 client has fewer than two held-out rows and did not vote) "
        "(1 client did not answer and did not vote)"
    )


def test_a_gain_beyond_a_margin() -> None:
    told = [Difference(mean, 0.02, 20) for mean in (0.3, 0.1, 0.2)]
    found, plain = compare_differences(told, min_gain=0.05), compare([0.3, 0.1, 0.2], [0.02] * 3, [20] * 3)
    assert found.p_value == compare([0.25, 0.05, 0.15], [0.02] * 3, [20] * 3).p_value
    assert (found.gain, found.interval) == (plain.gain, plain.interval)
    assert compare_differences(told) == plain
    assert compare_differences([Difference(-2.0, 0.0, 3)] * 2, min_gain=0.01).p_value == 1


def test_nobody_answered() -> None:
    found = prove_grouping(np.array([0, 1]), {}, method="FMCL", serve_best=True)
    assert found.verdict.text == "Train one model for all: no client answered, so no grouping could be tested"
    assert not found.verdict.grouped
    assert not found.served_by_cluster(2).any()
    assert found.clusters[0].summary()["gain"] is None


def test_splits_that_were_proven_before_stay_while_they_gain() -> None:
    # Of two rows with variance 1, a mean of 0.1 has standard error √(1/2): of no test's concern.
    measured = _measured([0.1, 0.1, 0.1, -0.1, -0.01], variance=1.0, count=2)
    assignment = np.array([0, 0, 1, 1, 2])
    plain = prove_grouping(assignment, measured, method="Auto", serve_best=True)
    assert not plain.verdict.grouped
    assert not plain.served_by_cluster(5).any()
    kept = prove_grouping(assignment, measured, method="Auto", serve_best=True, proven_before=True)
    # The whole gains (0.1 · 3 − 0.1 − 0.01)/5 = 0.038; cluster 0 gains 0.1, cluster 1 (0.1 − 0.1)/2 = 0.
    assert kept.verdict.grouped
    assert kept.verdict.gain == pytest.approx(0.038)
    assert kept.served_by_cluster(5).tolist() == [True, True, False, False, False]
    assert not any(each.proven for each in kept.clusters)
    assert "held-out rows showed them to be better during training" in kept.verdict.text
    assert kept.verdict.text.endswith(
        "; 3 clients of clusters 1 and 2 are served the model for all, as theirs was not shown to be better"
    )


def test_splits_that_were_proven_before_go_where_they_lose() -> None:
    measured = _measured([-0.1, -0.1, 0.05, 0.05], variance=1.0, count=2)
    found = prove_grouping(
        np.array([0, 0, 1, 1]), measured, method="Auto", serve_best=True, proven_before=True
    )
    assert not found.verdict.grouped  # (−0.2 + 0.1)/4 < 0
    assert found.verdict.text.startswith("Train one model for all: ")
    assert found.served_by_cluster(4).tolist() == [False] * 4


def test_one_cluster_gains_nothing_over_itself() -> None:
    found = prove_grouping(np.zeros(3), _measured([0.1] * 3), method="Auto", proven_before=True)
    assert not found.verdict.grouped
