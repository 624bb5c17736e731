"""Fallbacks and memory limits."""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.training.cohort import Batches, CohortUpdate, Job, Work
from fedclust.training.trainer import agree, faster_together
from fedclust.training.vectorised import VectorisedTraining

from .conftest import Written


def branching() -> nn.Module:
    """A network that chooses its head by looking at its data."""
    heads = nn.ModuleList([nn.Linear(32, 3), nn.Linear(32, 3)])
    return Written(lambda model, x: model.heads[int(x.mean() > 0)](x.flatten(1)), heads=heads)


def mixing() -> nn.Module:
    """A network that subtracts the mean over the batch, and so sees what fills a short one."""
    return Written(lambda model, x: model.head(x.flatten(1) - x.flatten(1).mean(0)), head=nn.Linear(32, 3))


def compare_with_sequential(small, model, mode: str, data=None) -> None:
    got, expected = (small.set_up(model, data, epochs=1, mode=each) for each in (mode, "sequential"))
    for server_round in (1, 2):
        alone = small.by_client(list(expected.trainer.train(expected.jobs, server_round)))
        for client, (state, _) in small.by_client(
            list(got.trainer.train(expected.jobs, server_round))
        ).items():
            torch.testing.assert_close(state, alone[client][0], rtol=1e-5, atol=1e-6)


def _spoilt(small, *clients: int):
    """Make a federation whose clients listed have no numbers; client 2 has most rows, then 4 and 1."""
    data = small.federation()
    inputs = data.inputs.float()
    for client in clients:
        inputs[data.train[client]] = torch.nan
    object.__setattr__(data, "inputs", inputs)
    return data


@pytest.mark.parametrize("mode", ["auto", "vectorised"])
def test_a_model_that_branches_on_data_trains_alone_and_says_so_once(small, mode, fallbacks) -> None:
    torch.manual_seed(0)
    compare_with_sequential(small, branching(), mode)
    (line,) = fallbacks()
    assert "training them together failed with RuntimeError: vmap: " in line


def embedding(**options) -> nn.Module:
    """A network whose embedding has options, which the layer applies."""
    layers = {"embedding": nn.Embedding(7, 4, **options), "head": nn.Linear(24, 3)}
    return Written(lambda model, x: model.head(model.embedding(x).flatten(1)), **layers)


@pytest.mark.parametrize("mode", ["auto", "vectorised"])
@pytest.mark.parametrize(
    "options",
    [{"padding_idx": 0}, {"padding_idx": -1}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}],
    ids=str,
)
def test_rows_that_an_embedding_treats_otherwise_train_alone(small, mode, options, fallbacks) -> None:
    torch.manual_seed(0)
    compare_with_sequential(small, embedding(**options), mode, small.federation("lstm"))
    said = "clients train one after another: an nn.Embedding with padding_idx"
    assert [said in line for line in fallbacks()] == ([True] if mode == "vectorised" else [])


def test_padding_in_a_function_is_noticed_by_what_a_step_changes(small, fallbacks) -> None:
    torch.manual_seed(0)
    model = Written(
        lambda model, x: model.head(functional.embedding(x, model.rows, padding_idx=0).flatten(1)),
        rows=nn.Parameter(torch.randn(7, 4)),
        head=nn.Linear(24, 3),
    )
    compare_with_sequential(small, model, "vectorised", small.federation("lstm"))
    (line,) = fallbacks()
    assert "of what the steps changed, by more than rounding explains" in line


@pytest.mark.parametrize("mode", ["auto", "vectorised"])
@pytest.mark.parametrize("longest_is_bad", [False, True])
def test_a_model_that_mixes_examples_is_noticed(small, mode, longest_is_bad, fallbacks) -> None:
    torch.manual_seed(0)
    data = _spoilt(small, 2) if longest_is_bad else None  # whose losses would agree with any others
    compare_with_sequential(small, mixing(), mode, data)
    (line,) = fallbacks()
    assert "failed with ArithmeticError: losses are" in line


@pytest.mark.parametrize("mixes", [False, True])
def test_a_deep_network_at_a_large_learning_rate(small, mixes, fallbacks) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(6)]
    network = nn.Sequential(nn.Flatten(), *layers, mixing() if mixes else nn.Linear(32, 3))
    made = small.set_up(network, mode="vectorised", learning_rate=10.0, momentum=0.9, epochs=1)
    list(made.trainer.train(made.jobs[2:3], 1))
    assert len(fallbacks()) == mixes
    assert all("ArithmeticError: losses are" in line for line in fallbacks())


