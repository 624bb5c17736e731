"""What a run records about the machine and the code that made it."""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import flwr
import pytest
import torch

import fedclust
from fedclust.support import provenance
from fedclust.support.provenance import commit_of, made_with


def test_versions_machine_and_time_but_no_names() -> None:
    made = made_with()
    expected = {"fedclust": fedclust.__version__, "flwr": flwr.__version__}
    assert made["versions"].items() >= expected.items()
    assert made["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert 1 <= made["cores"] <= (os.cpu_count() or 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", made["time"])
    assert made["cpu"]
    for private in (platform.node(), str(Path.home()), str(Path(__file__).parent)):
        assert private not in str(made).split("'")


def test_fedclust_need_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower runs the app from its bundle."""

    def only_others(name: str) -> str:
        if name == "fedclust":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(provenance, "version", only_others)
    python = {"python": platform.python_version()}
    assert made_with()["versions"] == {"fedclust": fedclust.__version__, "flwr": "1", "torch": "1"} | python


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("one")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"], ["tag", "-m", "v", "v1"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert commit_of(tmp_path) == head[:12]
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path) == f"{head[:12]}+"
    (tmp_path / "below").mkdir()
    assert commit_of(tmp_path / "below") is None
