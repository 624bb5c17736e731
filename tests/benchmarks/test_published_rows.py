"""The tables of the papers, as printed there, and what of them stands beside a run."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedclust.settings.composition import CONF, compose, plain

SCRIPT = "published_rows"

# Of the papers' tables, by experiment: name of a row, a bar, and its means ± standard deviations.
_PRINTED = Path(__file__).with_name("tables_as_printed.txt").read_text(encoding="utf-8")
PRINTED = {part[: part.index("]")]: part[part.index("]") + 1 :] for part in _PRINTED.split("\n[")[1:]}

KEYS = ("global_accuracy", "pooled_macro_f1", "pooled_auc")
FIGURES = {
    "global_accuracy", "mean_client_accuracy", "balanced_accuracy", "ad", "sdad", "was", "wadb", "rand_index",
    "num_clusters", "share_weighted_accuracy", "pooled_macro_f1", "pooled_auc",
}  # fmt: skip


def rows_of(page: str) -> dict[str, list[list[float]]]:
    """Read the pairs of each line, by the name before the bar."""
    lines = [line.split("|") for line in page.splitlines() if "|" in line]
    pairs = {name.strip(): re.findall(r"([\d.]+) ± ([\d.]+)", figures) for name, figures in lines}
    return {name: [[float(mean), float(spread)] for mean, spread in row] for name, row in pairs.items()}


def test_the_whole_table_of_fashion_mnist_as_printed(script: ModuleType) -> None:
    tables = script.tables_of("clust_psi_pfl_fmnist")
    named = {
        "CL": "centralised", "FedAvg": "fedavg", "FedProx": "fedavg/fedprox", "FedAvgM": "fedavg/fedavgm",
        "FedAdagrad": "fedavg/fedadagrad", "FedYogi": "fedavg/fedyogi", "FedAdam": "fedavg/fedadam",
        "PoC": "fedavg/poc", "HACCS": "fedavg/haccs", "FedCLS": "fedavg/fedcls", "CFL": "cfl",
        "FedSoft": "fedsoft", "Clust-PSI-PFL": "clust_psi_pfl",
    }  # fmt: skip
    assert list(tables["rows"]) == list(named) == list(rows_of(PRINTED["clust_psi_pfl_fmnist"]))
    for title, page in rows_of(PRINTED["clust_psi_pfl_fmnist"]).items():
        if title == "CL":
            assert tables["figures"]["centralised"]["global_accuracy"] == page[0]
        else:
            assert tables["by_setting"][named[title]]["global_accuracy"] == page


@pytest.mark.parametrize(("name", "printed"), rows_of(PRINTED["clust_psi_pfl, CL"]).items())
def test_one_figure_of_the_pooled_data_for_all_columns(
    script: ModuleType, name: str, printed: list[list[float]]
) -> None:
    figures = script.tables_of(f"clust_psi_pfl_{name}")["figures"]
    assert figures == {"centralised": {"global_accuracy": printed[0]}}


@pytest.mark.parametrize("experiment", [name for name in PRINTED if name.startswith("fmcl")])
def test_the_whole_of_fmcls_table_as_printed(script: ModuleType, experiment: str) -> None:
    page, tables = rows_of(PRINTED[experiment]), script.tables_of(experiment)
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
def test_figures_are_fractions_and_pairs(script: ModuleType, name: str) -> None:
    tables = script.tables_of(name)
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
def test_the_figures_of_a_setting(script: ModuleType, setting: dict, figures: dict) -> None:
    choices = {"experiment": "clust_psi_pfl_fmnist", "partition": "dirichlet_fedartml"}
    config = {"partition": setting["partition"], "choices": choices | setting.get("choices", {})}
    found = script.published_for(config).get("figures", {})
    assert {method: found[method]["global_accuracy"] for method in figures} == figures
    assert figures or found.keys() <= {"centralised"}
    assert script.published_for({"choices": {}}) == {}


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ("fedgwc_cifar100 strategy=ifca strategy.parameters.num_clusters=5", {}),
        (
            "fedgwc_cifar100 strategy=ifca strategy.parameters.num_clusters=5 strategy.parameters.restarts=3",
            {"strategy.parameters.restarts": [3, 1]},
        ),
        (
            "fedgwc_cifar100 strategy=cfl strategy.parameters.relative=true "
            "strategy.parameters.min_silhouette=0.45 rounds=100",
            {
                "strategy.parameters.relative": [True, False],
                "strategy.parameters.min_silhouette": [0.45, None],
                "rounds": [100, 20000],
            },
        ),
        # Clust-PSI-PFL's Table II has the row's own values: momentum 0.7, γ 0.5.
        (
            "clust_psi_pfl_fmnist strategy=fedavg aggregator=fedavgm",
            {"aggregator.server_momentum": [0.9, 0.7]},
        ),
        (
            "clust_psi_pfl_fmnist strategy=cfl strategy.parameters.eps_1=1e-5 strategy.parameters.eps_2=0.1 "
            "partition.alpha=0.05 dataset.path=there",
            {"strategy.parameters.gamma_max": [0.0, 0.5]},
        ),
        ("fmcl_imagenette encoder.path=there strategy.parameters.num_clusters=5", {}),
    ],
)
def test_what_a_run_has_otherwise_than_the_papers(
    script: ModuleType, overrides: str, changes: dict[str, Any]
) -> None:
    config = plain(compose(f"experiment={overrides}".split()))
    assert script.published_for(config)["changes"] == changes


def test_the_method_of_a_preset(script: ModuleType) -> None:
    assert script.row_of("fedgwc", ["fed", "fedgwc"]) == "fedgwc"
    assert script.row_of("fedgwcx", ["fedgwc"]) is None
