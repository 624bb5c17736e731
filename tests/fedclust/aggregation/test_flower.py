"""Aggregators move parameters; buffers are averaged, whole numbers the largest."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Krum,
    Strategy,
)
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

import fedclust
from fedclust import LocalTraining
from fedclust.aggregation.flower import (
    FairAvg,
    NotFinite,
    aggregate,
    buffer_names,
    check_aggregator,
    instructions,
    pack_state,
    restored,
)
from fedclust.federation import Clusters, Reply
from fedclust.messages.models import from_state
from fedclust.messages.packer import pack
from fedclust.messages.training import Instruction, read_sent
from fedclust.settings.composition import CONF
from fedclust.strategies import ClusteredStrategy
from fedclust.support.flower import assume_identity
from fedclust.training.cohort import CohortUpdate, ModelMean
from tests.fedclust.messages.test_packer import same

AGGREGATORS = sorted(path.stem for path in (CONF / "aggregator").glob("*.yaml"))
BUFFERS = frozenset({"norm.mean", "norm.count"})
NO_MINIMA = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


@pytest.fixture(autouse=True)
def _identity() -> None:
    assume_identity()


def model_of(weight: float, mean: float, count: int) -> ArrayRecord:
    """Make a model with a buffer before, and a counter after its parameter."""
    weights, means = np.full(3, weight, np.float32), np.full(2, mean, np.float32)
    values = {"norm.mean": means, "weight": weights, "norm.count": np.asarray(count, np.int64)}
    return ArrayRecord({name: Array(each) for name, each in values.items()})


def values(model: ArrayRecord) -> dict[str, Any]:
    return {name: np.unique(array.numpy()).tolist() for name, array in model.items()}


def replied(client: int, arrays: ArrayRecord, num_examples: int, start=None) -> Reply:
    """Make a client's reply."""
    return Reply(client, 0, start or arrays, arrays, num_examples, 1.0, np.ones(1))


def means_of(update: CohortUpdate, nodes: list[list[int]]) -> dict[int, ArrayRecord]:
    """Make the model that each client's node replies with: the mean of its clients, by client id."""
    arrays: dict[int, ArrayRecord] = {}
    for clients in nodes:
        mean = ModelMean()
        mean.add(update, clients)
        arrays |= dict.fromkeys(clients, from_state(mean.state()))
    return arrays


def update_of(num_examples: list[int], **state: torch.Tensor) -> CohortUpdate:
    """Make the update of a cohort from its models' arrays and numbers of samples."""
    number = len(num_examples)
    return CohortUpdate(np.arange(number), state, (np.zeros(1),) * number, np.array(num_examples), {})


def round_of(aggregator, number, model, update: CohortUpdate, nodes: list[list[int]]) -> ArrayRecord:
    """Aggregate what clients' nodes reply with: means, and models of clients that share no node."""
    models = {k: from_state({n: v[k] for n, v in update.state.items()}) for k in update.clients}
    arrays = models | means_of(update, nodes)
    trained = {int(k): (int(update.num_examples[k]), arrays[k]) for k in update.clients}
    return one_round(aggregator, number, model, trained, shared_means=True)


def one_round(aggregator, server_round, model, trained, shared_means=False) -> ArrayRecord:
    """Send a model to clients, and aggregate what they have made of it: samples and model of each."""
    asked = instructions(aggregator, server_round, model, range(len(trained)), BUFFERS)
    sent = {client: each.arrays for client, each in asked.items()}
    assert sent.keys() == trained.keys()
    assert all(values(arrays) == values(model) for arrays in sent.values())
    assert [*sent[0]] == [*model]
    assert len({id(arrays) for arrays in sent.values()}) == 1  # or it would travel once per client
    replies = [replied(client, *trained[client][::-1]) for client in sorted(asked)]
    return aggregate(aggregator, server_round, model, replies, BUFFERS, shared_means=shared_means)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_buffers_are_averaged_whatever_the_aggregator(name: str) -> None:
    aggregator = instantiate(OmegaConf.load(CONF / "aggregator" / f"{name}.yaml"))
    model = model_of(0.0, 1.0, 0)
    for server_round in (1, 2, 3):
        trained = {
            0: (1, model_of(1.0, 0.5, 3 * server_round)),
            1: (1, model_of(2.0, 0.25, 9 * server_round)),
            2: (2, model_of(3.0, 0.125, 6 * server_round)),
        }
        model = one_round(aggregator, server_round, model, trained)
        # (1 * 0.5 + 1 * 0.25 + 2 * 0.125) / 4 = 0.25, exact in float32; the largest of 3, 9 and 6 per round.
        # FairAvg: (0.5 + 0.25 + 0.125) / 3.
        assert values(model)["norm.mean"] == [float(np.float32(0.875 / 3)) if name == "fairavg" else 0.25]
        assert values(model)["norm.count"] == [9 * server_round]
        assert [*model] == ["norm.mean", "weight", "norm.count"]
        assert [array.dtype for array in model.values()] == ["float32", "float32", "int64"]


