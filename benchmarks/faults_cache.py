"""Damages of the prepared data on disk, for faults.py."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from faults_runs import BASE, Fault, Place, Row, lost

__all__ = ["CACHE_FAULTS"]


def _run(damage: Callable[[Path], None], place: Place) -> Row:
    clean = place.clean()
    cache = place.root / "damaged-cache"
    shutil.rmtree(cache, ignore_errors=True)
    shutil.copytree(place.root / "cache", cache)
    damage(cache)
    folder = place.new("cache")
    code, printed = _forked(place, folder, place.environment(FEDCLUST_CACHE=str(cache)))
    lines = [line for line in printed.splitlines() if "damaged" in line or line.startswith("fedclust:")]
    lines = lines or printed.strip().splitlines()[-1:] if code else lines
    line = " ".join(lines).replace(str(cache), "~/.cache/fedclust")
    return {"saw": line, "exit": code, "lost": "the run" if code else lost(folder, clean)}


def _forked(place: Place, folder: Path, env: dict[str, str]) -> tuple[int, str]:
    """Run in a copy of this process: thirteen runs import everything once."""
    import fedclust.runs.server
    import fedclust.strategies  # noqa: F401
    from fedclust.runs.command_line import main

    log = place.root / "forked.log"
    pid = os.fork()
    if pid == 0:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(env)
        sys.argv = ["fedclust", *BASE, f"output_dir={folder}"]
        status = 0
        try:
            main()
        except SystemExit as error:
            status = int(error.code or 0)
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), log.read_text()


def _file(cache: Path, pattern: str) -> Path:
    (found,) = cache.glob(pattern)
    return found


def _cut(pattern: str, cache: Path) -> None:
    os.truncate(path := _file(cache, pattern), path.stat().st_size // 2)


def _empty(pattern: str, cache: Path) -> None:
    os.truncate(_file(cache, pattern), 0)


def _delete(pattern: str, cache: Path) -> None:
    _file(cache, pattern).unlink()


def _zero_half(pattern: str, cache: Path) -> None:
    data = np.load(_file(cache, pattern))
    data[: len(data) // 2] = 0
    np.save(_file(cache, pattern), data)


def _roll(pattern: str, cache: Path) -> None:
    np.save(path := _file(cache, pattern), np.roll(np.load(path), 1, axis=0))


def _flip_a_bit(pattern: str, cache: Path) -> None:
    """Change one bit in the middle, and set the time of the change back."""
    path = _file(cache, pattern)
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _text(pattern: str, old: str, new: str, cache: Path) -> None:
    path = _file(cache, pattern)
    path.write_text(path.read_text().replace(old, new, 1))


_DATA, _CLIENTS = "datasets/digits-*/", "federations/digits-*/"
_DAMAGES: dict[str, Callable[[Path], None]] = {
    "inputs.npy is cut off": partial(_cut, f"{_DATA}inputs.npy"),
    "inputs.npy is deleted": partial(_delete, f"{_DATA}inputs.npy"),
    "half of inputs.npy is zero": partial(_zero_half, f"{_DATA}inputs.npy"),
    "one bit of inputs.npy is flipped, the file's time is as before": partial(
        _flip_a_bit, f"{_DATA}inputs.npy"
    ),
    "labels.npy is empty": partial(_empty, f"{_DATA}labels.npy"),
    "labels.npy is moved by one row": partial(_roll, f"{_DATA}labels.npy"),
    "labels.npy is deleted": partial(_delete, f"{_DATA}labels.npy"),
    "dataset.json is cut off": partial(_cut, f"{_DATA}dataset.json"),
    "dataset.json has another mean": partial(_text, f"{_DATA}dataset.json", "0.", "7."),
    "checksums.json is cut off": partial(_cut, f"{_DATA}checksums.json"),
    "the clients' rows (clients.npz) are cut off": partial(_cut, f"{_CLIENTS}clients.npz"),
    "one bit of the clients' rows is flipped": partial(_flip_a_bit, f"{_CLIENTS}clients.npz"),
    "the clients' own labels.npy is moved by one row": partial(_roll, f"{_CLIENTS}labels.npy"),
}

CACHE_FAULTS = tuple(Fault("prepared data", name, partial(_run, damage)) for name, damage in _DAMAGES.items())
