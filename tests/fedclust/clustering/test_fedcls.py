import numpy as np

from fedclust.clustering.fedcls import choose, label_vectors


def test_a_class_counts_from_its_share_on() -> None:
    counts = np.array([[3, 26, 1], [0, 0, 5], [0, 0, 0]])
    # Of 30 samples 3 are exactly a tenth, 1 is less.
    np.testing.assert_array_equal(label_vectors(counts, 0.1), [[1, 1, 0], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(label_vectors(counts, 0.95), [[0, 0, 0], [0, 0, 1], [0, 0, 0]])


def test_three_label_vectors() -> None:
    # Hamming distances: 0–1 one, 0–2 four, 1–2 three.
    vectors = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1]], dtype=bool)
    second = {0: 2, 1: 2, 2: 0}
    seen = set()
    for seed in range(40):
        order = choose(vectors, 3, np.random.default_rng(seed)).tolist()
        seen.add(order[0])
        assert order[1] == second[order[0]]
        assert sorted(order) == [0, 1, 2]
    assert seen == {0, 1, 2}


def test_distances_to_all_who_were_chosen_are_added_up() -> None:
    # From 0: client 1 is one class away, 2 three, 3 four. So 3 follows 0, from which both 1 and 2 are three
    # away: 1 has 1 + 3 = 4 in all, 2 has 3 + 3 = 6.
    vectors = np.array([[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 0]], dtype=bool)
    orders = {tuple(choose(vectors, 3, np.random.default_rng(seed)).tolist()) for seed in range(60)}
    assert {order for order in orders if order[0] == 0} == {(0, 3, 2)}
