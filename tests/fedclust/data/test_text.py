from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from fedclust.data.dataset import Dataset, SourceError
from fedclust.data.text import Text
from fedclust.serving.served import Served


def write(folder: Path, train: list[str | None], test: list[str] | None = None) -> Path:
    pd.DataFrame({"text": train, "label": [i % 2 for i in range(len(train))]}).to_parquet(
        folder / "train.parquet"
    )
    if test is not None:
        pd.DataFrame({"text": test, "label": [0] * len(test)}).to_parquet(folder / "test.parquet")
    return folder


def builder(path: Path, length: int = 4, **changes) -> Text:
    values = {"name": "tiny", "num_classes": 2, "input_shape": [length], "vocabulary_size": 100}
    return Text(**(values | {"path": str(path)} | changes))


def load(path: Path, length: int = 4, **changes) -> Dataset:
    return builder(path, length, **changes).load(path / "cache")


def test_words_of_the_training_part_by_frequency_then_by_the_alphabet(tmp_path: Path) -> None:
    write(tmp_path, ["The cat, the dog", "the cat sat down again"], ["the bird sat"])
    data = load(tmp_path, 5)
    assert data.inputs.dtype == torch.int64
    # the 3 times, cat twice, then once each: "," again dog down sat; 0 is padding, 1 unknown
    the, cat, comma, again, dog, down, sat = range(2, 9)
    expected = [[the, cat, comma, the, dog], [the, cat, sat, down, again], [the, 1, sat, 0, 0]]
    assert data.inputs.tolist() == expected


@pytest.mark.parametrize(
    ("texts", "length", "settings", "tokens"),
    [
        (["a a a b b c", "c a"], 3, {"vocabulary_size": 4}, [[2, 2, 2], [1, 2, 0]]),  # padding, unknown, a, b
        (["a", None], 2, {}, [[2, 0], [0, 0]]),
        (["bad", "neutral", "bad bad"], 1, {"drop_labels": [1], "class_names": ["x", "y"]}, [[2], [2]]),
    ],
)
def test_texts_are_cut_padded_and_left_out(tmp_path, texts, length, settings, tokens) -> None:
    assert load(write(tmp_path, texts), length, **settings).inputs.tolist() == tokens


def test_the_tokenizer_is_kept_for_new_text(tmp_path: Path) -> None:
    load(write(tmp_path, ["a b", "c"]), 2)
    (saved,) = (tmp_path / "cache").rglob("tokenizer.json")
    assert Tokenizer.from_file(str(saved)).encode("B A").ids == [3, 2]


def test_codes_are_texts_even_if_they_look_like_numbers(tmp_path: Path) -> None:
    file = tmp_path / "codes.csv"
    file.write_text("text,label\n007,0\n007,1\n0815,1\n")
    data = builder(file, 1).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[2], [2], [3]]  # not all unknown, as 7 and 815 would be below
    (saved,) = (tmp_path / "cache").rglob("tokenizer.json")
    words = builder(file, 1).encoder(saved.read_text())
    assert words.encode(["007", "7", "0815"]).tolist() == [[2], [1], [3]]
    rows, _ = Served.read(SimpleNamespace(encoder=words, csv_options={}), file)
    assert words.encode(rows).tolist() == [[2], [2], [3]]


VOCABULARY = ("[PAD]", "[UNK]", "cat", "dog")


def pretrained(folder: Path, padding: str | None = "[PAD]", vocabulary: tuple[str, ...] = VOCABULARY) -> str:
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(vocabulary)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    options = {"tokenizer_object": words, "unk_token": "[UNK]", "pad_token": padding}
    PreTrainedTokenizerFast(**options).save_pretrained(folder)
    return str(folder)


def test_a_pretrained_tokenizer_from_a_local_folder(tmp_path: Path) -> None:
    write(tmp_path, ["dog cat dog", "bird"])
    tokenizer = pretrained(tmp_path / "tokenizer")
    data = load(tmp_path, 2, tokenizer=tokenizer, vocabulary_size=4)
    assert data.inputs.tolist() == [[3, 2], [1, 0]]
    with pytest.raises(SourceError, match="vocabulary_size must be at least 4, the size of .* got 3"):
        load(tmp_path, 2, tokenizer=tokenizer, vocabulary_size=3)


def test_a_pretrained_tokenizers_padding_becomes_0(tmp_path: Path) -> None:
    write(tmp_path, ["dog cat", "dog"])
    tokenizer = pretrained(tmp_path / "tokenizer", vocabulary=("dog", "cat", "[PAD]", "[UNK]"))
    data = load(tmp_path, 3, tokenizer=tokenizer, vocabulary_size=4)
    # dog is 0, cat 1 and padding 2; dog and padding change places
    assert data.inputs.tolist() == [[2, 1, 0], [2, 0, 0]]


def test_a_tokenizer_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ["a", "b"])
    with pytest.raises(SourceError, match="must have a padding token"):
        load(tmp_path, tokenizer=pretrained(tmp_path / "tokenizer", padding=None))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceError, match="tokenizer must be a local folder or an id on the Hugging Face"):
        load(tmp_path, tokenizer=str(tmp_path / "nowhere"))
