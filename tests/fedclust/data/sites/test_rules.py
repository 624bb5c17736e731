"""A site's rules: how its file is read, and what it answers."""

from pathlib import Path

import pytest

from fedclust.clients.app import WORK
from fedclust.data.sites.rules import OURS, Rules, RulesError
from fedclust.support.reasons import discreet


def test_a_file_says_what_is_limited_and_the_rest_has_safe_defaults(tmp_path: Path) -> None:
    (path := tmp_path / "site.toml").write_text('labels = ["ill"]\nmin_cell = 10\nclip = 1\nnoise = 0.5\n')
    rules = Rules.read(path)
    assert rules == Rules(labels=("ill",), min_cell=10, clip=1.0, noise=0.5)
    assert rules.line == 'labels = ["ill"]; min_cell = 10; max_values = 100; clip = 1.0; noise = 0.5'
    assert Rules.from_json(rules.to_json()) == rules
    text = 'min_cell = 7\nlabels = ["größe"]\n'
    path.write_text(text, encoding="utf-8-sig", newline="\r\n")  # as Windows' editor saves it
    assert Rules.read(path) == Rules(min_cell=7, labels=("größe",))
    assert Rules().line == "min_cell = 5; max_values = 100"
    assert Rules(own_models=False).line.startswith("own_models = false")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("min_cell = 0", "site.toml: min_cell must be >= 1, got 0"),
        ("min_cell = 2", "min_cell must be 1, or >= 3: mean and spread of two rows tell both"),
        ("noise = 1.0", "noise needs a clip, .* got 1.0"),
        ('labels = "ill"', "labels: must be"),
        ("lables = []", "must have the values .*, got lables"),
        ("[", "Invalid|Expected|Unexpected"),
    ],
)
def test_a_file_with_a_mistake_ends_with_one_line_that_stays_at_the_site(
    text: str, reason: str, tmp_path: Path
) -> None:
    (path := tmp_path / "site.toml").write_text(text)
    with pytest.raises(RulesError, match=reason):
        Rules.read(path)
    with discreet(), pytest.raises(RulesError, match="^reading the site's rules failed on this node"):
        Rules.read(path)
    with pytest.raises(RulesError, match="FileNotFoundError"):
        Rules.read(tmp_path / "none.toml")


def test_a_site_answers_all_questions_of_ours_or_those_that_it_lists() -> None:
    # Other tests register questions of their own.
    ours = [kind for kind, work in WORK.items() if work.__module__.startswith("fedclust.")]
    assert {kind.removeprefix("query.") for kind in ours} == set(OURS)
    assert Rules().answers("query.losses")
    assert Rules().answers("train")
    assert not Rules().answers("query.rows")  # of the user's own
    assert Rules(questions=("rows",)).answers("query.rows")
    assert not Rules(questions=("rows",)).answers("query.losses")


@pytest.mark.parametrize(
    ("rules", "strategies", "personal", "reason"),
    [
        (Rules(methods=("fedavg",)), ["fedavg"], "none", ""),
        (Rules(methods=("fedavg",)), ["fedavg", "fmcl"], "none", "must be fedavg for this site, got fmcl"),
        (
            Rules(methods=("mine", "fedgcw")),
            ["fedgwc"],
            "none",
            r"got fedgwc; methods of its site.toml has fedgcw \(did you mean 'fedgwc'\?\)$",
        ),
        (Rules(methods=("mine",)), ["fedgwc"], "none", "must be mine for this site, got fedgwc$"),
        (Rules(layers=("piror",)), ["fedavg"], "prior", r"got prior; layers .* \(did you mean 'prior'\?\)$"),
        (Rules(layers=()), ["fedavg"], "none", ""),
        (Rules(layers=("prior",)), ["fedavg"], "finetune", "one of prior, none for this site, got finetune"),
        (Rules(), ["fmcl"], "finetune", ""),
    ],
)
def test_a_site_takes_part_with_the_methods_and_layers_that_it_lists(
    rules: Rules, strategies: list[str], personal: str, reason: str
) -> None:
    if not reason:
        rules.check_choices(strategies, personal)
        return
    with pytest.raises(RulesError, match=reason):
        rules.check_choices(strategies, personal)