@pytest.mark.parametrize("name", AGGREGATORS)
def test_no_reply_stays_in_memory(name: str) -> None:
    """Without a collection of circles, before which a run of large models could fill the memory."""
    aggregator = instantiate(OmegaConf.load(CONF / "aggregator" / f"{name}.yaml"))
    model = model_of(0.0, 1.0, 0)
    gc.disable()
    try:
        trained = {client: (1, model_of(1.0 + client, 0.5, client)) for client in range(3)}
        replied = [weakref.ref(array) for _, arrays in trained.values() for array in arrays.values()]
        after = one_round(aggregator, 1, model, trained)
        del trained
        kept = [array for array in (each() for each in replied) if array is not None]
        assert all(any(array is used for used in after.values()) for array in kept)
    finally:
        gc.enable()


def test_momentum_moves_parameters_alone() -> None:
    aggregator = FedAvgM(server_momentum=0.5, **NO_MINIMA)
    model = model_of(0.0, 8.0, 0)
    for server_round, weight, variance in ((1, 1.0, 4.0), (2, 2.0, 1.0)):
        model = one_round(aggregator, server_round, model, {0: (5, model_of(weight, variance, server_round))})
    # Weights: to 1, then by 1 and half of the 1 before: 2.5. Moved likewise, the statistic would be
    # 4 + (1 - 4) + (4 - 8) / 2 = -1; it is what the client measured.
    assert values(model) == {"norm.mean": [1.0], "weight": [2.5], "norm.count": [2]}


def test_krum_chooses_by_parameters_and_averages_buffers() -> None:
    # Client 1 is nearest to the others by its parameter; client 2 has a statistic of its own.
    weights = zip((1, 1, 2, 4), (1.0, 2.0, 4.0, 16.0), (0.0, 0.0, 400.0, 0.0), strict=True)
    trained = {client: (size, model_of(*each, 1)) for client, (size, *each) in enumerate(weights)}
    model = one_round(Krum(num_malicious_nodes=0, **NO_MINIMA), 1, model_of(0.0, 0.0, 0), trained)
    # Squared distances to the two nearest, each three times: 1 + 9, 1 + 4, 4 + 9 and 144 + 196.
    assert values(model)["weight"] == [2.0]
    assert values(model)["norm.mean"] == [100.0]  # 2 * 400 / (1 + 1 + 2 + 4)


def test_a_model_without_buffers_reaches_the_aggregator_as_it_is() -> None:
    seen = []

    class Seeing(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):  # type: ignore[no-untyped-def]
            seen.append(arrays)
            return super().configure_train(server_round, arrays, config, grid)

    model = ArrayRecord({"weight": Array(np.zeros(2, dtype=np.float32))})
    instructions(Seeing(**NO_MINIMA), 1, model, [0, 1], frozenset())
    assert seen == [model]
    assert seen[0] is model


@pytest.mark.parametrize("name", ["fedmedian", "fedtrimmedavg"])
def test_a_reply_that_is_listed_twice_counts_twice_and_stays_whole(name: str) -> None:
    # Flower's two take the arrays out of the records that they are given.
    model = ArrayRecord({"weight": Array(np.zeros(2, dtype=np.float32))})
    aggregator = instantiate(OmegaConf.load(CONF / "aggregator" / f"{name}.yaml"))
    instructions(aggregator, 1, model, [0, 1], frozenset())
    arrays = [ArrayRecord({"weight": Array(np.full(2, each, dtype=np.float32))}) for each in (1.0, 7.0)]
    one, other = replies = [replied(k, arrays[k], 5, model) for k in (0, 1)]
    made = aggregate(aggregator, 1, model, [one, one, one, other], frozenset(), shared_means=False)
    # The median of 1, 1, 1, 7 is 1; a fifth of four trims nobody, and the mean is (1 + 1 + 1 + 7) / 4 = 2.5.
    assert values(made) == {"weight": [{"fedmedian": 1.0, "fedtrimmedavg": 2.5}[name]]}
    assert [values(reply.model) for reply in replies] == [{"weight": [1.0]}, {"weight": [7.0]}]


