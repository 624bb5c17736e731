import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.simulation.ray_transport.ray_actor import BasicActorPool
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from fedclust.federation import FederationError, RunFailed
from fedclust.grids import superlink
from fedclust.grids.client_grid import WrappedGrid
from fedclust.grids.superlink import PromptGrid, SuperLink, end_hung_actors
from fedclust.settings.allowed import from_run_config
from fedclust.settings.composition import ConfigError
from fedclust.support.flower import ErrorCode, Run, assume_identity


class Slow(WrappedGrid):
    """Reply k arrives so many seconds after the messages were sent; time passes by sleeping, and by looks."""

    def __init__(self, *after: float, look: float = 0.0, taken: list[str | None] | None = None) -> None:
        self.after, self.look, self.taken, self.looks, self.now = after, look, taken, 0, 0.0
        self.due: dict[str, tuple[float, Message]] = {}
        self.sleeps: list[float] = []
        self.online = [2 + place for place in range(len(after))]

    def get_node_ids(self) -> list[int]:
        return self.online

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for place, (after, message) in enumerate(zip(self.after, messages, strict=True)):
            message.metadata.__dict__["_message_id"] = str(place)
            self.due[str(place)] = after, Message(RecordDict(), reply_to=message)
        return list(self.due) if self.taken is None else self.taken  # type: ignore[return-value]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.looks += 1
        self.now += self.look
        ready = [name for name in message_ids if self.due[name][0] <= self.now]
        return [self.due.pop(name)[1] for name in ready]

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Message]]:
    """Ask a grid's nodes; return the replies in the order of their arrival, by the ids of the messages."""
    assume_identity(1)

    def asked(grid: Slow, timeout: float | None = None) -> dict[str, Message]:
        monkeypatch.setattr(superlink.time, "monotonic", lambda: grid.now)
        monkeypatch.setattr(superlink.time, "sleep", grid.sleep)
        messages = [Message(RecordDict(), 2 + place, "query") for place in range(len(grid.after))]
        replies = PromptGrid(grid).send_and_receive(messages, timeout=timeout)
        return {reply.metadata.reply_to_message_id: reply for reply in replies}

    return asked


@pytest.mark.parametrize("after", [0.0, 0.0123, 0.5, 7.0, 100.0])
def test_a_reply_is_noticed_a_tenth_later_at_most(ask, after: float) -> None:
    grid = Slow(after)
    assert list(ask(grid)) == ["0"]
    # A pause is 0.1 of the time waited when it begins, at least 1 ms and at most 1 s.
    assert after <= grid.now <= after + min(1.0, max(0.001, 0.1 * after)) + 1e-6
    assert max(grid.sleeps, default=0) <= 1


def test_replies_come_in_the_order_of_their_arrival_until_the_time_is_up(ask) -> None:
    assert list(ask(Slow(0.9, 0.1, 0.5))) == ["1", "2", "0"]
    nobody, late, slow = Slow(), Slow(0.2, 2.0, 2.1), Slow(5.0, look=0.05)
    assert (ask(nobody), nobody.looks) == ({}, 0)
    assert list(ask(late, timeout=2.0)) == ["0", "1"]
    assert late.now == pytest.approx(2.0)
    # After a look of 0.05 s a pause of 0.5 s or more: 5 / 0.55 = 9 whole ones, one before, one after.
    ask(slow)
    assert slow.looks <= 11


# Flower returns no id for a malformed message, and no ids where one is too large.
@pytest.mark.parametrize(("taken", "refused"), [(["0", None], ["1"]), ([], ["0", "1"])])
def test_a_message_that_flower_does_not_take_is_answered_at_once(ask, taken, refused) -> None:
    replies = ask(Slow(0.5, 0.5, taken=taken), timeout=60)
    errors = {name: reply.error.reason for name, reply in replies.items() if reply.has_error()}
    line = "Flower did not take the message: it is too large for the SuperLink, or malformed"
    assert (errors, len(replies)) == (dict.fromkeys(refused, line), 2)


