"""What clients measure of models on their own rows, and say of these rows, beside literal loops."""

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import RecordDict
from scipy.linalg import subspace_angles
from scipy.special import log_softmax, softmax
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix
from torch import nn
from torch.nn import functional

from fedclust.clients.evaluate import evaluate, figure
from fedclust.clients.node import Node, node_of_objects
from fedclust.data.arrays import from_arrays
from fedclust.data.targets import Amounts
from fedclust.messages import description, evaluation
from fedclust.messages.codec import SERVER, BadReply, Reading, decode, encode
from fedclust.messages.models import from_state, to_state
from fedclust.personal.layers import Finetune, choose
from fedclust.privacy.accountant import seeded
from fedclust.training.cohort import draw_batches
from fedclust.training.parameters import LocalTraining
from fedclust.training.trainer import Trainer

SEVERAL, TWO = {"clients": "0-5"}, {"clients": "1,5"}
EVEN = np.zeros(10)


@pytest.fixture
def images(federation):
    """Return a function of rows: their normalised pixels."""
    return lambda rows: (federation.inputs[rows].float() / 255 - federation.mean[0]) / federation.std[0]


@pytest.fixture
def logits(network, images):
    """Return a function of rows and a model: the logits of one example after the other, float64."""

    def of(rows, model=None) -> np.ndarray:
        if model is not None:
            network.load_state_dict(to_state(model))
        network.eval()
        with torch.no_grad():
            return np.stack([network(image[None])[0].double().numpy() for image in images(rows)])

    return of


@pytest.fixture(scope="module")
def other(model):
    """Return the model with its last layer turned round."""
    *_, last = state = to_state(model)
    return from_state({**state, last: state[last] + torch.arange(10.0)})


@pytest.fixture(scope="module")
def undecided(model):
    """Return a model whose logits are all 0."""
    return from_state({name: torch.zeros_like(tensor) for name, tensor in to_state(model).items()})


def _loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


# -- Figures ------------------------------------------------------------------------------------------------


def _patients(
    labels: torch.Tensor = torch.ones(6, dtype=torch.int64),  # noqa: B008
    network: nn.Module | None = None,
    **options: Any,
) -> Node:
    """A client with test rows of three patients, all of class 1: of four rows, one and one."""
    inputs = torch.tensor([[1.0], [1.0], [1.0], [-1.0], [1.0], [-1.0]])
    data = from_arrays([((inputs, labels), None, (inputs, labels))], **options or {"num_classes": 2})
    persons = np.zeros(len(data.inputs), dtype=np.int64)
    persons[data.test[0]] = [5, 5, 5, 5, 6, 7]
    training = LocalTraining(learning_rate=0.1, batch_size=2, epochs=1)
    network = network or nn.Linear(1, data.num_outputs)
    return node_of_objects(dataclasses.replace(data, persons=persons), network, training, seed=3)


def test_an_accuracy_with_noise_is_over_patients_and_is_all_that_leaves() -> None:
    sign = {
        "weight": torch.tensor([[0.0], [1.0]]),
        "bias": torch.zeros(2),
    }  # 1 where the input is > 0
    noise = {"noise": 0.3, "published_noise": True}
    asked = evaluation.EvaluateQuestion(from_state(sign), server_round=4, full=True, **noise)
    answers, errors = evaluate(_patients(), {0: asked})
    assert errors == {}
    answer = answers[0]
    # Right: three of four rows, all, none. (3/4 + 1 + 0 + noise)/3.
    drawn = 0.3 * float(seeded(3)("accuracy", 4, 0, 1)[0])
    assert answer.metrics["accuracy"] == pytest.approx(min(1.0, max(0.0, (1.75 + drawn) / 3)))
    assert answer.metrics["num-examples"] == 3
    assert math.isnan(answer.metrics["loss"])
    assert math.isnan(answer.metrics["balanced-accuracy"])
    assert answer.outcomes is None
    read = decode(evaluation.Evaluation, encode(answer), Reading(0, asked=asked))
    assert read.metrics["accuracy"] == answer.metrics["accuracy"]


