from dataclasses import replace
from functools import partialmethod
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import fedclust
from fedclust.clients.train import STEPS, Trained
from fedclust.data.arrays import from_arrays
from fedclust.messages.codec import ARRAYS, METRICS
from fedclust.messages.models import from_state, to_state
from fedclust.messages.training import LOSS, NUM_EXAMPLES, Instruction
from fedclust.strategies import ClusteredStrategy
from fedclust.training import LocalTraining
from fedclust.training.cohort import CohortUpdate, update_norms
from fedclust.training.trainer import Trainer

SEVERAL = {"clients": "0-3"}


def _arrays(content) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in content.array_records[ARRAYS].items()}


def _num_examples(content) -> int:
    return content.metric_records[METRICS][NUM_EXAMPLES]


def test_a_client_reports_model_losses_and_sample_count(node, tell, model, federation) -> None:
    contents, errors = node(SEVERAL).ask_clients("train", {1: tell()})
    assert errors == {}
    trained = contents[1].array_records[ARRAYS]
    assert list(trained) == list(model)
    for name, array in trained.items():
        assert (array.shape, array.dtype) == (model[name].shape, model[name].dtype)
        assert np.abs(array.numpy() - model[name].numpy()).max() > 0
    assert _num_examples(contents[1]) == len(federation.train[1])
    losses = contents[1].config_records["losses"]["losses"]
    assert len(losses) == 3  # training.steps
    assert contents[1].metric_records[METRICS][LOSS] == pytest.approx(sum(losses) / 3)


def test_clients_that_share_a_model_answer_with_their_weighted_mean(node, tell) -> None:
    asked = node(SEVERAL)
    alone, _ = asked.ask_clients("train", dict.fromkeys(range(4), tell()))
    shared, errors = asked.ask_clients("train", dict.fromkeys(range(4), tell(mean_reply=True)))
    assert errors == {}
    total = sum(_num_examples(alone[client]) for client in range(4))
    records_of_all = {id(content.array_records[ARRAYS]) for content in shared.values()}
    assert len(records_of_all) == 1  # it travels once
    for name, mean in _arrays(shared[0]).items():
        expected = np.zeros(mean.shape)
        for client in range(4):
            expected += _num_examples(alone[client]) * _arrays(alone[client])[name].astype(np.float64)
        np.testing.assert_allclose(mean, expected / total, rtol=1e-6, atol=1e-7)
    for client in range(4):  # what is not the model stays each client's own
        assert _num_examples(shared[client]) == _num_examples(alone[client])
        assert shared[client].config_records == alone[client].config_records


def test_some_may_answer_with_their_own_model_and_the_others_share_a_mean(node, tell) -> None:
    asked = node(SEVERAL)
    alone, _ = asked.ask_clients("train", dict.fromkeys(range(4), tell()))
    own, mean = tell(), tell(mean_reply=True)
    contents, errors = asked.ask_clients("train", {0: mean, 1: own, 2: mean, 3: own})
    assert errors == {}
    others, _ = asked.ask_clients("train", dict.fromkeys((0, 2), tell(mean_reply=True)))
    for client, expected in {0: others, 1: alone, 2: others, 3: alone}.items():
        for name, array in _arrays(contents[client]).items():
            np.testing.assert_allclose(array, _arrays(expected[client])[name], rtol=1e-6, atol=1e-7)


def test_clusters_have_a_mean_each(node, tell, model) -> None:
    asked = node(SEVERAL)
    other = from_state({name: tensor * 0.5 for name, tensor in to_state(model).items()})
    first, second = tell(mean_reply=True), tell(other, mean_reply=True)
    contents, _ = asked.ask_clients("train", {0: first, 1: second, 2: first, 3: second})
    apart = {
        **asked.ask_clients("train", dict.fromkeys((0, 2), tell(mean_reply=True)))[0],
        **asked.ask_clients("train", dict.fromkeys((1, 3), tell(other, mean_reply=True)))[0],
    }
    for client in range(4):
        for name, array in _arrays(contents[client]).items():
            np.testing.assert_allclose(array, _arrays(apart[client])[name], rtol=1e-6, atol=1e-7)
    assert contents[0].array_records[ARRAYS] == contents[2].array_records[ARRAYS]
    assert contents[0].array_records[ARRAYS] != contents[1].array_records[ARRAYS]


