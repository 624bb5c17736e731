"""The scripts of examples/ and README's Python run as they are, and find what they put into their data."""

import ast
import importlib.util
import inspect
import re
import types
from pathlib import Path

import pytest

import fedclust

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Import a script as Python does that runs it, its folder first."""
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location(
        f"example_{request.param}", EXAMPLES / f"{request.param}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _asks(function: ast.FunctionDef) -> bool:
    """Return whether a function asks clients, which takes a federation and not two lines."""
    return any(
        each.annotation and ast.unparse(each.annotation) == "Federation" for each in function.args.args
    )


def test_every_public_function_has_an_example() -> None:
    """Which ``--doctest-modules`` runs."""
    package = Path(fedclust.__file__).parent
    named = {
        f"{path.stem}.{each.name}": ast.get_docstring(each)
        for room in ("clustering", "metrics", "proof", "strategies")
        for path in (package / room).rglob("*.py")
        for each in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and not _asks(each)
    }
    exported = {name: getattr(fedclust, name) for name in fedclust.__all__}
    named |= {name: each.__doc__ for name, each in exported.items() if inspect.isfunction(each)}
    assert len(named) > 100
    assert [name for name, doc in named.items() if ">>>" not in (doc or "")] == []


def test_every_script_is_tested_here() -> None:
    text = Path(__file__).read_text()
    for script in EXAMPLES.glob("*.py"):
        assert f'"{script.stem}"' in text, script


@pytest.mark.parametrize("example", ["own_arrays"], indirect=True)
def test_own_arrays(example: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = example.main(str(tmp_path / "report"))
    assert result.assignment.tolist() == [0] * 7 + [1] * 5  # five of twelve are wired the other way round
    assert "a new sensor belongs to cluster 1" in capsys.readouterr().out
    assert (tmp_path / "report" / "clients.parquet").is_file()
    assert list((tmp_path / "report" / "plots").glob("*.png"))


@pytest.mark.parametrize("example", ["own_strategy"], indirect=True)
def test_own_strategy(example: types.ModuleType) -> None:
    result = example.main()
    assert result.assignment.tolist() == [0, 1, 2] * 3  # client k sells most of product k mod 3
    assert result.summary["strategy"] == "bymajority"


@pytest.mark.parametrize("example", ["compare_strategies"], indirect=True)
def test_compare_strategies(example: types.ModuleType, tmp_path: Path) -> None:
    picture = tmp_path / "comparison.png"
    results = example.main(str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    accuracy = {name: result.summary["mean_client_accuracy"] for name, result in results.items()}
    chosen = results["groups that prove better"].assignment.tolist()
    assert not set(chosen[:6]) & set(chosen[6:])
    # One model can name 6 of the 10 clients' diagnoses as they do; two models all of them.
    assert accuracy["one model for all"] < 0.75 < 0.9 < accuracy["groups that prove better"]


def test_own_package_on_the_command_line(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands in own_strategy.py, run in their folder; tests/test_installed.py does it in a process."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)  # as `python -m` has the current folder
    arguments = ["--config-dir", "own_package/conf", "experiment=own_experiment", "rounds=2", "compare=[]"]
    assert (
        "by_majority, 10 clients, 2 rounds" in run(*arguments, f"output_dir={tmp_path / 'results'}").printed
    )


def test_the_python_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), flags=re.DOTALL)
    training, _, use = code.partition("\n\nresult.")
    assert len([line for line in training.splitlines() if line.strip()]) < 15
    for name in ("assignment", "model_for(", "predict(", "assign(", "report("):
        assert name in use
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code.replace("rounds=6", "rounds=3"), names)  # they will do
    result = names["result"]
    assert result.assignment.tolist() == [0] * 7 + [1] * 5
    assert result.predict(8, names["rows"][8]).shape == (80, 4)
    assert result.assign(names["rows"][0], names["labels"][0]) == 0
    assert (tmp_path / "results" / "summary.json").is_file()