def test_with_noise_no_patient_changes_what_is_right_of_another() -> None:
    # Among all six rows the softmax of a 1 is 0.23, less than the bias of class 0; among its patient's it is
    # 0.32 for three of four rows, and 1 for one row alone: (3/4 + 1 + 1)/3.
    class Mixing(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows.softmax(dim=0))

    state = {"weight": torch.tensor([[0.0], [1.0]]), "bias": torch.tensor([0.28, 0.0])}
    asked = evaluation.EvaluateQuestion(from_state(state), noise=1e-9)
    answers, errors = evaluate(_patients(network=Mixing(1, 2)), {0: asked})
    assert errors == {}
    assert answers[0].metrics["accuracy"] == pytest.approx(2.75 / 3)


def test_an_accuracy_with_noise_counts_amounts_that_are_near_enough() -> None:
    # 10 where the input is 1 and 0 where it is -1; of patients of 9, within 2 as above: (3/4 + 1 + 0)/3.
    line = {"weight": torch.tensor([[1.25]]), "bias": torch.zeros(1)}
    asked = evaluation.EvaluateQuestion(from_state(line), noise=1e-9, published_noise=True)
    node = _patients(torch.full((6,), 9.0), target=Amounts(0.0, 10.0, (5.0,)))
    answers, errors = evaluate(node, {0: asked})
    assert errors == {}
    assert answers[0].metrics["accuracy"] == pytest.approx(1.75 / 3)


@pytest.mark.parametrize("kind", ["amounts", "classes"])
def test_with_noise_outputs_that_are_not_finite_are_wrong_and_no_error(kind: str) -> None:
    # Without the root of −1, which is NaN, all are right: 3/4, 1 and 0 of the three patients' rows.
    class Root(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows.sqrt())

    outputs = 1 if kind == "amounts" else 2
    state = {"weight": torch.ones(outputs, 1), "bias": torch.tensor([0.25, 0.0][:outputs])}
    asked = evaluation.EvaluateQuestion(from_state(state), noise=1e-9)
    labels = torch.full((6,), 9.0) if kind == "amounts" else torch.zeros(6, dtype=torch.int64)
    options = {"target": Amounts(0.0, 10.0, (5.0,))} if kind == "amounts" else {}
    answers, errors = evaluate(_patients(labels, Root(1, outputs), **options), {0: asked})
    assert errors == {}
    assert answers[0].metrics["accuracy"] == pytest.approx(1.75 / 3)


@pytest.mark.parametrize(("config", "refused"), [({"allow": "*"}, False), ({}, True), ({"data": "/x"}, True)])
def test_a_site_draws_its_noise_in_secret_whatever_the_server_asks(config: dict, refused: bool) -> None:
    made = dataclasses.replace(_patients(), config=config)
    secret = made.noise(published=False)
    assert (secret("accuracy", 1, 0, 9) != secret("accuracy", 1, 0, 9)).all()
    if refused:
        with pytest.raises(ValueError, match="^published_noise must be false at a site, whose noise"):
            made.noise(published=True)
    else:
        published = made.noise(published=True)
        assert (published("accuracy", 1, 0, 9) == seeded(3)("accuracy", 1, 0, 9)).all()


def _metrics(content) -> dict[str, float]:
    return dict(content["metrics"])


def test_each_client_measures_on_its_own_test_part(node, tell, logits, federation) -> None:
    counts = node(SEVERAL).contents("query.confusion", (1, 3), tell())
    for client, content in node(SEVERAL).contents("evaluate", (1, 3), tell()).items():
        rows = federation.test[client]
        labels, found = federation.labels[rows].numpy(), logits(rows)
        predicted = found.argmax(1)
        figures = {"num-examples": len(rows), "loss": _loss(found, labels).mean()}
        figures["accuracy"] = accuracy_score(labels, predicted)
        figures["balanced-accuracy"] = balanced_accuracy_score(labels, predicted)
        assert _metrics(content) == pytest.approx(figures, rel=1e-4)
        expected = confusion_matrix(labels, predicted, labels=range(10))
        np.testing.assert_array_equal(counts[client]["arrays"]["confusion"].numpy(), expected)


