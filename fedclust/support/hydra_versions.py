"""Differences between the versions of Hydra that we support, 1.3 and 1.4."""

from typing import Any

import hydra.utils

_unchecked = getattr(hydra.utils, "UNSAFE_DISABLE_EXECUTION_CHECKS", None)
TRUSTED: dict[str, Any] = {} if _unchecked is None else {"_execution_whitelist_": _unchecked}
"""Further arguments of Hydra's ``instantiate``, which from 1.4 on restricts the targets of a configuration.

All targets are allowed here, as the configuration is the user's own; a node checks a configuration that it
receives, see :mod:`fedclust.settings.allowed`.
"""

VERSION_BASE: dict[str, str] = {"version_base": "1.3"} if _unchecked is None else {}
"""Argument that makes Hydra 1.3 use its own defaults; 1.4 does not need it and warns about it."""
