import subprocess
import sys

import numpy as np
import pytest

from fedclust import reporting


def test_nothing_of_pytorch_is_imported() -> None:
    code = (
        "import sys, fedclust.reporting; print(sorted({'torch', 'hydra', 'ray', 'pandas'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_prototypes_are_the_means_of_classes() -> None:
    record = reporting.prototypes([[1.0, 2.0], [3.0, 4.0], [7.0, 8.0]], [0, 0, 2], 3)["prototypes"]
    assert record["prototypes"].numpy().tolist() == [[2.0, 3.0], [0.0, 0.0], [7.0, 8.0]]
    assert record["counts"].numpy().tolist() == [2, 0, 1]


def test_a_comparison_adds_up_differences_of_brier_scores() -> None:
    # Brier scores 0.5 and 0.5 of A, 0.125 and 1.125 of B; only the first two rows count.
    other, own, labels = [[0.5, 0.5]] * 3, [[0.75, 0.25]] * 3, [0, 1, 1]
    record = reporting.comparison(other, own, labels, {"rows": 2, "margin": 0.0})["difference"]
    d = np.array([0.375, -0.625])
    assert record["count"] == 2
    np.testing.assert_allclose(record["sums"], [d.sum(), (d**2).sum(), (d**3).sum()], rtol=1e-12)
    # At a margin of 0 a row multiplies what is staked by 1 + λd/4.
    np.testing.assert_allclose(record["log-wealth"][4], np.log(1 + 0.4 * d / 4).sum(), rtol=1e-9)


def test_labels_may_be_whole_numbers_as_floats() -> None:
    record = reporting.prototypes([[1.0], [3.0]], [1.0, 1.0], 2)["prototypes"]
    assert record["prototypes"].numpy().tolist() == [[0.0], [2.0]]


SHARES = "must be probabilities >= 0 that add up to 1 in each row, got"


def compared(other: object) -> object:
    return reporting.comparison(other, [[0.5, 0.5]], [0], {"rows": 1, "margin": 0.0})


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (lambda: reporting.losses([]), r"of_steps must have shape \(steps\), got \(0,\)"),
        (lambda: reporting.label_counts([0, 3], 3), "labels must be in 0 to 2, got 0 to 3"),
        (lambda: reporting.prototypes([[1.0]], [0, 0], 1), r"labels must have shape \(1\), got \(2,\)"),
        (
            lambda: reporting.comparison([[1.0]], [[1.0]], [0, 0], {"rows": 1, "margin": 0.0}),
            "must have shape",
        ),
        (lambda: reporting.label_counts([0.5], 3), r"labels must be whole numbers, got \[0.5\]"),
        (lambda: reporting.label_counts([[0, 1]], 3), r"labels must have shape \(n\), got \(1, 2\)"),
        (lambda: compared([0.5, 0.5]), r"other must have shape \(1, classes\), got \(2,\)"),
        (lambda: compared([[-2.0, 3.0]]), rf"other {SHARES} \[-2.0, 3.0\]"),  # logits
        (lambda: compared([[0.0, 0.5]]), rf"other {SHARES} \[0.0, 0.5\]"),
        (lambda: compared([[float("nan"), 0.5]]), rf"other {SHARES} \[nan, 0.5\]"),
    ],
)
def test_what_cannot_be_reported(report, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report()
