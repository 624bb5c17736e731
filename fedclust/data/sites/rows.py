"""A site's rows: reading, division into clients' parts, description for other sites, and encoding."""

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.data import cache
from fedclust.data.check import ELSEWHERE, Finding, lines, not_classes
from fedclust.data.dataset import FederatedData, SourceError
from fedclust.data.images import Images, pixel_counts
from fedclust.data.input_encoders import InputEncoder, category_texts, numbers_of
from fedclust.data.partition import IN_BOTH_FILES, hold_out, holdout
from fedclust.data.sites import OwnSitesPartition, SiteError, agreement
from fedclust.data.source import UNREADABLE, Labels, Part, column, find_column, table_of, whole_numbers
from fedclust.data.tables import Kind, Tables
from fedclust.data.text import Text, count_words, tokenizer_of
from fedclust.support.reasons import is_open, reason_of
from fedclust.support.rng import generator
from fedclust.typing import BoolArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

_FORMAT = 2
_PUBLIC = attrgetter("public")
_CHUNK = 1024  # images counted at a time
_TEST = "own test part"
_LONGEST = 300  # characters of a client's name, as records allow
_UNKNOWN_YET = {"num_classes": 2, "class_names": None, "category_sizes": None, "hub": None, "sha256": None}

Builder: TypeAlias = Tables | Images | Text


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
        The source's training part and, if it has one, its test part.
    kept
        Which rows of the source are kept, shape (rows of the source,).
    labels
        Label of each kept row as the source has it, shape (N,): whole numbers, numbers, or texts.
    num_train
        Kept rows of the source's training part.
    clients
        Names of the site's clients, sorted.
    train, test, validation
        Kept rows of each client's parts; `validation` is empty if no rows are held out.
    findings
        What should be looked at in the data; see :mod:`fedclust.data.check`.
    persons
        Number of the person that each kept row is of, shape (N,); None without a key.
    """

    name: str
    builder: Builder
    parts: Sequence[Part]
    kept: BoolArray
    labels: NDArray[Any]
    num_train: int
    clients: tuple[str, ...]
    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    validation: tuple[IntArray, ...] = ()
    findings: Sequence[Finding] = ()
    persons: IntArray | None = None

    @property
    def trained(self) -> IntArray:
        """Rows that some client trains on, sorted; everything is fitted on these."""
        return np.sort(np.concatenate(self.train))


def builder_of(dataset: Mapping[str, Any], path: Path) -> Builder:
    """Build the reader of a site's data.

    Parameters
    ----------
    dataset
        The ``dataset`` node of the run; values that are not yet known may be missing.
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
        rule = "partition=own reads tables, images and texts, such as dataset=csv, image_folder and text"
        raise SiteError(f"{rule}, got dataset {dataset.get('name', kind.__name__)}")
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = {key: value for key, value in _UNKNOWN_YET.items() if key in known}
    given = {"input_shape": [1], **dataset, **unknown, "path": str(path)}
    return kind(**{key: value for key, value in given.items() if not key.startswith("_")})


