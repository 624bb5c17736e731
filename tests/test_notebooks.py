"""The notebooks of examples/ run, find what they put into their data, and are stored without outputs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"
NAMES = ("first_clusters", "your_own_data", "a_papers_table")


def test_every_notebook_is_tested_here() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_stored_without_outputs(name: str) -> None:
    book = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """Start one kernel for all, as importing PyTorch takes the longest."""
    pytest.importorskip("nbclient", reason="pip install 'fedclust[notebook]' to execute the notebooks")
    pytest.importorskip("ipykernel", reason="pip install 'fedclust[notebook]' to execute the notebooks")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    client.stop_channels()
    yield manager
    manager.shutdown_kernel(now=True)


def _executed(name: str, kernel: Any, folder: Path) -> list[str]:
    """Execute a notebook with no names from the one before; list each code cell's value as text."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(book, km=kernel, timeout=120, resources=resources).execute()
    cells = [cell for cell in book.cells if cell.cell_type == "code"][1:]
    values = [[output for output in cell.outputs if output.output_type == "execute_result"] for cell in cells]
    return [value[0].data["text/plain"] if value else "" for value in values]


def test_first_clusters(kernel: Any, tmp_path: Path) -> None:
    verdict, _, groups, *_ = _executed("first_clusters", kernel, tmp_path)
    assert "Train in 2 groups" in verdict
    # The table of groups by clusters: 20 clients in one, 10 in the other, none mixed.
    assert [line.split() for line in groups.splitlines()[2:]] == [["0", "20", "0"], ["1", "0", "10"]]


def test_your_own_data(kernel: Any, tmp_path: Path) -> None:
    _, verdict, assignment, _, _, newcomers = _executed("your_own_data", kernel, tmp_path)
    assert "Train in 2 groups" in verdict
    assert assignment == "array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1])"
    assert newcomers == "(1, 0)"


def test_a_papers_table(kernel: Any, tmp_path: Path) -> None:
    _, number, accuracy, clusters = _executed("a_papers_table", kernel, tmp_path)
    assert number == "18"  # 3 federations, 3 methods, 2 seeds
    figures = {name: [float(text.split()[0]) for text in row] for name, row in _rows(accuracy, "  ").items()}
    fedavg, clust_psi_pfl, fmcl = figures["conventions"]
    assert fmcl > fedavg + 0.1  # a third of the clients names the classes the other way round
    assert clust_psi_pfl < fedavg + 0.1  # label counts cannot see it
    formed = _rows(clusters, " ")
    assert formed["alike"] == ["1.0", "2.0", "2.0"]  # the papers' rules return two clusters at least


def _rows(text: str, separator: str) -> dict[str, list[str]]:
    """Read a table that pandas printed: the last three columns of each row, by its name."""
    found = {}
    for line in text.splitlines()[2:]:
        parts = [part.strip() for part in line.split(separator) if part.strip()]
        found[" ".join(parts[:-3])] = parts[-3:]
    return found
