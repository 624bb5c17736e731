"""The package as users install it: a wheel, a source distribution, an editable install.

Everything is built from a copy of the repository, without network, and installed into environments of its own
that see this one's dependencies but not this checkout.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedclust.results import SavedRun
from fedclust.settings.composition import CONF

ROOT = CONF.parent
PARTS = ("fedclust", "strategies", "clients", "conf")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what a checkout has, links as links; building leaves files behind."""
    folder = tmp_path_factory.mktemp("source") / "fedclust"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in PARTS:
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder


def _build(source: Path, kind: str, target: Path) -> Path:
    """Build as pip does, by the hook of the build system: ``wheel``, ``sdist`` or ``editable``."""
    hook = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", hook, target], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(source, "wheel", tmp_path_factory.mktemp("wheel"))


Python = Callable[..., subprocess.CompletedProcess[str]]


def _install(wheel: Path, *where, python: Path | str = sys.executable) -> None:
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    pip.append("--no-compile")
    subprocess.run([*pip, "--disable-pip-version-check", *where, wheel], check=True, timeout=120)


def _environment(folder: Path, wheel: Path) -> Python:
    """Install a wheel into a fresh environment; return what runs its Python in a folder."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Their own .pth files, one of which may lead to this checkout, do not count when a .pth file adds them.
    inherited = [path for path in sys.path if path.endswith("-packages")]
    (packages / "dependencies.pth").write_text("\n".join(inherited) + "\n")
    python = folder / "bin" / "python"
    _install(wheel, python=python)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*arguments, cwd: Path) -> subprocess.CompletedProcess[str]:
        command = [python, *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Python:
    return _environment(tmp_path_factory.mktemp("installed"), wheel)


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith("/") and ".dist-info/" not in name
        }


def _in_checkout() -> dict[str, bytes]:
    """List what the package is made of: Python and YAML below it, links followed, and its mark of types."""
    files = {"fedclust/py.typed": (ROOT / "fedclust" / "py.typed").read_bytes()}
    for part in PARTS:
        inside = "" if part == "fedclust" else "fedclust/"
        for path in (ROOT / part).rglob("*"):  # does not follow links
            if path.suffix in (".py", ".yaml", ".md"):
                files[inside + path.relative_to(ROOT).as_posix()] = path.read_bytes()
    return files


def test_a_wheel_holds_one_package_and_all_of_it(wheel: Path) -> None:
    contents = _contents(wheel)
    assert {name.split("/")[0] for name in contents} == {"fedclust"}
    expected = _in_checkout()
    assert {"fedclust/strategies/fedgwc.py", "fedclust/clients/app.py", "fedclust/conf/config.yaml"} < set(
        expected
    )
    assert contents == expected


def test_a_wheel_from_the_source_distribution_is_the_same(source: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(_build(source, "sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert _contents(_build(unpacked, "wheel", tmp_path)) == _contents(wheel)


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """Make a user's folder whose modules and configuration have our folders' names."""
    for name in ("clients", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('the user\\'s own {name}')\n")
    (tmp_path / "conf" / "strategy").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text("rounds: the user's own\n")
    (tmp_path / "conf" / "strategy" / "fedgwc.yaml").write_text("_target_: nowhere.Nothing\n")
    return tmp_path


def test_a_wheel_beside_a_users_package_and_folders_of_our_names(installed: Python, own_folder: Path) -> None:
    """``--config-dir`` adds a strategy, a dataset, a model and an experiment; ours stay."""
    package = shutil.copytree(ROOT / "examples" / "own_package", own_folder / "own_package")
    own_csv = "name: own_csv\npath: own.csv\nlabel: state\nnum_classes: 2\ninput_shape: [2]\n"
    for group, name, text in (
        ("dataset", "own_csv", f"defaults: [csv]\n{own_csv}"),
        ("model", "own_linear", "defaults: [linear]\n"),
    ):
        folder = package / "conf" / group
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
    rows = ["a,b,state", *(f"{row % 7},{row % 5},{row % 2}" for row in range(300))]
    (own_folder / "own.csv").write_text("\n".join(rows) + "\n")
    done = installed(
        *("-m", "fedclust", "--config-dir", "own_package/conf", "experiment=own_experiment", "rounds=2"),
        *("dataset=own_csv", "model=own_linear", "partition.num_clients=6", "compare=fedgwc"),
        "output_dir=results",
        cwd=own_folder,
    )
    assert done.returncode in (0, 3), done.stderr  # two rounds may learn nothing
    run = SavedRun(own_folder / "results")
    assert len(run.rounds) == 2
    assert 'data-live="no"' in (run.folder / "report.html").read_text()
    assert run.config["strategy"]["_target_"] == "own_package.ByMajority"
    assert run.config["dataset"]["name"] == "own_csv"
    (beside,) = run.compared.values()
    assert beside.config["strategy"]["_target_"] == "fedclust.strategies.FedGWC"


# What the layouts share is imported once; a forked process then imports from each of the folders.
_TELL = """
import importlib.util, json, os, site, sys, sysconfig
from pathlib import Path
import flwr.clientapp, flwr.serverapp, hydra, pandas, scipy.optimize, sklearn.cluster, torch

