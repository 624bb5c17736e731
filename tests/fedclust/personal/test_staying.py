"""Each rule against a loop over clients and steps in plain PyTorch, and what must never leave a client."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedclust
from fedclust.federation.answering import Here
from fedclust.personal.layers import named
from fedclust.personal.staying import APFL, Ditto, FedBN, FedPer, FedRep, Staying
from fedclust.results import Checkpoints
from fedclust.runs.library import _kept_in
from fedclust.support.rng import generator

ROWS = (24, 18, 10)
BATCH, RATE, ROUNDS = 8, 0.1, 3
_AFFINE, _STATISTICS = ("weight", "bias"), ("running_mean", "running_var", "num_batches_tracked")


def _mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def _normed() -> nn.Module:
    torch.manual_seed(2)
    body = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh())
    return nn.Sequential(*body, nn.Linear(5, 3))


def _clients() -> list[tuple[Any, Any, Any]]:
    draws = np.random.default_rng(3)
    made = []
    for number in ROWS:
        inputs = draws.normal(size=(number + 6, 4)).astype(np.float32)
        labels = (inputs @ draws.normal(size=(4, 3))).argmax(1)
        made.append(((inputs[6:], labels[6:]), None, (inputs[:6], labels[:6])))
    return made


def _training(**changes: Any) -> fedclust.LocalTraining:
    return fedclust.LocalTraining(**{"learning_rate": RATE, "batch_size": BATCH, "epochs": 2, **changes})


def _batches(seed: int, server_round: int, client: int) -> list[np.ndarray]:
    draws = generator(seed, "batches", server_round, client)
    orders = [draws.permuted(np.arange(ROWS[client])) for _ in range(2)]
    return [order[first : first + BATCH] for order in orders for first in range(0, len(order), BATCH)]


Models = tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]


def _step(network: nn.Module, names: list[str], inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.SGD([p for n, p in network.named_parameters() if n in names], RATE)
    optimizer.zero_grad()
    functional.cross_entropy(network(inputs), labels).backward()
    optimizer.step()


def _literal(rule: Staying, start: nn.Module, stays: list[str], seed: int = 0) -> Models:
    """Run FedAvg over what does not stay; return it, and what each client keeps."""
    data = [tuple(map(torch.from_numpy, each[0])) for each in _clients()]
    shared = {name: each.clone() for name, each in start.state_dict().items() if name not in stays}
    kept = [{name: start.state_dict()[name].clone() for name in stays} for _ in data]
    for server_round in range(1, ROUNDS + 1):
        sent = []
        for client, (inputs, labels) in enumerate(data):
            network = copy.deepcopy(start).train()
            network.load_state_dict({**shared, **kept[client]})
            batches = _batches(seed, server_round, client)
            every = [name for name, _ in network.named_parameters()]
            phases = [(every, batches)]
            if isinstance(rule, FedRep):
                head = max(1, round(rule.head_share * len(batches)))
                phases = [(stays, batches[:head]), ([n for n in every if n not in stays], batches[head:])]
            for names, taken in phases:
                buffers = {name: each.clone() for name, each in network.named_buffers()}
                for rows in taken:
                    _step(network, names, inputs[rows], labels[rows])
                if names is stays:  # the body's statistics, which are the body's, have not changed
                    network.load_state_dict({**network.state_dict(), **buffers})
            state = {name: each.detach().clone() for name, each in network.state_dict().items()}
            kept[client] = {name: state[name] for name in stays}
            sent.append(state)
        for name, before in shared.items():
            weights = torch.tensor(ROWS, dtype=torch.float64) / sum(ROWS)
            mean = sum(w * each[name].double() for w, each in zip(weights, sent, strict=True))
            shared[name] = mean.to(before.dtype) if before.is_floating_point() else sent[0][name]
    return shared, kept


def _literal_pairs(
    rule: Ditto | APFL, start: nn.Module
) -> tuple[dict[str, torch.Tensor], list[Any], list[float]]:
    """Run FedAvg with a second model beside each client's; return the shared one, the second ones, and α."""
    data = [tuple(map(torch.from_numpy, each[0])) for each in _clients()]
    shared = {name: each.clone() for name, each in start.state_dict().items()}
    own = [copy.deepcopy(start).train() for _ in data]
    shares = [rule.share if isinstance(rule, APFL) else 1.0 for _ in data]
    for server_round in range(1, ROUNDS + 1):
        sent = []
        for client, (inputs, labels) in enumerate(data):
            network, second = copy.deepcopy(start).train(), own[client]
            network.load_state_dict(shared)
            for step, rows in enumerate(_batches(0, server_round, client)):
                pairs = list(zip(network.parameters(), second.parameters(), strict=True))
                if isinstance(rule, Ditto):
                    loss = functional.cross_entropy(second(inputs[rows]), labels[rows])
                    names = [name for name, _ in network.named_parameters()]
                    pull = sum(((v - shared[n]) ** 2).sum() for n, (_, v) in zip(names, pairs, strict=True))
                    slopes = torch.autograd.grad(loss + rule.weight / 2 * pull, [v for _, v in pairs])
                    moves = [-RATE * slope for slope in slopes]
                    share = 1.0
                else:
                    mixed, alpha = copy.deepcopy(second), shares[client]
                    for each, (w, v) in zip(mixed.parameters(), pairs, strict=True):
                        each.data = alpha * v.data + (1 - alpha) * w.data
                    loss = functional.cross_entropy(mixed(inputs[rows]), labels[rows])
                    slopes = torch.autograd.grad(loss, list(mixed.parameters()))
                    second.load_state_dict({**second.state_dict(), **dict(mixed.named_buffers())})
                    moves = [-RATE * alpha * slope for slope in slopes]
                    along = sum((g * (v - w)).sum() for g, (w, v) in zip(slopes, pairs, strict=True))
                    share = alpha
                    if rule.adaptive and step == 0:
                        share = min(1.0, max(0.0, alpha - RATE * along.item()))
                _step(network, [name for name, _ in network.named_parameters()], inputs[rows], labels[rows])
                for (_, v), move in zip(pairs, moves, strict=True):
                    v.data += move
                shares[client] = share
            sent.append({name: each.detach().clone() for name, each in network.state_dict().items()})
        weights = torch.tensor(ROWS, dtype=torch.float64) / sum(ROWS)
        for name, before in shared.items():
            mean = sum(w * each[name].double() for w, each in zip(weights, sent, strict=True))
            shared[name] = mean.to(before.dtype) if before.is_floating_point() else sent[0][name]
    return shared, own, shares


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
@pytest.mark.parametrize("make", ["_mlp", "_normed"])
@pytest.mark.parametrize(
    "personal", [Ditto(), Ditto(weight=0.1), APFL(), APFL(share=0.2), APFL(share=0.7, adaptive=False)]
)
def test_a_second_model_is_trained_as_by_a_loop_over_clients(
    personal: Any, make: str, mode: str, tmp_path: Path
) -> None:
    start = globals()[make]()
    shared, seconds, shares = _literal_pairs(personal, start)
    result = _run(personal, start, tmp_path / "run", mode=mode)
    state = _saved(tmp_path / "run")
    for name, expected in shared.items():
        np.testing.assert_allclose(state.models[0][name].numpy(), expected.numpy(), rtol=2e-4, atol=2e-5)
    own = _kept_in(state)
    for client, second in enumerate(seconds):
        assert own[client].share == pytest.approx(shares[client], abs=1e-5)
        for name, expected in second.state_dict().items():
            np.testing.assert_allclose(
                own[client].tensors[name].numpy(), expected.numpy(), rtol=2e-4, atol=2e-5
            )
        serves, alpha = copy.deepcopy(start).eval(), shares[client]
        serves.load_state_dict(
            {
                name: alpha * mine + (1 - alpha) * shared[name] if mine.is_floating_point() else mine
                for name, mine in second.state_dict().items()
            }
        )
        inputs, labels = _clients()[client][2]
        outputs = serves(torch.from_numpy(inputs))
        assert result.clients["accuracy"][client] == pytest.approx(
            (outputs.argmax(1).numpy() == labels).mean()
        )
        served = result.predict(client, inputs).numpy()
        np.testing.assert_allclose(served, outputs.softmax(1).detach().numpy(), atol=1e-4)


