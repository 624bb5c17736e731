"""Save a run to disk, so that it can be resumed and its models loaded.

A checkpoint is one safetensors file: reading it runs no code, unlike a pickle, and any tool that knows the
format can open it. The models' keys are ``<cluster>/<parameter>``. The rest of a run's state has keys that
begin with ``run:``; scalars are JSON in the file's metadata.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedclust.federation.evaluations import Measured
from fedclust.federation.run_state import RunState
from fedclust.grids.bundle import Traffic
from fedclust.metrics import Outcomes
from fedclust.settings.intervals import parse_interval
from fedclust.support.array_bytes import from_numpy, to_numpy

__all__ = ["Checkpoints", "load_checkpoint", "parse_interval"]

_RUN = "run:"
_KEPT = 2  # files; the older one is for the case that the disk damages the newest
_FORMAT = 2
_LAST = "last_round"  # whether it was the run's last


class Checkpoints:
    """The ``checkpoints/`` folder of a run; it holds the last two.

    Parameters
    ----------
    folder
        Folder for the files; created with the first one.
    rounds
        Rounds of the run; after the last one a checkpoint is always due. So is one after the round before: a
        last round is evaluated even where it would not be in a longer run, which goes on from there.
    every
        How often one is due before that, see :func:`parse_interval`.
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
        """Check whether a checkpoint is due after this round, before its models are gathered."""
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
        tensors, scalars = _flat(state)
        scalars[_LAST] = state.server_round == self._rounds
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"round-{state.server_round:06d}.safetensors"
        partial = path.with_name(path.name + ".partial")
        try:
            save_file(tensors, partial, {"fedclust": json.dumps(scalars)})
            with partial.open("rb") as file:
                os.fsync(file.fileno())  # before renaming: a crash must not leave a part under this name
            os.replace(partial, path)
        except (SafetensorError, OSError) as error:
            partial.unlink(missing_ok=True)  # the room that it takes is needed for other files
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        for old in [*self.files()[:-_KEPT], *self.folder.glob("round-*.partial")]:
            old.unlink(missing_ok=True)
        self._saved = self._clock()
        return path

    def files(self) -> list[Path]:
        """List the checkpoints, oldest first."""
        return sorted(self.folder.glob("round-*.safetensors"))

    def newest(self, written: int | None = None) -> RunState | None:
        """Read the newest complete checkpoint; None if there is no file.

        Where the run now has more rounds, what was its last one is run again: the checkpoint is that of the
        round before, and None where that was the only round.

        Parameters
        ----------
        written
            Number of rounds that the results have; later checkpoints are ignored. None for any.

        Raises
        ------
        ValueError
            If there are files but none can be used: to start over would discard the run's rounds.
        """
        why = ""
        was_last: RunState | None = None
        for path in reversed(self.files()):
            try:
                state, last = _load(path)
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
            raise ValueError(f"checkpoints must have one that can be read, {self.folder} has none: got {why}")
        return was_last  # better than to start over: only this round's evaluation is one too many


def load_checkpoint(path: Path) -> RunState:
    """Read one checkpoint.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not one that :class:`Checkpoints` wrote.
    """
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint must be a file, got {path}")
    return _load(path)[0]


def _load(path: Path) -> tuple[RunState, bool]:
    """Read a checkpoint, and whether it is of its run's last round."""
    try:
        with safe_open(path, framework="numpy") as file:
            scalars = json.loads((file.metadata() or {})["fedclust"])
            if scalars["format"] != _FORMAT:
                raise ValueError(f"format must be {_FORMAT}, it is {scalars['format']}")
            # safe_open is not a mapping and cannot be iterated
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return _state(tensors, scalars), bool(scalars.get(_LAST))
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint must be one written by fedclust, got {path}: {error}") from error


def _flat(state: RunState) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays by name, and all other values in a dictionary that JSON can hold."""
    tensors: dict[str, np.ndarray] = {}
    names: list[list[str]] = []
    for cluster, model in enumerate(state.models):
        names.append(list(model))
        tensors |= {f"{cluster}/{name}": to_numpy(array) for name, array in model.items()}
    values: dict[str, Any] = {"assignment": state.assignment, "turns": state.turns}
    values |= {f"metrics/{name}": array for name, array in state.measured.figures.items()}
    for client, outcomes in state.measured.outcomes.items():
        values |= {f"outcomes/{client}/{name}": array for name, array in vars(outcomes).items()}
    if state.traffic is not None:
        values |= {f"traffic/{name}": value for name, value in vars(state.traffic).items()}
    values |= {f"attendance/{name}": value for name, value in state.attendance.items()}
    values |= {f"earlier/{name}": value for name, value in state.earlier.items()}
    values |= {f"memory/{name}": value for name, value in state.memory.items()}
    for cluster, remembered in enumerate(state.aggregators):
        values |= {f"aggregator/{cluster}/{name}": value for name, value in remembered.items()}
    scalars: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "biuf":
            tensors[_RUN + name] = np.asarray(value)
        else:
            scalars[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    about = {
        "format": _FORMAT,
        "round": state.server_round,
        "failed_replies": state.failed_replies,
        "names": names,  # in the models' own order; the file has another one
        "aggregators": len(state.aggregators),
        "order": list(values),
        "scalars": scalars,
    }
    # Not ascontiguousarray, which turns a scalar into a vector.
    return {name: np.asarray(array, order="C") for name, array in tensors.items()}, about


def _state(tensors: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> RunState:
    models = []
    for cluster, names in enumerate(about["names"]):
        record = ArrayRecord()
        for name in names:
            record[name] = from_numpy(tensors[f"{cluster}/{name}"])
        models.append(record)
    values = {
        name: about["scalars"][name] if name in about["scalars"] else tensors[_RUN + name]
        for name in about["order"]
    }

    def below(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

    return RunState(
        server_round=int(about["round"]),
        assignment=values["assignment"],
        models=tuple(models),
        turns=values["turns"],
        memory=below("memory/"),
        aggregators=tuple(below(f"aggregator/{cluster}/") for cluster in range(about["aggregators"])),
        measured=Measured(below("metrics/"), _outcomes(below("outcomes/"))),
        traffic=Traffic(**traffic) if (traffic := below("traffic/")) else None,
        failed_replies=int(about["failed_replies"]),
        attendance=below("attendance/"),
        earlier=below("earlier/"),
    )


def _outcomes(values: Mapping[str, Any]) -> dict[int, Outcomes]:
    by_client: dict[int, dict[str, Any]] = {}
    for path, value in values.items():
        client, _, name = path.partition("/")
        by_client.setdefault(int(client), {})[name] = value
    return {client: Outcomes(**counts) for client, counts in by_client.items()}
