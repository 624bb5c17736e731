"""Label counts of a client that comes later."""

import numpy as np
import pytest

from fedclust.clustering.clust_psi_pfl import Parameters
from fedclust.clustering.clust_psi_pfl.placement import LabelRule

# Clients 0 and 1 have classes 0 and 1, clients 2 and 3 classes 2 and 3.
COUNTS = np.array([[30, 10, 0, 0], [10, 30, 0, 0], [0, 0, 30, 10], [0, 0, 10, 30]])
OURS = LabelRule(COUNTS, np.array([0, 0, 1, 1]))


def test_the_features_of_a_newcomer_and_the_centres_by_hand() -> None:
    # q = 1/4 for every class. P of the newcomer [0, 0, 7, 0]: (0 + 1/4)/8 = 1/32 and (7 + 1/4)/8 = 29/32.
    few, many = 1 / 32, 29 / 32

    def feature(share: float) -> float:
        return np.sign(share - 0.25) * np.sqrt((share - 0.25) * np.log(share / 0.25))

    newcomer = np.array([feature(few), feature(few), feature(many), feature(few)])
    # A client of 40 rows with 30, 10, 0, 0 of the classes: 30.25/41, 10.25/41, 0.25/41.
    high, low, none = (feature((number + 0.25) / 41) for number in (30, 10, 0))
    centres = np.array([[(high + low) / 2] * 2 + [none] * 2, [none] * 2 + [(high + low) / 2] * 2])
    found = OURS.place(np.array([0, 0, 7, 0]))
    assert found.cluster == 1
    by_hand = np.sqrt(((newcomer - centres) ** 2).sum(axis=1))
    np.testing.assert_allclose([found.evidence["distances"][each] for each in ("0", "1")], by_hand)


def test_larger_clients_weigh_more_in_our_centres_only() -> None:
    counts = np.array([[90, 0, 0], [0, 10, 0], [0, 0, 50]])
    ours, papers = (
        LabelRule(counts, np.array([0, 0, 1])),
        LabelRule(counts, np.array([0, 0, 1]), Parameters()),
    )
    rows = ours._features(counts)
    np.testing.assert_allclose(ours.centres()[1][0], 0.9 * rows[0] + 0.1 * rows[1])
    rows = papers._features(counts)
    np.testing.assert_allclose(papers.centres()[1][0], (rows[0] + rows[1]) / 2)


def test_a_client_like_neither_is_in_none() -> None:
    # Three clusters of two classes each lie close together; a client of a seventh class alone is far off.
    counts = np.zeros((6, 7), dtype=int)
    for client in range(6):
        counts[client] = 20
        counts[client, client // 2] = 40
    counts[:, 6] = 1
    found = LabelRule(counts, np.repeat([0, 1, 2], 2)).place(np.array([0, 0, 0, 0, 0, 0, 50]))
    assert found.cluster is None
    assert "farther than another cluster's is" in found.reason


def test_without_rows_or_with_one_cluster() -> None:
    assert OURS.place(np.zeros(4, dtype=int)).cluster is None
    assert LabelRule(COUNTS, np.zeros(4, dtype=int)).place(np.zeros(4, dtype=int)).cluster == 0


@pytest.mark.parametrize("paper", [None, Parameters(epsilon=1e-3, smoothing="add")])
def test_a_rule_that_is_read_back_places_alike(paper) -> None:
    rule = LabelRule(COUNTS, np.array([0, 0, 1, 1]), paper)
    packed = {name: np.asarray(array) for name, array in rule.pack().items()}
    for newcomer in ([5, 5, 0, 0], [0, 1, 9, 9]):
        assert LabelRule.unpack(packed).place(np.array(newcomer)) == rule.place(np.array(newcomer))


@pytest.mark.parametrize("paper", [None, Parameters()])
@pytest.mark.parametrize("client", range(4))
def test_a_client_that_was_there_goes_where_it_was(paper, client) -> None:
    # The paper's index has no sign: a surplus of classes 0 and 1 still differs from one of 2 and 3 by column.
    rule = LabelRule(COUNTS, np.array([0, 0, 1, 1]), paper)
    expected = client // 2
    assert rule.place(COUNTS[client]).cluster == expected
