"""What each verb of the command line says about itself, and what it does with its arguments."""

import os
import re
import shlex
import sys
from importlib import import_module

import pytest
from hydra._internal.utils import get_args_parser

import fedclust
from fedclust.runs.command_line import _answer, _checked
from fedclust.runs.verbs import _EXAMPLES, VERBS, Parser, settings_parser
from fedclust.support.layout import CONF


@pytest.mark.parametrize("verb", VERBS)
def test_a_help_fits_a_screen_and_begins_with_examples(run, verb: str) -> None:
    code, printed, complained = run(verb, "--help")
    assert (code, complained) == (0, "")
    assert run("help", verb).printed == printed
    lines = printed.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert lines[2].startswith("  fedclust")


def test_a_reader_that_has_had_enough_gets_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    read, write = os.pipe()
    os.close(read)  # as head does
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert _answer("help", ["strategy"]) == 141
    assert capsys.readouterr().err == ""


def _examples(text: str) -> list[list[str]]:
    """Split the commands; what they do stands three blanks behind them."""
    return [shlex.split(re.split(r" {3}| > ", line.strip())[0]) for line in text.strip().splitlines()]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("run", "help")])
def test_the_examples_of_a_verb_parse(verb: str) -> None:
    module = import_module(f"fedclust.runs.{verb}")
    parser = module.parser()
    assert isinstance(parser, Parser)
    for command in _examples(module._EXAMPLES):
        assert command[:2] == ["fedclust", verb]
        parser.parse_args(command[2:])


@pytest.mark.parametrize("command", _examples(_EXAMPLES["run"]))
def test_the_examples_of_a_run_compose(command: list[str]) -> None:
    given = command[1:]
    if given[:1] != ["help"] and given[-1:] != ["rounds=300"]:  # which resumes a run that is not there
        settings_parser().parse_args(given)
        _checked(get_args_parser().parse_args([*given, "hydra.run.dir=."]))


def test_a_group_lists_its_choices(run) -> None:
    lines = run("help", "personal").printed.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        f"personal={choice}"
        for choice in (
            "apfl",
            "auto",
            "ditto",
            "fedbn",
            "fedper",
            "fedrep",
            "finetune",
            "none",
            "own",
            "prior",
        )
    ]
    printed = run("help", "strategy").printed
    assert max(map(len, printed.splitlines())) <= 100
    assert "all training rows pooled on one machine, as many samples per round as the cohort would see" in (
        " ".join(printed.split()).lower()
    )


@pytest.mark.parametrize("given", [["strategy=ifca"], ["strategy", "ifca"], ["strategy=ifca", "--help"]])
def test_a_choice_shows_its_settings(run, given: list[str]) -> None:
    printed = run("help", *given).printed
    assert printed.startswith("# IFCA, Algorithm 1: k models, every client trains the one that fits it best")
    # The default of fedclust.clustering.ifca.Parameters, and the words of its docstring.
    assert "\nstrategy.parameters.num_clusters=null\n  Number of models k, >= 1; None for a gue" in printed
    assert max(map(len, printed.splitlines())) <= 120


def test_a_choice_shows_the_value_that_its_file_sets(run) -> None:
    printed = run("help", "training=default").printed  # LocalTraining has 0.01
    assert "\ntraining.learning_rate=0.1\n  Learning rate in round 1" in printed
    assert "\ntraining.epochs=null\n  " in printed  # described together with steps


@pytest.mark.parametrize("name", ["fmcl_busi", "fedgwc_cifar100"])
def test_an_experiment_is_its_file(run, name: str) -> None:
    whole = (CONF / "experiment" / f"{name}.yaml").read_text("utf-8")
    assert run("help", "experiment", name).printed == whole.partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["comprae", "outputs"], "the first word must be a setting or one of run, check, "),
        (["comprae"], "got 'comprae' (did you mean 'compare'?)"),
        (["help", "strategi"], "(did you mean 'strategy'?)"),
        (["help", "strategi=auto"], "(did you mean 'strategy'?)"),
        (["help", "strategy=atuo"], "(did you mean 'auto'?)"),
        (["help", "strategy", "fedwgc"], "strategy must be one of auto, "),
        (["run", "strategy=fedwgc"], "got 'fedwgc' (did you mean 'fedgwc'?)"),
        (["export", "outputs"], "the following arguments are required: target; fedclust export --help lists"),
        (["check", "a.csv", "--traget", "y"], "--traget y; fedclust check --help lists the arguments"),
        (["place", "none", "new.csv"], "none"),
    ],
)
def test_a_wrong_word_is_one_line(run, arguments: list[str], said: str) -> None:
    code, printed, complained = run(*arguments)
    assert (code, printed, complained.count("\n")) == (2, "", 1)
    assert said in complained


def test_the_version_is_fedclusts(run) -> None:
    assert run("--version").printed == f"fedclust {fedclust.__version__}\n"


def test_a_run_says_little_and_its_report_all(run, pages: None) -> None:
    small = ("partition.num_clients=3", "partition.groups=[2,1]", "training.steps=1")
    code, printed, _ = run("run", "rounds=18", "output_dir=here", *small)
    lines = printed.splitlines()
    assert (code, len(lines) <= 25) == (0, True), printed
    assert lines[-2] == "all figures: fedclust report here, in a browser: report.html"
    assert "macro F1" not in printed
    whole = run("report", "here", "--no-plots").printed
    assert "macro F1" in whole
    exported = run("export", "here", "served").printed.splitlines()
    assert exported[-1] == "to predict: fedclust predict served ROWS --site 0"
    assert fedclust.load_export("served").clusters
