"""Private steps against a loop over patients and rows that is as slow as it is literal."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from torch.nn import functional

from fedclust.privacy.accountant import seeded
from fedclust.training import patients as private
from fedclust.training.parameters import LocalTraining
from fedclust.training.patients import PatientSteps, by_patient, patient_steps

CLIENT, ROUND = 2, 3  # of 20 rows
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum and weight decay": {"momentum": 0.9, "weight_decay": 0.05},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "proximal": {"proximal_mu": 0.5},
}


def _persons(data: Any, every: int) -> np.ndarray:
    """Name a patient for every few rows: of a client's, the first ones have the most."""
    return np.arange(len(data.inputs)) // every


def _literal(made: Any, persons: np.ndarray, steps: PatientSteps, mu: float = 0.0) -> dict[str, torch.Tensor]:
    """Train a client as Abadi et al. write it: each patient by itself, each of its rows by itself."""
    model, data, training = made.model, made.data, made.trainer.training
    model.load_state_dict(made.start)
    names = [name for name, each in model.named_parameters()]
    parameters = list(model.parameters())
    anchors = [each.detach().clone() for each in parameters]
    given: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    adam = training.optimizer == "adam"
    optimiser: Any = (
        torch.optim.Adam(parameters, **given)
        if adam
        else torch.optim.SGD(parameters, momentum=training.momentum, **given)
    )
    rows = data.train[CLIENT]
    groups = [
        [int(row) for row in np.sort(rows) if persons[row] == each] for each in np.unique(persons[rows])
    ]
    groups.sort(key=len)
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (data.mean, data.std))
    for step in range(patient_steps(training, steps.sampling)):
        who = steps.draw(f"patients {step}", ROUND, CLIENT, len(groups))
        total = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
        for place, group in enumerate(groups):
            if not who[place] <= ndtri(steps.sampling):
                continue
            loss = torch.zeros(())
            for row in group:
                example = data.inputs[row][None]
                example = (example / 255 - mean) / std if example.dtype == torch.uint8 else example
                loss = loss + functional.cross_entropy(model(example), data.labels[row][None]) / len(group)
            gradient = torch.autograd.grad(loss, parameters)
            length = float(sum(each.double().square().sum() for each in gradient)) ** 0.5
            for sums, each in zip(total, gradient, strict=True):
                sums += each.double() * min(1.0, steps.clip / length)
        noise = (
            steps.noise
            * steps.clip
            * torch.from_numpy(
                steps.draw(f"gradient {step}", ROUND, CLIENT, sum(each.numel() for each in parameters))
            )
        )
        for each, sums, part in zip(
            parameters, total, noise.split([p.numel() for p in parameters]), strict=True
        ):
            each.grad = ((sums + part.view_as(sums)) / (steps.sampling * len(groups))).float()
        for each, anchor in zip(parameters, anchors, strict=True):
            each.grad += mu * (each.detach() - anchor)
        optimiser.step()
    return dict(zip(names, (each.detach() for each in parameters), strict=True))


def _trained(made: Any, steps: PatientSteps, persons: np.ndarray | None = None, client: int = CLIENT) -> Any:
    made.trainer._persons = persons
    (update,) = made.trainer.train([made.jobs[client]], ROUND, patients=steps)
    assert not update.failed
    return update


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("every", [1, 7])
def test_every_optimiser_trains_as_the_literal_loop(small: Any, options: dict, every: int) -> None:
    made = small.set_up("linear", **options)
    persons = _persons(made.data, every)
    steps = PatientSteps(clip=0.4, noise=0.3, sampling=0.6, draw=seeded(4))
    update = _trained(made, steps, persons)
    expected = _literal(made, persons, steps, options.get("proximal_mu", 0.0))
    for name, value in expected.items():
        torch.testing.assert_close(update.state[name][0], value, rtol=1e-4, atol=1e-5)
    assert update.num_examples.tolist() == [len(np.unique(persons[made.data.train[CLIENT]]))]
    assert update.losses[0].tolist() == [0.0]


@pytest.mark.parametrize("kind", ["convolution", "group norm", "layer norm", "lstm", "positions", "dropout"])
def test_a_long_gradient_moves_the_model_by_no_more_than_the_clip(small: Any, kind: str) -> None:
    # One step of rate 1, without noise, with all n patients: the mean of n gradients of at most C.
    made = small.set_up(kind, learning_rate=1.0, epochs=None, steps=1)
    for clip in (1e-3, 1e3):
        update = _trained(made, PatientSteps(clip, 0.0, 1.0, seeded(0)))
        moved = {name: update.state[name][0] - made.start[name] for name in made.trainer.trainable_names}
        length = float(torch.cat([each.flatten() for each in moved.values()]).double().norm())
        # Each of them longer than the short clip: their mean is at most as long, and not 0.
        assert (0 < length <= clip * (1 + 1e-3)) if clip == 1e-3 else length > 1e-2


