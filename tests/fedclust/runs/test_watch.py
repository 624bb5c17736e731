import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedclust.results import Recorder
from fedclust.runs.watch import Watch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Recorder(tmp_path / "run", {"choices": {"strategy": "fmcl"}}) as recorder:
        recorder.assignment(0, [0, 0], "before round 1")
        recorder.round({"round": 1, "mean_client_accuracy": 0.5})
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "run"


@contextmanager
def serving(folder: Path) -> Iterator[Watch]:
    with Watch(folder, 0) as watch:
        thread = threading.Thread(target=watch.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield watch
        finally:
            watch.shutdown()
            thread.join()


@pytest.fixture
def server(folder: Path) -> Iterator[Watch]:
    with serving(folder) as watch:
        yield watch


def ask(server: Watch, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_page_and_its_data(server: Watch, folder: Path) -> None:
    status, headers, body = ask(server, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert b'data-live="yes"' in body
    status, headers, body = ask(server, "/data.json")
    assert "round 1" in json.loads(body)["markup"]
    tag = headers["ETag"]
    assert ask(server, "/data.json", If_None_Match=tag)[0] == 304
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "mean_client_accuracy": 0.75}\n')
    status, headers, body = ask(server, "/data.json", If_None_Match=tag)
    assert status == 200
    assert headers["ETag"] != tag
    news = json.loads(body)
    assert "round 2" in news["markup"]
    assert '"x":[1,2],"y":[0.5,0.75]' in json.dumps(news["charts"], separators=(",", ":"))
    assert ask(server, "/", "HEAD")[2] == b""


def test_a_sweep_leads_to_each_of_its_runs_while_they_go_on(folder: Path) -> None:
    with serving(folder.parent) as server:
        _, _, body = ask(server, "/data.json")  # no run has finished yet
        assert ">run<" in json.loads(body)["markup"]
        status, _, body = ask(server, "/run/")
        assert status == 200
        assert b'data-live="yes"' in body
        status, headers, body = ask(server, "/run/data.json")
        assert (status, json.loads(body)["title"]) == (200, "fmcl")
        assert ask(server, "/run/data.json", If_None_Match=headers["ETag"])[0] == 304
        for path in ("/run", "/run/rounds.jsonl", "/run/../run/", "/run//", "/none/", "/run%2F"):
            assert ask(server, path)[0] == 404, path


def test_nothing_else_is_served_and_nothing_can_be_changed(server: Watch) -> None:
    outside = ("/../secret.txt", "/%2e%2e/secret.txt", "/data.json/..", "/..", "/?x")
    for path in (*outside, "/rounds.jsonl", "/config.yaml", "//rounds.jsonl"):
        status, _, body = ask(server, path)
        assert status == 404, path
        assert b"secret" not in body
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/", method)[0] == 501


def test_only_this_machines_own_names_are_answered(server: Watch) -> None:
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", Host=f"localhost:{port}")[0] == 200
    assert ask(server, "/data.json", Host=f"attacker.example:{port}")[0] == 403
    assert ask(server, "/", Host="")[0] == 403


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["."], "must hold"),
        (["none"], "folder must be that of a run or of a sweep, none does not exist"),
        ([".", "--port", "65536"], "--port must be in 0 to 65535, got 65536"),
    ],
)
def test_one_line_says_what_is_wrong(run, arguments: list[str], said: str) -> None:
    code, _, complained = run("watch", *arguments)
    assert (code, complained.count("\n")) == (2, 1)
    assert complained.startswith("fedclust watch: ")
    assert said in complained
