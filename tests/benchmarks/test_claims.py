"""What runs show of the papers' claims: by hand, from summaries that are written here."""

import dataclasses
import json
import shlex
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

SCRIPT = "claims"


@pytest.mark.parametrize(
    ("differences", "published", "expected"),
    [
        # t of 0.975 with 2 degrees of freedom is 4.303; deviation 0.01: half the interval is 0.0248.
        ([0.09, 0.10, 0.11], 0.19, "shown"),  # at least half of what was published
        ([0.09, 0.10, 0.11], 0.21, "partly"),
        ([0.014, 0.024, 0.034], 0.02, "not shown"),  # -0.0008 to 0.0488
        ([0.015, 0.025, 0.035], 0.02, "shown"),  # 0.0002 to 0.0498
        ([-0.09, -0.10, -0.11], 0.2, "the opposite"),
        ([0.5], 0.1, "not shown"),  # one seed has no interval
    ],
)
def test_a_word_by_hand(
    script: ModuleType, differences: list[float], published: float, expected: str
) -> None:
    assert script.word(differences, published) == expected


def test_the_interval_by_hand(script: ModuleType) -> None:
    np.testing.assert_allclose(
        script.interval([0.09, 0.10, 0.11]), [0.1 - 0.024841, 0.1 + 0.024841], atol=1e-6
    )


def test_every_claim_has_published_figures_that_agree_with_it(script: ModuleType) -> None:
    _, claims = script.read()
    assert len({claim.claim for claim in claims}) == len(claims)
    for claim in claims:
        assert bool(claim.missing) != bool(claim.experiment), claim.claim
        if claim.experiment:
            pair = script.published_of(claim, script.columns_of(script.tables(claim.experiment)))
            if claim.claim.startswith("Figure"):  # curves without numbers
                assert not pair, claim.claim
            elif claim.behind == ("FedAvg", "FedProx", "CFL"):  # the two are level in Table I
                assert pair[0] == pair[1], claim.claim
            else:
                assert claim.signed(pair[0] - pair[1]) > 0, claim.claim


def test_published_figures_by_hand(script: ModuleType) -> None:
    columns = script.columns_of(script.tables("clust_psi_pfl_cifar10"))
    claim = script.Claim(
        "", "", "clust_psi_pfl_cifar10", "global_accuracy", "Clust-PSI-PFL", ("FedAvg", "HACCS")
    )
    chosen = [column for column in columns if column.title in ("alpha=0.3", "similarity=0")]
    # Table III: 0.63 and 0.98; FedAvg 0.52 and 0.10, HACCS 0.62 and 0.11.
    np.testing.assert_allclose(script.published_of(claim, chosen), [(0.63 + 0.98) / 2, (0.62 + 0.11) / 2])