@pytest.mark.parametrize("many", [1, 12])
def test_a_patient_counts_once_however_many_rows_it_has(small: Any, many: int) -> None:
    # Without one patient's gradient the sum, which is n times the step of rate 1, moves by at most C.
    made = small.set_up("linear", learning_rate=1.0, epochs=None, steps=1)
    rows = np.sort(made.data.train[CLIENT])
    persons = np.arange(len(made.data.inputs))
    persons[rows[:many]] = -1
    made.data.inputs[rows[0]] = 255 - made.data.inputs[rows[0]]
    steps = PatientSteps(0.05, 0.0, 1.0, seeded(0))
    with_all = _trained(made, steps, persons)
    grown = len(np.unique(persons[rows]))
    made.jobs[CLIENT] = type(made.jobs[CLIENT])(CLIENT, rows[many:], made.start)
    without = _trained(made, steps, persons)
    sums = [
        number
        * torch.cat([(each.state[name][0] - made.start[name]).flatten() for name in made.start]).double()
        for number, each in ((grown, with_all), (grown - 1, without))
    ]
    assert 0.02 < float((sums[0] - sums[1]).norm()) <= 0.05 * (1 + 1e-3)


def test_a_patient_without_a_finite_gradient_counts_as_one_of_zero(small: Any) -> None:
    # The step of rate 1 is the sum over the number of patients: 20 with the broken one, 19 without it.
    made = small.set_up("linear", learning_rate=1.0, epochs=None, steps=1)
    rows, steps = np.sort(made.data.train[CLIENT]), PatientSteps(1.0, 0.0, 1.0, seeded(0))
    made.trainer._data._inputs[rows[5]] = torch.nan
    made.jobs.append(type(made.jobs[CLIENT])(CLIENT, np.delete(rows, 5), made.start))
    broken, without = (_trained(made, steps, client=client) for client in (CLIENT, -1))
    for name, start in made.start.items():
        moved = [20 * (broken.state[name][0] - start), 19 * (without.state[name][0] - start)]
        torch.testing.assert_close(*moved, rtol=1e-3, atol=1e-5)


def test_noise_has_the_scale_of_the_clip_over_the_patients_expected(small: Any) -> None:
    # Gradients of at most 1e-9 are nothing beside noise 2e9 times that: 2/(0.5 · 20) per value.
    made = small.set_up("linear", learning_rate=1.0, epochs=None, steps=1)
    update = _trained(made, PatientSteps(1e-9, 2e9, 0.5, seeded(1)))
    moved = torch.cat([(update.state[name][0] - made.start[name]).flatten() for name in made.start])
    # 225 values: their mean square is within 4 standard deviations, sqrt(2/225) each.
    assert float(moved.square().mean()) == pytest.approx(0.2**2, rel=4 * (2 / len(moved)) ** 0.5)


def test_each_patient_is_drawn_with_the_same_probability_and_by_itself(small: Any, monkeypatch: Any) -> None:
    made = small.set_up("linear", epochs=None, steps=200)
    drawn: list[int] = []

    def count(patients: Any, chosen: list[int], _: int) -> list[list[int]]:
        drawn.append(len(chosen))
        return []

    monkeypatch.setattr(private, "_blocks", count)
    _trained(made, PatientSteps(1.0, 0.0, 0.3, seeded(2)))
    # Binomial(20, 0.3): mean 6, variance 4.2; over 200 steps the mean is within 4 · 0.145.
    assert np.mean(drawn) == pytest.approx(6, abs=0.58)
    assert np.var(drawn) == pytest.approx(4.2, rel=0.45)


def test_the_same_seed_trains_the_same_and_another_does_not(small: Any) -> None:
    made = small.set_up("dropout")
    models = [
        _trained(made, PatientSteps(1.0, 1.0, 0.5, seeded(seed))).state["1.weight"][0] for seed in (1, 1, 2)
    ]
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_blocks_of_any_size_give_the_same(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small.set_up("dropout")
    persons = _persons(made.data, 3)
    steps = PatientSteps(0.3, 0.1, 0.8, seeded(5))
    whole = _trained(made, steps, persons)
    monkeypatch.setattr(private, "_MOST_ROWS", 4)
    cut = _trained(made, steps, persons)
    for name in made.start:
        torch.testing.assert_close(whole.state[name], cut.state[name], rtol=1e-4, atol=1e-6)


def test_rows_of_a_patient_stay_together() -> None:
    # Patients 5 and 6 have two rows and one; without keys each row is a patient.
    persons = np.array([6, 5, 9, 5, 9])
    assert [each.tolist() for each in by_patient(np.array([3, 0, 1]), persons)] == [[0], [1, 3]]
    assert [each.tolist() for each in by_patient(np.array([3, 0]), None)] == [[0], [3]]


def test_epochs_are_as_many_steps_as_draw_everyone_once_on_average() -> None:
    given: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 8}
    assert patient_steps(LocalTraining(epochs=3, **given), 0.25) == 12
    assert patient_steps(LocalTraining(epochs=1, **given), 0.3) == 4
    assert patient_steps(LocalTraining(steps=5, **given), 0.3) == 5


@pytest.mark.parametrize("values", [(0.0, 1.0, 0.5), (1.0, -1.0, 0.5), (1.0, 1.0, 0.0), (1.0, 1.0, 1.5)])
def test_values_out_of_range(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="^patients must have clip > 0, noise >= 0 and sampling in"):
        PatientSteps(*values, draw=seeded(0))
