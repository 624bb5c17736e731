"""One seed, one result, to the last bit: over hash seeds, threads, engines and nodes.

benchmarks/digests.py does the same for every strategy.
"""

import importlib
import json
import os
import types
from pathlib import Path

import pytest
import torch

import fedclust
from fedclust.results import comparable
from fedclust.settings.composition import CONF

_SCRIPT = CONF.parent / "benchmarks" / "digests.py"
_STRATEGIES = ("fedgwc", "ifca")  # splits by losses; asks in every round


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Import the script, which imports from its folder."""
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    return importlib.import_module(_SCRIPT.stem)


def test_digests_do_not_depend_on_hash_seed_threads_and_engine(digests: types.ModuleType) -> None:
    # Here with the hash seed and the threads of this process, there with others.
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    threads = "2" if torch.get_num_threads() == 1 else "1"
    process = digests.in_a_process(_STRATEGIES, hash_seed, threads, "local", "ray")
    try:
        first = {name: digests.digest(name, "local") for name in _STRATEGIES}
    finally:
        printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert len({*first.values()}) == len(_STRATEGIES)  # a digest sees what differs
    found = [tuple(line.split()) for line in printed.splitlines()]
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
