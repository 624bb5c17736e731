"""The tables of the papers, as printed there, and what of them stands beside a run."""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedclust.settings.composition import CONF

# Clust-PSI-PFL, Table III, FMNIST: mean ± standard deviation at
# α = 50, 0.7, 0.3, 0.2, 0.09, 0.05 and S = 1, 0.03, 0; one figure for CL.
TABLE_III = """
CL            | 0.90 ± 0.02
FedAvg        | 0.86 ± 0.01 0.83 ± 0.01 0.82 ± 0.01 0.81 ± 0.01 0.73 ± 0.01 0.68 ± 0.03 0.86 ± 0.01 0.74 ± 0.01 0.14 ± 0.04
FedProx       | 0.86 ± 0.01 0.83 ± 0.01 0.82 ± 0.01 0.80 ± 0.01 0.71 ± 0.02 0.64 ± 0.07 0.86 ± 0.01 0.73 ± 0.01 0.15 ± 0.07
FedAvgM       | 0.84 ± 0.01 0.82 ± 0.01 0.80 ± 0.01 0.77 ± 0.01 0.72 ± 0.01 0.57 ± 0.02 0.84 ± 0.01 0.74 ± 0.01 0.11 ± 0.01
FedAdagrad    | 0.84 ± 0.01 0.82 ± 0.01 0.80 ± 0.01 0.78 ± 0.01 0.72 ± 0.03 0.67 ± 0.03 0.84 ± 0.01 0.74 ± 0.01 0.12 ± 0.02
FedYogi       | 0.84 ± 0.01 0.81 ± 0.01 0.80 ± 0.01 0.77 ± 0.01 0.66 ± 0.03 0.66 ± 0.03 0.84 ± 0.01 0.74 ± 0.01 0.11 ± 0.02
FedAdam       | 0.82 ± 0.01 0.79 ± 0.01 0.77 ± 0.01 0.76 ± 0.01 0.68 ± 0.01 0.65 ± 0.02 0.82 ± 0.01 0.68 ± 0.01 0.14 ± 0.07
PoC           | 0.77 ± 0.05 0.63 ± 0.02 0.44 ± 0.04 0.38 ± 0.03 0.26 ± 0.11 0.54 ± 0.05 0.14 ± 0.01 0.10 ± 0.03 0.10 ± 0.01
HACCS         | 0.77 ± 0.05 0.79 ± 0.01 0.74 ± 0.01 0.73 ± 0.01 0.61 ± 0.02 0.61 ± 0.02 0.43 ± 0.14 0.16 ± 0.04 0.16 ± 0.04
FedCLS        | 0.77 ± 0.01 0.79 ± 0.01 0.74 ± 0.01 0.72 ± 0.01 0.58 ± 0.05 0.53 ± 0.03 0.42 ± 0.14 0.10 ± 0.02 0.10 ± 0.03
CFL           | 0.81 ± 0.01 0.79 ± 0.01 0.74 ± 0.01 0.77 ± 0.01 0.62 ± 0.01 0.64 ± 0.01 0.81 ± 0.01 0.61 ± 0.02 0.59 ± 0.02
FedSoft       | 0.81 ± 0.01 0.74 ± 0.02 0.71 ± 0.01 0.71 ± 0.01 0.46 ± 0.01 0.46 ± 0.04 0.81 ± 0.01 0.33 ± 0.02 0.28 ± 0.02
Clust-PSI-PFL | 0.86 ± 0.01 0.83 ± 0.01 0.80 ± 0.01 0.83 ± 0.01 0.84 ± 0.01 0.83 ± 0.01 0.86 ± 0.01 0.98 ± 0.01 0.98 ± 0.01
"""  # noqa: E501

# Clust-PSI-PFL, Table III, the row CL of each dataset.
CENTRALISED = {
    "acs_income": [0.76, 0.02],
    "serengeti": [0.96, 0.01],
    "fmnist": [0.90, 0.02],
    "cifar10": [0.84, 0.02],
    "sentiment140": [0.74, 0.01],
}

