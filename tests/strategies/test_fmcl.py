import numpy as np
import pytest

from fedclust.clustering import fmcl, prototype_groups
from fedclust.strategies import FMCL


def _two_looks(client: int) -> list[list[float]]:
    """Class prototypes along one axis for even clients, along another for odd ones, slightly apart."""
    tilt = 0.01 * client
    return [[1.0, tilt], [1.0, -tilt]] if client % 2 == 0 else [[tilt, 1.0], [-tilt, 1.0]]


def _two_conventions(client: int) -> list[list[float]]:
    """Two classes that lie 10 apart, whose names are swapped on odd clients."""
    return [[0.0, 0.0], [10.0, 0.0]] if client % 2 == 0 else [[10.0, 0.0], [0.0, 0.0]]


def _run(started, parameters, num_nodes: int = 1, **behaviour) -> FMCL:
    return started(FMCL(parameters=parameters), 1, num_nodes, **{"counts": lambda _: [5, 5], **behaviour})


def test_findings(started, watch) -> None:
    strategy = _run(started, None, 2, prototypes=_two_conventions)
    assert watch.assignments == [(0, [0, 1] * 3, "before round 1")]
    found = strategy.findings(strategy.clusters)
    # b: the two prototypes of a client are 10² apart, of which chance, with variance 1 and 5 examples each,
    # makes 1/5 + 1/5.
    separation = 100 - 0.4
    assert found.summary["class_separation"] == pytest.approx(separation)
    # S over two classes, each with h = 1/(1/5 + 1/5), where a difference counts from b/4 on: clients of one
    # convention are 0 - 0.4 apart, others 100 - 0.4.
    alike, others = (2 * 2.5 * (apart - 0.4 - separation / 4) for apart in (0, 100))
    same = np.equal.outer(np.arange(6) % 2, np.arange(6) % 2)
    expected = np.where(same, alike, others) * (1 - np.eye(6))
    np.testing.assert_allclose(found.arrays["evidence"], expected, rtol=1e-9)
    np.testing.assert_array_equal(found.clients["prototype_group"], [0, 1] * 3)
    # F = 2 classes · 6 clients · 5 examples · 5² / (2 · 5) = 150 with 10 and 48 degrees of freedom; inside
    # the groups nothing differs. Label counts are all the same, so X² = 0 and p = 1 in each group.
    assert found.summary["p_value"] < 1e-6
    assert found.summary["explained"] == {"0.25": 1.0}
    alike_counts = {"p_value": 1.0, "error_ratios": {}}
    assert found.summary["labels"] == {"0": alike_counts, "1": alike_counts}
    assert found.summary["decision"] == (
        "2 clusters: clients' class prototypes form 2 groups, which explain 100 % of their differences "
        "(p < 0.001); label counts split none of them"
    )


def _disjoint(started, parameters) -> FMCL:
    """Run 8 clients that agree on four classes, of which even ones have two and odd ones the other two."""
    return _run(
        started,
        parameters,
        num_clients=8,
        counts=lambda client: [10, 10, 0, 0] if client % 2 == 0 else [0, 0, 10, 10],
        prototypes=lambda _: [[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]],
        scatter=lambda _: [1.0] * 4,
    )


def test_label_counts_split_clients_whose_prototypes_agree(started) -> None:
    strategy = _disjoint(started, None)
    assert strategy.assignment.tolist() == [0, 1] * 4
    found = strategy.findings(strategy.clusters)
    assert found.summary["num_prototype_groups"] == 1
    assert list(found.summary["labels"]["0"]["error_ratios"]) == ["2"]  # 0.359, see test_clust_psi_pfl.py
    np.testing.assert_array_equal(found.arrays["error_ratio_numbers"], [2])
    assert found.summary["decision"].startswith("2 clusters: clients' class prototypes differ no more than")
    assert found.summary["decision"].endswith("to make 0.36 of one model's error, below the limit of 0.70")


def test_label_counts_need_not_be_asked(started) -> None:
    strategy = _disjoint(started, prototype_groups.Parameters(labels=None))
    assert strategy.assignment.tolist() == [0] * 8
    found = strategy.findings(strategy.clusters)
    assert found.summary["labels"] == {}
    assert found.summary["decision"] == (
        "one cluster: clients' class prototypes differ no more than chance explains (p = 1)"
    )


def test_no_matrix_of_more_clients_than_are_compared_at_a_time(started) -> None:
    strategy = _run(started, prototype_groups.Parameters(chunk=5), prototypes=_two_conventions)
    assert strategy.assignment.tolist() == [0, 1] * 3
    assert strategy.findings(strategy.clusters).arrays == {}


def test_findings_of_the_papers_rule(started) -> None:
    strategy = _run(started, fmcl.Parameters(), num_clients=4, prototypes=_two_looks)
    assert strategy.assignment.tolist() == [0, 1] * 2
    distances = strategy.findings(strategy.clusters).arrays["distances"]
    assert distances.shape == (4, 4)
    # Clients 0 and 2 share both classes with weight 1/2: cosine distance of (1, 0) and (1, 0.02), with
    # epsilon 1e-3 in the denominators; overlap 1 scales by 1.
    cosine = 1 - 1 / (np.sqrt(1 + 0.02**2) + 1e-3)
    np.testing.assert_allclose(distances[0, 2], cosine / (1 + 1e-3), rtol=1e-4)
    assert strategy.findings(strategy.clusters).summary["variation"] > 0


def test_classes_with_few_examples_do_not_count_even_if_they_are_sent(started) -> None:
    # Class 0 differs between even and odd clients but has 4 examples; class 1, of 5, is the same for all.
    def looks(client: int) -> list[list[float]]:
        return [[0.0, 100.0 * (client % 2)], [10.0, 0.0]]

    given = prototype_groups.Parameters(min_examples=4)
    for parameters, expected in ((None, [0] * 6), (given, [0, 1] * 3)):
        found = _run(started, parameters, prototypes=looks, counts=lambda _: [4, 5])
        assert found.assignment.tolist() == expected


def test_it_warns_of_prototypes_of_single_examples() -> None:
    assert FMCL().cautions(10, 1) == []
    for parameters in (fmcl.Parameters(), prototype_groups.Parameters(min_examples=1)):
        (caution,) = FMCL(parameters=parameters).cautions(10, 1)
        assert caution.startswith("the prototype of a class with one example is that example's embedding")
