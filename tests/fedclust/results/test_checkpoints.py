from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedclust.results import Checkpoints, load_checkpoint


def test_models_come_back(tmp_path: Path) -> None:
    models = [
        {"net.weight": torch.randn(3, 2), "net.steps": torch.tensor(5)},
        {"net.weight": torch.randn(3, 2).to(torch.bfloat16), "net.steps": torch.tensor(6)},
    ]
    path = Checkpoints(tmp_path / "checkpoints", rounds=10).save(10, models, np.array([0, 1, 1]))
    assert path == tmp_path / "checkpoints" / "round-000010.safetensors"
    read = load_checkpoint(path)
    assert read.server_round == 10
    np.testing.assert_array_equal(read.assignment, [0, 1, 1])
    assert len(read.models) == 2
    for model, given in zip(read.models, models, strict=True):
        assert model.keys() == given.keys()
        for name, tensor in given.items():
            assert model[name].dtype == tensor.dtype
            assert torch.equal(model[name], tensor)


def test_memory_that_models_share_is_written_for_each(tmp_path: Path) -> None:
    # After a split the children have their parent's tensors; views and transposes share storage as well.
    whole = torch.arange(12.0).reshape(3, 4)
    parent = {"a": whole, "first": whole[0], "turned": whole.T}
    read = load_checkpoint(Checkpoints(tmp_path, rounds=1).save(1, [parent, parent], [0, 1]))
    for model in read.models:
        assert all(torch.equal(model[name], tensor) for name, tensor in parent.items())


def test_parameters_keep_their_gradients_to_themselves(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    path = Checkpoints(tmp_path, rounds=1).save(1, [dict(model.named_parameters())], [0])
    assert not load_checkpoint(path).models[0]["weight"].requires_grad


def test_which_rounds_are_kept(tmp_path: Path) -> None:
    every_third = Checkpoints(tmp_path, rounds=7, every=3)
    assert [number for number in range(1, 8) if every_third.due(number)] == [3, 6, 7]
    last = Checkpoints(tmp_path, rounds=7)
    assert [number for number in range(1, 8) if last.due(number)] == [7]


def test_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none yet", rounds=20, every=1)
    assert checkpoints.latest() is None
    for number in (2, 10, 9):
        checkpoints.save(number, [{"w": torch.zeros(1)}], [0])
    assert load_checkpoint(checkpoints.latest()).server_round == 10


def test_bounds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rounds must be >= 1, got 0"):
        Checkpoints(tmp_path, rounds=0)
    with pytest.raises(ValueError, match="every must be >= 0, got -1"):
        Checkpoints(tmp_path, rounds=1, every=-1)
    with pytest.raises(ValueError, match="assignment must name clusters 0 to 0, got 0 to 1"):
        Checkpoints(tmp_path, rounds=1).save(1, [{"w": torch.zeros(1)}], [0, 1])


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="checkpoint must be a file, got"):
        load_checkpoint(tmp_path / "absent.safetensors")
    (tmp_path / "text").write_text("hello")
    save_file({"w": torch.zeros(1)}, tmp_path / "foreign")
    save_file({"w": torch.zeros(1)}, tmp_path / "odd", {"clusters": "1", "round": "1", "assignment": "[0]"})
    for name in ("text", "foreign", "odd"):
        with pytest.raises(ValueError, match="checkpoint must be one written by fedclust, got"):
            load_checkpoint(tmp_path / name)
