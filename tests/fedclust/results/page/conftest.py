"""A run whose client and class names try to break the page."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedclust.results import Recorder, client_table, summarise
from fedclust.results.page import live_part

HOSTILE = '</script><img src=x onerror="window.broken=1"><script>window.broken=1</script>{{data}}'


class Page(HTMLParser):
    """Reads the elements, texts and tables of markup, or of what a page would show of a view."""

    def __init__(self, shown: str | dict) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.tables: dict[str | None, list[list[str]]] = {}
        self._in_cell = False
        self.feed(shown if isinstance(shown, str) else json.loads(live_part(shown))["markup"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self._rows = self.tables.setdefault(dict(attrs)["id"], [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._in_cell = True
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell &= tag not in ("td", "th", "thead", "table")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self._rows[-1][-1] += data.strip()
        elif data.strip():
            self.texts.append(data.strip())

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a table, by heading."""
        heads, *rows = self.tables[name]
        return [dict(zip(heads, row, strict=True)) for row in rows]

    def column(self, name: str, title: str) -> list[str]:
        return [row[title] for row in self.rows(name)]


@pytest.fixture
def hostile_run(tmp_path: Path) -> Path:
    """Folder of a finished run of three clients in two clusters; client 1 once failed."""
    folder = tmp_path / "Lauf für A"
    config = {"rounds": 2, "compare": [], "choices": {"strategy": "fmcl"}}
    config["overrides"] = ["seed=1", f"a={HOSTILE}"]
    names = [HOSTILE, "Beta & Söhne", "gamma"]
    with Recorder(folder, config) as recorder:
        recorder.assignment(0, [0, 0, 0], "before round 1")
        for number, accuracies in ((1, [0.25, 0.5, 0.75]), (2, [0.5, None, 1.0])):
            failed = [{"client": 1, "name": names[1], "phase": "evaluate", "reason": HOSTILE}][: number - 1]
            line = {"round": number, "cohort": [0, number], "failures": failed, "num_clusters": number}
            mean = {"mean_client_accuracy": [0.5, 0.75][number - 1]}
            recorder.round(line | mean | {"client_accuracy": accuracies})
        recorder.assignment(2, [0, 1, 1], HOSTILE)
        counts = [[4, 0], [0, 6], [1, 9]]
        evaluation = [{"accuracy": 0.5}, None, {"accuracy": 1.0}]
        table = client_table([0, 1, 1], [4, 6, 10], [2, 2, 2], counts, evaluation, names=names)
        recorder.clients(table)
        distances = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 0.5], [3.0, 0.5, 0.0]])
        recorder.matrices(distances=distances, class_names=[HOSTILE, "b"])
        summary = summarise(table, strategy="fmcl", seed=1, rounds=2, seconds=1.0)
        verdict = {"text": f"Train {HOSTILE}", "grouped": True, "gain": 0.1, "interval": [0.0, 0.2]}
        tested = {"cluster": 0, "clients": 1, "voted": 1, "gain": 0.1, "interval": [0.05, 0.15]}
        tested |= {"p_value": 0.01, "better_for": 1, "proven": True}
        silent = [{"client": 1, "name": names[1], "reason": HOSTILE}]
        proof = {"clusters": [tested], "did_not_vote": silent}
        recorder.summary(summary | {"verdict": verdict, "proof": proof})
    return folder
