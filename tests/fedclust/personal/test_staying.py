"""Each rule against a loop over clients and steps in plain PyTorch, and what must never leave a client."""

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import fedclust
from fedclust.clients.node import KeptByNode, node_here
from fedclust.federation import FederationError
from fedclust.federation.answering import Here
from fedclust.grids.local_grid import LocalGrid
from fedclust.layers.staying import completed
from fedclust.messages.models import from_state, to_state
from fedclust.personal.staying import APFL, Ditto, FedBN, FedPer, FedRep, Own, Staying, named
from fedclust.results import Checkpoints
from fedclust.runs.library import _kept_in
from fedclust.settings.composition import compose
from fedclust.strategies import ClusteredStrategy
from fedclust.support.rng import generator
from fedclust.training import working_model

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


def _tied() -> nn.Module:
    torch.manual_seed(4)
    shared = nn.Linear(4, 4)
    return nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(4, 3))


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


@cache
def _literal_pairs(
    rule: Ditto | APFL, make: Callable[[], nn.Module]
) -> tuple[dict[str, torch.Tensor], list[Any], list[float]]:
    """Run FedAvg with a second model beside each client's; return the shared one, the second ones, and α."""
    start = make()
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


MODES = ("vectorised", "sequential", "sequential on two threads")
NETWORKS = (_mlp, _normed, _tied)


@pytest.mark.parametrize(
    ("personal", "make", "mode"),
    [
        *((APFL(share=0.2), make, mode) for make in NETWORKS for mode in MODES),
        *((Ditto(weight=0.1), make, mode) for make, mode in zip(NETWORKS, MODES, strict=True)),
        (APFL(share=0.7, adaptive=False), _mlp, "sequential"),
        (APFL(share=0.7, adaptive=False), _normed, "vectorised"),
        (APFL(), _tied, "vectorised"),
        (Ditto(), _tied, "vectorised"),
    ],
)
def test_a_second_model_is_trained_as_by_a_loop_over_clients(
    personal: Any, make: Callable[[], nn.Module], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = make()
    mode, _, threads = mode.partition(" ")
    monkeypatch.setattr(working_model, "_SECONDS_PER_LANE", 1e-9 if threads else math.inf)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    shared, seconds, shares = _literal_pairs(personal, make)
    result = _run(personal, start, None, mode=mode)
    state = _saved(result.folder)
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


def _run(personal: Any, network: nn.Module, folder: Path | None, **given: Any) -> fedclust.Result:
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
    personal: Staying, make: Any, stays: list[str], mode: str
) -> None:
    shared, kept = _literal(personal, make(), stays)
    result = _run(personal, make(), None, mode=mode)
    state = _saved(result.folder)
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


@pytest.mark.parametrize(("epochs", "share"), [(1, 0.5), (1, 0.9), (2, 0.9)])
def test_head_and_body_have_a_step_each_where_there_are_few(epochs: int, share: float) -> None:
    # With all rows in a batch an epoch is one step; 0.9 of two would leave none for the body.
    training = _training(epochs=epochs, batch_size=64)
    result = _run(FedRep(head_share=share), _mlp(), None, rounds=1, training=training)
    assert result.rounds["failures"].tolist() == [[]]
    state, bodies = _saved(result.folder, 1), []
    for client, ((inputs, labels), _, _) in enumerate(_clients()):
        network, names = _mlp(), [name for name, _ in _mlp().named_parameters()]
        for part in names[2:], names[:2]:
            _step(network, part, torch.from_numpy(inputs), torch.from_numpy(labels))
        bodies.append(network[0].weight.detach().numpy() * ROWS[client] / sum(ROWS))
        kept = _kept_in(state)[client].tensors["2.weight"].numpy()
        np.testing.assert_allclose(kept, network[2].weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.models[0]["0.weight"].numpy(), sum(bodies), rtol=1e-5, atol=1e-6)


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
    for other in ("fedrep", "none", FedPer(layers=("0",))):
        with pytest.raises(
            Exception, match=r"^the run to resume must go on with personal=fedper personal.lay"
        ):
            _run(other, _mlp(), tmp_path / "run", rounds=ROUNDS + 2, resume=True)
    _run("none", _mlp(), tmp_path / "plain")
    with pytest.raises(Exception, match="^the run to resume must go on without such a choice of personal"):
        _run("fedper", _mlp(), tmp_path / "plain", rounds=ROUNDS + 2, resume=True)


