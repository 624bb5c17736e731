"""``task=advise`` from the command to its pictures."""

import json

import pytest

import fedclust
from fedclust.settings.composition import ConfigError
from fedclust.settings.folders import expand

SMALL = ["task=advise", "partition.num_clients=12", "partition.groups=[7,5]"]


def test_advice_on_two_conventions(tmp_path) -> None:
    result = fedclust.run([*SMALL, "seed=3", f"output_dir={tmp_path}/a"])
    kinds = {shift["kind"]: shift["seen"] for shift in result.summary["shifts"]}
    assert kinds == {"label": False, "quantity": False, "feature": False, "concept": True}
    assert result.summary["verdict"]["grouped"]
    assert result.summary["advice"]["overrides"] == ["strategy=fmcl"]
    assert result.summary["update_agreement"]["clients"] == 12
    pictures = {"label_shift", "quantity_skew", "feature_and_concept_shift", "update_agreement"}
    assert pictures <= {path.stem for path in (tmp_path / "a" / "plots").glob("*.png")}
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["advice"]["strategy"] == "fmcl"


def test_what_advise_stands_for() -> None:
    assert expand(["task=advise", "rounds=9"]) == [
        "task=advise", "rounds=9", "strategy=auto", "strategy.parameters.warmup=5",
    ]  # fmt: skip
    assert expand(["seed=1"]) == ["seed=1"]


def test_advise_takes_no_strategy() -> None:
    with pytest.raises(ConfigError, match="strategy must not be given with task=advise, .* got fmcl"):
        expand(["task=advise", "strategy=fmcl"])
    with pytest.raises(ConfigError, match=r"must have compare=\[fedavg\], got compare=\[\]"):
        expand(["task=advise", "compare=[]"])
