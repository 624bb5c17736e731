"""Values and checks of a run's options, apart from what they are options of, whose imports take seconds."""

from typing import Any

import hydra.utils

__all__ = ["KEEP", "MAX_OUTAGE", "MIN_REPLIES", "TRUSTED", "VERSION_BASE", "check_keep"]

KEEP = "auto"
"""Default of ``keep_matrices``."""

MIN_REPLIES = 0.2
"""Default share of the clients asked that must answer: half of a small cohort may be missing by chance."""

MAX_OUTAGE = 14_400.0
"""Default number of seconds to wait for clients where too few answer, such as through a power cut."""

_unchecked = getattr(hydra.utils, "UNSAFE_DISABLE_EXECUTION_CHECKS", None)
TRUSTED: dict[str, Any] = {} if _unchecked is None else {"_execution_whitelist_": _unchecked}
"""Further arguments of Hydra's ``instantiate``: from 1.4 on it asks which targets a configuration may name.

Any, for it is the user's own configuration; a node that is sent one checks it, see
:mod:`fedclust.settings.allowed`.
"""

VERSION_BASE: dict[str, str] = {"version_base": "1.3"} if _unchecked is None else {}
"""How Hydra 1.3 is told to behave as itself; 1.4 does without, and warns of the argument."""


def check_keep(keep: object) -> None:
    """Check a value of ``keep_matrices``; raise ValueError unless it is true, false or "auto"."""
    if not isinstance(keep, bool) and keep != KEEP:
        raise ValueError(f"keep_matrices must be true, false or auto, got {keep!r}")
