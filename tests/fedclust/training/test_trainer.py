"""The trainer against a literal loop with torch.optim, in every mode."""

import copy
import functools
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.support.rng import generator
from fedclust.training.cohort import Job, ModelMean
from fedclust.training.losses import Loss, binary_cross_entropy, cross_entropy

from .conftest import Written

MODES = ["sequential", "vectorised"]  # of which "auto" is one
KINDS = ["linear", "dropout", "convolution", "batch norm", "averaging batch norm", "group norm"]
KINDS += ["channel dropout", "layer norm", "tanh", "lstm", "gru", "positions"]
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "weight decay": {"weight_decay": 0.05},
    "momentum and weight decay": {"momentum": 0.9, "weight_decay": 0.05},
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.01},
    "averages": {"optimizer": "adam", "learning_rate": 0.01, "betas": (0.7, 0.9), "adam_epsilon": 0.01},
    "proximal": {"proximal_mu": 0.5},
    "clipping": {"clip_norm": 0.3, "momentum": 0.5},
    "clipping nothing": {"clip_norm": 100.0},
    "steps": {"epochs": None, "steps": 4},
    "everything": {"momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1.0, "proximal_mu": 0.2},
}


def focal(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss of a user's own, which sees how sure the model is (Lin et al., 2017, with gamma 2)."""
    chances = outputs.softmax(-1).gather(-1, labels.unsqueeze(-1)).flatten(1)
    return (-((1 - chances) ** 2) * chances.log()).mean(1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", [focal, binary_cross_entropy], ids=["focal", "binary"])
@pytest.mark.parametrize("kind", ["linear", "batch norm", "lstm", "positions"])
def test_every_loss_trains_as_the_literal_loop(small: Any, kind: str, loss: Loss, mode: str) -> None:
    # Clients of 1, 9, 20, 8 and 13 rows in batches of 8: padding must weigh nothing in any loss.
    small.assert_as_literal(small.set_up(kind, mode=mode, momentum=0.5, loss=loss))


def test_the_kernel_for_cross_entropy_is_for_nothing_else(small: Any) -> None:
    named = small.set_up(loss=functools.partial(cross_entropy))  # as a configuration names it
    assert named.trainer._dispatcher._vectorised.mlp is not None
    assert small.set_up(loss=focal).trainer._dispatcher._vectorised.mlp is None


# Every option with a network of the MLP's kernel, one with dropout, one of convolutions and one that keeps
# statistics; every other kind of layer with both optimisers.
FEW = ("linear", "dropout", "convolution", "batch norm")
ALL = ("adam", "everything")
TRAINED = [(kind, each) for kind in KINDS for each in OPTIONS if kind in FEW or each in ALL]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "options"), TRAINED)
def test_every_option_trains_as_the_literal_loop(small: Any, kind: str, options: str, mode: str) -> None:
    small.assert_as_literal(small.set_up(kind, mode=mode, **OPTIONS[options]))


@pytest.mark.parametrize("mode", MODES)
def test_chunks_hold_at_most_so_many_clients_and_change_nothing(small: Any, mode: str) -> None:
    made = small.set_up(mode=mode, chunk=2)
    assert [len(update.clients) for update in made.trainer.train(made.jobs, 3)] == [2, 2, 1]
    small.assert_as_literal(made)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_with_bad_data_fails_alone(small: Any, mode: str) -> None:
    data = small.federation(sizes=(9, 9, 9))
    inputs = (data.inputs / 255 - 0.5).float()
    poisoned = inputs.clone()
    poisoned[data.train[1][4]] = float("nan")
    clean, dirty = (copy.copy(data) for _ in range(2))
    object.__setattr__(clean, "inputs", inputs)
    object.__setattr__(dirty, "inputs", poisoned)
    good, bad = (
        small.set_up(data=each, mode=mode, momentum=0.9, clip_norm=1.0, epochs=1) for each in (clean, dirty)
    )
    (update,) = bad.trainer.train(bad.jobs, 1)
    expected = small.by_client(list(good.trainer.train(good.jobs, 1)))
    results = small.by_client([update])
    # Client 1 meets its bad row in the batch that holds it: the first or the second of its epoch.
    order = data.train[1][generator(1, "batches", 1, 1).permutation(9)]
    step = 1 if data.train[1][4] in order[:8] else 2
    assert update.failed == {1: f"non-finite loss at step {step}"}
    torch.testing.assert_close(results[1][0], bad.start, rtol=0, atol=0)
    for client in (0, 2):
        torch.testing.assert_close(results[client][0], expected[client][0], rtol=0, atol=0)
        np.testing.assert_array_equal(results[client][1], expected[client][1])
    mean = ModelMean()
    mean.add(update)
    assert all(tensor.isfinite().all() for tensor in mean.state().values())


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_diverges_at_the_last_step_is_found(small: Any, mode: str) -> None:
    steps = {"learning_rate": 1e38, "batch_size": 4, "epochs": None, "steps": 1, "weight_decay": 1e30}
    made = small.set_up(data=small.federation(sizes=(4, 4)), mode=mode, **steps)
    (update,) = made.trainer.train(made.jobs, 1)
    assert set(update.failed.values()) == {"non-finite parameters after the last step"}


