import numpy as np
import pytest

from fedclust.clustering.fedclust_weights import Parameters, assign, last_layer

SHAPES = {
    "first.weight": (8, 4),
    "first.bias": (8,),
    "norm.weight": (8,),
    "head.weight": (3, 8),
    "head.bias": (3,),
    "temperature": (),
}


def test_the_last_layer_is_the_last_weight_matrix_and_its_bias() -> None:
    assert last_layer(SHAPES) == ("head.weight", "head.bias")
    assert last_layer(SHAPES, "first") == ("first.weight", "first.bias")
    assert last_layer({"weight": (3, 2), "bias": (3,)}) == ("weight", "bias")


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="layer must be one of first, head, got 'nose'"):
        last_layer(SHAPES, "nose")
    with pytest.raises(ValueError, match=r"must have a layer with a weight matrix, its arrays are \['w'\]"):
        last_layer({"w": (2,)})


def test_clients_are_as_far_apart_as_their_weights() -> None:
    labels, report = assign(np.array([[0.0, 0], [30, 40], [1, 0], [30, 41]]), Parameters())
    assert labels.tolist() == [0, 1, 0, 1]
    assert report.distances[0, 1] == 50
    assert assign(np.array([[0.0, 0], [3, 4], [1, 0]]), Parameters(threshold=1.0))[0].tolist() == [0, 1, 0]
