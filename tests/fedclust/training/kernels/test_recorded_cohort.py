"""Recorded steps of a whole cohort: what is recorded when, what is read anew, and against `vectorised`.

Numbers against the literal loop are in ../test_trainer.py, mode "vectorised_graphs".
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.training import CohortUpdate, Job, LocalTraining, Trainer
from fedclust.training.kernels import recorded_cohort, recorders
from fedclust.training.kernels.recorded_cohort import RecordedCohorts, numbers_of_clients
from fedclust.training.losses import WeightedCrossEntropy, binary_cross_entropy

Work = Callable[[], None]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.05},
    "proximal": {"proximal_mu": 0.5},
    "clipping": {"clip_norm": 0.3},
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.01},
    "everything": {"momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1.0, "proximal_mu": 0.2},
    "weights of classes": {"loss": WeightedCrossEntropy((1.0, 2.0, 0.5))},
    "binary": {"loss": binary_cross_entropy, "momentum": 0.5},
    "falling rate": {"schedule": "exponential", "decay": 0.5, "momentum": 0.9},
}


def hyperparameters(**changes: Any) -> LocalTraining:
    return LocalTraining(
        **{"learning_rate": 0.1, "batch_size": 8, "epochs": 2, "mode": "vectorised_graphs", **changes}
    )


def trained(trainer: Trainer, jobs: list[Job], *rounds: int, **more: Any) -> list[CohortUpdate]:
    """Train in some rounds, 1 by default; return the last one's updates."""
    for server_round in rounds or (1,):
        updates = list(trainer.train(jobs, server_round, **more))
        assert not any(update.failed for update in updates)
    return updates


def assert_same(some: list[CohortUpdate], others: list[CohortUpdate], tolerance: float = 0.0) -> None:
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one.clients, other.clients)
        for name, tensor in one.state.items():
            torch.testing.assert_close(other.state[name], tensor, rtol=tolerance, atol=tolerance)
        for losses, own in zip(one.losses, other.losses, strict=True):
            np.testing.assert_allclose(own, losses, rtol=tolerance, atol=tolerance)


def problem(small: Any, kind: str) -> tuple[Any, nn.Module]:
    """Make a federation and a model of a kind: in float64 if BatchNorm would magnify rounding.

    Batches of few examples do that; and a bias before it has a gradient of 0 and rounding, whose sign Adam
    would follow.
    """
    data, model = small.federation(kind), small.build(kind)
    if kind == "batch norm":
        object.__setattr__(data, "inputs", data.inputs.double() / 255)
        model = model.double()
    return data, model


def cohorts_of(trainer: Trainer) -> RecordedCohorts:
    cohorts = trainer._dispatcher._recorded_cohorts
    assert cohorts is not None
    return cohorts


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["linear", "dropout", "convolution", "batch norm", "layer norm"])
def test_equal_to_vectorised(small: Any, kind: str, options: dict[str, Any], late: Any) -> None:
    """Clients of 1, 9, 20, 8 and 13 rows, two rounds with the same recordings, in one pass and in three."""
    data, model = problem(small, kind)
    jobs = small.jobs(data, small.start_of(model))
    plain = Trainer(model, data, hyperparameters(**{**options, "mode": "vectorised"}), seed=1)
    expected = trained(plain, jobs, 1, 2)
    for chunk in ("auto", 2):
        trainer = Trainer(model, data, hyperparameters(**options, chunk=chunk), seed=1)
        found = trained(trainer, jobs, 1, 2)
        small.assert_recorded(trainer)
        if chunk == 2:
            halves = hyperparameters(**{**options, "mode": "vectorised"}, chunk=2)
            expected = trained(Trainer(model, data, halves, seed=1), jobs, 1, 2)
        assert_same(expected, found, 1e-5)


