import numpy as np

from fedclust.federation.imbalance import imbalance_line


def test_the_line_by_hand() -> None:
    counts = np.array([[10, 30], [0, 50], [5, 5]])
    line = imbalance_line(counts, ("ill", "well"), ("north", "south", "west"))
    # 15 of 100 rows are ill, 85 well
    assert line == (
        "classes: largest well 85.0%, smallest ill 15.0% of 100 training rows; "
        "1 of 3 clients lack a class: south ill"
    )


def test_many_clients_and_classes_stay_one_line() -> None:
    line = imbalance_line(np.eye(6, dtype=int))
    assert line == (
        "classes: largest 0 16.7%, smallest 0 16.7% of 6 training rows; 6 of 6 clients lack a class: "
        "0 1, 2, 3 and 2 more; 1 0, 2, 3 and 2 more; 2 0, 1, 3 and 2 more and 3 more"
    )
    assert imbalance_line(np.ones((2, 2))).endswith("of 4 training rows; every client has every class")
