import numpy as np

from fedclust.clustering.fecfl import Parameters, assign, mean_embeddings


def test_a_clients_embedding_is_the_mean_over_its_examples() -> None:
    means = np.array([[[1.0, 0], [0, 4]], [[9, 9], [2, 2]], [[0, 0], [0, 0]]])
    # 3 examples at (1, 0) and 1 at (0, 4): (3/4, 4/4). Client 1 has none of the first class, client 2 none.
    found = mean_embeddings(means, np.array([[3, 1], [0, 5], [0, 0]]))
    np.testing.assert_allclose(found, [[0.75, 1], [2, 2], [0, 0]])


def test_directions_count_and_lengths_do_not() -> None:
    labels, report = assign(np.array([[1.0, 0], [0, 1], [50, 1], [0.1, 7]]), Parameters())
    assert labels.tolist() == [0, 1, 0, 1]
    assert report.distances[0, 1] == 1
    assert assign(np.array([[1.0, 0], [0, 1], [50, 1]]), Parameters(threshold=1.0))[0].tolist() == [0, 0, 0]
