from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel

from fedclust.models.pretrained import load_pretrained


def test_asks_the_hub_only_for_what_is_not_here() -> None:
    calls: list[dict[str, Any]] = []

    def loader(path: str, **options: Any) -> str:
        calls.append(options)
        if options.get("local_files_only"):
            raise OSError("not here")
        return f"loaded {path}"

    assert load_pretrained(loader, "someone/model", "encoder", revision="main") == "loaded someone/model"
    options = {"revision": "main", "trust_remote_code": False}
    assert calls == [{"local_files_only": True, **options}, options]


def test_what_is_here_is_not_asked_for() -> None:
    calls: list[dict[str, Any]] = []
    load_pretrained(lambda path, **options: calls.append(options), "someone/model", "encoder")
    assert calls == [{"local_files_only": True, "trust_remote_code": False}]


@pytest.mark.parametrize("error", [OSError("gone\nand a long story"), ValueError("gone")])
def test_names_both_ways_to_provide_it(error: Exception) -> None:
    def loader(path: str, **options: Any) -> None:
        raise error

    rule = "encoder: path must be a hub id, or a local folder written by save_pretrained, got 'a/b': gone$"
    with pytest.raises(ValueError, match=rule):
        load_pretrained(loader, "a/b", "encoder")


@pytest.mark.parametrize("path", ["/no/such/folder", "./none", "~/no such folder"])
def test_a_missing_folder_is_no_hub_id(path: str) -> None:
    with pytest.raises(ValueError, match=f"local folder .*, got '{path}': there is no such folder"):
        load_pretrained(lambda *_, **__: pytest.fail("asked the hub"), path, "encoder")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert load_pretrained(lambda path, **_: path, "~/model", "encoder") == str(tmp_path / "model")


def test_a_model_with_code_of_its_own_is_refused_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # an operator who agrees to everything
    folder, gone = tmp_path / "model", tmp_path / "gone"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}'
    )
    (folder / "own.py").write_text(f"open({str(gone)!r}, 'w')\nclass Own: ...\n")
    with pytest.raises(ValueError, match="contains custom code"):
        load_pretrained(AutoModel.from_pretrained, str(folder), "encoder")
    assert not gone.exists()
