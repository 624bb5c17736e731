"""Check the values of settings by rules in words, which are also what the errors say."""

import math
import operator
from typing import Any, get_args

__all__ = ["check"]

_COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def check(settings: object, **rules: Any) -> None:
    """Check attributes of an object.

    Parameters
    ----------
    settings
        The object, such as a dataclass in its ``__post_init__``.
    rules
        By attribute, what it must be, joined by " and ": ``">= 1"``, ``"in (0, 1]"``, ``"finite"``; None is
        allowed if the rule ends with " or None". Or a ``Literal``, whose values are the choices.

    Raises
    ------
    ValueError
        If an attribute breaks its rule, with the attribute, the rule and the value.
    """
    for name, rule in rules.items():
        value = getattr(settings, name)
        if choices := get_args(rule):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        elif not _keeps(value, rule):
            raise ValueError(f"{name} must be {rule}, got {value}")


def _keeps(value: Any, rule: str) -> bool:
    if value is None:
        return rule.endswith(" or None")
    for part in rule.removesuffix(" or None").split(" and "):
        if part == "finite":
            kept = math.isfinite(value)
        elif part.startswith("in "):
            low, high = (float(end) for end in part[4:-1].split(", "))
            kept = low <= value <= high
            kept &= (value != low or part[3] == "[") and (value != high or part[-1] == "]")
        else:
            comparison, limit = part.split(" ")
            kept = _COMPARISONS[comparison](value, float(limit))
        if not kept:
            return False
    return True
