"""The policies; power of choice, FedCLS and HACCS against literal loops."""

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from fedclust.federation import Federation
from fedclust.selection import HACCS, Candidates, FedCLS, LeastSampled, PowerOfChoice, Selection, Uniform


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


@pytest.mark.parametrize(
    ("number", "size", "warned"),
    [
        (8, 10, "selection.candidates should be above 10, the cohort of 20 clients in one cluster, got 8:"),
        (10, 10, "selection.candidates should be above 10, the cohort of 20 clients in one cluster, got 10:"),
        (11, 10, None),  # the one of eleven with the smallest loss is not chosen
        (8, 20, "selection=poc has no effect: all 20 clients"),
        (None, 19, None),  # twice 19 candidates, cut to the 20
        (None, 20, "selection=poc has no effect: all 20 clients"),
    ],
)
def test_warns_where_losses_choose_nobody(number: int | None, size: int, warned: str | None) -> None:
    found = PowerOfChoice(number).cautions(size, 20)
    assert len(found) == (warned is not None)
    assert all(line.startswith(str(warned)) for line in found)


# -- Against literal loops ------------------------------------------------------------------------------

Chances = Mapping[tuple[int, ...], float]


def _even(clients: list[int]) -> dict[int, float]:
    return dict.fromkeys(clients, 1 / len(clients))


def _one_by_one(size: int, chances_of_next: Callable, before: tuple[int, ...] = ()) -> Chances:
    """Add up the chances of all orders in which clients can be chosen, by cohort."""
    if len(before) == size:
        return {tuple(sorted(before)): 1.0}
    found: Counter = Counter()
    for client, chance in chances_of_next(before).items():
        for cohort, rest in _one_by_one(size, chances_of_next, (*before, client)).items():
            found[cohort] += chance * rest
    return found


def _power_of_choice(samples: dict[int, int], losses: dict[int, float], d: int, size: int) -> Chances:
    def drawn(before):
        left = {client: number for client, number in samples.items() if client not in before}
        return {client: number / sum(left.values()) for client, number in left.items()}

    def largest(asked, before):
        left = [client for client in asked if client not in before]
        return _even([k for k in left if losses[k] == max(losses[other] for other in left)])

    found: Counter = Counter()
    for asked, chance in _one_by_one(min(max(d, size), len(samples)), drawn).items():
        for cohort, rest in _one_by_one(size, partial(largest, asked)).items():
            found[cohort] += chance * rest
    return found


def _fedcls(counts: dict[int, list[int]], tau: Fraction, size: int) -> Chances:
    has = {k: [n > 0 and Fraction(n, sum(own)) >= tau for n in own] for k, own in counts.items()}

    def farthest(before):
        far = {k: sum(has[k][c] != has[j][c] for j in before for c in range(5)) for k in {*has} - {*before}}
        return _even([k for k in far if far[k] == max(far.values())])

    return _one_by_one(size, farthest)


def _haccs(counts, losses, seconds, rho: float, near: float, size: int) -> Chances:
    def hellinger(one: int, other: int) -> float:
        p, q = ([n / sum(counts[client]) for n in counts[client]] for client in (one, other))
        return sum((a**0.5 - b**0.5) ** 2 for a, b in zip(p, q, strict=True)) ** 0.5 / 2**0.5

    group = {client: client for client in counts}
    for one, other in combinations(counts, 2):
        if hellinger(one, other) <= near:  # all of the one's group are of the other's
            group = {k: group[one] if of == group[other] else of for k, of in group.items()}
    members = {g: [k for k in group if group[k] == g] for g in group.values()}
    loss, time = ({g: np.mean([of[k] for k in members[g]]) for g in members} for of in (losses, seconds))
    total, longest = sum(loss.values()), max(time.values())
    weight = {g: rho * loss[g] / total + (1 - rho) * (1 - time[g] / longest) for g in members}

    def fastest(before):
        left = {g: own for g in members if (own := [k for k in members[g] if k not in before])}
        rest = sum(weight[g] for g in left)
        first = {g: [k for k in own if seconds[k] == min(seconds[j] for j in own)] for g, own in left.items()}
        share = {g: weight[g] / rest if rest else 1 / len(left) for g in left}
        return {k: share[g] / len(first[g]) for g in left for k in first[g]}

    return _one_by_one(size, fastest)


def test_the_largest_of_two_losses_by_hand() -> None:
    # Of 1, 2 and 3 samples two clients are drawn: 0 and 1 with chance 1/6 · 2/5 + 2/6 · 1/4 = 0.15, and then
    # 1 has the larger loss; else 2 is among them.
    found = _power_of_choice({0: 1, 1: 2, 2: 3}, {0: 0.1, 1: 0.2, 2: 0.3}, 2, 1)
    assert found == {(1,): pytest.approx(0.15), (2,): pytest.approx(0.85)}


@pytest.mark.parametrize("seed", [1, 17, 39, 53])
def test_cohorts_are_as_likely_as_in_a_literal_loop(candidates, seed: int) -> None:
    draws, number = np.random.default_rng(seed), min(seed + 1, 5)
    clients = sorted(draws.choice(6, number, replace=False).tolist())
    rho, near = draws.choice([0.2, 0.5, 0.8], 2)
    size, d = draws.integers(1, number + 1), draws.integers(1, 6)
    counts = {client: [1, *draws.integers(0, 3, 4).tolist()] for client in range(6)}
    seconds, tau = draws.integers(1, 3, 6).tolist(), draws.choice(["0.25", "0.6"])
    # Clients on both sides of the model's weight have the same loss.
    middle = draws.integers(0, 5) + 0.5
    found = candidates(clients, 6, counts=counts.get)
    found.model["w"] = type(found.model["w"])(np.full(2, middle, dtype=np.float32))
    losses, own = {k: abs(k - middle) for k in clients}, {k: counts[k] for k in clients}
    alike = dict.fromkeys(clients, 1)  # nobody's time is known: by loss alone
    samples = {k: sum(own[k]) for k in own}
    expected: list[tuple[Selection, Chances]] = [
        (PowerOfChoice(int(d)), _power_of_choice(samples, losses, d, size)),
        (PowerOfChoice(), _power_of_choice(samples, losses, 2 * size, size)),
        (FedCLS(float(tau)), _fedcls(own, Fraction(tau), size)),
        (HACCS(rho, seconds, near), _haccs(own, losses, seconds, rho, near, size)),
        (HACCS(rho, None, near), _haccs(own, losses, alike, 1, near, size)),
    ]
    for policy, chances in expected:
        drawn = Counter(tuple(policy.select(found, size, draws).tolist()) for _ in range(200))
        assert drawn.keys() <= {cohort for cohort in chances if chances[cohort] > 0}
        for cohort, chance in chances.items():  # within five standard deviations
            assert abs(drawn[cohort] / 200 - chance) <= 5 * np.sqrt(chance * max(1 - chance, 0) / 200) + 1e-9