def test_a_message_to_a_node_that_was_stopped_is_lost_with_its_node(ask) -> None:
    # Flower takes no message for a node that was stopped in an orderly way: it is no longer registered.
    grid = Slow(0.5, 0.5, 0.5, taken=["0", None, None])
    grid.online = [2, 4]
    replies = ask(grid, timeout=60)
    assert replies["1"].error.code == ErrorCode.NODE_UNAVAILABLE
    assert "no longer connected" in replies["1"].error.reason
    assert replies["2"].error.code == ErrorCode.MESSAGE_UNAVAILABLE


class Client:
    """Flower's connection to a SuperLink whose nodes reply at once; the first one's reply is damaged."""

    PushObject = None

    def __init__(self, messages: list[Message]) -> None:
        self.messages, self.objects, self.replies = messages, dict[str, bytes](), list[Message]()

    def PushMessages(self, _: Any) -> SimpleNamespace:
        for place, message in enumerate(self.messages):
            content = RecordDict({"config": ConfigRecord({"place": place})})
            reply = Message(content, reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            for name, each in get_all_nested_objects(reply).items():
                bad = place == 0 and isinstance(each, ConfigRecord)
                self.objects[name] = b"ConfigRecord  2\x00\xff\xff" if bad else each.deflate()
            self.replies.append(reply)
        asked = [each.metadata.message_id for each in self.messages]
        return SimpleNamespace(message_ids=asked, objects_to_push=[], session_id="")

    def PullMessages(self, _: Any) -> SimpleNamespace:
        replies, self.replies = self.replies, []  # each is handed out once
        sent = [http_grid.message_to_proto(http_grid.remove_content_from_message(each)) for each in replies]
        return SimpleNamespace(messages_list=sent, message_object_trees=[*map(get_object_tree, replies)])

    def PullObject(self, request: Any) -> SimpleNamespace:
        content = self.objects[request.object_id]
        return SimpleNamespace(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, _: Any) -> None: ...


def test_a_reply_that_flower_cannot_read_costs_its_node_alone() -> None:
    assume_identity(1)
    grid, messages = HttpGrid(token="any"), [Message(RecordDict(), node, "query") for node in (11, 12)]
    grid.set_run(Run.create_empty(1))
    grid._client = Client(messages)  # type: ignore[assignment]
    bad, good = PromptGrid(grid).send_and_receive(messages, timeout=60)
    assert bad.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert "it cannot be read: DecodeError" in bad.error.reason
    assert bad.metadata.reply_to_message_id == messages[0].metadata.message_id
    assert good.content["config"]["place"] == 1


# Answers from a file by command, and keeps what it was asked and the run configuration it was given.
STAND_IN = """#!{python}
import json, pathlib, sys
here = pathlib.Path({here!r})
asked = sys.argv[1:]
with (here / "asked.jsonl").open("a") as file:
    print(json.dumps(asked), file=file)
if "--run-config" in asked:
    (here / "run.toml").write_bytes(pathlib.Path(asked[asked.index("--run-config") + 1]).read_bytes())
print(json.loads((here / "answers.json").read_text())[asked[0]])
"""

COMPLETED = {"run-id": "7", "status": "finished:completed", "status-details": "N/A"}


class Flower:
    """A replacement of the `flwr` command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.answers(run={"success": True, "run-id": "7"}, list={"success": True, "runs": [COMPLETED]})
        command = folder / "flwr"
        command.write_text(STAND_IN.format(python=sys.executable, here=str(folder)))
        command.chmod(0o755)

    def answers(self, **answers) -> None:
        texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in answers.items()}
        (self._folder / "answers.json").write_text(json.dumps({"log": "the log", **texts}))

    @property
    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self._folder / "asked.jsonl").read_text().splitlines()]

    @property
    def run_config(self) -> dict[str, str]:
        return tomllib.loads((self._folder / "run.toml").read_text(encoding="utf-8"))


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flower:
    monkeypatch.setattr(superlink.sysconfig, "get_path", lambda _: str(tmp_path))
    return Flower(tmp_path)


def test_a_run_is_submitted_watched_and_checked(flower: Flower, capfd: pytest.CaptureFixture[str]) -> None:
    assert not SuperLink("there").submit(["seed=3"], Path("/results/here"))
    run, log, listed = flower.asked
    app = Path(superlink.__file__).parents[2]
    assert run[:3] == ["run", str(app), "there"]
    assert (app / "pyproject.toml").is_file()
    assert "--federation-config" not in run
    assert log == ["log", "7", "there", "--stream"]
    assert listed == ["list", "there", "--run-id", "7", "--format", "json"]
    assert capfd.readouterr().out == "the log\n"
    assert flower.run_config == {"overrides": "seed=3", "output-dir": "/results/here"}


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("run", "`flwr list there` shows whether the run has begun"),
        (
            "log",
            "run 7 goes on at the SuperLink: "
            "`flwr log 7 there --stream` shows it, `flwr stop 7 there` ends it",
        ),
    ],
)
def test_who_stops_watching_is_told_that_the_run_goes_on(
    flower: Flower,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    command: str,
    line: str,
) -> None:
    # A process that a script started in the background ignores Ctrl+C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    hanging = tmp_path / "flwr"
    wait = f"if asked[0] == {command!r}: (here / 'hangs').touch(); __import__('time').sleep(600)\n"
    hanging.write_text(hanging.read_text().replace("print(json.loads", f"{wait}print(json.loads"))

    def interrupt() -> None:
        while not (tmp_path / "hangs").exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    opened = subprocess.Popen.__init__
    started: list[subprocess.Popen] = []

    def kept(self: subprocess.Popen, *arguments: Any, **options: Any) -> None:
        started.append(self)
        opened(self, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", kept)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match=f"^{re.escape(line)}$"):
        SuperLink("there").submit([], Path("x"))
    thread.join()
    assert started[-1].wait(timeout=10) < 0  # nothing of Flower's goes on here


def test_a_log_that_says_that_a_run_fell_to_chance(flower: Flower) -> None:
    said = "The models that serve predict no better than each client's class shares"
    listed = {"success": True, "runs": [COMPLETED]}
    flower.answers(run={"success": True, "run-id": "7"}, list=listed, log=f"INFO :\n{said}")
    assert SuperLink("there").submit([], Path("x"))


def test_overrides_are_sent_without_those_of_the_engine(flower: Flower) -> None:
    kept = ["strategy=fmcl", "+published.note='a \"b\" ü'", "compare=[fedavg, fmcl]"]
    left_out = ["engine=superlink", "engine.connection=there", "output_dir=x", "hydra.verbose=true"]
    own = ["strategy=mine", "hydra.searchpath=[my]"]
    SuperLink("there").submit([*left_out, "hydra/job_logging=none", *kept], Path("x"))
    assert flower.run_config == {"overrides": " ".join(kept), "output-dir": str(Path.cwd() / "x")}
    SuperLink("there").submit(own, Path("x"), ["/home/me/my conf"])  # the user's own folders are named there
    assert flower.run_config["overrides"] == 'strategy=mine hydra.searchpath=["/home/me/my conf"]'
    with pytest.raises(ConfigError, match="white space in quotes only"):
        SuperLink("there").submit(["name=two words"], Path("x"))


def test_the_simulation_can_be_configured(flower: Flower) -> None:
    SuperLink("local", "num-supernodes=30").submit([], Path("x"))
    run = flower.asked[0]
    assert run[run.index("--federation-config") + 1] == "num-supernodes=30"


def test_flowers_commands_are_found_and_install_nothing(flower: Flower, tmp_path, monkeypatch) -> None:
    name = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
    monkeypatch.delenv(name, raising=False)
    assert superlink._environment()["PATH"].split(os.pathsep)[0] == str(tmp_path)
    assert superlink._environment()[name] == "1"
    monkeypatch.setenv(name, "0")  # an explicit setting is kept
    assert superlink._environment()[name] == "0"


def test_paths_are_those_of_the_caller(flower: Flower, tmp_path, monkeypatch) -> None:
    (tmp_path / "here" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    here, model = f"{tmp_path}/here", "facebook/dinov2-base"
    overrides = [f"encoder.path={model}", "partition.file=none.parquet", "seed=3"]
    for given, sent in {
        "dataset.path=data": f"dataset.path='{here}/data'",
        "dataset.path='data'": f"dataset.path='{here}/data'",
        "dataset.path='no=1, \\'a\\'.csv'": f"dataset.path='{here}/no=1, \\'a\\'.csv'",
        "partition.sites=data": f"partition.sites='{here}/data'",
        "partition.sites={a: data/a, b: '/b'}": f"partition.sites={{a: '{here}/data/a', b: '/b'}}",
        "partition.sites=[a,b]": "partition.sites=[a,b]",  # names
        "dataset.tokenizer=data": f"dataset.tokenizer='{here}/data'",
        "dataset.label=data": "dataset.label=data",
        "++resume='~/x'": "++resume='~/x'",
    }.items():
        SuperLink("local").submit([given, *overrides], Path("x"))
        absolute = [sent, f"encoder.path='{model}'", f"partition.file='{here}/none.parquet'", "seed=3"]
        assert flower.run_config["overrides"] == " ".join(absolute)
    SuperLink("there").submit(overrides, Path("x"))  # another machine has folders of its own
    assert flower.run_config["overrides"] == " ".join(overrides)


# -- What goes wrong ------------------------------------------------------------------------------------


WRONG, GOING = "rounds must be >= 1, got 0", "fedavg: the run failed in round 2 of 4"


def _ended(status: str, details: str = WRONG) -> dict:
    return {"success": True, "runs": [{**COMPLETED, "status": status, "status-details": details}]}


@pytest.mark.parametrize(
    ("answers", "kind", "line"),
    [
        ({"run": {"error-message": "no such name"}}, FederationError, "`flwr run` failed: no such name$"),
        ({"run": "Segmentation fault"}, FederationError, "`flwr run` must answer in JSON, got: Segm"),
        ({"list": _ended("finished:failed")}, FederationError, f"run 7 is finished:failed: {WRONG}$"),
        (
            {"list": _ended("finished:stopped", "N/A")},
            RunFailed,
            "run 7 is finished:stopped: if round 1 began, its results are in .*/x on the .*, for resume=$",
        ),
        ({"list": _ended("running")}, FederationError, f"run 7 is running: {WRONG}$"),
        ({"list": _ended("finished:failed", GOING)}, RunFailed, f"run 7 is finished:failed: {GOING}$"),
        (
            {"list": _ended("finished:failed", "No heartbeat received from the task")},
            RunFailed,
            "run 7 is finished:failed: No heartbeat received from the task: its ServerApp's process has "
            "ended; if round 1 began, its results are in .*/x on the SuperLink's machine, for resume=$",
        ),
        ({"list": {}}, RunFailed, "the SuperLink of connection there no longer answers, the outcome of"),
    ],
)
def test_a_run_that_fails(flower: Flower, answers, kind: type[Exception], line: str) -> None:
    flower.answers(**{"run": {"success": True, "run-id": "7"}, **answers})
    with pytest.raises(kind, match=f"^{line}"):
        SuperLink("there").submit([], Path("x"))


def test_an_app_without_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(superlink, "_APP", tmp_path)
    with pytest.raises(ConfigError, match="must be run from a clone, there is no pyproject.toml in"):
        SuperLink("there")


def test_a_resumed_run_is_sent_expanded(flower: Flower, tmp_path: Path) -> None:
    """Nodes need not have the folder: they compose what is sent without looking into it."""
    elsewhere = tmp_path / "not on the nodes"
    overrides = ["seed=3", "rounds=7", f"resume='{elsewhere}'", f"output_dir='{elsewhere}'"]
    SuperLink("dep").submit(overrides, elsewhere)
    sent = f"seed=3 rounds=7 ++resume='{elsewhere}'"
    assert flower.run_config == {"overrides": sent, "output-dir": str(elsewhere)}
    config = from_run_config(flower.run_config)
    assert (config.seed, config.rounds, config.resume) == (3, 7, str(elsewhere))


class Actor:
    """What Flower's pool creates: an actor whose work never ends."""

    @classmethod
    def options(cls, **_: float) -> type["Actor"]:
        return cls

    remote = classmethod(lambda cls: cls())


def test_what_hangs_in_flowers_simulation_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr("flwr.simulation.ray_transport.ray_actor.pool_size_from_resources", lambda _: 2)
    monkeypatch.setattr("ray.kill", ended.append)
    pool = BasicActorPool(Actor, {"num_cpus": 1}, {})
    pool.add_actors_to_pool(2)
    idle, busy = pool.pool
    pool.submit(lambda *_: "a future", (None, None, "0", None))  # to the last one
    end_hung_actors()
    assert ended == [busy]
    assert pool.pool == [idle]