@pytest.mark.parametrize(
    ("kind", "on_cpu", "on_gpu"),
    [
        ("linear", True, True),
        ("layer norm", True, True),
        ("convolution", False, True),
        ("batch norm", False, True),
        ("lstm", False, False),
        ("gru", False, False),
    ],
)
def test_the_kind_of_model_decides(small, kind: str, on_cpu: bool, on_gpu: bool) -> None:
    model = small.build(kind)
    assert faster_together(model, torch.device("cpu")) == on_cpu
    assert faster_together(model, torch.device("cuda")) == on_gpu
    assert not faster_together(nn.MultiheadAttention(4, 2), torch.device("cuda"))
    for mode, together in (("auto", on_cpu), ("sequential", False), ("vectorised", True)):
        assert small.set_up(kind, mode=mode).trainer._dispatcher.together == together


@pytest.mark.parametrize("most", [0, 2])
def test_memory_running_out_halves_the_pass_and_leaves_nothing(small, most, monkeypatch) -> None:
    honest = VectorisedTraining.train
    sizes: list[int] = []
    taken: list[weakref.ref] = []

    def limited(self: VectorisedTraining, work: Work) -> CohortUpdate:
        assert not [ref for ref in taken if ref() is not None]
        sizes.append(len(work.jobs))
        if len(work.jobs) > most:
            activations = torch.zeros(1000)
            taken.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("too many")
        return honest(self, work)

    monkeypatch.setattr(VectorisedTraining, "train", limited)
    compare_with_sequential(small, "linear", "vectorised")
    # 5 = 2 + 3, 3 = 1 + 2, in each of two rounds; a single client is trained twice side by side, or alone
    assert sizes == ([5, 2, 3, 2, 2] if most else [5, 2, 2, 2, 3, 2, 2, 2, 2]) * 2


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
def test_chunks_follow_memory(small, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The linear model has 32 * 6 + 6 + 6 * 3 + 3 = 219 parameters, 876 bytes. Two fit into 2,000 bytes when
    # only results add up; together each client needs several times as much, so one at a time.
    monkeypatch.setattr("fedclust.training.trainer._CPU_BYTES", 2000)
    made = small.set_up(mode=mode, epochs=1)
    updates = made.trainer.train(made.jobs, 1)
    assert [len(update.clients) for update in updates] == ([2, 2, 1] if mode == "sequential" else [1] * 5)


def test_compiling_is_asked_for(small, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compiling for real takes a minute; here it is enough that the right functions would be.
    compiled = []

    def pretend(function):
        def run(*arguments):
            compiled.append(function)
            return function(*arguments)

        return run

    monkeypatch.setattr(torch, "compile", pretend)
    made = small.set_up("convolution", mode="vectorised", compile=True, epochs=1)
    list(made.trainer.train(made.jobs, 1))
    assert len(compiled) == 3  # client 2's 20 examples in batches of 8


def test_what_is_global_in_torch_stays_as_it_was(small) -> None:
    made = small.set_up("dropout", epochs=1)
    before = torch.get_rng_state()
    for _ in made.trainer.train(made.jobs, 1):
        torch.testing.assert_close(torch.get_rng_state(), before)


def test_a_cohort_of_bad_data_is_not_trained_together(small) -> None:
    """If no client shows whether training together is correct, none are trained together."""
    torch.manual_seed(0)
    compare_with_sequential(small, mixing(), "vectorised", _spoilt(small, 2, 4, 1))  # the three longest


def work_of(clients: int, steps: int) -> Work:
    batches = Batches(
        np.zeros((clients, steps, 2), dtype=np.int64), np.full((clients, steps), 2), np.full(clients, steps)
    )
    jobs = [Job(client, np.zeros(2, dtype=np.int64), {}) for client in range(clients)]
    return Work(jobs, batches, torch.zeros(clients, steps, dtype=torch.int64), 0.1, 0.0)


def way(loss: float = 1.0) -> Callable[[Work], CohortUpdate]:
    """Make a way of training that always has the same loss."""

    def train(work: Work) -> CohortUpdate:
        clients = np.array([job.client for job in work.jobs])
        losses = (np.full(work.batches.rows.shape[1], loss),) * len(clients)
        return CohortUpdate(clients, {}, losses, np.ones(len(clients), dtype=np.int64), {})

    return train


def test_ways_are_compared_on_a_client_that_can_be_trained() -> None:
    # The first client's data are not numbers, which would agree with anything.
    asked = []

    def alone(work: Work) -> CohortUpdate:
        asked.append(work.jobs[0].client)
        update = way()(work)
        return dataclasses.replace(update, failed={0: "non-finite loss"} if work.jobs[0].client == 0 else {})

    with pytest.raises(ArithmeticError):
        agree(alone, way(1.01), work_of(3, 4), 1e-3)
    assert list(dict.fromkeys(asked)) == [0, 1]
    assert not agree(alone, way(1.01), work_of(1, 4), 1e-3)  # no usable client: try again next time


@pytest.mark.parametrize(
    ("other", "same"),
    [
        # From 1, 1 to 1, 2: moved by 1, of which 2 % are added as the whole model's.
        ([1.0, 2.0], True),
        ([1.0, 2.05], True),  # apart by 0.05/1.02 = 4.9 % of that
        ([1.0, 2.06], False),  # 5.9 %
        ([1.06, 2.0], False),  # an entry that should not move
    ],
)
def test_models_must_change_alike(other: list[float], same: bool) -> None:
    def moved(to: list[float]) -> Callable[[Work], CohortUpdate]:
        return lambda work: dataclasses.replace(
            way()(work), state={"weight": torch.tensor([to] * len(work.jobs))}
        )

    work = work_of(1, 4)
    job = Job(0, np.zeros(2, dtype=np.int64), {"weight": torch.ones(2)})
    work = dataclasses.replace(work, jobs=[job])
    said = contextlib.nullcontext() if same else pytest.raises(ArithmeticError, match="models differ by 6%")
    with said:
        assert agree(moved([1.0, 2.0]), moved(other), work, 1e-3)


def filled(mean: bool, noise: float = 0.0) -> Callable[[Work], CohortUpdate]:
    """Make a way whose losses are the mean of the row numbers of a batch, or of all that fills it too."""

    def train(work: Work) -> CohortUpdate:
        rows, sizes = work.batches.rows, work.batches.sizes
        listed = tuple(
            np.array([row[: None if mean else size].mean() for row, size in zip(*client, strict=True)])
            + noise * index
            for index, client in enumerate(zip(rows, sizes, strict=True))
        )
        clients = np.array([job.client for job in work.jobs])
        return CohortUpdate(clients, {}, listed, np.ones(len(clients), dtype=np.int64), {})

    return train


def rows_of(*rows: int) -> Work:
    work = work_of(1, 1)
    return dataclasses.replace(
        work, batches=Batches(np.array([[rows]]), np.full((1, 1), len(rows)), np.ones(1, dtype=np.int64))
    )


def test_what_fills_a_half_batch_must_not_matter() -> None:
    # Half of the batch 1000, 1001, 1002, 1003 is 1000, 1001, and filled up 1000, 1001, 1000, 1000 or the
    # whole batch: means of 1000.25 and 1001.5. Both are within 0.1 % of the right 1000.5.
    work = rows_of(1000, 1001, 1002, 1003)
    assert agree(filled(mean=False), filled(mean=False), work, 1e-3)
    with pytest.raises(ArithmeticError, match=r"losses are \[1000.25\] or \[1001.5\], depending on how"):
        agree(filled(mean=False), filled(mean=True), work, 1e-3)
    # A unit in the last place, 2^-23 of 1,000, is rounding.
    assert agree(filled(mean=False), filled(mean=False, noise=1000 * 2.0**-23), work, 1e-3)


@pytest.mark.parametrize(
    ("alone", "together", "same"),
    [
        ((1.0, 1.0), (1.0005, 1.0005), True),
        ((1.0, 1.0), (1.01, 1.01), False),
        # A ResNet-18's, 0.0344 apart after a step that changed the loss by 12.6: 0.27 % of it.
        ((3.1138, 15.7149), (3.1139, 15.7493), True),
        # A step half as long.
        ((3.1138, 2.0), (3.1138, 2.5), False),
        # Before any step nothing can have grown.
        ((3.1138, 15.7149), (3.1500, 15.7493), False),
    ],
)
def test_what_a_step_may_make_of_rounding(alone, together, same) -> None:
    def training(losses: tuple[float, float]) -> Callable[[Work], CohortUpdate]:
        return lambda work: dataclasses.replace(way()(work), losses=(np.array(losses),) * len(work.jobs))

    said = contextlib.nullcontext() if same else pytest.raises(ArithmeticError, match="more than rounding")
    with said:
        assert agree(training(alone), training(together), work_of(3, 4), 1e-3)