def test_columns_count_once_all_rows_have_run_with_all_seeds(script: ModuleType, tmp_path: Path) -> None:
    figures = {  # by column, row and seed
        "alpha=0.3": {"Clust-PSI-PFL": [0.5, 0.6], "FedAvg": [0.4, 0.3], "HACCS": [0.3, 0.5]},
        "similarity=0": {"Clust-PSI-PFL": [0.9, 0.8], "FedAvg": [0.1, 0.1], "HACCS": [0.2, 0.3]},
        "alpha=50": {"Clust-PSI-PFL": [0.9, 0.9], "FedAvg": [0.1, 0.1]},  # HACCS is to come
    }
    for column, rows in figures.items():
        for row, values in rows.items():
            for seed, value in enumerate(values):
                name = column.replace("=", "-")
                folder = tmp_path / "clust_psi_pfl_cifar10" / name / "clients-own" / row / f"seed-{seed}"
                folder.mkdir(parents=True)
                summary = {"global_accuracy": value, "rounds": 40, "compare": {}}
                (folder / "summary.json").write_text(json.dumps(summary))
    claim = script.Claim(
        "", "ours", "clust_psi_pfl_cifar10", "global_accuracy", "Clust-PSI-PFL", ("FedAvg", "HACCS")
    )
    found = script.measure(claim, tmp_path)
    assert found.columns == ("alpha=0.3", "similarity=0")
    np.testing.assert_allclose(found.ahead, [0.7, 0.7])  # (0.5 + 0.9) / 2, (0.6 + 0.8) / 2
    np.testing.assert_allclose(found.behind, [0.3, 0.4])  # (0.4 + 0.2) / 2, (0.5 + 0.3) / 2
    cells = script.line(claim, "a head", found)
    # Differences 0.4 and 0.3: deviation 0.0707, t = 12.706 with one degree of freedom: ± 0.635.
    assert cells == [
        "ours; 2 of 9 columns (alpha=0.3, similarity=0)", "0.805, 0.365", "a head",
        "0.700 ± 0.000, 0.350 ± 0.071", "–", "+0.350 (-0.285 to +0.985)", "2", "40", "not shown",
    ]  # fmt: skip
    assert script.measure(claim, tmp_path / "elsewhere") is None
    assert script.line(claim, "a head", None)[-1] == "not measured"
    assert (
        script.line(dataclasses.replace(claim, hours=2.5), "a head", None)[-1] == "not measured, about 2.5 h"
    )
    better_below = script.Claim("", "", "", "", "a", ("b", "c"), lower=True)
    assert better_below.lead({"a": 0.1, "b": 0.3, "c": 0.2}) == (0.1, 0.2)
    assert better_below.signed(0.1 - 0.2) == pytest.approx(0.1)


def test_only_runs_of_one_kind_are_compared(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "encoder/clust_psi_pfl_cifar10"
    for row, rounds in {"Clust-PSI-PFL": 40, "FedAvg": 1}.items():
        folder = place / "alpha-0.3/clients-own" / row / "seed-0"
        folder.mkdir(parents=True)
        summary = {"global_accuracy": 0.5, "rounds": rounds, "compare": {}}
        (folder / "summary.json").write_text(json.dumps(summary))
    claim = script.Claim("", "", "clust_psi_pfl_cifar10", "global_accuracy", "Clust-PSI-PFL", ("FedAvg",))
    with pytest.raises(ValueError, match=r"must have one number of rounds, got \[1, 40\]"):
        script.measure(claim, tmp_path / "encoder")
    (place / "provenance.json").write_text(json.dumps({"commits": [], "set": ["rounds=40"]}))
    monkeypatch.setattr("sys.argv", ["claims.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        script.main()
    assert f"--set must be that of the runs in {place}, rounds=40" in capsys.readouterr().err


def test_figures_of_another_kind_are_further_down(script: ModuleType, tmp_path: Path) -> None:
    page, (_, claims) = script.page(tmp_path), script.read()
    below = [claim for claim in claims if claim.below]
    assert len(below) == 5
    assert all(f"| {claim.claim} | – |" in page for claim in below)
    assert page.count(" | further down |") == 5


def test_a_row_without_a_figure_is_not_compared(script: ModuleType, tmp_path: Path) -> None:
    # FedGWC, Table 6, first column: IFCA has one cluster there, so no silhouette.
    for row, figure in {"FedGWC": 0.1, "IFCA": None, "FeSEM": -0.1}.items():
        place = "fedgwc_cifar10_heterogeneity/alphas-100-0-/clients-own"
        folder = tmp_path / place / row / "seed-0"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"was": figure, "rounds": 10, "compare": {}}))
    claim = script.Claim("", "", "fedgwc_cifar10_heterogeneity", "was", "FedGWC", ("IFCA", "FeSEM"))
    found = script.measure(claim, tmp_path)
    assert (found.columns, found.ahead, found.behind) == (("alphas=[100, 0]",), (0.1,), (-0.1,))
    alone = dataclasses.replace(claim, behind=("IFCA",))
    assert script.measure(alone, tmp_path) is None


