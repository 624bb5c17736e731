"""What Flower's bundle and Flower Hub accept: pyproject's declarations, and limits on the files."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.supercore import constant
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format
from packaging.requirements import Requirement
from packaging.version import Version

import fedclust
from fedclust.settings.composition import CONF

ROOT = CONF.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_flower_accepts_the_declarations_of_format_1() -> None:
    assert PROJECT["tool"]["flwr"]["app"]["fab-format-version"] == 1
    normalize_and_validate_fab_format(PROJECT)  # raises, naming what is missing


def test_versions_are_the_same_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    first = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first[1] == version == fedclust.__version__


def test_lower_bounds_are_those_that_were_tried() -> None:
    """Of what a node needs and of the extra ``all``."""
    extras = PROJECT["project"]["optional-dependencies"]
    named = Requirement(extras["all"][0]).extras
    asked = [*PROJECT["project"]["dependencies"], *(each for extra in named for each in extras[extra])]
    bounds = {
        (each.name, Version(bound.version))
        for each in map(Requirement, asked)
        for bound in each.specifier
        if bound.operator == ">="
    }
    tried = map(
        Requirement, (ROOT / "tests/constraints-lowest.txt").read_text(encoding="utf-8").split("\n")[2:-1]
    )
    assert bounds == {(each.name, Version(next(iter(each.specifier)).version)) for each in tried}
    assert len(bounds) == len({Requirement(each).name for each in asked})  # nothing without a lower bound


def test_ci_installs_one_version_of_each_dependency() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    named = Requirement(extras["all"][0]).extras
    asked = [*PROJECT["project"]["dependencies"], *(each for extra in named for each in extras[extra])]
    pinned = set(
        re.findall(r"^(\S+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {Requirement(each).name for each in asked} <= pinned


def test_the_hub_takes_all_files() -> None:
    """Of what `make hub` copies; the Hub takes no others than these kinds, and our names have no spaces."""
    copied = ["--", ":!tests", ":!benchmarks"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "git archive HEAD -- ':!tests' ':!benchmarks'" in makefile
    listed = subprocess.run(["git", "ls-files", *copied], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    kinds = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
    files = [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in kinds]
    files = [path for path in files if path.is_file() and not path.is_symlink()]
    sizes = {path: path.stat().st_size for path in files}
    assert len(files) <= constant.MAX_FILE_COUNT
    assert max(sizes.values()) <= constant.MAX_FILE_BYTES, max(sizes, key=lambda path: sizes[path])
    assert sum(sizes.values()) <= constant.MAX_TOTAL_BYTES
    assert max(len(path.relative_to(ROOT).parts) for path in files) <= constant.MAX_DIR_DEPTH
    for path in files:
        path.read_text(encoding="utf-8")  # raises if it is not UTF-8


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_released_readme_has_no_relative_link(tmp_path: Path) -> None:
    base = "https://code.example/us/fedclust"
    made = tmp_path / "README.md"
    subprocess.run(
        ["make", "--silent", "release-readme", f"BASE={base}", f"README={made}"], cwd=ROOT, check=True
    )
    ours = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    theirs = made.read_text(encoding="utf-8").splitlines()
    tag = f"v{PROJECT['project']['version']}"
    pages, pictures, in_code = 0, 0, False
    for old, new in zip(ours, theirs, strict=True):
        in_code ^= old.startswith("```")
        if in_code:
            assert new == old
            continue
        expected = old
        for link in re.findall(r"!?\[[^]]*\]\([^)]*\)", old):
            target = link.rpartition("(")[2][:-1]
            if target.startswith(("https://", "#")):
                continue
            assert (ROOT / target.partition("#")[0]).exists(), target
            kind = "raw" if link.startswith("!") else "blob"
            absolute = link.replace(f"({target})", f"({base}/{kind}/{tag}/{target})")
            expected = expected.replace(link, absolute)
            pages, pictures = pages + (kind == "blob"), pictures + (kind == "raw")
        assert new == expected
    assert pages > 20
    assert pictures == 1  # default_run.png


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_package_shows_the_released_readme(tmp_path: Path) -> None:
    """Of the folder that `make hub` writes, which is what PyPI gets, too."""
    folder, readme = tmp_path / "hub", tmp_path / "README.md"
    base = "BASE=https://code.example/us/fedclust"
    made = subprocess.run(
        ["make", "--silent", "hub", base, f"README={readme}", f"HUB={folder}"], cwd=ROOT, capture_output=True
    )
    if b"not a git repository" in made.stderr:
        pytest.skip("not a git checkout")
    assert made.returncode == 0, made.stderr
    hook = "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('..')"
    subprocess.run([sys.executable, "-P", "-c", hook], cwd=folder, check=True, capture_output=True)
    (shown,) = tmp_path.glob("fedclust-*.dist-info/METADATA")
    headers, _, description = shown.read_text(encoding="utf-8").partition("\n\n")
    assert "Description-Content-Type: text/markdown" in headers
    assert description == readme.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_released_readme_needs_an_address(tmp_path: Path) -> None:
    made = tmp_path / "README.md"
    done = subprocess.run(
        ["make", "--silent", "release-readme", f"README={made}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "BASE must be" in done.stderr
    assert not made.exists()
