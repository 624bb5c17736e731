"""Processes that train in turns, so that other load on the machine affects all ways of training.

The main process starts a group of processes per way and lets one group at a time train, again and again; the
other groups wait for a line on their standard input.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TURN_SECONDS = 0.5  # fast ways take several rounds per turn
_MOST_ROUNDS = 20


class Turns:
    """The process's side: wait for a turn, return its duration."""

    def __init__(self) -> None:
        # Output of libraries must not be mistaken for an answer.
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._began = 0.0

    def wait(self) -> int:
        """Wait for the next turn; the process ends when there is none.

        Returns
        -------
        Number of rounds to train.
        """
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # Flower's and Ray's threads would keep it alive
        self._began = time.perf_counter()
        return int(line)

    def done(self) -> None:
        """Report the end of a turn."""
        print(time.perf_counter() - self._began, file=self._answers, flush=True)

    def serve(self, train: Callable[[int], None]) -> None:
        """Take turns, training so many rounds in each."""
        while True:
            train(self.wait())
            self.done()


class Group:
    """A way's processes: one, or several that share the clients of a round.

    Parameters
    ----------
    command
        Command of each process; its rank is appended.
    size
        Number of processes.
    environment
        Variables to set; ``{rank}`` stands for the rank.
    log
        File for their standard error.
    """

    def __init__(self, command: Sequence[str], size: int, environment: Mapping[str, str], log: Path) -> None:
        self._processes = []
        with log.open("w") as errors:
            for rank in range(size):
                variables = {name: value.format(rank=rank) for name, value in environment.items()}
                self._processes.append(
                    subprocess.Popen(
                        [*command, str(rank)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        start_new_session=True,
                        env={**os.environ, **variables},
                    )
                )
        self.rounds = 1

    def turn(self) -> float | None:
        """Train for one turn; return the seconds per round, None if a process ended instead."""
        try:
            for process in self._processes:
                print(self.rounds, file=process.stdin, flush=True)
        except BrokenPipeError:
            return None
        answers = [process.stdout.readline() for process in self._processes if process.stdout]
        return max(map(float, answers)) / self.rounds if all(answers) else None

    def close(self) -> None:
        """End its processes."""
        for process in self._processes:
            if process.stdin:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # pfl-research's sampler outlives its parent


def interleave(groups: Mapping[str, Group], turns: int, warm_up: int = 2) -> dict[str, list[float]]:
    """Let the groups train in rotation.

    Returns
    -------
    Seconds per round of each turn, by group; groups that failed are left out.
    """
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    for turn in range(warm_up + turns):
        for name in list(seconds):
            took = groups[name].turn()
            if took is None:
                print(f"{name}: failed, see its log", file=sys.stderr)
                del seconds[name]
            elif turn < warm_up:
                groups[name].rounds = max(1, min(_MOST_ROUNDS, round(_TURN_SECONDS / took)))
            else:
                seconds[name].append(took)
    return seconds
