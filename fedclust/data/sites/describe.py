"""What a site says of its rows before round 1."""

from collections import Counter

import numpy as np

from fedclust.data.builder import SourcedDataset
from fedclust.data.cache import cache_root, digest, map_array, prepared
from fedclust.data.images import Images, pixel_counts
from fedclust.data.sites.agreement import Wanted
from fedclust.data.sites.own import SiteError
from fedclust.data.sites.reading import SiteRows, private
from fedclust.data.sites.statement import Pixels, Statement
from fedclust.data.sites.tables import columns_of
from fedclust.data.source import Labels, find_column
from fedclust.data.tables import Tables
from fedclust.data.text import Text, _chunks, words_of

__all__ = ["describe", "images_folder", "texts_of", "wanted_of"]

_FORMAT = 1
_CHUNK = 1024  # images counted at a time


def describe(rows: SiteRows) -> Statement:
    """Say of a site's rows what all sites must know to encode theirs alike.

    Raises
    ------
    SiteError
        If the rows cannot be read, or are of a dataset that sites cannot agree on.
    """
    labels = tuple(np.unique(rows.labels).tolist())
    with private(rows.builder):
        if isinstance(rows.builder, Tables):
            return Statement(labels, columns=columns_of(rows))
        if isinstance(rows.builder, Images):
            return Statement(labels, pixels=_pixels(rows))
        if isinstance(rows.builder, Text):
            return Statement(labels, words=_words(rows, rows.builder))
    raise SiteError(f"partition=own reads tables, images and texts, got dataset {rows.builder.name}")


def wanted_of(
    builder: SourcedDataset, num_classes: int | None, class_names: tuple[str, ...] | None
) -> Wanted:
    """Return what a run's configuration says of the encoding.

    Parameters
    ----------
    builder
        Made of the run's ``dataset`` node.
    num_classes, class_names
        Those of the node; None where it has none.
    """
    if isinstance(builder, Tables):
        return Wanted(
            num_classes,
            class_names,
            columns=True,
            numbers=None if builder.numbers is None else tuple(builder.numbers),
            categories=None if builder.categories is None else tuple(builder.categories),
            encoding=builder.encoding,
        )
    counted = isinstance(builder, Text) and builder.tokenizer is None
    return Wanted(
        num_classes,
        class_names,
        vocabulary_size=builder.vocabulary_size if isinstance(builder, Text) and counted else None,
        input_shape=tuple(builder.input_shape),
    )


def images_folder(rows: SiteRows) -> "np.ndarray":
    """Decode a site's images into the cache; return them, uint8, shape (N, channels, height, width)."""
    builder = rows.builder
    key = digest(_FORMAT, builder.identity(), list(builder.input_shape), vars(builder)["resize"], rows.name)
    labels = Labels(np.zeros(len(rows.labels), np.int64), rows.kept, rows.num_train, ())
    folder = cache_root() / "sites" / f"images-{key[:16]}"
    return map_array(prepared(folder, lambda scratch: _decode(rows, labels, scratch)) / "inputs.npy")


def _decode(rows: SiteRows, labels: Labels, scratch: "object") -> None:
    rows.builder.encode(rows.parts, labels, scratch)  # type: ignore[arg-type]


def _pixels(rows: SiteRows) -> tuple[Pixels, ...]:
    """Count the pixels of the source's training part, as in pooled data: images are not fitted anew."""
    images = images_folder(rows)
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, rows.num_train, _CHUNK):
        counts += pixel_counts(np.asarray(images[start : min(start + _CHUNK, rows.num_train)]))
    values = np.arange(256)
    return tuple(Pixels(int(each.sum()), int(each @ values), int(each @ values**2)) for each in counts)


def texts_of(rows: SiteRows) -> list[str]:
    """Read a site's texts, as :class:`Text` keeps them."""
    builder = rows.builder
    assert isinstance(builder, Text)  # chosen by its type
    name = find_column(rows.parts[0], builder.text, builder.name, "text")
    chunks = _chunks(rows.parts, name, rows.kept)
    return [text.encode("utf-8", "replace").decode() for chunk in chunks for text in chunk]


def _words(rows: SiteRows, builder: Text) -> dict[str, int]:
    if builder.tokenizer is not None:
        return {}
    texts = texts_of(rows)
    counts: Counter[str] = Counter()
    for row in rows.trained:
        counts.update(words_of(texts[row]))
    return dict(counts)
