import sys
from types import SimpleNamespace

import pytest

from fedclust.support.flower import simulation_actors


def test_actors_are_those_of_flowers_simulation_if_it_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        _future_to_actor = {"future": "actor"}  # noqa: RUF012

    pool, name = Pool(), "flwr.simulation.ray_transport.ray_actor"
    monkeypatch.setitem(sys.modules, name, None)
    assert simulation_actors() == []
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(BasicActorPool=Pool))
    assert simulation_actors() == [*pool._future_to_actor.values()]