def test_the_best_round_of_the_mean_stands_beside_the_last(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways, claims = script.read()
    few = [each for each in claims if each.experiment in ("fmcl_imagenette", "clust_psi_pfl_sentiment140")]
    monkeypatch.setattr(script, "read", lambda: (ways, few))
    rounds = {  # by row and seed: FMCL's mean is best in round 2, FedAvg's in round 1
        "FMCL": [[0.2, 0.8, 0.6], [0.4, 0.6, 0.7]], "FedAvg": [[0.5, 0.3, 0.2], [0.3, 0.4, 0.4]],
    }  # fmt: skip
    for row, seeds in rounds.items():
        for seed, values in enumerate(seeds):
            folder = tmp_path / "encoder/fmcl_imagenette/table/clients-own" / row / f"seed-{seed}"
            folder.mkdir(parents=True)
            lines = [{"round": at, "global_accuracy": value} for at, value in enumerate(values, start=1)]
            (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            summary = {"global_accuracy": values[-1], "rounds": 3, "compare": {}}
            (folder / "summary.json").write_text(json.dumps(summary))
            (folder / "config.yaml").write_text("{}")
    claim = script.Claim("", "ours", "fmcl_imagenette", "global_accuracy", "FMCL", ("FedAvg",))
    cells = script.line(claim, "head", script.measure(claim, tmp_path / "encoder"))
    # (0.8 + 0.6) / 2 and (0.5 + 0.3) / 2; in the last round (0.6 + 0.7) / 2 and (0.2 + 0.4) / 2.
    assert cells[3:5] == ["0.650 ± 0.071, 0.300 ± 0.141", "0.700, 0.400"]
    (table,) = [part for part in script.page(tmp_path).split("## ") if part.startswith("FMCL")]
    assert "| 0.650 ± 0.071, 0.300 ± 0.141 | 0.700, 0.400 |" in table
    assert script.page(tmp_path).count("ours, best round") == 1  # FMCL's table alone
    assert script.page(tmp_path / "elsewhere", script.page(tmp_path)) == script.page(tmp_path)  # rows stay
    assert script.page(tmp_path / "elsewhere") != script.page(tmp_path)
    # FedAvg's last accuracies are 0.2 and 0.4: FMCL has them in round 1 of 3, FedAvg in rounds 1 and 2.
    sooner = dataclasses.replace(claim, reach="FedAvg", lower=True)
    found = script.measure(sooner, tmp_path / "encoder")
    np.testing.assert_allclose([found.ahead, found.behind], [[1 / 3, 1 / 3], [1 / 3, 2 / 3]])
    assert script.line(sooner, "head", found)[1:3] == ["–", "head"]
    # FedAvg never has FMCL's 0.6 and 0.7, which FMCL has in rounds 2 and 3.
    later = script.measure(dataclasses.replace(sooner, reach="FMCL"), tmp_path / "encoder")
    np.testing.assert_allclose([later.ahead, later.behind], [[2 / 3, 3 / 3], [1, 1]])
    by_loss = script.Claim("", "", "fmcl_imagenette", "test_loss", "FMCL", ("FedAvg",))  # of no round here
    assert script.measure(by_loss, tmp_path / "encoder") is None


def test_a_command_for_each_experiment_and_network(script: ModuleType) -> None:
    ways, claims = script.read()
    every = script.commands(Path("runs"), ways, claims)
    made = [line for line in every if "paper_table.py" not in line]
    lines = [line for line in every if line not in made]
    pairs = {(way, claim.experiment) for claim in claims if claim.experiment for way in claim.ways}
    assert {tuple(line.split()[2:4]) for line in lines} == {(f"runs/{way}", each) for way, each in pairs}
    assert len(lines) == len(pairs)
    assert [line.split()[1:4] for line in made] == [
        ["benchmarks/sensg.py", "runs/reads-a", "S"],
        ["benchmarks/sensg.py", "runs/reads-r", "R"],
        ["benchmarks/chains.py", "runs/images-20000", "--images"],
    ]
    (line,) = [each for each in lines if "runs/images fedgmcc_emnist62 " in each]
    assert line.endswith("--rows FedGMCC FedAvg FedProx CFL --seeds 0 1 2 --data runs/images-20000")
    start = [line for line in lines if "runs/start" in line]
    assert start
    assert all("fedgwc_cifar" in line and line.endswith("rounds=2000") for line in start)
    (line,) = [each for each in lines if "runs/encoder fedgmcc_emnist62 " in each]
    assert line.startswith(
        "python benchmarks/paper_table.py runs/encoder fedgmcc_emnist62 --rows FedGMCC FedAvg "
    )
    assert "--seeds 0 1 2 --set features=encoder encoder=efficientnet_lite0 model=linear" in line


def test_what_is_run_are_the_rows_of_the_page(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(words: list[str], **_: object) -> SimpleNamespace:
        ran.append(shlex.join(words[1:]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(script.subprocess, "run", run)
    (tmp_path / "reads-a").mkdir()  # made before
    script.run(tmp_path, *script.read())
    assert ran[0].startswith(f"benchmarks/sensg.py {tmp_path}/reads-r R --synthetic")
    assert not any(
        f"{tmp_path}/own fedgwc_cifar100 " in line for line in ran
    )  # 20,000 rounds of its own network
    (first,) = (line for line in ran if f"{tmp_path}/first " in line)
    assert first.endswith("--set rounds=1200 evaluate_every=100")
    (reads,) = (line for line in ran if f"{tmp_path}/reads fedgmcc_sensg_a " in line)
    assert f"--data {tmp_path}/reads-a --set training.optimizer=adam" in reads


def test_readme_has_the_headlines_of_the_page_of_claims(script: ModuleType) -> None:
    page, readme = (script.ROOT / name for name in ("docs/CLAIMS.md", "README.md"))
    assert f"\n{script.headlines(page.read_text())}\n" in readme.read_text()
    assert {claim.paper for claim in script.read()[1] if claim.headline} == {
        "FedGWC",
        "Clust-PSI-PFL",
        "FMCL",
        "FedGMCC",
    }


def test_of_equal_seeds_the_most_rounds_are_the_headline(script: ModuleType) -> None:
    row = "| Table 1, CIFAR-100, more accurate than FedAvg | 0.5, 0.4 | {} | {} | +0.4 | 9 | {} | shown |"
    added = [row.format(*each) for each in [("a", "0.8, 0.4", "20,000"), ("b", "0.9, 0.5", "5,000")]]
    page = "\n".join([(script.ROOT / "docs/CLAIMS.md").read_text(), *added])
    assert "| 0.5, 0.4 | a | 0.8, 0.4 | shown |" in script.headlines(page)


def test_of_equal_seeds_and_rounds_the_least_is_the_headline(script: ModuleType) -> None:
    row = (
        "| Table 1, CIFAR-100, more accurate than FedAvg | 0.5, 0.4 | {} | 0.8, 0.4 | 0.4 | 9 | 30,000 | {} |"
    )
    added = [row.format(*each) for each in [("a", "shown"), ("b", "partly"), ("c", "shown")]]
    page = "\n".join([(script.ROOT / "docs/CLAIMS.md").read_text(), *added])
    assert "| 0.5, 0.4 | b | 0.8, 0.4 | partly |" in script.headlines(page)


def test_a_headline_of_some_columns_says_so(script: ModuleType) -> None:
    claim = "Table 1, CIFAR-100, more accurate than FedAvg; 1 of 3 columns (alpha=1)"
    row = f"| {claim} | 0.5, 0.4 | a | 0.8, 0.4 | +0.4 | 9 | 30,000 | shown |"
    page = "\n".join([(script.ROOT / "docs/CLAIMS.md").read_text(), row])
    name = "FedGWC: more accurate than FedAvg on CIFAR-100; 1 of 3 columns (alpha=1)"
    assert f"\n| {name} | 0.5, 0.4 | a | 0.8, 0.4 | shown |" in script.headlines(page)
