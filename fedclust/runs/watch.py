"""Watch a run or a sweep in a browser while it is running: ``fedclust watch outputs/<run>``.

The page is served on this machine only, and made from the folder's files on each request. A sweep's page
links to a page for each of its runs, which is kept up to date in the same way.
"""

import threading
from collections.abc import Sequence
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedclust.results import page
from fedclust.runs.verbs import Parser

_ADDRESS = "127.0.0.1"
_PORT = 8777
_EXAMPLES = """
  fedclust watch outputs/2026-01-31/12-00-00
  fedclust watch outputs/sweep --port 0"""
_WATCHED = ("rounds.jsonl", "summary.json", "clusters.json", "clients.parquet", "config.yaml", "failed.txt")


class Watch(ThreadingHTTPServer):
    """Serve a folder's page as ``/`` and its data as ``/data.json``, and nothing else.

    The page and the data of each of a sweep's runs are below the run's name. Only requests for ``127.0.0.1``
    or ``localhost`` are answered, so that no web page can read results through a host name that resolves to
    this machine.

    Parameters
    ----------
    folder
        Folder of a run or of a sweep.
    port
        Port; 0 for any free one.

    Raises
    ------
    FileNotFoundError
        If there is no such folder, or no run in it.
    ValueError
        If a file cannot be read.
    OSError
        If the port is taken.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = _PORT) -> None:
        if not folder.is_dir():  # checked before importing the page, and PyTorch with it
            raise FileNotFoundError(f"folder must be that of a run or of a sweep, {folder} does not exist")
        self.folder = folder
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {}
        self.view()
        super().__init__((_ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{_ADDRESS}:{self.server_address[1]}/"

    def view(self, run: str = "") -> tuple[dict[str, Any], str]:
        """Read the folder, or that of one of the sweep's runs, unless its files are unchanged.

        Returns
        -------
        The content of its page, and an ETag that changes with it.
        """
        folder = self.folder / run
        with self._lock:
            files = [path for name in _WATCHED for path in sorted(folder.rglob(name))]
            seen = tuple((str(path), *_state(path)) for path in files)
            if run not in self._seen or seen != self._seen[run][0]:
                self._seen[run] = seen, page.view_of(folder)
            return self._seen[run][1], f'"{sha256(repr(seen).encode()).hexdigest()[:32]}"'


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:  # replaced right now
        return 0, 0
    return status.st_mtime_ns, status.st_size


class _Handler(BaseHTTPRequestHandler):
    server: Watch
    server_version = "fedclust"
    sys_version = ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in (_ADDRESS, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        where, _, name = self.path.rpartition("/")
        run = unquote(where.removeprefix("/"))
        try:
            known = not run or run in self.server.view()[0].get("jobs", ())
            if name not in ("", "data.json") or where == "/" or not known:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            view, tag = self.server.view(run)
        except (FileNotFoundError, ValueError):  # a file that is being written; the page asks again
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        if name and self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.send_header("ETag", tag)
            self.end_headers()
            return
        whole = not name
        text = (page.document(view, live=True) if whole else page.live_part(view)).encode()
        self.send_response(HTTPStatus.OK)
        headers = {
            "Content-Type": "text/html; charset=utf-8" if whole else "application/json",
            "Content-Length": str(len(text)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "ETag": tag,
        }
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Do not log requests."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Command-line arguments; ``sys.argv[1:]`` unless given.

    Returns
    -------
    Exit status: 0, after Ctrl-C.

    Raises
    ------
    OSError
        If there is no such folder, or the port is taken.
    ValueError
        If the folder holds no run, or there is no such port.
    """
    options = parser().parse_args(arguments)
    if not 0 <= options.port < 65536:
        raise ValueError(f"--port must be in 0 to 65535, got {options.port}")
    with Watch(options.folder, options.port) as server:
        print(f"{options.folder}: {server.url}  (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("watch", _EXAMPLES, "The page is served to this machine only.")
    parser.add_argument("folder", type=Path, help="folder of a run or of a sweep")
    note = f"port, {_PORT} unless given; 0: any free one"
    parser.add_argument("--port", type=int, default=_PORT, help=note)
    return parser