def test_in_the_first_step_the_same_operations_give_the_same_bits(small: Any) -> None:
    # The learning rate is a tensor here and a number there, so only what comes before the first update is
    # computed by the same operations: the first loss.
    data, model = small.federation("convolution", sizes=(8, 8, 8)), small.build("convolution")
    jobs = small.jobs(data, small.start_of(model))
    (one,), (other,) = (
        trained(Trainer(model, data, hyperparameters(mode=mode), seed=1), jobs)
        for mode in ("vectorised", "vectorised_graphs")
    )
    for losses, own in zip(one.losses, other.losses, strict=True):
        assert losses[0] == own[0]


@pytest.mark.parametrize("kind", ["dropout", "batch norm", "lstm"])
def test_a_late_gpu_changes_no_bit(small: Any, kind: str, late: Any) -> None:
    data, model = small.federation(kind), small.build(kind)
    jobs = small.jobs(data, small.start_of(model))
    options = {"momentum": 0.5, "proximal_mu": 0.3}
    found = trained(Trainer(model, data, hyperparameters(**options), seed=1), jobs, 1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recorders.RECORDERS, "cpu", recorders.CallAgain)
        at_once = trained(Trainer(model, data, hyperparameters(**options), seed=1), jobs, 1, 2)
    assert_same(at_once, found)


def test_a_result_that_is_read_too_early_is_seen(
    small: Any, late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model = small.federation(), small.build("linear")
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    (whole,) = trained(trainer, jobs)
    end = late.end
    monkeypatch.setattr(late, "end", lambda lane: setattr(lane, "open", False))
    (update,) = trainer.train(jobs, 1)
    assert not any(losses.any() for losses in update.losses)
    assert all(losses.all() for losses in whole.losses)
    monkeypatch.setattr(late, "end", end)
    for lane in late.lanes:
        lane.end()


def test_how_many_clients_have_a_recording() -> None:
    assert numbers_of_clients(10) == [10, 5, 3, 2]
    assert numbers_of_clients(2) == [2]
    assert numbers_of_clients(1) == [1]


def test_a_step_is_recorded_once_per_shape(small: Any, counting: Any) -> None:
    # Clients of 20, 13, 9, 8 and 1 rows take 6, 4, 4, 2 and 2 steps of at most 8. In the first two, all five
    # take part and some have a short batch; in the next two, three do: 4, 8 and 8 rows, then 8, 5 and 1; the
    # last two are the longest client's own, 8 rows and 4. Five, three and two clients have recordings.
    data, model = small.federation(), small.build("linear")
    trainer = Trainer(model, data, hyperparameters(schedule="exponential", decay=0.5), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    trained(trainer, jobs, 1, 2, 3)
    kinds = {(kind.clients, kind.padded) for kind in cohorts_of(trainer)._recordings}
    assert kinds == {(5, True), (3, True), (2, False), (2, True)}
    assert counting.made == 4
    # The proximal term is more work, its weight a number that is read anew.
    trained(trainer, jobs, 4, proximal_mu=0.5)
    trained(trainer, jobs, 5, proximal_mu=0.1)
    assert counting.made == 8
    trained(trainer, jobs, 6)
    assert counting.made == 8


def test_more_clients_or_longer_ones_need_more_memory(small: Any, counting: Any) -> None:
    """Tensors of another size lie elsewhere, so steps are recorded anew, and results stay right."""
    data, model = small.federation(sizes=(8, 8, 8, 24, 48, 5, 5)), small.build("dropout")
    jobs = small.jobs(data, small.start_of(model))
    falling = {"momentum": 0.9, "schedule": "exponential", "decay": 0.5}
    trainer = Trainer(model, data, hyperparameters(**falling), seed=1)
    alone = Trainer(model, data, hyperparameters(mode="sequential", **falling), seed=1, threads=1)
    made = []
    for server_round, some in enumerate((jobs[5:], jobs[:2], jobs[:3], jobs[3:4], jobs[4:5]), start=1):
        expected = {
            int(client): update.state["1.weight"][index]
            for update in alone.train(some, server_round)
            for index, client in enumerate(update.clients)
        }
        (update,) = trained(trainer, some, server_round)
        for index, client in enumerate(update.clients):
            torch.testing.assert_close(
                update.state["1.weight"][index], expected[int(client)], rtol=1e-5, atol=1e-6
            )
        made.append(counting.made)
    # Two clients of 5 rows; of 8, which is wider; a third client; one of 6 steps, where there was room for 4:
    # it trains twice side by side, in the recording of two; one of 12, where there was room for 8.
    assert made == [1, 2, 3, 4, 5]
    trained(trainer, jobs[:3])  # there is room for all of this now
    assert counting.made == 6  # though three clients had no recording in it


def test_a_long_client_and_many_short_ones_are_not_multiplied(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model = small.federation(sizes=(64, 8, 8, 8, 8, 8, 8, 8)), small.build("linear")
    jobs = small.jobs(data, small.start_of(model))
    # One client is trained twice, 16 steps of 8 rows: 16 · 2 · 8 numbers of 8 bytes. Seven clients, 2 steps:
    # there is room for 4, 4 · 7 · 8 numbers. Both together would be 16 · 7 · 8.
    monkeypatch.setattr(recorded_cohort, "_MOST_BYTES", 8 * 16 * 7 * 8 - 1)
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    shapes = []
    for some in (jobs[:1], jobs[1:]):
        trained(trainer, some)
        memory = cohorts_of(trainer)._memory
        assert memory is not None
        shapes.append(tuple(memory.rows.shape))
    assert shapes == [(16, 2, 8), (4, 7, 8)]


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"optimizer": "adam"}, {"proximal_mu": 0.5}], ids=str)
def test_nothing_is_left_of_the_pass_before(small: Any, options: dict[str, Any]) -> None:
    data, model = small.federation("batch norm"), small.build("batch norm")
    start = small.start_of(model)
    other = {name: tensor + 1 for name, tensor in start.items()}
    trainer = Trainer(model, data, hyperparameters(**options), seed=1)
    fresh = Trainer(model, data, hyperparameters(**options), seed=1)
    trained(trainer, small.jobs(data, other))
    assert_same(trained(fresh, small.jobs(data, start), 2), trained(trainer, small.jobs(data, start), 2))


