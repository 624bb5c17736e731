"""What clients answer after training: their models, means of them, or only their change."""

from dataclasses import replace
from functools import partialmethod

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import fedclust
from fedclust.clients.node import node_of_objects
from fedclust.clients.train import Mean, add_to_means, train
from fedclust.data.arrays import from_arrays
from fedclust.messages import training
from fedclust.messages.codec import SERVER, Reading, decode, encode
from fedclust.messages.models import from_state, to_state
from fedclust.messages.replies import Caps
from fedclust.strategies import ClusteredStrategy
from fedclust.training import LocalTraining
from fedclust.training.cohort import CohortUpdate, update_norms
from fedclust.training.trainer import Trainer

SEVERAL = {"clients": "0-3"}
PROJECTION = training.Projection(64, 5)


def _arrays(content) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in content["arrays"].items()}


def _num_examples(content) -> int:
    return content["metrics"]["num-examples"]


def _alike(one, other) -> None:
    for name, array in _arrays(one).items():
        np.testing.assert_allclose(array, _arrays(other)[name], rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def alone(node, tell):
    """Return what clients 0 to 3 answer, each with its own model."""
    return node(SEVERAL).contents("train", range(4), tell())


@pytest.fixture(scope="module")
def changes(alone, model):
    """Return the change of each array, float64, shape (4, *shape)."""
    start = {name: array.numpy().astype(float) for name, array in model.items()}
    return {name: np.stack([_arrays(alone[k])[name] - start[name] for k in range(4)]) for name in start}


def test_a_client_reports_model_losses_and_sample_count(alone, model, federation) -> None:
    trained = alone[1]["arrays"]
    assert list(trained) == list(model)
    for name, array in trained.items():
        assert (array.shape, array.dtype) == (model[name].shape, model[name].dtype)
        assert np.abs(array.numpy() - model[name].numpy()).max() > 0
    assert _num_examples(alone[1]) == len(federation.train[1])
    losses = alone[1]["losses"]["losses"]
    assert len(losses) == 3  # training.steps
    assert alone[1]["metrics"]["loss"] == pytest.approx(sum(losses) / 3)


def test_clients_that_share_a_model_answer_with_their_weighted_mean(node, tell, alone) -> None:
    shared = node(SEVERAL).contents("train", range(4), tell(mean_reply=True))
    weights = [_num_examples(alone[client]) for client in range(4)]
    assert len({id(content["arrays"]) for content in shared.values()}) == 1  # it travels once
    for name, mean in _arrays(shared[0]).items():
        models = [_arrays(alone[client])[name].astype(np.float64) for client in range(4)]
        expected = sum(weight * each for weight, each in zip(weights, models, strict=True)) / sum(weights)
        np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-7)
    for client in range(4):  # what is not the model stays each client's own
        assert _num_examples(shared[client]) == _num_examples(alone[client])
        assert shared[client]["losses"] == alone[client]["losses"]


def test_a_clients_rows_count_for_at_most_as_many_as_the_server_says(node, tell, alone) -> None:
    rows = [_num_examples(alone[client]) for client in range(4)]
    most = sorted(rows)[1]
    shared = node(SEVERAL).contents("train", range(4), tell(mean_reply=True, most_rows=most))
    weights = [min(each, most) for each in rows]
    assert weights != rows
    assert [_num_examples(shared[client]) for client in range(4)] == weights
    for name, mean in _arrays(shared[0]).items():
        expected = sum(w * _arrays(alone[client])[name] for client, w in enumerate(weights)) / sum(weights)
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)