@pytest.mark.parametrize("mean_reply", [False, True])
def test_a_failing_client_costs_only_its_own_part(node, tell, broken, mean_reply) -> None:
    asked = node(SEVERAL)
    good = tell(mean_reply=mean_reply)
    contents, errors = asked.ask_clients(
        "train", {0: good, 1: good, 2: tell(broken, mean_reply=mean_reply), 3: good}
    )
    assert contents.keys() == {0, 1, 3}
    assert errors.keys() == {2}
    assert "loss" in errors[2]
    without, _ = asked.ask_clients("train", dict.fromkeys((0, 1, 3), tell(mean_reply=mean_reply)))
    for client in (0, 1, 3):
        for name, array in _arrays(contents[client]).items():
            np.testing.assert_allclose(array, _arrays(without[client])[name], rtol=1e-6, atol=1e-7)


def test_the_servers_proximal_weight_holds(node, tell, model) -> None:
    """A large weight holds the model where it started."""
    asked = node({"clients": "0"})
    moved = {
        mu: sum(
            np.square(array - model[name].numpy()).sum()
            for name, array in _arrays(asked.ask_clients("train", {0: tell(proximal_mu=mu)})[0][0]).items()
        )
        for mu in (0.0, 5.0)
    }
    assert 0 < moved[5.0] < moved[0.0]


def test_rounds_differ_and_repeat(node, tell) -> None:
    asked = node({"clients": "0"})

    def losses(server_round: int) -> list[float]:
        contents, _ = asked.ask_clients("train", {0: tell(server_round=server_round)})
        return contents[0].config_records["losses"]["losses"]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_how_far_clients_have_moved() -> None:
    start = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0]), "n": torch.tensor(3)}
    state = {
        "w": torch.tensor([[1.0, 2.0], [4.0, 6.0], [1e30, 0.0]]),
        "b": torch.tensor([[0.0], [12.0], [0.0]]),
        "n": torch.tensor([3, 9, 3]),
    }
    # Client 1 has moved by (3, 4) and 12: 13. Whole numbers do not count; 1e60 is beyond float32.
    assert update_norms(state, start, [0, 1, 2]) == [0.0, 13.0, float("inf")]
    assert update_norms(state, start, [1]) == [13.0]
    assert update_norms(state, start, [0, 2]) == [0.0, float("inf")]
    assert update_norms({"n": state["n"]}, start, [0, 2]) == [0.0, 0.0]


@pytest.mark.parametrize(("cap", "groups"), [(None, [[0, 1, 2, 3]]), (10.0, [[0, 2, 3], [1]])])
@pytest.mark.parametrize("equal", [False, True])
def test_a_client_whose_update_is_much_longer_shares_no_mean(cap, groups, equal) -> None:
    moved = torch.tensor([[1.0], [500.0], [2.0], [4.0]])
    update = CohortUpdate(
        clients=np.arange(4), state={"w": moved}, losses=(np.ones(1),) * 4,
        num_examples=np.array([1, 1, 1, 2]), failed={},
    )  # fmt: skip
    start = {"w": torch.zeros(1)}
    asked = Instruction(ArrayRecord(), mean_reply=True, norm_cap=cap, equal_weights=equal)
    node = SimpleNamespace(trainer=SimpleNamespace(trainable_names=["w"]))
    trained = Trained(node, dict.fromkeys(range(4), asked), update, dict.fromkeys(range(4), start))
    for clients in ([0, 1], [2, 3]):  # as of two passes
        STEPS["mean"](trained, {client: client for client in clients})
    (means,) = trained.means.values()
    answers = {client: (each.mean.state(), told) for each in means for client, told in each.told.items()}
    assert sorted(answers) == [0, 1, 2, 3]
    for group in groups:
        weights = [1 if equal else int(update.num_examples[client]) for client in group]
        expected = np.average([float(moved[client]) for client in group], weights=weights)
        for client in group:
            mean, told = answers[client]
            assert float(mean["w"]) == pytest.approx(expected)
            assert told.get("update_norm") == (None if cap is None else float(moved[client]))


