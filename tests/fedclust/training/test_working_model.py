"""Stand-ins for Dropout and BatchNorm against torch's own; seeding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from fedclust.training.working_model import (
    ClientBatchNorm,
    ClientDropout,
    StepContext,
    WorkingModel,
    prepare,
    scramble,
    step_keys,
)


def key(number: int) -> torch.Tensor:
    """Some 32-bit number."""
    return step_keys(number, torch.tensor([0]), 1)[0, 0]


def test_preparing_keeps_names_and_the_original() -> None:
    shared = nn.Dropout(0.3)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), shared, nn.Sequential(nn.Linear(3, 2), shared))
    prepared, _ = prepare(model)
    assert list(prepared.state_dict()) == list(model.state_dict())
    assert type(model[1]) is nn.BatchNorm1d
    assert type(prepared[1]) is ClientBatchNorm
    assert type(prepared[2]) is ClientDropout
    assert prepared[2] is prepared[3][1]


def test_subclasses_are_not_replaced() -> None:
    class Special(nn.Dropout):
        pass

    assert type(prepare(nn.Sequential(Special()))[0][0]) is Special


def test_a_model_that_is_one_layer() -> None:
    assert type(prepare(nn.Dropout(0.1))[0]) is ClientDropout


def test_scramble_is_one_to_one_and_looks_uniform() -> None:
    numbers = scramble(torch.arange(1 << 16))
    assert numbers.unique().numel() == 1 << 16
    assert numbers.min() >= 0
    assert numbers.max() < 1 << 32
    # Mean of 65,536 uniform numbers: 2**31 within 5 standard deviations, 5 * 2**32 / sqrt(12 * 65536).
    assert abs(numbers.double().mean().item() - 2.0**31) < 5 * 2.0**32 / (12 * 65536) ** 0.5


def test_step_keys_differ_by_seed_client_and_step() -> None:
    keys = torch.cat([step_keys(seed, torch.arange(20), 30).flatten() for seed in (1, 2)])
    assert keys.unique().numel() == 2 * 20 * 30
    # A client's keys do not depend on other clients or on later steps.
    torch.testing.assert_close(
        step_keys(1, torch.arange(20), 30)[7, :4], step_keys(1, torch.tensor([7]), 4)[0]
    )


class TestDropout:
    def layer(self, p: float, kind: Callable[[float], nn.Module] = nn.Dropout) -> tuple[Any, StepContext]:
        context = StepContext()
        return ClientDropout(kind(p), context), context

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
        none, context = self.layer(0.0)
        assert (none(ones) == 1).all()
        everything, context = self.layer(1.0)
        context.begin(key(1))
        assert (everything(ones) == 0).all()
        evaluated, _ = self.layer(0.5)
        assert (evaluated.eval()(ones) == 1).all()


class TestBatchNorm:
    @pytest.mark.parametrize("momentum", [0.1, None])
    @pytest.mark.parametrize("affine", [True, False])
    @pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 2, 2), (1, 3, 2, 2)])
    def test_masked_equals_torch_on_the_real_examples(
        self, shape: tuple[int, ...], affine: bool, momentum: float | None
    ) -> None:
        torch.manual_seed(0)
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
        theirs = kind(3, affine=affine, momentum=momentum)
        if affine:
            nn.init.normal_(theirs.weight)
            nn.init.normal_(theirs.bias)
        ours, context = prepare(theirs)
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
        ours, context = prepare(norm)
        mask = torch.tensor([1.0] + [0.0] * padding) if padding else None
        context.begin(key(0), mask)
        # (5 - 1) / 2 = 2 and (-1 - 2) / 3 = -1, but for eps = 1e-5
        values = torch.cat([torch.tensor([[5.0, -1.0]]), torch.full((padding, 2), 7.0)])
        torch.testing.assert_close(ours(values)[0], torch.tensor([2.0, -1.0]), rtol=1e-5, atol=0)
        torch.testing.assert_close(ours.state_dict(), before)

    def test_a_mask_of_another_length_is_refused(self) -> None:
        ours, context = prepare(nn.BatchNorm1d(2))
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
    working = WorkingModel(nn.Linear(1, 1), torch.device("cpu"), "float32")
    with torch.random.fork_rng(devices=[]):
        working.seed(7)
        assert seeded == []
        working.device = torch.device("cuda:1")
        working.seed(7)
        assert torch.initial_seed() == 7
    assert seeded == [(torch.device("cuda:1"), 7)]