def test_clusters_have_a_mean_each_and_some_answer_with_their_own_model(node, tell, model, alone) -> None:
    asked = node({"clients": "0-5"})
    other = from_state({name: tensor * 0.5 for name, tensor in to_state(model).items()})
    first, second = tell(mean_reply=True), tell(other, mean_reply=True)
    contents, errors = asked.ask_clients(
        "train", {0: first, 1: tell(), 2: first, 3: second, 4: second, 5: tell()}
    )
    assert errors == {}
    one = asked.contents("train", (0, 2), tell(mean_reply=True))
    two = asked.contents("train", (3, 4), tell(other, mean_reply=True))
    for client, expected in ({1: alone[1]} | one | two).items():
        _alike(contents[client], expected)
    assert contents[0]["arrays"] == contents[2]["arrays"] != contents[3]["arrays"] == contents[4]["arrays"]


@pytest.mark.parametrize("mean_reply", [False, True])
def test_a_failing_client_costs_only_its_own_part(node, tell, broken, mean_reply) -> None:
    asked, good = node(SEVERAL), tell(mean_reply=mean_reply)
    bad = tell(broken, mean_reply=mean_reply)
    contents, errors = asked.ask_clients("train", {0: good, 1: good, 2: bad, 3: good})
    assert errors.keys() == {2}
    assert "loss" in errors[2]
    without = asked.contents("train", (0, 1, 3), good)
    assert contents.keys() == without.keys() == {0, 1, 3}
    for client, content in contents.items():
        _alike(content, without[client])


def test_the_servers_proximal_weight_holds(node, tell, model) -> None:
    """A large weight holds the model where it started."""
    moved = {}
    for mu in (0.0, 5.0):
        contents, _ = node({"clients": "0"}).ask_clients("train", {0: tell(proximal_mu=mu)})
        arrays = _arrays(contents[0]).items()
        moved[mu] = sum(np.square(array - model[name].numpy()).sum() for name, array in arrays)
    assert 0 < moved[5.0] < moved[0.0]


def test_rounds_differ_and_repeat(node, tell, alone) -> None:
    asked = node({"clients": "0"})
    first, second = (asked.ask_clients("train", {0: tell(server_round=each)})[0][0] for each in (1, 2))
    assert first["losses"] == alone[0]["losses"] != second["losses"]


def test_how_far_clients_have_moved() -> None:
    start = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0]), "n": torch.tensor(3)}
    weights, biases = (
        torch.tensor([[1.0, 2.0], [4.0, 6.0], [1e30, 0.0]]),
        torch.tensor([[0.0], [12.0], [0.0]]),
    )
    state = {"w": weights, "b": biases, "n": torch.tensor([3, 9, 3])}
    # Client 1 has moved by (3, 4) and 12: 13. Whole numbers do not count; 1e60 is beyond float32.
    assert update_norms(state, start, [0, 1, 2]) == [0.0, 13.0, float("inf")]
    assert update_norms(state, start, [1]) == [13.0]
    assert update_norms(state, start, [0, 2]) == [0.0, float("inf")]
    assert update_norms({"n": state["n"]}, start, [0, 2]) == [0.0, 0.0]


@pytest.mark.parametrize(("cap", "groups"), [(None, [[0, 1, 2, 3]]), (4.0, [[0, 2, 3], [1]])])
@pytest.mark.parametrize("equal", [False, True])
def test_a_client_whose_update_is_much_longer_shares_no_mean(cap, groups, equal) -> None:
    moved, numbers = torch.tensor([[0.01], [5.0], [0.02], [0.04]]), np.array([1, 1, 1, 2])
    update = CohortUpdate(np.arange(4), {"w": moved}, (np.ones(1),) * 4, numbers, {})
    asked = training.Instruction(ArrayRecord(), mean_reply=True, norm_cap=cap, equal_weights=equal)
    means: list[Mean] = []
    for clients in ([0, 1], [2, 3]):  # as of two passes
        norms = {client: {} if cap is None else {"update_norm": float(moved[client])} for client in clients}
        add_to_means(means, asked, update, norms)
    answers = {client: mean.models.state() for mean in means for client in mean.fields}
    assert sorted(answers) == [0, 1, 2, 3]
    for group in groups:
        weights = [1 if equal else int(numbers[client]) for client in group]
        expected = np.average([float(moved[client]) for client in group], weights=weights)
        for client in group:
            assert float(answers[client]["w"]) == pytest.approx(expected)