def test_a_row_of_another_client_is_no_padding(small: Any) -> None:
    """A pass of shorter batches than before is padded with its own rows: 0 times NaN would be NaN."""
    data, model = small.federation(sizes=(8, 8, 3, 3)), small.build("convolution")
    inputs = data.inputs.float() / 255
    clean = inputs.clone()
    inputs[torch.from_numpy(np.concatenate(data.train[:2]))] = float("nan")
    object.__setattr__(data, "inputs", inputs)
    jobs = small.jobs(data, small.start_of(model))
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    trainer._dispatcher._agreed = True  # all clients of the first pass fail
    (update,) = trainer.train(jobs[:2], 1)
    assert sorted(update.failed) == [0, 1]
    found = trained(trainer, jobs[2:])
    object.__setattr__(data, "inputs", clean)
    plain = Trainer(model, data, hyperparameters(mode="vectorised"), seed=1)
    assert_same(trained(plain, jobs[2:]), found, 1e-5)


def test_a_client_that_has_stopped_may_become_anything(small: Any) -> None:
    """What a client computes after its last step reaches nobody, though it takes part in the recording."""
    data, model = small.federation(sizes=(24, 24, 24, 8)), small.build("convolution")
    jobs = small.jobs(data, small.start_of(model))
    inputs = data.inputs.float() / 255
    # Its rows are then those of nobody: row 0 of the dataset, which is a test row here.
    assert 0 not in np.concatenate(data.train)
    object.__setattr__(data, "inputs", inputs)
    plain = trained(Trainer(model, data, hyperparameters(mode="vectorised"), seed=1), jobs)
    inputs[0] = float("nan")
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    assert_same(plain, trained(trainer, jobs), 1e-5)
    # Four clients take two steps, three take six: in the recording of four.
    assert {kind.clients for kind in cohorts_of(trainer)._recordings} == {4}


