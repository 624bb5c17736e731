"""docs/DEPLOYMENT.md as it stands: its blocks are run, on one machine, and what deploy/ holds is read.

Minutes of waiting for Flower's polling and processes, so the run is only made where it is asked for.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sysconfig
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import fedclust
from fedclust.settings.composition import CONF

ROOT = CONF.parent
PAGE = ROOT / "docs" / "DEPLOYMENT.md"
SCRIPTS = Path(sysconfig.get_path("scripts"))
SITES = ("north", "east", "south")
ASKED = "FEDCLUST_DEPLOYMENT_TESTS"
SCP = """#!/bin/sh
# scp between the machines' folders, which lie side by side.
[ "$1" = -r ] && shift
place() { case $1 in *:*) echo "../${1%%:*}/${1#*:}" ;; *) echo "$1" ;; esac; }
cp -r "$(place "$1")" "$(place "$2")"
"""


def _blocks() -> list[tuple[str, str]]:
    """Read the page's blocks: where each is run, and what."""
    return re.findall(r"^```bash (\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def _missing() -> str:
    if os.environ.get(ASKED) != "1":
        return f"it takes minutes, {ASKED}=1 runs it"
    tools = [name for name in ("openssl", "ssh-keygen", "bash") if shutil.which(name) is None]
    tools += [name for name in ("flower-superlink", "flower-supernode") if not (SCRIPTS / name).exists()]
    return f"not here: {', '.join(tools)}" if tools else ""


def _csv(path: Path, seed: int, size: int, stages: str) -> None:
    draws = np.random.default_rng(seed)
    age, stage = draws.normal(60, 10, size).round(2), draws.choice(list(stages), size)
    ill = age + 8 * pd.Series(stage).map("ABC".index) + draws.normal(0, 4, size) > 66
    columns = {"age": age, "sex": draws.choice(["f", "m"], size), "stage": stage}
    pd.DataFrame({**columns, "diagnosis": np.where(ill, "ill", "well")}).to_csv(path, index=False)


class Machines:
    """A folder per machine, and the services that run on them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
        self.ports = [str(each.getsockname()[1]) for each in sockets]
        for each in sockets:
            each.close()
        tools = folder / "tools"
        for name in ("tools", "coordinator", *SITES):
            (folder / name).mkdir()
        (tools / "scp").write_text(SCP)
        (tools / "scp").chmod(0o755)
        path = os.pathsep.join([str(tools), str(SCRIPTS), os.environ["PATH"]])
        away = (
            "FLWR_HOME",
            "FEDCLUST_CACHE",
            "FEDCLUST_ACCOUNTS",
            "XDG_CACHE_HOME",
            "PYTHONDONTWRITEBYTECODE",
        )
        kept = {name: value for name, value in os.environ.items() if name not in away}
        self._environment = {
            **kept,
            "PATH": path,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, where: str, block: str) -> None:
        """Run a block in a machine's folder; one that starts a service leaves it running."""
        place = 1 + SITES.index(where) if where in SITES else 0
        block = block.replace("SITE=north", f"SITE={where}").replace("fed.example.org", "localhost")
        block = block.replace("39500", self.ports[0]).replace("39510", self.ports[place])
        folder = self.folder / where
        started = {"env": {**self._environment, "HOME": str(folder)}, "cwd": folder}
        command = ["bash", "-euo", "pipefail", "-c", block]
        with (self.folder / f"{where}.log").open("a") as log:
            if "flower-super" not in block:
                done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=1500, **started)
                assert done.returncode == 0, f"{block}\n{self.said()}"
                return
            service = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, **started
            )
            self._stack.callback(_stop, service)
        if where == "coordinator":
            self._wait(service)

    def _wait(self, service: subprocess.Popen) -> None:
        trusted = ssl.create_default_context(cafile=str(self.folder / "coordinator" / "ca.pem"))
        for _ in range(300):
            assert service.poll() is None, self.said()
            with suppress(OSError):
                urllib.request.urlopen(
                    f"https://localhost:{self.ports[0]}/health", timeout=5, context=trusted
                ).close()
                return
            time.sleep(0.2)
        raise TimeoutError(self.said())

    def said(self) -> str:
        """Return the ends of what all machines printed."""
        return "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in self.folder.glob("*.log"))