def test_the_usual_caps_are_not_sent() -> None:
    assert Caps(30.0, None, 3.0).instruction(np.array([4, 5, 15])) == {"norm_cap": 30.0}
    assert Caps(rows=3.0).instruction(np.array([4, 5, 16])) == {"norm_cap": None, "most_rows": 15}
    assert list(encode(training.Instruction(ArrayRecord(), 1))["config"]) == ["server-round", "mean-reply"]


def test_a_poisoned_client_of_a_node_is_left_out_and_the_others_go_on(monkeypatch) -> None:
    attacker, honest = 3, Trainer.train

    def tampered(self, jobs, server_round, *, poison, **options):
        for update in honest(self, jobs, server_round, **options):
            hit = server_round <= 3 and attacker in update.clients
            for tensor in update.state.values() if hit and poison else ():
                tensor[int(np.flatnonzero(update.clients == attacker)[0])] += 1e30
            failed = {**update.failed, attacker: "off"} if hit and not poison else update.failed
            yield replace(update, failed=failed)

    draws = np.random.default_rng(0)
    rows = [draws.normal(size=(20, 2)).astype("f4") for _ in range(6)]
    federation, network = from_arrays([(x, (x.sum(1) > 0).astype(int)) for x in rows]), nn.Linear(2, 2)
    how = LocalTraining(learning_rate=0.5, batch_size=10, epochs=1, mode="sequential")

    def run(poison):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train", partialmethod(tampered, poison=poison))
            return fedclust.simulate(ClusteredStrategy(seed=1), network, federation, rounds=5, training=how)

    poisoned, silent = run(poison=True), run(poison=False)
    for result in (poisoned, silent):
        named = [[each["client"] for each in failures] for failures in result.rounds["failures"]]
        assert named == [[attacker]] * 3 + [[]] * 2
    for column in ("loss", "global_accuracy"):
        assert poisoned.rounds[column].tolist() == silent.rounds[column].tolist()


def test_a_model_that_does_not_fit_excludes_those_it_was_sent_to(node, tell, model) -> None:
    wrong = from_state({**to_state(model), "extra": torch.zeros(1)})
    fits, other = tell(mean_reply=True), tell(wrong, mean_reply=True)
    contents, errors = node(SEVERAL).ask_clients("train", {0: other, 1: fits, 2: other, 3: fits})
    assert sorted(contents) == [1, 3]
    reason = "state must have the model's tensors, lacks [], has ['extra']"
    assert errors == {client: f"client {client}: {reason}" for client in (0, 2)}


def test_updates_are_clipped_before_they_become_a_mean(node, tell, model, changes) -> None:
    clipping = tell(mean_reply=True, clip=0.05, clip_tells=True, equal_weights=True)
    shared = node(SEVERAL).contents("train", range(4), clipping)
    lengths = np.sqrt(sum(np.square(each.reshape(4, -1)).sum(axis=1) for each in changes.values()))
    assert (lengths > 0.05).all()
    for name, mean in _arrays(shared[0]).items():
        total = sum(each * (0.05 / length) for each, length in zip(changes[name], lengths, strict=True))
        np.testing.assert_allclose(mean, model[name].numpy() + total / 4, atol=1e-6)
    for content in shared.values():
        assert dict(content["metrics"]) == {"num-examples": 1, "loss": 0.0, "within-clip": 0}
        assert list(content["losses"]["losses"]) == [0.0]


