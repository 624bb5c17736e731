"""Clients whose data has changed, in a run's results."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["drift_line"]

_MOST_NAMED = 10


def drift_line(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Write in one line which clients were found to have drifted; None if none were.

    Parameters
    ----------
    rounds
        The lines of ``rounds.jsonl``. A client that was named in several rounds counts in its last one.
    """
    last = {each["client"]: (line["round"], each) for line in rounds for each in line.get("drift", ())}
    if not last:
        return None
    named = [
        f"client {client} fits cluster {each['better']} better than {each['cluster']} (round {number}"
        f"{', moved' if each['moved'] else ''})"
        for client, (number, each) in list(last.items())[:_MOST_NAMED]
    ]
    more = f"; and {len(last) - _MOST_NAMED} more" if len(last) > _MOST_NAMED else ""
    return f"Drift: {'; '.join(named)}{more}"
