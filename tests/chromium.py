"""Drive a headless Chromium through its debugging pipe, with nothing but the standard library."""

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """Return the path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, executable: str, profile: Path, width: int = 1280, height: int = 900) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads commands from file descriptor 3 and writes answers to 4.
        command = (
            f'exec 3<&{to_browser} 4>&{from_browser}; exec "$0" --headless=new --no-sandbox --disable-gpu '
            "--disable-dev-shm-usage --no-first-run --hide-scrollbars --remote-debugging-pipe "
            f'--window-size={width},{height} --user-data-dir="$1" about:blank'
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, executable, str(profile)],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._rest = itertools.count(1), b""
        self.errors: list[str] = []
        self._loaded = False
        targets = self.call("Target.getTargets", session=None)["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", session=None, targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, *, session: str | None = "", **parameters) -> dict:
        number = next(self._numbers)
        message: dict = {"id": number, "method": method, "params": parameters}
        if (where := self._session if session == "" else session) is not None:
            message["sessionId"] = where
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + 30)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str) -> None:
        self._loaded = False
        self.call("Page.navigate", url=url)
        until = time.monotonic() + 30
        while not self._loaded:
            self._next(until)
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def js(self, expression: str):
        """Evaluate an expression, or the value that a promise comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self, until: float) -> dict:
        while b"\0" not in self._rest:
            left = until - time.monotonic()
            answered = select.select([self._read], [], [], max(0, left))[0]
            assert answered, "Chromium does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "Chromium has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict = json.loads(text)
        kind, told = message.get("method"), message.get("params", {})
        if kind == "Page.loadEventFired":
            self._loaded = True
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(told["args"]))
        elif kind == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
        return message
