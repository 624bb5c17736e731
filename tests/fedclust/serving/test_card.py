"""Check that names from data are shown in a model card, and do nothing else."""

import json
import re
import shutil
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from torch import nn

import fedclust
from fedclust.serving import card

HOSTILE = [
    "[click](https://example.org)",
    "![seen](https://example.org/pixel.png)",
    "<img src=x onerror=alert(1)>",
    "<https://example.org>",
    "https://example.org/a",
    "www.example.org",
    "someone@example.org",
    "@someone #1",
    "`[out](https://example.org)`",
    "``[out](https://example.org)`",
    "a` [out](https://example.org) `b",
    "*loud* _too_",
    "1. a ~~list~~",
    "# heading\\",
    "&lt;b&gt;",
    "a | b\n\n# heading",
]
SHOWN = {"a | b\n\n# heading": "a / b # heading"}


def inline(text):
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return list(chain.from_iterable(token.children or [token] for token in tokens))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_code_span(name) -> None:
    row = f"| {card._name(name)} |"
    found = inline("\n".join(["| name |", "| --- |", row]))
    codes = [token.content for token in found if token.type == "code_inline"]
    assert codes == [SHOWN.get(name, name)]
    assert not {"link_open", "image", "html_inline", "html_block", "em_open"} & {each.type for each in found}
    assert [each.content for each in found if each.type == "text"] == ["name"]


@pytest.mark.parametrize(
    "name", ["north", "St. Mary", "Klinikum München-Süd", "age_at_entry", "O'Hara, 2", ""]
)
def test_a_plain_name_stays_as_it_is(name) -> None:
    assert card._name(name) == name
    assert "".join(each.content for each in inline(name) if each.type == "text") == name


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Two sites, of which everything that they name is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    link = "[{}](https://example.org)"
    rows = [
        {link.format("age"): 30.0 + 3 * number, "sex": link.format("abcd"[number % 4]),
         "site": link.format(f"site {number % 2}"), "ill": link.format("yes" if number % 3 else "no")}
        for number in range(60)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    result = fedclust.run([
        "strategy=local", "compare=[]", "proof=false", "serve=cluster", "dataset=csv",
        f"dataset.path={folder / 'rows.csv'}", "dataset.label=ill", "dataset.num_classes=2",
        "dataset.input_shape=[5]", "partition=natural", "dataset.natural=site", "rounds=1",
        f"output_dir={folder / 'run'}", "device=cpu", "model.hidden=[4]",
    ])  # fmt: skip
    return result.export(folder / "exported")


def test_no_name_of_an_export_makes_a_link(exported) -> None:
    cards = sorted(exported.rglob("README.md"))
    assert len(cards) == 3
    for path in cards:
        found = inline(text := path.read_text())
        assert text.endswith("\n")
        assert not re.search(r"\n\n\n|^[ \t]|[ \t]$", text, re.MULTILINE)
        codes = [token.content for token in found if token.type == "code_inline"]
        assert not [token for token in found if token.type in ("link_open", "image")], path
        for name in ("age", "a", "site 1" if "cluster-0" not in str(path) else "site 0", "yes"):
            assert f"[{name}](https://example.org)" in " ".join(codes), (path, name)


def test_layers_that_stay_are_told(tmp_path) -> None:
    draws = np.random.default_rng(0)
    rows = [(draws.normal(size=(20, 3)).astype("f4"), draws.integers(0, 2, 20)) for _ in range(3)]
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    training = fedclust.LocalTraining(learning_rate=0.1, batch_size=10, epochs=1)
    given = {"rounds": 1, "personal": "fedper", "training": training}
    folder = fedclust.simulate("fedavg", network, rows, **given).export(tmp_path / "exported")
    for name in ("README.md", "cluster-0/README.md"):
        text = (folder / name).read_text()
        assert "have no figures" not in text  # all have answered
        told = "- 3 of 3 clients have layers of their own that stayed with them; 3 of their models are here,"
        assert told in text


def test_warnings_about_data_are_limits(exported, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(exported.parent / "run", run)
    summary = json.loads((run / "summary.json").read_text())
    line = "north: column [age](https://example.org) may be in another unit"
    (run / "summary.json").write_text(json.dumps(summary | {"data_warnings": [line]}))
    text = (fedclust.load(run).export(tmp_path / "exported") / "README.md").read_text()
    assert f"- Check the data of a site: `{line}`" in text.split("## Limits")[1].splitlines()
