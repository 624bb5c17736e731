from collections.abc import Callable

import numpy as np
import pytest

from fedclust.federation import Federation
from fedclust.selection import Candidates


@pytest.fixture
def candidates(toy) -> Callable[..., Candidates]:
    """Make candidates of toy clients; the loss of client k under the model is k, who fails is named."""

    def make(clients: list[int], num_clients: int = 8, failing=(), **behaviour) -> Candidates:
        error = {"error": lambda client, _: "gone" if client in failing else None}
        made = toy(num_clients=num_clients, **error, **behaviour)
        return Candidates(np.array(clients), toy.model(), 1, Federation(made.grid()))

    return make