def test_what_takes_longer_is_measured_when_asked_for(node, tell) -> None:
    contents, _ = node(SEVERAL).ask_clients("evaluate", {0: tell(full=True), 1: tell()})
    assert {"macro-f1", "auc"} <= _metrics(contents[0]).keys()
    assert not {"macro-f1", "auc"} & _metrics(contents[1]).keys()
    assert ["outcomes" in contents[client] for client in (0, 1)] == [True, False]


def test_each_cluster_measures_its_own_model(node, tell, other) -> None:
    both, _ = node(SEVERAL).ask_clients("evaluate", {0: tell(), 1: tell(other)})
    swapped, _ = node(SEVERAL).ask_clients("evaluate", {0: tell(other), 1: tell()})
    for client in (0, 1):
        assert _metrics(both[client])["loss"] != pytest.approx(_metrics(swapped[client])["loss"])


@pytest.mark.parametrize("raised", [KeyError("an odd batch"), GeneratorExit("an odd batch"), SystemExit(3)])
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("evaluate", "evaluate"),
        ("losses", "query.losses"),
        ("confusions", "query.confusion"),
        ("logits", "query.predictions"),
        ("logits", "query.alone"),
    ],
)
def test_data_that_cannot_be_measured_cost_one_client(
    node, tell, model, monkeypatch, method, kind, raised
) -> None:
    honest = getattr(Trainer, method)

    def measure(self, jobs, **options):
        if any(job.client == 1 for job in jobs):
            raise raised
        return honest(self, jobs, **options)

    monkeypatch.setattr(Trainer, method, measure)
    alone = evaluation.AloneQuestion(model, model, EVEN, EVEN, epochs=1)
    questions = {each.kind: encode(each) for each in (evaluation.LossesQuestion([model]), alone)}
    asked = questions.get(kind, tell())
    answering = node({**SEVERAL, "predictions": "reply"})
    contents, errors = answering.ask_clients(kind, dict.fromkeys((0, 1, 3), asked))
    assert errors == {1: f"{type(raised).__name__}: {raised}"}
    assert sorted(contents) == [0, 3]


@pytest.mark.parametrize("epochs", [None, 2, 3])
def test_a_model_alone_is_compared_with_the_fine_tuned_one_that_serves(node, model, epochs) -> None:
    how = {} if epochs is None else {"server_round": 1, "tuning_epochs": epochs, "layers_tuned": "all"}
    alone = evaluation.AloneQuestion(model, model, EVEN, EVEN, epochs=2, **how)
    found = node(SEVERAL).answers({0: alone})[0]
    # From the same model and by the same draws, two epochs of both are the same model.
    assert found.count > 1
    assert (found.sums == 0).all() == (epochs == 2)


# -- Losses -------------------------------------------------------------------------------------------------


def test_each_client_measures_every_model_on_its_whole_training_part(
    node, logits, model, other, federation
) -> None:
    question = encode(evaluation.LossesQuestion([model, other]))
    for client, content in node(SEVERAL).contents("query.losses", (1, 3), question).items():
        rows = federation.train[client]
        labels = federation.labels[rows].numpy()
        by_row = np.stack([_loss(logits(rows, each), labels) for each in (model, other)])
        np.testing.assert_allclose(content["losses"]["losses"], by_row.mean(axis=1), rtol=1e-4)
        first = int((by_row[0] <= by_row[1]).sum())
        assert 0 < first < len(rows)
        assert content["losses"]["wins"] == [first, len(rows) - first]


