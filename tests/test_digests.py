"""One seed, one result, to the last bit: over hash seeds, threads, engines and nodes.

benchmarks/digests.py does the same for every strategy.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedclust
from fedclust.results import comparable
from fedclust.settings import CONF

_SCRIPT = CONF.parent / "benchmarks" / "digests.py"
_STRATEGIES = ("fedgwc_paper", "fmcl", "ifca")  # splits by losses; groups once; asks in every round


def _start(hash_seed: str, threads: str, *engines: str) -> subprocess.Popen:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads}
    env["PYTHONPATH"] = str(CONF.parent)
    command = [sys.executable, str(_SCRIPT), "--engine", *engines, "--strategy", *_STRATEGIES]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_digests_do_not_depend_on_hash_seed_threads_and_engine() -> None:
    processes = [_start("1", "1", "local"), _start("2", "2", "local", "ray")]
    printed = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    (one, _), (other, _) = printed
    first = {name: value for _, name, value in map(str.split, one.splitlines())}
    assert first.keys() == {*_STRATEGIES}
    assert all(len(value) == 16 for value in first.values()), first  # else the name of an error
    assert len({*first.values()}) == len(_STRATEGIES)  # a digest sees what differs
    found = [tuple(line.split()) for line in other.splitlines()]
    assert found == [(engine, name, first[name]) for engine in ("local", "ray") for name in _STRATEGIES]


def test_one_by_one_and_in_one_pass_agree_to_float_tolerance(tmp_path: Path) -> None:
    """What the parameter ``mode`` promises: the order of float32 sums differs, and nothing else."""
    small = ["strategy=fedavg", "compare=[]", "proof=false", "rounds=2", "participation=1", "device=cpu"]
    small += ["partition.num_clients=6", "partition.groups=[3,3]"]
    runs = [
        fedclust.run([*small, f"training.mode={mode}", f"output_dir={tmp_path / mode}"]).saved
        for mode in ("sequential", "vectorised")
    ]
    left, right = (json.loads(json.dumps(comparable(run.rounds))) for run in runs)
    for one, other in zip(left, right, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-5)
        assert one["cohort"] == other["cohort"]
