"""Three sites choose with whom they train; one of them has its labels the wrong way round."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvgM
from rich.console import Console
from torch import nn

import fedclust
from fedclust.clients import coalitions as clients
from fedclust.clients.app import WORK
from fedclust.clustering.auto import Parameters
from fedclust.data.targets.times import TimeWords
from fedclust.federation import FederationError
from fedclust.layers.coalitions import (
    Chosen,
    CoalitionModels,
    _contradiction,
    chosen_without,
    notes,
    worthwhile,
)
from fedclust.messages.coalitions import ScoresQuestion
from fedclust.messages.replies import Reply
from fedclust.proof.coalitions import Scores, choose, coalitions
from fedclust.proof.verdict import NO_BETTER
from fedclust.proof.words import Words
from fedclust.results import SavedRun, print_report
from fedclust.strategies import Auto
from fedclust.training import LocalTraining

TRAINING = LocalTraining(learning_rate=0.3, epochs=2, batch_size=20)
NAMES = ("arrays", "validation", "test")


def sites(turned: int | None = 0, number: int = 3, rows: int = 60, seed: int = 0) -> list:
    """Two classes, mostly told apart by the first of two columns; one site calls each by the other's name."""
    draws, made = np.random.default_rng(seed), []
    for site in range(number):
        parts = []
        for count in (rows, 0, 40):
            labels = draws.integers(0, 2, count)
            inputs = draws.normal(size=(count, 2)).astype(np.float32)
            inputs[:, 0] += 3 * labels
            parts.append((inputs, 1 - labels if site == turned else labels))
        made.append(tuple(parts))
    return made


def run(data: list, rounds: int = 6, *, strategy: Auto | None = None, **given) -> fedclust.Result:
    torch.manual_seed(0)
    made = Auto() if strategy is None else strategy
    options = {"rounds": rounds, "training": TRAINING, "num_classes": 2, "device": "cpu"} | given
    return fedclust.simulate(made, nn.Linear(2, 2), data, **options)


def test_the_turned_site_stays_out_and_is_named() -> None:
    result = run(sites(), proof=True)
    assert result.assignment.tolist() == [1, 0, 0]
    assert result.sites["train_with"].map(len).tolist() == [0, 1, 1]
    (odd,) = result.summary["site_findings"]
    assert (odd["client"], odd["kind"]) == (0, "turned")
    assert odd["text"].startswith("Stop: labels look exchanged (AUC of the others' models 0.0")
    assert "what the others call 0 it calls 1. Check its coding and run again" in odd["text"]
    assert "would have AUC 0.99 there" in odd["text"]
    # Nobody trains with it, and everyone is everyone else.
    assert result.sites["train_with"].tolist() == [[], ["site 2"], ["site 1"]]
    assert result.sites["leaves"].tolist() == [True, False, False]
    assert [each["text"].split(":")[1] for each in result.summary["sites"]] == [
        " Stop",
        " train with site 2",  # their classes are as frequent: there is nothing to correct
        " train with site 1",
    ]
    assert result.sites["over_alone_accuracy_gain"].tolist()[1:] == pytest.approx(
        (result.sites["chosen_accuracy"] - result.sites["alone_accuracy"]).tolist()[1:]
    )
    table = result.sites
    assert (table["chosen_accuracy"] > 0.85).all()
    assert table["everyone_accuracy"].tolist()[0] < 0.6
    # The models that serve are those whose figures stand in the table.
    served = [
        float((result.predict(site, torch.tensor(test[0])).argmax(1).numpy() == test[1]).mean())
        for site, (*_, test) in enumerate(sites())
    ]
    assert served == pytest.approx(table["chosen_accuracy"].tolist())
    verdict = result.verdict
    assert verdict["grouped"]
    assert verdict["text"].startswith(
        "Stop: check the coding of site 0 and run again. Until then: site 1 and"
    )
    crossed = dict(SavedRun(result.folder).matrices())["cross_site"]
    assert np.nanmax(crossed[0]) < 0.2
    assert np.nanmax(crossed[1:, 0]) < 0.2
    assert min(crossed[1, 2], crossed[2, 1]) > 0.8
    assert set(result.clients["personal"]) == {"none"}
    assert not np.any(result.clients["prior_shift"].tolist())
    out = io.StringIO()
    print_report(SavedRun(result.folder), Console(file=out, width=80, force_terminal=True, color_system=None))
    assert "Cross-fitted: 7 coalitions, each trained without" in out.getvalue()
    assert out.getvalue().count("Stop: check the coding of site 0 and run again") == 1  # the verdict
    row = r"(chosen|everyone|alone) +\d\.\d\d +\d\.\d\d to \d\.\d\d +\d"  # on one line
    assert re.findall(row, out.getvalue()) == ["chosen", "everyone", "alone"] * 3