def read_site(name: str, builder: Builder, own: OwnSitesPartition, seed: int) -> SiteRows:
    """Read a site's rows and divide them into its clients' parts.

    A site is one client with its name or, with a ``natural`` column, one client per value of that column,
    such as ``north/ward-3``. Which rows train and which test depends only on the seed and the client's name.

    Parameters
    ----------
    name
        The site's name.
    builder
        Result of :func:`builder_of`.
    own
        The run's settings.
    seed
        The run's seed.

    Raises
    ------
    SiteError
        If the rows cannot be read or are too few; the message holds no path.
    """
    with private(builder), builder.opened() as parts:
        if builder.per_position:
            raise SiteError("partition=own needs one label per row, got dataset.per_position=true")
        builder = dataclasses.replace(builder, group=own.group)
        findings = _checked(builder, parts)
        arrays, kept = builder.read_labels(parts)
        labels, num_train = whole_numbers(np.concatenate(arrays)), len(arrays[0])
        named = builder.names_in(parts[0])
        if named and labels.min() >= 0:  # the names' order may be another at each site
            labels = np.array(named)[labels]
        if labels.dtype.kind not in "if":  # the same at every site
            labels = np.array([str(label) for label in labels])
        owner, names = builder.encode_natural(parts, kept) or (np.zeros(len(labels), np.int64), ("",))
        clients = [f"{name}/{each}" if each else name for each in names]
        if own.test == "official" and num_train == len(labels):
            raise SiteError("partition.test=official needs a test file, the site has none")
        if unfit := [each for each in clients if len(each) > _LONGEST or not each.isprintable()]:
            rule = f"names of clients must be at most {_LONGEST} printable characters"
            raise SiteError(f"{rule}, got {unfit[0]!r}")
        ranks = np.unique(labels, return_inverse=True)[1].reshape(-1)
        persons = builder.persons(parts, kept)
        person = np.arange(len(labels)) if persons is None else persons
        seed = seed if own.seed is None else own.seed
        held: dict[str, tuple[IntArray, IntArray]] = {}
        sizes = [0]  # of clients that are left out
        for client, number in sorted((client, number) for number, client in enumerate(clients)):
            rows = np.flatnonzero(owner == number)
            people, first = np.unique(person[rows], return_index=True)
            if len(people) < own.min_samples:
                sizes.append(len(people))
                continue
            if own.test == "official":
                tested = rows >= num_train
                if np.isin(person[rows[tested]], person[rows[~tested]]).any():
                    raise SiteError(IN_BOTH_FILES)
            else:  # as for pooled data, but by the client's name alone
                draws = generator(seed, _TEST, key_of(client))
                alone = np.zeros(len(people), np.int64)
                chosen = holdout(alone, ranks[rows[first]], own.test_fraction, draws)
                tested = np.isin(person[rows], people[chosen])
            if not tested.all():
                held[client] = rows[~tested], rows[tested]
        if not held:
            what = "rows" if persons is None else "persons"
            raise SiteError(f"a client must have at least {own.min_samples} {what}, got {max(sizes)}")
        fitted = {key_of(client): train for client, (train, _) in held.items()}
        train, validation = hold_out(fitted, own.fraction, seed, person)
        test = tuple(rows for _, rows in held.values())
        about = name, builder, parts, kept, labels, num_train, tuple(held), train, test
        return SiteRows(*about, validation if own.fraction else (), findings, persons)


def _checked(builder: Builder, parts: Sequence[Part]) -> Sequence[Finding]:
    """Check a site's data.

    Raises
    ------
    SiteError
        If something must be mended first; without a value, a count or a path.
    """
    if isinstance(builder, Tables):
        found = builder.findings(parts)
    elif isinstance(builder, Text):
        found = not_classes(column(parts[0], find_column(parts[0], builder.label, "label")).to_pandas())
    else:
        return ()
    if errors := [each for each in found if each.severity == "error" and each.rule not in ELSEWHERE]:
        raise SiteError(f"{'; '.join(lines(errors, 3, _PUBLIC))}; fedclust check FILE shows where")
    return found


def key_of(name: str) -> int:
    """Return a whole number that stands for a name in :func:`fedclust.support.rng.generator`, below 2^64."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


@contextmanager
def private(builder: Builder) -> Iterator[None]:
    """Convert errors about a site's data to a :class:`SiteError` without its path."""
    try:
        yield
    except SiteError:
        raise
    except UNREADABLE as error:
        raise SiteError(_without_path(_own_words(error), str(builder.path))) from error


def _own_words(error: Exception) -> str:
    """Return an error's text; on a deployed node without what libraries say, who may quote a row."""
    if is_open():
        return str(error)
    cause: BaseException | None = error
    while isinstance(cause, SourceError):
        cause = cause.__cause__
    if cause is None:
        return str(error)
    withheld, said = reason_of(cause, "reading the data"), " ".join(str(cause).split())
    return withheld if cause is error or not said else str(error).replace(said, withheld)


def _without_path(text: str, path: str) -> str:
    absolute = Path(path).expanduser().absolute()
    for pooled_advice in ("; give dataset.path=", " (read from "):
        text = text.partition(pooled_advice)[0]
    for root in sorted({str(absolute), path, str(absolute.parent)}, key=len, reverse=True):
        if len(root) > 1:
            text = re.sub(re.escape(root) + r"[^\s,;:()]*", "its data", text)
    return " ".join(text.split())


def describe(rows: SiteRows) -> agreement.Statement:
    """Describe a site's rows as far as needed to agree on an encoding.

    Raises
    ------
    SiteError
        If the rows cannot be read.
    """
    builder, size = rows.builder, rows.num_train
    warnings = lines((each for each in rows.findings if each.rule not in ELSEWHERE), 6, _PUBLIC)
    labels = tuple(np.unique(rows.labels).tolist())
    statement = agreement.Statement(labels, warnings=tuple(line[:900] for line in warnings))
    with private(builder):
        if isinstance(builder, Tables):
            kinds = builder.kinds(rows.parts[0])
            table = table_of(rows.parts, kinds, rows.kept)  # one by one, thousands of columns take minutes
            trained = table.iloc[rows.trained]
            unfit = builder.unfit(rows.findings)
            columns = {
                name: _column(size, table[name], trained[name], kind or "category", unfit.get(name))
                for name, kind in kinds.items()
            }
            return dataclasses.replace(statement, columns=columns)
        if isinstance(builder, Images):
            return dataclasses.replace(statement, pixels=_pixels(images_of(rows, builder)[:size]))
        if builder.tokenizer is not None:
            return statement
        texts = texts_of(rows, builder)
        return dataclasses.replace(statement, words=count_words(texts[row] for row in rows.trained))


