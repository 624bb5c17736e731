"""What benchmarks/gpu.py does without a GPU: its clock, its notes, and where its texts go."""

import importlib
import json
import math
import os
import re
import signal
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu")


@pytest.fixture
def gpu_papers(gpu: ModuleType) -> ModuleType:
    return importlib.import_module(gpu.paper.__module__)


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
    gpu_papers: ModuleType, seconds: float, rounds: int, runs: int
) -> None:
    assert gpu_papers.affordable(5.0, 0.5, seconds, 10, 40) == (rounds, runs)


@pytest.mark.parametrize(
    ("seconds", "seeds", "runs", "rounds"),
    [
        (900, 3, 30, 40),  # ten runs of 5 + 0.5 · 40 = 25 s are 250 s: three seeds of 250 s, and no fourth
        (740, 2, 20, 40),
        (250, 1, 10, 40),
        (150, 1, 10, 20),  # fewer rounds come before fewer rows, and one seed is left
        (60, 1, 6, 10),
        (3, 1, 0, 1),
    ],
)
def test_a_table_is_whole_before_the_next_seed(
    gpu_papers: ModuleType, seconds: float, seeds: int, runs: int, rounds: int
) -> None:
    assert gpu_papers.affordable_seeds(5.0, 0.5, seconds, 10, 3, 40) == (seeds, runs, rounds)


MODEL = {
    "_target_": "fedclust.models.residual.ResNet18",
    "input_shape": [3, 8, 8],
    "num_classes": 2,
    "stem": "cifar",
}


