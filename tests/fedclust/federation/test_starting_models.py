import numpy as np
import torch
from torch import nn

from fedclust.federation import starting_models
from fedclust.messages.models import from_state


def test_the_first_is_given_the_others_depend_on_the_seed_only() -> None:
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    given = from_state(network.state_dict())
    three, again, fewer = (starting_models(network, given, number, seed=5) for number in (3, 3, 2))
    assert three[0] is given
    for one, other in zip(three, again, strict=True):
        np.testing.assert_array_equal(one["weight"].numpy(), other["weight"].numpy())
    np.testing.assert_array_equal(three[1]["weight"].numpy(), fewer[1]["weight"].numpy())
    other_seed = starting_models(network, given, 2, seed=6)
    weights = [model["weight"].numpy().tobytes() for model in (*three, other_seed[1])]
    assert len(set(weights)) == 4