def test_a_row_on_which_models_tie_counts_for_the_first(node, model, federation) -> None:
    answers, _ = node(SEVERAL).told({2: evaluation.LossesQuestion([model, model])})
    assert answers[2].wins.tolist() == [len(federation.train[2]), 0]


def test_a_model_that_has_diverged_is_the_last_choice(node, model, federation) -> None:
    lost = from_state({name: torch.full_like(each, math.nan) for name, each in to_state(model).items()})
    answers, errors = node(SEVERAL).told({2: evaluation.LossesQuestion([lost, model])})
    assert not errors
    last, known = answers[2].losses
    assert last == pytest.approx(2 * known + 1)
    assert answers[2].wins.tolist() == [0, len(federation.train[2])]


def test_all_clients_go_through_a_model_together(node, model, other, monkeypatch) -> None:
    calls, honest = [], Trainer.losses

    def losses(self, jobs):
        calls.append(sorted((job.client, id(job.state)) for job in jobs))
        return honest(self, jobs)

    monkeypatch.setattr(Trainer, "losses", losses)
    node(SEVERAL).told(dict.fromkeys(range(4), evaluation.LossesQuestion([model, other])))
    (jobs,) = calls
    assert len(jobs) == 8
    assert len({state for _, state in jobs}) == 2  # shared objects, which are evaluated together


# -- Predictions --------------------------------------------------------------------------------------------


def test_a_deployed_node_keeps_its_rows(node, tell, logits, federation, tmp_path) -> None:
    asked = node({**SEVERAL, "predictions": str(tmp_path)})
    contents = asked.contents("query.predictions", [2], tell())
    rows = federation.test[2]
    chances = softmax(logits(rows), axis=1)
    # Only the number of rows leaves the node.
    assert {k: dict(v) for k, v in contents[2].items()} == {"metrics": {"num-examples": len(rows)}}
    table = pd.read_parquet(tmp_path / "run-1" / "client-2.parquet")
    assert list(table) == ["client", "row", "label", "predicted", *(f"p: {label}" for label in range(10))]
    assert table["row"].tolist() == rows.tolist()
    assert table["label"].tolist() == [str(label) for label in federation.labels[rows].tolist()]
    assert table["predicted"].tolist() == [str(label) for label in chances.argmax(1)]
    np.testing.assert_allclose(table[[f"p: {label}" for label in range(10)]], chances, atol=1e-6)


def test_a_deployed_node_without_a_folder_refuses_whatever_else_it_allows(node, tell) -> None:
    for config in (SEVERAL, {**SEVERAL, "allow": "*"}):
        contents, errors = node(config).ask_clients("query.predictions", {1: tell()})
        assert contents == {}
        assert "this node has no folder for predictions" in errors[1]


def test_a_simulated_node_replies_with_its_rows(node, tell, logits, federation) -> None:
    asked = node({**SEVERAL, "predictions": "reply"})
    contents, _ = asked.ask_clients("query.predictions", {1: tell()})
    rows = federation.test[1]
    told = {name: array.numpy() for name, array in contents[1]["arrays"].items()}
    np.testing.assert_array_equal(told["rows"], rows)
    np.testing.assert_array_equal(told["truth"], federation.labels[rows])
    np.testing.assert_allclose(told["predicted"], softmax(logits(rows), axis=1), atol=1e-6)


# -- The comparison of two models ---------------------------------------------------------------------------