def test_a_poisoned_client_of_a_node_is_left_out_and_the_others_go_on(monkeypatch) -> None:
    attacker = 3
    honest = Trainer.train

    def tampered(self, jobs, server_round, *, poison, **options):
        for update in honest(self, jobs, server_round, **options):
            hit = server_round <= 3 and attacker in update.clients
            for tensor in update.state.values() if hit and poison else ():
                tensor[int(np.flatnonzero(update.clients == attacker)[0])] += 1e30
            failed = {**update.failed, attacker: "off"} if hit and not poison else update.failed
            yield replace(update, failed=failed)

    draws = np.random.default_rng(0)
    clients = [(x := draws.normal(size=(20, 2)), (x.sum(1) > 0).astype(int)) for _ in range(6)]
    federation = from_arrays([(x.astype("f4"), y) for x, y in clients])

    network = nn.Linear(2, 2)

    def run(poison):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train", partialmethod(tampered, poison=poison))
            return fedclust.simulate(
                ClusteredStrategy(seed=1),
                network,
                federation,
                rounds=8,
                training=LocalTraining(learning_rate=0.5, batch_size=10, epochs=1, mode="sequential"),
            )  # fmt: skip  (mode=auto times passes, and a busy machine may choose another)

    poisoned, silent = run(poison=True), run(poison=False)
    for result in (poisoned, silent):
        named = [[each["client"] for each in failures] for failures in result.rounds["failures"]]
        assert named == [[attacker]] * 3 + [[]] * 5
    assert poisoned.rounds["loss"].tolist() == silent.rounds["loss"].tolist()
    assert poisoned.rounds["global_accuracy"].tolist() == silent.rounds["global_accuracy"].tolist()


def test_a_model_that_does_not_fit_excludes_those_it_was_sent_to(node, tell, model) -> None:
    wrong = from_state({**to_state(model), "extra": torch.zeros(1)})
    fits, other = tell(mean_reply=True), tell(wrong, mean_reply=True)
    contents, errors = node(SEVERAL).ask_clients("train", {0: other, 1: fits, 2: other, 3: fits})
    assert sorted(contents) == [1, 3]
    assert sorted(errors) == [0, 2]
    for client, reason in errors.items():
        assert reason == f"client {client}: state must have the model's tensors, lacks [], has ['extra']"


def test_updates_are_clipped_before_they_become_a_mean(node, tell, model, federation) -> None:
    asked, told = node(SEVERAL), {"clip": 0.05, "clip_tells": True, "equal_weights": True}
    alone, _ = asked.ask_clients("train", dict.fromkeys(range(4), tell()))
    shared, errors = asked.ask_clients("train", dict.fromkeys(range(4), tell(mean_reply=True, **told)))
    assert errors == {}
    start = {name: array.numpy().astype(np.float64) for name, array in model.items()}
    total = {name: np.zeros(array.shape) for name, array in start.items()}
    for client in range(4):
        change = {name: array - start[name] for name, array in _arrays(alone[client]).items()}
        length = np.sqrt(sum(np.square(each).sum() for each in change.values()))
        assert length > 0.05
        for name, each in change.items():
            total[name] += each * (0.05 / length)
        metrics = dict(shared[client].metric_records[METRICS])
        assert metrics == {"num-examples": 1, "loss": 0.0, "within-clip": 0}
        assert list(shared[client].config_records["losses"]["losses"]) == [0.0]
    for name, mean in _arrays(shared[0]).items():
        np.testing.assert_allclose(mean, start[name] + total[name] / 4, atol=1e-6)