# FMCL, Table 1, in percent: accuracy, F1, AUC.
TABLE_1 = {
    "fmcl_busi": """
FedAvg            | 56.34 ± 0.90 24.82 ± 1.38 59.58 ± 2.79
FedProx           | 56.18 ± 0.71 24.39 ± 0.68 58.55 ± 2.19
CFL               | 56.18 ± 0.71 24.38 ± 0.96 61.06 ± 3.20
PACFL             | 57.25 ± 0.67 27.87 ± 2.03 61.89 ± 3.86
PACFL (FM)        | 69.86 ± 8.80 51.69 ± 13.45 72.87 ± 10.27
FECFL             | 61.04 ± 4.21 44.08 ± 9.22 72.11 ± 6.52
FECFL (FM)        | 73.15 ± 6.07 56.27 ± 8.89 75.09 ± 4.16
FMCL (no overlap) | 90.12 ± 5.21 84.34 ± 13.30 94.44 ± 1.62
FMCL              | 91.43 ± 2.59 88.41 ± 5.52 93.93 ± 1.36
FMCL (Auto-K)     | 91.68 ± 2.52 88.72 ± 5.61 95.87 ± 2.03
""",
    "fmcl_lunghist700": """
FedAvg            | 48.38 ± 6.34 32.03 ± 9.21 73.88 ± 4.09
FedProx           | 48.10 ± 4.67 32.81 ± 7.59 74.72 ± 4.15
CFL               | 48.66 ± 6.18 32.42 ± 8.73 73.96 ± 4.96
PACFL             | 51.51 ± 4.21 38.25 ± 4.70 74.46 ± 3.60
PACFL (FM)        | 65.07 ± 8.56 62.80 ± 12.67 82.34 ± 6.13
FECFL             | 53.45 ± 3.74 42.40 ± 4.15 75.90 ± 4.72
FECFL (FM)        | 81.09 ± 8.41 81.06 ± 7.22 91.04 ± 5.38
FMCL (no overlap) | 87.65 ± 5.20 84.48 ± 8.36 94.92 ± 1.51
FMCL              | 90.97 ± 2.12 90.01 ± 2.75 96.27 ± 1.26
FMCL (Auto-K)     | 91.71 ± 2.66 90.94 ± 3.30 96.51 ± 1.00
""",
    "fmcl_imagenette": """
FedAvg            | 57.62 ± 3.13 55.61 ± 3.44 91.00 ± 0.65
FedProx           | 55.84 ± 3.95 53.24 ± 4.81 90.54 ± 1.07
CFL               | 56.79 ± 4.07 54.49 ± 5.16 90.80 ± 1.12
PACFL             | 64.79 ± 4.81 63.44 ± 4.95 93.00 ± 1.32
PACFL (FM)        | 68.38 ± 4.19 68.00 ± 4.91 94.23 ± 1.37
FECFL             | 54.91 ± 3.72 54.22 ± 3.37 89.22 ± 1.08
FECFL (FM)        | 69.99 ± 0.48 68.55 ± 0.15 94.37 ± 0.36
FMCL (no overlap) | 71.48 ± 2.39 70.47 ± 2.15 95.26 ± 0.67
FMCL              | 73.23 ± 0.98 72.93 ± 1.12 95.78 ± 0.09
FMCL (Auto-K)     | 83.10 ± 1.77 82.82 ± 1.91 97.58 ± 0.51
""",
}
KEYS = ("global_accuracy", "pooled_macro_f1", "pooled_auc")
FIGURES = {
    "global_accuracy", "mean_client_accuracy", "balanced_accuracy", "ad", "sdad", "was", "wadb", "rand_index",
    "num_clusters", "share_weighted_accuracy", "pooled_macro_f1", "pooled_auc",
}  # fmt: skip


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("published_rows")


def rows_of(page: str) -> dict[str, list[list[float]]]:
    """Read the pairs of each line, by the name before the bar."""
    lines = [line.split("|") for line in page.strip().splitlines()]
    pairs = {name.strip(): re.findall(r"([\d.]+) ± ([\d.]+)", figures) for name, figures in lines}
    return {name: [[float(mean), float(spread)] for mean, spread in row] for name, row in pairs.items()}


def test_the_whole_table_of_fashion_mnist_as_printed(published: ModuleType) -> None:
    tables = published.tables_of("clust_psi_pfl_fmnist")
    named = {
        "CL": "centralised", "FedAvg": "fedavg", "FedProx": "fedavg/fedprox", "FedAvgM": "fedavg/fedavgm",
        "FedAdagrad": "fedavg/fedadagrad", "FedYogi": "fedavg/fedyogi", "FedAdam": "fedavg/fedadam",
        "PoC": "fedavg/poc", "HACCS": "fedavg/haccs", "FedCLS": "fedavg/fedcls", "CFL": "cfl",
        "FedSoft": "fedsoft", "Clust-PSI-PFL": "clust_psi_pfl",
    }  # fmt: skip
    assert list(tables["rows"]) == list(named) == list(rows_of(TABLE_III))
    for title, page in rows_of(TABLE_III).items():
        if title == "CL":
            assert tables["figures"]["centralised"]["global_accuracy"] == page[0]
        else:
            assert tables["by_setting"][named[title]]["global_accuracy"] == page


@pytest.mark.parametrize("name", CENTRALISED)
def test_one_figure_of_the_pooled_data_for_all_columns(published: ModuleType, name: str) -> None:
    figures = published.tables_of(f"clust_psi_pfl_{name}")["figures"]
    assert figures == {"centralised": {"global_accuracy": CENTRALISED[name]}}