def test_of_six_sites_those_that_updates_put_together_train_together() -> None:
    data = sites(turned=None, number=6)
    data[3:] = [tuple((inputs, 1 - labels) for inputs, labels in parts) for parts in data[3:]]
    result = run(data)
    assert result.assignment.tolist() == [0, 0, 0, 1, 1, 1]
    assert result.sites["train_with"].tolist()[0] == ["site 1", "site 2"]
    (text,) = {each["text"] for each in result.summary["site_findings"] if each["client"] == 0}
    assert "what site 3, site 4 and site 5 call 0 it calls 1. Check its coding." in text
    assert result.summary["decision"].startswith(
        "Stop: check the codings of all sites and run again. Until then: site 0, site 1 and site 2 train "
        "together; site 3, site 4 and site 5 train together"
    )


def skewed(share: float = 0.9) -> list:
    """Rows that say little; two of three sites have mostly one class."""
    draws, made = np.random.default_rng(0), []
    for often in (1 - share, share, 0.5):
        parts = []
        for count in (60, 0, 40):
            labels = (draws.random(count) < often).astype(np.int64)
            parts.append(((labels[:, None] + 2 * draws.normal(size=(count, 2))).astype(np.float32), labels))
        made.append(tuple(parts))
    return made


def test_sites_choose_no_correction_that_personal_leaves_out() -> None:
    assert "prior" in run(skewed()).sites["correction"].tolist()
    result = run(skewed(), personal="none", proof=True)
    assert set(result.sites["correction"]) == {"none"}
    chosen = result.sites["chosen_accuracy"].tolist()
    assert result.clients["accuracy"].tolist() == chosen
    assert result.verdict["accuracy_of_groups"] == pytest.approx(np.mean(chosen))  # 40 test rows each
    served = [
        float((result.predict(site, torch.tensor(test[0])).argmax(1).numpy() == test[1]).mean())
        for site, (*_, test) in enumerate(skewed())
    ]
    assert served == pytest.approx(chosen)


def test_a_finished_run_serves_what_its_sites_chose(tmp_path: Path) -> None:
    first = run(skewed(), proof=True, folder=tmp_path / "run")
    assert "with the prior correction" in str(first.summary["sites"])
    with pytest.raises(FederationError, match="personal must include the label-prior correction"):
        run(skewed(), proof=True, folder=tmp_path / "run", resume=True, personal="none")
    longer = run(skewed(), 7, proof=True, folder=tmp_path / "run", resume=True, personal="none")
    assert set(longer.sites["correction"]) == {"none"}  # they have chosen anew
    assert "with the prior correction" not in str(longer.summary["sites"])


def test_a_correction_has_not_seen_the_rows_that_it_is_scored_on() -> None:
    # 0.6 and 0.4 of the coalition's rows, and m̂ = 2; the site has 3 and 2, a row in each fold.
    question = ScoresQuestion.of((MODEL,) * 10, np.array([0.6, 0.4, 0.6, 0.4]), [2.0, np.inf], np.zeros(0))
    parts = [(np.zeros((1, 2)), np.array([label])) for label in (0, 0, 0, 1, 1)]
    found, without = clients._shifts(question, parts)
    # Without the first row 2 and 2 are left: P = (2 + 2 · 0.6)/6, (2 + 2 · 0.4)/6. Without the last, 3 and 1.
    first = np.log([3.2 / 6 / 0.6, 2.8 / 6 / 0.4])
    last = np.log([4.2 / 6 / 0.6, 1.8 / 6 / 0.4])
    np.testing.assert_allclose(found, [first, first, first, last, last])
    assert not without.any()  # where m̂ is infinite


