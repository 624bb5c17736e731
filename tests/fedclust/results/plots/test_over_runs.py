import numpy as np
import pytest
from matplotlib.axes import Axes

from fedclust.results.plots.over_runs import accuracy_bands, accuracy_over_clients, mean_and_band, sweep_map

ROUNDS = np.array([1, 2, 3])
FIRST, SECOND = (ROUNDS, np.array([0.2, 0.4, 0.6])), (ROUNDS[1:], np.array([0.6, 1.0]))


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_mean_and_band_by_hand() -> None:
    # Both have rounds 2 and 3: means 0.5 and 0.8; two values d apart have sample deviation d / sqrt(2).
    rounds, mean, low, high = mean_and_band([FIRST, SECOND])
    assert rounds.tolist() == [2, 3]
    np.testing.assert_allclose(mean, [0.5, 0.8])
    np.testing.assert_allclose(high - mean, [0.2 / np.sqrt(2), 0.4 / np.sqrt(2)])
    np.testing.assert_allclose(mean - low, high - mean)
    _, _, low, high = mean_and_band([FIRST, SECOND], "range")
    np.testing.assert_allclose([low, high], [[0.4, 0.6], [0.6, 1.0]])
    _, mean, low, high = mean_and_band([FIRST])
    assert mean.tolist() == low.tolist() == high.tolist() == [0.2, 0.4, 0.6]


def test_a_line_per_method_and_a_band_over_its_seeds() -> None:
    figure = accuracy_bands(
        {"α 0.1": {"fmcl": [FIRST, SECOND], "fedavg": [FIRST]}, "α 1": {"fedavg": [SECOND]}}
    )
    upper, lower = figure.axes
    several, single = upper.get_lines()
    np.testing.assert_allclose(several.get_ydata(), [0.5, 0.8])
    np.testing.assert_allclose(single.get_ydata(), [0.2, 0.4, 0.6])
    (band,) = upper.collections  # of the method with two seeds
    heights = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [0.5 - 0.2 / 2**0.5, 0.8 + 0.4 / 2**0.5])
    assert not lower.collections
    assert legend(figure) == ["fmcl", "fedavg"]
    assert figure.legends[0].get_title().get_text() == (
        "mean over 1 to 2 seeds; band: ± sample standard deviation"
    )
    # One method looks the same in both panels, another one differs in colour and dashes.
    (again,) = lower.get_lines()
    assert (again.get_color(), again.get_linestyle()) == (single.get_color(), single.get_linestyle())
    assert several.get_color() != single.get_color()
    assert several.get_linestyle() != single.get_linestyle()


@pytest.mark.parametrize(("width", "inches"), [("column", 3.4), ("page", 7.0)])
def test_sizes_of_a_column_and_a_page_with_letters_of_7_points_or_more(width, inches) -> None:
    figure = accuracy_bands({"α 0.1": {"fmcl": [FIRST]}}, width)
    assert figure.get_figwidth() == inches
    figure.draw_without_rendering()
    axes = figure.axes[0]
    texts = [
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
        axes.xaxis.label,
        *figure.legends[0].get_texts(),
    ]
    assert min(text.get_fontsize() for text in texts) >= 7


def points(axes: Axes) -> list[list[float]]:
    return [sorted(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "o"]


def test_boxes_are_at_the_quartiles_and_every_client_is_a_point() -> None:
    accuracies = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    figure = accuracy_over_clients({"": {"ifca": accuracies, "fmcl": accuracies[:1]}})
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ifca", "fmcl"]
    assert points(axes) == [accuracies.tolist(), [0.0]]
    box, whiskers = axes.get_lines()[1:2][0], axes.get_lines()[2:4]
    # Quartiles of five numbers are the second and the fourth.
    assert [min(box.get_xdata()), max(box.get_xdata())] == [0.25, 0.75]
    assert [line.get_xdata().tolist() for line in whiskers] == [[0.25, 0.0], [0.75, 1.0]]
    diamonds = [line.get_xdata().tolist() for line in axes.get_lines() if line.get_marker() == "D"]
    assert diamonds == [[0.5], [0.0]]


def test_of_many_clients_only_those_outside_the_whiskers_are_points() -> None:
    figure = accuracy_over_clients({"": {"ifca": np.r_[np.full(500, 0.9), 0.1]}})
    assert not points(figure.axes[0])
    assert [0.1] in [line.get_xdata().tolist() for line in figure.axes[0].get_lines()]


def test_cells_have_mean_and_deviation() -> None:
    values = {
        ("0.1", "fmcl"): np.array([0.5, 0.7]),
        ("10", "fmcl"): np.array([0.9]),
        ("10", "ifca"): np.zeros(0),
    }
    figure = sweep_map(["0.1", "10"], ["fmcl", "ifca"], values, "accuracy", "alpha", "page")
    axes = figure.axes[0]
    shown = axes.images[0].get_array()
    np.testing.assert_allclose(shown[:, 0], [0.6, 0.9])
    assert shown.mask.tolist() == [[False, True], [False, True]]
    # 0.5 and 0.7: deviation 0.2 / sqrt(2) = 0.141.
    assert [text.get_text() for text in axes.texts] == ["0.60\n± 0.14", "0.90"]
    assert axes.get_ylabel() == "alpha"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: accuracy_bands({}), "a column has room for 1 to 4 panels, got 0"),
        (
            lambda: accuracy_bands({str(place): {"a": [FIRST]} for place in range(13)}, "page"),
            "a page has room for 1 to 12 panels, got 13",
        ),
        (
            lambda: accuracy_bands({"": {"a": [FIRST]}}, "wide"),
            "width must be one of column, page, got 'wide'",
        ),
        (lambda: mean_and_band([FIRST], "sem"), "band one of std, range, got 1, 'sem'"),
        (lambda: sweep_map(["1"], ["a"], {}, "auc"), "got none for auc"),
    ],
)
def test_one_line_says_what_cannot_be_drawn(draw, message) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
