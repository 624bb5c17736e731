"""The page in a real headless Chromium; skipped where none is installed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedclust.results.page import write_page, write_sweep_page
from tests.chromium import Browser, find

from ..conftest import AFFINITY
from .conftest import HOSTILE

CHROMIUM = find()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome in PATH")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def opened(browser: Browser, path: Path) -> Browser:
    browser.errors.clear()
    browser.open(path.resolve().as_uri())
    until = time.monotonic() + 30
    while not browser.js("document.documentElement.dataset.drawn") and time.monotonic() < until:
        time.sleep(0.05)
    return browser


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.js(f"[...document.querySelectorAll({selector!r})].map((each) => each.textContent)")


def column(browser: Browser, place: int) -> list[str]:
    return texts(browser, f"#table-clients tbody tr:not([hidden]) > :nth-child({place})")


def counted(browser: Browser) -> str:
    return browser.js("document.getElementById('clients-count').textContent")


def test_it_opens_in_both_schemes_and_on_a_phone_without_errors(browser: Browser, finished_run: Path) -> None:
    page = write_page(finished_run)
    for scheme, width in (("light", 1280), ("dark", 1280), ("dark", 360)):
        browser.scheme(scheme)
        browser.size(width, 800)
        opened(browser, page)
        assert browser.errors == []
        assert browser.js("document.documentElement.scrollWidth") <= width  # only tables scroll sideways
        assert len(browser.js("[...document.querySelectorAll('h2')].map((title) => title.textContent)")) >= 5
    browser.scheme("light")
    browser.size(1280, 800)


def test_nothing_is_cut_in_print_and_values_are_in_view_on_a_phone(browser, finished_run) -> None:
    page = write_page(finished_run)
    browser.size(390, 844)
    opened(browser, page)
    ends = "[...document.querySelectorAll('#table-figures tbody td:nth-child(2)')].map((cell) => cell.{})"
    assert max(browser.js(ends.format("getBoundingClientRect().right"))) <= 390
    # A4 less Chromium's margins of 1 cm: 190 mm of 96/25.4 pixels, 277 mm for the clients' own wide pages.
    browser.call("Emulation.setEmulatedMedia", media="print")
    for width, selector in ((718, ".scroll:not(#clients *)"), (1046, "#clients .scroll")):
        browser.size(width, 800)
        wide = f"[...document.querySelectorAll('{selector}')].filter((b) => b.scrollWidth > b.clientWidth)"
        assert browser.js(f"{wide}.map((box) => box.textContent.slice(0, 40))") == []
    # Chromium does not paint a button in a table's head that a page repeats.
    shown = "[...document.querySelectorAll('thead button')].map((head) => getComputedStyle(head).display)"
    assert set(browser.js(shown)) == {"contents"}
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.size(1280, 800)


def test_a_hint_stands_above_each_table_that_is_cut_and_no_other(browser, finished_run) -> None:
    page = write_page(finished_run)
    hinted = "[...document.querySelectorAll('.hint')].filter((each) => each.checkVisibility())"
    names = f"{hinted}.map((each) => each.nextElementSibling.querySelector('table').id).sort()"
    boxes = "[...document.querySelectorAll('.scroll')].filter((each) => each.checkVisibility())"
    cut = f"{boxes}.filter((each) => each.scrollWidth > each.clientWidth + 1)"
    for width in (1280, 390, 1280):
        browser.size(width, 844)
        opened(browser, page)
        browser.js("document.getElementById('values-accuracy_per_round').open = true")
        browser.js("new Promise((done) => setTimeout(done, 200))")
        found = browser.js(names)
        assert found == browser.js(f"{cut}.map((each) => each.querySelector('table').id).sort()")
        assert ("table-clients" in found) == (width == 390)
        assert browser.js(f"{hinted}.length") == len(found)


@pytest.mark.parametrize(
    "verdict",
    [
        "Clust-PSI-PFL's 36 clusters have 0.714 instead of 0.166 of test rows predicted right (+0.549, 95 %"
        " interval +0.49 to +0.61), Brier score lower by 0.44 (0.37 to 0.50), for 46 of 50 clients",
        "Train 20 of 30 clients apart (clusters 0, 1) and one model for the others: 0.9 instead of 0.6",
        "Stop: check the coding of east and run again. Until then: 3 of 4 sites train with everyone but east",
    ],
)
def test_the_headline_has_two_lines_at_most(browser: Browser, finished_run: Path, verdict: str) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    summary["verdict"] = {"text": verdict, "grouped": True, "gain": None, "interval": None}
    (finished_run / "summary.json").write_text(json.dumps(summary))
    page = write_page(finished_run)
    for width in (1280, 390):
        browser.size(width, 844)
        opened(browser, page)
        head = "document.querySelector('.verdict .text')"
        height = f"parseFloat(getComputedStyle({head}).lineHeight)"
        assert round(browser.js(f"{head}.getBoundingClientRect().height / {height}")) <= 2
        written = " ".join(texts(browser, "main p"))
        assert written.count(browser.js(f"{head}.textContent")) == 1
        assert verdict[-30:] in written  # the rest, below the headline
    browser.size(1280, 800)


def said(browser: Browser, name: str, *keys: str) -> str:
    """Press keys on a chart, and return what it then says aloud."""
    browser.js(f"document.getElementById('chart-{name}').focus()")
    for key in keys:
        browser.key(key)
    return browser.js(f"document.querySelector('#{name} [aria-live]').textContent")


def says(browser: Browser, name: str, expected: str) -> bool:
    """Wait until a chart that is drawn anew says something."""
    until = time.monotonic() + 3
    while (found := said(browser, name, "Home")) != expected and time.monotonic() < until:
        time.sleep(0.05)
    return found == expected


def middle(browser: Browser, query: str) -> tuple[float, float]:
    return browser.js(
        f"(() => {{ const node = document.querySelector({query!r});"
        " node.scrollIntoView({behavior: 'instant', block: 'center'});"
        " const box = node.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )


def test_hover_and_keys_show_what_summary_json_holds(browser: Browser, finished_run: Path) -> None:
    opened(browser, write_page(finished_run))
    summary = json.loads((finished_run / "summary.json").read_text())
    name = "accuracy_per_round"
    _, y = middle(browser, f"#chart-{name} svg")
    right = browser.js(f"document.querySelector('#chart-{name} svg').getBoundingClientRect().right")
    browser.hover(right - 13, y)
    tip = f"#{name} .tip"
    assert browser.js(f"document.querySelector('{tip}').hidden") is False
    assert browser.js(f"document.querySelector('{tip} b').textContent") == "round 3"
    values = texts(browser, f"{tip} .value")
    expected = [summary["mean_client_accuracy"], summary["compare"]["fedavg"]["mean_client_accuracy"]]
    assert values == [f"{value:.3f}" for value in expected]
    # 0.7125 and 0.5 - 0.1, and what is marked there
    read = said(browser, name, "End", "ArrowLeft")
    assert read == "round 2: FedGWC 0.712, FedAvg 0.400, cluster 0 split in 2"
    # Zoomed in twice around round 2 the ends are out of sight, and back.
    assert said(browser, "loss", "Home").startswith("round 1: ")
    ticks = f"#chart-{name} .role-axis-label text"
    whole = texts(browser, ticks)
    said(browser, name, "Home", "ArrowRight", "+")
    assert texts(browser, ticks) == whole  # rounds are zoomed into by whole ones only
    browser.js("document.getElementById('values-accuracy_per_round').open = true")
    browser.js("new Promise((done) => setTimeout(done, 50))")
    assert texts(browser, "#values-accuracy_per_round td")[-2:] == values
    # A click on a line's name in the legend hides the others; one more if the chart was just drawn anew.
    for _ in range(3):
        x, y = middle(browser, f"#chart-{name} .role-legend-label text")
        for kind in ("mousePressed", "mouseReleased"):
            browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        if says(browser, name, "round 1: FedGWC 0.612"):
            break
    else:
        pytest.fail("no line is hidden")


def test_cells_show_the_matrix(browser: Browser, finished_run: Path) -> None:
    opened(browser, write_page(finished_run))
    with np.load(finished_run / "matrices.npz") as arrays:
        affinity = arrays["affinity"]
    name, _, value = said(browser, "affinity", "Home", "ArrowRight", "ArrowDown").partition(": ")
    assert float(name) == affinity[1, 1]
    assert value == "client 1, known group 0; client 1, known group 0"
    assert float(said(browser, "affinity", "ArrowRight").partition(": ")[0]) == affinity[1, 2]


def test_sorting_and_filtering_clients(browser: Browser, finished_run: Path) -> None:
    opened(browser, write_page(finished_run))
    headings = texts(browser, "#table-clients thead th")
    place = headings.index("accuracy") + 1
    head = f"document.querySelector('#table-clients thead th:nth-child({place})')"
    assert column(browser, place) == ["1.000", "0.500", "1.000", "0.750"]
    browser.js(f"{head}.querySelector('button').focus()")
    browser.js(f"{head}.querySelector('button').click()")
    assert browser.js(f"{head}.getAttribute('aria-sort')") == "descending"
    assert column(browser, place) == ["1.000", "1.000", "0.750", "0.500"]
    browser.js(f"{head}.querySelector('button').click()")
    assert browser.js(f"{head}.getAttribute('aria-sort')") == "ascending"
    assert column(browser, place) == ["0.500", "0.750", "1.000", "1.000"]
    assert browser.js("document.querySelectorAll('#table-clients [aria-sort]').length") == 1
    browser.js("document.getElementById('members-1').click()")  # the clients of cluster 1
    assert column(browser, 1) == ["3", "2"]
    assert counted(browser) == "2 of 2 clients shown, 4 in all"


def test_a_hostile_name_does_nothing(browser: Browser, hostile_run: Path) -> None:
    opened(browser, write_page(hostile_run))
    assert browser.errors == []
    assert browser.js("window.broken") is None
    assert browser.js("document.querySelectorAll('img').length") == 0
    assert browser.js("document.scripts.length") == 2
    assert browser.js("document.title").startswith("fmcl · ")
    browser.js("document.getElementById('client-0').click()")
    browser.js("document.getElementById('client-1').click()")
    text = browser.js("document.body.textContent")
    assert text.count(HOSTILE) >= 5
    assert browser.errors == []
    assert browser.js("document.getElementById('client-1').getAttribute('aria-expanded')") == "true"
    history = browser.js("document.querySelectorAll('td.history')[1].textContent")
    assert "History of client 1, Beta & Söhne" in history
    assert "evaluate" in history
    search = "document.getElementById('clients-text')"
    browser.js(f"{search}.value = 'söhne'; {search}.dispatchEvent(new Event('input'))")
    assert counted(browser) == "1 of 1 client shown, 3 in all"
    browser.js("document.getElementById('clients-failing').click()")
    assert counted(browser) == "1 of 1 client shown, 3 in all"
    # The policy stops what would get past the escaping.
    script = "const s = document.createElement('script'); s.text = 'window.broken=1'; document.body.append(s)"
    browser.js(f"(() => {{ {script}; }})()")
    assert browser.js("window.broken") is None


def test_chains_can_be_read(browser: Browser, finished_run: Path) -> None:
    u = np.linspace(0, 1, 5)
    np.savez(
        finished_run / "matrices.npz",
        curve_pairs=np.array([[0, 3]]), curve_points=u, curve_losses=[1e-5 * (1 - u)],
        line_losses=[2e-5 * (1 - u)],
    )  # fmt: skip
    opened(browser, write_page(finished_run))
    assert browser.errors == []
    read = said(browser, "outputs_along_chains", "Home", "ArrowRight")
    assert read == "position 0.25: fitted chain 7.50e-6, straight line 1.50e-5"


def fedgwc_figures(folder: Path, last: float = 0) -> Path:
    """Give a run FedGWC's figures: a split in round 2, and the losses of three clients at two steps."""
    np.savez(
        folder / "matrices.npz", affinity_round_2=AFFINITY, cohort_round=np.array(2.0),
        cohort_losses=np.array([[1.0, 2], [2, 4], [3, 6]]), cohort_clients=np.array([0.0, 1, 3]),
    )  # fmt: skip
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line, mse in zip(lines, (0.5, 0.0004, last), strict=True):
        line["strategy"] = {"0": {"mse": mse, "split": mse == 0.0004}}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return write_page(folder)


