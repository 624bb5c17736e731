"""Stand-ins for Dropout and BatchNorm against torch's own; seeding."""

import copy
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.training import working_model as module
from fedclust.training.cohort import Job

from .conftest import Written


def key(number: int) -> torch.Tensor:
    """Some 32-bit number."""
    return module.step_keys(number, torch.tensor([0]), 1)[0, 0]


def test_preparing_keeps_names_and_the_original() -> None:
    shared = nn.Dropout(0.3)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), shared, nn.Sequential(nn.Linear(3, 2), shared))
    prepared, _ = module.prepare(model)
    assert list(prepared.state_dict()) == list(model.state_dict())
    assert type(model[1]) is nn.BatchNorm1d
    assert type(prepared[1]) is module.ClientBatchNorm
    assert type(prepared[2]) is module.ClientDropout
    assert prepared[2] is prepared[3][1]


def test_subclasses_are_not_replaced() -> None:
    class Special(nn.Dropout):
        pass

    assert type(module.prepare(nn.Sequential(Special()))[0][0]) is Special


def test_scramble_is_one_to_one_and_looks_uniform() -> None:
    numbers = module.scramble(torch.arange(1 << 16))
    assert numbers.unique().numel() == 1 << 16
    assert numbers.min() >= 0
    assert numbers.max() < 1 << 32


def test_step_keys_differ_by_seed_client_and_step() -> None:
    keys = torch.cat([module.step_keys(seed, torch.arange(20), 30).flatten() for seed in (1, 2)])
    assert keys.unique().numel() == 2 * 20 * 30
    # A client's keys do not depend on other clients or on later steps.
    torch.testing.assert_close(
        module.step_keys(1, torch.arange(20), 30)[7, :4], module.step_keys(1, torch.tensor([7]), 4)[0]
    )


class TestDropout:
    def layer(self, p: float, kind=nn.Dropout) -> tuple[Any, module.StepContext]:
        context = module.StepContext()
        return module.ClientDropout(kind(p), context), context

    def test_drops_the_right_share_and_scales_the_rest(self) -> None:
        layer, context = self.layer(0.3)
        context.begin(key(99))
        values = layer(torch.ones(100, 1000))
        assert values.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
        # 100,000 draws of probability 0.3: standard deviation sqrt(0.21 / 1e5) = 0.00145.
        assert abs((values == 0).float().mean().item() - 0.3) < 5 * 0.00145

    def test_masks_depend_on_key_and_use_and_are_uncorrelated(self) -> None:
        layer, context = self.layer(0.5)
        context.begin(key(1))
        masks = [layer(torch.ones(100, 100)), layer(torch.ones(100, 100))]
        context.begin(key(2))
        masks.append(layer(torch.ones(100, 100)))
        # Two independent fair masks agree on 1/2 of 10,000 elements, standard deviation 0.005.
        for first, second in ((0, 1), (0, 2), (1, 2)):
            agreement = (masks[first] == masks[second]).float().mean().item()
            assert abs(agreement - 0.5) < 5 * 0.005
        context.begin(key(1))
        torch.testing.assert_close(layer(torch.ones(100, 100)), masks[0])

    def test_rows_of_one_mask_are_uncorrelated(self) -> None:
        layer, context = self.layer(0.5)
        context.begin(key(3))
        kept = (layer(torch.ones(400, 400)) > 0).double()
        # Correlations of rows of 400 have standard deviation 0.05; 6 of them bound the 79,800 pairs.
        correlations = torch.corrcoef(kept) - torch.eye(400)
        assert correlations.abs().max() < 0.3

    def test_padding_the_batch_leaves_the_real_rows_masks(self) -> None:
        layer, context = self.layer(0.5)
        context.begin(key(5))
        short = layer(torch.ones(3, 4, 5))
        context.begin(key(5))
        torch.testing.assert_close(layer(torch.ones(8, 4, 5))[:3], short)

    @pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
    def test_channelwise_dropout_drops_whole_channels(self, kind: Callable[[float], nn.Module]) -> None:
        layer, context = self.layer(0.5, kind)
        context.begin(key(5))
        values = layer(torch.ones(20, 10, 3, 3)).flatten(2)
        assert (values == values[:, :, :1]).all()
        assert 0 < (values == 0).float().mean() < 1

    def test_certain_cases(self) -> None:
        ones = torch.ones(2, 3)
        assert (self.layer(0.0)[0](ones) == 1).all()
        everything, context = self.layer(1.0)
        context.begin(key(1))
        assert (everything(ones) == 0).all()
        assert (self.layer(0.5)[0].eval()(ones) == 1).all()