def test_a_comparison_as_a_slow_loop_has_it(node, federation, model, undecided, logits) -> None:
    shifts = np.random.default_rng(0).normal(size=(6, 2, 10))
    asked = partial(evaluation.ProofQuestion, model, undecided)
    told, _ = node(SEVERAL).told({client: asked(*shifts[client]) for client in range(6)})
    for client in range(6):
        rows, scores = federation.validation[client], []
        for state, shift in zip((model, undecided), shifts[client], strict=True):
            chances = softmax(logits(rows, state) + shift, axis=1)
            truth = federation.labels[rows].numpy()
            scores.append(
                [sum((p[c] - (c == t)) ** 2 for c in range(10)) for p, t in zip(chances, truth, strict=True)]
            )
        differences = np.subtract(*scores)
        sums = [sum(d**power for d in differences) for power in (1, 2, 3)]
        assert told[client].count == len(rows) >= 2
        assert told[client].sums == pytest.approx(sums, abs=1e-4)
        won = [math.log(1 + 1.9 * d / 4) for d in differences]  # by the last bet, at a margin of 0
        assert told[client].log_wealth[7] == pytest.approx(sum(won), abs=1e-4)


def test_the_first_rows_of_an_order_count(node, federation, model, undecided) -> None:
    def told(rows: int, **more):
        question = evaluation.ProofQuestion(model, undecided, EVEN, EVEN, rows=rows, **more)
        return node(SEVERAL).told({0: question})[0][0]

    some, again, all_there_are = told(2), told(2), told(10**6)
    assert (some.count, all_there_are.count) == (2, len(federation.validation[0]))
    assert some.sums.tolist() == again.sums.tolist()
    # Of the first two rows, the sums of one and of the other.
    assert told(1).count == 1
    assert np.square(told(1).sums[0]) == pytest.approx(told(1).sums[1])
    # The margin is what is bet on, and nothing else.
    assert told(2, margin=0.5).sums.tolist() == some.sums.tolist()
    assert (told(2, margin=0.5).log_wealth < some.log_wealth).all()


def test_figures_on_test_rows_are_of_the_rows_that_were_asked_for(
    node, federation, model, undecided, logits
) -> None:
    shifts = np.random.default_rng(1).normal(size=(6, 2, 10))
    asked = partial(evaluation.FigureQuestion, model, undecided, rows=10**6, bets=True)
    told, errors = node(SEVERAL).told({client: asked(*shifts[client]) for client in range(6)})
    assert not errors
    for client in range(6):
        rows, found = federation.test[client], told[client]
        truth = federation.labels[rows].numpy()
        trained = federation.labels[federation.train[client]].tolist()
        shares = [trained.count(c) / len(trained) for c in range(10)]
        chances = [
            softmax(logits(rows, state) + shift, axis=1)
            for state, shift in zip((model, undecided), shifts[client], strict=True)
        ]
        happened = np.eye(10)[truth]
        brier = [np.square(each - happened).sum() for each in chances]
        right = [int((each.argmax(axis=1) == truth).sum()) for each in chances]
        by_shares = np.square(np.array(shares) - happened).sum()
        assert found.count == len(rows)
        assert found.hits.tolist() == right
        assert found.sums[0, 0] == pytest.approx(brier[0] - brier[1], abs=1e-4)
        assert found.sums[1, 0] == right[1] - right[0]
        assert found.sums[2:, 0] == pytest.approx(by_shares - np.array(brier), abs=1e-4)
        assert found.bets.shape == (4 * 81 + 2, 8)


def test_class_shares_of_a_client_that_lacks_a_class() -> None:
    parts = [(np.zeros((len(each), 2), "f4"), np.array(each, dtype=int)) for each in ([0, 0], [], [0, 1])]
    data = from_arrays([tuple(parts), (np.zeros((2, 2), "f4"), np.array([0, 1]))], num_classes=2)
    how, blank = LocalTraining(learning_rate=0.1, batch_size=2, epochs=1), nn.Linear(2, 2)
    state = from_state({name: torch.zeros_like(tensor) for name, tensor in blank.state_dict().items()})
    asked = evaluation.FigureQuestion(state, state, np.zeros(2), np.zeros(2), rows=10)
    answers, errors = figure(node_of_objects(data, blank, how, seed=0), {0: asked})
    assert errors == {}
    # Shares (1, 0) score 0 and 2 on the two test rows; the model, which is undecided, one half on each.
    assert answers[0].sums[2, 0] == pytest.approx(1.0)


