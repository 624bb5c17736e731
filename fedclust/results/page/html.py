"""Write the page: one HTML file with its style, its script and its data."""

import base64
import dataclasses
import hashlib
import html
import json
import re
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from fedclust.results.page.data import RunView
from fedclust.results.page.sweep import SweepView

__all__ = ["document", "parts", "to_json"]

_SCRIPTS = ("draw", "dots", "run", "sweep", "main")


def document(view: RunView | SweepView, *, live: bool = False) -> str:
    """Write a view as a page that needs no other file.

    Text from data is in a JSON block, which the script only ever inserts as text, and in the title, escaped.
    The page's own policy allows no other script, and no request except to where it came from.

    Parameters
    ----------
    view
        What to show.
    live
        Whether the page asks its server for news, see :mod:`fedclust.runs.watch`.
    """
    template, style, script = parts()
    filled = {
        "title": html.escape(f"{view.title} · fedclust"),
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "live": "yes" if live else "no",
        "data": to_json(view),
        "verdict": html.escape(" ".join(view.verdict_lines) or view.title),
    }
    # In one pass, so that text of the data that looks like a place in the template stays text.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: filled[place[1]], template)


def to_json(view: RunView | SweepView) -> str:
    """Write a view as JSON that may stand inside a script element: it has no ``<``, ``>`` or ``&``."""
    text = json.dumps(view, default=_convert, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _convert(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"value must be something JSON can hold, got {type(value).__name__}")


@cache
def parts() -> tuple[str, str, str]:
    """Read the template: markup, style and script.

    They are Markdown files with one block of code, because Flower's bundle takes no .html, .css or .js files.
    """
    script = '"use strict";\n' + "\n".join(_code(name) for name in _SCRIPTS)
    return _code("page"), _code("style"), script


def _code(name: str) -> str:
    path = resources.files("fedclust.results.page") / "template" / f"{name}.md"
    _, _, block = path.read_text(encoding="utf-8").partition("```")
    return block.partition("\n")[2].rpartition("```")[0]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