class TestBatchNorm:
    @pytest.mark.parametrize("momentum", [0.1, None])
    @pytest.mark.parametrize("affine", [True, False])
    @pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 2, 2), (1, 3, 2, 2)])
    def test_masked_equals_torch_on_the_real_examples(self, shape, affine, momentum) -> None:
        torch.manual_seed(0)
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
        theirs = kind(3, affine=affine, momentum=momentum)
        if affine:
            nn.init.normal_(theirs.weight)
            nn.init.normal_(theirs.bias)
        ours, context = module.prepare(theirs)
        for _ in range(3):
            real = torch.randn(shape, requires_grad=True)
            padded = torch.cat([real.detach(), torch.full((2, *shape[1:]), 1e3)]).requires_grad_()
            mask = torch.tensor([1.0] * shape[0] + [0.0] * 2)
            expected = theirs(real)
            context.begin(key(0), mask)
            got = ours(padded)[: shape[0]]
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
            weights = torch.randn(shape)
            (expected * weights).sum().backward()
            (got * weights).sum().backward()
            torch.testing.assert_close(padded.grad[: shape[0]], real.grad, rtol=1e-4, atol=1e-5)
            assert (padded.grad[shape[0] :] == 0).all()
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)
        ours.eval()
        theirs.eval()
        torch.testing.assert_close(ours(real), theirs(real))

    @pytest.mark.parametrize("padding", [0, 3])
    def test_a_single_value_uses_the_running_statistics(self, padding: int) -> None:
        norm = nn.BatchNorm1d(2)
        norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
        norm.running_var.copy_(torch.tensor([4.0, 9.0]))
        before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
        ours, context = module.prepare(norm)
        mask = torch.tensor([1.0] + [0.0] * padding) if padding else None
        context.begin(key(0), mask)
        # (5 - 1) / 2 = 2 and (-1 - 2) / 3 = -1, but for eps = 1e-5
        values = torch.cat([torch.tensor([[5.0, -1.0]]), torch.full((padding, 2), 7.0)])
        torch.testing.assert_close(ours(values)[0], torch.tensor([2.0, -1.0]), rtol=1e-5, atol=0)
        torch.testing.assert_close(ours.state_dict(), before)

    def test_a_mask_of_another_length_is_refused(self) -> None:
        ours, context = module.prepare(nn.BatchNorm1d(2))
        context.begin(key(0), torch.ones(3))
        with pytest.raises(RuntimeError, match="BatchNorm needs the batch as first dimension, got 6 of 3"):
            ours(torch.ones(6, 2))


def test_the_generator_of_the_models_own_gpu_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    current, seeded = [torch.device("cuda:0")], []

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda number: seeded.append((current[-1], number)))
    working = module.WorkingModel(nn.Linear(1, 1), torch.device("cpu"), "float32")
    with torch.random.fork_rng(devices=[]):
        working.seed(7)
        assert seeded == []
        working.device = torch.device("cuda:1")
        working.seed(7)
        assert torch.initial_seed() == 7
    assert seeded == [(torch.device("cuda:1"), 7)]


CPU = torch.device("cpu")


@pytest.fixture
def one_thread_inside() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lanes_of(model: nn.Module, most: int) -> module.Lanes:
    return module.Lanes(module.WorkingModel(model, CPU, "float32"), most)


