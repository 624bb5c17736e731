"""The library's door: a user's arrays and network in, clusters and their models out."""

import copy
import dataclasses
import gc
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.serverapp.strategy import FedAdam
from torch import nn

import fedclust
from fedclust import strategies
from fedclust.clustering import ifca
from fedclust.data.arrays import from_arrays
from fedclust.federation import RunFailed
from fedclust.messages.models import to_state
from fedclust.results.checkpoints import Checkpoints
from fedclust.runs.library import one_for_all
from fedclust.selection import PowerOfChoice, Uniform
from fedclust.settings.composition import ConfigError

TRAINING = fedclust.LocalTraining(learning_rate=0.2, batch_size=8, epochs=1)


def table(client: int, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Points about three axes: of six clients, three hold class 0 and three class 2."""
    draws = np.random.default_rng(client)
    labels = np.full(rows, 0 if client < 3 else 2)
    inputs = 3.0 * np.eye(3, 5)[labels] + 0.3 * draws.normal(size=(rows, 5))
    return inputs.astype(np.float32), labels


CLIENTS = [table(client) for client in range(6)]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def simulate(strategy="clust_psi_pfl", **changes) -> fedclust.Result:
    options = {"rounds": 3, "training": TRAINING, "seed": 2, **changes}
    model, clients = options.pop("model", None), options.pop("clients", CLIENTS)
    return fedclust.simulate(strategy, network() if model is None else model, clients, **options)


@pytest.fixture(scope="module")
def result() -> fedclust.Result:
    return simulate()


def without_times(rounds) -> list[dict]:
    left_out = ("seconds", "bytes_up", "bytes_down")
    return [
        {k: v for k, v in line.items() if k not in left_out}
        for line in json.loads(rounds.to_json(orient="records"))
    ]


def test_clients_who_hold_the_same_classes_share_a_model(result: fedclust.Result) -> None:
    assert result.num_clusters == 2
    assert len(set(result.assignment[:3])) == len(set(result.assignment[3:])) == 1
    assert result.assignment[0] != result.assignment[3]
    assert [*result.rounds["round"]] == [1, 2, 3]
    assert len(result.clients) == 6
    assert result.summary["strategy"] == "clust_psi_pfl"
    assert result.summary["mean_client_accuracy"] > 0.9
    assert "clusters of [3, 3]" in repr(result)


def test_models_and_what_they_predict(result: fedclust.Result) -> None:
    x = CLIENTS[0][0][:4]
    model = result.model_for(0)
    assert not model.training
    expected = model(torch.from_numpy(x)).softmax(-1)
    torch.testing.assert_close(result.predict(0, x), expected)
    torch.testing.assert_close(result.predict(0, x.tolist()), expected)
    torch.testing.assert_close(result.predict(0, torch.from_numpy(x).double()), expected)
    assert not result.predict(0, x).requires_grad
    with torch.no_grad():  # a copy: the next is untouched
        next(model.parameters()).zero_()
    torch.testing.assert_close(result.predict(0, x), expected)
    for client in (-1, 6):
        with pytest.raises(IndexError, match=f"client must be in 0 to 5, got {client}"):
            result.model_for(client)
    with pytest.raises(IndexError, match="cluster must be in 0 to 1, got 2"):
        result.model_of(2)


def test_a_new_client_is_placed_by_the_clusters_models_where_the_one_for_all_serves() -> None:
    """As the run itself places newcomers, whatever its proof decides to serve."""
    found = simulate("fesem", serve="best", proof=True)  # three rounds and few rows show nothing
    assert set(found.clients["served"]) == {"common"}
    newest = Checkpoints(found.folder / "checkpoints", 3).newest()
    assert newest is not None
    assert len(newest.models) > 1
    for x, y in (table(2, rows=7), table(103, rows=7)):
        losses = []
        for model in newest.models:
            (net := network()).load_state_dict(to_state(model))
            losses.append(-net(torch.from_numpy(x)).log_softmax(-1)[range(7), y].mean().item())
        assert len(set(losses)) > 1
        assert found.place(x, y).cluster == int(np.argmin(losses))
        assert len(set(found.losses(x, y))) == 1  # of what serves them


def test_a_new_client(result: fedclust.Result) -> None:
    for like, newcomer in ((0, 2), (3, 103)):
        x, y = table(newcomer, rows=7)
        losses = result.losses(x, y)
        models = [result.model_of(cluster) for cluster in (0, 1)]
        with torch.no_grad():
            by_hand = [-model(torch.from_numpy(x)).log_softmax(-1)[range(7), y].mean() for model in models]
        np.testing.assert_allclose(losses, by_hand, rtol=1e-5)
        assert result.assign(x, y) == result.assignment[like] == int(np.argmin(losses))
    with pytest.raises(ValueError, match="targets must be below 3, got 5"):
        result.assign(CLIENTS[0][0][:1], [5])
    with pytest.raises(ValueError, match="inputs and targets must have one length, got 2 and 1"):
        result.assign(CLIENTS[0][0][:2], [1])
    with pytest.raises(ValueError, match="rows must have at least one row, got none"):
        result.assign(CLIENTS[0][0][:0], [])


def test_rows_are_read_as_those_of_training(result: fedclust.Result) -> None:
    columns = CLIENTS[0][0].shape[1]
    whole = np.arange(2 * columns).reshape(2, columns)  # int64, which the networks do not take
    assert torch.equal(result.predict(0, whole), result.predict(0, whole.astype(np.float32)))
    assert result.assign(whole, [0, 1]) == result.assign(whole.astype(np.float32), [0, 1])
    narrow = rf"rows must have shape \(n, {columns}\), got \(2, {columns - 1}\)"
    for ask in (lambda: result.predict(0, whole[:, 1:]), lambda: result.place(whole[:, 1:], [0, 1])):
        with pytest.raises(ValueError, match=narrow):
            ask()
    for none in (whole[:0], []):
        with pytest.raises(ValueError, match="rows must have"):
            result.place(none)
    frame = pd.DataFrame(whole)
    with pytest.raises(ValueError, match="targets must be a column of the rows, one of 0, .*, got 'y'"):
        result.place(frame, "y")
    with pytest.raises(ValueError, match="rows must have each column once, got y several times"):
        result.place(frame.assign(y=0, x=1).rename(columns={"x": "y"}), "y")


def test_a_diverged_model_is_not_assigned_to_new_clients(monkeypatch: pytest.MonkeyPatch, result) -> None:
    x, y = CLIENTS[0]
    monkeypatch.setitem(vars(result.saved), "placing", {})  # as of a method that goes by losses
    # Of three classes a guess has ln 3 = 1.099 nats.
    for losses, expected in (([np.nan, 1.0], 1), ([1.0, np.inf], 0), ([1.0, 1.0], 0), ([1.2, 1.1], None)):
        monkeypatch.setattr(result, "losses", lambda *_, losses=losses: np.array(losses), raising=False)
        assert result.assign(x, y) == expected
    monkeypatch.setattr(result, "losses", lambda *_: np.array([np.nan, np.inf]))
    with pytest.raises(ValueError, match="some cluster's model must have a finite loss"):
        result.assign(x, y)


class InTurn(Uniform):
    """A user's own policy that counts how often it was asked, so every round has another cohort."""

    asked = 0

    def select(self, candidates, size: int, generator: np.random.Generator) -> np.ndarray:
        self.asked += 1
        return np.sort(np.roll(candidates.clients, self.asked)[:size])


def test_what_the_caller_gives_stays_as_it_is() -> None:
    model = network().eval()
    before = copy.deepcopy(model.state_dict())
    arrays = copy.deepcopy(CLIENTS)
    strategy = strategies.FedGWC(participation=0.5, seed=77, selection=InTurn())
    kept = dict(vars(strategy))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, again = (simulate(strategy, model=model, seed=4) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert vars(strategy) == kept
    assert strategy.selection.asked == 0
    assert not model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    pairs = [pair for client in zip(arrays, CLIENTS, strict=True) for pair in zip(*client, strict=True)]
    assert all(np.array_equal(*pair) for pair in pairs)
    assert without_times(one.rounds) == without_times(again.rounds)
    assert one.summary["seed"] == 4
    # Nor does the result change with what the caller does to the model later.
    expected = one.predict(0, CLIENTS[0][0])
    model.add_module("3", nn.Linear(3, 3))
    torch.testing.assert_close(one.predict(0, CLIENTS[0][0]), expected)


def test_a_strategy_object_with_options_of_its_own() -> None:
    made = strategies.ClustPSIPFL(participation=0.5, aggregator=lambda: FedAdam(eta=0.01))
    found = simulate(made, rounds=2)
    # Half of three clients, rounded up, of each cluster.
    assert [len(cohort) for cohort in found.rounds["cohort"]] == [4, 4]
    assert found.summary["strategy"] == "clustpsipfl"


class Tokens(nn.Module):
    """The mean of embeddings; a label for all, or for each position."""

    def __init__(self, vocabulary: int, positions: bool) -> None:
        super().__init__()
        self.embedding, self.head, self.positions = nn.Embedding(vocabulary, 4), nn.Linear(4, 2), positions

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens)
        return self.head(embedded if self.positions else embedded.mean(1))


@pytest.mark.parametrize("positions", [False, True])
def test_tokens(positions: bool) -> None:
    draws = np.random.default_rng(0)
    tokens = [draws.integers(0, 9, (12, 5)) for _ in range(4)]
    tokens[3][0, 0] = 8
    clients = [(each, each % 2 if positions else each[:, 0] % 2) for each in tokens]
    found = simulate("fedgmcc", model=Tokens(9, positions), clients=clients, rounds=1)
    shape = (12, 5, 2) if positions else (12, 2)
    assert found.predict(0, tokens[0]).shape == shape
    with pytest.raises(ValueError, match="model must take tokens from 0 to 8: .* index out of range"):
        simulate("fedavg", model=Tokens(8, positions), clients=clients)


def images() -> list[tuple[np.ndarray, np.ndarray]]:
    draws = np.random.default_rng(0)
    return [(draws.integers(0, 256, (12, 2, 3, 3), np.uint8), draws.integers(0, 2, 12)) for _ in range(3)]


def test_a_run_that_is_loaded_predicts_what_it_did_in_memory(tmp_path: Path) -> None:
    clients = images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 2))
    found = simulate("fedavg", model=model, clients=clients, folder=tmp_path / "run")
    loaded = fedclust.load(tmp_path / "run", nn.Sequential(nn.Flatten(), nn.Linear(18, 2)))
    x = clients[0][0]
    assert torch.equal(found.predict(0, x), loaded.predict(0, x))
    np.testing.assert_array_equal(found.assignment, loaded.assignment)
    assert loaded.summary == found.summary
    # The network sees what it was trained on: ((x / 255) - mean) / deviation of the training pixels.
    data = from_arrays(clients, seed=2)
    pixels = data.inputs[np.concatenate(data.train)].double() / 255
    mean, std = (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0))
    seen = ((torch.from_numpy(x) / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)).float()
    torch.testing.assert_close(found.predict(0, x), found.model_for(0)(seen).softmax(-1).detach())
    for wrong in (x.astype(np.float32), x[:, :1]):
        with pytest.raises(ValueError, match=r"inputs must be uint8 images \(n, 2, height, width\)"):
            found.predict(0, wrong)
    with pytest.raises(ValueError, match=r"model must be given to get networks: load\(folder, model\)"):
        fedclust.load(tmp_path / "run").model_for(0)
    other = fedclust.load(tmp_path / "run", nn.Sequential(nn.Flatten(), nn.Linear(18, 3)))
    with pytest.raises(
        ValueError, match="model must be the network of the run in .*: .*size mismatch"
    ) as caught:
        other.predict(0, x)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, got type"):
        fedclust.load(tmp_path / "run", nn.Linear)  # type: ignore[arg-type]


