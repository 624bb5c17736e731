import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedclust.clustering.labels import in_order_of_appearance


def test_clusters_are_numbered_as_they_first_appear() -> None:
    np.testing.assert_array_equal(in_order_of_appearance([7, 2, 7, 9, 2]), [0, 1, 0, 2, 1])
    np.testing.assert_array_equal(in_order_of_appearance([]), [])


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_numbering_keeps_who_is_with_whom(labels: list[int]) -> None:
    renamed = in_order_of_appearance(labels)
    before, after = np.array(labels), np.asarray(renamed)
    np.testing.assert_array_equal(before[:, None] == before, after[:, None] == after)
    # The next new cluster is always the next number.
    assert all(label <= max(after[:i], default=-1) + 1 for i, label in enumerate(after))
