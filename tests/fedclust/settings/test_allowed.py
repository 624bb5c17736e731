"""What a server may have a node build."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from omegaconf import OmegaConf

from fedclust.clients.node import Node
from fedclust.grids.local_grid import LocalGrid
from fedclust.settings import allowed
from fedclust.settings.composition import CONF, compose, to_run_config

PLAIN: dict = {"dataset": {"_target_": "fedclust.data.digits.Digits"}, "metrics": {}}
PLAIN["model"] = {"_target_": "fedclust.models.dense.MLP", "widths": [4]}


def _sent(**changes) -> dict[str, str]:
    """Make what comes with a run, with some nodes of the configuration changed."""
    config = json.loads(to_run_config(compose(["rounds=1"]))["config"])
    return {"config": json.dumps({**config, **changes})}


def _context(run_config: dict[str, str], **node_config: str) -> Context:
    return Context(1, 2, {"partition-id": 0, "num-partitions": 1, **node_config}, RecordDict(), run_config)


KEYS = ("dataset", "partition", "model", "training", "loss", "metrics", "encoder")


def test_every_choice_of_ours_is_allowed_and_experiments_build_nothing_else() -> None:
    groups = ("dataset", "partition", "model", "loss", "encoder")
    files = [file for group in groups for file in (CONF / group).glob("*.yaml")]
    assert len(files) > 50
    for file in files:
        allowed.check_allowed({file.parent.name: OmegaConf.to_container(OmegaConf.load(file), resolve=False)})
    loaded = [OmegaConf.load(file) for file in CONF.glob("experiment/**/*.yaml")]
    for config in [compose(), *loaded]:
        plain = OmegaConf.to_container(config, resolve=False)
        allowed.check_allowed({key: plain[key] for key in KEYS if key in plain})


def _touch(path: Path) -> dict:
    return {"_target_": "subprocess.Popen", "args": ["touch", str(path)]}


@pytest.mark.parametrize(
    "place",
    [
        lambda evil: {"dataset": evil},
        lambda evil: {"partition": {"_target_": "fedclust.data.partitioners.Dirichlet", "base": evil}},
        lambda evil: {"model": evil},
        lambda evil: {"model": {"_target_": "torch.nn.Sequential", "_args_": [[evil]]}},
        lambda evil: {"training": evil},
        lambda evil: {"training": {"_target_": "fedclust.training.LocalTraining", "loss": evil}},
        lambda evil: {"encoder": evil},
        lambda evil: {"encoder": {"_target_": "fedclust.models.encoders.CheckpointEncoder", "model": evil}},
        lambda evil: {"metrics": {"f1": evil}},
        lambda evil: {"loss": evil},
    ],
)
def test_no_command_is_run(place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **_: started.append(args))
    with pytest.raises(allowed.NotAllowed, match=r"must be allowed on this node, got .*subprocess\.Popen"):
        Node.of(_context(_sent(**place(_touch(tmp_path / "x")))))
    assert not started


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "builtins.eval", "builtins.exec", "builtins.__import__", "pip.main", "torch.load",
        "torch.hub.load", "pandas.read_pickle", "pickle.loads", "multiprocessing.spawn.spawn_main",
        "torch.multiprocessing.spawn", "hydra.utils.get_class", "hydra.utils.get_method",
        "hydra.utils.get_object", "hydra.utils.instantiate", "hydra.utils.call", "runpy.run_path",
        # What lies behind a name that looks like one of ours.
        "fedclust.data.cache.shutil.rmtree", "fedclust.settings.build", "fedclust.runs.server.make_engine",
        "fedclust.models.dense.nn.Module", "fedclust.grids.superlink.SuperLink",
        "torch.nn.modules.module.os.system", "torch.nn.Linear.__init__", "torch.nn", "fedclust", "",
        " fedclust.models.dense.MLP", "fedclust.models.dense.MLP.__reduce__", "fedclust.data.digits.Digits",
        None, 3, ["fedclust.models.dense.MLP"], {"a": "b"},
    ],
)  # fmt: skip
def test_what_is_not_listed_is_refused(target) -> None:
    with pytest.raises(allowed.NotAllowed):
        allowed.check_allowed({**PLAIN, "model": {"_target_": target, "widths": [4]}})
    nested = {"_target_": "torch.nn.Sequential", "a": [{"b": {"_target_": target}}]}
    with pytest.raises(allowed.NotAllowed):
        allowed.check_allowed({**PLAIN, "model": nested})


def test_only_the_nodes_own_configuration_allows_more() -> None:
    sent = {**PLAIN, "metrics": {"top": {"_target_": "mine.scores.top_two", "_partial_": True}}}
    with pytest.raises(allowed.NotAllowed):
        allowed.check_allowed(sent)
    allowed.check_allowed(sent, "mine.")
    allowed.check_allowed(sent, "yours.f, mine.scores.top_two")
    for other in ("mine", "mine.scores", "mine.scores.top", "min", ".", "ine.", "mine.other."):
        with pytest.raises(allowed.NotAllowed):
            allowed.check_allowed(sent, other)
    context = _context({**_sent(metrics=sent["metrics"]), "allow": allowed.EVERYTHING})
    with pytest.raises(allowed.NotAllowed, match="metrics.top._target_ must be allowed"):
        Node.of(context)


def test_nothing_is_looked_up_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    config = json.loads(_sent()["config"])
    config["dataset"]["path"] = "${oc.env:SECRET}"
    with pytest.raises(allowed.NotAllowed) as caught:
        allowed.node_settings({"config": json.dumps(config)}, "")
    assert "hunter2" not in str(caught.value)
    allowed.check_allowed(
        {"model": {"num_classes": "${dataset.num_classes}", "input_shape": "${num_outputs:}"}}
    )
    for overrides in ("+dataset.path=${oc.env:SECRET}", "hydra.searchpath=[/tmp]", "+hydra.x=1"):
        with pytest.raises(allowed.NotAllowed, match="overrides must not look anything up on this node"):
            allowed.node_settings({"overrides": overrides}, "")


def test_the_methods_of_a_run_are_read_as_it_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run = to_run_config(compose(["strategy=fmcl", "compare=[fedavg,ifca]", "personal=finetune"]))
    assert allowed.chosen(run, "") == (("fmcl", "fedavg", "ifca"), "finetune")
    monkeypatch.setenv("SECRET", "hunter2")
    config = json.loads(run["config"]) | {"compare": ["${oc.env:SECRET}"], "choices": 3}
    assert allowed.chosen({"config": json.dumps(config)}, "") == (("None", "${oc.env:SECRET}"), "none")


@pytest.mark.parametrize(
    "override", ["+defaults_of=elsewhere.Options", "+defaults_of@model=elsewhere.Options", "model={}/model"]
)
def test_a_node_composes_of_its_own_files_and_imports_nothing(override: str, tmp_path, monkeypatch) -> None:
    (tmp_path / "elsewhere.py").write_text("import dataclasses as d; Options = d.make_dataclass('O', ())")
    (tmp_path / "model.yaml").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    override = override.format("../" * 30 + str(tmp_path))
    with pytest.raises(allowed.NotAllowed, match="overrides must not name modules or other files here"):
        allowed.node_settings({"overrides": override}, "")
    assert "elsewhere" not in sys.modules


def test_a_node_composes_what_it_is_told_as_before() -> None:
    told = {"overrides": "rounds=3 model=linear partition.alpha=0.3 partition=dirichlet"}
    assert allowed.node_settings(told, "") == allowed.node_settings(told, allowed.EVERYTHING)
    sent = to_run_config(compose(["rounds=3"]))
    assert allowed.node_settings(sent, "") == allowed.node_settings(sent, allowed.EVERYTHING)


def test_a_process_of_the_users_own_allows_everything() -> None:
    grid = LocalGrid(lambda message, context: message, {})
    (context,) = grid._contexts.values()
    assert allowed.allowed_here(context.node_config) == allowed.EVERYTHING
    assert allowed.allowed_here({"partition-id": 0, "num-partitions": 1}) == ""
    assert allowed.allowed_here({"allow": "mine."}) == "mine."


def test_a_node_lists_the_encoders_that_may_embed_its_data() -> None:
    assert allowed.encoders_here({"name": "north"}) is None
    assert allowed.encoders_here({"encoder": "random, /models/vit"}) == ("random", "/models/vit")
    models = "fedclust.models"
    vit = {"_target_": f"{models}.foundation.TransformersEncoder", "path": "/models/vit", "pooling": "cls"}
    pixels = {"_target_": f"{models}.encoders.PixelEncoder", "input_shape": [1, 8, 8]}
    untrained = {"_target_": f"{models}.encoders.RandomEncoder", "dimension": 128}
    lite = {"_target_": f"{models}.foundation.EfficientNetLite0", "image_size": 64}
    allowed.check_encoder(lite, ("efficientnet_lite0",))
    for own in (None, ("random", "/models/vit")):
        allowed.check_encoder(vit, own)
        allowed.check_encoder(untrained, own)
        allowed.check_encoder("random", own)
    for refused in (
        pixels,
        "pixels",
        lite,
        {**vit, "path": "/models/vit/../other"},
        {"_target_": "mine.encoder"},
    ):
        with pytest.raises(allowed.NotAllowed, match="^encoder must be one that this node's operator lists"):
            allowed.check_encoder(refused, ("random", "/models/vit"))
    with pytest.raises(allowed.NotAllowed, match='got "pixels"$'):  # whatever else it is called
        allowed.check_encoder({**pixels, "path": "/models/vit"}, ("/models/vit",))