def test_the_encoder_is_the_newest_network_of_its_run(gpu_papers: ModuleType, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    from fedclust.models import build, build_encoder
    from fedclust.settings import compose

    folder = tmp_path / "a run, with=signs"
    (folder / "checkpoints").mkdir(parents=True)
    for number, seed in ((9, 1), (10, 2)):
        state = {f"0/{name}": value for name, value in build(MODEL, seed=seed).state_dict().items()}
        save_file(state, folder / "checkpoints" / f"round-{number:06}.safetensors")
    (folder / "summary.json").write_text("{}")
    (folder / "config.yaml").write_text(json.dumps({"model": MODEL}), encoding="utf-8")  # JSON is YAML
    (folder / "inputs.json").write_text('{"mean": [0.5, 0.25, 0.125], "std": [1e-05, 1.0, 2.0]}')
    overrides = ["experiment=fmcl_imagenette", *gpu_papers.encoder_overrides(folder)]
    node = compose(overrides).encoder
    assert OmegaConf.to_container(node.model) == MODEL
    assert (list(node.mean), list(node.std)) == ([0.5, 0.25, 0.125], [1e-05, 1.0, 2.0])
    image = torch.full((1, 3, 8, 8), 51, dtype=torch.uint8)
    # 51 / 255 = 0.2, less the channel's mean, over its deviation.
    values = torch.tensor([(0.2 - 0.5) / 1e-05, 0.2 - 0.25, (0.2 - 0.125) / 2]).reshape(1, 3, 1, 1)
    network = build(MODEL, seed=2).eval()
    with torch.inference_mode():
        expected = network.features(values.expand(1, 3, 8, 8))  # type: ignore[operator]
    torch.testing.assert_close(build_encoder(node).encode(image), expected, rtol=1e-3, atol=1e-3)


def test_an_encoder_needs_a_checkpoint(gpu_papers: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match=f"folder must be of a run with a checkpoint, got {tmp_path.name}$"):
        gpu_papers.encoder_overrides(tmp_path)


def test_a_round_of_the_encoders_training_is_a_pass(gpu_papers: ModuleType, tmp_path: Path) -> None:
    from fedclust.settings import compose

    config = compose([*gpu_papers.ENCODER, "training.precision=tf32", "rounds=7"])
    # A round is one pass over the rows of all ten clients, and the cosine ends with the last.
    assert (config.participation, config.training.epochs, config.training.steps) == (1, 1, None)
    assert config.training.schedule_rounds == 7
    assert config.model.num_classes == 100
    small = compose([*gpu_papers.ENCODER, *gpu_papers.SMALL_ENCODER])
    assert list(small.model.input_shape) == [3, 16, 16]
    known = importlib.import_module("paper_table").tables_of("fmcl_imagenette")["rows"]
    assert set(gpu_papers.SMALL_ROWS) <= set(known)


def test_data_that_are_not_there_are_named(
    gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "imagenette64").mkdir()
    given = ["papers", "--table", "fmcl", "--device", "cpu", "--data", str(tmp_path)]
    assert gpu.main(given) == 0
    assert capsys.readouterr().out.endswith(
        f"Not measured: there is no folder cifar100 in {tmp_path.name}.\n"
    )


def test_a_failed_row_is_named_and_the_others_are_kept(gpu: ModuleType) -> None:
    found = gpu.in_time({"good": (4.0,), "bad": (-1.0,)}, math.sqrt, time.time() + 300, apart=False)
    assert found.values == {"good": 2.0}
    assert list(found.missing) == ["bad"]
    assert found.notes().startswith("\nNot measured: bad: ValueError: ")


def test_nothing_outlasts_its_time(gpu: ModuleType) -> None:
    late = gpu.in_time({"late": (4.0,)}, math.sqrt, time.time() + 1, late=2)
    assert late.missing == {"late": "no time left to start it"}
    began = time.monotonic()
    # A row may start whenever its process is there: it must be ended, not refused.
    found = gpu.in_time({"long": (600,)}, time.sleep, time.time() + 1, late=-600)
    assert found.missing == {"long": "had not ended when the time was over"}
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(("apart", "cores"), [(False, 1), (True, 1), (True, 16)])
def test_a_process_that_dies_costs_its_row_only(
    gpu: ModuleType, apart: bool, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)  # on many, the next row's process is there already
    # SIGURG is ignored, SIGKILL is not.
    rows = {"before": (signal.SIGURG,), "dies": (signal.SIGKILL,), "after": (signal.SIGURG,)}
    found = gpu.in_time(rows, signal.raise_signal, time.time() + 300, apart=apart)
    assert found.values == {"before": None, "after": None}
    assert found.missing == {"dies": "its process ended with exit code -9"}


def says_and_sleeps(value: float | None, seconds: float) -> str:
    clock = importlib.import_module("gpu_clock")
    if value is not None:
        clock.so_far(value)
        clock.so_far(value + 1)  # too soon after the first
    time.sleep(seconds)
    return "whole"


def test_a_row_that_hangs_leaves_time_for_the_others(gpu: ModuleType) -> None:
    # A hundredth of 300 s for each of 100 rows; the two that hang are ended after three times that.
    rows = {"hangs": (None, 600), "slow": (4.0, 600), **{f"row {number}": (1.0, 0) for number in range(98)}}
    found = gpu.in_time(rows, says_and_sleeps, time.time() + 300, apart=False, fair=True)
    assert found.values == {"slow": 4.0, **dict.fromkeys(list(rows)[2:], "whole")}
    cut = r"was ended after \d+ s, 3 times its share of the time"
    assert re.match(f"{cut}$", found.missing["hangs"])
    assert re.match(f"{cut}; what it had measured by then counts$", found.early["slow"])
    assert found.notes().startswith("\nEnded early: slow: was ended ")
    assert "\nNot measured: hangs: was ended " in found.notes()


def test_ways_that_may_be_the_fastest_come_first(gpu: ModuleType) -> None:
    ways = list(gpu.ways_in_order(tuple(gpu.MODES), gpu.PRECISIONS))
    assert ways[:4] == [
        "vectorised, float32",
        "vectorised graphs, float32",
        "CUDA graphs, 4 streams, float32",
        "vectorised, tf32",
    ]
    assert ways[9] == "vectorised, compiled, float32"
    assert len(set(ways)) == len(gpu.MODES) * len(gpu.PRECISIONS)


def test_every_mode_of_a_row_exists(gpu: ModuleType) -> None:
    from fedclust.settings import compose

    for overrides in gpu.MODES.values():
        compose(list(overrides))


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
    names |= {f"gpu-papers-{table}" for table in gpu.TABLES}
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    assert set(re.findall("<!-- (gpu-.*?) -->", text)) == names


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so there are graphs")
def test_a_row_for_cuda_graphs_is_measured_with_them_or_missing(gpu: ModuleType) -> None:
    rows = {
        mode: ("digits", f"fedclust, {mode}", "cpu", 1, False)
        for mode in ("cuda_graphs", "vectorised_graphs")
    }
    found = gpu.in_time(rows, gpu.clients_per_second, time.time() + 300, apart=False)
    assert found.values == {}
    for mode in rows:
        assert found.missing[mode].startswith(f"ValueError: device must be a GPU with training.mode={mode}")
    recording = importlib.import_module("recording")
    for kind in (recording.RecordedTraining, recording.RecordedCohorts):
        with recording.only_recorded(True), pytest.raises(RuntimeError, match="^without CUDA graphs: a rea"):
            kind._give_up(None, "a reason")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is refused")
def test_without_a_gpu_one_line(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["runs"]) == 2
    assert capsys.readouterr().err == "gpu: --device must be cpu where torch finds no GPU, got cuda\n"


@pytest.mark.parametrize("mode", ["vectorised", "vectorised_graphs"])
def test_a_row_for_training_together_does_not_train_one_after_another(gpu: ModuleType, mode: str) -> None:
    class Drawing(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(super().forward(inputs.flatten(1)))

    recording, speed = (importlib.import_module(name) for name in ("recording", "training_speed"))
    _, data, options = speed.problem("digits", True)
    with recording.only_recorded(True):
        step = speed.fedclust_rounds(f"fedclust, {mode}", Drawing(64, 10), data, options, "cpu")
        with pytest.raises(RuntimeError, match="random"):
            step(1)
