"""What tests of strategies share."""

from collections.abc import Callable

import pytest


@pytest.fixture
def started(toy, watch) -> Callable:
    """Return what runs a strategy on toy clients, watched."""

    def start(strategy, num_rounds, num_nodes=1, *, clients=None, model=None, **behaviour):
        strategy.observer = watch
        clients = toy(**behaviour) if clients is None else clients
        strategy.start(clients.grid(num_nodes), model or toy.model(), num_rounds=num_rounds)
        return strategy

    return start
