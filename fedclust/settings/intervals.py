"""How often checkpoints are written."""

import re

__all__ = ["parse_interval"]

_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def parse_interval(every: int | str) -> tuple[int, float]:
    """Read how often checkpoints are written.

    Parameters
    ----------
    every
        A number of rounds, 0 for the end only; or a time such as ``"30s"``, ``"1min"`` or ``"2h"``.

    Returns
    -------
    Rounds, 0 if a time is given; and seconds, 0 if rounds are.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if isinstance(every, int) and not isinstance(every, bool) and every >= 0:
        return every, 0.0
    match = _INTERVAL.fullmatch(str(every).strip())
    if match and (seconds := float(match[1]) * _SECONDS[match[2]]) > 0:
        return 0, seconds
    raise ValueError(
        f"checkpoint_every must be a number of rounds >= 0 or a time such as 30s, 1min or 2h, got {every!r}"
    )