def test_what_stays_at_nodes_of_their_own_stays_for_one_run(tmp_path: Path) -> None:
    one = ["dataset=digits", "model=linear", "partition=iid", "partition.num_clients=4", "strategy=fedavg"]
    one += ["compare=[]", "proof=false", "rounds=2", "personal=ditto", "engine.num_nodes=2"]
    fedclust.run([*one, f"output_dir={tmp_path / 'run'}"])
    again = [f"resume={tmp_path / 'run'}", "rounds=3"]
    rule = "resume must be of a run in one process with personal=ditto: nodes keep"
    with pytest.raises(Exception, match=f"^{rule} what stays with clients for one run$"):
        fedclust.run(again)
    with pytest.raises(Exception, match="^the run to resume must go on with personal=ditto"):
        fedclust.run([*again, "personal=none"])


CHOICES = ("fedper", "fedrep", "fedbn", "ditto", "apfl")


def _arrays(message: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the arrays in a message's dataclass or records."""
    values = vars(message).values() if hasattr(message, "kind") or not isinstance(message, Mapping) else ()
    for value in [*values, *(message.values() if isinstance(message, Mapping) else ())]:
        for one in value if isinstance(value, tuple) else [value]:
            if isinstance(one, ArrayRecord):
                yield from ((name, array.data) for name, array in one.items())


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("strategy", ["ifca", "cfl", "clove"])
def test_no_question_or_answer_holds_what_stays(
    choice: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _normed()
    stays, names, seen = set(named(choice).staying(network)), set[str](), set[bytes]()  # type: ignore[attr-defined]
    answer = Here.answer

    def watched(self: Here, asked: Any, *rest: Any) -> Any:
        answers = answer(self, asked, *rest)
        for message in [*asked.values(), *answers.replies.values()]:
            for name, data in _arrays(message):
                names.add(name)
                seen.add(data)
        return answers

    monkeypatch.setattr(Here, "answer", watched)
    result = _run(choice, network, None, strategy=strategy)
    assert names >= {"0.weight", "3.bias"}
    assert not names & stays
    _none_seen(_kept_in(_saved(result.folder)), seen)


def _none_seen(kept: Mapping[int, Any], seen: set[bytes]) -> None:
    """Check that no tensor that a client keeps was in a message; one number alone may be there by chance."""
    own = [each for held in kept.values() for each in held.tensors.values() if each.numel() > 1]
    assert own
    assert not {each.numpy().tobytes() for each in own} & seen


@pytest.mark.parametrize("choice", ["fedper", "fedrep", "ditto", "apfl"])
def test_nodes_keep_the_same_between_messages_and_send_none_of_it(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ["strategy=fedavg", "rounds=3", "proof=false", "compare=[]", f"personal={choice}"]
    one += ["partition.num_clients=4", "partition.groups=[2,2]"]
    here = fedclust.run([*one, f"output_dir={tmp_path / 'here'}"])
    seen, grids, send = set[bytes](), set[LocalGrid](), LocalGrid.send_and_receive

    def watched(self: LocalGrid, messages: Any, **given: Any) -> Any:
        grids.add(self)
        sent = list(messages)
        if any(message.metadata.message_type == "train" for message in sent):
            send(self, sent, **given)  # the replies are lost, and asked for again
        replies = send(self, sent, **given)
        for message in [*sent, *replies]:
            seen.update(data for _, data in _arrays(message.content))
        return replies

    monkeypatch.setattr(LocalGrid, "send_and_receive", watched)
    nodes = fedclust.run([*one, "engine.num_nodes=3", f"output_dir={tmp_path / 'nodes'}"])
    assert nodes.clients["accuracy"].tolist() == here.clients["accuracy"].tolist()
    assert seen
    _none_seen(_kept_in(_saved(here.folder)), seen)
    (grid,) = grids
    held = {}
    for context, clients in zip(grid.contexts, ((0, 3), (1,), (2,)), strict=True):
        kept = KeptByNode(context, clients).of("fedavg")
        assert tuple(sorted(kept)) == clients  # a node keeps its own clients' layers only
        held |= kept
    folder, rows = nodes.export(tmp_path / "export"), np.zeros((2, 1, 8, 8), np.uint8)
    rows[1, 0, 2:6] = 255
    if choice in ("fedper", "fedrep"):  # no whole model is here: none is put together with a random head
        assert not {*load_file(folder / "cluster-0" / "model.safetensors")} & {
            *_kept_in(_saved(here.folder))[0].tensors
        }
        with pytest.raises(ValueError, match=rf"^the run must have whole models .*\(personal={choice}\)"):
            nodes.model_for(0)
        for which in ({"cluster": 0}, {"site": 1}):
            with pytest.raises(ValueError, match="^site must be one whose own model is here, none, as "):
                fedclust.load_export(folder).outputs(rows, **which)
        with pytest.raises(ValueError, match=r"^formats must be \[\] as .* got \['torch'\]"):
            nodes.export(tmp_path / "torch", formats=["torch"])
        new = [*one, "engine.num_nodes=3", "holdout_clients=1", f"output_dir={tmp_path / 'new'}"]
        with pytest.raises(
            FederationError, match=f"^holdout_clients must be 0 with personal={choice} over nodes"
        ):
            fedclust.run(new)
    for client, own in _kept_in(_saved(here.folder)).items():
        assert held[client].share == pytest.approx(own.share)
        for name, tensor in own.tensors.items():
            assert torch.equal(held[client].tensors[name], tensor)
    # What a node keeps, added to the server's export, is what a run in one process serves.
    note = json.loads((folder / "index.json").read_text())["clients"][2]["note"]
    assert note.endswith("copy client-2/fedavg.safetensors into the export as client-2/model.safetensors")
    whole = fedclust.load_export(here.export(tmp_path / "whole"))
    for client, own in held.items():
        (folder / f"client-{client}").mkdir()
        save_file(own.for_file(), folder / f"client-{client}" / "model.safetensors")
    served = fedclust.load_export(folder)
    for client in held:
        assert torch.equal(served.outputs(rows, site=client), whole.outputs(rows, site=client))
    of_two = held[2].for_file()
    flat = {name: each.reshape(-1)[:1] for name, each in of_two.items() if name != "/share"}
    for content, about, message in (
        ({"/share": torch.tensor(1.0)}, {}, "unexpected are none, missing"),
        (
            of_two,
            {"kept": "client-1/fedavg"},
            "it must be what was kept as client-2/fedavg, got client-1/fedavg",
        ),
        (of_two | {"/share": torch.tensor(math.nan)}, {}, r"/share must be a number in \[0, 1\], got nan"),
        (flat, {}, r"must have shape \(.*, got \(1,\)"),
    ):
        save_file(content, folder / "client-2" / "model.safetensors", about)
        with pytest.raises(ValueError, match=rf"client-2.model\.safetensors: must hold .*{message}"):
            fedclust.load_export(folder)


@pytest.mark.parametrize("choice", ["fedper", "ditto"])
def test_what_serves_each_client_is_predicted_with_and_named_in_an_export(
    choice: str, tmp_path: Path
) -> None:
    one = ["strategy=clust_psi_pfl", "serve=best", "rounds=2", f"personal={choice}", "engine.num_nodes=2"]
    one += ["partition.num_clients=4", "partition.groups=[2,2]", f"output_dir={tmp_path / 'run'}"]
    result = fedclust.run([*one, "save_predictions=true"])
    assert "common" in set(result.clients["served"])  # after two rounds nothing is shown
    predicted = pd.read_parquet(tmp_path / "run" / "predictions.parquet")
    right = (predicted["label"] == predicted["predicted"]).groupby(predicted["client"]).mean()
    np.testing.assert_allclose(right, result.clients["accuracy"])
    index = json.loads((result.export(tmp_path / "export") / "index.json").read_text())
    names = {"common": "fedavg", "cluster": "clust_psi_pfl"}
    for served, client in zip(result.clients["served"], index["clients"], strict=True):
        assert f"/{names[served]}.safetensors into the export" in client["note"]


def test_a_node_with_a_folder_keeps_layers_when_its_process_ends(tmp_path: Path) -> None:
    config: dict[str, Any] = {"models": str(tmp_path)}
    kept = KeptByNode(Context(7, 1, config, RecordDict(), {}), (0, 2))
    kept.of("fedavg")[2] = Own({"head": torch.tensor([1.0, 2.5])}, share=0.25)
    kept.save()
    after = KeptByNode(Context(7, 1, config, RecordDict(), {}), (0, 2)).of("fedavg")
    assert [*after] == [2]
    assert after[2].share == 0.25
    assert torch.equal(after[2].tensors["head"], torch.tensor([1.0, 2.5]))
    for server_round, head in (
        (4, 1.0),
        (5, 2.0),
        (5, 3.0),
    ):  # the reply of round 5 is lost, and the process ends
        node = KeptByNode(Context(9, 1, config, RecordDict(), {}), (0,))
        node.before("fedavg", server_round, [0])
        assert [each.tensors["head"].item() for each in node.of("fedavg").values()] == [1.0] * (
            server_round == 5
        )
        node.of("fedavg")[0] = Own({"head": torch.tensor(head)}, round=server_round)
        node.save()
    # Another run, or a node without a folder, begins anew.
    assert not KeptByNode(Context(8, 1, config, RecordDict(), {}), (0, 2)).of("fedavg")
    assert not KeptByNode(Context(7, 1, {}, RecordDict(), {}), (0, 2)).of("fedavg")


def test_newcomers_and_clusters_have_the_mean_of_what_the_clusters_clients_keep() -> None:
    initial = {"body": torch.tensor([9.0]), "head": torch.tensor([0.0, 0.0])}
    models = [from_state({"body": torch.tensor([float(each)])}) for each in (1, 2, 3)]
    own = {
        0: Own({"head": torch.tensor([1.0, 2.0])}),
        2: Own({"head": torch.tensor([3.0, 6.0])}),
        3: Own({"head": torch.tensor([5.0, 5.0])}),
    }
    # Cluster 0 has clients 0, 1 and 2, of whom 1 keeps nothing: the mean of [1, 2] and [3, 6] is [2, 4].
    # Cluster 1 has client 3; of cluster 2's client 4, nobody knows a head.
    whole = completed(models, np.array([0, 0, 0, 1, 2]), own, initial)
    assert [model["head"].numpy().tolist() for model in whole] == [[2.0, 4.0], [5.0, 5.0], [0.0, 0.0]]
    assert [model["body"].numpy().tolist() for model in whole] == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize("choice", ["fedper", "fedrep"])
def test_a_client_that_has_not_trained_is_measured_with_what_serves_it(choice: str) -> None:
    def run(rounds: int) -> fedclust.Result:
        few = ClusteredStrategy(participation=0.33)  # one client of three in each round
        return fedclust.simulate(
            few, _mlp(), _clients(), rounds=rounds, training=_training(), personal=choice
        )

    result = run(2)
    kept = _kept_in(result._state)
    idle = sorted({0, 1, 2} - kept.keys())
    assert 0 < len(idle) < 3
    assert [each == "none" for each in result.clients["stays"]] == [client in idle for client in range(3)]
    model = {**_mlp().state_dict(), **to_state(result._state.models[0])}
    for name in ("2.weight", "2.bias"):
        model[name] = torch.stack([own.tensors[name] for own in kept.values()]).mean(0)
    network = _mlp()
    network.load_state_dict(model)
    for client in idle:
        inputs, labels = map(torch.as_tensor, _clients()[client][2])
        with torch.no_grad():
            served = network(inputs)
        loss, right = functional.cross_entropy(served, labels), served.argmax(1) == labels
        assert result.clients["loss"][client] == pytest.approx(loss.item(), rel=1e-5)
        assert result.clients["accuracy"][client] == pytest.approx(right.double().mean().item())
        np.testing.assert_allclose(result.predict(client, inputs), served.softmax(1), atol=1e-6)


@pytest.mark.parametrize("choice", ["fedper", "apfl"])
def test_what_is_printed_is_what_is_served_exported_and_predicted(choice: str, tmp_path: Path) -> None:
    one = ["strategy=clust_psi_pfl", "rounds=3", "serve=best", f"personal={choice}"]
    one += ["partition.num_clients=6", "partition.groups=[4,2]", f"output_dir={tmp_path / 'run'}"]
    result = fedclust.run(one)
    node = node_here(compose(one))
    export = fedclust.load_export(result.export(tmp_path / "export"))
    served = result.clients["served"]
    assert {"common", "cluster"} >= set(served)
    for client in range(6):
        rows = node.data.test[client]
        labels = node.data.truth[rows].numpy()
        images = node.data.inputs[rows].numpy()
        accuracy = (result.predict(client, images).argmax(1).numpy() == labels).mean()
        assert accuracy == pytest.approx(result.clients["accuracy"][client])
        there = export.predict(images, site=client).to_numpy()
        np.testing.assert_allclose(there, result.predict(client, images).numpy(), atol=1e-5)


def test_a_newcomer_is_measured_with_what_its_clusters_models_are_served_with(tmp_path: Path) -> None:
    one = ["strategy=fedavg", "rounds=3", "personal=fedper", "holdout_clients=1", "proof=false"]
    one += ["partition.num_clients=7", "partition.groups=[4,3]", f"output_dir={tmp_path / 'run'}"]
    result = fedclust.run(one)
    node = node_here(compose(one))
    rows, network = node.data.test[6], result.model_of(0)
    right = network(result._prepared(node.data.inputs[rows].numpy())).argmax(1) == node.data.truth[rows]
    assert result.summary["newcomers"]["accuracy"] == pytest.approx(float(right.float().mean()))


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
            "fedrep",
            _frozen_head(),
            "^personal.layers=2 must have a parameter that trains, all are frozen$",
            {},
        ),
        (
            "fedper",
            _mlp(),
            "^privacy must be none with personal=fedper, got client_dp",
            {"privacy": "client_dp"},
        ),
        ("fedper", _mlp(), "^strategy must train on each client's own rows", {"strategy": "centralised"}),
        (
            "fedper",
            _mlp(),
            "^strategy must not compute with whole models",
            {"strategy": "fedgmcc"},
        ),
        ("fedper", _mlp(), "^strategy must not compute with whole models", {"strategy": "fedrc"}),
        ("fedper", _mlp(), "^strategy.parameters.coalitions must be none", {"strategy": "auto"}),
    ]
    for personal, network, message, given in cases:
        with pytest.raises(ValueError, match=message):
            _run(personal, network, tmp_path / "run", **given)
    assert not list(tmp_path.glob("run/rounds.jsonl"))


def _frozen_head() -> nn.Module:
    made = _mlp()
    made[2].requires_grad_(False)
    return made


@pytest.mark.parametrize(("choice", "layer"), [("fedper", nn.Linear(4, 4)), ("fedbn", nn.LayerNorm(4))])
def test_a_layer_of_two_names_stays_by_both(choice: str, layer: nn.Module) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one = nn.Linear(4, 4), layer
            self.two = self.one

    entries = {f"{name}.{each}" for name in ("one", "two") for each in _AFFINE}
    assert set(named(choice).staying(Twice())) == entries  # type: ignore[attr-defined]


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(inputs)[:, :3]
