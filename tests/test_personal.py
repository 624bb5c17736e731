"""Whole runs with personal layers."""

import io
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import nn

import fedclust
from fedclust.clients.app import WORK
from fedclust.data.arrays import from_arrays
from fedclust.data.dataset import FederatedData
from fedclust.messages.evaluation import PersonalQuestion
from fedclust.personal.layers import Auto, Finetune
from fedclust.results import SavedRun, comparable, print_report
from fedclust.results.page.run import view_run
from fedclust.results.summary import collapsed_line
from fedclust.runs import runner
from fedclust.serving import Served
from fedclust.settings.composition import ConfigError
from fedclust.settings.run_options import NO_BETTER_THAN
from fedclust.strategies import ClusteredStrategy
from fedclust.support.layout import CONF
from fedclust.support.rng import generator
from tests.fedclust.results.page.conftest import Page

# -- Two classes, by hand --------------------------------------------------------------------------------

# The model answers class 1 where x > 0: its logits are 0 and x. Training hardly moves it.
STILL = fedclust.LocalTraining(learning_rate=1e-12, batch_size=10, epochs=1, mode="sequential")


def _still() -> nn.Module:
    network = nn.Linear(1, 2)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.0], [1.0]]))
        network.bias.zero_()
    return network


def _client(counts: tuple[int, int], test: list[tuple[float, int]]) -> tuple:
    """Training rows with so many labels of each class; no validation rows; test rows."""
    labels = np.repeat([0, 1], counts)
    x, y = zip(*test, strict=True)
    rows = np.zeros((len(labels), 1), dtype="float32")
    return (rows, labels), (rows[:0], labels[:0]), (np.array(x, dtype="float32")[:, None], np.array(y))


# Four clients with ten rows each: n = [9, 1], [9, 1], [1, 9], [1, 9], so q = 1/2 for both classes, N = 40.
#   X² = N (Σ n_ic² / (n_i N_c) − 1) = 40 (4 · (81 + 1)/(10 · 20) − 1) = 25.6, with 3 degrees of freedom
#   ρ̂ = (X²/(C − 1) − (K − 1)) / (N − Σ n_i²/N − (K − 1)) = (25.6 − 3)/(40 − 10 − 3) = 22.6/27
#   m̂ = (1 − ρ̂)/ρ̂ = 4.4/22.6 = 0.1947, but at least 1/K = 1/4
#   P̂(0) of the first two = (9 + 1/8)/(10 + 1/4) = 0.89024, so ln(P̂/q) = 0.5769 and −1.5163:
# they answer class 1 only where x > 0.5769 + 1.5163 = 2.0932, and the others where x > −2.0932.
SHIFTS = [0.576887, -1.516347]
FIRST = [(-1.0, 0), (1.0, 0), (2.0, 0), (3.0, 1)]
SECOND = [(1.0, 1), (-1.0, 1), (-2.0, 1), (-3.0, 0)]
FOUR = [_client((9, 1), FIRST), _client((9, 1), FIRST), _client((1, 9), SECOND), _client((1, 9), SECOND)]


