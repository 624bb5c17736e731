"""Labels renamed and images corrupted, on images small enough to work out by hand."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedclust.data import shifts
from fedclust.data.shifts import Blur, FlipLabels, Invert, Noise, Opposite, Relabel, Rotate
from fedclust.data.targets import Amounts, Times, to_text

SQUARE = torch.tensor([[[[10, 20], [30, 40]]]], dtype=torch.uint8)
LABELS = torch.tensor([1])


def draws() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("permutation", "labels", "expected"),
    [((2, 0, 1), [0, 1, 2, 1], [2, 0, 1, 0]), ((1, 0), [[0, 1, 1], [0, 0, 1]], [[1, 0, 0], [1, 1, 0]])],
)
def test_relabel_names_class_c_by_entry_c_and_leaves_inputs(permutation, labels, expected) -> None:
    inputs, renamed = Relabel(permutation).apply(SQUARE, torch.tensor(labels), draws())
    assert inputs is SQUARE
    assert renamed.tolist() == expected


def test_invert_is_255_minus_each_pixel() -> None:
    inputs, labels = Invert().apply(SQUARE, LABELS, draws())
    assert inputs.tolist() == [[[[245, 235], [225, 215]]]]
    assert inputs.dtype == torch.uint8
    assert labels is LABELS


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (90, [[20, 40], [10, 30]]),  # counter-clockwise: the right column becomes the top row
        (180, [[40, 30], [20, 10]]),
        (-90, [[30, 10], [40, 20]]),
        (360, [[10, 20], [30, 40]]),
    ],
)
def test_rotation_by_right_angles_moves_pixels(degrees: float, expected: list[list[int]]) -> None:
    inputs, labels = Rotate(degrees).apply(SQUARE, LABELS, draws())
    assert inputs.tolist() == [[expected]]
    assert labels is LABELS


def test_rotation_by_other_angles_turns_the_same_way_and_blackens_corners() -> None:
    # A bright spot right of the centre of 5 x 5: by 45 degrees counter-clockwise it goes up and right.
    image = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    image[0, 0, 2, 4] = 200
    turned, _ = Rotate(45).apply(image, LABELS, draws())
    assert turned.dtype == torch.uint8
    row, column = divmod(int(turned.argmax()), 5)
    assert row < 2 < column
    # A corner of 9 x 9 is 5.7 pixels from the centre, the border 4.5.
    white, _ = Rotate(45).apply(torch.full((1, 1, 9, 9), 255, dtype=torch.uint8), LABELS, draws())
    assert white[0, 0, 0, 0] == 0
    assert white[0, 0, 4, 4] == 255


def test_blur_spreads_a_point_as_a_gaussian_within_its_channel() -> None:
    image = torch.zeros(1, 2, 7, 7, dtype=torch.uint8)
    image[0, 0, 3, 3] = 255
    blurred, labels = Blur(1.0).apply(image, LABELS, draws())
    # A kernel of variance 1 on whole pixels: exp(-d^2 / 2), cut at 4 pixels, summing to 1 in each direction.
    kernel = np.exp(-0.5 * np.arange(-4, 5) ** 2.0)
    kernel = (kernel / kernel.sum())[1:-1]
    np.testing.assert_allclose(blurred[0, 0], 255 * np.outer(kernel, kernel), atol=1)
    assert not blurred[0, 1].any()
    assert labels is LABELS
    even = torch.full((2, 1, 4, 4), 77, dtype=torch.uint8)
    assert Blur(3.0).apply(even, LABELS, draws())[0].eq(77).all()


def test_noise_has_the_given_spread_and_keeps_the_range() -> None:
    image = torch.full((50, 1, 20, 20), 128, dtype=torch.uint8)
    noisy, labels = Noise(0.1).apply(image, LABELS, draws())
    assert noisy.dtype == torch.uint8
    # 20,000 pixels: the standard error of the mean is 25.5 / 141 = 0.18, of the spread 0.13.
    assert float(noisy.float().mean()) == pytest.approx(128, abs=1)
    assert float(noisy.float().std()) == pytest.approx(25.5, abs=0.7)
    assert labels is LABELS
    assert Noise(10.0).apply(image, LABELS, draws())[0].unique().numel() > 2  # clipped, not wrapped around


def test_noise_on_numbers_is_in_their_own_units() -> None:
    numbers = torch.zeros(5000, 2)
    noisy, _ = Noise(3.0).apply(numbers, LABELS, draws())
    assert noisy.dtype == torch.float32
    assert stats.kstest(noisy.numpy().ravel() / 3.0, "norm").pvalue > 0.01
    assert not numbers.any()


TOKENS = torch.ones(1, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Relabel((0, 0, 1)), r"each class 0 to 2 once, got \[0, 0, 1\]"),
        (lambda: Relabel((1, 0)).apply(SQUARE, torch.tensor([2]), draws()), "permutation's 2 classes, got 2"),
        (lambda: Noise(0.1).apply(TOKENS, LABELS, draws()), "noise needs uint8 images or .*got torch.int64"),
        (lambda: Blur(1.0).apply(TOKENS, LABELS, draws()), "blur needs uint8 images of shape"),
        (lambda: Rotate(90).apply(TOKENS, LABELS, draws()), "rotation needs uint8 images of shape"),
        (lambda: Invert().apply(TOKENS, LABELS, draws()), "inversion needs uint8 images of shape"),
        (lambda: Rotate(90).apply(SQUARE[:, :, :1], LABELS, draws()), "needs square images, got 1 x 2"),
        (lambda: Noise(-0.1), r"std must be >= 0, got -0\.1"),
        (lambda: Blur(-1), "sigma must be >= 0, got -1"),
        (lambda: FlipLabels(0), "most must be >= 1, got 0"),
        (lambda: FlipLabels(1).apply(SQUARE, LABELS, draws()), "int64 tokens with a label each"),
        (lambda: FlipLabels(1).apply(TOKENS, LABELS, draws()), r"labels of \(1,\)"),
        (lambda: FlipLabels(1).apply(TOKENS, 2 * TOKENS, draws()), "must be 0 or 1, got 2"),
        (lambda: Relabel((1, 0)).apply(SQUARE, torch.tensor([0.5]), draws()), "must be classes, got amounts"),
        (lambda: Opposite(""), "target must be amounts or times, got classes"),
        (lambda: shifts.shift_from_dict({"kind": "sepia"}), r"must be one of \['blur', .*\], got 'sepia'"),
        (lambda: shifts.shift_from_dict({"kind": "blur", "std": 1.0}), "must have the values sigma, got std"),
    ],
)
def test_what_means_nothing_is_refused(made, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


AMOUNTS = Opposite(to_text(Amounts(0.0, 10.0, (5.0,))))
TIMES = Opposite(to_text(Times((10.0,), 90.0)))


def test_amounts_are_mirrored_and_risks_turned_round() -> None:
    inputs, mirrored = AMOUNTS.apply(SQUARE, torch.tensor([1.0, 5.0, 12.0]), draws())
    assert (mirrored.tolist(), mirrored.dtype) == ([9.0, 5.0, -2.0], torch.float32)
    assert inputs is SQUARE
    rows = torch.tensor([[30.0, 1.0], [10.0, 1.0], [80.0, 0.0], [10.0, 0.0]])
    _, turned = TIMES.apply(SQUARE, rows, draws())
    # Of 4 rows 3/4 survive 10, and of the 2 that are left then, half survive 30: 3/8. So rows are outlived by
    # 3/8, 3/4, and if censored 3/16 and 3/8 of all: rows 2, 0, 3, 1 in this order get 1's, 3's, 0's, 2's.
    assert turned.tolist() == [[10, 0], [80, 0], [10, 1], [30, 1]]
    assert rows[0].tolist() == [30.0, 1.0]


@pytest.mark.parametrize(
    "shift", [Relabel((1, 0)), Noise(0.2), Blur(2), Rotate(45), Invert(), FlipLabels(2), AMOUNTS, TIMES]
)
def test_a_shift_survives_being_written_as_plain_values(shift: shifts.Shift) -> None:
    assert shifts.shift_from_dict(shifts.shift_to_dict(shift)) == shift


def test_labels_are_flipped_at_the_most_frequent_tokens_only() -> None:
    tokens, labels = torch.tensor([[1, 2, 3], [0, 2, 9]]), torch.tensor([[0, 1, 1], [0, 0, 1]])
    same, flipped = FlipLabels(2).apply(tokens, labels, np.random.default_rng(0))
    # Tokens 1 and 2 are flipped; 0 is an unknown base and stays, as do 3 and 9.
    assert flipped.tolist() == [[1, 0, 1], [0, 1, 1]]
    assert same is tokens
    assert labels.tolist() == [[0, 1, 1], [0, 0, 1]]
    assert FlipLabels(2).apply(tokens, flipped, np.random.default_rng(0))[1].tolist() == labels.tolist()