@pytest.mark.parametrize("sketch", [{}, {"projection_size": 64, "projection_seed": 5}])
def test_clients_in_a_capped_mean_report_the_length_of_their_update(node, tell, changes, sketch) -> None:
    contents = node(SEVERAL).contents("train", range(4), tell(mean_reply=True, norm_cap=30.0, **sketch))
    lengths = np.sqrt(sum(np.square(each.reshape(4, -1)).sum(axis=1) for each in changes.values()))
    for client, content in contents.items():
        assert content["metrics"]["update-norm"] == pytest.approx(lengths[client], rel=1e-4)


def test_a_clipped_clients_failure_looks_like_no_update() -> None:
    data = from_arrays([(np.ones((3, 2), "f4"), np.array([0, 1, 1]))] * 2)
    network = nn.Linear(2, 2)
    how = LocalTraining(
        learning_rate=0.5, batch_size=3, epochs=1, loss=lambda outputs, _: outputs.sum(1) * np.nan
    )
    start = from_state(network.state_dict())
    made = node_of_objects(data, network, how, seed=0)
    answers, errors = train(made, dict.fromkeys(range(2), training.Instruction(start, 1, clip=1.0)))
    assert (sorted(answers), errors) == ([0, 1], {})
    for answer in answers.values():
        assert (answer.num_examples, answer.losses.tolist()) == (1, [0.0])
        assert all((answer.arrays[name].numpy() == start[name].numpy()).all() for name in start)
    plain, errors = train(made, dict.fromkeys(range(2), training.Instruction(start, 1)))
    assert (plain, errors) == ({}, dict.fromkeys(range(2), "non-finite loss at step 1"))


def test_clients_of_one_pass_have_one_clip(node, tell) -> None:
    with pytest.raises(ValueError, match=r"^clients of one node must have one clip, got \['0.5', 'None'\]$"):
        node(SEVERAL).ask_clients("train", {0: tell(clip=0.5), 1: tell()})


# -- Only the change ----------------------------------------------------------------------------------------


def test_a_projection_and_named_arrays_instead_of_the_model(node, model, changes) -> None:
    clients, name = [0, 2, 3], list(model)[-1]
    question = training.UpdateQuestion.of(model, 1, [name], PROJECTION)
    answers = node(SEVERAL).answers(dict.fromkeys(clients, question))
    expected = PROJECTION.of(changes)
    for client in clients:
        told = answers[client]
        np.testing.assert_allclose(told.projected.values, expected[client], rtol=1e-4, atol=1e-6)
        flat = np.concatenate([array[client].ravel() for array in changes.values()])
        assert told.projected.norm == pytest.approx(np.sqrt((flat**2).sum()), rel=1e-5)
        assert list(told.changes) == [name]
        np.testing.assert_allclose(told.changes[name], changes[name][client], rtol=1e-4, atol=1e-7)
        assert told.num_examples > 0


def test_training_answers_a_projection_beside_a_mean(node, tell, changes) -> None:
    sketch = {"projection_size": PROJECTION.size, "projection_seed": PROJECTION.seed}
    content = tell(mean_reply=True, **sketch)
    contents = node(SEVERAL).contents("train", range(4), content)
    expected, asked = PROJECTION.of(changes), training.Instruction(ArrayRecord(), **sketch)
    for client in range(4):
        told = decode(training.TrainAnswer, contents[client], Reading(client, 1, asked=asked))
        np.testing.assert_allclose(told.projected.values, expected[client], rtol=1e-4, atol=1e-6)
    # Their mean model is unlike any of their own, so it is not the mean that was projected.
    assert not np.allclose(expected[0], expected[1])


def test_a_client_whose_training_fails_is_an_error(node, broken) -> None:
    answers, errors = node(SEVERAL).told({1: training.UpdateQuestion.of(broken, 1, [], PROJECTION)})
    assert answers == {}
    assert "finite" in errors[1]


def test_a_name_that_the_model_lacks_is_refused(model) -> None:
    with pytest.raises(ValueError, match=r"names must be arrays of the model, .*, got \['nose'\]"):
        decode(training.UpdateQuestion, encode(training.UpdateQuestion(model, 1, ("nose",))), SERVER)
