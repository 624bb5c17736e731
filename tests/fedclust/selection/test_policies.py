"""Uniform, by turns, and power of choice."""

import numpy as np
import pytest

from fedclust.federation import Federation
from fedclust.selection import Candidates, LeastSampled, PowerOfChoice, Uniform
from fedclust.support.rng import draw_order


def _candidates(toy, clients, turns=None) -> Candidates:
    federation = Federation(toy(num_clients=8).grid())
    if turns is not None:
        federation.turns[:] = turns
    return Candidates(np.array(clients), toy.model(), 1, federation)


def test_uniform_draws_without_replacement_from_the_candidates(toy) -> None:
    candidates = _candidates(toy, [1, 3, 4, 6])
    generator = np.random.default_rng(0)
    drawn = [Uniform().select(candidates, 2, generator) for _ in range(400)]
    assert all(len(set(chosen)) == 2 and list(chosen) == sorted(chosen) for chosen in drawn)
    # Each of four is chosen with probability 1/2: 200 of 400, standard deviation 10.
    counts = np.bincount(np.concatenate(drawn), minlength=8)
    assert counts[[0, 2, 5, 7]].sum() == 0
    assert (abs(counts[[1, 3, 4, 6]] - 200) < 50).all()


def test_least_sampled_prefers_clients_that_took_part_less(toy) -> None:
    candidates = _candidates(toy, [0, 1], turns=[2, 0, 9, 9, 9, 9, 9, 9])
    generator = np.random.default_rng(0)
    drawn = np.concatenate([LeastSampled().select(candidates, 1, generator) for _ in range(1000)])
    # Weights are exp(-2) and 1: client 0 is drawn with probability 0.1353 / 1.1353 = 0.1192; sd 0.0102.
    assert abs((drawn == 0).mean() - 0.1192) < 0.05


def test_of_those_drawn_the_largest_losses(candidates) -> None:
    # Toy client k has k + 2 samples and loss k. Of the order that is drawn, the first d = 4 are
    # asked, and the two with the largest numbers chosen.
    clients = np.array([0, 2, 3, 5, 6, 7])
    found = candidates(clients.tolist())
    for seed in range(10):
        order = clients[draw_order(clients + 2, np.random.default_rng(seed))].tolist()
        chosen = PowerOfChoice(4).select(found, 2, np.random.default_rng(seed)).tolist()
        assert chosen == sorted(sorted(order[:4])[-2:])


def test_with_all_as_candidates_it_is_the_order_of_losses(candidates) -> None:
    assert PowerOfChoice(99).select(candidates([1, 2, 4, 6]), 2, np.random.default_rng(0)).tolist() == [4, 6]
    # Unless given, d is twice the cohort: here everybody.
    assert PowerOfChoice().select(candidates([1, 2, 4, 6]), 2, np.random.default_rng(0)).tolist() == [4, 6]


def test_equal_losses_go_to_the_lowest_ids(candidates) -> None:
    found = candidates([0, 1, 2, 3], num_clients=4)
    found.model["w"] = type(found.model["w"])(np.full(2, 1.5, dtype=np.float32))
    # |k − 1.5|: clients 0 and 3 have 1.5, clients 1 and 2 have 0.5.
    assert PowerOfChoice(4).select(found, 3, np.random.default_rng(0)).tolist() == [0, 1, 3]


def test_who_does_not_answer_is_not_chosen_and_others_are_asked(candidates) -> None:
    found = candidates([0, 1, 2, 3, 4, 5], failing=(1, 4, 5))
    for seed in range(10):
        # d = 3: of the three asked first up to three fail; the others are asked until three have answered.
        chosen = PowerOfChoice(3).select(found, 3, np.random.default_rng(seed))
        assert chosen.tolist() == [0, 2, 3]
    failures = found.federation.take_failures()
    assert {failure["client"] for failure in failures} == {1, 4, 5}
    assert {(failure["phase"], failure["reason"]) for failure in failures} == {("query.losses", "gone")}


def test_nobody_answers(candidates) -> None:
    chosen = PowerOfChoice().select(candidates([1, 2], failing=(1, 2)), 2, np.random.default_rng(0))
    assert chosen.shape == (0,)
    assert chosen.dtype == np.int64


@pytest.mark.parametrize("number", [0, -3, True])
def test_refuses(number) -> None:
    with pytest.raises(ValueError, match="candidates must be a whole number >= 1 or None, got"):
        PowerOfChoice(number)
