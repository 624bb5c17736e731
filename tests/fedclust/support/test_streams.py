"""Streams that cannot be written as usual."""

import io
import os
import sys
from collections.abc import Iterator

import pytest

from fedclust.support.streams import Lasting, lasting


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """Return the end of a pipe that reads, and a stream that writes to it."""
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w", encoding="cp1252")
    yield reading, stream
    stream.close()


def test_a_character_that_an_encoding_lacks_does_not_matter(pipe) -> None:
    reading, stream = pipe
    lasting_ = Lasting(stream)
    print("病院 – ±", file=lasting_, flush=True)
    assert os.read(reading, 99) == b"?? \x96 \xb1\n"  # the dash and the sign are in code page 1252
    assert not lasting_.isatty()
    os.close(reading)


def test_without_a_reader_the_rest_goes_nowhere(pipe, capsys: pytest.CaptureFixture[str]) -> None:
    reading, stream = pipe
    os.close(reading)
    for text in "one", "two":
        print(text, file=Lasting(stream), flush=True)
    os.write(stream.fileno(), b"three")  # what other code writes to the same file
    said = "fedclust: the output can no longer be written ([Errno 32] Broken pipe), the run goes on\n"
    assert capsys.readouterr().err == said


def test_a_verb_ends_without_a_reader(pipe) -> None:
    reading, stream = pipe
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        print("one", file=Lasting(stream, goes_on=False), flush=True)
    with pytest.raises(BrokenPipeError):  # the text is still there
        stream.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_the_streams_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as of a process without one
    before = sys.stdout
    with lasting(goes_on=True):
        assert isinstance(sys.stdout, Lasting)
        assert sys.stderr is None
    assert sys.stdout is before
