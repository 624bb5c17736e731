import pytest

from fedclust.data.sites.agreement import Agreement, Categories, Numbers
from fedclust.data.sites.late import unfit_for
from fedclust.data.sites.statement import CATEGORY, EMPTY, NUMBER, Column, Pixels, Statement

AGREED = Agreement(
    ("no", "yes"), ("no", "yes"), (3,), (Numbers("dose", 0.0, 1.0),), (Categories("ward", ("a",), (True,)),)
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
