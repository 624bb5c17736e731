from types import SimpleNamespace
from typing import Any, Literal

import pytest

from fedclust.support.checks import check


@pytest.mark.parametrize(
    ("rule", "kept", "broken"),
    [
        ("> 0", [0.1, float("inf")], [0, -1, float("nan"), None]),
        (">= 2 or None", [2, None], [1]),
        ("< 3", [2], [3]),
        ("<= 3", [3], [4]),
        ("in [0, 1)", [0, 0.5], [1, -0.1, float("nan")]),
        ("in (0, 0.5]", [0.5, 0.1], [0, 0.51]),
        ("> 0 and finite or None", [1.0, None], [float("inf"), 0]),
        (Literal["a", "b"], ["a", "b"], ["c", None]),
    ],
)
def test_rules_hold_or_are_named_with_the_value(rule: Any, kept: list, broken: list) -> None:
    for value in kept:
        check(SimpleNamespace(size=value), size=rule)
    told = rule if isinstance(rule, str) else "one of a, b"
    for value in broken:
        with pytest.raises(ValueError, match="size must be") as error:
            check(SimpleNamespace(size=value), size=rule)
        shown = value if isinstance(rule, str) else repr(value)
        assert str(error.value) == f"size must be {told}, got {shown}"
