"""Who joined and who left, by hand."""

import numpy as np
import pandas as pd

from fedclust.federation.attendance import Attendance
from fedclust.results.attendance import attended, attended_summary


def test_who_left_is_told_even_if_it_was_never_asked_to_measure() -> None:
    # Client 0 is there; 1 measured 0.5 in round 2 and left; 2 left before a sample had it; 3 is there and was
    # in no sample yet.
    attendance = Attendance(
        np.array([True, False, False, True]), np.array([4, 2, 0, 0]), np.array([0.75, 0.5, np.nan, np.nan])
    )
    columns = attended(np.zeros(4, dtype=np.int64), attendance, 4)
    assert columns["left"].tolist() == [False, True, True, False]
    assert attended_summary(pd.DataFrame({"client": range(4), **columns}))["left"] == [
        {"client": 1, "last_round": 2, "last_accuracy": 0.5},
        {"client": 2, "last_round": 0, "last_accuracy": None},
    ]


def test_nobody_left_and_nobody_joined() -> None:
    assert attended(np.zeros(2, dtype=np.int64), Attendance.of(2), 4) == {}
