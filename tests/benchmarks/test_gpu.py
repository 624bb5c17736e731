"""What benchmarks/gpu.py does without a GPU: its clock, its notes, and where its texts go."""

import importlib
import math
import re
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu")


@pytest.mark.parametrize(
    ("seconds", "rounds", "runs"),
    [
        (500, 40, 10),  # 50 s for each of ten runs: 5 s and 90 rounds, of which the paper has 40
        (150, 20, 10),  # 15 s each: 5 s and 20 rounds
        (60, 10, 6),  # 6 s each are 2 rounds; runs of a quarter of the rounds take 10 s, so six
        (7, 4, 1),  # one run of 5 s and 4 rounds
        (3, 1, 0),
    ],
)
def test_time_is_for_rounds_first_and_then_for_runs(
    gpu: ModuleType, seconds: float, rounds: int, runs: int
) -> None:
    assert gpu.affordable(5.0, 0.5, seconds, 10, 40) == (rounds, runs)


def test_a_failed_row_is_named_and_the_others_are_kept(gpu: ModuleType) -> None:
    found = gpu.in_time({"good": (4.0,), "bad": (-1.0,)}, math.sqrt, time.time() + 300, apart=False)
    assert found.values == {"good": 2.0}
    assert list(found.missing) == ["bad"]
    assert found.notes().startswith("\nNot measured: bad: ValueError: ")


def test_nothing_outlasts_its_time(gpu: ModuleType) -> None:
    assert gpu._attempt(math.sqrt, (4.0,), time.time() - 1) == (None, "no time left to start it")
    began = time.monotonic()
    found = gpu.in_time({"long": (600,)}, time.sleep, time.time() + 1)
    assert found.missing == {"long": "had not ended when the time was over"}
    assert time.monotonic() - began < 300


def test_saved_texts_go_between_their_markers(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, place = tmp_path / "PERFORMANCE.md", "<!-- gpu-{0} -->\n\n{1}\n\n<!-- /gpu-{0} -->\n"
    document.write_text(place.format("runs", "old") + place.format("peers", "kept"))
    monkeypatch.setattr(importlib.import_module("tables"), "DOCS", tmp_path)
    (tmp_path / "gpu-runs.md").write_text("NVIDIA X, new\n")
    assert gpu.main(["paste", str(tmp_path)]) == 0
    assert document.read_text() == place.format("runs", "NVIDIA X, new") + place.format("peers", "kept")


def test_every_item_has_a_place_in_the_document(gpu: ModuleType) -> None:
    names = {f"gpu-{item}" for item in gpu.ITEMS} - {"gpu-papers"}
    names |= {f"gpu-papers-{table}" for table in ("fmnist", "cifar10", "fedgwc")}
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    assert set(re.findall("<!-- (gpu-.*?) -->", text)) == names


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so there are graphs")
def test_a_row_for_cuda_graphs_is_measured_with_them_or_missing(gpu: ModuleType) -> None:
    rows = {"graphs": ("digits", "fedclust, cuda_graphs", "cpu", 1, False)}
    found = gpu.in_time(rows, gpu.clients_per_second, time.time() + 300, apart=False)
    assert found.values == {}
    assert found.missing["graphs"].startswith(
        "ValueError: device must be a GPU with training.mode=cuda_graphs"
    )
    recording = importlib.import_module("recording")
    with recording.only_recorded(True), pytest.raises(RuntimeError, match="^without CUDA graphs: a reason$"):
        recording.RecordedTraining._give_up(None, "a reason")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is refused")
def test_without_a_gpu_one_line(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["runs"]) == 2
    assert capsys.readouterr().err == "gpu: --device must be cpu where torch finds no GPU, got cuda\n"
