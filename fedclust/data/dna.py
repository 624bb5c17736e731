"""DNA sequences as k-mer tokens or one-hot bases."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np

from fedclust.data.dataset import SourceError, Statistics
from fedclust.data.source import Labels, Part, SourcedDataset, cells_of, find_column
from fedclust.typing import FloatArray, IntArray

Padding: TypeAlias = Literal["valid", "same"]

BASES = "ACGT"
CHUNK = 8192  # sequences encoded at a time


@dataclass(frozen=True, kw_only=True)
class Dna(SourcedDataset):
    """Sequences of A, C, G and T (upper or lower case), all of equal length; other letters are unknown.

    Attributes
    ----------
    sequence
        Column with the sequences; from a list of names, the first that exists is used.
    encoding
        ``"kmer"``: every k consecutive bases are one token, int64; ``"onehot"``: float32 of shape (4, bases).
    k
        Bases per token.
    padding
        ``"valid"``: only tokens inside the sequence, k − 1 fewer than bases. ``"same"``: a token centred on
        every base, for labels per base; tokens that extend past an end are unknown.
    vocabulary_size
        Number of distinct tokens: 4^k + 1, where token 0 stands for any with an unknown base.
    by_frequency
        Whether tokens are numbered by how often they occur in the source, as word2vec's vocabulary is, the
        most frequent being 1; otherwise in alphabetical order.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    sequence: str | Sequence[str] = "sequence"
    encoding: Literal["kmer", "onehot"] = "kmer"
    k: Annotated[int, "in [1, 12]"] = 3
    padding: Padding = "valid"
    vocabulary_size: int | None = None
    by_frequency: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        tokens, size = 4**self.k + 1, self.vocabulary_size
        if self.encoding == "kmer" and size != tokens:
            raise ValueError(f"dataset.vocabulary_size must be {tokens} for k = {self.k}, got {size}")
        if self.by_frequency and self.encoding != "kmer":
            raise ValueError(f"dataset.by_frequency must be false for encoding={self.encoding}, got true")

    def encode(self, parts: Sequence[Part], labels: Labels, folder: Path) -> Statistics:
        """Encode the sequences in chunks."""
        rows, start, inputs = int(labels.kept.sum()), 0, np.empty(0)
        counts = np.zeros(4**self.k + 1, dtype=np.int64)
        for codes in self._codes(parts, labels):
            encoded = kmers(codes, self.k, self.padding) if self.encoding == "kmer" else one_hot(codes)
            if not start:
                inputs = self.new_inputs(folder, encoded.dtype.type, rows, encoded.shape[1:])
            inputs[start : start + len(encoded)] = encoded
            start += len(encoded)
            if self.by_frequency:
                counts += np.bincount(encoded.ravel(), minlength=len(counts))
        if self.by_frequency:
            numbers = ranks(counts)
            for first in range(0, rows, CHUNK):
                inputs[first : first + CHUNK] = numbers[inputs[first : first + CHUNK]]
        return (), ()

    def _codes(self, parts: Sequence[Part], labels: Labels) -> Iterator[IntArray]:
        """Yield the kept sequences as numbers: A, C, G, T are 0 to 3, any other letter is −1."""
        name = find_column(parts[0], self.sequence, "sequence")
        numbers = np.full(256, -1, dtype=np.int64)
        for number, base in enumerate(BASES):
            numbers[[ord(base), ord(base.lower())]] = number
        length: int | None = None
        for position, sequences in cells_of(parts, name, labels.kept, CHUNK):
            if length is None and sequences:
                length = len(sequences[0] or "")
            if wrong := [len(each or "") for each in sequences if len(each or "") != length]:
                rule = f"every sequence must have {length} bases as the first has"
                raise SourceError(f"{rule}, got {wrong[0]} in one of the rows from {position} on")
            if sequences:
                letters = np.frombuffer("".join(sequences).encode("ascii", "replace"), dtype=np.uint8)
                yield numbers[letters].reshape(len(sequences), -1)


def kmers(codes: IntArray, k: int, padding: Padding) -> IntArray:
    """Compute the token of every k consecutive bases.

    Parameters
    ----------
    codes
        Bases 0 to 3, −1 for unknown, shape (n, bases).
    k, padding
        See :class:`Dna`. For even k, a centred token has one more base after its centre than before.

    Returns
    -------
    1 + the k bases read as a number in base 4, or 0 where one of them is unknown; shape
    (n, bases − k + 1) or, padded, (n, bases).
    """
    if padding == "same":
        codes = np.pad(codes, ((0, 0), ((k - 1) // 2, k // 2)), constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(codes, k, axis=1)
    tokens = windows @ (4 ** np.arange(k - 1, -1, -1)) + 1
    tokens[(windows < 0).any(axis=-1)] = 0
    return tokens


def ranks(counts: IntArray) -> IntArray:
    """Number tokens by frequency.

    Parameters
    ----------
    counts
        Number of occurrences of each token, shape (V,); token 0 stands for unknown bases and stays 0.

    Returns
    -------
    The new number of each token, shape (V,): 1 for the most frequent; the lower number first on a tie.
    """
    order = np.argsort(-counts[1:], kind="stable") + 1
    numbers = np.zeros(len(counts), dtype=np.int64)
    numbers[order] = np.arange(1, len(counts))
    return numbers


def one_hot(codes: IntArray) -> FloatArray:
    """Encode bases one-hot, float32, shape (n, 4, bases); an unknown base is all zeros."""
    return (codes[:, None, :] == np.arange(len(BASES))[:, None]).astype(np.float32)
