"""Text as rows of token numbers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from fedclust.data.cache import new_array
from fedclust.data.dataset import Refit, SourceError, Statistics
from fedclust.data.input_encoders import TextEncoder
from fedclust.data.source import Labels, Part, SourcedDataset, cells_of, check_plain, find_column
from fedclust.typing import BoolArray, IntArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_TOKENIZER = "tokenizer.json"
PADDING, UNKNOWN = "[PAD]", "[UNK]"
CHUNK = 8192  # texts tokenised at a time


@dataclass(frozen=True, kw_only=True)
class Text(SourcedDataset):
    """Texts, each cut or padded to the ``input_shape`` of [number of tokens].

    Attributes
    ----------
    text
        Column with the text; from a list of names, the first that exists is used.
    vocabulary_size
        Number of distinct tokens, which models embed.
    tokenizer
        None: lower-case words and runs of punctuation; the most frequent ones in all clients' training rows
        fill the `vocabulary_size`, with 0 for padding and 1 for any other word. Otherwise a pretrained
        tokenizer, a Hugging Face hub id or a local folder, loaded through transformers; its token 0 and its
        padding token are swapped.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    text: str | Sequence[str] = "text"
    vocabulary_size: Annotated[int, ">= 3"]  # padding, unknown, and a word
    tokenizer: str | None = None

    format: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.input_shape) != 1:
            raise ValueError(f"dataset.input_shape must be [number of tokens], got {list(self.input_shape)}")

    @property
    def texts(self) -> tuple[str, ...]:
        """The text column, by any of its names: codes such as ``007`` are no numbers."""
        return (self.text,) if isinstance(self.text, str) else tuple(self.text)

    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Tokenise the texts, with the training part's vocabulary or a pretrained tokenizer's."""
        texts = self.chunks(parts, labels.kept)
        inputs = self.new_inputs(folder, np.int64, int(labels.kept.sum()), (self.input_shape[0],))
        if self.tokenizer is None:
            _save_texts(texts, folder)
            self._tokenise_anew(folder, np.arange(labels.num_train), inputs, folder)
        else:
            _tokenise(texts, self._pretrained(self.tokenizer), inputs)
        return (), ()

    def chunks(self, parts: Sequence[Part], kept: BoolArray) -> Iterator[list[str]]:
        """Yield the kept texts in order; a missing text is empty.

        Raises
        ------
        SourceError
            If the text column is missing, its cells are lists, or no row has a text.
        """
        name, empty = find_column(parts[0], self.text, "text"), True
        check_plain(parts[0], name)
        for _, cells in cells_of(parts, name, kept, CHUNK):
            if cells:
                texts = ["" if cell is None else normalize("NFC", str(cell)) for cell in cells]
                empty = empty and not any(map(str.strip, texts))
                yield texts
        if empty:
            raise SourceError(f"{name} must have a text in some row, it is empty in all")

    def tokeniser(self, words: Sequence[str]) -> Callable[[list[str]], IntArray]:
        """Return a function from texts to tokens, (n, tokens): pretrained, or with `words` as vocabulary."""
        if self.tokenizer is not None:
            return self._pretrained(self.tokenizer)
        return self.encoder(tokenizer_of(words).to_str()).encode

    def encoder(self, tokenizer: str) -> TextEncoder:
        """Return the encoder of texts, from the content of a ``tokenizer.json``."""
        return TextEncoder(self.texts, int(self.input_shape[0]), tokenizer)

    def refitting(self, folder: Path) -> Refit | None:
        """Return a function that rebuilds the vocabulary from other rows; None for a pretrained tokenizer."""
        if self.tokenizer is not None:
            return None

        def refit(rows: IntArray, target: Path) -> None:
            size = len(np.load(folder / "raw_ends.npy", mmap_mode="r"))
            inputs = new_array(target / "inputs.npy", np.int64, (size, self.input_shape[0]))
            self._tokenise_anew(folder, rows, inputs, target)

        return refit

    def encoding_of(self, folder: Path, rows: IntArray, refitted: Path) -> TextEncoder | None:  # noqa: ARG002
        """Return the encoder of texts; None with a pretrained tokenizer. See :attr:`Dataset.encoder`."""
        if self.tokenizer is not None:
            return None
        anew = refitted / _TOKENIZER
        return self.encoder((anew if anew.is_file() else folder / _TOKENIZER).read_text(encoding="utf-8"))

    def _tokenise_anew(self, folder: Path, rows: IntArray, inputs: NDArray[Any], target: Path) -> None:
        """Tokenise the texts kept in `folder` into `inputs`, with the vocabulary of `rows`."""
        from tokenizers import trainers

        tokenizer = tokenizer_of(())
        # The most frequent words; ties are broken alphabetically.
        trainer = trainers.WordLevelTrainer(
            vocab_size=self.vocabulary_size, special_tokens=[PADDING, UNKNOWN], show_progress=False
        )
        tokenizer.train_from_iterator(_texts(folder, rows), trainer)
        tokenizer.save(str(target / _TOKENIZER))  # to use a trained model on new text
        own = self.encoder(tokenizer.to_str())
        _tokenise(_texts(folder, np.arange(len(inputs))), own.encode, inputs)

    def _pretrained(self, tokenizer: str) -> Callable[[list[str]], IntArray]:
        from transformers import AutoTokenizer

        try:
            # Without this, transformers asks on the terminal whether to run a tokenizer's own code.
            loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
        except (OSError, ValueError) as error:
            rule = "tokenizer must be a local folder or an id on the Hugging Face hub (needs a network)"
            raise SourceError(f"{rule}, got {tokenizer!r}: {error}") from error
        if (size := len(loaded)) > self.vocabulary_size:
            rule = f"vocabulary_size must be at least {size}, the size of tokenizer {tokenizer}"
            raise SourceError(f"{rule}, got {self.vocabulary_size}")
        if loaded.pad_token is None:
            raise SourceError(f"tokenizer {tokenizer} must have a padding token, got none")

        def tokenise(texts: list[str]) -> IntArray:
            options: dict[str, Any] = {"padding": "max_length", "truncation": True, "return_tensors": "np"}
            tokens: IntArray = loaded(texts, max_length=self.input_shape[0], **options)["input_ids"]
            # Our networks treat token 0 as padding: swap it with the tokenizer's padding token.
            swapped = np.where(tokens == 0, loaded.pad_token_id, tokens)
            return np.where(tokens == loaded.pad_token_id, 0, swapped)

        return tokenise


def _tokenise(
    chunks: Iterator[list[str]], tokenise: Callable[[list[str]], IntArray], inputs: NDArray[Any]
) -> None:
    start = 0
    for chunk in chunks:
        inputs[start : start + len(chunk)] = tokenise(chunk)
        start += len(chunk)


def _save_texts(chunks: Iterator[list[str]], folder: Path) -> None:
    """Save the texts, concatenated in UTF-8, and the position where each ends."""
    encoded = [text.encode("utf-8", "replace") for chunk in chunks for text in chunk]
    np.save(folder / "raw_ends.npy", np.cumsum([len(text) for text in encoded], dtype=np.int64))
    np.save(folder / "raw_texts.npy", np.frombuffer(b"".join(encoded), dtype=np.uint8))


def _texts(folder: Path, rows: IntArray) -> Iterator[list[str]]:
    """Yield the texts of `rows` that :func:`_save_texts` saved, in chunks."""
    texts = np.load(folder / "raw_texts.npy", allow_pickle=False)
    ends = np.load(folder / "raw_ends.npy", allow_pickle=False)
    starts = np.append(0, ends)[:-1]
    for first in range(0, len(rows), CHUNK):
        chosen = rows[first : first + CHUNK]
        bounds = zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)
        yield [texts[start:end].tobytes().decode() for start, end in bounds]


def tokenizer_of(words: Sequence[str]) -> "Tokenizer":
    """Return a tokenizer with a vocabulary: tokens 0 and 1 are padding and unknown, `words` follow."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {word: token for token, word in enumerate((PADDING, UNKNOWN, *words))} if words else {}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def count_words(texts: Iterable[str]) -> dict[str, int]:
    """Count the words of texts as a vocabulary does: lower-case, and runs of punctuation."""
    empty = tokenizer_of(())
    lowered = map(empty.normalizer.normalize_str, texts)
    words = (word for text in lowered for word, _ in empty.pre_tokenizer.pre_tokenize_str(text))
    return dict(Counter(words))  # dataclasses.asdict cannot copy a Counter
