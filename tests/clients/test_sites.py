"""A node's own sites: what they answer before the rounds, and what is refused."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from PIL import Image

from fedclust.clients.sites import OwnSites, own_sites
from fedclust.data.sites import SiteError
from fedclust.data.sites.agreement import Embedding
from fedclust.messages.description import Stated
from fedclust.models.encoders import RandomEncoder
from fedclust.settings.allowed import NotAllowed
from fedclust.settings.composition import compose, to_run_config

ROWS = ["age,diagnosis", *[f"{30 + number},{'ill' if number % 3 else 'well'}" for number in range(30)]]
ONLY = {"partition-id": 0, "num-partitions": 1}
OWN = ["dataset=csv", "dataset.label=diagnosis", "partition=own"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))


def context(overrides: list[str], **node: str | int) -> Context:
    return Context(1, 2, dict(node), RecordDict(), to_run_config(compose(overrides)))


def sites(folder: Path, **texts: str) -> OwnSites:
    paths = {name: folder / f"{name}.csv" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    listed = ",".join(f"{name}: '{path}'" for name, path in paths.items())
    found = own_sites(context([*OWN, f"partition.sites={{{listed}}}"], allow="*", **ONLY))
    assert found is not None
    return found


def test_a_run_over_a_pooled_dataset_has_no_own_sites() -> None:
    assert own_sites(context(["dataset=digits"])) is None
    with pytest.raises(NotAllowed, match="^partition must be own on this node, which serves only its own"):
        own_sites(context(["dataset=digits"], data="/rows.csv", name="north"))


def test_sites_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    found = sites(tmp_path, north="\n".join(ROWS) + "\n", south="age,other\n1,2\n")
    registered, stated = found.registered(), found.stated()
    assert registered.clients == {"north": ("north",)}
    assert list(stated.statements) == ["north"]
    for answer in (registered, stated):
        assert list(answer.refused) == ["south"]
        assert "diagnosis" in answer.refused["south"]
        assert answer.refused["south"].isprintable()


def test_a_site_states_its_encoder_or_why_it_has_none(tmp_path: Path) -> None:
    for color in ("red", "blue"):
        (tmp_path / color).mkdir()
        for number in range(3):
            Image.new("RGB", (4, 4), color).save(tmp_path / color / f"{number}.png")
    images = ["dataset=image_folder", "dataset.input_shape=[3,4,4]", "partition=own", "features=encoder"]
    images.append(f"partition.sites={{north: '{tmp_path}'}}")

    def stated(*encoder: str) -> Stated:
        found = own_sites(context([*images, *encoder], allow="*", **ONLY))
        assert found is not None
        return found.stated()

    embedding = stated("encoder=random", "encoder.dimension=5").statements["north"].embedding
    assert embedding == Embedding(RandomEncoder([3, 4, 4], 5, 0, None).fingerprint, 5)
    lacking = stated("encoder=transformers", "encoder.path=/nowhere")
    assert not lacking.statements
    assert "encoder transformers: path must be a hub id, or a local folder" in lacking.refused["north"]
    assert lacking.refused["north"].isprintable()  # one line
    with pytest.raises(NotAllowed, match="^encoder must be one that this node's operator lists"):
        own_sites(context([*images, "encoder=random"], data=str(tmp_path), name="north", encoder="pixels"))


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    found = sites(tmp_path, north="\n".join(ROWS) + "\n")
    before = found.rows("north")
    assert found.rows("north") is before
    (tmp_path / "north.csv").write_text("\n".join(ROWS[:-1]) + "\n")
    after = found.rows("north")
    assert (len(before.labels), len(after.labels)) == (30, 29)


def test_a_node_must_have_an_agreement_first(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="^a node must be sent the encoding before anything else"):
        sites(tmp_path, north="\n".join(ROWS) + "\n").held(context(OWN))
