import numpy as np
import pytest

from fedclust.strategies import Local


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_everyone_trains_alone_in_every_round(started, num_nodes: int) -> None:
    strategy = started(Local(participation=0.5), 2, num_nodes)
    assert strategy.assignment.tolist() == [0, 1, 2, 3, 4, 5]
    # Client k adds k in each of two rounds.
    models = [model["w"].numpy()[0] for model in strategy.clusters.models]
    np.testing.assert_array_equal(models, [0, 2, 4, 6, 8, 10])


def test_a_client_that_fails_keeps_its_model(toy) -> None:
    strategy = Local()
    error = {"error": lambda client, server_round: "gone" if (client, server_round) == (3, 2) else None}
    strategy.start(toy(**error).grid(), toy.model(), num_rounds=2)
    models = [model["w"].numpy()[0] for model in strategy.clusters.models]
    np.testing.assert_array_equal(models, [0, 2, 4, 3, 8, 10])
    assert strategy.run.failed_replies == 1