def test_clients_may_be_asked_about_different_models(node, model, other) -> None:
    pairs = [(model, other), (other, model), (other, other)]
    apart = [evaluation.ProofQuestion(*pair, EVEN, EVEN) for pair in pairs]
    told = node(SEVERAL).answers(dict(enumerate(apart)))
    reverse = node(SEVERAL).answers({0: apart[1], 1: apart[0]})
    assert told[0].sums == pytest.approx([-1, 1, -1] * reverse[0].sums)
    assert told[1].sums == pytest.approx([-1, 1, -1] * reverse[1].sums)
    assert told[2].sums.tolist() == [0, 0, 0]


def test_a_model_that_diverged_fails_its_client_alone(node, model, broken) -> None:
    fine, bad = (evaluation.ProofQuestion(model, each, EVEN, EVEN) for each in (model, broken))
    told, errors = node(SEVERAL).told({0: fine, 1: bad, 2: fine})
    assert told.keys() == {0, 2}
    assert list(errors) == [1]
    assert "logits must be finite" in errors[1]


# -- Personal layers ----------------------------------------------------------------------------------------


@pytest.fixture
def without_validation(monkeypatch):
    """Take the held-out rows of client 0."""
    of = Node.of.__func__

    def without(cls, context):
        found = of(cls, context)
        held_out = (np.zeros(0, dtype=np.int64), *found.data.validation[1:])
        return dataclasses.replace(found, data=dataclasses.replace(found.data, validation=held_out))

    monkeypatch.setattr(Node, "of", classmethod(without))


def test_without_held_out_rows_nothing_is_compared(without_validation, node, federation, model) -> None:
    question = evaluation.ProofQuestion(model, model, EVEN, EVEN)
    told = node(SEVERAL).answers({0: question, 1: question})
    assert (told[0].count, told[0].sums.tolist()) == (0, [0, 0, 0])
    assert told[1].count == len(federation.validation[1])
    told = node(SEVERAL).answers({0: evaluation.PersonalQuestion(model, 4, EVEN)})
    assert told[0].losses == {}
    assert told[0].tests.keys() == {"prior"}


def test_layers_as_a_slow_loop_has_them(node, federation, model, network, images, logits) -> None:
    shifts = np.random.default_rng(0).normal(size=(6, 10))
    how = Finetune(epochs=2, learning_rate=0.05)
    told = node(SEVERAL).answers(
        {client: evaluation.PersonalQuestion.of(model, 9, shifts[client], how) for client in range(6)}
    )
    training = LocalTraining(learning_rate=0.05, batch_size=16, epochs=2)
    for client, answer in told.items():
        assert not answer.failed
        test, held_out = federation.test[client], federation.validation[client]
        by_row: dict[str, np.ndarray] = {}

        def expect(layer, shift, rel, answer=answer, test=test, held_out=held_out, by_row=by_row) -> None:
            labels = federation.labels[test].numpy()
            found, held = logits(test) + shift, logits(held_out) + shift
            right = np.eye(10)[federation.labels[held_out].numpy()]
            by_row[layer] = np.square(softmax(held, axis=1) - right).sum(axis=1)  # Brier scores
            assert answer.losses[layer] == pytest.approx(by_row[layer].mean(), rel=rel)
            if layer != "none":
                metrics = answer.tests[layer].metrics
                assert metrics["loss"] == pytest.approx(_loss(found, labels).mean(), rel=rel)
                assert metrics["accuracy"] == pytest.approx((found.argmax(axis=1) == labels).mean())

        network.load_state_dict(to_state(model))
        expect("none", 0.0, 1e-4)
        expect("prior", shifts[client], 1e-4)
        network.train()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
        batches = draw_batches([client], [federation.train[client]], training, 0, 9)
        for rows, size in zip(batches.rows[0], batches.sizes[0], strict=True):
            labels = federation.labels[torch.from_numpy(rows[:size])]
            optimiser.zero_grad()
            functional.cross_entropy(network(images(rows[:size])), labels).backward()
            optimiser.step()
        expect("finetune", 0.0, 1e-3)
        assert answer.chosen == choose(by_row)


