"""What fedclust needs of Flower, of the version that is installed and of others.

For another version put its wheel into a folder (``pip download --no-deps flwr==1.41.0``), and run this file
with ``FEDCLUST_FLOWER_WHEELS=folder``. The wheel alone is enough; nothing is installed.
"""

import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.serverapp.strategy import Strategy

from fedclust.settings.composition import CONF
from fedclust.strategies import ClusteredStrategy

ROOT = CONF.parent
CONTRACT = ("strategies/test_clustered.py", "fedclust/grids", "fedclust/aggregation", "fedclust/messages")


def test_strategies_take_what_flowers_start_takes() -> None:
    theirs, ours = (list(inspect.signature(kind.start).parameters) for kind in (Strategy, ClusteredStrategy))
    assert ours[: len(theirs)] == theirs
    assert "should_stop" in ours  # of Flower 1.43, whose announcement does not say where it stands


@pytest.mark.parametrize("version", ["1.41", "1.43"])
def test_the_contract_holds_with_another_flower(version: str, tmp_path: Path) -> None:
    folder = os.environ.get("FEDCLUST_FLOWER_WHEELS")
    if folder is None:
        pytest.skip("FEDCLUST_FLOWER_WHEELS names no folder with wheels of other versions of Flower")
    wheels = sorted(Path(folder).glob(f"flwr-{version}.*.whl"))
    if not wheels:
        pytest.skip(f"no wheel of Flower {version} in {folder}; pip download --no-deps 'flwr=={version}.*'")
    zipfile.ZipFile(wheels[-1]).extractall(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    found = subprocess.run(
        [sys.executable, "-c", "import flwr; print(flwr.__file__)"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.startswith(str(tmp_path))
    tests = [str(ROOT / "tests" / each) for each in (*CONTRACT, Path(__file__).name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not another_flower", *tests],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
