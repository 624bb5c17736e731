"""Save a run to disk, so that it can be resumed and its models loaded.

A checkpoint is one safetensors file: reading it runs no code, unlike a pickle, and any tool that knows the
format can open it. Its keys are paths in the run's state, such as ``models/<cluster>/<parameter>``, see
:mod:`fedclust.messages.packer`; all else is JSON in the file's metadata.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedclust.federation.run import RunState
from fedclust.messages.packer import join_arrays, pack, split_arrays, unpack
from fedclust.settings.run_options import parse_interval

_KEPT = 2  # files; the older one is used if the disk damages the newest
_FORMAT = 4
_MOST_ARRAYS = 2**18  # a million empty ones in a file of 67 MB would take 1.6 GB


class Checkpoints:
    """The ``checkpoints/`` folder of a run; it holds the last two.

    Parameters
    ----------
    folder
        Folder for the files; created with the first one.
    rounds
        Rounds of the run. A checkpoint is always due after the last one, and after the one before it: a
        longer run resumes from there, because it might not evaluate the round that was the last.
    every
        How often a checkpoint is due before that, see :func:`parse_interval`.
    clock
        Function that returns the time in seconds; for tests.

    Raises
    ------
    ValueError
        If ``rounds`` is less than 1 or ``every`` is not an interval.
    """

    def __init__(
        self,
        folder: Path,
        rounds: int,
        every: int | str = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {rounds}")
        self.folder = folder
        self._rounds = rounds
        self._every, self._seconds = parse_interval(every)
        self._clock = clock
        self._saved = clock()

    def due(self, server_round: int) -> bool:
        """Return whether a checkpoint is due after this round; asked before its models are gathered."""
        if server_round >= self._rounds - 1:
            return True
        if self._every:
            return server_round % self._every == 0
        return self._seconds > 0 and self._clock() - self._saved >= self._seconds

    def save(self, state: RunState) -> Path:
        """Write one checkpoint atomically, and remove all but the last two.

        Returns
        -------
        The file, ``round-<number>.safetensors``.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        text, arrays = split_arrays(pack(state))
        # Not ascontiguousarray, which turns a scalar into a vector.
        tensors = {name: np.asarray(each, order="C") for name, each in arrays.items()}
        last = state.server_round == self._rounds
        about = {"fedclust": json.dumps({"format": _FORMAT, "last_round": last}), "state": text}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"round-{state.server_round:06d}.safetensors"
        partial = path.with_name(path.name + ".partial")
        try:
            save_file(tensors, partial, about)
            with partial.open("rb") as file:
                os.fsync(file.fileno())  # before renaming: a crash must not leave a partial file here
            os.replace(partial, path)
        except (SafetensorError, OSError) as error:
            partial.unlink(missing_ok=True)  # its space is needed for other files
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        # What a process that was killed has left: safetensors writes to a file of its own first.
        left = [*self.folder.glob("round-*.partial"), *self.folder.glob(".tmp??????")]
        for old in [*self.files()[:-_KEPT], *left]:
            old.unlink(missing_ok=True)
        self._saved = self._clock()
        return path

    def files(self) -> list[Path]:
        """List the checkpoints, oldest first."""
        return sorted(self.folder.glob("round-*.safetensors"))

    def newest(self, written: int | None = None) -> RunState | None:
        """Read the newest complete checkpoint; None if there is no file.

        If the run now has more rounds, its former last round is repeated: the checkpoint is that of the round
        before, or None if there was only one round.

        Parameters
        ----------
        written
            Number of rounds that the results have; later checkpoints are ignored. None for any.

        Raises
        ------
        ValueError
            If there are files but none can be used: starting over would discard the run's rounds.
        """
        why = ""
        was_last: RunState | None = None
        for path in reversed(self.files()):
            try:
                state, last = load(path)
            except ValueError as error:
                why = why or str(error)
                continue  # try the older one
            if written is not None and state.server_round > written:
                why = why or f"{path.name}, but rounds.jsonl has only the first {written} rounds"
            elif last and state.server_round < self._rounds:
                if state.server_round == 1:
                    return None
                was_last = was_last or state
            else:
                return state
        if why and was_last is None:
            raise ValueError(f"checkpoints must hold a readable one, {self.folder} has none: {why}")
        return was_last  # better than starting over: this round's evaluation is merely superfluous


def load(path: Path) -> tuple[RunState, bool]:
    """Read a checkpoint, and whether it is of its run's last round.

    Raises
    ------
    ValueError
        If the file is not one that :class:`Checkpoints` wrote.
    """
    try:
        _check_header(path)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            about = json.loads(metadata["fedclust"])
            if about["format"] != _FORMAT:
                raise ValueError(f"format must be {_FORMAT}, it is {about['format']}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        plain = join_arrays(metadata["state"], arrays)
        plain["roster"].setdefault("cautions", [])  # which earlier ones of this format lack
        return unpack(RunState, plain), bool(about["last_round"])
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"checkpoint must be one written by fedclust, got {path}: {error}") from error


def _check_header(path: Path) -> None:
    """Check the number of arrays before safetensors looks at each of them.

    Raises
    ------
    ValueError
        If there are too many.
    """
    with path.open("rb") as file:
        length = min(int.from_bytes(file.read(8), "little"), path.stat().st_size)
        number = file.read(length).count(b'"dtype"')
    if number > _MOST_ARRAYS:
        raise ValueError(f"it must have at most {_MOST_ARRAYS} arrays, got {number}")