def test_whole_numbers_are_never_optimised_named_or_not() -> None:
    model = model_of(0.0, 1.0, 0)
    aggregator = FedAvgM(server_momentum=0.9, **NO_MINIMA)
    asked = instructions(aggregator, 1, model, [0], frozenset())
    assert [*aggregator.current_arrays] == ["norm.mean", "weight"]
    assert values(asked[0].arrays) == values(model)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_server_optimiser_that_overflows_is_an_error() -> None:
    aggregator = FedAvgM(server_learning_rate=1e300, **NO_MINIMA)
    with pytest.raises(NotFinite, match="FedAvgM made a model that is not finite from 1 finite"):
        one_round(aggregator, 1, model_of(0.0, 0.0, 0), {0: (1, model_of(1.0, 0.0, 1))})


def test_one_model_that_all_replies_share_is_looked_at_too() -> None:
    # Replies are finite when they come; a method's `entering` may have put its own models into them since.
    model = model_of(0.0, 0.0, 0)
    with pytest.raises(NotFinite, match="FedAvg made a model that is not finite from 1 finite"):
        one_round(FedAvg(**NO_MINIMA), 1, model, {0: (1, model_of(np.inf, 0.0, 1))})


# -- With nodes that send means -------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [[[0, 1, 2, 3]], [[0, 3], [1, 2]], [[2], [0, 1, 3]], [[0], [1], [2], [3]]])
def test_the_number_of_nodes_changes_nothing(nodes: list[list[int]]) -> None:
    state = {
        "norm.mean": torch.tensor([[1.0, 2.0], [3.0, 6.0], [10.0, 10.0], [0.0, 4.0]]),
        "weight": torch.tensor([[1.0] * 3, [2.0] * 3, [3.0] * 3, [8.0] * 3]),
        "norm.count": torch.tensor([7, 2, 9, 4]),
    }
    aggregator = FedAvgM(server_momentum=0.9, **NO_MINIMA)
    result = round_of(aggregator, 1, model_of(0.0, 0.0, 0), update_of([1, 3, 4, 2], **state), nodes)
    # (1*1 + 3*3 + 4*10 + 2*0) / 10 = 5 and (1*2 + 3*6 + 4*10 + 2*4) / 10 = 6.8; the largest counter is 9.
    np.testing.assert_array_equal(result["norm.mean"].numpy(), np.array([5.0, 6.8], dtype=np.float32))
    # (1*1 + 3*2 + 4*3 + 2*8) / 10 = 3.5, the first step of momentum being a plain one
    np.testing.assert_array_equal(result["weight"].numpy(), np.full(3, 3.5, dtype=np.float32))
    assert result["norm.count"].numpy() == 9


def _memory(kind: type[FedAvg], nodes: list[list[int]]) -> dict[str, Any]:
    """Run two rounds of seven clients on some nodes; list what the aggregator remembers, and the model."""
    draws = np.random.default_rng(0)
    aggregator, model = kind(**NO_MINIMA), from_state({"weight": torch.zeros(500)})
    for number in (1, 2):
        weights = torch.from_numpy(draws.normal(size=(7, 500)).astype(np.float32))
        update = update_of([1, 3, 4, 2, 7, 11, 5], weight=weights)
        model = round_of(aggregator, number, model, update, nodes)
    remembered = pack(pack_state(aggregator, kind(**NO_MINIMA)), dict[str, Any])
    return remembered | {"the model": model["weight"].numpy()}


@pytest.mark.parametrize("kind", [FedAvgM, FedAdam, FedYogi, FedAdagrad])
@pytest.mark.parametrize("nodes", [[[0, 3, 5], [1, 2], [4, 6]], [[client] for client in range(7)]])
def test_nor_does_it_change_what_a_server_optimiser_remembers(kind, nodes) -> None:
    one, several = _memory(kind, [list(range(7))]), _memory(kind, nodes)
    assert len(one) > 1
    assert same(one, several)


