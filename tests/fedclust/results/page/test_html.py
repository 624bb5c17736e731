"""The page as a file: nothing from data becomes markup, it is small, and its colours can be told apart."""

import base64
import hashlib
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedclust.results import Recorder, client_table, summarise
from fedclust.results.page import document, view_run, write_page
from fedclust.results.page.html import parts

from .conftest import HOSTILE


class Elements(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_hostile_names_stay_text(hostile_run: Path) -> None:
    text = document(view_run(hostile_run))
    assert "<img" not in text
    names = [tag for tag, _ in Elements(text).tags]
    assert names.count("script") == 2
    assert text.count("</script>") == 2
    assert HOSTILE not in text
    assert text.count("\\u003c/script\\u003e") > 5  # in names, reasons, the verdict and the configuration


def test_only_the_pages_own_script_may_run(finished_run: Path) -> None:
    text = document(view_run(finished_run))
    policies = [attributes["content"] for _, attributes in Elements(text).tags if "http-equiv" in attributes]
    (policy,) = policies
    assert policy is not None
    assert "default-src 'none'" in policy
    for kind in ("script", "style"):
        (inline,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_nothing_is_loaded_from_elsewhere(finished_run: Path) -> None:
    text = document(view_run(finished_run))
    for _, attributes in Elements(text).tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in text
    assert "insertAdjacentHTML" not in text


def test_the_size_of_a_large_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    assignment = np.zeros(100, dtype=int)
    with Recorder(tmp_path / "run", {"rounds": 1000}) as recorder:
        for number in range(1, 1001):
            if number % 2 == 0:  # a method that regroups every other round
                assignment = np.where(rng.random(100) < 0.1, rng.integers(0, 5, 100), assignment)
                recorder.assignment(number, assignment, "clients chose the model with the least loss")
            recorder.round(
                {
                    "round": number, "cohort": rng.choice(100, 80, replace=False), "loss": rng.random(),
                    "failures": [{"client": 3, "phase": "train", "reason": "x" * 80}], "num_clusters": 5,
                    "mean_client_accuracy": rng.random(), "client_accuracy": rng.random(100),
                    "seconds": rng.random(),
                    "test_loss": rng.random(), "bytes_down": 123_456, "bytes_up": 654_321,
                    "strategy": {str(cluster): {"mse": rng.random()} for cluster in range(25)},
                }
            )  # fmt: skip
        counts = rng.integers(0, 99, (100, 62))
        evaluation = [{"accuracy": value, "loss": value} for value in rng.random(100)]
        names = [f"hospital number {client}" for client in range(100)]
        table = client_table(assignment, counts.sum(1), counts.sum(1), counts, evaluation, names=names)
        recorder.clients(table)
        squares = rng.random((20, 100, 100))
        arrays = {f"affinity_round_{each}": square + square.T for each, square in enumerate(squares)}
        arrays |= {"cohort_losses": rng.random((100, 200)), "cohort_clients": np.arange(100.0)}
        entries = np.stack([*np.indices((1000, 100)).reshape(2, -1), rng.normal(size=100_000)], axis=1)
        traces = {f"loss_trace_cluster_{each}": np.insert(entries, 3, 0, axis=1) for each in range(6)}
        recorder.matrices(**arrays, **traces, cohort_round=np.array(9.0))
        recorder.summary(summarise(table, strategy="ifca", seed=0, rounds=1000, seconds=1.0))
    for name in ("fedavg", "fedgwc", "fmcl"):
        beside = tmp_path / "run" / "compare" / name
        beside.mkdir(parents=True)
        shutil.copy(tmp_path / "run" / "rounds.jsonl", beside)
    path = write_page(tmp_path / "run")
    assert 500_000 < path.stat().st_size < 2_000_000
    view = view_run(tmp_path / "run")
    assert view.rewards is not None
    assert len(view.splits) == 1  # of rounds 0 to 3, where an assignment was noted: after round 2
    assert len(view.curves[0].lines) == 20


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def _luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _mixed(colour: str, ground: str, share: float) -> str:
    parts = [
        round(share * int(colour[place : place + 2], 16) + (1 - share) * int(ground[place : place + 2], 16))
        for place in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02x}" for part in parts)


def test_how_contrast_is_computed() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # a well-known near miss of 4.5


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_contrast(scheme: str) -> None:
    _, style, _ = parts()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = _colours(blocks[0]) | (_colours(blocks[["light", "dark", "print"].index(scheme)]))
    for ground in ("ground", "raised", "wash"):
        for text in ("text", "quiet", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in (*(f"c{number}" for number in range(7)), "good", "warn", "edge"):  # WCAG 1.4.11
        assert contrast(colours[line], colours["ground"]) >= 3, line
    shaded = _mixed(colours["c0"], colours["ground"], 0.45)
    assert contrast(colours["text"], shaded) >= 4.5
