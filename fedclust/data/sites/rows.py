"""Read a site's rows, divide them into its clients and their parts, and describe them to the other sites."""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedclust.data.builder import SourcedDataset
from fedclust.data.cache import cache_root, digest, map_array, prepared
from fedclust.data.images import Images, pixel_counts
from fedclust.data.input_encoders import category_texts, numbers_of
from fedclust.data.protocols import hold_out_client, holdout
from fedclust.data.sites.agreement import (
    CATEGORY,
    EMPTY,
    NUMBER,
    Column,
    Kind,
    Moments,
    Pixels,
    Statement,
    Wanted,
)
from fedclust.data.sites.own import Own, SiteError
from fedclust.data.source import Labels, Part, encode_natural, read_labels, values_of
from fedclust.data.tables import Tables, suspicion
from fedclust.data.text import Text, words_of
from fedclust.support.rng import generator
from fedclust.typing import BoolArray, IntArray

if TYPE_CHECKING:
    pass


_FORMAT = 1
_CHUNK = 1024  # images counted at a time
_TEST = "own test part"
_LONGEST = 300  # characters of a client's name, as records allow
_UNKNOWN_YET = {"num_classes": 2, "class_names": None, "category_sizes": None, "hub": None}


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class SiteRows:
    """The rows of a site before they are encoded.

    Attributes
    ----------
    name
        The site's name.
    builder
        Reads the rows, with the site's own path.
    parts
        The source's training part and, where it has one, its test part.
    kept
        Which rows of the source are kept, shape (rows of the source,).
    labels
        Label of each kept row as the source has it, shape (N,): whole numbers, numbers, or texts.
    num_train
        Kept rows of the source's training part.
    clients
        Names of the site's clients, sorted.
    train, test, validation
        Kept rows of each client's parts; no validation parts where none are held out.
    left_out
        Names of clients with too few rows, and their numbers of rows.
    """

    name: str
    builder: SourcedDataset
    parts: Sequence[Part]
    kept: BoolArray
    labels: NDArray[Any]
    num_train: int
    clients: tuple[str, ...]
    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    validation: tuple[IntArray, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def trained(self) -> IntArray:
        """Rows that some client trains on, sorted; every fit is on these."""
        return np.sort(np.concatenate(self.train))


def builder_of(dataset: Mapping[str, Any], path: Path) -> SourcedDataset:
    """Build the reader of a site's data.

    Parameters
    ----------
    dataset
        The ``dataset`` node of the run, without what is not known yet.
    path
        The site's own file or folder; the run's own ``path`` is ignored.

    Raises
    ------
    SiteError
        If the dataset cannot be a site's own file.
    ValueError
        If a setting is out of range.
    """
    from hydra.utils import get_class

    kind = get_class(dataset["_target_"])
    if not issubclass(kind, Tables | Images | Text):
        raise SiteError(
            "partition=own reads tables, images and texts, such as dataset=csv, image_folder and text, "
            f"got dataset {dataset.get('name', kind.__name__)}"
        )
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = {key: value for key, value in _UNKNOWN_YET.items() if key in known}
    given = {"input_shape": [1], **dataset, **unknown, "path": str(path)}
    return kind(**{key: value for key, value in given.items() if not key.startswith("_")})


def read_site(name: str, builder: SourcedDataset, own: Own, seed: int) -> SiteRows:
    """Read a site's rows and divide them.

    A site is one client of its name, or, with a ``natural`` column, one client per value of it, such as
    ``north/ward-3``. Which rows train and which test depends on the seed and the client's name, and not on
    any other client.

    Parameters
    ----------
    name
        The site's name.
    builder
        As :func:`builder_of` makes it.
    own
        The run's settings.
    seed
        The run's seed.

    Raises
    ------
    SiteError
        If the rows cannot be read or are too few; the message holds no path.
    """
    with private(builder):
        opened = builder.source().open()
        parts = [builder._filtered(part) for part in opened if part is not None]
        if builder.per_position:
            raise SiteError("partition=own needs one label per row, got dataset.per_position=true")
        arrays, kept = read_labels(parts, builder.label, builder.drop_labels)
        labels = canonical_labels(np.concatenate(arrays))
        owner, names = encode_natural(parts, builder.natural, kept) or (
            np.zeros(len(labels), np.int64),
            ("",),
        )
        clients = [f"{name}/{each}" if each else name for each in names]
        num_train = len(arrays[0])
        if own.test == "official" and num_train == len(labels):
            raise SiteError("partition.test=official needs a test file, the site has none")
        if unfit := [each for each in clients if len(each) > _LONGEST or not each.isprintable()]:
            raise SiteError(
                f"names of clients must be at most {_LONGEST} printable characters, got {unfit[0]!r}"
            )
        held, left_out = _divided(clients, owner, labels, num_train, own, seed)
        train, test, validation = (tuple(each) for each in zip(*held.values(), strict=True))
        return SiteRows(
            name,
            builder,
            parts,
            kept,
            labels,
            num_train,
            tuple(held),
            train,
            test,
            validation if own.fraction else (),
            left_out,
        )


def _divided(
    clients: Sequence[str],
    owner: IntArray,
    labels: NDArray[Any],
    num_train: int,
    own: Own,
    seed: int,
) -> tuple[dict[str, tuple[IntArray, IntArray, IntArray]], dict[str, int]]:
    """Return the training, test and validation rows of each client by name, and who has too few rows."""
    ranks = np.unique(labels, return_inverse=True)[1].reshape(-1)
    seed = seed if own.seed is None else own.seed
    found: dict[str, tuple[IntArray, IntArray, IntArray]] = {}
    left_out: dict[str, int] = {}
    for number in sorted(range(len(clients)), key=lambda number: clients[number]):
        rows, name = np.flatnonzero(owner == number), clients[number]
        if len(rows) < own.min_samples:
            left_out[name] = len(rows)
            continue
        train, test = (
            (rows[rows < num_train], rows[rows >= num_train])
            if own.test == "official"
            else parts_of(rows, ranks, own.test_fraction, seed, name)
        )
        if not len(train):
            left_out[name] = 0
            continue
        held = hold_out_client(len(train), own.fraction, seed, key_of(name))
        found[name] = np.delete(train, held), test, train[held]
    if not found:
        most = max(left_out.values(), default=0)
        raise SiteError(f"a client must have at least {own.min_samples} rows, got {most}")
    return found, left_out


def parts_of(
    rows: IntArray, labels: IntArray, fraction: float, seed: int, name: str
) -> tuple[IntArray, IntArray]:
    """Hold out a client's test rows, as :func:`fedclust.data.protocols.holdout` does, from its name alone.

    Parameters
    ----------
    rows
        The client's rows, at least 2.
    labels
        Class of every row of the site.
    fraction
        Share to hold out, in (0, 1).
    seed, name
        What the draw comes from.

    Returns
    -------
    Training rows and test rows, each sorted.
    """
    draws = generator(seed, _TEST, key_of(name))
    held = holdout(np.zeros(len(rows), np.int64), labels[rows], fraction, draws)
    return rows[~held], rows[held]


def key_of(name: str) -> int:
    """Return a whole number that stands for a name in :func:`fedclust.support.rng.generator`, below 2^64."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def canonical_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Write labels alike at every site: whole numbers as int64, other numbers as float64, else texts.

    A column of whole numbers is read as floats where one is missing, and truth values as 0 and 1.
    """
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    if labels.dtype.kind == "f":
        whole = bool((labels == np.round(labels)).all())
        return labels.astype(np.int64 if whole else np.float64)
    return np.array([str(label) for label in labels])


@contextmanager
def private(builder: SourcedDataset) -> Iterator[None]:
    """Turn errors about a site's data into a :class:`SiteError` without its path."""
    try:
        yield
    except SiteError:
        raise
    # pyarrow's, pandas' and torch's errors are among these
    except (ValueError, OSError, LookupError, TypeError, RuntimeError) as error:
        raise SiteError(_without_path(str(error), str(builder.path))) from error


def _without_path(text: str, path: str) -> str:
    absolute = Path(path).expanduser().absolute()
    text = text.partition("; give dataset.path=")[0]  # what helps where rows are pooled
    for root in sorted({str(absolute), path, str(absolute.parent)}, key=len, reverse=True):
        if len(root) > 1:
            text = re.sub(re.escape(root) + r"[^\s,;:()]*", "its data", text)
    return " ".join(text.split())


def describe(rows: SiteRows) -> Statement:
    """Describe a site's rows as far as all sites must know them to encode theirs alike.

    Raises
    ------
    SiteError
        If the rows cannot be read.
    """
    labels = tuple(np.unique(rows.labels).tolist())
    builder = rows.builder
    with private(builder):
        if isinstance(builder, Tables):
            kinds = builder.kinds(rows.parts[0])
            return Statement(labels, {name: _column(rows, name, kind) for name, kind in kinds.items()})
        if isinstance(builder, Images):
            return Statement(labels, pixels=_pixels(rows))
        if not isinstance(builder, Text) or builder.tokenizer is not None:
            return Statement(labels)
        texts = texts_of(rows)
        return Statement(labels, words=Counter(word for row in rows.trained for word in words_of(texts[row])))


def _column(rows: SiteRows, name: str, kind: Kind | None) -> Column:
    builder = rows.builder
    values = values_of(rows.parts, name, rows.kept)
    trained = values.iloc[rows.trained]
    if values.isna().all():
        return Column(EMPTY, Moments(rows=len(trained)))
    if kind is None:
        return Column(CATEGORY, unfit="its type")
    assert isinstance(builder, Tables)  # chosen by its type, see describe
    if builder.chooses and name not in builder.keep and (reason := suspicion(name, values)):
        # Without the example of a value that a reason ends with.
        return Column(kind, unfit=reason.partition(", such as")[0].partition(", from")[0])
    if kind == NUMBER:
        try:
            trained = trained.astype(np.float64)
        except (TypeError, ValueError):
            return Column(CATEGORY)  # texts where numbers are wanted: nothing is said of them
        return Column(NUMBER, Moments.of(numbers_of(trained)))
    texts = category_texts(values)
    # As in pooled data, the whole training part of the source decides which categories have a column.
    known = sorted(set(texts[: rows.num_train]))
    here = set(texts[rows.trained])
    return Column(CATEGORY, values=tuple(known), trained=tuple(each in here for each in known))


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
    shape, size = tuple(builder.input_shape), None
    if isinstance(builder, Text) and builder.tokenizer is None:
        size = builder.vocabulary_size
    return Wanted(num_classes, class_names, vocabulary_size=size, input_shape=shape)


def images_of(rows: SiteRows) -> NDArray[Any]:
    """Decode a site's images into the cache; return them, uint8, shape (N, channels, height, width)."""
    builder = rows.builder
    assert isinstance(builder, Images)  # chosen by its type
    key = digest(_FORMAT, builder.identity(), list(builder.input_shape), builder.resize, rows.name)
    labels = Labels(np.zeros(len(rows.labels), np.int64), rows.kept, rows.num_train, ())
    folder = cache_root() / "sites" / f"images-{key[:16]}"

    def decode(scratch: Path) -> None:
        builder.encode(rows.parts, labels, scratch)

    return map_array(prepared(folder, decode) / "inputs.npy")


def _pixels(rows: SiteRows) -> tuple[Pixels, ...]:
    """Count the pixels of the source's training part, as in pooled data: images are not fitted anew."""
    images = images_of(rows)
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, rows.num_train, _CHUNK):
        counts += pixel_counts(np.asarray(images[start : min(start + _CHUNK, rows.num_train)]))
    values = np.arange(256)
    return tuple(Pixels(int(each.sum()), int(each @ values), int(each @ values**2)) for each in counts)


def texts_of(rows: SiteRows) -> list[str]:
    """Read a site's texts, as :class:`Text` keeps them."""
    assert isinstance(rows.builder, Text)  # chosen by its type
    chunks = rows.builder.chunks(rows.parts, rows.kept)
    return [text.encode("utf-8", "replace").decode() for chunk in chunks for text in chunk]
