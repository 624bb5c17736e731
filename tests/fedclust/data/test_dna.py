from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedclust.data import dna
from fedclust.data.dna import Dna, kmers
from fedclust.data.source import SourceError


def codes(*sequences: str) -> np.ndarray:
    return np.array([["ACGT".find(base) for base in sequence] for sequence in sequences])


def write(folder: Path, sequences: list[str], labels: list, **columns: list) -> Path:
    frame = pd.DataFrame({"sequence": sequences, "label": labels} | columns)
    frame.to_parquet(folder / "data.parquet")
    return folder


def builder(path: Path, **changes) -> Dna:
    values = {"name": "tiny", "num_classes": 2, "input_shape": [3], "k": 2, "vocabulary_size": 17}
    return Dna(**(values | {"path": str(path)} | changes))


@pytest.mark.parametrize(
    ("sequence", "k", "padding", "tokens"),
    [
        # A C G T are 0 1 2 3: AC is 0·4 + 1, CG is 1·4 + 2, GT is 2·4 + 3, each plus 1
        ("ACGT", 2, "valid", [2, 7, 12]),
        ("ACGT", 3, "valid", [0 * 16 + 1 * 4 + 2 + 1, 1 * 16 + 2 * 4 + 3 + 1]),
        ("TTT", 3, "valid", [64]),  # the last of 4³
        ("ACNTA", 2, "valid", [2, 0, 0, 3 * 4 + 0 + 1]),  # 0 where a base is unknown
        ("ACGT", 3, "same", [0, 7, 28, 0]),  # centred on every base
        ("ACGT", 1, "same", [1, 2, 3, 4]),
        ("ACGT", 2, "same", [2, 7, 12, 0]),  # even: one more base after than before
    ],
)
def test_kmers_by_hand(sequence: str, k: int, padding, tokens: list[int]) -> None:
    assert kmers(codes(sequence), k, padding).tolist() == [tokens]


def test_sequences_as_kmers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dna, "CHUNK", 2)
    write(tmp_path, ["ACGT", "acgt", "AANA"], ["EI", "N", "N"])
    data = builder(tmp_path).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[2, 7, 12], [2, 7, 12], [1, 0, 0]]
    assert data.inputs.dtype == torch.int64
    assert data.class_names == ("EI", "N")


def test_sequences_as_one_hot_bases(tmp_path: Path) -> None:
    write(tmp_path, ["AC", "GT", "AN"], [0, 1, 0])
    data = builder(tmp_path, encoding="onehot", input_shape=[4, 2]).load(tmp_path / "cache")
    assert data.inputs.dtype == torch.float32
    assert data.inputs.argmax(1)[:2].tolist() == [[0, 1], [2, 3]]
    assert data.inputs.sum(1).tolist() == [[1, 1], [1, 1], [1, 0]]  # nothing where a base is unknown


@pytest.mark.parametrize("labels", [[[0, 1, 1], [1, 0, 0]], ["011", "100"]])
def test_reads_with_a_label_per_base(tmp_path: Path, labels: list) -> None:
    write(tmp_path, ["ACG", "TTT"], labels, population=["AFR", "EUR"])
    data = builder(
        tmp_path, k=3, vocabulary_size=65, padding="same", per_position=True, natural="population"
    ).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[0, 7, 0], [0, 64, 0]]
    assert data.labels.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert data.natural.tolist() == [0, 1]


@pytest.mark.parametrize("other", ["ACG", None])
def test_sequences_of_other_lengths_are_refused(tmp_path: Path, other) -> None:
    write(tmp_path, ["ACGT", other], [0, 1])
    with pytest.raises(SourceError, match="every sequence must have 4 bases as the first has, got"):
        builder(tmp_path).load(tmp_path / "cache")
    assert len(builder(tmp_path, only={"label": 0}).load(tmp_path / "cache").inputs) == 1


def test_tokens_by_frequency_are_numbered_from_the_most_frequent(tmp_path: Path) -> None:
    # AA three times, AT and CA once, and AT comes before CA; five have an unknown base, which stays 0.
    folder = write(tmp_path, ["AAATNNN", "CAANNNN"], [0, 1])
    inputs = builder(folder, by_frequency=True, input_shape=[6]).load(tmp_path / "cache").inputs
    assert inputs.tolist() == [[1, 1, 2, 0, 0, 0], [3, 1, 0, 0, 0, 0]]
