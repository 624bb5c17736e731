"""Use Flower's own grids: submit a run to a SuperLink, notice replies promptly, end hung actors."""

import json
import os
import re
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from fedclust.grids.client_grid import WrappedGrid
from fedclust.settings.composition import CONF, ConfigError, join_overrides, quoted
from fedclust.settings.run_options import NO_BETTER_THAN
from fedclust.support.flower import ErrorCode, isolate_unreadable_replies, simulation_actors
from fedclust.support.reasons import FederationError, RunFailed

_SHORTEST, _LONGEST = 0.001, 1.0  # seconds
_NOT_TAKEN = "Flower did not take the message: it is too large for the SuperLink, or malformed"
_GONE = "Flower did not take the message: its node is no longer connected"


class PromptGrid(WrappedGrid):
    """Poll another grid for its nodes' replies, often at first and then less often.

    A reply is noticed late by at most a tenth of the time that it took to arrive, and by at most a second.
    Polling takes at most about a tenth of the time, however slow it is.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        isolate_unreadable_replies()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies.

        Returns
        -------
        The replies, in the order of their arrival; those that arrived within ``timeout`` seconds. A message
        that the other grid did not take has an error.
        """
        messages = list(messages)
        pushed: list[str | None] = list(self._grid.push_messages(messages))
        missing = {str(message_id) for message_id in pushed if message_id}
        # One id is missing for a malformed message or a stopped node, all are where one is too large.
        taken = pushed or [None] * len(messages)
        refused = [message for message, message_id in zip(messages, taken, strict=True) if not message_id]
        online = set(self._grid.get_node_ids()) if refused else set()
        replies = [
            Message(
                Error(ErrorCode.MESSAGE_UNAVAILABLE, _NOT_TAKEN)
                if message.metadata.dst_node_id in online
                else Error(ErrorCode.NODE_UNAVAILABLE, _GONE),
                reply_to=message,
            )
            for message in refused
        ]
        began = time.monotonic()
        while missing:
            looked = time.monotonic()
            # Checked before polling, so that there is always a poll after the time is up.
            late = timeout is not None and looked - began >= timeout
            found = list(self._grid.pull_messages(missing))
            replies += found
            missing -= {reply.metadata.reply_to_message_id for reply in found}
            if late:
                break
            if missing:
                now = time.monotonic()
                pause = max(_SHORTEST, 0.1 * (now - began), 10 * (now - looked))
                left = pause if timeout is None else began + timeout - now
                time.sleep(max(0.0, min(pause, left, _LONGEST)))
        return replies


def end_hung_actors() -> None:
    """End actors of Flower's simulation that run on after the server: Flower would wait for them."""
    if actors := simulation_actors():
        import ray

        for actor in actors:
            ray.kill(actor)


_APP = CONF.parent
_DATA = ("dataset.path", "partition.file", "partition.sites")  # read here or nowhere, even if missing
_PATHS = ("path", "file", "tokenizer", "pretrained")  # or an id
_SILENT = "No heartbeat received"  # of a ServerApp, a minute after its process was killed
_NOT_SENT = re.compile(r"[+~]*(engine|output_dir|hydra)\b")  # sent in other ways, or only for the local Hydra


