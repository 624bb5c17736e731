"""Recorded passes, by a recorder that calls the recorded operations again on the same tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.training.recorded import CudaGraphs, RecordedPasses

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class Again:
    """Calls again what it was given, and counts."""

    def __init__(self) -> None:
        self.recorded = self.repeated = 0

    def __call__(self, operations: Callable[[], object]) -> Callable[[], object]:
        self.recorded += 1

        def repeat() -> None:
            self.repeated += 1
            operations()

        return repeat


def recorded(small: Any, kind: Any = "linear", record: Any = None, **options: Any) -> Any:
    """Make a trainer whose passes are recorded, and the same without recording."""
    pair = [small.set_up(kind, mode="vectorised", threads=1, **options) for _ in range(2)]
    pair[0].trainer._dispatcher._vectorised.passes = RecordedPasses(record)
    return pair


def trained(small: Any, made: Any, server_round: int, jobs: Any = None) -> dict:
    return small.by_client(made.trainer.train(jobs or made.jobs, server_round))


def assert_equal(results: dict, expected: dict) -> None:
    """Compare models and losses to the bit, on the CPU."""
    assert results.keys() == expected.keys()
    for client, (state, losses) in expected.items():
        torch.testing.assert_close(results[client][0], state, rtol=0, atol=0, equal_nan=True)
        np.testing.assert_array_equal(results[client][1], losses)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("linear", {}),
        ("dropout", {"momentum": 0.9, "proximal_mu": 0.1}),
        ("batch norm", {"augmentation": "crop_flip"}),
        ("positions", {"optimizer": "adam"}),
    ],
)
def test_repeated_passes_equal_others(small, kind: str, options: dict) -> None:
    record = Again()
    made, other = recorded(small, kind, record, **options)
    for server_round in range(1, 5):
        assert_equal(trained(small, made, server_round), trained(small, other, server_round))
    # The second round is recorded and repeated for comparison; the others take the repetition.
    assert (record.recorded, record.repeated) == (1, 3)


def test_frozen_and_tied_parameters_stay_so(small) -> None:
    model = small.build("linear")
    model[1].weight.requires_grad_(False)
    record = Again()
    made, other = recorded(small, model, record)
    for server_round in (1, 2, 3):
        assert_equal(trained(small, made, server_round), trained(small, other, server_round))
    doubled = {name: 2 * tensor for name, tensor in made.start.items()}
    jobs = [type(job)(**vars(job) | {"state": doubled}) for job in made.jobs]
    assert_equal(trained(small, made, 4, jobs), trained(small, other, 4, jobs))
    assert record.repeated == 3


@pytest.mark.parametrize("changed", ["learning rate", "proximal weight", "rows"])
def test_passes_of_another_kind_are_not_repeated(small, changed: str) -> None:
    record = Again()
    schedule = {"schedule": "exponential", "decay": 0.5} if changed == "learning rate" else {}
    made, other = recorded(small, "linear", record, **schedule)
    for server_round in (1, 2, 3):
        mu = 0.1 * server_round if changed == "proximal weight" else 0.0
        jobs = made.jobs[server_round:] if changed == "rows" else made.jobs
        results, expected = (
            small.by_client(each.trainer.train(jobs, server_round, proximal_mu=mu)) for each in (made, other)
        )
        assert_equal(results, expected)
    assert record.recorded == 0


def test_the_kinds_needed_last_are_kept(small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedclust.training.recorded._MOST", 2)
    record = Again()
    made, _ = recorded(small, "linear", record)
    counts = []
    for clients in (5, 4, 5, 3, 5, 4, 4, 5):  # 3 takes the place of 4, then 4 that of 3
        trained(small, made, 1, made.jobs[:clients])
        counts.append((record.recorded, record.repeated))
    assert counts == [(0, 0), (0, 0), (1, 1), (1, 1), (1, 2), (1, 2), (2, 3), (2, 4)]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "recorded CUDA graphs" in text]


def test_a_recording_that_fails_is_reported_once(small, caplog) -> None:
    def record(_: Any) -> Any:
        raise RuntimeError("no graph\nat all")

    made, other = recorded(small, "batch norm", record)
    for server_round in (1, 2, 3, 4):
        before = torch.get_rng_state()
        assert_equal(trained(small, made, server_round), trained(small, other, server_round))
        assert torch.equal(torch.get_rng_state(), before)
    text = "clients train together without recorded CUDA graphs: RuntimeError: no graph"
    assert warned(caplog) == [text]


def test_a_repetition_with_another_result_is_not_used(small, caplog) -> None:
    def record(_: Any) -> Any:
        return lambda: None

    made, other = recorded(small, "linear", record)
    for server_round in (1, 2, 3):
        assert_equal(trained(small, made, server_round), trained(small, other, server_round))
    assert len(warned(caplog)) == 1
    assert "another result" in warned(caplog)[0]


def test_a_pass_that_diverges_is_not_recorded(small) -> None:
    record = Again()
    made, _ = recorded(small, "linear", record, learning_rate=1e20)
    for server_round in (1, 2, 3):
        trained(small, made, server_round)
    assert record.recorded == 0


def test_nothing_is_recorded_on_a_cpu(small) -> None:
    made = small.set_up("linear", mode="vectorised")
    assert made.trainer._dispatcher._vectorised.passes._record is None


@needs_gpu
@pytest.mark.parametrize("kind", ["linear", "dropout", "convolution", "batch norm", "group norm"])
def test_cuda_graphs_equal_the_operations(small, kind: str, caplog) -> None:
    made, other = (small.set_up(kind, device="cuda", mode="vectorised", momentum=0.9) for _ in range(2))
    other.trainer._dispatcher._vectorised.passes = RecordedPasses(None)
    for server_round in (1, 2, 3):
        results, expected = (trained(small, each, server_round) for each in (made, other))
        for client, (state, losses) in expected.items():
            torch.testing.assert_close(results[client][0], state, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(results[client][1], losses, rtol=1e-4, atol=1e-5)
    kinds = made.trainer._dispatcher._vectorised.passes._kinds
    assert sum(repeat is not None for repeat in kinds.values()) == 1
    assert not warned(caplog)


@needs_gpu
def test_a_capture_that_fails_leaves_no_trace() -> None:
    device = torch.device("cuda")
    graphs, values = CudaGraphs(torch.empty(0, device=device).device), torch.ones(3, device=device)
    torch.cuda.manual_seed(1)
    expected = [torch.rand(2, device=device) for _ in range(2)]
    torch.cuda.manual_seed(1)
    found = [torch.rand(2, device=device)]
    stream, mode = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
    with pytest.raises(RuntimeError):
        graphs(lambda: (torch.rand(2, device=device), values.sum().item()))
    with pytest.raises(RuntimeError):
        graphs(lambda: values.add_(torch.tensor([1.0, 2.0, 3.0]).to(device, non_blocking=True)))
    found.append(torch.rand(2, device=device))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()) == (stream, mode)
    again = graphs(lambda: values.add_(1))
    again()
    assert values.tolist() == [2.0, 2.0, 2.0]


def test_layers_that_keep_a_count_in_python_are_found(small, caplog) -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            Counting.calls += 1
            return super().forward(inputs.flatten(1)) * (1.0 + Counting.calls)

    made, _ = recorded(small, Counting(32, 3), Again(), chunk=5)
    made.trainer._dispatcher._agreed = True
    for server_round in (1, 2, 3):
        trained(small, made, server_round)
    assert "another result" in warned(caplog)[0]