class Frozen(nn.Module):
    """A frozen layer below one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(32, 6).requires_grad_(False)
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.encoder(inputs.flatten(1))))


def test_frozen_parameters_of_one_model_and_of_several(small: Any, counting: Any) -> None:
    torch.manual_seed(0)
    data, model = small.federation(sizes=(8, 8, 8)), Frozen()
    one = small.start_of(model)
    other = {name: 2 * tensor for name, tensor in one.items()}
    trainer = Trainer(model, data, hyperparameters(momentum=0.5), seed=1)
    plain = Trainer(model, data, hyperparameters(momentum=0.5, mode="vectorised"), seed=1)
    for states in ([one] * 3, [other] * 3, [one, other, one], [other, one, one], [one] * 3):
        jobs = [Job(client, data.train[client], state) for client, state in enumerate(states)]
        assert_same(trained(plain, jobs), trained(trainer, jobs), 1e-5)
    assert counting.made == 2  # with one frozen layer for all, and with one for each


def test_random_crops(small: Any) -> None:
    data, model = small.federation(), small.build("convolution")
    jobs = small.jobs(data, small.start_of(model))
    plain, cropped, whole = (
        trained(Trainer(model, data, hyperparameters(mode=mode, augmentation=kind), seed=1), jobs, 1, 2)
        for mode, kind in (
            ("vectorised", "crop_flip"),
            ("vectorised_graphs", "crop_flip"),
            ("vectorised_graphs", "none"),
        )
    )
    assert_same(plain, cropped, 1e-5)
    assert not torch.equal(cropped[0].state["0.weight"], whole[0].state["0.weight"])


def test_a_recorder_that_fails_costs_nothing_but_speed(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(recorders.CallAgain):
        def record(self, step: Work) -> Work:
            raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors …")

    monkeypatch.setitem(recorders.RECORDERS, "cpu", Failing)
    data, model = small.federation(), small.build("linear")
    jobs = small.jobs(data, small.start_of(model))
    plain = Trainer(model, data, hyperparameters(mode="vectorised"), seed=1)
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    with caplog.at_level(logging.WARNING):
        found = trained(trainer, jobs, 1, 2)
    assert_same(trained(plain, jobs, 1, 2), found)
    assert [record.getMessage() for record in caplog.records] == [
        "clients train together without CUDA graphs: "
        "RuntimeError: operation not permitted when stream is capturing"
    ]
    assert cohorts_of(trainer)._memory is None


class Reading(nn.Module):
    """Counts its steps in Python; no MLP, whose own kernel would not call it."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls = nn.Linear(32, 3), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return self.head(inputs.flatten(1)).sigmoid()


