"""Auto on real digits: twelve clients, a look after four rounds, three rounds of trials."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from sklearn.metrics import adjusted_rand_score
from torch import nn

from fedclust import simulate
from fedclust.aggregation.flower import NotFinite
from fedclust.clustering.auto import Parameters, most_spending
from fedclust.federation import Clusters, Federation, FederationError
from fedclust.grids.client_grid import ClientGrid
from fedclust.messages.models import from_state
from fedclust.proof import Comparison
from fedclust.settings.composition import ConfigError, compose
from fedclust.strategies import Auto, ClusteredStrategy, auto as auto_module
from fedclust.strategies.auto import Trial, TrialMemory, placed
from fedclust.training import LocalTraining
from tests.strategies.helpers import Keeping, Lossy, assert_same_models, built, kept

CONVENTIONS = ["partition=conventions", "partition.groups=[8,4]"]
ROTATION = ["partition=domains", *(f"partition.{name}=0" for name in ("noise", "blur", "invert"))]
ROTATION += ["partition.clean=0.5", "partition.rotation=0.5"]
IID = ["partition=iid"]
ADAM = ["aggregator=fedadam", "aggregator.eta=0.03"]
ROUNDS = 8
TRAINING = LocalTraining(learning_rate=0.5, steps=5, batch_size=8)


def build(*overrides: str, seed: int = 0, made=None):
    """Make the strategy, the grid of its clients and the model they start from."""
    small = f"partition.num_clients=12 participation=0.8 rounds={ROUNDS} seed={seed} training.steps=12"
    soon = ["strategy.parameters.warmup=4", "strategy.parameters.probation=2"]
    config = compose(["strategy=auto", *small.split(), *soon, *overrides])
    return built(config, made)


def run(*overrides: str, rounds: int = ROUNDS, made=None):
    """Run a strategy; return it and the grid of its clients."""
    strategy, grid, initial = build(*overrides, made=made)
    strategy.start(grid, initial, rounds)
    return strategy, grid


def agrees(strategy: Auto, grid: ClientGrid) -> bool:
    """Return whether the clusters are the known groups."""
    return adjusted_rand_score(Federation(grid).describe().groups, strategy.assignment) == 1


def trials_of(strategy: Auto) -> list[dict]:
    return strategy.findings(strategy.clusters).summary["trials"]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("partition", "number"), [(CONVENTIONS, 2), (ROTATION, 2), (IID, 1)])
def test_known_groups_are_kept_and_nothing_else(partition: list[str], number: int, seed: int, watch) -> None:
    strategy, grid, initial = build(*partition, seed=seed)
    counting = Lossy(grid)
    strategy.observer = watch
    strategy.start(counting, initial, ROUNDS)
    found = strategy.findings(strategy.clusters).summary
    assert len(strategy.clusters.models) == number
    assert found["decision"].startswith("one cluster: none" if number == 1 else "2 clusters: 1 of")
    if number == 2:
        assert agrees(strategy, grid)
        (kept,) = [trial for trial in found["trials"] if trial["kept"]]
        assert kept["rounds"] == 3
        assert kept["p_value_corrected"] <= kept["level"] == 0.05  # the only look
        assert "by updates, better on held-out rows (p " in watch.assignments[-1][2]
    # Neither prototypes nor anything else about classes is asked for, but the label counts of descriptions.
    losses = {"query.losses"} if number == 2 else set()
    assert strategy.run.federation.asked == {"query.description", "query.proof", "query.update"} | losses
    # All that was trained beside the run is on record, and within what was said before round 1.
    beside = counting.trained - sum(len(record["cohort"]) for record in watch.rounds)
    assert found["trial_trainings"] == beside
    assert sum(record["strategy"].get("trial_trainings", 0) for record in watch.rounds) == beside
    assert 0 < beside <= most_spending(12, 0.8, ROUNDS, strategy.parameters).trainings
    told = [trial for record in watch.rounds for trial in record["strategy"].get("trials", ())]
    assert told == found["trials"]


def test_where_nothing_is_kept_the_run_is_the_one_of_one_model() -> None:
    strategy, plain = (run(*IID, made=made)[0] for made in (None, ClusteredStrategy))
    assert trials_of(strategy)
    assert_same_models(plain, strategy)


@pytest.mark.parametrize(("after", "rounds"), [(5, ROUNDS), (6, ROUNDS), (10, 12)])
def test_a_run_resumed_on_trial_ends_the_same(after: int, rounds: int, tmp_path) -> None:
    # After round 10 the two clusters are on trial as one.
    whole, grid, initial = build(*CONVENTIONS, *ADAM)
    Keeping(whole, tmp_path, after)
    whole.start(grid, initial, rounds)
    resumed, grid, initial = build(*CONVENTIONS, *ADAM, "engine.num_nodes=3")
    resumed.start(grid, initial, rounds, resume=kept(tmp_path, after))
    assert len(whole.clusters.models) == 2
    assert trials_of(whole) == trials_of(resumed)
    assert_same_models(whole, resumed)


def proposing(monkeypatch: pytest.MonkeyPatch, *looks: list[int]) -> None:
    """Let the first looks propose these parts of clients 0 to 7, and later ones none."""
    left = iter(looks)

    def proposed(strategy: Auto, clusters: Clusters, cluster: int, _federation: Federation):
        labels = np.array(next(left, [0] * 8))
        return ([Trial(cluster, labels, ())] if labels.any() else []), 0

    monkeypatch.setattr(Auto, "_proposed", proposed)


def test_a_client_in_the_wrong_part_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    # Clients 4 to 7 name the classes the other way round; the proposal has client 3 with them.
    proposing(monkeypatch, [0, 0, 0, 1, 1, 1, 1, 1])
    asked, losses = list[int](), Federation.losses

    def counted(federation: Federation, *question):
        asked.append(federation.server_round)
        return losses(federation, *question)

    monkeypatch.setattr(Federation, "losses", counted)
    result = own_run(own_clients(8, 12))
    assert asked.count(7) == 1  # the losses by which clients are placed also tell that none must move
    assert result.summary["assignment"] == [0] * 4 + [1] * 4
    (kept,) = [trial for trial in result.summary["trials"] if trial["kept"]]
    assert kept["sizes"] == [4, 4]


@pytest.mark.parametrize("conventions", [1, 2])
def test_two_clusters_become_one_unless_they_are_better_apart(conventions: int, monkeypatch) -> None:
    # A verdict that finds anything better splits clients that are all alike, too, after round 7; the next
    # look, after round 8, has the two clusters together on trial for three rounds.
    proposing(monkeypatch, [0, 0, 0, 0, 1, 1, 1, 1])
    monkeypatch.setattr("fedclust.clustering.auto.corrected", lambda *_: (0.01,))
    monkeypatch.setattr("fedclust.clustering.auto.choose", lambda *_: 0)
    monkeypatch.setattr("fedclust.clustering.auto.most_promising", lambda *_: [0])
    monkeypatch.setattr(Auto, "_moved", lambda _, clusters, __: clusters)
    monkeypatch.setattr("fedclust.strategies.auto.placed", lambda trials, *_, **__: list(trials))
    clients = own_clients(8, 12)
    summary = own_run(clients if conventions == 2 else clients[:4] * 2, rounds=12).summary
    (union,) = [trial for trial in summary["trials"] if trial["source"] == "union"]
    assert (union["cluster"], union["sizes"], union["rounds"]) == (0, [8], 3)
    assert union["kept"] == (conventions == 1)
    assert summary["num_clusters"] == conventions
    number = "one cluster" if conventions == 1 else "2 clusters"
    assert summary["decision"].startswith(f"{number}: 1 of 2 groupings from 2 looks proved better")
    assert ("one pair of clusters joined again" in summary["decision"]) == (conventions == 1)
    assert (union["p_value"] <= 0.05) == (conventions == 2)


def test_clusters_that_were_joined_again_are_none_that_were_shown_to_be_better() -> None:
    kept = {"kept": True, "better_for": 9, "voted": 10, "p_value_corrected": 0.002, "source": "updates"}
    union = {"kept": True, "better_for": 1, "voted": 6, "p_value_corrected": 0.8, "source": "union"}
    findings = SimpleNamespace(summary={"trials": [kept, union]})
    run = SimpleNamespace(findings=lambda _: findings, clusters=None, assignment=np.array([0, 0, 1]))
    verdict = Auto.tested(run)
    assert verdict.text == "Train in 2 groups: after their trial their models were better for 9 of 10 clients"
    assert verdict.p_value == 0.002


def test_one_client_of_many_is_split_off_by_its_own_rows() -> None:
    # Client 9 alone names the classes the other way round. Of ten votes the most favourable does not count.
    clients = own_clients(20, 40)[:9] + own_clients(20, 40)[19:]
    summary = own_run(clients, rounds=12).summary
    assert summary["assignment"] == [0] * 9 + [summary["assignment"][9]]
    assert summary["cluster_sizes"].count(1) == 1
    kept = [trial for trial in summary["trials"] if trial["kept"]]
    assert [trial["sizes"] for trial in kept] == [[9, 1]]
    assert kept[0]["least_gain"] is None  # its own rows have decided, of which the groups' gain is no measure
    # Nor is it joined with the others again: there is no trial of a union that is kept.
    assert {trial["source"] for trial in summary["trials"]} == {"updates", "union"}


def test_two_clusters_stay_two_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody answers a comparison after round 7, in which the clusters were made.
    proposing(monkeypatch, [0, 0, 0, 0, 1, 1, 1, 1])
    asked = auto_module.ask_differences

    def silent(federation: Federation, *sides, **how):
        measured, failures = asked(federation, *sides, **how)
        return (measured if federation.server_round <= 7 else {}), failures

    monkeypatch.setattr(auto_module, "ask_differences", silent)
    summary = own_run(own_clients(8, 12), rounds=12).summary
    (union,) = [trial for trial in summary["trials"] if trial["source"] == "union"]
    assert (union["kept"], union["voted"]) == (False, 0)
    assert summary["num_clusters"] == 2


def test_a_part_keeps_clients_that_vote() -> None:
    # Client 6 has no held-out rows: were client 3 to leave 6 and 7, only one of a part's two would vote.
    members = np.arange(8)
    trial = Trial(0, np.array([0, 0, 0, 1, 0, 0, 1, 1]), (ArrayRecord(), ArrayRecord()))
    federation = SimpleNamespace(
        losses=lambda _, clients: {each: np.array([each > 5, each <= 5], dtype=float) for each in clients},
        describe=lambda: SimpleNamespace(num_validation=np.array([9, 9, 9, 9, 9, 9, 0, 9])),
    )
    assert placed([trial], members, federation, anew=2)[0].labels.tolist() == trial.labels.tolist()
    assert placed([trial], members, federation, anew=1)[0].labels.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    # Client 5 may leave its part of three, also where 3 and 6 stay.
    three = replace(trial, labels=np.array([0, 0, 2, 1, 2, 2, 1, 1]), models=(ArrayRecord(),) * 3)
    wanted = np.array([0, 0, 2, 0, 2, 0, 1, 1])
    federation.losses = lambda _, clients: {each: (np.arange(3) != wanted[each]) * 1.0 for each in clients}
    assert placed([three], members, federation, anew=2)[0].labels.tolist() == [0, 0, 2, 1, 2, 0, 1, 1]


def test_clients_move_to_the_cluster_whose_model_fits_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # The proposal has client 3 on the wrong side, and is split as it is.
    proposing(monkeypatch, [0, 0, 0, 1, 1, 1, 1, 1])
    monkeypatch.setattr("fedclust.strategies.auto.placed", lambda trials, *_, **__: list(trials))
    summary = own_run(own_clients(8, 12), rounds=12).summary
    assert summary["assignment"] == [0] * 4 + [1] * 4
    (kept,) = [trial for trial in summary["trials"] if trial["kept"]]
    assert kept["sizes"] == [3, 5]


def test_a_node_lost_on_trial_costs_its_clients_only(watch) -> None:
    # Client 3 answers its training in the run, and none of those on trial: the second message of a round.
    strategy, grid, initial = build(*CONVENTIONS, "participation=1")
    strategy.observer = watch
    lost = lambda client, kind, number: client == 3 and kind == "train" and number > 5  # noqa: E731
    strategy.start(Lossy(grid, lost), initial, ROUNDS)
    failures = [failure for record in watch.rounds for failure in record["failures"]]
    assert {failure["client"] for failure in failures} == {3}
    assert {failure["phase"] for failure in failures} == {"trial", "train"}
    assert agrees(strategy, grid)


def test_of_many_clients_a_few_are_asked_and_the_others_find_their_part() -> None:
    asked = "strategy.parameters.most_asked=6"
    strategy, grid = run(*CONVENTIONS, asked, "participation=0.5", "training.steps=12")
    assert agrees(strategy, grid)
    dropped = [sum(trial["sizes"]) for trial in trials_of(strategy) if trial["rounds"] == 1]
    tested = [sum(trial["sizes"]) for trial in trials_of(strategy) if trial["rounds"] > 1]
    assert max(dropped, default=0) <= 6
    assert set(tested) == {12}


def test_a_part_goes_on_with_the_optimiser_that_was_on_trial() -> None:
    # The look comes after round 4, the split after round 7.
    strategy, _ = run(*CONVENTIONS, *ADAM, rounds=7)
    first, second = strategy.clusters.aggregators
    assert len(strategy.clusters.models) == 2
    # Each trained on clients of its own, so each has moments of its own.
    assert first.m_t.keys() == second.m_t.keys()
    assert any((first.m_t[name] != second.m_t[name]).any() for name in first.m_t)


def test_a_model_that_overflows_ends_its_trial_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_, **__):
        raise NotFinite("round 5: not finite")

    monkeypatch.setattr("fedclust.strategies.auto.train_beside", broken)
    strategy, _ = run(*CONVENTIONS, rounds=7)
    assert {trial["why"] for trial in trials_of(strategy)} == {"round 5: not finite"}
    assert len(strategy.clusters.models) == 1


def test_what_gains_by_one_vote_alone_has_not_gained(monkeypatch) -> None:
    # A mean above 0, but below it without the most and the least favourable vote: nothing is more promising.
    found = Comparison(0.02, 0.5, 12, 1, 12, gain_of_others=-0.01, error=0.1, error_of_others=0.1)
    monkeypatch.setattr("fedclust.strategies.auto._compare_with_whole", lambda *_: found)
    summary = own_run(own_clients(8, 12)).summary
    assert {trial["why"] for trial in summary["trials"]} == {"after one round: no gain"}


def test_what_the_end_cuts_short_is_on_record() -> None:
    strategy, _ = run(*IID, rounds=6)  # no look: its trial would end in round 7
    assert strategy.findings(strategy.clusters).summary["decision"] == "one cluster: no trial took place"
    trials = (Trial(0, np.array([0] * 6 + [1] * 6), (ArrayRecord(),) * 2),) * 2
    found = strategy.findings(replace(strategy.clusters, memory=TrialMemory(1, trials))).summary
    assert "2 groupings still on trial when the run ended" in found["decision"]
    assert [trial["why"] for trial in found["trials"]] == ["the run ended before it was decided"] * 2


def own_clients(number: int, validation: int, unheld: Iterable[int] = ()) -> list:
    """Make clients of 40 training rows; from the middle on they name the two classes the other way round."""
    draws = np.random.default_rng(0)
    clients = []
    for client in range(number):
        parts = []
        for rows in (40, 0 if client in unheld else validation, 10):
            inputs = draws.normal(size=(rows, 4)).astype(np.float32)
            parts.append((inputs, (inputs[:, 0] > 0).astype(np.int64) ^ (client >= number // 2)))
        clients.append(tuple(parts))
    return clients


def of(num_clients: int) -> Any:
    """Clients as far as notes look at them."""
    described = SimpleNamespace(rows=np.full(num_clients, 20), named_groups=())
    return SimpleNamespace(num_clients=num_clients, describe=lambda: described)


def own_run(clients: list, rounds: int = ROUNDS, **parameters: int):
    looking = {"warmup": 4, "probation": 2, "coalitions": "none"}
    strategy = Auto(parameters=Parameters(**{**looking, **parameters}))
    torch.manual_seed(0)  # whatever ran before
    return simulate(strategy, nn.Linear(4, 2), clients, rounds=rounds, training=TRAINING, proof=True)


def test_a_client_without_held_out_rows_is_grouped_but_does_not_vote() -> None:
    result = own_run(own_clients(8, 12, unheld=[2]))
    assert result.summary["adjusted_rand_index"] is None  # nobody says what the groups are
    assert result.summary["assignment"] == [0] * 4 + [1] * 4
    (kept,) = [trial for trial in result.summary["trials"] if trial["kept"]]
    assert kept["voted"] == 7
    assert result.verdict["grouped"]


def test_four_clients_are_enough_and_two_are_not() -> None:
    assert own_run(own_clients(4, 12)).summary["assignment"] == [0, 0, 1, 1]
    two = own_run(own_clients(2, 12))
    assert (two.summary["num_clusters"], two.summary["trials"]) == (1, [])
    assert "trials cost" not in two.summary["decision"]
    looking = Auto(parameters=Parameters(coalitions="none"))
    (caution,) = looking.cautions(2, 130)
    groups = "clients must be >= 4, for two groups (strategy.parameters.min_cluster_size), got 2"
    assert caution == f"no groups can be found: {groups}"
    assert looking.notes(of(2), 130, from_state({})) == []
    assert Auto().cautions(2, 130) == []  # two sites choose by cross-fitting
    large = ArrayRecord([np.zeros(2_000_000)])  # 16 MB: 11 models a site are more than 64 MB
    refused, caution = Auto().notes(of(2), 130, large)
    assert refused.startswith("no coalitions are trained")
    assert caution == f"no groups can be found: {groups}"


def test_no_held_out_rows_are_refused_before_round_1() -> None:
    with pytest.raises(ConfigError, match="personal=auto must have validation rows to choose on"):
        own_run(own_clients(4, 0), 2)
    strategy, given = Auto(parameters=Parameters(coalitions="none")), {"rounds": 2, "training": TRAINING}
    with pytest.raises(FederationError, match="strategy auto must have clients with held-out rows"):
        simulate(strategy, nn.Linear(4, 2), own_clients(4, 0), proof=True, personal="none", **given)


@pytest.mark.parametrize("strategy", ["auto", Auto()])
def test_rows_are_held_out_of_clients_that_bring_none(strategy) -> None:
    # 40 rows: 8 for tests, a tenth of the others held out.
    clients = [train for train, *_ in own_clients(4, 0)]
    result = simulate(strategy, nn.Linear(4, 2), clients, rounds=2, training=TRAINING)
    assert result.summary["personal"]["choice"] == "auto"


def test_three_finalists_may_all_be_better() -> None:
    draws = np.random.default_rng(0)  # four codings of six classes
    labels = draws.integers(0, 6, (16, 160))
    rows = (2 * np.eye(6, 8)[labels] + 0.4 * draws.normal(size=(16, 160, 8))).astype("float32")
    labels = (labels + np.repeat([0, 1, 3, 4], 4)[:, None]) % 6
    torch.manual_seed(0)
    strategy = Auto(parameters=Parameters(finalists=3, warmup=3, probation=3))
    training = LocalTraining(learning_rate=0.2, batch_size=16, epochs=2)
    result = simulate(
        strategy, nn.Linear(8, 6), list(zip(rows, labels, strict=True)), rounds=8, training=training
    )
    decided = [each for each in result.summary["trials"] if each["rounds"] > 1 and "level" in each]
    assert [each["parts"] for each in decided] == [4, 2, 3]  # the preferred one first
    assert sum(each["kept"] for each in decided) == 1


def test_what_is_said_before_round_1() -> None:
    strategy = Auto(participation=0.8)
    assert strategy.cautions(30, 17) == []
    (caution,) = strategy.cautions(30, 16)
    assert "rounds must be >= 17, 10 before the first look" in caution
    most = most_spending(30, 0.8, 130, Parameters())
    (note,) = strategy.notes(of(30), 130, from_state({}))
    assert note.startswith(f"4 looks for groups; trials train clients {most.trainings} times at most")