class SuperLink:
    """A SuperLink that runs the app on the nodes connected to it.

    Parameters
    ----------
    connection
        Name of the connection in Flower's ``config.toml``.
    federation_config
        Options of Flower's simulation, as for ``flwr run --federation-config``; None for real nodes or
        Flower's defaults.
    _
        Ignored arguments of other engines: nodes load the submitted app and compose the overrides themselves.

    Raises
    ------
    ConfigError
        If the app's folder does not exist because only the package is installed.
    """

    def __init__(self, connection: str, federation_config: str | None = None, **_: object) -> None:
        if not (_APP / "pyproject.toml").is_file():
            raise ConfigError(
                f"engine=superlink must be run from a clone, there is no pyproject.toml in {_APP}"
            )
        self._connection = connection
        self._federation_config = federation_config

    def submit(self, overrides: Sequence[str], folder: Path, searchpath: Sequence[str] = ()) -> bool:
        """Submit the run, and show its log until it ends.

        Parameters
        ----------
        overrides
            The Hydra overrides of the run; those of the engine and of the results folder are not sent.
        folder
            Folder for the results, on the SuperLink's machine.
        searchpath
            Further folders of configuration besides ``conf/``; they must exist on that machine, too.

        Returns
        -------
        Whether the log says that the models predict no better than each client's class shares.

        Raises
        ------
        ConfigError
            If an override cannot be sent.
        FederationError
            If the SuperLink rejects the run, or the run cannot start.
        RunFailed
            If the run fails.
        """
        sent = [text for text in overrides if not _NOT_SENT.match(text)]
        # Expanded here, because the nodes need not have the folder; see fedclust.settings.folders.expand.
        sent = [f"++{text}" if text.startswith("resume=") else text for text in sent]
        if self._connection == "local":  # Flower itself starts this SuperLink
            sent = [_absolute(text) for text in sent]
        if searchpath:
            sent.append(f"hydra.searchpath={json.dumps(list(searchpath), ensure_ascii=False)}")
        run_config = {"overrides": join_overrides(sent), "output-dir": str(folder.absolute())}
        lines = [f"{key} = {json.dumps(text, ensure_ascii=False)}\n" for key, text in run_config.items()]
        options = ["--federation-config", self._federation_config] if self._federation_config else []
        there = self._connection
        goes_on = f"`flwr list {there}` shows whether the run has begun"
        try:
            with tempfile.TemporaryDirectory() as scratch:
                # A file, as Flower's command line cannot parse nested quotes. JSON strings are valid TOML.
                file = Path(scratch) / "run.toml"
                file.write_text("".join(lines), encoding="utf-8")
                submitted = _ask("run", str(_APP), there, "--run-config", str(file), *options)
            run = str(submitted["run-id"])
            goes_on = f"run {run} goes on at the SuperLink: `flwr log {run} {there} --stream` shows it, "
            goes_on += f"`flwr stop {run} {there}` ends it"
            collapsed = self._follow(run)
        except KeyboardInterrupt as error:
            error.args = (goes_on,)
            raise
        kept = f"if round 1 began, its results are in {folder.absolute()} on the SuperLink's machine, "
        kept += "for resume="
        try:
            (state,) = _ask("list", self._connection, "--run-id", run)["runs"]
        except FederationError as error:
            raise RunFailed(
                f"the SuperLink of connection {self._connection} no longer answers, the outcome of run {run} "
                f"is unknown; {kept}"
            ) from error
        if state["status"] != "finished:completed":
            details = state["status-details"]
            if _SILENT in details:
                details += f": its ServerApp's process has ended; {kept}"
            stopped = state["status"] == "finished:stopped"  # by `flwr stop`
            if stopped:
                details = kept
            failed = stopped or RunFailed.PHRASE in details or _SILENT in details
            raise (RunFailed if failed else FederationError)(f"run {run} is {state['status']}: {details}")
        return collapsed

    def _follow(self, run: str) -> bool:
        """Print a run's log until it ends; return whether it says that the models learned nothing."""
        shown, collapsed = [*_flwr("log"), run, self._connection, "--stream"], False
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "errors": "replace"}
        with subprocess.Popen(shown, env=_environment() | {"PYTHONUNBUFFERED": "1"}, **piped) as log:
            try:
                for line in log.stdout or ():
                    print(line, end="", flush=True)
                    collapsed |= NO_BETTER_THAN in line
            except KeyboardInterrupt:
                log.terminate()  # else a SIGTERM to this process alone would wait for its next line
                raise
        return collapsed


def _absolute(override: str) -> str:
    """Make the local paths of an override absolute: a local SuperLink may run in another folder."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:  # composing the run has reported it
        return override
    key, value = parsed.key_or_group, parsed.value()
    of_data = key in _DATA
    if parsed.is_sweep_override() or not (of_data or key.rpartition(".")[2] in _PATHS):
        return override

    def whole(text: str) -> str:
        path = Path(text).expanduser()
        is_id = "${" in text or not (of_data or path.exists())  # or an interpolation
        return quoted(text if is_id else str(path.absolute()))

    start = override.partition("=")[0]
    if isinstance(value, str):
        return f"{start}={whole(value)}"
    if isinstance(value, dict):
        return f"{start}={{{', '.join(f'{name}: {whole(str(each))}' for name, each in value.items())}}}"
    return override


def _flwr(command: str) -> list[str]:
    return [str(Path(sysconfig.get_path("scripts")) / "flwr"), command]


def _environment() -> dict[str, str]:
    # For the connection `local`, Flower starts a SuperLink by name, even if our environment is not active.
    path = filter(None, (sysconfig.get_path("scripts"), os.environ.get("PATH")))
    # Without this variable, a SuperLink reinstalls all dependencies, gigabytes, for every run.
    return {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", **os.environ, "PATH": os.pathsep.join(path)}


def _ask(command: str, *arguments: str) -> dict[str, Any]:
    """Run a Flower command and parse its output; it exits with 0 even on failure."""
    asked = [*_flwr(command), *arguments, "--format", "json"]
    done = subprocess.run(asked, env=_environment(), capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        output = (done.stdout + done.stderr).strip()
        raise FederationError(f"`flwr {command}` must answer in JSON, got: {output}") from error
    if not answer.get("success"):
        raise FederationError(f"`flwr {command}` failed: {answer.get('error-message', answer)}")
    return answer