def test_a_step_that_is_not_the_same_twice_is_not_recorded(
    small: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data, model = small.federation(), Reading()
    jobs = small.jobs(data, small.start_of(model))
    with caplog.at_level(logging.WARNING):
        trained(Trainer(model, data, hyperparameters(), seed=1), jobs, 1, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "clients train together without CUDA graphs: the model replaces its attribute 'calls' at every step"
    ]


def test_too_many_clients_are_halved_and_not_tried_again(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Small(recorders.CallAgain):
        def record(self, step: Work) -> Work:
            memory = step.args[1]  # type: ignore[attr-defined]
            tried.append(memory.rows.shape[1])
            if tried[-1] > 2:
                raise torch.OutOfMemoryError("too many")
            return step

    monkeypatch.setitem(recorders.RECORDERS, "cpu", Small)
    data, model = small.federation(sizes=(8, 8, 8, 8, 8)), small.build("linear")
    jobs = small.jobs(data, small.start_of(model))
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    for _ in range(2):
        updates = trained(trainer, jobs)
        assert [len(update.clients) for update in updates] == [2, 1, 2]
    # Five and the half of five that is three do not fit, two do; then it is known.
    assert tried == [5, 2, 3, 2]


@pytest.mark.parametrize("mode", ["cuda_graphs", "vectorised_graphs"])
def test_a_device_with_and_without_its_number_is_one(small: Any, mode: str) -> None:
    # A tensor made on "cpu:0" is on "cpu", and one made on "cuda" is on "cuda:0": the data and the model must
    # not seem to be on two devices.
    data, model = small.federation(), small.build("linear")
    trainer = Trainer(model, data, hyperparameters(mode=mode), seed=1, device="cpu:0")
    list(trainer.train(small.jobs(data, small.start_of(model)), 1))
    small.assert_recorded(trainer)


@pytest.mark.parametrize("mode", ["cuda_graphs", "vectorised_graphs"])
def test_a_device_without_graphs_is_refused(small: Any, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.delitem(recorders.RECORDERS, "cpu")
    with pytest.raises(
        ValueError,
        match=rf"^device must be a GPU with training.mode={mode}, got cpu; "
        r"training.mode=auto works on every device$",
    ):
        Trainer(small.build("linear"), small.federation(), hyperparameters(mode=mode), seed=1)


@pytest.mark.parametrize("mode", ["auto", "vectorised", "sequential", "cuda_graphs"])
def test_no_other_mode_uses_it(small: Any, mode: str) -> None:
    trainer = Trainer(small.build("linear"), small.federation(), hyperparameters(mode=mode), seed=1)
    assert trainer._dispatcher._recorded_cohorts is None


@GPU
@pytest.mark.parametrize("kind", ["linear", "dropout", "convolution", "batch norm", "lstm", "positions"])
@pytest.mark.parametrize("options", ["sgd", "everything", "adam", "weights of classes", "falling rate"])
def test_graphs_compute_what_vectorised_does(
    small: Any, kind: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU; and from the first step to the last nothing waits for it."""
    data, model = problem(small, kind)
    jobs = small.jobs(data, small.start_of(model))
    given = OPTIONS[options]
    trainer = Trainer(model, data, hyperparameters(**given), seed=1, device="cuda")
    plain = Trainer(model, data, hyperparameters(**{**given, "mode": "vectorised"}), seed=1, device="cuda")
    run = RecordedCohorts._run

    def watched(*arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            run(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(RecordedCohorts, "_run", watched)
    assert_same(trained(plain, jobs, 1, 2), trained(trainer, jobs, 1, 2), 2e-4)
    if kind not in ("lstm", "positions"):  # which vmap may refuse on GPUs; they train one after another then
        small.assert_recorded(trainer)


@GPU
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_graphs_in_reduced_precision(small: Any, precision: str) -> None:
    data, model = small.federation("convolution"), small.build("convolution")
    jobs = small.jobs(data, small.start_of(model))
    plain, found = (
        trained(Trainer(model, data, hyperparameters(mode=mode, precision=precision), 1, "cuda"), jobs, 1, 2)
        for mode in ("vectorised", "vectorised_graphs")
    )
    assert_same(plain, found, 5e-2)


@GPU
def test_graphs_after_memory_has_moved(small: Any) -> None:
    """More clients than before: all graphs of the first pool are gone, and the next ones have another."""
    data, model = small.federation(sizes=(8, 9, 24, 13, 20)), small.build("dropout")
    jobs = small.jobs(data, small.start_of(model))
    trainer = Trainer(model, data, hyperparameters(momentum=0.9), seed=1, device="cuda")
    plain = Trainer(model, data, hyperparameters(momentum=0.9, mode="vectorised"), seed=1, device="cuda")
    for some in (jobs[:2], jobs[:3], jobs, jobs[:2]):
        assert_same(trained(plain, some), trained(trainer, some), 2e-4)
        small.assert_recorded(trainer)