def test_models_that_learn_nothing_say_so_first() -> None:
    draws = np.random.default_rng(0)
    data = [(draws.normal(size=(80, 2)).astype("f4"), draws.integers(0, 2, 80)) for _ in range(3)]
    result = run(data, proof=True)
    assert result.verdict["text"].startswith("No advice on who trains with whom")
    assert result.verdict["text"].endswith(f". {NO_BETTER} each client's class shares")
    assert not result.summary["site_findings"]
    assert {each["text"].split(", ")[0].split(": ")[1] for each in result.summary["sites"]} == {"no advice"}


def test_models_with_one_answer_for_all_rows_are_no_ground_for_advice() -> None:
    # Nine of ten rows are of one class at every site; after a round no model predicts the other.
    draws, data = np.random.default_rng(0), []
    for _ in range(3):
        labels = [(draws.random(count) < 0.1).astype(np.int64) for count in (60, 0, 40)]
        data.append(tuple((draws.normal(size=(len(each), 2)).astype("f4"), each) for each in labels))
    result = run(data, 1)
    assert result.sites["chosen_balanced_accuracy"].max() <= 0.5
    assert result.summary["decision"].startswith("No advice on who trains with whom")


def test_alike_sites_train_one_model() -> None:
    result = run(sites(turned=None))
    assert result.num_clusters == 1
    assert not result.summary["site_findings"]
    assert result.summary["decision"].startswith("Train one model for all: no site gains by leaving it")


def test_what_is_counted_is_what_trained(tmp_path: Path) -> None:
    draws = np.random.default_rng(3)
    pairs = [(draws.normal(size=(100, 2)).astype("f4"), draws.integers(0, 2, 100)) for _ in range(3)]
    result = run(pairs, 2, proof=True, folder=tmp_path)
    # A fifth of 100 rows is tested; nothing is held out of the others, in either run.
    common = SavedRun(tmp_path / "compare" / "fedavg")
    assert result.clients["num_train"].tolist() == common.clients["num_train"].tolist() == [80, 80, 80]
    assert result.sites["everyone_accuracy"].tolist() == common.clients["accuracy"].tolist()
    assert result.clients["validation_brier_none"].isna().all()
    assert {each["p_value"] for each in result.summary["proof"]["clusters"]} == {None}
    # The compared run's clients choose their layer on a tenth of 80 rows. No coalition trains on them.
    held = run(pairs, 2, proof=True, personal="auto")
    assert held.clients["num_train"].tolist() == [72, 72, 72]
    assert held.clients["validation_brier_none"].notna().all()
    # Looks for drift need them, too.
    assert run(pairs, 1, strategy=Auto(drift_every=1)).clients["num_train"].tolist() == [72, 72, 72]


def test_sites_choose_the_same_through_messages() -> None:
    few = ["partition.num_clients=3", "partition.groups=[2,1]", "rounds=2"]
    here, three = (fedclust.run([*few, f"engine.num_nodes={number}"]) for number in (1, 3))
    assert len(here.sites) == 3
    assert here.summary["sites"] == three.summary["sites"]
    for client in range(3):
        one, other = (dict(each.model_for(client).named_parameters()) for each in (here, three))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_goes_on_equals_one_that_never_stopped(tmp_path: Path) -> None:
    def made() -> Auto:
        return Auto(aggregator=lambda: FedAvgM(min_train_nodes=1, min_available_nodes=1, server_momentum=0.5))

    whole = run(sites(), 4, strategy=made(), folder=tmp_path / "whole")
    run(sites(), 2, strategy=made(), folder=tmp_path / "part")
    resumed = run(sites(), 4, strategy=made(), folder=tmp_path / "part", resume=True)
    assert resumed.summary["sites"] == whole.summary["sites"]
    for site in range(3):
        assert torch.equal(resumed.model_for(site).weight, whole.model_for(site).weight)


