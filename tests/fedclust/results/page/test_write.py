"""The page as a file: nothing from data becomes markup, it is small, its colours can be told apart."""

import base64
import hashlib
import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedclust.federation import RunFailed
from fedclust.results import Recorder, SavedRun
from fedclust.results.charts.chart import bundle
from fedclust.results.page import PAGE, LivePage, document, live_part, write
from fedclust.results.page.run import view_run
from fedclust.results.page.sweep import view_sweep
from fedclust.results.page.write import template

from .conftest import HOSTILE, Page

pytestmark = pytest.mark.usefixtures("pages")


def test_hostile_names_stay_text(hostile_run: Path) -> None:
    view = view_run(hostile_run)
    text = document(view)
    names = [tag for tag, _ in Page(text).tags]
    assert "img" not in names
    assert names.count("script") == 2
    assert text.count("</script>") == 2
    assert HOSTILE not in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not set("<>&") & set(data)
    assert data.count("\\u003c/script\\u003e") > 5  # names, classes, reasons
    # Names are values or quoted literals of a specification, never its fields or expressions.
    specs = json.loads(data)["charts"]
    for spec in specs.values():
        for found in re.findall(r'"(?:field|filter|calculate|expr|test)":"([^"]*)"', json.dumps(spec)):
            assert "onerror" not in found
    markup = json.loads(live_part(view))["markup"]
    assert "img" not in [tag for tag, _ in Page(markup).tags]


