"""Rows are embedded once, in batches, and cached by their content and the encoder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedclust.data.arrays import from_arrays
from fedclust.data.dataset import FederatedData
from fedclust.data.input_encoders import ImageEncoder
from fedclust.models import embeddings as module
from fedclust.models.embeddings import Embedder, embed


class Sums:
    """Embeds an image as the sums of its rows, and remembers the batches that it was asked for."""

    dimension = 2

    def __init__(self, fingerprint: str = "sums") -> None:
        self.fingerprint, self.batches = fingerprint, list[int]()
        self.statistics: set = set()  # type: ignore[type-arg]

    def encode(self, inputs, mean=(), std=(), device="cpu") -> torch.Tensor:
        self.batches.append(len(inputs))
        self.statistics.add((tuple(mean), tuple(std)))
        return inputs.float().sum((1, 3))


# Five images of one channel, 2 by 2 pixels: 0 … 3, 4 … 7, …
PIXELS = np.arange(20, dtype=np.uint8).reshape(5, 1, 2, 2)
SUMS = [[0 + 1, 2 + 3], [4 + 5, 6 + 7], [8 + 9, 10 + 11], [12 + 13, 14 + 15], [16 + 17, 18 + 19]]


@pytest.fixture(name="data")
def data_fixture() -> FederatedData:
    labels = [0, 1, 0]
    return from_arrays([((PIXELS[:3], labels), None, (PIXELS[3:], [1, 0]))])


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 2)


def test_embeddings_replace_the_rows_and_nothing_else(data: FederatedData, tmp_path: Path) -> None:
    encoder = Sums()
    found = embed(data, encoder, cache_dir=tmp_path)
    assert found.inputs.tolist() == SUMS
    assert found.inputs.dtype == torch.float32
    assert encoder.batches == [2, 2, 1]
    assert encoder.statistics == {(data.mean, data.std)}
    assert (found.mean, found.std, found.embedded_by) == ((), (), "sums")
    assert found.fingerprint != data.fingerprint
    # New rows are raw ones: the statistics of images travel with their encoder.
    assert found.input_encoder() == ImageEncoder((1, 2, 2), "none", data.mean, data.std)
    for name in ("labels", "train", "test", "class_names"):
        assert getattr(found, name) is getattr(data, name)


def test_rows_are_embedded_again_only_if_they_or_the_encoder_changed(
    data: FederatedData, tmp_path: Path
) -> None:
    first, same, other, changed = (Sums(name) for name in ("sums", "sums", "more", "sums"))
    embed(data, first, cache_dir=tmp_path)
    # Another partition of the same rows.
    again = embed(replace(data, fingerprint="x", train=data.test, test=data.train), same, cache_dir=tmp_path)
    assert (again.inputs.tolist(), same.batches) == (SUMS, [])
    embed(data, other, cache_dir=tmp_path)
    turned = data.inputs.clone()
    turned[4] = turned[4].flip(-2)  # such as by a shift of its client
    found = embed(replace(data, inputs=turned), changed, cache_dir=tmp_path)
    assert found.inputs.tolist() == [*SUMS[:4], SUMS[4][::-1]]
    assert sum(other.batches) == sum(changed.batches) == 5


def test_an_interruption_costs_the_last_part(
    data: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", 2)  # rows 0 and 1, 2 and 3, 4

    class Stopped(Sums):
        def encode(self, inputs, mean=(), std=(), device="cpu") -> torch.Tensor:
            if len(self.batches) == 2:
                raise KeyboardInterrupt
            return super().encode(inputs, mean, std, device)

    first, second = Stopped(), Sums()
    with pytest.raises(KeyboardInterrupt):
        embed(data, first, cache_dir=tmp_path)
    assert first.batches == [2, 2]
    assert embed(data, second, cache_dir=tmp_path).inputs.tolist() == SUMS
    assert second.batches == [1]
    assert len([*(tmp_path / "embeddings").iterdir()]) == 2  # the whole and its lock: no part is left


def test_progress_is_reported(data: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENCE", -1.0)
    lines: list[str] = []
    embed(data, Sums(), cache_dir=tmp_path, say=lines.append)
    assert lines[0] == "encoding 5 rows once with sums"
    assert [line.split(",")[0] for line in lines[1:]] == [f"encoded {done} of 5 rows" for done in (2, 4, 5)]
    assert lines[-1].endswith(" 0 s left")
    lines.clear()
    embed(data, Sums(), cache_dir=tmp_path, say=lines.append)  # read from the cache
    assert lines == []


def test_rows_with_labels_per_position_are_refused(data: FederatedData, tmp_path: Path) -> None:
    tagged = replace(data, labels=torch.zeros(5, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^rows to embed must have one label each, got shape \(5, 3\)$"):
        embed(tagged, Sums(), cache_dir=tmp_path)


def test_new_rows_are_embedded_like_those_of_the_run() -> None:
    images, made = ImageEncoder((1, 2, 2), "none", (0.5,), (0.25,)), Sums()
    embedder = Embedder.of("sums", lambda: made, images)
    assert embedder is not None
    assert embedder(torch.from_numpy(PIXELS)).tolist() == SUMS
    assert made.statistics == {((0.5,), (0.25,))}
    assert embedder(torch.zeros(0, 1, 2, 2)).shape == (0, 2)
    assert Embedder.of("", None, images) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, "^encoder must be given, that of the run: sums$"),
        (lambda: Sums("other"), "^encoder must be that of the run, sums, got other$"),
    ],
)
def test_no_other_encoder_embeds_new_rows(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedder("sums", make)(torch.zeros(1, 1, 2, 2))
