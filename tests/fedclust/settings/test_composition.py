from pathlib import Path

import hydra
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fedclust.settings.allowed import from_run_config, node_settings
from fedclust.settings.composition import (
    CONF,
    ConfigError,
    build,
    compose,
    fill,
    join_overrides,
    plain,
    split_overrides,
    to_run_config,
    with_strategy,
)
from fedclust.support.hydra_versions import VERSION_BASE

# tests/strategies/test_contract.py has every strategy, test_aggregators.py every aggregator,
# test_experiments.py every experiment, test_configurations.py every dataset, and test_choices.py all others.
OF_TEXTS = ("model=embedding_dense", "model=embedding_lstm", "model=bilstm_tagger")
GROUPS = ("encoder", "model", "tracker")
CHOICES = [f"{group}={path.stem}" for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here Hydra composes every time anew."""
    monkeypatch.setattr("tests.compositions.active", False)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes(choice: str) -> None:
    config = compose([choice, *["dataset=sentiment140"] * (choice in OF_TEXTS)])
    group, _, name = choice.partition("=")
    assert config.choices[group] == name
    OmegaConf.to_container(config, resolve=True)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stratgy=fedavg", "unknown key 'stratgy': did you mean 'strategy'. there is"),
        ("strategy=fedawg", "strategy must be one of .*fedavg.*fedgwc.*, got 'fedawg'"),
        ("round=3", "unknown key 'round': did you mean 'rounds'?"),
        ("strategy.parameters.kernel_with=1", "kernel_with"),
        ("aggregator.foo=1", "unknown key 'aggregator.foo': aggregator=fedavg has .*min_train_nodes"),
        (
            "seed=0,1",
            r"seed must have one value, got 0,1: fedclust -m seed=0,1 runs each, seed=\[…\] is one list",
        ),
        ("seed", "override 'seed' does not parse"),
        ("partition.alhpa=0.1", "alhpa"),
    ],
)
def test_a_misspelt_name_is_one_line_that_lists_the_valid_ones(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        compose([override])
    assert "\n" not in str(error.value)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with a strategy and an experiment of the user's own."""
    (tmp_path / "strategy").mkdir()
    preset = "defaults: [/strategy/fmcl@_here_, _self_]\nparameters: {max_clusters: 4}\n"
    (tmp_path / "strategy" / "mine.yaml").write_text(preset)
    (tmp_path / "all.yaml").write_text("defaults: [config, _self_]\nrounds: 7\n")
    return tmp_path


def test_a_folder_of_the_users_own(mine: Path) -> None:
    for config in (
        compose(["strategy=mine"], searchpath=[str(mine)]),
        compose(["strategy=mine", f"hydra.searchpath=[{mine}]"]),
        compose(["strategy=mine", f"hydra.searchpath=[file://{mine}]"]),
    ):
        assert config.strategy.parameters.max_clusters == 4
        assert config.searchpath == [str(mine)]
    beside = with_strategy(compose([f"hydra.searchpath=[{mine}]"]), "mine")
    assert beside.strategy.parameters.max_clusters == 4
    assert "searchpath" not in compose()
    compose(["strategy=mine"], searchpath=[str(mine)])
    with hydra.initialize_config_dir(str(CONF), **VERSION_BASE):  # a Hydra that somebody else starts
        assert "mine" not in GlobalHydra.instance().config_loader().get_group_options("strategy")


def test_a_slip_beside_a_folder_of_the_users_own(mine: Path) -> None:
    with pytest.raises(ConfigError, match="strategy must be one of .*fmcl, .*mine, .*got 'min'"):
        compose(["strategy=min", f"hydra.searchpath=[{mine}]"])
    with pytest.raises(ConfigError, match="did you mean 'max_clusters'"):
        compose(["strategy=mine", "strategy.parameters.max_cluster=3"], searchpath=[str(mine)])
    with pytest.raises(ConfigError, match="^hydra.searchpath must name a folder that exists, got none_such$"):
        compose(["hydra.searchpath=[none_such]"])
    with pytest.raises(ConfigError, match="^--config-dir must name a folder that exists, got none_such$"):
        compose(searchpath=["none_such"])


def test_another_configuration_to_start_from(mine: Path) -> None:
    assert compose(searchpath=[str(mine)], name="all").rounds == 7
    with pytest.raises(ConfigError, match="^--config-name must be config or a file of .*, got 'foo'$"):
        compose(name="foo")


def test_keys_are_those_of_the_choice() -> None:
    with pytest.raises(ConfigError, match="did you mean 'alpha'. partition=dirichlet has .*min_samples"):
        compose(["partition=dirichlet", "partition.alhpa=0.1"])
    # Dirichlet takes `self_balancing`, the default partition does not.
    with pytest.raises(
        ConfigError, match="unknown key 'partition.self_balancing': partition=conventions has .*groups"
    ):
        compose(["partition.self_balancing=true"])
    with pytest.raises(ConfigError, match="unknown key 'partition.groups': .*partition=iid has file, "):
        compose(["dataset=csv", "dataset.path=a.csv", "partition.groups=2"])  # which choose iid


def test_the_network_has_the_shape_of_what_it_is_trained_on() -> None:
    assert plain(compose(["model=linear"]).model)["input_shape"] == [1, 8, 8]
    encoded = ["model=linear", "features=encoder", "encoder=random", "encoder.dimension=12"]
    assert plain(compose(encoded).model)["input_shape"] == [12]
    texts = compose([*encoded, "dataset=sentiment140", "strategy=fedgmcc"])
    assert plain(texts.strategy)["vocabulary_size"] is None  # embeddings are no tokens
    assert plain(texts.encoder)["vocabulary_size"] > 0
    own = compose([*encoded, "dataset=image_folder", "partition=own"])  # what the sites will state
    assert OmegaConf.is_missing(own.features, "input_shape")
    filled = fill(own, {"features.input_shape": [12], "dataset.num_classes": 3})
    assert (filled.model.input_shape, filled.model.num_classes) == ([12], 3)
    with pytest.raises(ConfigError, match="^encoder transformers: path must be .*there is no such folder"):
        plain(compose([*encoded[:2], "encoder=transformers", "encoder.path=/nowhere"]).model)


@pytest.mark.parametrize(
    ("about", "outputs"), [([], 10), (["target=amounts"], 1), (["event=died"], 8), (["target=classes"], 10)]
)
def test_a_network_has_as_many_outputs_as_what_is_predicted_needs(about: list[str], outputs: int) -> None:
    chosen = [f"dataset.{each}" for each in ("num_classes=10", "input_shape=[3]", *about)]
    for model in "linear", "mlp":
        config = compose(["dataset=csv", f"model={model}", *chosen])
        assert plain(config.model)["num_classes"] == outputs


def test_what_must_be_given_is_named() -> None:
    incomplete = compose(["dataset=csv", "dataset.num_classes=???", "dataset.input_shape=???"])
    said = (
        "^dataset.num_classes, dataset.input_shape must be given; fedclust help dataset=csv says what it is$"
    )
    with pytest.raises(ConfigError, match=said):
        to_run_config(incomplete)
    with pytest.raises(ConfigError, match=said):
        plain(incomplete)
    with pytest.raises(ConfigError, match=said):
        from_run_config({"overrides": "dataset=csv dataset.num_classes=??? dataset.input_shape=???"})


def test_sizes_that_are_read_from_the_data_reach_a_strategy_that_has_a_network(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("age,dose,y\n1,2,a\n3,4,b\n5,7,c\n")
    node = compose(["strategy=fedgmcc", "dataset=csv", f"dataset.path={file}", "dataset.label=y"]).strategy
    made = build(node, _partial_=True).keywords
    assert list(made["input_shape"]) == [2]
    assert made["network"](torch.zeros(1, 2)).shape == (1, 3)


def test_a_constructors_error_keeps_its_message() -> None:
    with pytest.raises(ConfigError, match="^learning_rate must be > 0 and finite, got -1$"):
        build(compose(["training.learning_rate=-1"]).training)
    with pytest.raises(ConfigError, match="fedclust.none_such"):
        build({"_target_": "fedclust.none_such"})


def test_another_strategy_has_its_own_defaults_and_nothing_else_changes() -> None:
    config = compose(["strategy=fedgwc_released", "strategy.parameters.kernel_width=4", "seed=3"])
    other = with_strategy(config, "fedgwc")
    assert other.choices.strategy == "fedgwc"
    assert other.strategy.parameters.kernel_width == 0.5
    assert other.seed == 3
    assert config.strategy.parameters.kernel_width == 4
    with pytest.raises(ConfigError, match="strategy must be one of"):
        with_strategy(config, "none_such")


def test_another_strategy_has_what_the_experiment_sets_for_it() -> None:
    other = with_strategy(compose(["experiment=fedgwc_landmarks", "strategy=fedavg"]), "fedgwc")
    assert other.strategy.parameters.cohort_size == 10


def test_a_run_config_carries_the_composed_configuration() -> None:
    config = compose(["seed=5", "partition.num_clients=7"])
    carried = from_run_config(to_run_config(config))
    assert carried == OmegaConf.create(OmegaConf.to_container(config, resolve=True))


def test_a_run_config_carries_overrides() -> None:
    config = from_run_config({"overrides": "seed=5 compare=[fmcl, fedavg] partition.num_clients=7"})
    assert (config.seed, config.partition.num_clients) == (5, 7)
    assert list(config.compare) == ["fmcl", "fedavg"]


def test_one_strategy_to_compare_with_is_a_list_of_one() -> None:
    # What reads a run's config.yaml, such as its page, finds a list.
    assert compose(["strategy=fmcl", "compare=fedavg"]).compare == ["fedavg"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("  a=1   b.c=x ", ["a=1", "b.c=x"]),
        ("compare=[a, b] seed=1", ["compare=[a, b]", "seed=1"]),
        ("name='two words' x=1", ["name='two words'", "x=1"]),
    ],
)
def test_overrides_in_one_string(text: str, parts: list[str]) -> None:
    assert split_overrides(text) == parts


@pytest.mark.parametrize("parts", [[], ["a=1"], ["compare=[a, b]", "name='two words'", "+x={y: 1}"]])
def test_joined_overrides_split_again(parts: list[str]) -> None:
    assert split_overrides(join_overrides(parts)) == parts


def test_white_space_that_would_split_an_override_is_refused() -> None:
    with pytest.raises(ConfigError, match="white space in quotes only, got 'name=two words'"):
        join_overrides(["a=1", "name=two words"])


def test_node_settings_ignore_what_nodes_do_not_use() -> None:
    first = node_settings(to_run_config(compose(["strategy=fedavg", "rounds=3"])))
    second = node_settings(to_run_config(compose(["strategy=fedavg", "rounds=3", "compare=[]", "timeout=5"])))
    other = node_settings(to_run_config(compose(["strategy=fedavg", "rounds=3", "seed=1"])))
    assert first == second
    assert hash(first) == hash(second)
    assert first != other
    assert first["seed"] == 0


@pytest.mark.parametrize(
    "override", ["partition={}", "+partition@partition.base={}", "strategy='{}'", "hydra/job_logging={}"]
)
def test_a_choice_is_a_name_and_never_a_path(override: str, tmp_path: Path) -> None:
    (tmp_path / "credentials.yaml").write_text("db: {password: canary}", encoding="utf-8")
    up = "../" * (len(CONF.resolve().parts) + 2) + str(tmp_path / "credentials").lstrip("/")
    for path in (up, f"iid/../{up}", str(tmp_path / "credentials"), f"file://{tmp_path}/credentials"):
        with pytest.raises(ConfigError) as refused:
            compose([override.format(path), "++partition._target_=fedclust.data.partitioners.Iid"])
        assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "partition"),
    [
        (["dataset=csv"], "iid"),
        (["dataset=csv", "dataset.natural=hospital"], "natural"),
        (["dataset=image_folder"], "iid"),
        (["dataset=csv", "partition=conventions"], "conventions"),
        (["dataset=csv", "partition=own"], "own"),
        (["dataset=digits"], "conventions"),
        ([], "conventions"),
    ],
)
def test_data_of_the_users_own_keep_their_labels(overrides: list[str], partition: str) -> None:
    assert compose(overrides).choices.partition == partition


def test_a_users_own_dataset_file_keeps_its_labels(tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "mine.yaml").write_text("defaults: [csv]\nnatural: ward\n")
    config = compose(["dataset=mine"], searchpath=[str(tmp_path)])
    assert config.choices.partition == "natural"
    assert config.overrides == ["dataset=mine", "partition=natural"]


def test_a_configuration_of_the_users_own_keeps_its_partition(tmp_path: Path) -> None:
    text = "defaults: [config, {override dataset: csv}, {override partition: conventions}, _self_]\n"
    (tmp_path / "mine.yaml").write_text(text)
    config = compose([], searchpath=[str(tmp_path)], name="mine")
    assert (config.choices.dataset, config.choices.partition) == ("csv", "conventions")
