"""Text as rows of token numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclust.data.columns import Labels, find_column
from fedclust.data.source import Part, SourceError
from fedclust.data.sourced import SourcedDataset, Statistics
from fedclust.typing import BoolArray, IntArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Text"]

PADDING, UNKNOWN = "[PAD]", "[UNK]"
CHUNK = 8192  # texts tokenised at a time


@dataclass(frozen=True, kw_only=True)
class Text(SourcedDataset):
    """Texts, each cut or padded to the ``input_shape`` of [number of tokens].

    Attributes
    ----------
    text
        Column with the text; of a list of names, the first that exists.
    vocabulary_size
        Number of different tokens a model must be able to embed.
    tokenizer
        None: lower-case words and runs of punctuation, of which the training part's `vocabulary_size` most
        frequent are kept, 0 being padding and 1 any other word; without a test part of the source all texts
        are the training part. Otherwise a pretrained tokenizer, by id on the Hugging Face hub or as a local
        folder, loaded through transformers; its token 0 and its padding change places.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    text: str | Sequence[str] = "text"
    vocabulary_size: int
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.input_shape) != 1:
            raise ValueError(
                f"dataset.input_shape must be [number of tokens] for text, got {list(self.input_shape)}"
            )
        if self.vocabulary_size < 3:
            raise ValueError(
                "dataset.vocabulary_size must be >= 3 (padding, unknown, and a word), "
                f"got {self.vocabulary_size}"
            )

    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Tokenise the texts, with the training part's vocabulary or a pretrained tokenizer's."""
        name = find_column(parts[0], self.text, self.name, "text")
        if self.tokenizer is None:
            training = _chunks(parts[:1], name, labels.kept)
            tokenise = self._own(_train(training, self.vocabulary_size), folder)
        else:
            tokenise = self._pretrained(self.tokenizer)
        length = self.input_shape[0]
        inputs = self.new_inputs(folder, np.int64, int(labels.kept.sum()), (length,))
        start = 0
        for chunk in _chunks(parts, name, labels.kept):
            inputs[start : start + len(chunk)] = tokenise(chunk)
            start += len(chunk)
        return Statistics()

    def _own(self, tokenizer: "Tokenizer", folder: Path) -> Callable[[list[str]], IntArray]:
        length = self.input_shape[0]
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length, pad_id=0, pad_token=PADDING)
        tokenizer.save(str(folder / "tokenizer.json"))  # to use a trained model on new text

        def tokenise(texts: list[str]) -> IntArray:
            return np.array([encoding.ids for encoding in tokenizer.encode_batch_fast(texts)], dtype=np.int64)

        return tokenise

    def _pretrained(self, tokenizer: str) -> Callable[[list[str]], IntArray]:
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(tokenizer)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"dataset {self.name}: tokenizer must be a local folder or an id on the Hugging Face hub "
                f"(needs a network), got {tokenizer!r}: {error}"
            ) from error
        if len(loaded) > self.vocabulary_size:
            raise SourceError(
                f"dataset {self.name}: vocabulary_size must be at least {len(loaded)}, the size of tokenizer "
                f"{tokenizer}, got {self.vocabulary_size}"
            )
        if loaded.pad_token is None:
            raise SourceError(f"dataset {self.name}: tokenizer {tokenizer} must have a padding token")

        def tokenise(texts: list[str]) -> IntArray:
            options: dict[str, Any] = {"padding": "max_length", "truncation": True, "return_tensors": "np"}
            tokens: IntArray = loaded(texts, max_length=self.input_shape[0], **options)["input_ids"]
            # Our networks read token 0 as padding: the tokenizer's own and its 0 change places.
            swapped = np.where(tokens == 0, loaded.pad_token_id, tokens)
            return np.where(tokens == loaded.pad_token_id, 0, swapped)

        return tokenise


def _chunks(parts: Sequence[Part], name: str, kept: BoolArray) -> Iterator[list[str]]:
    """Read the kept texts in order, a missing one as an empty text."""
    position = 0
    for part in parts:
        for batch in part.rows.to_batches(columns=[name], batch_size=CHUNK):
            wanted = kept[position : position + len(batch)]
            position += len(batch)
            texts = zip(batch.column(0).to_pylist(), wanted, strict=True)
            chunk = ["" if text is None else str(text) for text, keep in texts if keep]
            if chunk:
                yield chunk


def _train(texts: Iterator[list[str]], vocabulary_size: int) -> "Tokenizer":
    """Learn a vocabulary of words: the most frequent ones, ties by the alphabet."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary_size, special_tokens=[PADDING, UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
