"""One seed, one result, to the last bit: over hash seeds, threads, engines and nodes.

benchmarks/digests.py does the same for every strategy.
"""

import importlib
import os
import types

import pytest
import torch

from fedclust.settings.composition import CONF

_SCRIPT = CONF.parent / "benchmarks" / "digests.py"
_STRATEGY = "ifca"  # asks in every round


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Import the script, which imports from its folder."""
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    return importlib.import_module(_SCRIPT.stem)


def test_digests_do_not_depend_on_hash_seed_threads_and_engine(digests: types.ModuleType) -> None:
    # Here with the hash seed and the threads of this process, there with others.
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    threads = "2" if torch.get_num_threads() == 1 else "1"
    process = digests.in_a_process([_STRATEGY], hash_seed, threads, "local", "ray")
    try:
        first, other = digests.digest(_STRATEGY, "local"), digests.digest("fedavg", "local")
    finally:
        printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert first != other  # a digest sees what differs
    found = [tuple(line.split()) for line in printed.splitlines()]
    assert found == [("local", _STRATEGY, first), ("ray", _STRATEGY, first)]
