"""Clusters that went back to an earlier model, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["went_back_line"]

_MOST_NAMED = 5


def went_back_line(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Write in one line which clusters went back to earlier models, and how often; None if none did.

    Such a cluster's clients have trained for nothing in that round, and a run goes on while they are no more
    than half of all.

    Parameters
    ----------
    rounds
        The lines of ``rounds.jsonl``.
    """
    found: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    for line in rounds:
        last = {each["cluster"]: each for each in line.get("went_back", ())}  # once, if twice in a round
        for cluster, each in last.items():
            found.setdefault(cluster, []).append((line["round"], each))
    if not found:
        return None
    named = []
    for cluster, times in sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:_MOST_NAMED]:
        number, each = times[-1]
        clients = f" with {each['clients']} clients" if each.get("clients", 1) > 1 else ""
        named.append(
            f"cluster {cluster} in {len(times)} of {len(rounds)} rounds "
            f"(round {number}{clients}: {each['reason']})"
        )
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"Went back to an earlier model: {'; '.join(named)}{more}"
