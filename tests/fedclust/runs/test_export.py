"""``fedclust export``: what it asks for and prints; the files are tested with :mod:`fedclust.serving`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedclust.runs.export import main


def _site(label: str, tuned: bool = False, note: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(label=label, is_tuned=tuned, note=note)


@pytest.mark.parametrize(
    ("sites", "lines"),
    [
        ([_site("north"), _site("west")], ["2 models for 2 clients: out/README.md"]),
        ([_site("north", True)], ["2 models for 1 client, and 1 fine-tuned model: out/README.md"]),
        (
            [_site("north", True), _site("west", True), _site("east", note="it stayed there")],
            [
                "2 models for 3 clients, and 2 fine-tuned models: out/README.md",
                "1 client such as east: it stayed there",
            ],
        ),
    ],
)
def test_it_prints_what_was_written(monkeypatch, capsys, sites: list[Any], lines: list[str]) -> None:
    asked: list[Any] = []
    result = SimpleNamespace(export=lambda target, **how: asked.append(how) or target)
    monkeypatch.setattr(
        "fedclust.runs.library.load", lambda *given, **how: asked.append((given, how)) or result
    )
    served = SimpleNamespace(clusters=(0, 1), sites=sites, stays=())
    monkeypatch.setattr(
        "fedclust.serving.load_export", lambda *given, **how: asked.append((given, how)) or served
    )
    assert main(["run", "out", "--formats", "onnx", "--sites", "north", "--allow", "mine.Net"]) == 0
    allow = {"allow": "mine.Net"}
    how = {"formats": ["onnx"], "sites": ["north"]}
    assert asked == [((Path("run"),), allow), how, ((Path("out"),), allow)]
    predict = "to predict: fedclust predict out ROWS --site north"
    assert capsys.readouterr().out.splitlines() == [*lines, predict]


def test_further_formats_and_sites_are_asked_for_only_by_name(monkeypatch, capsys) -> None:
    asked: list[Any] = []
    result = SimpleNamespace(export=lambda target, **how: asked.append(how) or target)
    monkeypatch.setattr("fedclust.runs.library.load", lambda *_, **__: result)
    served = SimpleNamespace(clusters=(0,), sites=[_site("0")], stays=("head.weight",))
    monkeypatch.setattr("fedclust.serving.load_export", lambda *_, **__: served)
    main(["run", "out"])
    main(["run", "out", "--sites"])  # no client's
    assert asked == [{"formats": [], "sites": None}, {"formats": [], "sites": []}]
    assert "predict" not in capsys.readouterr().out  # the client has not yet added its head
    with pytest.raises(SystemExit, match="2"):
        main(["run", "out", "--formats", "pickle"])