def let_every_step_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance a thread's clock by so many seconds at each call."""
    looks = itertools.count()
    monkeypatch.setattr(module.time, "thread_time", lambda: next(looks) * seconds)


# A lane for every 0.4 ms of a step: 0.7 ms are worth one, 0.9 ms two and 2 ms five, if there are so many
# threads, and items after the first, which is used to find out.
@pytest.mark.parametrize(
    ("milliseconds", "most", "items", "threads"),
    [(0.7, 4, 9, 1), (0.9, 4, 9, 2), (2.0, 4, 9, 4), (2.0, 3, 9, 3), (2.0, 4, 3, 2), (2.0, 1, 9, 1)],
)
def test_the_number_of_threads(milliseconds, most, items, threads, monkeypatch) -> None:
    let_every_step_take(milliseconds / 1000, monkeypatch)
    together = threading.Barrier(threads)
    models: dict[int, module.WorkingModel] = {}

    def work(model: module.WorkingModel, item: int) -> int:
        # Each thread waits for all others at its first item but the one that is measured.
        me = threading.get_ident()
        if item > 0 and me not in models:
            models[me] = model
            together.wait(timeout=10)
        assert item == 0 or models[me] is model
        return item * item

    assert lanes_of(nn.Linear(2, 2), most).each("kind", work, range(items)) == [i * i for i in range(items)]
    assert len(models) == len(set(map(id, models.values()))) == threads


def test_the_cost_of_a_step_counts_not_that_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_step_take(2.0e-3, monkeypatch)
    names = set()

    def work(_: module.WorkingModel, __: int) -> None:
        names.add(threading.current_thread().name)

    # 2 ms for 10 steps are 0.2 ms a step.
    lanes_of(nn.Linear(2, 2), 4).each("kind", work, range(9), [10] * 9)
    assert lanes_of(nn.Linear(2, 2), 2).each("kind", work, []) == []
    assert names == {threading.current_thread().name}


def test_what_is_raised_comes_out_and_the_others_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_step_take(2.0e-3, monkeypatch)
    done = []

    def work(_: module.WorkingModel, item: int) -> None:
        if item == 1:
            raise ValueError("at once")
        time.sleep(0.02)
        done.append(item)

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="at once"):
        lanes_of(nn.Linear(2, 2), 2).each("kind", work, range(100))
    assert torch.get_num_threads() == before
    assert len(done) < 5  # the first, which is measured, and what another thread had begun


def test_an_interrupt_ends_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_step_take(2.0e-3, monkeypatch)
    done = []

    def work(_: module.WorkingModel, item: int) -> None:
        if item == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which only waits
        time.sleep(0.02)
        done.append(item)

    # A shell starts what runs in the background with interrupts ignored, which pytest then inherits.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lanes_of(nn.Linear(2, 2), 2).each("kind", work, range(200))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(done) < 50


