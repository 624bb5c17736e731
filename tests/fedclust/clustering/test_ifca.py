import numpy as np

from fedclust.clustering.ifca import Parameters, best_start, choose, current_start, share_layers, start_losses


def test_a_client_takes_the_smallest_loss_and_the_first_on_a_tie() -> None:
    losses = np.array([[0.3, 0.2, 0.9], [0.5, 0.7, 0.5], [1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(choose(losses), [1, 0, 0])


def test_a_starts_loss_is_the_mean_of_what_each_client_would_choose() -> None:
    # Two starts of two models. Start 0: clients choose 1 and 2, mean 1.5; start 1: 2 and 4, mean 3.
    losses = np.array([[1.0, 3.0, 2.0, 2.5], [7.0, 2.0, 4.0, 5.0]])
    np.testing.assert_array_equal(start_losses(losses, 2), [1.5, 3.0])
    assert best_start(losses, 2) == 0
    assert best_start(losses[:, ::-1], 2) == 1
    assert best_start(np.ones((3, 4)), 2) == 0  # the first on a tie


def test_starts_train_one_after_the_other_and_then_the_kept_one() -> None:
    parameters = Parameters(restarts=3, restart_rounds=2)
    assert [current_start(number, parameters) for number in range(1, 9)] == [0, 0, 1, 1, 2, 2, 0, 0]
    assert parameters.trial_rounds == 6
    alone = Parameters(restarts=1, restart_rounds=2)
    assert [current_start(number, alone) for number in range(1, 9)] == [0] * 8
    assert alone.trial_rounds == 0


def test_all_layers_but_the_last_are_averaged_by_samples() -> None:
    models = [
        {"body": np.array([1.0, 2.0]), "count": np.array(5), "head": np.array([1.0])},
        {"body": np.array([5.0, 6.0]), "count": np.array(7), "head": np.array([2.0])},
    ]
    first, second = share_layers(models, [3.0, 1.0], frozenset({"head"}))
    # (3·1 + 1·5) / 4 = 2 and (3·2 + 1·6) / 4 = 3.
    np.testing.assert_array_equal(first["body"], [2.0, 3.0])
    np.testing.assert_array_equal(second["body"], [2.0, 3.0])
    assert (first["head"], second["head"]) == ([1.0], [2.0])
    assert (first["count"], second["count"]) == (5, 7)
