"""Who joined a run and who left it, in its tables."""

from typing import Any

import pandas as pd

from fedclust.federation.attendance import Attendance
from fedclust.typing import IntArray

__all__ = ["attended", "attended_summary"]


def attended(joined: IntArray, attendance: Attendance, server_round: int) -> dict[str, Any]:
    """Make the columns of ``clients.parquet`` about who joined and who left.

    Parameters
    ----------
    joined
        Round in which each client joined, 0 for those at the start, shape (K,).
    attendance
        Who is there, and what those measured last who are not.
    server_round
        The last round.

    Returns
    -------
    ``joined``, if anybody joined after the start. ``last_round`` and ``last_accuracy``, if anybody has left:
    the last round in which each client measured an accuracy, 0 for none, and that accuracy. Its
    ``accuracy``, which is of the last round, is unknown, and no mean counts it.
    """
    columns: dict[str, Any] = {}
    if joined.any():
        columns["joined"] = joined
    left = (attendance.last_round < server_round) & ~attendance.online
    if left.any():
        columns |= {"last_round": attendance.last_round, "last_accuracy": attendance.last_accuracy}
        columns["left"] = left
    return columns


def attended_summary(clients: pd.DataFrame) -> dict[str, Any]:
    """List who joined and who left, for ``summary.json``.

    Returns
    -------
    ``joined``, the round of each client that joined after the start, by id as text; ``left``, for each client
    that has left the last round and accuracy that it measured, 0 and None for none. Only what there is.
    """
    found: dict[str, Any] = {}
    if "joined" in clients:
        later = clients[clients["joined"] > 0]
        found["joined"] = dict(zip(later["client"].astype(str), later["joined"].tolist(), strict=True))
    if "left" in clients:
        gone = clients[clients["left"]]
        last = zip(
            gone["client"].tolist(), gone["last_round"].tolist(), gone["last_accuracy"].tolist(), strict=True
        )
        found["left"] = [
            {"client": client, "last_round": last_round, "last_accuracy": accuracy if last_round else None}
            for client, last_round, accuracy in last
        ]
    return found
