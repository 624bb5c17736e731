"""The ClientApp, with the fault that a file describes: for faults.py.

The file, named by the environment variable FEDCLUST_FAULT, holds a JSON object: ``kind``, the ``rounds`` it
happens in, the ``phase`` (train, evaluate, or the type of a query), and the ``node`` it happens on.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from fedclust.clients import app as honest
from fedclust.grids.client_grid import is_bundle, pack, unpack
from fedclust.messages.codec import CONFIG
from fedclust.support.rng import generator


class _Faulty(ClientApp):
    def __call__(self, message: Message, context: Context) -> Message:
        fault = _fault(message, context)
        if fault is None:
            return honest(message, context)
        kind = fault["kind"]
        if kind == "raise":
            raise RuntimeError("disk on fire")
        if kind == "missing":
            return _without_some(honest(message, context), fault["share"], _round_of(message))
        _act(kind, fault)
        return honest(message, context)


def _act(kind: str, fault: dict) -> None:
    """Do what a faulty client does."""
    if kind == "sys.exit":
        sys.exit(0)
    if kind == "os._exit":
        os._exit(7)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "kill parent":  # of a Ray worker, the raylet
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(5)
    if kind == "hang":
        time.sleep(1e6)
    if kind in ("hang in C", "hang in C with the GIL"):  # no signal gets through
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        (ctypes.CDLL if kind == "hang in C" else ctypes.PyDLL)(None).sleep(1_000_000)
    if kind == "signal":
        os.kill(os.getpid(), fault["number"])
        time.sleep(1)
    if kind == "signal in a checkpoint":
        _signal_in_a_checkpoint(fault["number"])
    if kind == "run before the last page":
        _run_before_the_last_page(fault["command"])
    if kind == "clock":  # as Python sees it
        now = time.time
        time.time = lambda: now() + fault["seconds"]
    if kind == "run":
        subprocess.run(["bash", "-c", fault["command"]], check=False, stderr=subprocess.DEVNULL)


def _signal_in_a_checkpoint(number: int) -> None:
    """In this process, send a signal when half of the next checkpoint is on disk."""
    from fedclust.results import checkpoints

    def save(tensors: dict, path: Path, about: dict) -> None:
        save_file(tensors, path, about)
        os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), number)
        time.sleep(1)

    save_file, checkpoints.save_file = checkpoints.save_file, save


def _run_before_the_last_page(command: str) -> None:
    """In this process, run a command when the run has its summary and report.html is to be written."""
    from fedclust.results.page import write

    def run_and_write(folder: Path) -> Path:
        if (folder / "summary.json").is_file():
            subprocess.run(["bash", "-c", command], check=False, stderr=subprocess.DEVNULL)
        return write_page(folder)

    write_page, write.write_page = write.write_page, run_and_write


def _fault(message: Message, context: Context) -> dict | None:
    path = Path(os.environ.get("FEDCLUST_FAULT", ""))
    if not path.is_file():
        return None
    fault = json.loads(path.read_text())
    phase = fault.get("phase", "train")
    kind = message.metadata.message_type
    here = {"train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}.get(phase, phase)
    if kind != here or context.node_config.get("partition-id", 0) != fault.get("node", 0):
        return None
    return fault if "rounds" not in fault or _round_of(message) in fault["rounds"] else None


def _round_of(message: Message) -> int:
    contents = unpack(message.content)[0] if is_bundle(message.content) else {0: message.content}
    return int(next(iter(contents.values())).config_records[CONFIG]["server-round"])


def _without_some(reply: Message, share: float, server_round: int) -> Message:
    """Leave out the answers of some clients, drawn anew in every round."""
    contents, errors = unpack(reply.content)
    draws = generator(0, "missing", server_round)
    lost = {client: "did not answer" for client in sorted(contents) if draws.random() < share}
    kept = {client: content for client, content in contents.items() if client not in lost}
    reply.content = pack(kept, {**errors, **lost})
    return reply


app = _Faulty()
