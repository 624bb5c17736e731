from pathlib import Path

import pytest

from fedclust.settings.checks import check, check_built, run_settings
from fedclust.settings.composition import ConfigError, build_strategy, compose
from fedclust.settings.run_options import RunOptions
from fedclust.strategies import ClusteredStrategy


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rounds=0", "rounds must be >= 1, got 0"),
        ("rounds=many", "rounds must be a whole number, got 'many'"),
        ("rounds=1.5", "rounds must be a whole number, got 1.5"),
        ("rounds=1e1", "rounds must be a whole number, got 10.0"),
        ("seed=1.0", "seed must be a whole number, got 1.0"),
        ("seed=-1", "seed must be >= 0, got -1"),
        ("rounds=null", "rounds must be a whole number, got None"),
        ("participation=null", "participation must be a number, got None"),
        ("participation=0", r"participation must be in \(0, 1\], got 0"),
        ("participation=1.1", r"participation must be in \(0, 1\], got 1.1"),
        ("evaluate_every=0", "evaluate_every must be >= 1"),
        ("evaluate_clients=1.5", "evaluate_clients must be a whole number >= 1 or a share"),
        ("drift_every=-1", "drift_every must be >= 0, got -1"),
        ("update_norm_cap=1", "update_norm_cap must be > 1"),
        ("update_pull_cap=true", "update_pull_cap must be a number or null, got True"),
        ("checkpoint_every=-1", "checkpoint_every must be rounds >= 0, or a time"),
        ("keep_matrices=yes", "keep_matrices must be True or False or auto, got 'yes'"),
        ("save_predictions=1", "save_predictions must be true or false, got 1"),
        ("min_clients=0", "min_clients must be >= 1 or null, got 0"),
        ("wait=0", "wait must be > 0"),
        ("timeout=0", "timeout must be > 0"),
        ("task=think", "task must be train or advise or inspect or partition, got 'think'"),
    ],
)
def test_settings_of_the_run(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        run_settings(compose([override]))


@pytest.mark.parametrize(
    ("text", "names"),
    [("fedavg", ("fedavg",)), ("[fmcl,fedavg]", ("fmcl", "fedavg")), ("[]", ()), ("null", ())],
)
def test_what_to_compare_with(text: str, names: tuple[str, ...]) -> None:
    assert run_settings(compose([f"compare={text}"])).compare == names


def test_a_strategy_is_given_in_their_ranges_what_the_run_tells_it() -> None:
    with pytest.raises(ValueError, match=r"participation must be in \(0, 1\], got 0.0"):
        ClusteredStrategy(participation=0.0)
    with pytest.raises(ValueError, match="participation must be given once"):
        ClusteredStrategy(options=RunOptions(), participation=0.5)
    assert build_strategy(compose(["strategy=fedavg"]).strategy, RunOptions(seed=3)).seed == 3


def test_a_value_is_given_once(tmp_path: Path) -> None:
    said = r"^strategy.participation must not be given, it belongs to the run: participation=0.1$"
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "mine.yaml").write_text("defaults: [fedavg, _self_]\nparticipation: 0.1\n")
    for overrides in (
        ["strategy=fedavg", "+strategy.participation=0.1"],
        ["strategy=mine"],
        ["compare=[mine]"],
    ):
        config = compose(overrides, searchpath=[str(tmp_path)])
        with pytest.raises(ConfigError, match=said):
            check(config)
    with pytest.raises(ConfigError, match=said):
        build_strategy(compose(["strategy=mine"], searchpath=[str(tmp_path)]).strategy, RunOptions())


def test_the_default_passes() -> None:
    config = compose()
    check(config)
    check_built(config)


def test_a_strategy_to_compare_with_exists() -> None:
    said = r"^compare must name strategies, of .*fedavg.*, got 'fedabg' \(did you mean 'fedavg'"
    with pytest.raises(ConfigError, match=said):
        check(compose(["compare=[fedabg]"]))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["strategy=fedgwc_paper", "strategy.parameters.kernel_width=-1"],
            "kernel_width must be > 0, got -1",
        ),
        (["training.learning_rate=-1"], "learning_rate must be > 0 and finite, got -1"),
        (["+aggregator.no_such=1"], "no_such"),
        (["model._target_=none.such"], "none"),
        (["dataset=csv", "dataset.path=x.csv"], "dataset.input_shape, dataset.num_classes must be given"),
    ],
)
def test_what_a_server_builds(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_built(compose(overrides))
