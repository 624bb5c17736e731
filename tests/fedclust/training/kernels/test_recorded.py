"""Recorded steps: what is recorded when, what is read anew, and in which order work is queued.

Numbers against the literal loop are in ../test_trainer.py, mode "cuda_graphs".
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.training import CohortUpdate, LocalTraining, Trainer
from fedclust.training.kernels import recorded, recorded_step, recorders
from fedclust.training.losses import WeightedCrossEntropy

Work = Callable[[], None]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


def hyperparameters(**changes: Any) -> LocalTraining:
    return LocalTraining(
        **{"learning_rate": 0.1, "batch_size": 8, "epochs": 2, "mode": "cuda_graphs", **changes}
    )


def trained(trainer: Trainer, jobs: list[Any], *rounds: int, **more: Any) -> CohortUpdate:
    for server_round in rounds or (1,):
        (update,) = trainer.train(jobs, server_round, **more)
    assert not update.failed
    return update


def assert_same(one: CohortUpdate, other: CohortUpdate, tolerance: float = 0.0) -> None:
    np.testing.assert_array_equal(one.clients, other.clients)
    for name, tensor in one.state.items():
        torch.testing.assert_close(other.state[name], tensor, rtol=tolerance, atol=tolerance)
    for losses, others in zip(one.losses, other.losses, strict=True):
        np.testing.assert_allclose(others, losses, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["dropout", "batch norm", "lstm"])
@pytest.mark.parametrize("streams", [1, 2, 7])
def test_streams_change_no_bit(small: Any, kind: str, streams: int, late: Any) -> None:
    data, model = small.federation(kind), small.build(kind)
    jobs = small.jobs(data, small.start_of(model))
    options = {"momentum": 0.5, "proximal_mu": 0.3}
    found = Trainer(model, data, hyperparameters(streams=streams, **options), seed=1)
    update = trained(found, jobs, 1, 2)
    small.assert_recorded(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recorders.RECORDERS, "cpu", recorders.CallAgain)
        one = Trainer(model, data, hyperparameters(**options), seed=1)
    assert_same(trained(one, jobs, 1, 2), update)
    alone = Trainer(model, data, hyperparameters(mode="sequential", **options), seed=1, threads=1)
    assert_same(trained(alone, jobs, 1, 2), update, 2e-5)


def test_a_result_that_is_read_too_early_is_seen(
    small: Any, late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for a GPU notices what it is there for: without `end` there are no results yet."""
    data, model = small.federation(), small.build("linear")
    trainer = Trainer(model, data, hyperparameters(streams=2), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    whole = trained(trainer, jobs)
    end, ends = late.end, []

    def forgetful(lane: Any) -> None:
        ends.append(lane)
        lane.open = False

    monkeypatch.setattr(late, "end", forgetful)
    (update,) = trainer.train(jobs, 1)
    assert len(ends) == 2
    assert not any(losses.any() for losses in update.losses)
    assert all(losses.all() for losses in whole.losses)
    monkeypatch.setattr(late, "end", end)
    for lane in late.lanes:
        lane.end()


def test_lanes_take_turns(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = small.federation(sizes=(20, 20, 9)), small.build("linear")
    trainer = Trainer(model, data, hyperparameters(streams=2, epochs=1), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    trained(trainer, jobs)
    queued: list[int] = []
    both = trainer._dispatcher._recorded
    assert both is not None
    for number, lane in enumerate(both._lanes):
        for key, repeat in lane._recordings.items():
            lane._recordings[key] = lambda number=number, repeat=repeat: (queued.append(number), repeat())
    trained(trainer, jobs)
    # Steps of 8, 8 and 4 of the first two clients in turn; then lane 0 takes the third: 8 and 1.
    assert queued == [0, 1, 0, 1, 0, 1, 0, 0]


def test_a_step_is_recorded_once_per_size_of_batch(small: Any, counting: Any) -> None:
    # Clients of 20, 13, 9, 8 and 1 rows in batches of 8: sizes 8, 4, 5 and 1.
    data, model = small.federation(), small.build("linear")
    trainer = Trainer(model, data, hyperparameters(schedule="exponential", decay=0.5), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    trained(trainer, jobs, 1, 2, 3)
    assert counting.made == 4
    # The proximal term is more work, its weight a number that is read anew.
    trained(trainer, jobs, 4, proximal_mu=0.5)
    trained(trainer, jobs, 5, proximal_mu=0.1)
    assert counting.made == 8
    trained(trainer, jobs, 6)
    assert counting.made == 8


def test_each_lane_records_for_itself(small: Any, counting: Any) -> None:
    data, model = small.federation(sizes=(8, 8)), small.build("linear")
    trainer = Trainer(model, data, hyperparameters(streams=5), seed=1)
    trained(trainer, small.jobs(data, small.start_of(model)), 1, 2)
    assert counting.made == 2  # only as many lanes as clients


def test_longer_clients_need_more_room(small: Any, counting: Any) -> None:
    """Tensors of another size lie elsewhere in memory, so steps are recorded anew, and results stay right."""
    data, model = small.federation(sizes=(8, 24, 48)), small.build("dropout")
    start = small.start_of(model)
    jobs = small.jobs(data, start)
    falling = {"momentum": 0.9, "schedule": "exponential", "decay": 0.5}
    trainer = Trainer(model, data, hyperparameters(**falling), seed=1)
    alone = Trainer(model, data, hyperparameters(mode="sequential", **falling), seed=1, threads=1)
    made = []
    for server_round, some in enumerate((jobs[:1], jobs[1:2], jobs[2:], jobs), start=1):
        assert_same(trained(alone, some, server_round), trained(trainer, some, server_round), 1e-5)
        made.append(counting.made)
    # Room for 4 steps at first: 1 client of 2, of 6 (then 8) and of 12 (then 16).
    assert made == [1, 2, 3, 3]


def test_few_recordings_are_kept(small: Any, counting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_step, "_MOST", 2)
    data, model = small.federation(sizes=(8, 3, 5, 8)), small.build("linear")
    jobs = small.jobs(data, small.start_of(model))
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    made = []
    for some in (jobs[:2], jobs[:2], jobs[2:3], jobs[3:], jobs[1:2], jobs):
        trained(trainer, some)
        made.append(counting.made)
    # 8 and 3; again; 5 is a third, so only it stays; 8 and 5 fit; 3 alone; 8 and 5 besides, all in one pass.
    assert made == [2, 2, 3, 4, 5, 7]


def test_nothing_is_left_of_the_client_before(small: Any) -> None:
    data, model = small.federation("batch norm", sizes=(16, 16)), small.build("batch norm")
    for options in ({"momentum": 0.9}, {"optimizer": "adam"}, {"proximal_mu": 0.5}):
        trainer = Trainer(model, data, hyperparameters(**options), seed=1)
        start = small.start_of(model)
        jobs = small.jobs(data, {name: tensor + 1 for name, tensor in start.items()})[:1]
        jobs += small.jobs(data, start)[1:]
        both = trained(trainer, jobs)
        second = trained(Trainer(model, data, hyperparameters(**options), seed=1), jobs[1:])
        for name, tensor in second.state.items():
            torch.testing.assert_close(both.state[name][1], tensor[0], rtol=0, atol=0)


def test_weights_of_classes(small: Any) -> None:
    data, model = small.federation(), small.build("linear")
    jobs = small.jobs(data, small.start_of(model))
    loss = WeightedCrossEntropy((1.0, 2.0, 0.5))
    one, other = (
        trained(Trainer(model, data, hyperparameters(mode=mode, loss=loss), seed=1, threads=1), jobs)
        for mode in ("sequential", "cuda_graphs")
    )
    assert_same(one, other, 1e-5)


def test_random_crops(small: Any) -> None:
    data, model = small.federation(), small.build("convolution")
    jobs = small.jobs(data, small.start_of(model))
    one, other, plain = (
        trained(Trainer(model, data, hyperparameters(mode=mode, augmentation=kind), seed=1, threads=1), jobs)
        for mode, kind in (("sequential", "crop_flip"), ("cuda_graphs", "crop_flip"), ("cuda_graphs", "none"))
    )
    assert_same(one, other, 1e-5)
    assert not torch.equal(other.state["0.weight"], plain.state["0.weight"])


class Drawing(nn.Module):
    """Draws from PyTorch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.dropout(inputs.flatten(1), 0.5, self.training))


def test_what_cannot_be_recorded_trains_one_by_one_and_says_so_once(
    small: Any, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    data, model = small.federation(), Drawing()
    jobs = small.jobs(data, small.start_of(model))
    alone = Trainer(model, data, hyperparameters(mode="sequential"), seed=1, threads=1)
    with caplog.at_level(logging.WARNING):
        update = trained(Trainer(model, data, hyperparameters(streams=2), seed=1, threads=1), jobs, 1, 2)
    assert_same(trained(alone, jobs, 1, 2), update)
    assert [record.getMessage() for record in caplog.records] == [
        "clients train one after another, without CUDA graphs: "
        "the model or the loss draws from PyTorch's generator"
    ]


def test_a_recorder_that_fails_costs_nothing_but_speed(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(recorders.CallAgain):
        def record(self, step: Work) -> Work:
            raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors …")

    monkeypatch.setitem(recorders.RECORDERS, "cpu", Failing)
    data, model = small.federation(), small.build("linear")
    jobs = small.jobs(data, small.start_of(model))
    alone = Trainer(model, data, hyperparameters(mode="sequential"), seed=1, threads=1)
    with caplog.at_level(logging.WARNING):
        update = trained(Trainer(model, data, hyperparameters(), seed=1, threads=1), jobs)
    assert_same(trained(alone, jobs), update)
    (record,) = caplog.records
    assert record.getMessage().endswith("RuntimeError: operation not permitted when stream is capturing")


class NoSingles(nn.Module):
    """Refuses a batch of one, as plain BatchNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) == 1:
            raise ValueError("expected more than 1 example")
        return self.head(inputs.flatten(1))


def test_a_size_that_the_model_refuses_costs_its_clients_only(small: Any) -> None:
    # In batches of 8, clients 0 and 1, of 1 and 9 rows, have a batch of one; 20, 8 and 13 rows have none.
    data, model = small.federation(), NoSingles()
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    for _ in range(2):
        updates = list(trainer.train(jobs, 1))
        failed = {client: reason for update in updates for client, reason in update.failed.items()}
        assert failed == dict.fromkeys((0, 1), "ValueError: expected more than 1 example")
        assert sorted(map(len, (update.clients for update in updates))) == [2, 3]
    both = trainer._dispatcher._recorded
    assert both is not None
    assert both._refused == {(1, False)}
    assert both._reason == ""


def test_streams_are_for_graphs() -> None:
    with pytest.raises(ValueError, match=r"^streams must be 1 unless mode is cuda_graphs, got 2$"):
        hyperparameters(mode="sequential", streams=2)
    with pytest.raises(ValueError, match=r"^streams must be a whole number >= 1, got 0$"):
        hyperparameters(streams=0)


@GPU
@pytest.mark.parametrize("kind", ["linear", "dropout", "convolution", "batch norm", "lstm", "positions"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1.0, "proximal_mu": 0.2},
        {"optimizer": "adam", "learning_rate": 0.01},
    ],
    ids=["sgd", "everything", "adam"],
)
@pytest.mark.parametrize("streams", [1, 3])
def test_graphs_compute_what_one_after_another_does(
    small: Any, kind: str, options: dict[str, Any], streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU; and from a client's first step to its last nothing waits for it."""
    data, model = small.federation(kind), small.build(kind)
    jobs = small.jobs(data, small.start_of(model))
    trainer = Trainer(model, data, hyperparameters(streams=streams, **options), seed=1, device="cuda")
    alone = Trainer(model, data, hyperparameters(mode="sequential", **options), seed=1, device="cuda")
    run = recorded.RecordedTraining._run

    def watched(*arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            run(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(recorded.RecordedTraining, "_run", watched)
    assert_same(trained(alone, jobs, 1, 2), trained(trainer, jobs, 1, 2), 2e-4)
    small.assert_recorded(trainer)
