import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedclust.data import cache
from fedclust.data.cache import cache_root, damaged_files, digest, new_array, prepared


def test_root_is_the_argument_then_the_environment_then_home(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "environment"))
    assert cache_root(tmp_path / "argument") == tmp_path / "argument"
    assert cache_root() == tmp_path / "environment"
    monkeypatch.delenv("FEDCLUST_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "fedclust"


def test_digest_depends_on_values_and_not_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
    assert digest("ab", "c") != digest("a", "bc")
    assert len(digest("a")) == 32
    with pytest.raises(TypeError, match="not JSON serializable"):
        digest(np.zeros(2))


def test_file_digest_is_the_sha256_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert (
        cache.file_digest(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223"
    )  # FIPS 180-2, appendix B.1


def test_a_folder_is_written_once(tmp_path: Path) -> None:
    calls: list[Path] = []

    def write(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("content")

    target = tmp_path / "deep" / "key"
    assert prepared(target, write) == target
    assert prepared(target, write) == target
    assert len(calls) == 1
    assert (target / "file").read_text() == "content"


def test_a_failed_write_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        prepared(tmp_path / "key", fail)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    for leftover in (".key-leftover", ".other-leftover"):  # of a killed process
        (tmp_path / leftover).mkdir()
    prepared(tmp_path / "key", lambda folder: None)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [".other-leftover", "key"]


def test_the_second_of_two_at_once_waits_and_does_not_write(tmp_path: Path) -> None:
    writers, inside, release = [], threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        writers.append("slow")
        inside.set()
        release.wait(timeout=10)
        (folder / "file").write_text("slow")

    def fast(folder: Path) -> None:
        writers.append("fast")

    both = [threading.Thread(target=prepared, args=(tmp_path / "key", write)) for write in (slow, fast)]
    both[0].start()
    assert inside.wait(timeout=10)
    both[1].start()
    release.set()
    for each in both:
        each.join(timeout=10)
    assert writers == ["slow"]
    assert (tmp_path / "key" / "file").read_text() == "slow"


def test_where_locks_do_not_reach_the_first_to_finish_is_kept(tmp_path: Path) -> None:
    def overtaken(folder: Path) -> None:
        (folder / "file").write_text("ours")
        (tmp_path / "key").mkdir()  # another machine finishes while we write
        (tmp_path / "key" / "file").write_text("theirs")

    prepared(tmp_path / "key", overtaken)
    assert (tmp_path / "key" / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["key"]


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot make the cache folder .*FEDCLUST_CACHE"):
        prepared(tmp_path / "file" / "key", lambda folder: None)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write where others may not
    with pytest.raises(OSError, match="cannot write to the cache folder .*FEDCLUST_CACHE"):
        prepared(tmp_path / "key", lambda folder: None)


def test_an_array_beyond_the_disk_is_refused_before_it_is_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=65_536))
    with pytest.raises(OSError, match=r"needs 0\.00046 GB, 6.55e-05 GB are free"):
        new_array(tmp_path / "array.npy", np.uint8, (460_032,))
    assert not (tmp_path / "array.npy").exists()


def test_a_mapped_array_reads_the_file_and_never_changes_it(tmp_path: Path) -> None:
    array = new_array(tmp_path / "array.npy", np.int64, (2, 2))
    array[:] = [[1, 2], [3, 4]]
    array.flush()
    tensor = cache.map_tensor(tmp_path / "array.npy")
    assert tensor.tolist() == [[1, 2], [3, 4]]
    tensor[0, 0] = 9
    np.testing.assert_array_equal(cache.map_array(tmp_path / "array.npy"), [[1, 2], [3, 4]])


_CONTENT = {"labels.npy": b"0123456789", "dataset.json": b'{"mean": 0.5}'}


def _fill(folder: Path) -> None:
    for name, content in _CONTENT.items():
        (folder / name).write_bytes(content)


def _flip(path: Path) -> None:
    """Change one byte, and set the time of the change back."""
    before = path.stat()
    path.write_bytes(b"X" + path.read_bytes()[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", [*_CONTENT, "checksums.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, 4),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(path.read_bytes() + b"\n"),
        lambda path: path.write_bytes(path.read_bytes()[::-1]),
        _flip,
        lambda path: path.unlink(),
    ],
    ids=["cut off", "empty", "longer", "reversed", "one byte", "deleted"],
)
def test_damaged_data_is_prepared_again(damage: Callable[[Path], None], name: str, tmp_path, caplog) -> None:
    folder = prepared(tmp_path / "key", _fill)
    damage(folder / name)
    prepared(folder, _fill)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.name in _CONTENT} == _CONTENT
    assert damaged_files(folder) == []
    if name in _CONTENT:
        assert f"the prepared data in {folder} is damaged ({name}): prepared again" in caplog.text
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["key"]


def test_a_large_file_is_read_only_if_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ALWAYS_READ", 9)  # bytes; labels.npy has 10, dataset.json 13
    folder = prepared(tmp_path / "key", _fill)
    _flip(folder / "labels.npy")
    assert damaged_files(folder) == []
    (folder / "labels.npy").touch()
    assert damaged_files(folder) == ["labels.npy"]


def test_damaged_data_that_cannot_be_prepared_again_stays_away(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "key", _fill)
    _flip(folder / "labels.npy")

    def fail(_: Path) -> None:
        raise RuntimeError("the source is gone")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="the source is gone"):
            prepared(folder, fail)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("emnist_62.v-2", "emnist_62.v-2"),
        ("../../.ssh/x", ".._.._.ssh_x"),
        ("/etc/x", "_etc_x"),
        ("a\\b*[c]\n", "a_b__c__"),
        ("..", ".."),  # of "..-0123…", a name like any other
    ],
)
def test_a_name_of_a_run_does_not_lead_out_of_the_cache(tmp_path: Path, name: str, folder: str) -> None:
    found = cache.cache_folder("datasets", name, "0123456789abcdef0123", tmp_path)
    assert found == tmp_path / "datasets" / f"{folder}-0123456789abcdef"
