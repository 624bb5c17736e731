import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.fedsoft import centre_shares, importance, middle


def test_importance_is_the_share_of_samples_smoothed_and_scaled() -> None:
    weights = importance(np.array([[3, 1], [4, 0], [0, 2]]), sigma=0.1)
    # 3/4 and 1/4; then 1 and max(0, 0.1), over 1.1; and the other way round.
    np.testing.assert_allclose(weights, [[0.75, 0.25], [1 / 1.1, 0.1 / 1.1], [0.1 / 1.1, 1 / 1.1]])


def test_a_centre_is_shared_by_importance_and_samples() -> None:
    weights = np.array([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0]])
    # 0.75·4 = 3 and 0.5·2 = 1 of 4; 0.25·4 = 1 and 0.5·2 = 1 of 2; nobody wants the third.
    expected = [[3 / 4, 1 / 2, 0], [1 / 4, 1 / 2, 0]]
    np.testing.assert_allclose(centre_shares(weights, np.array([4, 2])), expected)


def test_the_middle_weighs_floats_and_takes_the_largest_whole_number() -> None:
    models = [{"w": np.array([0.0, 4.0]), "n": np.array(3)}, {"w": np.array([8.0, 0.0]), "n": np.array(2)}]
    found = middle(models, np.array([[0.25, 0.75], [1.0, 0.0]]))
    np.testing.assert_array_equal(found["w"], [[6.0, 1.0], [0.0, 4.0]])
    np.testing.assert_array_equal(found["n"], [3, 3])


NUMBERS = st.floats(-5, 5)


@given(
    arrays(float, (3, 4), elements=NUMBERS),
    arrays(int, 3, elements=st.integers(1, 9)),
    arrays(float, (2, 4), elements=NUMBERS),
)
def test_the_proximal_terms_of_all_centres_are_one_around_the_middle(centres, wins, points) -> None:
    """They differ by a number that does not depend on the point, so the minimum is the same."""
    (weights,) = importance(wins[np.newaxis], 0.01)
    (point,) = middle([{"w": centre} for centre in centres], weights[np.newaxis])["w"]
    apart = [
        sum(u * np.square(w - c).sum() for u, c in zip(weights, centres, strict=True))
        - np.square(w - point).sum()
        for w in points
    ]
    assert apart[0] == pytest.approx(apart[1], abs=1e-8)