def test_the_flip_that_arithmetic_predicts() -> None:
    found = fedclust.simulate("fedavg", _still(), FOUR, rounds=1, training=STILL, personal="prior")
    # Without the correction x = 1 and 2 count as class 1 (−1 and −2 as class 0): two of four are right.
    # What is served has the correction.
    assert found.summary["without_layer"]["mean_client_accuracy"] == 0.5
    assert found.summary["mean_client_accuracy"] == 1.0
    assert found.clients["accuracy_none"].tolist() == [0.5] * 4
    personal = found.summary["personal"]
    assert personal["choice"] == "prior"
    assert personal["clients"] == {"none": 0, "prior": 4}
    assert personal["failures"] == []
    assert personal["figures"]["none"]["mean_client_accuracy"] == 0.5
    assert personal["figures"]["prior"]["mean_client_accuracy"] == 1.0
    # Brier scores of the first client: its shares 1 + 0.9² + 0.1² − 2 (0.9 · 3/4 + 0.1 · 1/4) = 0.42; without
    # the correction, at σ(−1), σ(1), σ(2) and σ(3), (0.14 + 1.07 + 1.55 + 0.00)/4 = 0.69; with it 0.19.
    assert "collapsed" not in found.summary
    plain = fedclust.simulate("fedavg", _still(), FOUR, rounds=1, training=STILL)
    assert plain.summary["collapsed"] is True
    assert found.clients["personal"].tolist() == ["prior"] * 4
    assert found.clients["accuracy"].tolist() == [1.0] * 4
    shifts = np.stack(found.clients["prior_shift"].tolist())
    np.testing.assert_allclose(shifts, [SHIFTS, SHIFTS, SHIFTS[::-1], SHIFTS[::-1]], atol=1e-6)
    # Predictions carry it: odds of e^(x − 2.0932) for class 1.
    odds = np.exp(2.0 + SHIFTS[1] - SHIFTS[0])
    chances = found.predict(0, np.array([[2.0]], dtype="float32"))
    assert chances[0, 1].item() == pytest.approx(odds / (1 + odds), abs=1e-5)
    assert found.predict(2, np.array([[-2.0]], dtype="float32")).argmax().item() == 1
    assert found.model_for(0)(torch.tensor([[2.0]])).argmax().item() == 1  # the network itself is without


def test_fine_tuning_by_hand() -> None:
    how = Finetune(epochs=2, learning_rate=1.0)
    four = [(train, test, test) for train, _, test in FOUR]
    found = fedclust.simulate("fedavg", _still(), four, rounds=1, training=STILL, personal=how)
    # All training rows are at 0 and in one batch, so each pass adds n_c/n − p to the biases: of 9 and 1,
    #   from p = 1/2: ±0.4, so p(0) = 1/(1 + e^−0.8) = 0.6900; then ±(0.4 + 0.9 − 0.6900) = ±0.6100.
    # They answer class 1 where x > 1.2200: right but for x = 2. The others, where x > −1.2200, but for −2.
    assert found.clients["accuracy"].tolist() == [0.75] * 4
    # The wrong class has odds e^±(x − 1.2200), of −1, 1, 2 and 3, of which 2 is wrong; a row's Brier score is
    # 2p², of that class's chance p.
    odds = np.exp([-1 - 1.22, 1 - 1.22, 2 - 1.22, 1.22 - 3])
    brier = 2 * np.square(odds / (1 + odds)).mean()
    np.testing.assert_allclose(found.clients["validation_brier_finetune"], brier, atol=1e-4)