def test_what_is_not_asked_for_is_not_done(node, model) -> None:
    question = encode(evaluation.PersonalQuestion(model, 4))
    answers = node(SEVERAL).contents("query.personal", [0], question)
    assert sorted(answers[0]) == ["failed", "validation-losses"]
    more = Reading(0, asked=evaluation.PersonalQuestion(model, 4, EVEN))
    with pytest.raises(BadReply, match="^client 0: no 'figures/prior' in reply"):
        decode(evaluation.PersonalAnswer, answers[0], more)


def test_a_client_that_cannot_fine_tune_says_so_and_answers_the_rest(node, model) -> None:
    rates = [0.1, 0.1, 1e30]
    how = [Finetune(epochs=1, learning_rate=rate) for rate in rates]
    told = node(SEVERAL).answers(
        {client: evaluation.PersonalQuestion.of(model, 4, EVEN, each) for client, each in enumerate(how)}
    )
    assert told[2].failed.keys() == {"finetune"}
    assert "non-finite" in told[2].failed["finetune"] or "2^24" in told[2].failed["finetune"]
    assert told[2].tests.keys() == {"prior"}
    assert told[2].losses.keys() == {"none", "prior"}
    for client in (0, 1):
        assert not told[client].failed
        assert told[client].tests.keys() == {"prior", "finetune"}


def test_a_model_without_numbers_costs_its_client_only(node, model, broken) -> None:
    fine, bad = (evaluation.PersonalQuestion(each, 4, EVEN) for each in (model, broken))
    told, _ = node(SEVERAL).told({0: fine, 1: bad})
    assert np.isnan(told[1].losses["none"])
    assert told[0].losses["none"] > 0


# -- The rows themselves ------------------------------------------------------------------------------------


def test_a_client_counts_its_labels_and_names_its_group(node, federation) -> None:
    said = node(SEVERAL).answers(dict.fromkeys((0, 4), description.DescriptionQuestion()))
    for client, group in ((0, 0), (4, 1)):  # groups of 4 and 2
        parts = federation.train[client], federation.test[client]
        for counts, rows in zip((said[client].train_counts, said[client].test_counts), parts, strict=True):
            expected = [sum(int(federation.labels[row]) == label for row in rows) for label in range(10)]
            np.testing.assert_array_equal(counts, expected)
        assert said[client].group == group
        assert said[client].names.classes == tuple("0123456789")
        assert said[client].name is None
    contents = node(SEVERAL).contents("query.description", (0, 4), RecordDict())
    assert contents[0]["names"] is contents[4]["names"]  # so it travels once


@pytest.mark.parametrize(
    ("disclosed", "known"),
    [("sizes", {"num-train", "num-test", "num-classes", "validation"}), ("nothing", {"num-classes"})],
)
def test_what_is_said_of_rows(node, federation, disclosed, known) -> None:
    question = encode(description.DescriptionQuestion(disclosed))
    for client, content in node(SEVERAL).contents("query.description", (1, 3), question).items():
        config = content["config"]
        assert set(config) - {"group", "mean", "std"} == known
        assert config["num-classes"] == 10
        assert config.get("num-train") == (len(federation.train[client]) if disclosed == "sizes" else None)


def _by_class(federation, client) -> list[np.ndarray]:
    """List the normalised pixels of a client's examples, shape (n, 64), by class."""
    rows = federation.train[client]
    pixels = (federation.inputs[rows].numpy().reshape(-1, 64) / 255 - federation.mean[0]) / federation.std[0]
    return [pixels[(federation.labels[rows] == label).numpy()] for label in range(10)]