def test_a_site_that_cannot_score_is_served_everyones_model(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of, asked = clients.rows_of, []

    def lacking(node, client):  # the last question, after six rounds of training
        asked.append(client)
        rows, fold = rows_of(node, client)
        return (rows + 10**6 if client == 1 and asked.count(1) > 6 else rows), fold

    monkeypatch.setattr(clients, "rows_of", lacking)
    result = run(sites())
    assert result.summary["sites"][1]["train_with"] == ["site 2"]  # everyone but the turned site
    assert result.summary["sites"][0]["train_with"] == []  # who does not depend on it
    assert result.sites["everyone_accuracy"].notna().all()


@pytest.mark.parametrize(
    ("spoilt", "why"), [(["arm/0"], "no model in reply"), ([], "model must be finite")], ids=["lost", "NaN"]
)
def test_models_that_did_not_train_are_left_out_by_name(
    spoilt: list, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_arms = clients.train_arms
    from fedclust.clients import train

    def lying(node, asked, weights):
        made = train_arms(node, asked, weights)
        for name in spoilt:
            del made[2][name]
        for name, model in made[2].items() if not spoilt else ():
            made[2][name] = ArrayRecord({key: Array(each.numpy() * np.nan) for key, each in model.items()})
        return made

    monkeypatch.setattr(train, "train_arms", lying)
    result = run(sites(), 3)
    reasons = {(each["client"], each["reason"]) for line in result.rounds["failures"] for each in line}
    assert {client for client, _ in reasons} == {2}
    assert any(f"arm/0: {why}" in reason for _, reason in reasons)
    assert result.sites["chosen_accuracy"][1] > 0.8


MODEL = ArrayRecord({"w": Array(np.zeros(1000, dtype=np.float32))})  # 4 kB


@pytest.mark.parametrize(
    ("asked", "rows", "number", "found"),
    [
        (None, 100, 4, True),
        (None, 100, 11, False),
        ("all", 100, 1, False),
        ("none", 100, 4, False),
        (None, 5000, 4, False),  # 8 coalitions with it, 6 models each: 240,000 rows in an epoch
        ("all", 5000, 4, True),
    ],
)
def test_coalitions_are_for_a_handful_of_small_sites(asked, rows, number, found) -> None:
    assert worthwhile(asked, np.full(number, rows), MODEL) is found


def test_what_it_costs_is_said_before_round_1() -> None:
    cost, given_away = notes(4, 30, MODEL, trained=True)
    # 2³ coalitions have a site, each with 5 folds and all rows, but the run's own: 47 models of 4 kB.
    assert "15 coalitions of 4 sites: in each of its rounds a site trains 47 models, 0.19 MB" in cost
    assert "1,410 trainings of a site" in cost
    assert "each site's own travel" in given_away
    (refused,) = notes(4, 30, MODEL, trained=False)
    assert "no coalitions are trained" in refused


def test_a_site_that_lies_keeps_others_away_and_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = clients.scores

    def lying(node, asked):
        found, errors = scores(node, asked)
        made = found[1].fits.reshape(-1, 5).copy()
        made[:-1] = 0.0, 0.5, 1e-9, 1.0, 1e-9  # all models are the wrong way round there
        found[1] = replace(found[1], fits=made.ravel())
        return found, errors

    monkeypatch.setitem(WORK, ScoresQuestion.kind, lying)
    result = run(sites(turned=None))
    assert [each["client"] for each in result.summary["site_findings"]] == [1]
    assert result.sites["train_with"].tolist() == [["site 2"], [], ["site 0"]]


def model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype=np.float32)), "n": Array(np.array(7))})