@pytest.mark.parametrize("experiment", TABLE_1)
def test_the_whole_of_fmcls_table_as_printed(published: ModuleType, experiment: str) -> None:
    page, tables = rows_of(TABLE_1[experiment]), published.tables_of(experiment)
    assert list(tables["rows"]) == list(page)
    columns = tables["settings"]
    clusters = {"strategy.parameters.num_clusters": 5 if experiment == "fmcl_imagenette" else 3}
    overlap, source = "strategy.parameters.overlap", "strategy.parameters.input"
    places = {
        "FMCL (Auto-K)": ("fmcl", {overlap: True, "strategy.parameters.num_clusters": None}),
        "FMCL": ("fmcl", {overlap: True, **clusters}),
        "FMCL (no overlap)": ("fmcl", {overlap: False, **clusters}),
        "PACFL": ("pacfl", {source: "pixels", **clusters}),
        "PACFL (FM)": ("pacfl", {source: "encoder", **clusters}),
        "FECFL": ("fecfl", {source: "untrained", **clusters}),
        "FECFL (FM)": ("fecfl", {source: "encoder", **clusters}),
    }
    whole = {"FedAvg": "fedavg", "FedProx": "fedavg/fedprox", "CFL": "cfl"}
    assert set(page) == set(places) | set(whole)
    for title, figures in page.items():
        for key, pair in zip(KEYS, figures, strict=True):
            if title in whole:
                found = tables["figures"][whole[title]][key]
            else:
                method, column = places[title]
                found = tables["by_setting"][method][key][columns.index(column)]
            assert found == pytest.approx([value / 100 for value in pair], abs=1e-12)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "experiment").glob("*.yaml")))
def test_figures_are_fractions_and_pairs(published: ModuleType, name: str) -> None:
    tables = published.tables_of(name)
    assert tables["source"]
    everywhere, columns = tables.get("figures", {}), tables.get("by_setting", {})
    assert {len(values) for row in columns.values() for values in row.values()} <= {
        len(tables.get("settings", []))
    }
    figures = [
        *((key, value) for row in everywhere.values() for key, value in row.items()),
        *((key, value) for row in columns.values() for key, values in row.items() for value in values),
    ]
    assert figures
    for key, value in figures:
        assert key in FIGURES
        mean, spread = value if isinstance(value, list) else (value or 0.0, 0.0)
        assert spread >= 0
        assert {"was": -1}.get(key, 0) <= mean <= (1 if key not in ("num_clusters", "wadb") else 40)


@pytest.mark.parametrize(
    ("setting", "figures"),
    [
        # Table III at alpha 0.05 and S 0.03, and FedAvg's in the row of a selection.
        ({"partition": {"alpha": 0.05}}, {"clust_psi_pfl": [0.83, 0.01], "fedavg": [0.68, 0.03]}),
        ({"choices": {"selection": "uniform"}, "partition": {"alpha": 0.05}}, {"fedavg": [0.68, 0.03]}),
        ({"choices": {"selection": "haccs"}, "partition": {"alpha": 0.05}}, {"fedavg": [0.61, 0.02]}),
        ({"choices": {"aggregator": "fedavgm"}, "partition": {"alpha": 0.05}}, {"fedavg": [0.57, 0.02]}),
        (
            {"choices": {"partition": "similarity"}, "partition": {"similarity": 0.03}},
            {"clust_psi_pfl": [0.98, 0.01], "fedavg": [0.74, 0.01]},
        ),
        ({"choices": {"partition": "similarity"}, "partition": {"alpha": 0.05}}, {}),
        ({"partition": {"alpha": "0.05"}}, {}),
        ({"choices": {"aggregator": "fedavgm", "selection": "haccs"}, "partition": {"alpha": 0.05}}, {}),
    ],
)
def test_the_figures_of_a_setting(
    published: ModuleType, setting: dict[str, Any], figures: dict[str, Any]
) -> None:
    choices = {"experiment": "clust_psi_pfl_fmnist", "partition": "dirichlet_fedartml"}
    config = {"partition": setting["partition"], "choices": choices | setting.get("choices", {})}
    found = published.published_for(config).get("figures", {})
    assert {method: found[method]["global_accuracy"] for method in figures} == figures
    assert figures or found.keys() <= {"centralised"}
    assert published.published_for({"choices": {}}) == {}


def test_the_method_of_a_preset(published: ModuleType) -> None:
    assert published.row_of("fedgwc_paper", ["fed", "fedgwc"]) == "fedgwc"
    assert published.row_of("fedgwcx", ["fedgwc"]) is None