@pytest.mark.parametrize("nodes", [[[0, 2]], [[0], [2]]])
def test_the_number_of_nodes_changes_nothing_if_some_clients_send_their_own_models(nodes) -> None:
    """Clients 1 and 3 send float32, the others a node's mean in float64."""
    weights, examples = np.random.default_rng(0).normal(size=(4, 500)).astype(np.float32), [1, 3, 4, 2]
    update, model = update_of(examples, weight=torch.from_numpy(weights)), torch.zeros(500)
    result = round_of(FedAvg(**NO_MINIMA), 1, from_state({"weight": model}), update, nodes)
    # In float64 throughout and rounded once; added up in float32 the last bits would depend on the nodes.
    expected = (weights.astype("f8") * np.array(examples)[:, None]).sum(axis=0) / 10
    np.testing.assert_array_equal(result["weight"].numpy(), expected.astype(np.float32))


# -- What the aggregator need not know ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedProx, type("Mine", (FedProx,), {})])
def test_instructions_are_the_aggregators_and_carry_the_users_own_settings(kind) -> None:
    """What Flower's own class would write is known; what a class of one's own writes is read."""
    model = model_of(1, 2, 3)
    asked = instructions(kind(proximal_mu=0.1), 4, model, [2, 0, 3], BUFFERS, {"lr": 0.5})
    assert sorted(asked) == [0, 2, 3]
    assert len({id(each) for each in asked.values()}) == 1  # or it would travel once per client
    assert (asked[0].proximal_mu, asked[0].server_round, asked[0].extra) == (0.1, 4, {"lr": 0.5})
    assert values(asked[0].arrays) == values(model)


def test_the_aggregator_draws_among_the_clients() -> None:
    asked = instructions(FedAvg(fraction_train=0.5, **NO_MINIMA), 1, model_of(1, 2, 3), range(8), BUFFERS)
    assert len(asked) == 4
    assert asked.keys() <= set(range(8))


def test_buffers_of_a_network() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    network[0].weight.requires_grad = False  # frozen, but a parameter
    assert buffer_names(network) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_tied_parameters_are_no_buffers() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[1].weight = network[0].weight
    assert buffer_names(network) == frozenset()


def test_a_cohort_smaller_than_flowers_minima_trains_all_the_same() -> None:
    aggregator = FedAdam()  # which waits for ever for a second client
    assert [*instructions(aggregator, 1, model_of(1, 2, 3), [0], BUFFERS)] == [0]
    assert (aggregator.min_train_nodes, aggregator.min_available_nodes) == (2, 2)


