"""Load a federation's data from the configuration's ``dataset`` and ``partition`` nodes."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import fedclust.data.cache as cache
from fedclust.data.dataset import VALUES, Dataset, DatasetBuilder, FederatedData, SourceError
from fedclust.data.partition import (
    ClientRows,
    fraction_of,
    hold_out,
    named_groups,
    rows_of_clients,
    save_client_rows,
)
from fedclust.data.source import SourcedDataset
from fedclust.data.targets import from_text, to_text
from fedclust.support.rng import generator
from fedclust.typing import IntArray

if TYPE_CHECKING:
    import torch


_VALIDATION = "validation_fraction"
_TARGET = "target.json"
_NOT_IN_SETTINGS = ("file", "seed", "group", _VALIDATION)  # a group is part of the dataset
FORMAT = 4  # increase it when the same data, partition and seed give another federation


def load(
    dataset: Mapping[str, Any],
    partition: Mapping[str, Any],
    seed: int,
    cache_dir: Path | None = None,
) -> FederatedData:
    """Load a federation's data from the cache; prepare it there first if needed.

    Parameters
    ----------
    dataset
        The resolved ``dataset`` node: ``_target_`` and the arguments of a :class:`DatasetBuilder`.
    partition
        The resolved ``partition`` node; see :func:`fedclust.data.partition.rows_of_clients`. Its
        ``validation_fraction`` is held out of each client's training part; see
        :mod:`fedclust.data.partition`.
    seed
        Seed of the partition and its shifts, unless `partition` has its own.
    cache_dir
        Where prepared data lives; see :func:`fedclust.data.cache.cache_root`.

    Raises
    ------
    SourceError
        If the dataset's source is missing, unreadable, or not as configured, or the partition is impossible
        for it.
    ValueError
        If a setting of the dataset is out of range.
    OSError
        If the cache cannot be written.
    """
    data = make_builder(dataset).load(cache_dir)
    seed = seed if partition.get("seed") is None else partition["seed"]
    fingerprint = _fingerprint(data, partition, seed)
    folder = cache.cache_folder("federations", data.name, fingerprint, cache_dir)
    try:
        cache.prepared(folder, lambda scratch: _write(scratch, data, partition, seed))
    except ValueError as error:  # its rule names the setting
        raise SourceError(str(error)) from error
    names, agreed = data.natural_names, folder / _TARGET
    target = from_text(agreed.read_text()) if agreed.exists() else data.target
    with np.load(folder / "clients.npz", allow_pickle=False) as clients:
        parts = cache.load_parts(clients)
        left_out = zip(clients["left_out"].tolist(), clients["left_out_rows"].tolist(), strict=True)
        trained = np.sort(np.concatenate(parts["train"]))
        return FederatedData(
            name=data.name,
            inputs=_written_or(folder / "inputs.npy", data.inputs),
            labels=_written_or(folder / "labels.npy", data.labels),
            num_classes=len(target.bin_names()) or data.num_classes,
            mean=data.mean,
            std=data.std,
            groups=clients.get("groups"),
            class_names=target.bin_names() or data.class_names,
            fingerprint=fingerprint,
            content=f"{_fingerprint(data, partition, None)}-{seed}",
            client_names=_client_names(data, parts["train"]),
            encoder=partial(data.encoder, trained, folder) if data.encoder else None,
            left_out={
                "" if owner < 0 else names[owner] if names else str(owner): rows for owner, rows in left_out
            },
            persons=data.persons,
            train=parts["train"],
            test=parts["test"],
            validation=parts["validation"],
            target=target,
            values=None if data.values is None else _written_or(folder / VALUES, data.values),
            named_groups=()
            if data.named is None
            else named_groups(data.named, data.group_names, parts["train"]),
            grouped_by=str(dataset.get("groups") or ""),
        )


def save_partition(
    dataset: Mapping[str, Any],
    partition: Mapping[str, Any],
    seed: int,
    path: Path,
    cache_dir: Path | None = None,
) -> None:
    """Write each client's rows to a file, for ``partition.file=`` and for other tools.

    Parameters
    ----------
    dataset, partition, seed, cache_dir
        As for :func:`load`.
    path
        Parquet file to write; its format is described in :mod:`fedclust.data.partition`.

    Raises
    ------
    SourceError, ValueError, OSError
        As for :func:`load`, or if the file cannot be written.
    """
    data = make_builder(dataset).load(cache_dir)
    save_client_rows(rows_of_clients(data, partition, seed), data, path)


def make_builder(dataset: Mapping[str, Any]) -> DatasetBuilder:
    """Create the builder of a ``dataset`` node.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """
    from hydra.utils import get_class

    # Not hydra's `instantiate`: it wraps every exception of a constructor in its own.
    arguments = {name: value for name, value in dataset.items() if not name.startswith("_")}
    return get_class(dataset["_target_"])(**arguments)


def _fingerprint(data: Dataset, partition: Mapping[str, Any], seed: int | None) -> str:
    settings = {key: _plain(value) for key, value in partition.items() if key not in _NOT_IN_SETTINGS}
    file = partition.get("file")
    # A saved partition is identified by its content, not its path.
    saved = cache.file_digest(Path(file)) if file is not None and Path(file).is_file() else file
    # Without validation rows, the fingerprint stays what it was before they were introduced.
    fraction = fraction_of(partition.get(_VALIDATION, 0))
    held_out = [{_VALIDATION: fraction}] if fraction else []
    return cache.digest(FORMAT, data.fingerprint, settings, saved, seed, *held_out)


def _plain(value: Any) -> Any:
    """Remove the validation share from nested partitions, where it has no effect."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items() if key != _VALIDATION}
    return value