@pytest.mark.parametrize(
    ("own", "why", "turned"),
    [
        # Folds move by (1, 0) twice, (0, 1) twice and (1, 1), (3, 3) in sum. (1, 0) and the sum of the
        # others, (2, 3), have a cosine of 2/√13 = 0.55, which is the least. From a start of length 5, what
        # moves by 0.5 or less is never too long.
        ((1.0, 1.0), "", False),
        ((-1.0, 0.0), "", True),
        ((1.0, -1.05), "", True),  # a cosine of −0.02, 0.58 lower
        ((1.0, -0.8), "", False),  # 0.11
        # Lengths 1, 1, 1, 1, √2 and √200: the median is 1.
        ((10.0, 10.0), "at most 10 times as long as the median of 1, got length 14.1", False),
    ],
)
def test_an_update_is_compared_with_those_without_a_fold(own, why, turned) -> None:
    start = model(3.0, 4.0)
    moved = [model(3.0 + x, 4.0 + y) for x, y in ((1, 0), (1, 0), (0, 1), (0, 1), (1, 1))]
    reply = Reply(0, 0, start, model(3.0 + own[0], 4.0 + own[1]), 5, 0.5, np.zeros(1))
    found, away = _contradiction(reply, [(each, start) for each in moved])
    assert found.endswith(why)
    assert (bool(found), away) == (bool(why), turned)


def test_the_parameter_is_checked() -> None:
    with pytest.raises(ValueError, match="coalitions must be all or none or None"):
        Parameters(coalitions="some")  # type: ignore[arg-type]


@pytest.mark.parametrize("chooses", [False, True])
def test_a_site_with_three_events_is_served_everyone_s_model(
    chooses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events follow another column than the others', so that by its scores it would leave."""
    draws, data = np.random.default_rng(3), []
    for site in range(3):
        inputs = draws.normal(size=(80, 2)).astype(np.float32)
        last = np.argsort(-inputs[:, 0 if site else 1])
        happened = np.isin(np.arange(80), last[: 40 if site else 3])
        time = np.where(happened, 1 + last.argsort(), 90 + np.arange(80))
        rows = inputs, np.stack([time, happened], axis=1).astype(np.float32)
        data.append((rows, None, rows))
    if chooses:
        monkeypatch.setattr(TimeWords, "few", Words.few)
        monkeypatch.setattr(TimeWords, "counted", Words.counted)
    training = LocalTraining(learning_rate=0.3, epochs=4, batch_size=20)
    result = fedclust.simulate(Auto(), nn.Linear(2, 8), data, rounds=6, training=training, device="cpu")
    served = result.summary["sites"][0]
    assert (len(served["train_with"]) == 2) is not chooses
    assert ("Only 3 of its training rows had the event" in served["text"]) is not chooses


def test_after_a_site_has_left_nobody_trains_with_a_turned_one_either() -> None:
    # Sites 4 and 5 of six are turned: no coalition of the other four has trained, so site 0 stays out.
    good, turned = [0.9, 0.5, 0.1, -0.8, 0.2], [0.1, 0.5, 0.1, 0.8, 0.2]
    kind = np.arange(6) > 3
    fits = np.where(np.equal.outer(kind, kind)[..., None], good, turned)
    together = np.where(kind[:, None], turned, good)
    listed, nothing = coalitions(6), np.zeros(0, dtype=np.int64)
    own = [each for each in listed if 0 in each]
    # Everyone but site 1 predicts its rows best, with the turned ones.
    brier = np.repeat([0.1 if each == (0, 2, 3, 4, 5) else 0.5 for each in own], 2)
    scores = Scores.of(brier[:, None] * np.ones(20))
    choice = choose(own, scores, apart=[4, 5])
    assert own[choice.arm.coalition] == (0,)
    model = ArrayRecord({"weight": Array(np.zeros(1))})
    chosen = Chosen(
        model, {}, (choice, *[None] * 5), np.zeros((6, 2)), fits, together, nothing, scores={"0": scores}
    )
    trained = CoalitionModels(listed, (), nothing, nothing, chosen=chosen)
    arms = chosen_without(trained, [1], np.full((6, 2), 10), Words())
    assert {site: listed[arm.coalition] for site, arm in arms.items()} == {0: (0,)}
