"""Sites with their own data that come while a run goes on, and one that leaves it."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Error, Message
from rich.console import Console

from fedclust import load
from fedclust.federation import FederationError
from fedclust.grids.client_grid import WrappedGrid
from fedclust.messages.description import DescriptionQuestion
from fedclust.results.recorder import comparable
from fedclust.runs.server import federate, make_engine
from fedclust.settings.composition import ConfigError, compose
from fedclust.settings.folders import expand
from fedclust.support.flower import ErrorCode

SITES = ("bad", "east", "north", "south")  # in the order of their nodes


class Moving(WrappedGrid):
    """A node per site: from which round on it is there, and after which it is not."""

    describes = 0  # the round from which on east's answers to who it is arrive

    def __init__(self, grid, since: dict[str, int], until: dict[str, int], done: int = 0) -> None:
        super().__init__(grid)
        self._since, self._until, self.trained = since, until, done

    def get_node_ids(self) -> list[int]:
        now = self.trained + 1  # the round that begins or goes on
        nodes = zip(SITES, self._grid.get_node_ids(), strict=True)
        return [node for site, node in nodes if self._since.get(site, 1) <= now <= self._until.get(site, 99)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list:
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for place, each in enumerate(replies):
            node = SITES.index("east") == [*self._grid.get_node_ids()].index(each.metadata.src_node_id)
            (asked,) = [one for one in messages if answers(each, one)]
            if (
                node
                and asked.metadata.message_type == DescriptionQuestion.kind
                and self.trained + 1 < self.describes
            ):
                replies[place] = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=asked)
        self.trained += any(message.metadata.message_type == "train" for message in messages)
        return replies


def answers(reply: Message, question: Message) -> bool:
    return reply.metadata.reply_to_message_id == question.metadata.message_id


def _tables(folder: Path) -> str:
    draws = np.random.default_rng(0)
    named = []
    for site in SITES:
        dose = draws.normal(size=40)
        table = pd.DataFrame(
            {"dose": dose, "ward": draws.choice(["a", "b"], 40), "ill": np.where(dose > 0, "yes", "no")}
        )
        table["weight"] = 70.0 + np.arange(40) % 7  # kilograms
        if site == "east":
            table["weight"] *= 1000  # grams
            table.loc[:3, "ward"] = "c"  # the others have no such ward
        if site == "bad":
            table = table.drop(columns="dose")
        table.to_csv(folder / f"{site}.csv", index=False)
        named.append(f"{site}: {folder / f'{site}.csv'}")
    return f"partition.sites={{{', '.join(named)}}}"


def _federate(
    folder: Path, sites: str, done: int = 0, *, since: tuple[int, int] = (2, 3), **settings: object
) -> str:
    overrides = [
        "dataset=csv", "dataset.label=ill", "partition=own", sites, "partition.min_clients=2",
        "partition.settle=0", "strategy=fedavg", "proof=false", "model=mlp", "training.steps=2", "wait=1",
        "engine.num_nodes=4", "checkpoint_every=1", f"output_dir={folder}",
        *(f"{key}={value}" for key, value in settings.items()),
    ]  # fmt: skip
    config = compose(expand(overrides))
    late = Moving(make_engine(config), dict(zip(SITES, since, strict=False)), {"north": 5}, done)
    folder.mkdir(exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        federate(config, late, folder, Console(file=log, width=400))
    return (folder.parent / f"{folder.name}.log").read_text()


def test_sites_join_and_leave_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    sites = _tables(tmp_path)
    said = _federate(tmp_path / "whole", sites, rounds=6, evaluate_every=2)
    whole = load(tmp_path / "whole")
    rounds = whole.saved.rounds
    assert [record.get("joined") for record in rounds] == [None, None, [2], None, None, None]
    assert [record.get("left") for record in rounds] == [None] * 5 + [[0]]
    # The first two are numbered by their names, and keep their numbers; east comes third.
    table = whole.clients.set_index("name")
    assert table["client"].to_dict() == {"north": 0, "south": 1, "east": 2}
    assert table["joined"].to_dict() == {"north": 0, "south": 0, "east": 3}
    assert np.isnan(table["accuracy"]["north"])
    # It is there when round 4 is measured, and for the training of round 5.
    assert table["last_round"].to_dict() == {"north": 4, "south": 6, "east": 6}
    assert table["last_accuracy"]["north"] == rounds[3]["client_accuracy"][0]
    assert whole.summary["joined"] == {"2": 3}
    assert [left["client"] for left in whole.summary["left"]] == [0]
    assert whole.summary["num_clients"] == 3
    assert [len(change["assignment"]) for change in whole.saved.changes] == [2, 3]
    # One that does not fit is refused by its name, with the reason, and the others go on.
    assert "bad" not in table.index
    # In grams, 70 to 76 thousand; which of the rows train is drawn.
    (warned,) = (line for line in said.splitlines() if line.startswith("warning"))
    about = r"its values are about 7\.[0-6]\d?e\+04, those of the training rows 7[0-6](\.\d)?"
    assert re.fullmatch(f"warning: east: column weight may be in another unit: {about}", warned)
    assert "bad is refused: it lacks the columns dose, which the run uses" in said.splitlines()

    _federate(tmp_path / "part", sites, rounds=4, evaluate_every=2)
    # Its last round is run again, so it goes on after round 3; bad and east are here from the start now.
    _federate(tmp_path / "part", sites, 3, rounds=6, evaluate_every=2, resume=tmp_path / "part")
    part = load(tmp_path / "part")
    assert comparable(part.saved.rounds)[3:] == comparable(rounds)[3:]
    assert json.dumps(part.clients["last_accuracy"].tolist()) == json.dumps(
        whole.clients["last_accuracy"].tolist()
    )
    # That it came in grams was warned of before the run stopped.
    assert part.summary["data_warnings"] == whole.summary["data_warnings"] != []


def test_a_site_whose_description_is_lost_joins_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Moving, "describes", 4)  # east is there from round 3 on
    said = _federate(tmp_path / "run", _tables(tmp_path), rounds=5)
    assert "east is refused" not in said
    assert [record.get("joined") for record in load(tmp_path / "run").saved.rounds][:4] == [None] * 3 + [[2]]


def test_a_run_that_outgrows_coalitions_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedclust.strategies.auto.MOST_SITES", 2)  # until east comes in round 3
    sites = _tables(tmp_path)
    _federate(tmp_path / "whole", sites, rounds=4, strategy="auto", proof="true")
    _federate(tmp_path / "part", sites, rounds=3, strategy="auto", proof="true")
    # Its last round is run again.
    _federate(tmp_path / "part", sites, 2, rounds=4, strategy="auto", proof="true", resume=tmp_path / "part")
    whole, part = (load(tmp_path / name).summary for name in ("whole", "part"))
    assert part["sites"] == whole["sites"]
    assert len(part["sites"]) == 2


def test_a_run_is_resumed_without_a_site_that_joined_it(tmp_path: Path) -> None:
    sites, part = _tables(tmp_path), tmp_path / "part"
    _federate(part, sites, rounds=4, evaluate_every=1)
    # Its last round is run again, so it goes on after round 3, in which east has joined.
    waits = {"partition.min_clients": 1, "partition.settle": 0.1}  # how long it waits may change
    _federate(part, sites, 3, since=(99, 99), rounds=5, evaluate_every=1, resume=part, **waits)
    table = load(part).clients.set_index("name")
    assert table["client"].to_dict() == {"north": 0, "south": 1, "east": 2}
    assert table["last_round"].to_dict() == {"north": 4, "south": 5, "east": 3}
    south = pd.read_csv(tmp_path / "south.csv")
    turned = south.assign(
        ill=south["ill"].where(south.index > 0, {"no": "yes", "yes": "no"}[south["ill"][0]])
    )
    turned.to_csv(tmp_path / "south.csv", index=False)
    rule = r"client 1 was south: 32 rows to train .* 8 to test on; now its rows have other classes$"
    with pytest.raises(FederationError, match=f"^resume must have the run's data, {rule}"):
        _federate(part, sites, 4, since=(99, 99), rounds=6, evaluate_every=1, resume=part)
    with (tmp_path / "north.csv").open("a") as file:
        file.write("0,a,no,99\n")
    with pytest.raises(ConfigError, match="resume must have the encoding of"):
        _federate(part, sites, 4, since=(99, 99), rounds=6, evaluate_every=1, resume=part)


def test_a_site_that_joins_a_private_run_pays_from_its_first_round_on(tmp_path: Path) -> None:
    from dp_accounting import get_epsilon_gaussian

    _federate(
        tmp_path / "run",
        _tables(tmp_path),
        rounds=4,
        evaluate_every=4,
        privacy="client_dp",
        **{"privacy.noise_multiplier": 10, "privacy.evaluation_noise": 10, "privacy.delta": 0.01},
    )
    table = load(tmp_path / "run").clients.set_index("name")
    # East joins in round 3 of 4. The one evaluation is of all three.
    assert table["rounds_trained"].to_dict() == {"north": 4, "south": 4, "east": 2}
    # Releases of multiplier 10, five and three, are together one of 10/√5 and of 10/√3.
    for name, releases in (("north", 5), ("south", 5), ("east", 3)):
        assert table["epsilon"][name] == pytest.approx(get_epsilon_gaussian(10 / releases**0.5, 0.01))


def test_who_came_late_is_in_everyones_model_and_can_leave_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _federate(folder, _tables(tmp_path), strategy="auto", compare="[fedavg]", proof="true", rounds=6)
    result = load(folder)
    names = result.clients["name"].tolist()
    assert names == ["north", "south", "east"]  # east came in round 3; north left after round 5
    told = {row["name"]: row["text"] for row in result.summary["sites"]}
    assert told["north"] == "north: no advice, it sent no figures after the last round."
    assert "south: train with everyone" in told["south"]
    assert "everyone but" not in told["south"]
    assert (
        "; no advice on east, which trained with everyone after round 1" in result.summary["verdict"]["text"]
    )
    # The model for all has trained with east: nobody is served it once east has left.
    lines = result.without("east").lines
    assert lines[:2] == (
        "north: the model that it trains with nobody",
        "south: the model that it trains with nobody",
    )
    assert "east: nothing, as it came after round 1 and trained only everyone's model" in (
        result.without("south").lines
    )