def test_the_clients_of_a_split_can_be_read_and_zoomed(browser: Browser, finished_run: Path) -> None:
    opened(browser, fedgwc_figures(finished_run))
    name = "splits_in_embedding"
    assert said(browser, name, "Home").startswith("client 0: cluster 0, 2 clients")
    last = said(browser, name, "End")
    assert last.startswith("client 3: cluster 1, 2 clients, at ")
    # Hovering over it says the same as the keys.
    x, y = middle(browser, f"#{name} .ring")
    browser.hover(5, 5)
    browser.hover(x + 3, y)
    assert browser.js(f"document.querySelector('#{name} .tip').hidden") is False
    assert browser.js(f"document.querySelector('#{name} .tip b').textContent") == "client 3"
    # Zoomed in on the last client until the others are out of sight, and back.
    for _ in range(5):
        said(browser, name, "End", "+")
    assert said(browser, name, "Home") == last
    said(browser, name, "Escape")
    assert said(browser, name, "Home") != last


def test_what_a_screen_reader_needs(browser: Browser, finished_run: Path) -> None:
    opened(browser, fedgwc_figures(finished_run))
    nameless = """[...document.querySelectorAll('button, a, input, select, .chart')]
        .filter((each) =>
        !(each.textContent.trim() || each.getAttribute('aria-label') || (each.labels && each.labels.length)))
        .filter((each) => each.type !== 'hidden').map((each) => each.outerHTML)"""
    assert browser.js(nameless) == []
    assert browser.js("[...document.querySelectorAll('table')].every((each) => each.caption.textContent)")
    assert browser.js("[...document.querySelectorAll('thead th')].every((each) => each.scope === 'col')")
    assert browser.js("document.querySelectorAll('h1').length") == 1
    assert browser.js("document.querySelectorAll('main').length") == 1
    identifiers = browser.js("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(identifiers) == len(set(identifiers))


def test_the_page_of_a_sweep(browser: Browser, finished_run: Path) -> None:
    write_page(finished_run)
    page = write_sweep_page(finished_run.parent)
    opened(browser, page)
    assert browser.errors == []
    verdict = browser.js("document.querySelector('.verdict .text').textContent")
    assert verdict == "FedGWC has the highest accuracy"
    assert browser.js("document.querySelector('#table-jobs a').getAttribute('href')") == "run/report.html"
    assert said(browser, "seeds", "Home") == "FedGWC, seed 7: client accuracy 0.812"
    choice = "document.querySelector('#seeds select')"
    browser.js(f"{choice}.value = 'seconds'; {choice}.dispatchEvent(new Event('change'))")
    assert says(browser, "seeds", "FedGWC, seed 7: seconds 1.500")
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.size(1046, 800)  # A4 on its side, less 1 cm on the left and on the right
    box = "document.querySelector('#table .scroll')"
    assert browser.js(f"getComputedStyle({box}.closest('section')).page") == "wide"
    assert browser.js(f"{box}.scrollWidth <= {box}.clientWidth")
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.size(1280, 800)
