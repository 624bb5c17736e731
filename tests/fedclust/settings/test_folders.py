import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fedclust.settings.composition import ConfigError
from fedclust.settings.folders import locked, results_folder


def test_two_runs_in_one_second_do_not_meet(tmp_path: Path) -> None:
    asked = tmp_path / "20-15-00"
    with results_folder(asked, new=True) as first, results_folder(asked, new=True) as second:
        (first / "rounds.jsonl").write_text("1\n")
        with results_folder(asked, new=True) as third:
            assert third == tmp_path / "20-15-00-3"
        assert (first, second) == (asked, tmp_path / "20-15-00-2")
    # Those without results are gone; a folder that was taken stays.
    assert [path.name for path in tmp_path.iterdir()] == ["20-15-00"]


def test_a_failed_run_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyError), results_folder(tmp_path / "new" / "deep", new=False) as folder:
        (folder / "config.yaml").write_text("seed: 0\n")
        (folder / "rounds.jsonl").touch()
        (folder / "checkpoints").mkdir()
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_rounds_that_were_finished_stay_with_their_configuration(tmp_path: Path) -> None:
    with suppress(KeyError), results_folder(tmp_path / "run", new=False) as folder:
        (folder / "config.yaml").write_text("seed: 0\n")
        (folder / "rounds.jsonl").write_text("{}\n")
        (folder / "compare" / "fedavg").mkdir(parents=True)
        raise KeyError
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "rounds.jsonl"}


def test_what_was_there_before_is_not_touched(tmp_path: Path) -> None:
    mine, empty = tmp_path / "mine", tmp_path / "mine" / "empty"
    empty.mkdir(parents=True)
    (mine / "config.yaml").write_text("my own\n")
    (mine / "rounds.jsonl").touch()
    with results_folder(mine, new=False) as folder:
        assert folder == mine
    assert {path.name for path in mine.iterdir()} == {"empty", "config.yaml", "rounds.jsonl"}


@pytest.mark.parametrize(
    ("name", "new", "why"),
    [
        ("file/run", True, "file/run: Not a directory$"),
        ("file/run", False, "file/run: Not a directory$"),
        ("file", False, ""),
        ("a" * 300, False, ""),
    ],
)
def test_what_can_be_no_folder_is_one_line(tmp_path: Path, name: str, new: bool, why: str) -> None:
    (tmp_path / "file").touch(0o755)  # os.access lets such a file pass
    said = f"^output_dir must be a folder that can be created and written to, got .*{why}"
    with pytest.raises(ConfigError, match=said), results_folder(tmp_path / name, new=new):
        pytest.fail("there is no such folder")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ConfigError, match="^output_dir must be writable, got "):
        results_folder(tmp_path, new=False).__enter__()


def test_a_folder_is_locked_while_a_run_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with locked(folder, resumed=False):
        for resumed, argument in ((True, "resume"), (False, "output_dir")):
            with (
                pytest.raises(FileExistsError, match=f"^{argument} must be a folder that no other run is wr"),
                locked(folder, resumed=resumed),
            ):
                pytest.fail("two runs in one folder")
        (folder / "rounds.jsonl").write_text("1\n")
    with locked(folder, resumed=True):
        pass
    assert [path.name for path in folder.iterdir()] == ["rounds.jsonl"]


def test_a_run_without_a_file_leaves_no_folder(tmp_path: Path) -> None:
    with suppress(KeyError), locked(tmp_path / "a" / "run", resumed=False):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_another_process_keeps_its_folder_until_it_dies(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from fedclust.settings.folders import locked\n"
        "with locked(Path(sys.argv[1]), resumed=False):\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(FileExistsError), locked(tmp_path, resumed=True):
            pytest.fail("two runs in one folder")
        process.kill()
    assert (tmp_path / ".lock").exists()  # a file that nobody holds
    with locked(tmp_path, resumed=True):
        (tmp_path / "rounds.jsonl").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.jsonl"]


def test_a_file_system_without_locks_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path / "run", resumed=False):
        (tmp_path / "run" / "rounds.jsonl").touch()
    assert (tmp_path / "run" / "rounds.jsonl").exists()