def _column(
    num_train: int, values: "pd.Series[Any]", trained: "pd.Series[Any]", kind: Kind, unfit: str | None
) -> agreement.Column:
    if values.isna().all():
        return agreement.Column("empty", agreement.Moments(rows=len(trained)))
    if unfit:  # without the values at the end of the reason
        return agreement.Column(kind, unfit=re.split(", (?!and )", unfit)[0])
    if kind == "number":
        try:
            trained = trained.astype(np.float64)
        except (TypeError, ValueError):  # texts instead of the configured numbers: they are not described
            return agreement.Column("category")
        return agreement.Column(kind, agreement.Moments.of(numbers_of(trained)))
    texts = category_texts(values)
    # As in pooled data, the whole training part of the source decides which categories have a column.
    known, here = sorted(set(texts[:num_train])), set(texts[trained.index])
    return agreement.Column(kind, values=tuple(known), trained=tuple(each in here for each in known))


def wanted_of(
    builder: Builder, num_classes: int | None, class_names: tuple[str, ...] | None
) -> agreement.Wanted:
    """Return a run's configuration of the encoding.

    Parameters
    ----------
    builder
        Created from the run's ``dataset`` node.
    num_classes, class_names
        Those of the node; None if it has none.
    """
    wanted = agreement.Wanted(num_classes, class_names, input_shape=tuple(builder.input_shape))
    if isinstance(builder, Tables):
        named = (builder.numbers, builder.categories)
        numbers, categories = (None if names is None else tuple(names) for names in named)
        return agreement.Wanted(num_classes, class_names, True, numbers, categories, builder.encoding)
    if isinstance(builder, Text) and builder.tokenizer is None:
        return dataclasses.replace(wanted, vocabulary_size=builder.vocabulary_size)
    return wanted


def images_of(rows: SiteRows, builder: Images) -> NDArray[Any]:
    """Decode a site's images into the cache; return them, uint8, shape (N, channels, height, width)."""
    key = cache.digest(_FORMAT, builder.identity(), list(builder.input_shape), builder.resize, rows.name)
    labels = Labels(np.zeros(len(rows.labels), np.int64), rows.kept, rows.num_train, ())
    folder = cache.cache_folder("sites", "images", key)
    cache.prepared(folder, lambda scratch: builder.encode(rows.parts, labels, scratch))
    return cache.map_array(folder / "inputs.npy")


def _pixels(images: NDArray[Any]) -> tuple[agreement.Pixels, ...]:
    """Count the pixels of the source's whole training part, as for pooled data, which are not refitted."""
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), _CHUNK):
        counts += pixel_counts(np.asarray(images[start : start + _CHUNK]))
    values = np.arange(256)
    sums = ((each.sum(), each @ values, each @ values**2) for each in counts)
    return tuple(agreement.Pixels(*map(int, each)) for each in sums)


def texts_of(rows: SiteRows, builder: Text) -> list[str]:
    """Read a site's texts, in the form that :class:`Text` stores."""
    chunks = builder.chunks(rows.parts, rows.kept)
    return [text.encode("utf-8", "replace").decode() for chunk in chunks for text in chunk]


# -- The encoding that all sites agree on -------------------------------------------------------------------


def prepare_site(rows: SiteRows, agreed: agreement.Agreement, name: str, settings: Any) -> str:
    """Encode a site's rows into the cache, once.

    Parameters
    ----------
    rows, agreed
        The rows and their encoding.
    name
        Name of the dataset.
    settings
        JSON-compatible values that the rows of the parts depend on, such as the seed.

    Returns
    -------
    A folder of the cache with ``inputs.npy``, ``labels.npy`` and ``clients.npz``, which is read from now on
    in place of the site's files.

    Raises
    ------
    SiteError
        If the rows do not fit the agreement, or the cache cannot be written.
    """
    with private(rows.builder):
        key = cache.digest(_FORMAT, rows.builder.identity(), rows.name, settings, agreed.digest())
        folder = cache.cache_folder("sites", name, key)
        cache.prepared(folder, lambda scratch: _write(scratch, rows, agreed))
    return str(folder)