@pytest.mark.parametrize("mode", MODES)
def test_a_client_without_training_rows_fails(small: Any, mode: str) -> None:
    made = small.set_up(mode=mode)
    updates = list(made.trainer.train([made.jobs[0], Job(1, np.zeros(0, dtype=np.int64), made.start)], 1))
    assert _failures(updates) == {1: "no training examples"}
    assert sorted(client for update in updates for client in update.clients) == [0, 1]
    torch.testing.assert_close(small.by_client(updates)[1][0], made.start)


def _failures(updates: Any) -> dict[int, str]:
    return {client: reason for update in updates for client, reason in update.failed.items()}


def picky(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Raise when the batch has an odd sum."""
    if int(tokens.sum()) % 2:
        raise KeyError("an odd batch")
    return model.head(tokens.float())


def _odd(small: Any) -> tuple[Any, set[int]]:
    """Make data of clients of one batch each, and list those whose batch has an odd sum."""
    data = small.federation("lstm", sizes=(5, 5, 5, 5, 5, 5))
    odd = {client for client, rows in enumerate(data.train) if int(data.inputs[rows].sum()) % 2}
    assert 0 < len(odd) < 6
    return data, odd


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_costs_its_client_only(small: Any, mode: str) -> None:
    data, odd = _odd(small)
    made = small.set_up(Written(picky, head=nn.Linear(6, 3)), data, mode=mode)
    failed = _failures(made.trainer.train(made.jobs, 1))
    assert failed == dict.fromkeys(odd, "KeyError: 'an odd batch'")


def growing(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Enlarge a buffer for an odd batch, so that the state cannot be sent back."""
    if int(tokens.sum()) % 2:
        model.seen = torch.zeros(2)
    return model.head(tokens.float())


def test_a_buffer_that_changes_its_shape_costs_its_client_only(small: Any) -> None:
    data, odd = _odd(small)
    network = Written(growing, head=nn.Linear(6, 3))
    network.register_buffer("seen", torch.zeros(1))
    made = small.set_up(network, data, mode="sequential")
    for _ in range(2):
        (update,) = made.trainer.train(made.jobs, 1)
        assert update.failed.keys() == odd
        assert all(reason.startswith("RuntimeError: ") for reason in update.failed.values())


@pytest.mark.parametrize("mode", MODES)
def test_clients_of_several_clusters_start_from_their_own_models(small: Any, mode: str) -> None:
    made = small.set_up(mode=mode, proximal_mu=0.3)
    second = {name: -tensor for name, tensor in made.start.items()}
    states = [made.start, second, second, made.start, second]
    jobs = [Job(job.client, job.rows, state) for job, state in zip(made.jobs, states, strict=True)]
    small.assert_as_literal(made, jobs)


def frozen() -> nn.Module:
    """A frozen encoder, an unused parameter, a layer with two names and one that shares its weight."""

    def forward(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        return model.alias(model.again(model.hidden(torch.relu(model.encoder(inputs.flatten(1))))))

    encoder, hidden = nn.Linear(32, 6).requires_grad_(False), nn.Linear(6, 6)
    again, head = nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
    again.weight = hidden.weight
    layers = {"encoder": encoder, "hidden": hidden, "again": again, "head": head, "alias": head}
    return Written(forward, **layers, unused=nn.Parameter(torch.ones(2)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clusters", [1, 2])
def test_frozen_unused_and_tied_parameters(small: Any, mode: str, clusters: int) -> None:
    torch.manual_seed(0)
    made = small.set_up(frozen(), mode=mode, weight_decay=0.1, momentum=0.5)
    states = [made.start, {name: 2 * tensor for name, tensor in made.start.items()}]
    jobs = [Job(job.client, job.rows, states[job.client % clusters]) for job in made.jobs]
    small.assert_as_literal(made, jobs)
    for client, (state, _) in small.by_client(list(made.trainer.train(jobs, 3))).items():
        torch.testing.assert_close(state["unused"], states[client % clusters]["unused"], rtol=0, atol=0)
        torch.testing.assert_close(state["alias.weight"], state["head.weight"], rtol=0, atol=0)
        torch.testing.assert_close(state["again.weight"], state["hidden.weight"], rtol=0, atol=0)


def summed() -> nn.Module:
    """Two weights that only occur in their sum: autograd gives both the same tensor as gradient."""
    layers = {name: nn.Parameter(torch.randn(3, 32) / 6) for name in ("one", "other")}
    return Written(lambda model, x: functional.linear(x.flatten(1), model.one + model.other), **layers)


def spread() -> nn.Module:
    """A parameter whose gradient is one number seen through several places."""
    layers = {"head": nn.Linear(32, 3), "shift": nn.Parameter(torch.zeros(4))}
    return Written(lambda model, inputs: model.head(inputs.flatten(1)) * (1 + model.shift.sum()), **layers)


def counting() -> nn.Module:
    """A network that replaces its buffer by another tensor in every step, and computes with it."""

    def forward(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        if model.training:
            model.count = model.count + 1
        return model.head(inputs.flatten(1)) / model.count.clamp(min=1)

    network = Written(forward, head=nn.Linear(32, 3))
    network.register_buffer("count", torch.zeros(()))
    return network


def two_names() -> nn.Module:
    """A BatchNorm and a Dropout that are each used under two names."""

    def forward(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        hidden = model.drop(model.norm(model.first(inputs.flatten(1))).relu())
        return model.head(model.once_more(model.again(model.second(hidden))))

    norm, drop = nn.BatchNorm1d(6), nn.Dropout(0.3)
    layers = {"first": nn.Linear(32, 6), "second": nn.Linear(6, 6), "head": nn.Linear(6, 3)}
    return Written(forward, **layers, norm=norm, again=norm, drop=drop, once_more=drop)


def hooked() -> nn.Module:
    """An MLP, apart from a hook that doubles the output of a layer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 3))
    model[1].register_forward_hook(lambda _, __, output: 2 * output)
    return model


def idle_dropout() -> nn.Module:
    """A dropout that drops nothing before one that does."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(32, 6), nn.Dropout(0.0), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", ["adam", "everything"])
@pytest.mark.parametrize("make", [summed, spread, counting, two_names, hooked, idle_dropout])
def test_models_with_peculiarities(small: Any, make: Any, options: str, mode: str) -> None:
    torch.manual_seed(0)
    made = small.set_up(make(), mode=mode, threads=1, **OPTIONS[options])
    small.assert_as_literal(made, rounds=(3, 3))  # nothing of a call is left for the next


def test_layers_that_draw_by_themselves_are_seeded_per_client(small: Any) -> None:
    def noisy(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        return model.head(functional.dropout(inputs.flatten(1), 0.5, model.training))

    torch.manual_seed(0)
    made = small.set_up(Written(noisy, head=nn.Linear(32, 3)), mode="sequential")
    before = torch.get_rng_state()
    together = small.by_client(list(made.trainer.train(made.jobs, 1)))
    torch.testing.assert_close(torch.get_rng_state(), before)
    alone = small.by_client(list(made.trainer.train([made.jobs[2]], 1)))
    torch.testing.assert_close(together[2][0], alone[2][0], rtol=0, atol=0)


def test_precision_bf16_is_near_float32(small: Any) -> None:
    made = [small.set_up("convolution", precision=precision) for precision in ("float32", "bf16")]
    exact, rough = (small.by_client(list(each.trainer.train(each.jobs, 1))) for each in made)
    for client in exact:
        torch.testing.assert_close(rough[client][0], exact[client][0], rtol=0.1, atol=0.03)
        assert all(tensor.dtype == torch.float32 for tensor in rough[client][0].values())


@pytest.mark.parametrize(
    ("precision", "processor", "warns"),
    [("bf16", "AVX2", True), ("bf16", "AVX512", False), ("float32", "AVX2", False)],
)
def test_bf16_is_named_where_a_processor_lacks_it(
    small: Any, precision: str, processor: str, warns: bool, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: processor)
    small.set_up("linear", precision=precision)
    assert ("training.precision=bf16 may take" in caplog.text) is warns


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("schedule", "rate"), [("constant", 8.0), ("exponential", 2.0)])
def test_one_step_moves_by_the_learning_rate_times_the_gradient(small, mode, schedule, rate) -> None:
    # Exactly: a rate that is a ten-thousandth off would pass the literal loops. In round 3, 8 · 0.5².
    data = small.federation(sizes=(4,))
    made = small.set_up(data=data, mode=mode, epochs=1, learning_rate=8.0, schedule=schedule, decay=0.5)
    (update,) = made.trainer.train(made.jobs, 3)
    rows = data.train[0]
    functional.cross_entropy(
        made.model(small.normalised(data, data.inputs[rows])), data.labels[rows]
    ).backward()
    for name, parameter in made.model.named_parameters():
        expected = made.start[name] - rate * parameter.grad
        torch.testing.assert_close(update.state[name][0], expected, rtol=2e-6, atol=2e-6)


def test_nothing_given_changes(small: Any) -> None:
    made = small.set_up("batch norm")
    before = copy.deepcopy(made.start)
    list(made.trainer.train(made.jobs, 1))
    torch.testing.assert_close(made.start, before, rtol=0, atol=0)
    torch.testing.assert_close(dict(made.model.state_dict()), before, rtol=0, atol=0)


def test_a_state_of_another_model(small: Any) -> None:
    trainer = small.set_up().trainer
    job = Job(3, np.arange(2), {"w": torch.ones(1)})
    (update,) = trainer.train([job], 1)
    assert re.match(r"client 3: state must have .* lacks \['1.bias', .* has \['w'\]", update.failed.pop(3))
    assert update.failed == {}
    with pytest.raises(ValueError, match="client 3: state must have"):
        trainer.evaluate([job])


def test_a_state_of_another_shape(small: Any) -> None:
    made = small.set_up()
    state = made.start | {"1.bias": torch.ones(5)}
    jobs = [Job(client, np.arange(2), made.start if client == 1 else state) for client in (0, 1, 3)]
    # Those that share it are named each; who has another model trains.
    said = "client {}: '1.bias' must have shape (6,), got (5,)"
    assert _failures(made.trainer.train(jobs, 1)) == {client: said.format(client) for client in (0, 3)}


def test_a_state_of_another_type(small: Any) -> None:
    """Integers in place of floats would leave a site as they are, whose rules clip its floats."""
    made = small.set_up()
    job = Job(3, np.arange(2), made.start | {"1.bias": torch.ones(6, dtype=torch.int32)})
    said = "client 3: '1.bias' must be of type float32, got int32"
    assert _failures(made.trainer.train([job], 1)) == {3: said}


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
def test_a_proximal_weight_out_of_range(small: Any, mu: float) -> None:
    with pytest.raises(ValueError, match=f"proximal_mu must be >= 0 and finite, got {mu}"):
        list(small.set_up().trainer.train([], 1, proximal_mu=mu))


def test_a_label_out_of_range(small: Any) -> None:
    data = small.federation()
    data.labels[7] = 3
    with pytest.raises(ValueError, match=r"labels must be in \[0, 3\), got 0 to 3"):
        small.set_up(data=data)