def test_callbacks_see_every_round_and_may_change_what_they_see(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list = []

    def clear(record) -> None:
        record.clear()

    found = simulate("fedavg", on_round=[clear, lambda record: seen.append(json.loads(json.dumps(record)))])
    assert [record["round"] for record in seen] == [1, 2, 3]
    assert [record["loss"] for record in seen] == [*found.rounds["loss"]]
    assert capsys.readouterr().out == ""

    def stop(record) -> None:
        raise LookupError(f"stop at {record['round']}")

    with pytest.raises(LookupError, match="stop at 1"):
        simulate("fedavg", on_round=stop)


@pytest.mark.parametrize("strategy", ["fedgwc", "fmcl"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, strategy: str) -> None:
    def interrupt(record) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    # Clients of one node are passed together, and how many there are may change a sum's last bit.
    given: dict = {"training": dataclasses.replace(TRAINING, mode="sequential")}
    whole = simulate(strategy, rounds=4, folder=tmp_path / "whole", **given)
    with pytest.raises(KeyboardInterrupt):
        simulate(strategy, rounds=4, folder=tmp_path / "cut", checkpoint_every=1, on_round=interrupt, **given)
    resumed = simulate(strategy, rounds=4, folder=tmp_path / "cut", resume=True, **given)
    # What was asked before the interruption has left the clients, too: FMCL's prototypes before round 1.
    assert resumed.summary["left_clients"] == whole.summary["left_clients"]
    assert ("query.prototypes" in resumed.summary["left_clients"]) == (strategy == "fmcl")
    assert without_times(whole.rounds) == without_times(resumed.rounds)
    for client in range(6):
        one, other = (found.model_for(client).state_dict() for found in (whole, resumed))
        assert all(torch.equal(one[key], other[key]) for key in one)
    longer = simulate(strategy, rounds=5, folder=tmp_path / "cut", resume=True, **given)
    assert [*longer.rounds["round"]] == [1, 2, 3, 4, 5]


def test_only_the_same_run_can_be_resumed(tmp_path: Path) -> None:
    simulate("fedgwc", folder=tmp_path)
    with pytest.raises(FileExistsError, match="must not hold another run"):
        simulate("fedgwc", folder=tmp_path)
    for changes, said in (
        ({"seed": 3}, "seed was 2, is 3"),
        ({"clients": CLIENTS[:5]}, "clients was 6, is 5"),
        ({"strategy": strategies.FedGWC(participation=0.5)}, "settings.participation was 1.0, is 0.5"),
        ({"training": fedclust.LocalTraining(learning_rate=0.1, batch_size=8, epochs=1)}, "was 0.2, is 0.1"),
        ({"strategy": strategies.FedGWC(selection=PowerOfChoice(4))}, "selection.candidates was null, is 4"),
    ):
        with pytest.raises(ConfigError, match=f"resume must have the configuration of .*{said}"):
            simulate(**{"strategy": "fedgwc", **changes}, folder=tmp_path, resume=True)
    with pytest.raises(ValueError, match="rounds must be >= 3, the rounds that .* has, got 2"):
        simulate("fedgwc", rounds=2, folder=tmp_path, resume=True)
    # The same rows, of which others test.
    simulate("fedavg", clients=from_arrays(CLIENTS, seed=1), folder=tmp_path / "split")
    with pytest.raises(ConfigError, match="resume must have the configuration of .*data was "):
        simulate("fedavg", clients=from_arrays(CLIENTS, seed=2), folder=tmp_path / "split", resume=True)
    with pytest.raises(ValueError, match="folder must be that of the run to resume, got None"):
        simulate("fedgwc", resume=True)
    with pytest.raises(ConfigError, match="resume must be the folder of a run"):
        simulate("fedgwc", folder=tmp_path / "none", resume=True)


def test_the_model_for_all_has_the_selection_that_was_asked_for() -> None:
    """So the proof compares groups, not policies; a method's own policy stays with the method."""
    asked = PowerOfChoice(3)
    assert one_for_all(strategies.FedGWC(selection=asked)).selection is asked
    assert type(one_for_all(strategies.FedGWC()).selection) is Uniform


def test_a_temporary_folder_is_deleted_with_its_result(tmp_path: Path) -> None:
    found = simulate("fedavg", rounds=1)
    folder = found.folder
    report = found.report(tmp_path / "report")
    assert folder.is_dir()
    del found
    gc.collect()
    assert not folder.exists()
    assert {"rounds.jsonl", "summary.json", "clients.parquet", "plots"} <= {p.name for p in report.iterdir()}
    assert any(report.glob("plots/*.png"))
    kept = fedclust.load(report, network())
    assert kept.predict(0, CLIENTS[0][0]).shape == (40, 3)
    with pytest.raises(FileExistsError, match="folder must not hold another run"):
        simulate("fedavg", rounds=1).report(report)
    with pytest.raises(ValueError, match="folder must not be inside the run's own"):
        kept.report(report / "again")


class Halves:
    """Embeds five numbers as their halves and their sum."""

    dimension = 6

    def __init__(self, fingerprint: str = "halves-1") -> None:
        self.fingerprint = fingerprint

    def encode(self, inputs, mean=(), std=(), device="cpu") -> torch.Tensor:
        return torch.cat([inputs / 2, inputs.sum(1, keepdim=True)], 1).to(device)


@pytest.mark.parametrize("strategy", ["clust_psi_pfl", "fmcl", "pacfl", "auto"])
def test_a_run_on_embeddings_is_that_of_clients_who_hold_them(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))
    head, folder = nn.Sequential(nn.Linear(6, 3)), tmp_path / "run"
    held = [(Halves().encode(torch.from_numpy(x)).numpy(), y) for x, y in CLIENTS]
    ours = simulate(strategy, model=head, encoder=Halves(), features="encoder", folder=folder)
    by_hand = simulate(strategy, model=head, clients=held)
    assert without_times(ours.rounds) == without_times(by_hand.rounds)
    np.testing.assert_array_equal(ours.assignment, by_hand.assignment)
    # A newcomer's rows are raw ones.
    x, y = table(103, rows=7)
    embedded = Halves().encode(torch.from_numpy(x)).numpy()
    assert torch.equal(ours.predict(0, x), by_hand.predict(0, embedded))
    for labels in (None, y):
        assert ours.place(x, labels) == by_hand.place(embedded, labels)
    loaded = fedclust.load(folder, head, encoder=Halves())
    assert torch.equal(loaded.predict(0, x), ours.predict(0, x))
    served = fedclust.load_export(ours.export(tmp_path / "served"), head, encoder=Halves())
    chances = served.predict(x, site=0)[["0", "2"]].to_numpy()
    np.testing.assert_allclose(chances, ours.predict(0, x)[:, [0, 2]], atol=1e-6)
    for encoder, said in ((None, "given, .*: halves-1"), (Halves("other"), "halves-1, got other")):
        with pytest.raises(ValueError, match=f"encoder must be .*{said}"):
            fedclust.load(folder, head, encoder=encoder).predict(0, x)
        with pytest.raises(ValueError, match=f"encoder must be .*{said}"):
            fedclust.load_export(tmp_path / "served", head, encoder=encoder).predict(x, site=0)


BELOW_0 = CLIENTS[0][0], -1 - CLIENTS[0][1]
FLOATS = [(inputs, labels.astype(float)) for inputs, labels in CLIENTS]  # as a column with gaps has them
TURNED = dataclasses.replace(TRAINING, augmentation="crop_flip")
SEVEN = strategies.IFCA(network=network(), parameters=ifca.Parameters(num_clusters=7))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 1.5}, "rounds must be a whole number >= 1, got 1.5"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"training": None}, "training must be a LocalTraining, got NoneType"),
        ({"device": "toaster"}, "device must be auto or a device of this machine, got 'toaster'"),
        ({"checkpoint_every": "often"}, "checkpoint_every must be rounds >= 0"),
        ({"model": 3}, "model must be a torch.nn.Module, got int"),
        ({"model": nn.Linear(4, 3)}, r"model must take examples of shape \(5,\), it raises RuntimeError"),
        ({"model": nn.Linear(5, 2)}, "model must have >= 3 outputs .* got 2"),
        (
            {"clients": FLOATS},
            'model must have one output for amounts, got 3; floats are .* target="classes"',
        ),
        ({"strategy": "fedgcw"}, "strategy must be one of .*fedgwc.*, got 'fedgcw'"),
        ({"strategy": strategies.FedGWC}, "strategy must be one of fedclust.strategies, .*FedGWC"),
        ({"strategy": strategies.FedGWC(aggregator=lambda: FedAdam(eta=-1.0))}, "eta must be > 0"),
        ({"strategy": SEVEN}, "num_clusters must be <= 6, the number of clients, got 7"),
        ({"strategy": "fesem", "clients": CLIENTS[:1]}, "num_clusters must be <= 1, .* got 2"),
        ({"clients": [*CLIENTS, BELOW_0]}, "client 6: targets must be class indices"),
        ({"groups": ["a", "b"]}, r"groups must be a name per client, for 6 of them, got \['a', 'b'\]"),
        ({"groups": [*"abcde", None]}, "groups must be a name per client, for 6 of them"),
        ({"metrics": ["accuracy"]}, r"metrics must be functions by name, got \['accuracy'\]"),
        ({"on_round": 3}, "on_round must be a function, or several, got 3"),
        ({"features": "pixels"}, "features must be .*inputs.*encoder.*, got 'pixels'"),
        ({"features": "encoder"}, "encoder must be given with features='encoder', got None"),
        (
            {"features": "encoder", "encoder": Halves(), "training": TURNED},
            "augmentation must be none with features='encoder': rows are encoded once",
        ),
    ],
)
def test_what_is_refused_before_round_1(changes: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        simulate(**{"strategy": "fedavg", **changes}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_says_where_its_rounds_are() -> None:
    broken = network()
    nn.init.constant_(next(broken.parameters()), torch.finfo(torch.float32).max)  # overflows at once
    with pytest.raises(RunFailed, match="no client was trained.*its rounds are in ") as failed:
        simulate("fedavg", model=broken)
    folder = Path(str(failed.value).rpartition(" in ")[2])
    assert (folder / "rounds.jsonl").is_file()
    shutil.rmtree(folder)


def test_run_takes_what_the_command_line_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["rounds=1", "partition.num_clients=6", "partition.groups=[3,3]", "model=linear"]
    found = fedclust.run(["strategy=fmcl", *small, "output_dir=here", "device=cpu"])
    assert found.folder == tmp_path / "here"
    assert found.summary["strategy"] == "fmcl"
    with np.errstate(all="ignore"):
        again = fedclust.load("here")
    x = np.zeros((2, 1, 8, 8), dtype=np.uint8)
    assert torch.equal(again.predict(0, x), found.predict(0, x))
    longer = fedclust.run(["resume=here", "rounds=2"])
    assert [*longer.rounds["round"]] == [1, 2]
    quick = [*small, "strategy=local", "compare=[]"]
    one, other = (fedclust.run(quick).folder for _ in range(2))  # within a second, perhaps
    assert one != other
    for overrides, said in (
        (["task=inspect"], "task must be train to get a result, got inspect"),
        (["rounds=0"], "rounds must be >= 1, got 0"),
        (["rounds=two"], "rounds must be"),
        (["client_app=no.such"], "client_app must be importable, got 'no.such'"),
    ):
        with pytest.raises(ConfigError, match=said):
            fedclust.run([*small, *overrides, "output_dir=bad"])
    for wrong in ({"rounds": 3}, [3], "rounds=3"):
        with pytest.raises(
            ConfigError, match=r"^overrides must be a list of texts, such as \['rounds=3'\], got"
        ):
            fedclust.run(wrong)
    with pytest.raises(
        ConfigError, match="^overrides must be settings, -m is an option of the command line$"
    ):
        fedclust.run(["-m", "seed=0,1"])
    with pytest.raises(
        ConfigError, match="hydra.run.dir=here is of Hydra's own command line; output_dir= says"
    ):
        fedclust.run(["hydra.run.dir=here"])
    with pytest.raises(IndexError, match="^client must be in 0 to 5, got 'north'$"):
        found.model_for("north")
    assert not (tmp_path / "bad").exists()
    with pytest.raises(FileExistsError):
        fedclust.run([*small, "output_dir=here"])
    with pytest.raises(FileNotFoundError, match="folder must hold a run"):
        fedclust.load(tmp_path / "bad")


def test_a_newcomer_without_labels_is_compared_with_clients_rows_that_are_here(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    clients = [
        (draws.normal(5 * sign, 1, (20, 2)).astype(np.float32), np.full(20, int(sign > 0)))
        for sign in (-1, -1, -1, 1, 1, 1)
    ]
    network, how = nn.Linear(2, 2), fedclust.LocalTraining(learning_rate=0.1, batch_size=8, epochs=1)
    given = {"rounds": 1, "training": how, "folder": tmp_path / "run"}
    result = fedclust.simulate("clust_psi_pfl", network, clients, **given)
    assert result.assignment.tolist() == [0, 0, 0, 1, 1, 1]  # by labels
    rows = draws.normal(5, 1, (20, 2)).astype(np.float32)
    far = result.place(rows).evidence["remoteness"]
    assert far["1"] < 1 < far["0"]
    elsewhere = fedclust.load(tmp_path / "run", network)  # the folder has no rows
    assert "remoteness" not in elsewhere.place(rows).evidence


@pytest.mark.parametrize("shifted", [False, True], ids=["labels", "inputs"])
def test_a_newcomer_without_labels_is_in_no_cluster_if_only_labels_differ(shifted: bool) -> None:
    draws = np.random.default_rng(3)

    def rows(group: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        x = draws.normal(size=(number, 2)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int) if group == 0 else (x[:, 0] < 0).astype(int)
        if shifted:  # to where the other group's model knows nothing
            x[:, group] += 6
        return x, y

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))

    groups = [0, 0, 0, 0, *([1] * (4 if shifted else 1))]  # the model of four is surer of any rows
    how = fedclust.LocalTraining(learning_rate=0.1, batch_size=10, epochs=1)
    clients, given = [rows(each, 60) for each in groups], {"groups": groups, "rounds": 8, "training": how}
    result = fedclust.simulate("known_groups", network(), clients, **given)
    assert result.assignment.tolist() == groups
    for group in (0, 1):
        x, y = rows(group, 400)
        assert result.place(x, y).cluster == group
        assert result.place(x).cluster == (group if shifted else None)


def test_a_newcomer_in_no_cluster_changes_no_cluster_s_model(tmp_path: Path) -> None:
    before = simulate(rounds=1, proof=True, serve="cluster", folder=tmp_path / "run")
    newcomer = before.clients.tail(1).assign(client=len(before.clients), cluster=-1, served="common")
    joined = pd.concat([before.clients, newcomer], ignore_index=True)
    joined.to_parquet(tmp_path / "run" / "clients.parquet", index=False)
    after = fedclust.load(tmp_path / "run", network())
    rows = CLIENTS[0][0]
    for client in range(len(before.assignment)):
        assert torch.equal(after.predict(client, rows), before.predict(client, rows))


class Halving(nn.Linear):
    """Halves its inputs in place."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.mul_(0.5))


@pytest.mark.parametrize("outputs", [3, 4])
def test_a_network_may_change_its_inputs_and_have_more_outputs(tmp_path: Path, outputs: int) -> None:
    draws = np.random.default_rng(0)
    clients = [(draws.normal(size=(20, 8)).astype("float32"), np.arange(20) % 3) for _ in range(3)]
    before = [inputs.copy() for inputs, _ in clients]
    network = Halving(8, outputs)
    with torch.no_grad():
        network.bias[2] = 9.0  # the last one, if there is a fourth that is no class
    given = {"rounds": 1, "training": fedclust.LocalTraining(learning_rate=0.1, batch_size=8, steps=2)}
    result = fedclust.simulate("auto", network, clients, seed=np.int64(3), folder=tmp_path / "run", **given)
    inputs = clients[0][0]
    assert result.predict(0, inputs).shape == (20, 3)
    served = result.served()
    chances = served.probabilities(inputs, cluster=(cluster := int(result.assignment[0])))
    assert chances.shape == (20, 3)
    folder = result.export(tmp_path / "export", formats=["torch"]) / f"cluster-{cluster}"
    file = torch.export.load(folder / "model.pt2").module()
    np.testing.assert_allclose(file(torch.from_numpy(inputs.copy())).detach(), chances, atol=1e-6)
    for (now, _), then in zip(clients, before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_every_cluster_is_measured_on_the_rows_as_given_by_a_network_that_changes_its_inputs() -> None:
    result = simulate(model=Halving(5, 3))
    inputs, targets = (torch.from_numpy(each) for each in CLIENTS[0])
    assert result.num_clusters == 2
    nets = [result.model_of(cluster) for cluster in range(2)]
    outputs = [(inputs * 0.5 @ net.weight.T + net.bias).detach() for net in nets]
    expected = [float(nn.functional.cross_entropy(each, targets)) for each in outputs]
    np.testing.assert_allclose(result.losses(*CLIENTS[0]), expected, rtol=1e-5)
    certain = [float(each.log_softmax(-1).amax(-1).mean()) for each in outputs]
    assert result.place(inputs).evidence["confidences"] == pytest.approx({"0": certain[0], "1": certain[1]})
