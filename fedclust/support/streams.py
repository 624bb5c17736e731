"""Standard output and error that do not end a run: a closed reader, a full disk, another encoding."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class Lasting:
    """A stream that writes what it can.

    Characters that its encoding lacks become ``?``. If nobody reads it any more, or its disk is full, it is
    told once on standard error, and everything else goes nowhere.

    Parameters
    ----------
    stream
        The stream. All else is asked of it, such as its encoding or whether it is a terminal.
    goes_on
        Whether to go on without a reader; otherwise writing raises OSError, as usual.

    Examples
    --------
    >>> import io
    >>> raw = io.BytesIO()
    >>> stream = io.TextIOWrapper(raw, encoding="ascii")
    >>> print("a–b", file=Lasting(stream), end="", flush=True)
    >>> raw.getvalue()
    b'a?b'
    """

    def __init__(self, stream: TextIO, *, goes_on: bool = True) -> None:
        self._stream, self._goes_on = stream, goes_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, as far as the encoding allows."""
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            return self.write(text.encode(encoding, "replace").decode(encoding))
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Send this and everything that follows nowhere, even what other code writes to the same file."""
        if not self._goes_on:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        with suppress(OSError):  # standard error may be the same pipe
            print(
                f"fedclust: the output can no longer be written ({error}), the run goes on", file=sys.stderr
            )


@contextmanager
def lasting(*, goes_on: bool) -> Iterator[None]:
    """Replace standard output and error by :class:`Lasting` ones inside the context."""
    before = sys.stdout, sys.stderr
    # A stream is None if the process has none.
    out, error = (each and Lasting(each, goes_on=goes_on) for each in before)
    sys.stdout, sys.stderr = out, error
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
