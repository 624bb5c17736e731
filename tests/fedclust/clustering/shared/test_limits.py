import numpy as np

from fedclust.clustering.shared.limits import limit_sizes


def test_sizes_are_limited_to_ten_times_the_median() -> None:
    # Sizes 4, 6, 8 and 800: the median is 7, the limit 70; 600 and 200 of 800 become 52.5 and 17.5, rounded
    # up. A client of 70 stays.
    counts = np.array([[2, 2], [3, 3], [4, 4], [600, 200]])
    assert limit_sizes(counts).tolist() == [[2, 2], [3, 3], [4, 4], [53, 18]]
    # Rare classes are kept: of 1,000 examples in 100 classes among clients of 1, each would become 0.1.
    many = np.vstack([np.eye(3, 100, dtype=int), np.full((1, 100), 10)])
    assert limit_sizes(many)[3].tolist() == [1] * 100
    same = np.array([[2, 2], [3, 3], [4, 4], [60, 10]])  # the median is 7 here, too
    assert limit_sizes(same) is same
    assert limit_sizes(np.array([[1, 0], [10**9, 0]])).tolist() == [[1, 0], [10**9, 0]]  # of two, which?
