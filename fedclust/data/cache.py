"""Prepared data on disk: memory-mapped arrays, written atomically and only once."""

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedclust.typing import IntArray

if TYPE_CHECKING:
    import torch


logger = logging.getLogger(__name__)

_SUMS = "checksums.json"
_PARTS = ("train", "test", "validation")
_UNSAFE = re.compile(r"[^\w.-]")
_ALWAYS_READ = 256_000_000  # bytes; a quarter of a second
_ELSEWHERE = "choose another folder with cache_dir or the environment variable FEDCLUST_CACHE"


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the cache folder: `cache_dir`, else ``$FEDCLUST_CACHE``, else ``~/.cache/fedclust``.

    Its content can be deleted at any time; it is prepared again when next needed. What must be kept, such as
    a site's account of its patients' ε, is elsewhere (:mod:`fedclust.clients.release`).
    """
    chosen = cache_dir or os.environ.get("FEDCLUST_CACHE") or Path.home() / ".cache" / "fedclust"
    return Path(chosen).expanduser().absolute()


def cache_folder(kind: str, name: str, key: str, cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of some prepared data.

    Parameters
    ----------
    kind
        Kind of data, such as ``"datasets"``.
    name
        Name of the dataset, to make a listing readable. It comes with a run, so each character that could
        lead to another folder is replaced by ``_``.
    key
        Digest of all that the data depends on.
    cache_dir
        As for :func:`cache_root`.
    """
    return cache_root(cache_dir) / kind / f"{_UNSAFE.sub('_', name)}-{key[:16]}"


def digest(*parts: Any) -> str:
    """Hash JSON-compatible values to 32 hexadecimal digits; the order of mapping keys does not matter.

    Raises
    ------
    TypeError
        If a part is not JSON-compatible.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Hash a file's content to 32 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def prepared(folder: Path, write: Callable[[Path], object]) -> Path:
    """Create `folder` with `write` unless it exists; recreate it if it is damaged.

    `write` fills a temporary folder, which is then renamed to `folder`, so readers never see a partly
    written folder, even after a killed process. Other processes that need the same folder wait for the
    first. Where file locks do not work (some network file systems), each process writes its own copy and
    the first one to finish is kept.

    A file is damaged if it is missing or its content is not what was written: see :func:`damaged_files`.

    Parameters
    ----------
    folder
        Final folder; its name must identify its content.
    write
        Fills the empty folder it is given.

    Returns
    -------
    `folder`.

    Raises
    ------
    OSError
        If the cache cannot be written; the message explains how to choose another folder.
    """
    from filelock import FileLock

    if not damaged_files(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the cache folder {folder.parent}: {error}; {_ELSEWHERE}") from error
    if not os.access(folder.parent, os.W_OK):
        raise OSError(f"cannot write to the cache folder {folder.parent}; {_ELSEWHERE}")
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.exists():  # otherwise it has not been prepared yet
            if not (damaged := damaged_files(folder)):
                return folder
            names = ", ".join(damaged)
            logger.warning("the prepared data in %s is damaged (%s): prepared again", folder, names)
            # Moved away at once: other processes can continue to read the files that they have mapped.
            away = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            folder.rename(away / "damaged")
        for leftover in folder.parent.glob(f".{folder.name}-*"):  # left by a killed process: we hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            write(scratch)
            (scratch / _SUMS).write_text(json.dumps(_sums(scratch)), encoding="utf-8")
            scratch.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from other users
            try:
                scratch.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def damaged_files(folder: Path) -> list[str]:
    """List the files of a prepared folder that are missing or not what was written.

    A file's size is always compared; its checksum only if the file has up to 256 MB or its modification time
    differs.
    """
    try:
        known = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        return [name for name, about in known.items() if _is_damaged(folder / name, about)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [_SUMS]


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a prepared folder, by its name, as it was written."""
    known = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
    return {name: str(about["sha256"]) for name, about in known.items()}


def _sums(folder: Path) -> dict[str, dict[str, int | str]]:
    sums: dict[str, dict[str, int | str]] = {}
    for file in sorted(folder.iterdir()):
        stat = file.stat()
        sums[file.name] = {"size": stat.st_size, "changed": stat.st_mtime_ns, "sha256": file_digest(file)}
    return sums


def _is_damaged(file: Path, expected: Mapping[str, Any]) -> bool:
    try:
        state = file.stat()
        read = state.st_size <= _ALWAYS_READ or state.st_mtime_ns != expected["changed"]
        return state.st_size != expected["size"] or (read and file_digest(file) != expected["sha256"])
    except OSError:
        return True


def new_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Create a memory-mapped ``.npy`` file for the caller to fill; it may be larger than memory.

    Raises
    ------
    OSError
        If the disk has too little space. Checked first, because a full disk would kill the process later.
    """
    needed = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if needed > (free := shutil.disk_usage(path.parent).free):
        raise OSError(f"{path} needs {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB are free; {_ELSEWHERE}")
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)


def map_array(path: Path) -> NDArray[Any]:
    """Map an ``.npy`` file into memory.

    The mapping is copy-on-write: all processes share the file and none changes it. A read-only mapping
    would make PyTorch warn.
    """
    return np.load(path, mmap_mode="c", allow_pickle=False)


def map_tensor(path: Path) -> "torch.Tensor":
    """Map an ``.npy`` file as a tensor; see :func:`map_array`."""
    import torch

    return torch.from_numpy(map_array(path))


def save_parts(path: Path, *parts: Sequence[IntArray], **arrays: NDArray[Any]) -> None:
    """Write the rows of each client's training, test and validation part, and further named arrays."""
    for part, clients in zip(_PARTS, parts, strict=True):
        if clients:
            arrays[part] = np.concatenate(clients).astype(np.int64)
            arrays[f"{part}_sizes"] = np.array([len(rows) for rows in clients])
    np.savez(path, **arrays)  # type: ignore[arg-type]  # its stub accepts only `allow_pickle`


def load_parts(saved: Mapping[str, NDArray[Any]]) -> dict[str, tuple[IntArray, ...]]:
    """Return the rows of each client by part, from a file that :func:`save_parts` wrote."""
    return {
        part: tuple(np.split(saved[part], np.cumsum(saved[f"{part}_sizes"])[:-1])) if part in saved else ()
        for part in _PARTS
    }