def _write(folder: Path, rows: SiteRows, agreed: agreement.Agreement) -> None:
    code = {label: number for number, label in enumerate(agreed.labels)}
    labels = rows.labels.tolist()
    if unknown := sorted({label for label in labels if label not in code}, key=str):
        raise SiteError(f"labels must be among {', '.join(agreed.class_names)}, got {unknown[0]}")
    np.save(folder / "labels.npy", np.array([code[label] for label in labels], dtype=np.int64))
    inputs = _inputs(rows, agreed)
    if inputs.shape[1:] != agreed.input_shape:
        raise SiteError(f"examples must have shape {agreed.input_shape}, got {inputs.shape[1:]}")
    np.save(folder / "inputs.npy", inputs)
    if rows.persons is not None:
        np.save(folder / "persons.npy", rows.persons)
    parts = rows.train, rows.test, rows.validation
    cache.save_parts(folder / "clients.npz", *parts, names=np.array(rows.clients))


def _inputs(rows: SiteRows, agreed: agreement.Agreement) -> NDArray[Any]:
    if isinstance(rows.builder, Images):
        return images_of(rows, rows.builder)
    if isinstance(rows.builder, Text):
        return rows.builder.tokeniser(agreed.words)(texts_of(rows, rows.builder))
    return agreed.table.encode(table_of(rows.parts, agreed.table.names, rows.kept))


def federated(
    folders: Sequence[str],
    agreed: agreement.Agreement,
    ids: Mapping[str, int],
    num_clients: int,
    dataset: Mapping[str, Any],
) -> FederatedData:
    """Read the encoded rows of a node's sites.

    Parameters
    ----------
    folders
        The folders of the node's sites, from :func:`prepare_site`.
    agreed
        Their encoding.
    ids
        Id of each of the node's clients, by name.
    num_clients
        Number of clients K of the federation.
    dataset
        The run's ``dataset`` node.

    Returns
    -------
    The data, with the rows of the node's own clients and none of others.
    """
    import torch

    nobody = [np.zeros(0, dtype=np.int64)] * num_clients
    parts: dict[str, list[IntArray]] = {part: list(nobody) for part in ("train", "test", "validation")}
    names = [""] * num_clients  # empty for other nodes' clients, which are not known here
    inputs, labels, persons, start, held_out = [], [], [], 0, False
    for folder in map(Path, folders):
        inputs.append(cache.map_tensor(folder / "inputs.npy"))
        labels.append(cache.map_tensor(folder / "labels.npy"))
        persons += [np.load(folder / "persons.npy")] if (folder / "persons.npy").exists() else []
        with np.load(folder / "clients.npz", allow_pickle=False) as saved:
            held_out = held_out or "validation" in saved
            here = saved["names"].tolist()
            for part, clients in cache.load_parts(saved).items():
                for client, rows in zip(here, clients, strict=False):  # no validation rows, or all clients'
                    if client in ids:
                        parts[part][ids[client]], names[ids[client]] = rows + start, client
        start += len(inputs[-1])
    return FederatedData(
        name=str(dataset["name"]),
        inputs=inputs[0] if len(inputs) == 1 else torch.cat(inputs),
        labels=labels[0] if len(labels) == 1 else torch.cat(labels),
        train=tuple(parts["train"]),
        test=tuple(parts["test"]),
        validation=tuple(parts["validation"]) if held_out else (),
        num_classes=len(agreed.class_names),
        mean=agreed.mean,
        std=agreed.std,
        class_names=agreed.class_names,
        fingerprint=cache.digest(agreed.digest(), list(folders), dict(ids)),
        client_names=tuple(names),
        encoder=partial(input_encoder, agreed, dict(dataset)),
        persons=np.concatenate(persons) if persons else None,
    )


def input_encoder(agreed: agreement.Agreement, dataset: Mapping[str, Any]) -> InputEncoder | None:
    """Return the encoder of new rows: the one that encoded the sites' own.

    Parameters
    ----------
    agreed
        The encoding of all sites.
    dataset
        The run's ``dataset`` node.

    Returns
    -------
    The encoder; None for texts with a pretrained tokenizer, as for pooled data.
    """
    builder = builder_of(dataset, Path())
    if isinstance(builder, Tables):
        return agreed.table
    if isinstance(builder, Images):
        return builder.encoder(agreed.mean, agreed.std)
    return None if builder.tokenizer else builder.encoder(tokenizer_of(agreed.words).to_str())