def test_a_model_that_keeps_what_it_computed(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor with a history cannot be copied; the threads' models are copied before there is one."""
    let_every_step_take(1.0, monkeypatch)

    def keeping(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        model.kept = model.head(inputs.flatten(1))
        return model.kept

    made = small.set_up(Written(keeping, head=nn.Linear(32, 3)), threads=2, batch_size=4, mode="sequential")
    (update,) = made.trainer.train(made.jobs, 1)
    assert not update.failed


@pytest.mark.parametrize(("items", "inside"), [(1, 6), (2, 3), (3, 2), (20, 1)])
def test_threads_that_clients_leave_serve_inside_operations(items, inside, monkeypatch) -> None:
    let_every_step_take(1.0, monkeypatch)
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        counts = lanes_of(nn.Linear(2, 2), 6).each("kind", lambda *_: torch.get_num_threads(), range(items))
        assert torch.get_num_threads() == 6
    finally:
        torch.set_num_threads(before)
    assert counts == [inside] * items


@pytest.mark.parametrize("kind", ["convolution", "dropout", "batch norm", "lstm"])
def test_a_cohort_learns_the_same_bits_on_any_number_of_threads(small, kind, monkeypatch, one_thread_inside):
    let_every_step_take(1.0, monkeypatch)
    threads_seen = set()
    plain_forward = module.WorkingModel.forward

    def forward(*arguments: Any) -> torch.Tensor:
        threads_seen.add(threading.get_ident())
        time.sleep(0.001)  # so that no thread has done all before the others have started
        return plain_forward(*arguments)

    monkeypatch.setattr(module.WorkingModel, "forward", forward)
    results = []
    for threads in (1, 3):
        made = small.set_up(kind, threads=threads, batch_size=4, momentum=0.9, mode="sequential")
        for server_round in (1, 2):
            (update,) = made.trainer.train(made.jobs, server_round)
        scores = made.trainer.evaluate(made.jobs, full=True)
        results.append((update, scores))
    assert len(threads_seen) > 2
    (one, scores), (three, same_scores) = results
    for name, tensor in one.state.items():
        assert torch.equal(three.state[name], tensor), name
    for losses, same in zip(one.losses, three.losses, strict=True):
        np.testing.assert_array_equal(losses, same)
    assert repr(scores) == repr(same_scores)  # NaN is not equal to itself


def test_a_model_that_draws_by_itself_keeps_to_one_thread(monkeypatch, small) -> None:
    let_every_step_take(1.0, monkeypatch)
    names = set()

    def noisy(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        names.add(threading.current_thread().name)
        outputs = model.layer(inputs.flatten(1))
        return outputs + torch.randn(outputs.shape) if model.training else outputs

    model = Written(noisy, layer=nn.LazyLinear(3))
    model(small.federation().inputs[:1].float())
    names.clear()
    made = [small.set_up(model, threads=threads, batch_size=4, mode="sequential") for threads in (1, 3)]
    results = [next(each.trainer.train(each.jobs, 1)) for each in made]
    assert names == {threading.current_thread().name}
    for name, tensor in results[0].state.items():
        assert torch.equal(results[1].state[name], tensor)


@pytest.mark.parametrize("bad", [1, 3])
def test_a_client_that_fails_costs_no_other_on_its_thread(small, bad, monkeypatch) -> None:
    let_every_step_take(1.0, monkeypatch)
    made = [small.set_up(threads=threads, batch_size=4, mode="sequential") for threads in (1, 3)]
    jobs = list(made[0].jobs)
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in made[0].start.items()}
    jobs[bad] = Job(jobs[bad].client, jobs[bad].rows, broken)
    alone, together = (next(each.trainer.train(jobs, 1)) for each in made)
    assert list(alone.failed) == list(together.failed) == [jobs[bad].client]
    for name, tensor in alone.state.items():
        torch.testing.assert_close(together.state[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_batch_norm_of_bfloat16_is_computed_in_the_precision_of_its_statistics() -> None:
    """A GPU's vmap refuses bfloat16 beside running statistics in float32."""
    norm, rows = nn.BatchNorm1d(3), torch.randn(16, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours = module.ClientBatchNorm(copy.deepcopy(norm), module.StepContext())
    found = ours(rows)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, norm(rows.float()).bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(ours.running_mean, norm.running_mean, rtol=0, atol=0)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2)])
def test_gradients_keep_the_layout_that_pooling_is_fast_in(pool: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), pool, nn.Flatten(), nn.Linear(12, 2))
    working = module.WorkingModel(model, torch.device("cpu"), "float32")
    layouts: list[bool] = []
    last = torch.channels_last

    def watch(_: nn.Module, __: object, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: layouts.append(gradient.is_contiguous(memory_format=last)))

    working.model[0].register_forward_hook(watch)
    images = torch.randn(5, 1, 6, 6)
    plain = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    ours = torch.autograd.grad(working.forward(images).square().sum(), working.trainable)
    assert layouts == [True]
    for one, other in zip(plain, ours, strict=True):
        torch.testing.assert_close(one, other)
