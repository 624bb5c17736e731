import numpy as np
import pytest

from fedclust.data.input_encoders import CategoryColumn, NumberColumn
from fedclust.data.sites.agreement import (
    CATEGORY,
    EMPTY,
    NUMBER,
    Agreement,
    Column,
    Moments,
    Pixels,
    Statement,
    other_units,
    unfit_for,
)

AGREED = Agreement(
    ("no", "yes"),
    ("no", "yes"),
    (3,),
    (NumberColumn("dose", 0.0, 0.0, 1.0),),
    (CategoryColumn("ward", ("a",), (True,)),),
)
DOSE, WARD = Column(NUMBER), Column(CATEGORY, values=("a", "c"), trained=(True, True))


@pytest.mark.parametrize(
    ("labels", "columns", "reason"),
    [
        (("no", "yes"), {"dose": DOSE, "ward": WARD}, None),  # ward c is new, and no reason
        (("yes",), {"dose": DOSE, "ward": Column(EMPTY), "more": DOSE}, None),
        (("no", "perhaps"), {"dose": DOSE, "ward": WARD}, "labels must be among no, yes, got perhaps"),
        (("no",), {"ward": WARD}, "it lacks the columns dose, which the run uses"),
        (("no",), {"dose": WARD, "ward": WARD}, "column dose must hold numbers as in the run, got texts"),
        (
            ("no",),
            {"dose": Column(NUMBER, unfit="all differ"), "ward": WARD},
            "column dose looks like an identifier or a date (all differ)",
        ),
    ],
)
def test_tables(labels: tuple, columns: dict, reason: str | None) -> None:
    assert unfit_for(Statement(labels, columns), AGREED) == reason


def test_images() -> None:
    colour = Agreement(("a", "b"), ("a", "b"), (3, 8, 8), mean=(0.1,) * 3, std=(0.2,) * 3)
    assert unfit_for(Statement(("a",), pixels=(Pixels(1, 2, 4),) * 3), colour) is None
    assert unfit_for(Statement(("a",), pixels=(Pixels(1, 2, 4),)), colour) == (
        "images must have 3 channels, got 1"
    )


def test_a_column_in_another_unit_is_pointed_out() -> None:
    # In the run ages have mean 40 and deviation 30: their root mean square is 50 years.
    agreed = Agreement(("a", "b"), ("a", "b"), (1,), (NumberColumn("age", 40.0, 40.0, 30.0),))

    def said(*ages: float) -> list[str]:
        return other_units(
            "west", Statement(("a",), {"age": Column(NUMBER, Moments.of(np.array(ages)))}), agreed
        )

    assert said(10.0, 70.0) == []  # root mean square 50
    assert said(480.0, 360.0) == []  # 424 / 50 is less than 10
    assert said(600.0, 600.0) == [
        "west: column age may be in another unit: its values are about 600, those of the other sites 50"
    ]
    assert len(said(4.0, 4.0)) == 1  # less than a tenth
    assert said(0.0, 0.0) == []  # of zeros no unit is known
