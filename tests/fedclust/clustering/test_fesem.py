import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.fesem import Parameters, distances, first_groups, nearest


def _model(*values: float) -> dict[str, np.ndarray]:
    return {"w": np.array(values[:-1], dtype=np.float32), "b": np.array(values[-1], dtype=np.float32)}


def test_distances_are_squared_and_over_all_arrays() -> None:
    models, centres = [_model(1, 2, 3), _model(0, 0, 0)], [_model(0, 0, 1), _model(1, 2, 3)]
    # (1² + 2² + 2²) = 9 and 0; 1 and 1 + 4 + 9 = 14.
    np.testing.assert_array_equal(distances(models, centres), [[9, 0], [1, 14]])
    np.testing.assert_array_equal(nearest(models, centres), [1, 0])


def test_whole_numbers_do_not_count() -> None:
    one = {"w": np.array([1.0]), "batches": np.array(3)}
    other = {"w": np.array([2.0]), "batches": np.array(300)}
    np.testing.assert_array_equal(distances([one], [other]), [[1.0]])


def test_the_first_centre_wins_a_tie() -> None:
    np.testing.assert_array_equal(nearest([_model(0, 0)], [_model(1, 0), _model(-1, 0)]), [0])


def test_first_groups_are_those_of_k_means_on_the_weights() -> None:
    models = [_model(value, value, 0) for value in (5.0, 5.2, -1.0, 5.1, -1.3)]
    np.testing.assert_array_equal(first_groups(models, Parameters(), seed=0), [0, 0, 1, 0, 1])


def test_models_that_are_the_same_are_one_group() -> None:
    np.testing.assert_array_equal(first_groups([_model(1, 2)] * 4, Parameters(), seed=0), [0, 0, 0, 0])
    np.testing.assert_array_equal(first_groups([_model(1, 2)], Parameters(), seed=0), [0])


@settings(max_examples=15, deadline=None)
@given(arrays(np.float64, (7, 3), elements=st.integers(-20, 20)))
def test_no_model_is_nearer_to_the_mean_of_another_group(values: np.ndarray) -> None:
    """What k-means ends with, on the weights themselves, whatever the coordinates it was given."""
    labels = first_groups([{"w": row} for row in values], Parameters(num_clusters=3, num_starts=1), seed=1)
    means = np.stack([values[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    apart = np.square(values[:, np.newaxis] - means).sum(axis=2)
    assert (apart[np.arange(7), labels] <= apart.min(axis=1) + 1e-6).all()
