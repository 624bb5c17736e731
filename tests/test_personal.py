"""Whole runs with personal layers."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console
from torch import nn

import fedclust
from fedclust.data.loading import load
from fedclust.personal.layers import Auto, Finetune
from fedclust.results import SavedRun, comparable, print_report
from fedclust.runs import runner
from fedclust.settings.composition import ConfigError, plain
from fedclust.strategies import ClusteredStrategy
from fedclust.support.rng import generator

pytestmark = pytest.mark.usefixtures("without_pages")

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
    # Losses ln(1 + e^±(x − 1.2200)) of −1, 1, 2 and 3, of which 2 is wrong.
    odds = np.exp([-1 - 1.22, 1 - 1.22, 2 - 1.22, 1.22 - 3])
    np.testing.assert_allclose(found.clients["validation_loss_finetune"], np.log(1 + odds).mean(), atol=1e-4)


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
        expected = nn.functional.cross_entropy(model(held_out[0]), held_out[1])
        assert row["validation_loss_finetune"] == pytest.approx(expected.item(), rel=1e-3)
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
    losses = table[["validation_loss_none", "validation_loss_prior", "validation_loss_finetune"]].to_numpy()
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


def test_one_figure_is_printed_that_of_what_is_served(whole: SavedRun) -> None:
    summary, table = whole.summary, whole.clients
    served, bare = table["accuracy"].mean(), table["accuracy_none"].mean()
    assert summary["mean_client_accuracy"] == pytest.approx(served)
    assert summary["without_layer"]["mean_client_accuracy"] == pytest.approx(bare)
    out = io.StringIO()
    print_report(whole, Console(file=out))
    printed, counts = out.getvalue(), summary["personal"]["clients"]
    chosen = ", ".join(f"{number} {layer}" for layer, number in counts.items() if number and layer != "none")
    assert f"chose one ({chosen}): mean accuracy {served:.3f}, without layer {bare:.3f}" in printed
    for _, mean in table.groupby("cluster")["accuracy"].mean().items():
        assert f" {mean:.3f} " in printed
    # What predicts each client's test rows has the table's accuracy; what is fine-tuned is at the client.
    model, nodes = fedclust.load(whole.folder), (whole.config["dataset"], whole.config["partition"])
    data = load(*(plain(OmegaConf.create(node)) for node in nodes), 0)
    for client, layer in enumerate(table["personal"]):
        if layer != "finetune":
            rows = data.test[client]
            right = model.predict(client, data.inputs[rows]).argmax(1) == data.labels[rows]
            assert right.float().mean() == pytest.approx(table["accuracy"][client])