def test_only_the_pages_own_script_may_run_and_nothing_is_loaded(finished_run: Path) -> None:
    text = document(view_run(finished_run))
    (policy,) = [attributes["content"] for _, attributes in Page(text).tags if "http-equiv" in attributes]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        (inline,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    for _, attributes in Page(text).tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not re.findall(r"https?://|innerHTML|insertAdjacentHTML|eval\(", template("script"))


def test_the_size_of_a_large_run(tmp_path: Path) -> None:
    rng, folder, reason = np.random.default_rng(0), tmp_path / "run", "clients chose the least loss"
    figures = "loss test_loss mean_client_accuracy seconds num_clusters bytes_down bytes_up"
    lines = []
    for number in range(1, 401):
        some = {"cohort": [*range(32)], "client_accuracy": rng.random(40).round(6).tolist()}
        some["failures"] = [{"client": 3, "phase": "train", "reason": "x" * 80}]
        some["strategy"] = {str(cluster): {"mse": rng.random()} for cluster in range(25)}
        lines.append({"round": number, **some, **{key: rng.random() for key in figures.split()}})
    assignments = rng.integers(0, 5, (200, 40)).tolist()  # a method that regroups every other round
    changes = [{"round": 2 * at, "assignment": each, "reason": reason} for at, each in enumerate(assignments)]
    with Recorder(folder, {"rounds": 400}) as recorder:
        squares = {f"affinity_round_{each}": np.eye(40) + 0.5 for each in range(2, 8)}
        cohort = {"cohort_losses": rng.random((40, 100)), "cohort_clients": np.arange(40.0)}
        recorder.matrices(**squares, **cohort, cohort_round=np.array(9.0))
    (folder / "rounds.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (folder / "clusters.json").write_text(json.dumps(changes))
    for name in ("fedavg", "fedgwc", "fmcl"):
        (folder / "compare" / name).mkdir(parents=True)
        shutil.copy(folder / "rounds.jsonl", folder / "compare" / name)
    view = view_run(folder)
    assert 300_000 < len(document(view).encode()) - len(bundle().encode()) < 700_000
    assert {"rewards", "interaction_convergence"} <= view["pictures"].keys()


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


def _distance(one: str, other: str) -> float:
    """Return the CIE 1976 difference of two colours: about 2.3 can just be seen."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    labs = []
    for colour in (one, other):
        part = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
        xyz = to_xyz @ linear / [0.95047, 1, 1.08883]
        x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
        labs.append([116 * y - 16, 500 * (x - y), 200 * (y - z)])
    return float(np.linalg.norm(np.subtract(*labs)))


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_contrast(scheme: str) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert _distance("#000000", "#ffffff") == pytest.approx(100, abs=0.01)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # a well-known near miss of 4.5
    blocks = re.findall(r":root \{(.*?)\}", template("style"), re.DOTALL)
    colours = _colours(blocks[0]) | (_colours(blocks[["light", "dark", "print"].index(scheme)]))
    for ground in ("ground", "raised", "wash"):
        for text in ("text", "quiet", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in (*(f"c{number}" for number in range(10)), "good", "warn", "edge"):  # WCAG 1.4.11
        assert contrast(colours[line], colours["ground"]) >= 3, line
    pairs = itertools.combinations([f"c{number}" for number in range(10)], 2)
    assert min(_distance(colours[one], colours[other]) for one, other in pairs) > 25  # ten methods differ
    shaded = _mixed(colours["c0"], colours["ground"], 0.45)
    assert contrast(colours["text"], shaded) >= 4.5


@pytest.mark.parametrize(
    ("cost", "asked", "expected"),
    [
        (0.0, (9.5, 10.5, 20.0, 40.0, 41.0, 70.0, 72.0), [10.5, 41.0, 72.0]),  # then every thirty seconds
        (2.0, (10.0, 100.0, 111.0, 113.0), [10.0, 113.0]),  # written from 10 to 12, so next at 12 + 50 · 2
    ],
)
def test_how_often_a_page_is_written(cost: float, asked: tuple, expected: list, monkeypatch) -> None:
    now, calls = [0.0], []

    def written(folder: Path) -> None:
        calls.append(now[0])
        now[0] += cost

    monkeypatch.setattr(write, "write_page", written)
    page = LivePage(Path("run"), lambda: now[0])
    for now[0] in asked:
        page({})
    assert calls == expected


def test_a_run_that_fails_leaves_its_page(tmp_path: Path) -> None:
    def run() -> None:
        with LivePage(tmp_path / "run"), Recorder(tmp_path / "run") as recorder:
            recorder.round({"round": 1})
            raise RunFailed("a disk on fire &\ngone")

    with pytest.raises(RunFailed):
        run()
    page = (tmp_path / "run" / PAGE).read_text()
    assert "Failed: round 1" in page
    assert "a disk on fire &amp; gone" in page
    assert view_sweep(tmp_path)["runs"][0][3]["text"] == "1 of ?, failed"
    with pytest.raises(ValueError, match="got 0"), LivePage(tmp_path / "run"):
        raise ValueError("rounds must be >= 1, got 0")  # refused: all stays as it was
    assert (tmp_path / "run" / PAGE).read_text() == page
    assert SavedRun(tmp_path / "run").failed == "a disk on fire & gone"
    resumed = LivePage(tmp_path / "run")
    resumed({"round": 2})
    with pytest.raises(KeyboardInterrupt), resumed:
        raise KeyboardInterrupt
    page = (tmp_path / "run" / PAGE).read_text()
    assert "Not finished: round 1" in page
    assert "on fire" not in page
    with pytest.raises(MemoryError), resumed:
        raise MemoryError
    assert SavedRun(tmp_path / "run").failed == "MemoryError"
    with resumed:
        pass
    assert not SavedRun(tmp_path / "run").failed


def test_a_run_without_a_page_leaves_why_it_failed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        recorder.round({"round": 1})
    page = LivePage(tmp_path / "run", shown=False)
    with pytest.raises(RunFailed), page:
        raise RunFailed("a disk on fire")
    assert SavedRun(tmp_path / "run").failed == "a disk on fire"
    with page:
        page.write()
    assert not SavedRun(tmp_path / "run").failed
    assert not (tmp_path / "run" / PAGE).exists()


def test_a_page_that_cannot_be_written_does_not_end_the_run(finished_run, tmp_path, caplog) -> None:
    LivePage(tmp_path / "absent").write()  # the run did not start
    assert not (tmp_path / "absent").exists()
    assert not caplog.records
    (finished_run / "summary.json").write_text("[]")
    LivePage(finished_run).write()
    assert "could not be written" in caplog.text
    assert not list(finished_run.glob("*.partial"))
