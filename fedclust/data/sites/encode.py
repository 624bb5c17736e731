"""A node's federated data: the rows of its sites, encoded as all have agreed."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedclust.data.cache import cache_folder, digest, load_parts, map_tensor, prepared, save_parts
from fedclust.data.dataset import FederatedData
from fedclust.data.images import Images
from fedclust.data.input_encoders import ImageEncoder, InputEncoder, TextEncoder, numbers_of
from fedclust.data.sites.agreement import Agreement
from fedclust.data.sites.own import SiteError
from fedclust.data.sites.rows import SiteRows, builder_of, images_of, private, texts_of
from fedclust.data.source import values_of
from fedclust.data.tables import Tables
from fedclust.data.text import Text, tokenizer_of
from fedclust.typing import IntArray

_FORMAT = 1
_NOBODY = np.zeros(0, dtype=np.int64)


def prepare_site(rows: SiteRows, agreement: Agreement, name: str, settings: Any) -> str:
    """Encode a site's rows into the cache, once.

    Parameters
    ----------
    rows, agreement
        The rows and how to encode them.
    name
        Name of the dataset.
    settings
        JSON-compatible values that the rows of the parts depend on, such as the seed.

    Returns
    -------
    A folder of the cache with ``inputs.npy``, ``labels.npy`` and ``clients.npz``; later messages read it
    and not the site's files.

    Raises
    ------
    SiteError
        If the rows do not fit the agreement, or the cache cannot be written.
    """
    with private(rows.builder):
        key = digest(_FORMAT, rows.builder.identity(), rows.name, settings, agreement.digest())
        folder = cache_folder("sites", name, key)
        prepared(folder, lambda scratch: _write(scratch, rows, agreement))
    return str(folder)


def _write(folder: Path, rows: SiteRows, agreement: Agreement) -> None:
    code = {label: number for number, label in enumerate(agreement.labels)}
    labels = rows.labels.tolist()
    if unknown := sorted({label for label in labels if label not in code}, key=str):
        raise SiteError(f"labels must be among {', '.join(agreement.class_names)}, got {unknown[0]}")
    np.save(folder / "labels.npy", np.array([code[label] for label in labels], dtype=np.int64))
    inputs = _inputs(rows, agreement)
    if inputs.shape[1:] != agreement.input_shape:
        raise SiteError(f"examples must have shape {agreement.input_shape}, got {inputs.shape[1:]}")
    np.save(folder / "inputs.npy", inputs)
    names = {"names": np.array(rows.clients)}
    save_parts(folder / "clients.npz", rows.train, rows.test, rows.validation, names)


def _inputs(rows: SiteRows, agreement: Agreement) -> NDArray[Any]:
    if isinstance(rows.builder, Images):
        return images_of(rows)
    if isinstance(rows.builder, Text):
        return rows.builder.tokeniser(tokenizer_of(agreement.words))(texts_of(rows))
    table = agreement.table
    numbers = [numbers_of(values_of(rows.parts, each.name, rows.kept)) for each in table.numbers]
    codes = [each.codes(values_of(rows.parts, each.name, rows.kept)) for each in table.categories]
    return table.encoded(numbers, codes)


def federated(
    folders: Sequence[str],
    agreement: Agreement,
    ids: Mapping[str, int],
    num_clients: int,
    dataset: Mapping[str, Any],
) -> FederatedData:
    """Read the encoded rows of a node's sites.

    Parameters
    ----------
    folders
        The folders of the node's sites, as :func:`prepare_site` returns them.
    agreement
        How they are encoded.
    ids
        Id of each of the node's clients, by name.
    num_clients
        Number of clients K of the federation.
    dataset
        The run's ``dataset`` node.

    Returns
    -------
    The data: of the node's own clients their rows, of all others none.
    """
    parts: dict[str, list[IntArray]] = {
        part: [_NOBODY] * num_clients for part in ("train", "test", "validation")
    }
    names = [""] * num_clients  # of other nodes' clients nothing is known here
    inputs, labels, start, held_out = [], [], 0, False
    for folder in map(Path, folders):
        inputs.append(map_tensor(folder / "inputs.npy"))
        labels.append(map_tensor(folder / "labels.npy"))
        with np.load(folder / "clients.npz", allow_pickle=False) as saved:
            held_out = held_out or "validation" in saved
            here = saved["names"].tolist()
            for part, clients in load_parts(saved).items():
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
        num_classes=len(agreement.class_names),
        mean=agreement.mean,
        std=agreement.std,
        groups=None,
        class_names=agreement.class_names,
        fingerprint=digest(agreement.digest(), list(folders), dict(ids)),
        client_names=tuple(names),
        encoder=partial(input_encoder, agreement, dict(dataset)),
    )


def input_encoder(agreement: Agreement, dataset: Mapping[str, Any]) -> InputEncoder | None:
    """Return the encoder of new rows: that of the agreement, which encoded the sites' own.

    Parameters
    ----------
    agreement
        How all sites encode their rows.
    dataset
        The run's ``dataset`` node.

    Returns
    -------
    The encoder; None for texts with a pretrained tokenizer, as of pooled data.
    """
    builder = builder_of(dataset, Path())
    if isinstance(builder, Tables):
        return agreement.table
    if isinstance(builder, Images):
        return ImageEncoder(agreement.input_shape, builder.resize, agreement.mean, agreement.std)
    assert isinstance(builder, Text)  # chosen by its type, as in describe
    if builder.tokenizer is not None:
        return None
    columns = (builder.text,) if isinstance(builder.text, str) else tuple(builder.text)
    tokenizer = tokenizer_of(agreement.words).to_str()
    return TextEncoder(columns, int(agreement.input_shape[0]), tokenizer)