def _run(personal: Any, network: nn.Module, folder: Path, **given: Any) -> fedclust.Result:
    training = _training(mode=given.pop("mode", "auto"))
    arguments = {"strategy": "fedavg", "rounds": ROUNDS, "training": training, "folder": folder, **given}
    return fedclust.simulate(model=network, clients=_clients(), personal=personal, **arguments)


def _saved(folder: Path, rounds: int = ROUNDS) -> Any:
    state = Checkpoints(folder / "checkpoints", rounds).newest()
    assert state is not None
    return state


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
@pytest.mark.parametrize(
    ("personal", "make", "stays"),
    [
        (FedPer(), _mlp, ["2.weight", "2.bias"]),
        (FedPer(layers=("0",)), _mlp, ["0.weight", "0.bias"]),
        (FedPer(), _normed, ["6.weight", "6.bias"]),
        (FedRep(head_share=0.34), _mlp, ["2.weight", "2.bias"]),
        (FedRep(layers=("3", "6")), _normed, ["3.weight", "3.bias", "6.weight", "6.bias"]),
        (
            FedBN(),
            _normed,
            [*(f"1.{each}" for each in (*_AFFINE, *_STATISTICS)), *(f"4.{each}" for each in _AFFINE)],
        ),
    ],
)
def test_a_part_that_stays_is_trained_as_by_a_loop_over_clients(
    personal: Staying, make: Any, stays: list[str], mode: str, tmp_path: Path
) -> None:
    shared, kept = _literal(personal, make(), stays)
    result = _run(personal, make(), tmp_path / "run", mode=mode)
    state = _saved(tmp_path / "run")
    (model,) = state.models
    assert model.keys() == shared.keys()
    for name, expected in shared.items():
        np.testing.assert_allclose(model[name].numpy(), expected.numpy(), rtol=2e-4, atol=2e-5)
    own = _kept_in(state)
    assert [*own] == [0, 1, 2]
    for client, expected_of in enumerate(kept):
        assert own[client].tensors.keys() == set(stays)
        for name, expected in expected_of.items():
            np.testing.assert_allclose(
                own[client].tensors[name].numpy(), expected.numpy(), rtol=2e-4, atol=2e-5
            )
    # Printed is served: the figure of each client is that of its own layers, in a loop of its own.
    for client, (_, _, (inputs, labels)) in enumerate(_clients()):
        network = make().eval()
        network.load_state_dict({**shared, **kept[client]})
        accuracy = (network(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean()
        assert result.clients["accuracy"][client] == pytest.approx(accuracy)
        served = result.predict(client, inputs)
        np.testing.assert_allclose(
            served.numpy(), network(torch.from_numpy(inputs)).softmax(1).detach().numpy(), atol=1e-4
        )


@pytest.mark.parametrize("choice", ["fedper", "fedrep", "fedbn", "ditto", "apfl"])
def test_an_interrupted_run_ends_the_same_to_the_bit(choice: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    _run(choice, _normed(), whole, rounds=4, checkpoint_every=1)

    class Interrupted(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        _run(choice, _normed(), parts, rounds=4, checkpoint_every=1, on_round=stop)
    _run(choice, _normed(), parts, rounds=4, checkpoint_every=1, resume=True)
    one, other = _saved(whole, 4), _saved(parts, 4)
    for name, array in one.models[0].items():
        assert array.data == other.models[0][name].data
    mine, theirs = _kept_in(one), _kept_in(other)
    assert mine.keys() == theirs.keys() == {0, 1, 2}
    for client in mine:
        for name, tensor in mine[client].tensors.items():
            assert torch.equal(tensor, theirs[client].tensors[name])


def test_a_resumed_run_keeps_what_it_kept(tmp_path: Path) -> None:
    _run("fedper", _mlp(), tmp_path / "run")
    for other in ("fedrep", "none"):
        with pytest.raises(
            Exception, match="^personal must be fedper, as in the rounds of the run to resume"
        ):
            _run(other, _mlp(), tmp_path / "run", rounds=ROUNDS + 2, resume=True)
    _run("none", _mlp(), tmp_path / "plain")
    with pytest.raises(Exception, match="^personal must be none of those that keep layers"):
        _run("fedper", _mlp(), tmp_path / "plain", rounds=ROUNDS + 2, resume=True)


@pytest.mark.parametrize("choice", ["fedper", "fedrep", "fedbn"])
@pytest.mark.parametrize("strategy", ["fedavg", "ifca", "cfl"])
def test_no_question_or_answer_holds_what_stays(
    choice: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _normed()
    stays, seen = set(named(choice).staying(network)), set[str]()  # type: ignore[attr-defined]
    answer = Here.answer

    def watched(self: Here, asked: Any, *rest: Any) -> Any:
        answers = answer(self, asked, *rest)
        for message in [*asked.values(), *answers.replies.values()]:
            for value in vars(message).values():
                if isinstance(value, fedclust.federation.federation.ArrayRecord):
                    seen.update(value.keys())
        return answers

    monkeypatch.setattr(Here, "answer", watched)
    _run(choice, network, tmp_path / "run", strategy=strategy)
    assert seen >= {"0.weight", "3.bias"}
    assert not seen & stays


def test_what_cannot_stay_is_refused_before_round_1(tmp_path: Path) -> None:
    cases: list[tuple[Any, nn.Module, str, dict[str, Any]]] = [
        (
            "fedbn",
            _mlp(),
            "^personal=fedbn must have a network with normalisation layers, this has none$",
            {},
        ),
        (FedPer(layers=("9",)), _mlp(), "^personal.layers must be among 0, 2, got 9$", {}),
        (FedPer(layers=("0", "2")), _mlp(), "must leave a layer to train together, it leaves none$", {}),
        ("fedper", nn.Sequential(nn.Flatten(), _Scale()), "must name the layers that stay of a network", {}),
        (
            "fedper",
            _mlp(),
            "^privacy must be none with personal=fedper, got client_dp",
            {"privacy": "client_dp"},
        ),
        ("fedper", _mlp(), "^strategy must train on each client's own rows", {"strategy": "centralised"}),
    ]
    for personal, network, message, given in cases:
        with pytest.raises(ValueError, match=message):
            _run(personal, network, tmp_path / "run", **given)
    assert not list(tmp_path.glob("run/rounds.jsonl"))


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(inputs)[:, :3]