@pytest.mark.parametrize("layers", ["all", "last"])
def test_fine_tuning_is_the_literal_loop(layers: str) -> None:
    draws, network = np.random.default_rng(1), nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    clients = [[(draws.normal(size=(n, 2)).astype("f4"), draws.integers(0, 2, n)) for n in (own, 9, 9)]
               for own in (7, 1, 12, 3)]  # fmt: skip
    in_rounds = {"schedule": "exponential", "decay": 0.1, "proximal_mu": 9.0}
    training = fedclust.LocalTraining(learning_rate=0.3, batch_size=4, epochs=1, momentum=0.5, **in_rounds)
    personal = Finetune(epochs=3, layers=layers)
    found = fedclust.simulate("local", network, clients, rounds=1, training=training, personal=personal)
    for client, parts in enumerate(clients):
        train, held_out, test = (tuple(map(torch.from_numpy, part)) for part in parts)
        model, order = found.model_for(client), generator(0, "batches", 2, client)
        tuned = model.parameters() if layers == "all" else model[2].parameters()
        optimiser = torch.optim.SGD(tuned, lr=0.3, momentum=0.5)
        for _ in range(3):
            for rows in np.array_split(places := order.permutation(len(train[0])), range(4, len(places), 4)):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(train[0][rows]), train[1][rows]).backward()
                optimiser.step()
        for own, literal in zip(found.finetuned(client).parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(own, literal)
        row = found.clients.iloc[client]
        right = nn.functional.one_hot(held_out[1], 2)
        expected = (model(held_out[0]).softmax(1) - right).square().sum(1).mean()
        assert row["validation_brier_finetune"] == pytest.approx(expected.item(), rel=1e-3)
        right = (model(test[0]).argmax(1) == test[1]).float().mean()
        assert row["accuracy"] == pytest.approx(right.item())


def test_on_top_of_the_model_that_serves(tmp_path: Path) -> None:
    class Halves(ClusteredStrategy):
        def begin(self, federation, model):
            return fedclust.federation.Clusters.of(np.array([0, 0, 1, 1]), model)

    found = fedclust.simulate(
        Halves(), _still(), FOUR, rounds=1, training=STILL, personal="prior", proof=True, serve="best",
        folder=tmp_path,
    )  # fmt: skip
    # Nobody has rows to prove the halves on, so all are served the model for all and its class shares count.
    assert set(found.clients["served"]) == {"common"}
    assert found.summary["personal"]["figures"]["prior"]["mean_client_accuracy"] == 1.0
    beside = found.summary["compare"]["fedavg"]
    assert beside["personal"]["figures"]["prior"]["mean_client_accuracy"] == 1.0
    # Served their own, they are alike within their cluster: nothing is left to correct.
    own = fedclust.simulate(Halves(), _still(), FOUR, rounds=1, training=STILL, personal="prior")
    assert own.summary["personal"]["figures"]["prior"]["mean_client_accuracy"] == 0.5


def test_a_choice_between_layers_needs_rows_to_choose_on() -> None:
    with pytest.raises(ValueError, match="^personal=auto must have validation rows to choose on"):
        fedclust.simulate("fedavg", _still(), FOUR, rounds=1, training=STILL, personal="auto")
    with pytest.raises(ValueError, match="^personal must be one of none, prior, finetune, auto"):
        fedclust.simulate("fedavg", _still(), FOUR, rounds=1, training=STILL, personal="most")
    pairs = [(rows, labels) for (rows, labels), _, _ in FOUR]
    thirty = [(np.tile(rows, (3, 1)), np.tile(labels, 3)) for rows, labels in pairs]
    found = fedclust.simulate("fedavg", _still(), thirty, rounds=1, training=STILL, personal="auto")
    assert found.clients["num_train"].tolist() == [22] * 4  # 6 of 30 rows are tested on, 2 held out


def test_a_strategy_s_own_layers() -> None:
    class Layered(ClusteredStrategy):
        own_personal = Finetune

    found = fedclust.simulate(Layered(), _still(), FOUR, rounds=1, training=STILL)
    assert found.summary["personal"]["choice"] == "finetune"
    none = fedclust.simulate(Layered(), _still(), FOUR, rounds=1, training=STILL, personal="none")
    assert "personal" not in none.summary
    assert "personal" not in none.clients
    assert none.predict(0, np.array([[2.0]], dtype="float32")).argmax().item() == 1


# -- Digits ---------------------------------------------------------------------------------------------

QUICK = [
    "strategy=fedgwc",
    "rounds=3",
    "partition=dirichlet",
    "partition.num_clients=8",
    "training.mode=sequential",
    "personal=auto",
    "personal.epochs=1",
]


def _told(summary: dict) -> dict:
    return comparable([summary["personal"]])[0]


def _assert_same(run: SavedRun, other: SavedRun) -> None:
    assert comparable([run.summary]) == comparable([other.summary])
    costs = ["bytes_down", "bytes_up"]
    pd.testing.assert_frame_equal(run.clients.drop(columns=costs), other.clients.drop(columns=costs))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return fedclust.run([*QUICK, f"output_dir={tmp_path_factory.mktemp('whole') / 'run'}"]).saved


def test_every_strategy_has_its_layers_beside_none(whole: SavedRun) -> None:
    table = whole.clients
    for summary in (whole.summary, whole.summary["compare"]["fedavg"], whole.compared["fedavg"].summary):
        personal = summary["personal"]
        assert list(personal["figures"]) == ["none", "prior", "finetune", "auto"]
        for key in ("mean_client_accuracy", "macro_f1", "auc", "pooled_auc", "ad", "sdad"):
            assert personal["figures"]["none"][key] == summary["without_layer"][key]
            assert personal["figures"]["auto"][key] == summary[key]
        assert sum(personal["clients"].values()) == 8
    # Each client's figures are of the layer that it uses, whose validation loss is none's at most.
    losses = table[
        ["validation_brier_none", "validation_brier_prior", "validation_brier_finetune"]
    ].to_numpy()
    used = [["none", "prior", "finetune"].index(layer) for layer in table["personal"]]
    assert all(own[place] <= own[0] for own, place in zip(losses, used, strict=True) if place)
    accuracies = table[["accuracy_none", "accuracy_prior", "accuracy_finetune"]].to_numpy()
    chosen = accuracies[np.arange(8), used]
    np.testing.assert_array_equal(table["accuracy"], chosen)
    figures = whole.summary["personal"]["figures"]
    assert figures["auto"]["mean_client_accuracy"] == pytest.approx(chosen.mean())
    assert figures["prior"]["mean_client_accuracy"] == pytest.approx(table["accuracy_prior"].mean())
    assert len(set(map(str, figures.values()))) > 2  # the layers change something
    out = io.StringIO()
    print_report(whole, Console(file=out))
    printed = " ".join(out.getvalue().split())
    titles = {"none": "without layer", "auto": "client accuracy, mean"}
    for choice in ("none", "prior", "finetune", "auto"):
        values = [each["personal"]["figures"][choice]["mean_client_accuracy"]
                  for each in (whole.summary, whole.summary["compare"]["fedavg"])]  # fmt: skip
        assert f"{titles.get(choice, f'with personal={choice}')} {values[0]:.3f} {values[1]:.3f}" in printed
    counts = whole.summary["personal"]["clients"]
    used = ", ".join(f"{number} {layer}" for layer, number in counts.items() if number)
    assert f"Personal layer: auto (clients: {used})" in printed


def test_resumed_between_the_rounds_and_the_layers(
    whole: SavedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner.questions, "ask_personal", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fedclust.run([*QUICK, f"output_dir={folder}"])
    resumed = fedclust.run([f"resume={folder}", "engine.num_nodes=1"]).saved
    _assert_same(resumed, whole)
    # A finished run takes other layers, without training anew: fewer of the same.
    other = fedclust.run([f"resume={folder}", "personal=prior"]).saved
    assert other.rounds == resumed.rounds
    personal = other.summary["personal"]
    assert personal["choice"] == "prior"
    for choice in ("none", "prior"):
        assert personal["figures"][choice] == whole.summary["personal"]["figures"][choice]


def test_what_cannot_be_is_said_before_round_1(tmp_path: Path) -> None:
    where = f"output_dir={tmp_path / 'run'}"
    with pytest.raises(ConfigError, match="^personal.epochs must be a whole number >= 1, got 0$"):
        fedclust.run([*QUICK, "personal.epochs=0", where])
    with pytest.raises(ConfigError, match=r"^partition.validation_fraction must be > 0 for personal=auto"):
        fedclust.run([*QUICK, "partition.validation_fraction=0", where])
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
    assert Auto().choice == "auto"


# -- Printed is served --------------------------------------------------------------------------------------

LOCAL = fedclust.LocalTraining(learning_rate=0.3, batch_size=8, epochs=1)
TITLES = ("accuracy", "balanced accuracy", "Brier score")


@pytest.fixture(scope="module")
def four() -> FederatedData:
    """Four clients in two groups that call the same three classes by other names, with unequal shares."""
    draws, clients = np.random.default_rng(0), []
    for client in range(4):
        parts = []
        for count in (24, 6, 9):
            labels = draws.choice(3, count, p=[0.7, 0.2, 0.1] if client % 2 else [0.1, 0.3, 0.6])
            centres = 1.5 * np.eye(3)[(labels + (client > 1)) % 3]
            parts.append(((centres + draws.normal(size=(count, 3))).astype("float32"), labels))
        clients.append(tuple(parts))
    return replace(from_arrays(clients, num_classes=3), groups=np.array([0, 0, 1, 1]))


def _answered(served: Served, data: FederatedData, client: int, **which: int) -> list[list[float]]:
    """Return accuracy, balanced accuracy and Brier score of a client's test rows, by a literal loop.

    Second, how far each may be from what is printed: a Brier score comes from a histogram of probabilities
    whose bins are 0.01 wide in the logit, so p is off by up to 0.005 p (1 − p), and a square by twice that
    times its root. Last, the counts of answers.
    """
    rows, scores, recalled, answers = data.test[client], [], defaultdict(list), [0.0, 0.0, 0.0]
    chances = served.probabilities(data.inputs[rows], **which).tolist()
    for chance, label in zip(chances, data.labels[rows].tolist(), strict=True):
        off = [chance[each] - (each == label) for each in range(3)]
        bins = [0.01 * abs(each) * p * (1 - p) for each, p in zip(off, chance, strict=True)]
        scores.append((sum(each**2 for each in off), sum(bins)))
        answers[chance.index(max(chance))] += 1
        recalled[label].append(chance.index(max(chance)) == label)
    brier, error = np.mean(scores, axis=0)
    recalls = [sum(each) / len(each) for each in recalled.values()]
    right = sum(map(sum, recalled.values())) / len(rows)
    return [[right, sum(recalls) / len(recalls), brier], [1e-9, 1e-9, error], answers]


def _assert_printed(texts: Sequence[str], figures: Sequence[float], errors: Sequence[float]) -> None:
    for text, figure, error in zip(texts, figures, errors, strict=True):
        assert len(text) == 5  # three digits
        assert abs(float(text) - figure) <= 0.0005 + error


def _card(folder: Path) -> dict[int, dict[str, str]]:
    """Read the table of clients of a model card."""
    lines = [line.strip("| ").split(" | ") for line in (folder / "README.md").read_text().splitlines()]
    titles = next(line for line in lines if line[0] == "client")
    rows = [line for line in lines[lines.index(titles) + 2 :] if len(line) == len(titles)]
    return {int(row[0]): dict(zip(titles, row, strict=True)) for row in rows}


def _assert_card(folder: Path, network: nn.Module, data: FederatedData, *, by_site: bool) -> None:
    """Every figure of a card is that of what its folder predicts."""
    served, card = fedclust.load_export(folder, network), _card(folder)
    means = []
    for client, row in card.items():
        figures, errors, answers = _answered(served, data, client, **({"site": client} if by_site else {}))
        _assert_printed([row[title] for title in TITLES], figures, errors)
        most = max(range(3), key=lambda each: answers[each])
        assert row["most frequent answer"] == f"`{most} ({100 * answers[most] / sum(answers):.1f}%)`"
        means.append(figures[0])
    assert f"clients: {np.mean(means):.3f}\n" in (folder / "README.md").read_text()


@pytest.mark.parametrize("strategy", sorted(path.stem for path in (CONF / "strategy").glob("*.yaml")))
def test_printed_is_served(
    strategy: str, four: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last digit in terminal, summary.json, page and card: what `predict` is right about."""
    monkeypatch.setattr("fedclust.results.page.run.pictures", lambda *_: [])
    torch.manual_seed(0)
    network = nn.Linear(3, 3)
    layers = ("prior", "finetune")
    if strategy not in ("auto", "fedavg"):  # half of the others with one, half with the other
        layers = (layers[len(strategy) % 2],)
    for number, layer in enumerate(("none", *layers)):
        out, begins = io.StringIO(), not number or strategy == "auto"  # whose sites choose corrections, too
        with redirect_stdout(out):
            result = fedclust.simulate(
                strategy, network, four, rounds=2, training=LOCAL, proof=True, progress=True, personal=layer,
                folder=tmp_path / (layer if begins else "none"), resume=not begins,
            )  # fmt: skip
        printed, summary = out.getvalue(), result.summary
        served = fedclust.load_export(result.export(tmp_path / f"export-{layer}"), network)
        clients = [_answered(served, four, client, site=client) for client in range(4)]
        means, errors, _ = (np.mean(each, axis=0) for each in zip(*clients, strict=True))
        accuracy = f"{means[0]:.3f}"

        # summary.json
        found = summary["mean_client_accuracy"], summary["balanced_accuracy"], summary["decisions"]["brier"]
        assert (abs(means - found) <= errors).all()
        assert ("query.personal" in summary["left_clients"]) == (number > 0)

        # The terminal: sites have a sentence each, and then there is no table.
        others = [each["mean_client_accuracy"] for each in summary["compare"].values()]
        row = " ".join([accuracy, *(f"{each:.3f}" for each in others)])
        assert "sites" in summary or f"client accuracy, mean {row}" in " ".join(printed.split())
        for client, site in enumerate(summary.get("sites", ())):
            text = f"accuracy {clients[client][0][0]:.2f} ("
            assert text in site["text"] or (layer == "finetune" and "before fine-tuning" in printed)
        if begins:
            (line,) = re.findall(rf"^{strategy}: round 2/2, .* (accuracy.*?) (\S+),", printed, re.MULTILINE)
            later = {"proof": strategy == "auto", "layers": layer != "none"}
            named = "".join([" before "] * any(later.values()) + [" and ".join(k for k in later if later[k])])
            assert line == (f"accuracy{named}", f"{result.rounds['mean_client_accuracy'].iloc[-1]:.3f}")
            assert named or line[1] == accuracy
        if "personal" in summary and "verdict" in summary:
            bare = f"{summary['without_layer']['mean_client_accuracy']:.3f}"
            beside = f", without layer {bare}" * (bare != accuracy)
            assert re.search(rf"mean client accuracy {re.escape(accuracy + beside)}[ ;]", printed)
        if "verdict" in summary and summary["num_clusters"] == 1:
            assert "Served: every client one model for all" in printed

        # The page
        page = Page(view_run(result.folder))
        titles = ("accuracy", "balanced accuracy", "brier")
        for client, each in enumerate(clients):
            _assert_printed([page.column("table-clients", title)[client] for title in titles], *each[:2])
        texts = " ".join(page.texts)
        assert f"mean client accuracy {accuracy}" in texts
        (row,) = (each for each in page.rows("table-figures") if each["figure"] == "client accuracy, mean")
        assert row[strategy] == accuracy
        _assert_printed(re.findall(r"the Brier score (0\S+)", texts), means[2:], errors[2:])
        collapsed = collapsed_line(summary)
        assert (collapsed is not None) == summary.get("collapsed", False)
        for said in (f"{NO_BETTER_THAN} each client's class shares", "The models have learnt too little"):
            assert (said in texts) == (said in printed) == (collapsed or "").startswith(said)
        (left,) = re.findall("Left the clients: .*", printed)
        assert left in texts

        # The cards: of the folder, of each cluster's, and of a folder without fine-tuned models
        _assert_card(tmp_path / f"export-{layer}", network, four, by_site=True)
        for cluster in served.clusters:
            _assert_card(tmp_path / f"export-{layer}" / f"cluster-{cluster}", network, four, by_site=False)
        if layer == "finetune":
            _assert_card(result.export(tmp_path / "bare", sites=[]), network, four, by_site=True)


def test_a_correction_of_another_length_costs_its_client_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    personal = WORK[PersonalQuestion.kind]

    def lying(node, asked):
        found, errors = personal(node, asked)
        return found | {0: replace(found[0], shift=np.zeros(3))}, errors  # of amounts there is one output

    monkeypatch.setitem(WORK, PersonalQuestion.kind, lying)
    draws = np.random.default_rng(0)
    inputs = [draws.normal(size=(40, 4)).astype("f4") for _ in range(3)]
    training = fedclust.LocalTraining(learning_rate=0.1, batch_size=8, epochs=1)
    clients = [(x, x.sum(1) + place) for place, x in enumerate(inputs)]
    facts = {"rounds": 1, "target": "amounts", "training": training, "personal": "prior"}
    result = fedclust.simulate("fedavg", nn.Sequential(nn.Linear(4, 1)), clients, **facts)
    assert result.clients["personal"].tolist() == ["none", "prior", "prior"]