def tell():
    import fedclust
    from fedclust import strategies, clients
    from fedclust.settings import composition
    import fedclust.client_app
    names = ("strategies.fedgwc", "strategies.base", "clients.node", "clustering.fedgwc", "conf")
    groups = ("strategy", "dataset", "model", "experiment")
    print(json.dumps({
        "strategies": {name: getattr(strategies, name).__module__ for name in strategies.__all__},
        "client app": fedclust.client_app.app is clients.app,
        "found": [name for name in names if importlib.util.find_spec("fedclust." + name)],
        "choices": {group: composition.options(group) for group in groups},
        "door": fedclust.__all__,
        "top level": [name for name in ("strategies", "clients", "conf") if name in sys.modules],
        "where": str(Path(fedclust.__file__).parent),
        "strategies' file": strategies.__file__,
    }), flush=True)

assert not any(name.partition(".")[0] == "fedclust" for name in sys.modules)
for folder in sys.argv[1:]:
    if os.fork() == 0:
        if folder != "installed":
            sys.path.insert(0, folder)
        if list(Path(folder).glob("*.pth")):  # of an editable install, in place of the wheel's folder
            sys.path.remove(sysconfig.get_path("purelib"))
            site.addsitedir(folder)
        tell()
        os._exit(0)
    assert os.wait()[1] == 0, folder
"""


def test_imports_are_the_same_in_every_layout(
    source: Path, installed: Python, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Installed, editable, checkout, and what Flower unpacks: folders side by side without links."""
    editable = tmp_path_factory.mktemp("editable")
    _install(_build(source, "editable", tmp_path_factory.mktemp("built")), "--target", editable)
    bundle = shutil.copytree(source, tmp_path_factory.mktemp("unpacked") / "app", symlinks=True)
    for part in PARTS[1:]:
        (bundle / "fedclust" / part).unlink()

    folders = {"wheel": "installed", "checkout": source, "bundle": bundle, "editable": editable}
    done = installed("-P", "-c", _TELL, *folders.values(), cwd=tmp_path_factory.mktemp("elsewhere"))
    assert done.returncode == 0, done.stderr
    told = dict(zip(folders, map(json.loads, done.stdout.splitlines()), strict=True))
    where = {layout: Path(each.pop("where")) for layout, each in told.items()}
    files = {layout: Path(each.pop("strategies' file")) for layout, each in told.items()}
    assert where["editable"] == where["checkout"] == source / "fedclust"
    assert where["bundle"] == bundle / "fedclust"
    assert where["wheel"].parent.name == "site-packages"
    assert files["wheel"].is_relative_to(where["wheel"])
    assert files["bundle"].is_relative_to(bundle / "strategies")
    assert told["wheel"] == told["editable"] == told["checkout"] == told["bundle"]
    assert told["wheel"]["top level"] == []
    assert set(told["wheel"]["strategies"].values()) <= {
        f"fedclust.strategies.{path.stem}" for path in (ROOT / "strategies").glob("*.py")
    }