# -- What an aggregator may be told ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregator", "said"),
    [
        (FedProx(proximal_mu=-1), "proximal_mu must be >= 0 and finite, got -1"),
        (FedProx(proximal_mu=float("nan")), "proximal_mu must be >= 0 and finite, got nan"),
        (FedAvgM(server_momentum=1.0), r"server_momentum must be in \[0, 1\), got 1.0"),
        (FedAvgM(server_learning_rate=0.0), "server_learning_rate must be > 0 and finite, got 0.0"),
        (FedAdam(eta=-0.1), "eta must be > 0 and finite, got -0.1"),
        (FedAdam(tau=0.0), "tau must be > 0 and finite, got 0.0"),
        (FedAdam(beta_2=1.5), r"beta_2 must be in \[0, 1\), got 1.5"),
        (Krum(num_malicious_nodes=-1), "num_malicious_nodes must be >= 0 and finite, got -1"),
        (FedAvg(weighted_by_key="rows"), "weighted_by_key must be 'num-examples', got 'rows'"),
        (FedAvg(arrayrecord_key="model"), "arrayrecord_key must be 'arrays', got 'model'"),
        (FedAvg(configrecord_key="settings"), "configrecord_key must be 'config', got 'settings'"),
    ],
)
def test_values_outside_their_range(aggregator: Strategy, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        check_aggregator(aggregator)


def test_the_users_own_aggregator_checks_itself() -> None:
    class Mine(FedAvg):
        eta = -1.0

    check_aggregator(Mine())


# -- FairAvg --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_every_client_counts_the_same(toy, num_nodes: int) -> None:
    # Clients 0 to 5 add 0 to 5 and have 1 to 6 samples: 15/6 = 2.5; weighted by samples it would be 70/21.
    strategy = ClusteredStrategy(aggregator=FairAvg)
    strategy.start(toy().grid(num_nodes), toy.model(), num_rounds=1)
    np.testing.assert_array_equal(strategy.clusters.models[0]["w"].numpy(), [2.5, 2.5])
    (message, *_) = FairAvg(**NO_MINIMA).configure_train(1, toy.model(), ConfigRecord(), toy().grid())
    assert read_sent(Instruction, message.content).equal_weights
    assert instructions(FairAvg(), 1, toy.model(), [0], frozenset())[0].equal_weights


def test_rounds_of_equal_clients_are_those_of_a_literal_loop() -> None:
    """Two steps of softmax regression on each client's rows; the plain mean of the cohort."""
    draws, network = np.random.default_rng(0), nn.Linear(2, 2)
    rows = [(draws.normal(size=(n, 2)).astype("f4"), draws.integers(0, 2, n)) for n in (9, 1, 4, 2, 3)]
    begin = {"begin": lambda self, federation, model: Clusters.of([0, 0, 0, 0, 1], model)}  # one is alone
    strategy = type("Two", (ClusteredStrategy,), begin)(aggregator=FairAvg, participation=0.5)
    how = LocalTraining(learning_rate=0.5, batch_size=9, epochs=2)
    clients = [(own, None, own) for own in rows]
    found = fedclust.simulate(strategy, network, clients, rounds=3, training=how)
    for cluster, members in enumerate([{0, 1, 2, 3}, {4}]):
        model = [each.detach().numpy().astype(float) for each in network.parameters()]
        for cohort in found.rounds["cohort"]:
            trained = []
            for x, y in (rows[client] for client in members & {*cohort}):
                weight, bias = model
                for _ in range(2):
                    odds = np.exp(x @ weight.T + bias)
                    wrong = (odds / odds.sum(axis=1, keepdims=True) - np.eye(2)[y]) / len(y)
                    weight, bias = weight - 0.5 * wrong.T @ x, bias - 0.5 * wrong.sum(axis=0)
                trained.append((weight, bias))
            model = [sum(each) / len(trained) for each in zip(*trained, strict=True)]
        for tensor, expected in zip(found.model_of(cluster).parameters(), model, strict=True):
            np.testing.assert_allclose(tensor.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared_means", [True, False])
def test_a_reply_counts_as_often_as_clients_share_it_and_so_do_buffers(shared_means: bool) -> None:
    aggregator, one, of_two = FairAvg(**NO_MINIMA), model_of(1.0, 10.0, 1), model_of(4.0, 40.0, 1)
    given = enumerate(((100, one), (1, of_two), (5, of_two)))
    replies = [replied(client, model, number) for client, (number, model) in given]
    made = aggregate(aggregator, 1, one, replies, BUFFERS, shared_means=shared_means)
    # (1 + 2 · 4) / 3 and (10 + 2 · 40) / 3
    assert values(made) == {"norm.mean": [30], "weight": [3], "norm.count": [1]}


# -- What an aggregator remembers -----------------------------------------------------------------------


def test_a_strategy_inside_another_is_restored_too() -> None:
    def make() -> DifferentialPrivacyServerSideAdaptiveClipping:
        inner = FedAvgM(server_momentum=0.9, **NO_MINIMA)
        return DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.0, 1, initial_clipping_norm=0.5)

    old, new, model = make(), make(), model_of(0.0, 1.0, 0)
    one_round(old, 1, model, {0: (1, model_of(1.0, 1.0, 0))})
    packed = pack_state(old, make())
    assert packed["strategy"].keys() >= {"momentum_vector"}
    restored(new, packed)
    momentum = [vector.tolist() for vector in old.strategy.momentum_vector]
    assert [vector.tolist() for vector in new.strategy.momentum_vector] == momentum
    assert new.clipping_norm == old.clipping_norm != 0.5


def test_what_cannot_be_kept_is_named() -> None:
    assert pack_state(FedAdam(), FedAdam()) == {}
    strategy = FedAvg()
    strategy.history = object()
    with pytest.raises(TypeError, match="aggregator FedAvg cannot be resumed: attribute 'history' must hold"):
        pack_state(strategy, FedAvg())
