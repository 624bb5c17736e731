"""What differs between the versions of Hydra that we support, 1.3 and 1.4."""

from typing import Any

import hydra.utils

_unchecked = getattr(hydra.utils, "UNSAFE_DISABLE_EXECUTION_CHECKS", None)
TRUSTED: dict[str, Any] = {} if _unchecked is None else {"_execution_whitelist_": _unchecked}
"""Further arguments of Hydra's ``instantiate``: from 1.4 on it asks which targets a configuration may name.

Any, for it is the user's own configuration; a node that is sent one checks it, see
:mod:`fedclust.settings.allowed`.
"""

VERSION_BASE: dict[str, str] = {"version_base": "1.3"} if _unchecked is None else {}
"""How Hydra 1.3 is told to behave as itself; 1.4 does without, and warns of the argument."""
