"""First rules of a site, and what leaves under them."""

import re
from pathlib import Path

import pytest

from fedclust.data.sites.rules import OURS, Rules
from fedclust.runs.check import main
from tests.fedclust.runs.test_check import example_table, write_tables


def test_first_rules_are_written_and_a_run_is_rehearsed_under_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = example_table(120, 1).assign(patient_id=[f"P{row}" for row in range(120)])
    (file,), rules = write_tables(tmp_path, patients=table), tmp_path / "site.toml"
    asked = [file, "--target", "y", "--ignore", "patient_id", "--rules", str(rules)]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert f"  {rules}: written, edit it as you like" in printed.splitlines()
    assert Rules.read(rules) == Rules(labels=("y",), inputs=("age", "sex"), groups=(), min_cell=10)
    # What the comments offer are rules, too.
    (offered := tmp_path / "all.toml").write_text(
        re.sub("^# (?=[a-z_]+ = )", "", rules.read_text(), flags=re.M)
    )
    assert Rules.read(offered) == Rules(
        **{"labels": ("y",), "inputs": ("age", "sex"), "groups": (), "min_cell": 10, "questions": OURS},
        **{"methods": ("auto", "fedavg"), "layers": ("prior",), "encoders": ("random",)},
        **{"rounds_per_day": 200, "clip": 1.0, "noise": 0.01, "patient_clip": 1.0, "patient_noise": 1.0},
        patient_epsilon=10.0,
        patient="patient_id",
    )
    sizes = dict(re.findall(r"^    (\w+): (?:\d+ times, )?([\d,]+) bytes: \S", printed, re.M))
    assert {"clients", "statement", "description", "train", "evaluate"} <= sizes.keys()
    # The network has 3 inputs, of age and both sexes, 64 hidden units and 2 classes; coalitions have more.
    assert int(sizes["train"].replace(",", "")) > 4 * (3 * 64 + 64 + 64 * 2 + 2)
    assert "P11" not in printed
    # Rules that are there are kept, and hold; a rehearsal does not count.
    monkeypatch.setenv("FEDCLUST_ACCOUNTS", str(tmp_path / "accounts"))
    rules.write_text("rounds_per_day = 9\n")
    assert main(asked) == 0
    assert "    train: " in capsys.readouterr().out
    assert not (tmp_path / "accounts").exists()
    rules.write_text('labels = ["sex"]\n')
    main(asked)
    printed = capsys.readouterr().out
    assert 'rules: labels = ["sex"]; min_cell = 5' in printed
    assert "the run ends: " in printed
    assert "dataset.label must be allowed by the site's rules, got y" in printed