def _stop(service: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(service.pid, number)
        with suppress(subprocess.TimeoutExpired):
            service.wait(timeout=15)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if reason := _missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        made = Machines(tmp_path_factory.mktemp("machines"), stack)
        for seed, (site, size) in enumerate(zip(SITES, (90, 60, 75), strict=True)):
            _csv(made.folder / site / "patients.csv", seed, size, "ABC" if site == "south" else "AB")
        for where, block in _blocks():
            for machine in SITES if where == "hospital" else ("coordinator",):
                made.run(machine, block)
        yield made


def test_three_hospitals_reach_what_the_simulation_reaches(machines: Machines, tmp_path: Path) -> None:
    assert "--insecure" not in "".join(block for _, block in _blocks())
    deployed = fedclust.load(machines.folder / "coordinator" / "first")
    sites = ", ".join(f"{site}: '{machines.folder / site / 'patients.csv'}'" for site in SITES)
    simulated = fedclust.run(
        [
            *("dataset=csv", "dataset.label=diagnosis", "partition=own", f"partition.sites={{{sites}}}"),
            *("strategy=fedavg", "compare=[]", "proof=false", "rounds=3", "evaluate_every=3"),
            f"output_dir={tmp_path / 'simulated'}",
        ]
    )
    assert deployed.clients["name"].tolist() == sorted(SITES)
    for column in ("num_train", "num_test", "accuracy"):
        if column in deployed.clients:
            assert deployed.clients[column].tolist() == simulated.clients[column].tolist(), column
    assert deployed.summary["failed_replies"] == 0
    # Raw rows predicted at a site, from the export that was sent there.
    simulated.export(tmp_path / "served")
    there = pd.read_csv(machines.folder / "south" / "predictions.csv")
    rows = pd.read_csv(machines.folder / "south" / "patients.csv")
    here = fedclust.load_export(tmp_path / "served").predict(rows, site="south")
    np.testing.assert_allclose(there[["ill", "well"]], here[["ill", "well"]], atol=1e-4)
    assert "claims site" not in machines.said()
    agreement = json.loads((deployed.folder / "agreement.json").read_text())
    assert agreement["refused"] == {}


def _rounded(value: Any) -> Any:
    """Round numbers: processes with other numbers of threads add up in another order."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def test_three_hospitals_choose_with_whom_they_train_as_the_simulation_does(
    machines: Machines, tmp_path: Path
) -> None:
    east = machines.folder / "east" / "patients.csv"
    rows = pd.read_csv(east)
    rows.assign(diagnosis=rows["diagnosis"].map({"ill": "well", "well": "ill"})).to_csv(east, index=False)
    run = next(block for where, block in _blocks() if "strategy=fedavg" in block and where == "coordinator")
    chosen = "strategy=auto training.learning_rate=0.3 rounds=4"
    asked = re.sub(r"strategy=fedavg 'compare=\[\]' proof=false rounds=3 evaluate_every=3", chosen, run)
    machines.run("coordinator", asked.replace("$PWD/first", "$PWD/chosen"))
    deployed = fedclust.load(machines.folder / "coordinator" / "chosen")
    sites = ", ".join(f"{site}: '{machines.folder / site / 'patients.csv'}'" for site in SITES)
    simulated = fedclust.run(
        [
            *("dataset=csv", "dataset.label=diagnosis", "partition=own", f"partition.sites={{{sites}}}"),
            *chosen.split(),
            f"output_dir={tmp_path / 'simulated'}",
        ]
    )
    for key in ("sites", "site_findings", "assignment", "failed_replies"):
        assert _rounded(deployed.summary[key]) == _rounded(simulated.summary[key]), key
    assert any("east" in str(finding) for finding in deployed.summary["site_findings"])


def test_the_keys_block_can_be_run_again_for_a_fourth_hospital(tmp_path: Path) -> None:
    (block,) = (block for _, block in _blocks() if "flwr supernode register" in block)
    (tmp_path / "flwr").write_text('#!/bin/sh\necho "$6" >> registered\n')
    (tmp_path / "flwr").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    for sites in (SITES, (*SITES, "west")):
        asked = block.replace(" ".join(SITES), " ".join(sites))
        subprocess.run(["sh", "-eu", "-c", asked], cwd=tmp_path, env={"PATH": path}, check=True)
        assert tomllib.loads((tmp_path / "hosts.toml").read_text()) == {site: site for site in sites}
        assert (tmp_path / "registered").read_text().split() == [*sites]


DEPLOY = ROOT / "deploy"
SERVICE = {"image", "restart", "depends_on", "command", "ports", "volumes", "profiles", "environment"}


def _options(command: list[str]) -> tuple[str, set[str]]:
    """Return what a command starts, and which options it is given."""
    found = {word.partition("=")[0] for word in command if word.startswith("--")}
    return Path(command[0]).name, found


def _on_the_page() -> dict[str, set[str]]:
    lines = [line for _, block in _blocks() for line in block.replace("\\\n", " ").splitlines()]
    return dict(_options(shlex.split(line)) for line in lines if line.startswith("flower-super"))


def test_the_compose_file_starts_what_the_page_starts() -> None:
    page = _on_the_page()
    assert set(page) == {"flower-superlink", "flower-supernode"}
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert compose.keys() == {"x-node", "services", "volumes"}
    services = compose["services"]
    assert services.keys() == {"superlink", *SITES, "run"}
    for name, service in services.items():
        assert service.keys() <= SERVICE, name
        assert service["image"] == "fedclust"
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            # What comes from outside is read only; the rest is a volume that is declared.
            assert mode == ["ro"] if source.startswith("./") else source in compose["volumes"]
        if name == "run":
            continue
        assert all(isinstance(word, str) for word in service["command"])
        started, options = _options(service["command"])
        # A container has ports of its own.
        assert options == page[started] - ({"--port"} if name in SITES else set())
    assert "./keys/hosts.toml:/keys/hosts.toml:ro" in services["superlink"]["volumes"]  # as in `run`
    for site in SITES:
        own = f"data='/data/patients.csv' name='{site}' ${{{site.upper()}:-}}"  # further keys are in .env
        assert services[site]["command"][-1] == f"--node-config={own}"
        assert f"./keys/{site}.key:/keys/node.key:ro" in services[site]["volumes"]
    copied = re.findall(r"^COPY (.*) (?:\S+)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert {"fedclust", "strategies", "clients", "conf"} <= set(" ".join(copied).split())
    assert all((ROOT / name).exists() for name in " ".join(copied).split())


def _unit(name: str) -> str:
    return (DEPLOY / "systemd" / name).read_text(encoding="utf-8").replace("\\\n", " ")


def test_the_systemd_units_start_what_the_page_starts(tmp_path: Path) -> None:
    page = _on_the_page()
    given = dict(
        line.split("=", 1) for line in _unit("supernode.env").splitlines() if not line.startswith("#")
    )
    for name in ("fedclust-superlink.service", "fedclust-supernode@.service"):
        (command,) = re.findall(r"^ExecStart=(.*)$", _unit(name), re.M)
        started, options = _options(shlex.split(command))
        assert options == page[started]
        assert set(re.findall(r"\$\{(\w+)\}", command)) == (set(given) if "@" in name else set())
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for name in ("fedclust-superlink.service", "fedclust-supernode@.service"):
        # Its programs are not installed where the units look for them.
        here = tmp_path / name
        here.write_text(_unit(name).replace("/opt/fedclust/bin/flower", "/bin/true flower"))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert str(tmp_path) not in done.stderr, done.stderr