def test_prototypes_are_class_means_in_the_encoders_space(node, federation) -> None:
    """The default encoder is the normalised pixels themselves."""
    told = node(TWO).answers(dict.fromkeys((1, 5), description.PrototypesQuestion()))
    for client in (1, 5):
        examples = _by_class(federation, client)
        means, counts = told[client].prototypes, told[client].counts
        np.testing.assert_allclose(means, [own.mean(axis=0) for own in examples], atol=1e-5)
        np.testing.assert_array_equal(counts, list(map(len, examples)))


def test_pooled_prototypes_are_the_mean_over_all_examples(node, federation) -> None:
    told, _ = node(TWO).told({1: description.PrototypesQuestion("pixels", pooled=True)})
    means, counts = told[1].prototypes, told[1].counts
    examples = np.concatenate(_by_class(federation, 1))
    np.testing.assert_allclose(means, examples.mean(axis=0, keepdims=True), atol=1e-5)
    assert counts.tolist() == [len(examples)]


def test_prototypes_of_an_untrained_network_are_the_same_on_every_node(node) -> None:
    question = description.PrototypesQuestion("untrained", pooled=True)
    one, other = (node(config).told({1: question})[0][1].prototypes for config in (TWO, {"clients": "1"}))
    assert one.shape == (1, 128)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("asked", "own"), [("encoder", "random"), ("pixels", "random"), ("untrained", "pixels")]
)
def test_a_node_embeds_its_data_with_none_but_its_own_encoders(node, asked, own) -> None:
    # The run's encoder is the pixels.
    question = {1: description.PrototypesQuestion(input=asked)}
    named = {"encoder": "pixels", "untrained": "random"}.get(asked, asked)
    answers, errors = node({**TWO, "encoder": own}).told(question)
    assert not answers
    told = "encoder must be one that this node's operator lists in its --node-config or site.toml, got"
    assert errors == {1: f'{told} "{named}"'}
    answers, errors = node({**TWO, "encoder": f"{own},{named}"}).told(question)
    assert list(answers) == [1]
    assert errors == {}


def test_subspaces_are_the_left_singular_vectors_of_each_class(node, federation) -> None:
    told = node(TWO).answers(dict.fromkeys((1, 5), description.SubspacesQuestion("pixels", 2)))
    for client in (1, 5):
        found = told[client].subspaces
        assert found.shape == (10, 64, 2)
        for own, basis in zip(_by_class(federation, client), found, strict=True):
            left = np.linalg.svd(own.T)[0][:, :2]  # examples as columns
            np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-5)
            np.testing.assert_allclose(np.degrees(subspace_angles(left, basis)), 0, atol=0.05)


def test_an_encoder_makes_the_columns_where_it_is_asked_for(node) -> None:
    """The default encoder is the pixels."""
    pixels, encoder, untrained = (
        node(TWO).told({1: description.SubspacesQuestion(name, 1)})[0][1].subspaces
        for name in ("pixels", "encoder", "untrained")
    )
    np.testing.assert_array_equal(pixels, encoder)
    assert untrained.shape == (10, 128, 1)
    contents, errors = node(TWO).told({1: description.SubspacesQuestion("x", 1)})
    assert contents == {}
    assert errors == {1: "input must be one of encoder, pixels, untrained, got 'x'"}


def test_a_question_lacks_nothing(model) -> None:
    lacking = {description.SubspacesQuestion: "config", evaluation.PersonalQuestion: "arrays"}
    for question, missing in lacking.items():
        with pytest.raises(ValueError, match=f"the server's message: no '{missing}'"):
            decode(question, RecordDict(), SERVER)
    with pytest.raises(ValueError, match="vectors must be in"):
        decode(description.SubspacesQuestion, encode(description.SubspacesQuestion("pixels", 0)), SERVER)
    asked = evaluation.PersonalQuestion.of(model, 4, None, Finetune(layers="last"))
    assert (asked.finetune, asked.shift, asked.server_round) == (Finetune(layers="last"), None, 4)