def _write(folder: Path, data: Dataset, partition: Mapping[str, Any], seed: int) -> None:
    """Partition the data, apply the shifts, and write the arrays that differ from the dataset's."""
    parts = rows_of_clients(data, partition, seed)
    seed = seed if parts.seed is None else parts.seed
    fraction = fraction_of(partition.get(_VALIDATION, 0))
    train, held_out = hold_out(dict(enumerate(parts.train)), fraction, seed, data.persons)
    trained = np.sort(np.concatenate(train))
    # The dataset's own inputs are fitted on exactly the official training part.
    if data.refit is not None and not np.array_equal(trained, np.arange(data.num_train)):
        data.refit(trained, folder)
    about = {} if parts.groups is None else {"groups": parts.groups}
    about["left_out"] = np.array(list(parts.left_out), dtype=np.int64)
    about["left_out_rows"] = np.array(list(parts.left_out.values()), dtype=np.int64)
    cache.save_parts(folder / "clients.npz", train, parts.test, held_out if fraction else (), **about)
    _write_shifted(folder, data, parts, seed)  # held-out rows included: noise is drawn row by row
    if data.values is not None:
        values = _written_or(folder / VALUES, data.values).numpy()
        # The range of amounts, the intervals of times: of exactly the rows that somebody trains on.
        try:
            target = data.target.agreed_again(values[trained].astype(np.float64))
        except ValueError as error:
            held = f" ({num_held} held out)" if (num_held := sum(map(len, held_out))) else ""
            raise SourceError(f"dataset.label of the {len(trained)} training rows{held}: {error}") from error
        (folder / _TARGET).write_text(to_text(target))
        np.save(folder / "labels.npy", target.bins(values))


def _write_shifted(folder: Path, data: Dataset, parts: ClientRows, seed: int) -> None:
    """Write ``inputs.npy`` and ``labels.npy`` or ``values.npy``, each if a client's shift changes it."""
    unshifted = {"inputs": _written_or(folder / "inputs.npy", data.inputs)}
    unshifted |= {"labels": data.labels} if data.values is None else {"values": data.values}
    written: dict[str, NDArray[Any]] = {}
    for client, shift in enumerate(parts.shifts):
        if shift is None:
            continue
        rows = np.concatenate([parts.train[client], parts.test[client]])
        inputs, truth = (each[rows] for each in unshifted.values())
        before = inputs, truth
        after = shift.apply(*before, generator(seed, "shift", client))
        for name, old, new in zip(unshifted, before, after, strict=True):
            if new is not old:
                if name not in written:
                    written[name] = _writable(folder / f"{name}.npy", unshifted[name].numpy())
                written[name][rows] = new.numpy()


def _writable(path: Path, values: NDArray[Any]) -> NDArray[Any]:
    """Open the file for writing; create it with `values` if it does not exist."""
    if path.exists():
        opened: NDArray[Any] = np.load(path, mmap_mode="r+", allow_pickle=False)
        return opened
    array = cache.new_array(path, values.dtype, values.shape)
    array[:] = values
    return array


def _written_or(path: Path, unchanged: "torch.Tensor") -> "torch.Tensor":
    return cache.map_tensor(path) if path.exists() else unchanged


def _client_names(data: Dataset, train: Sequence[IntArray]) -> tuple[str, ...] | None:
    """Return the clients' names if each trains on the rows of its own writer, user or region, else None.

    Names come from the rows, so clients of a saved partition have them too.
    """
    if data.natural is None or data.natural_names is None:
        return None
    owners = [np.unique(data.natural[rows]).tolist() for rows in train]
    distinct = {owner for each in owners for owner in each if owner >= 0}
    if max(map(len, owners)) > 1 or len(distinct) < len(owners):
        return None
    return tuple(data.natural_names[owner] for (owner,) in owners)


def sizes_in_data(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Count in a dataset's training part what models are built from.

    Parameters
    ----------
    dataset
        The resolved ``dataset`` node; the sizes themselves may be missing.

    Returns
    -------
    ``num_classes``; of a table also ``input_shape`` and ``category_sizes``.

    Raises
    ------
    SourceError
        If the source is missing or unreadable, lacks the label column, or its labels are not two or more
        classes.
    ValueError
        If another setting is out of range.
    """
    builder = _builder_without_sizes(dataset)
    if not isinstance(builder, SourcedDataset):
        raise SourceError(f"dataset {builder.name}: dataset.num_classes must be given")
    with builder.named():
        sizes: dict[str, Any] = json.loads(
            _count(json.dumps(dict(dataset), sort_keys=True), json.dumps(builder.identity()))
        )
        if sizes["num_classes"] < 2:
            rule = f"{builder.label} must hold at least 2 different labels"
            raise SourceError(f"{rule}, got {sizes['num_classes']}")
    return sizes


def _builder_without_sizes(dataset: Mapping[str, Any]) -> Any:
    # The builder requires sizes, but what is counted does not depend on them.
    return make_builder({"input_shape": [1], **dataset, "num_classes": 2})


@lru_cache(maxsize=8)  # a configuration is resolved many times; a changed file has another identity
def _count(dataset: str, identity: str) -> str:  # noqa: ARG001
    return json.dumps(_builder_without_sizes(json.loads(dataset)).sizes_in_data())
