"""On a GPU, local training must only queue work: no operation may need the value of one before it.

Reading a value is an operation of its own, on the CPU too, so it can be seen without a GPU. A copy from the
host's memory is seen by training on PyTorch's device without data, "meta", which is another one than the CPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedclust.training import device_data, sequential, vectorised
from fedclust.training.losses import Loss, WeightedCrossEntropy, cross_entropy

# What makes the host wait for a GPU: a value becomes a number or truth value of Python, or decides a
# shape. Indexing with truth values is "nonzero" only on a GPU.
WAITING = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2")
INDEXING = ("index", "index_put_", "_unsafe_index", "_index_put_impl_")


class Watch(TorchDispatchMode):
    """Collects the operations that would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        self.total += 1
        result = func(*args, **(kwargs or {}))
        if name in WAITING or (name in INDEXING and _by_truth_values(args[1])):
            self.seen.append(name)
        if name in ("copy_", "_to_copy") and _waits(name, args, kwargs or {}, result):
            self.seen.append(f"{name} from the host")
        return result


class Numbers(TorchFunctionMode):
    """Collects tensors made on a device from Python's numbers, which is no operation of its own."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        wanted = torch.device((kwargs or {}).get("device") or "cpu")
        if func in (torch.tensor, torch.as_tensor) and wanted.type != "cpu":
            self.seen.append("tensor from the host")
        return func(*args, **(kwargs or {}))


def _by_truth_values(places) -> bool:
    return any(place is not None and place.dtype in (torch.bool, torch.uint8) for place in places)


def _waits(name: str, args, kwargs, result: torch.Tensor) -> bool:
    source = args[1] if name == "copy_" else args[0]
    queued = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    return isinstance(source, torch.Tensor) and source.device != result.device and not queued


@contextmanager
def watched_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Watch what happens from a client's first step to its last, in all ways of training."""
    watch = Watch()

    def watched(train: Callable[..., object]) -> Callable[..., object]:
        def inside(*arguments) -> object:
            with watch, Numbers(watch.seen):
                return train(*arguments)

        return inside

    for place, name in ((sequential, "take_steps"), (vectorised.VectorisedTraining, "_run")):
        monkeypatch.setattr(place, name, watched(getattr(place, name)))
    yield watch
    assert watch.total > 50  # the steps were seen


KINDS = ("linear", "dropout", "batch norm", "channel dropout", "positions")
OPTIONS: dict[str, dict] = {
    "sgd": {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5, "proximal_mu": 0.1},
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "bf16": {"precision": "bf16"},
}


def _can_be_bf16(model: torch.nn.Module, inputs: torch.Tensor) -> bool:
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(inputs if inputs.dtype == torch.int64 else inputs.float()).sum().backward()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_training_never_waits(small, kind, options, mode, monkeypatch) -> None:
    data, model = small.federation(kind), small.build(kind)
    if options == "bf16" and not _can_be_bf16(model, data.inputs[:2]):
        pytest.skip("PyTorch has no such layer in bfloat16 for this processor")
    made = small.set_up(kind, threads=1, mode=mode, **OPTIONS[options])
    with watched_steps(monkeypatch) as watch:
        updates = list(made.trainer.train(made.jobs, 1))
    assert not any(update.failed for update in updates)
    assert watch.seen == []


def test_waiting_is_seen(small, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(inputs.flatten(1))
            return outputs * 2 if outputs.mean() > 0 else outputs

    made = small.set_up(Waits(32, 3), threads=1, mode="sequential")
    with watched_steps(monkeypatch) as watch:
        list(made.trainer.train(made.jobs, 1))
    assert set(watch.seen) & {"_local_scalar_dense", "is_nonzero"}


def steps_without_data(small, kind: str, mode: str, loss: Loss, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Train on the device "meta" up to the first look at a result; return what would wait."""
    monkeypatch.setattr(device_data, "_KEPT_BYTES", 0)  # the data stay on the host
    monkeypatch.setattr(vectorised, "collect", lambda *_: None)
    made = small.set_up(kind, device="meta", loss=loss, **OPTIONS["sgd"])
    trainer, jobs = made.trainer, sorted(made.jobs, key=lambda job: -len(job.rows))
    work = trainer._work(trainer._check(jobs), 1, 0.1)
    with trainer._working.settings(), watched_steps(monkeypatch) as watch:
        if mode == "vectorised":
            trainer._dispatcher._vectorised.train(work)
            return watch.seen
        trainer._working.model.train()
        losses = torch.zeros(work.batches.sizes.shape, device="meta")
        for index in range(len(jobs)):
            sequential.take_steps(trainer._working, trainer._data, trainer.training, work, index, losses)
        return watch.seen


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    "loss", [cross_entropy, WeightedCrossEntropy((1.0, 2.0, 3.0))], ids=["plain", "weighted"]
)
@pytest.mark.parametrize("kind", ["dropout", "convolution", "batch norm", "averaging batch norm"])
def test_steps_copy_nothing_from_the_host_and_wait(small, kind, loss, mode, monkeypatch) -> None:
    assert steps_without_data(small, kind, mode, loss, monkeypatch) == []


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
def test_numbers_from_the_host_are_seen(small, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs * torch.tensor([1.0, 2.0, 3.0], device=outputs.device), labels)

    seen = steps_without_data(small, "dropout", mode, scaled, monkeypatch)
    assert set(seen) == {"tensor from the host"}


def test_a_copy_from_the_host_and_indexing_by_truth_values_are_seen() -> None:
    with Watch() as watch:
        torch.zeros(2).to("meta", non_blocking=True)
        torch.zeros(2).to("meta")
        torch.zeros(2, device="meta").copy_(torch.zeros(2))
        torch.arange(3.0)[torch.tensor([True, False, True])]
        torch.arange(3.0)[torch.tensor([0, 2])]
    assert watch.seen == ["_to_copy from the host", "copy_ from the host", "index"]
