import math

import numpy as np
import pytest

from fedclust.clustering import loss_traces
from fedclust.clustering.loss_traces import Estimate, Parameters, Parts, costs, estimate, separate


def example() -> loss_traces.Trace:
    state = loss_traces.Trace(np.array([4, 7, 9, 30]))
    state = state.recorded(np.array([2, 0]), np.array([0.5, -0.5]))
    return state.recorded(np.array([0, 3]), np.array([0.25, -0.25]))


def test_deviations_are_of_the_first_steps_root_mean_loss() -> None:
    # Means of the first three losses 1, 4, 9: roots 1, 2, 3, less their mean 2. Later steps do not count.
    losses = [np.array(each) for each in ([0.0, 1, 2, 50], [4.0, 4, 4, 0], [9.0, 8, 10, 0])]
    np.testing.assert_allclose(loss_traces.deviations(losses, 3), [-1, 0, 1])
    # One client ran one step: 4, 16 and 1 are roots 2, 4, 1, less 7/3.
    losses = [np.array([4.0]), np.array([16.0, 0.0]), np.array([1.0, 1.0, 1.0])]
    np.testing.assert_allclose(loss_traces.deviations(losses, 3), np.array([2, 4, 1]) - 7 / 3)


@pytest.mark.parametrize("losses", [[[1, 1], []], [[1, np.nan]], [[-1]]])
def test_bad_losses_are_refused(losses: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="^losses must (have shape|be finite and >= 0, got (nan|-1.0)$)"):
        loss_traces.deviations([np.array(each, dtype=float) for each in losses], 3)


def test_a_round_leaves_the_state_before_it_as_it_was() -> None:
    before = example()
    after = before.recorded(np.array([1]), np.array([0.0]))
    assert len(before.values) == 2
    assert all(a is b for a, b in zip(before.values, after.values, strict=False))


def test_entries_leave_out_clients_that_never_took_part() -> None:
    # Members 4, 7, 9, 30; rounds {9: 0.5, 4: -0.5} and {4: 0.25, 30: -0.25}; 7 is nowhere.
    # Means: 4 has -0.125, 9 has 0.5, 30 has -0.25, which numbers them 1, 2 and 0.
    entries, observed = example().entries()
    np.testing.assert_array_equal(observed, [3, 0, 2])
    table = np.full((entries.num_rounds, entries.num_clients), np.nan)
    table[entries.rounds, entries.clients] = entries.values
    np.testing.assert_array_equal(table, [[np.nan, -0.5, 0.5], [-0.25, 0.25, np.nan]])
    np.testing.assert_array_equal(entries.lengths, [1, 2, 1])
    np.testing.assert_array_equal(entries.rounds, [0, 0, 1, 1])


@pytest.mark.parametrize("sign", [1, -1])
def test_members_that_never_took_part_join_the_largest_part(sign: int) -> None:
    draws = np.random.default_rng(0)
    side, state = sign * np.array([1] * 4 + [-1] * 6), loss_traces.Trace(np.arange(12))
    for _ in range(7):
        values = side * draws.choice([-0.5, 0.5]) + 0.02 * draws.normal(size=10)
        state = state.recorded(np.arange(1, 11), values - values.mean())  # 0 and 11 never reply
    (found,) = (each for each in loss_traces.groupings(state, Parameters(), 0) if each.num_groups == 2)
    assert found.separation >= 1
    np.testing.assert_array_equal(found.labels == found.labels[0], [True] + [False] * 4 + [True] * 7)


def literal_coordinates(table: np.ndarray, rank: int) -> np.ndarray:
    there = ~np.isnan(table)
    approximation = np.zeros_like(table)
    for _ in range(10):
        filled = np.where(there, table, 0.8 * approximation)
        u, sizes, v = np.linalg.svd(filled)
        approximation = sum(sizes[r] * np.outer(u[:, r], v[r]) for r in range(rank))
    return np.stack([sizes[r] * v[r] for r in range(rank)], axis=1)


@pytest.mark.parametrize("small", [128, 0])
@pytest.mark.parametrize("rank", [1, 3])
def test_coordinates_are_the_literal_loop(of_table, with_gaps, monkeypatch, small: int, rank: int) -> None:
    # The signs of singular vectors are arbitrary, and make no difference to inner products. `small` of 0
    # decomposes without forming the matrix.
    monkeypatch.setattr(loss_traces, "_SMALL", small)
    table = with_gaps(0)
    entries = of_table(table)
    found, literal = loss_traces.coordinates(entries, False, rank, 0), literal_coordinates(table, rank)
    np.testing.assert_allclose(found @ found.T, literal @ literal.T, atol=1e-8)


@pytest.mark.parametrize(("size", "mean"), [(2.0, 0.5), (0.5, 5.0)])  # small courses: only without the means
def test_starts_see_courses_and_means(of_table, size: float, mean: float) -> None:
    # Clients 0 to 5 against 6 to 11 differ in their course, even against odd ones in their mean.
    draws = np.random.default_rng(0)
    course = np.where(np.arange(12) < 6, size, -size) * np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    table = course + np.where(np.arange(12) % 2, mean, -mean) + 0.01 * draws.normal(size=(4, 12))
    found = [tuple(labels == labels[0]) for labels in loss_traces.starts(of_table(table), 2, 0)]
    assert tuple(np.arange(12) < 6) in found
    assert tuple(np.arange(12) % 2 == 0) in found
    assert len(found) == 5  # two ranks of two tables, and the means
    # Equal means are no start.
    assert len(list(loss_traces.starts(of_table(np.array([[1.0, -1.0, 2.0], [-1.0, 1.0, -2.0]])), 2, 0))) == 4


LABELS = np.array([0, 1, 0, 1, 0, 2, 2, 0, 1])
SEEDS = range(5)


def literal_estimate(table: np.ndarray, labels: np.ndarray, num_groups: int) -> Estimate:
    """ALGORITHMS 1b, step 4, on the table of rounds by clients, where masked means that there is none."""
    values, clients = np.ma.masked_invalid(table), len(labels)
    length, num_entries = values.count(axis=0), values.count()
    repeated, b = sum(length - 1), np.zeros(clients)
    for _ in range(3):
        mean = np.ma.stack([(values - b)[:, labels == g].mean(axis=1) for g in range(num_groups)], axis=1)
        d = values - mean[:, labels]
        bar = d.mean(axis=0).data
        noise = ((d - bar) ** 2).sum() / repeated
        tau = max(0, sum(length * bar**2) - clients * noise) / num_entries
        noise = noise / max(0.05, (num_entries - mean.count() - clients) / repeated)
        b = bar * length * tau / (noise + length * tau)
    return Estimate(b, noise, tau)


def literal_cell(table: np.ndarray, labels: np.ndarray, b: np.ndarray, k: int, t: int, h: int) -> tuple:
    others = [j for j in range(len(labels)) if j != k and labels[j] == h and not np.isnan(table[t, j])]
    return sum(table[t, j] - b[j] for j in others) / (len(others) + 1), len(others)


def literal_cost(table: np.ndarray, labels: np.ndarray, of: Estimate, k: int, h: int) -> float:
    first = second = third = logs = 0.0
    for t in np.flatnonzero(~np.isnan(table[:, k])):
        m, count = literal_cell(table, labels, of.constants, k, t, h)
        v, e = 1 + 1 / (count + 1), table[t, k] - m
        first, second, third = first + e * e / (v * of.noise), second + e / v, third + 1 / v
        logs += math.log(v)
    tau = of.constant_variance
    return first - tau / of.noise * second**2 / (of.noise + tau * third) + logs


@pytest.mark.parametrize("seed", SEEDS)
def test_estimate_is_the_literal_loop(of_table, with_gaps, seed: int) -> None:
    table = with_gaps(seed)
    of, literal = estimate(of_table(table), LABELS, 3), literal_estimate(table, LABELS, 3)
    np.testing.assert_allclose(of.constants, literal.constants)
    assert of.noise == pytest.approx(literal.noise)
    assert of.constant_variance == pytest.approx(literal.constant_variance)


def test_estimate_of_two_clients_in_two_rounds(of_table) -> None:
    # One group; means 0 in both rounds, so d = x with client means 2 and -2. σ² = 4 * 1² / 2 = 2;
    # τ² = (2 * 4 + 2 * 4 - 2 * 2) / 4 = 3. Of Σ(T - 1) = 2 degrees of freedom the means leave 4 - 2 - 2 = 0,
    # so 0.05 of them count: σ² = 40. b = 2 * 2 * 3 / (40 + 2 * 3) = 6/23. With b, means are 0 again.
    of = estimate(of_table(np.array([[1.0, -1.0], [3.0, -3.0]])), np.array([0, 0]), 1)
    assert of.noise == pytest.approx(40)
    assert of.constant_variance == pytest.approx(3)
    np.testing.assert_allclose(of.constants, [6 / 23, -6 / 23])


def test_a_group_without_noise_does_not_divide_by_zero(of_table) -> None:
    table = np.tile([1.0, 1.0, -1.0, -1.0], (3, 1))
    of = estimate(of_table(table), np.array([0, 0, 1, 1]), 2)
    assert 0 < of.noise < 1e-11
    assert np.isfinite(costs(of_table(table), np.array([0, 0, 1, 1]), 2, of)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_cells_and_costs_are_the_literal_loops(of_table, with_gaps, seed: int) -> None:
    table = with_gaps(seed)
    entries, of = of_table(table), literal_estimate(table, LABELS, 3)
    means, counts = loss_traces.cells(entries, LABELS, 3, of.constants)
    for i, (t, k) in enumerate(zip(entries.rounds, entries.clients, strict=True)):
        for h in range(3):
            mean, count = literal_cell(table, LABELS, of.constants, k, t, h)
            assert (means[i, h], counts[i, h]) == pytest.approx((mean, count))
    literal = [[literal_cost(table, LABELS, of, k, h) for h in range(3)] for k in range(9)]
    np.testing.assert_allclose(costs(entries, LABELS, 3, of), literal)


def test_likelihood_of_two_clients(of_table) -> None:
    # Costs 3 and 5 in their own groups, N = 4, σ² = e, τ² = e so that T τ²/σ² = 2: -(8 + 4 + 2 ln 3) / 2.
    entries = of_table(np.ones((2, 2)))
    found = loss_traces.log_likelihood(
        entries, np.array([0, 1]), np.array([[3.0, 9.0], [9.0, 5.0]]), Estimate(np.zeros(2), math.e, math.e)
    )
    assert found == pytest.approx(-(6 + math.log(3)))


def planted(seed: int, sizes: tuple[int, ...], missing: float, constants: float = 0.3) -> tuple:
    draws = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    course = draws.normal(size=(20, len(sizes)))
    table = course[:, labels] + constants * draws.normal(size=len(labels))
    table += 0.2 * draws.normal(size=table.shape)
    table[draws.random(table.shape) < missing] = np.nan
    return table, labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("sizes", [(10, 5), (8, 8, 4)])
def test_fit_finds_planted_groups(of_table, seed: int, missing: float, sizes: tuple[int, ...]) -> None:
    table, labels = planted(seed, sizes, missing)
    found = loss_traces.fit(of_table(table), len(sizes), 0)
    np.testing.assert_array_equal(found.labels, labels)
    # The fit is consistent: the estimate, costs and likelihood of these labels, and no client would move.
    of = estimate(of_table(table), labels, len(sizes))
    np.testing.assert_allclose(found.costs, costs(of_table(table), labels, len(sizes), of))
    np.testing.assert_array_equal(found.costs.argmin(axis=1), labels)
    assert found.log_likelihood == pytest.approx(
        loss_traces.log_likelihood(of_table(table), labels, found.costs, of)
    )


def test_constants_do_not_make_groups_of_a_common_course(of_table) -> None:
    # Clients with very different constants but two courses: the courses are found, not the constants.
    table, labels = planted(1, (8, 8), 0.2, constants=3.0)
    np.testing.assert_array_equal(loss_traces.fit(of_table(table), 2, 0).labels, labels)


def test_fit_wants_enough_to_fit(of_table) -> None:
    assert loss_traces.fit(of_table(np.zeros((4, 5))), 2, 0) is None  # all the same
    assert loss_traces.fit(of_table(np.ones((1, 5))), 2, 0) is None  # no client twice
    assert loss_traces.fit(of_table(np.ones((3, 2))), 3, 0) is None  # fewer clients than groups


def literal_slopes(table: np.ndarray, labels: np.ndarray, of: Estimate, g: int, h: int) -> list[float]:
    """Generalised least squares with the covariance written out."""
    placed = []
    for k in range(len(labels)):
        u, z = [], []
        for t in range(len(table)):
            (low, some), (high, others) = (literal_cell(table, labels, of.constants, k, t, p) for p in (g, h))
            if labels[k] in (g, h) and not np.isnan(table[t, k]) and some and others:
                u.append(high - low)
                z.append(table[t, k] - (low + high) / 2)
        if not u:
            placed.append(math.nan)
            continue
        inverse = np.linalg.inv(of.noise * np.eye(len(u)) + of.constant_variance)
        placed.append(float(np.array(u) @ inverse @ z / (np.array(u) @ inverse @ u)))
    return placed


@pytest.mark.parametrize("seed", range(5))
def test_places_are_generalised_least_squares(of_table, with_gaps, seed: int) -> None:
    table = with_gaps(seed)
    of = estimate(of_table(table), LABELS, 3)._replace(constant_variance=0.3)
    of_cells = loss_traces.cells(of_table(table), LABELS, 3, of.constants)
    for g, h in ((0, 1), (1, 2)):
        np.testing.assert_allclose(
            loss_traces.slopes(of_table(table), LABELS, of_cells, of, g, h),
            literal_slopes(table, LABELS, of, g, h),
        )


def test_what_is_required() -> None:
    # With ν = 2, χ² is below x with probability 1 - exp(-x/2), so the α quantile is -2 ln(1 - α) and
    # 2√3 √(2 / (-2 ln 0.999)) = 2√3 / √0.0010005. With many clients the second factor goes to 1.
    assert loss_traces.required(2, 0.001) == pytest.approx(2 * math.sqrt(3) / math.sqrt(-math.log(0.999)))
    assert loss_traces.required(10**6, 0.001) == pytest.approx(2 * math.sqrt(3), rel=0.01)
    assert loss_traces.required(28, 0.001) == pytest.approx(math.sqrt(12 * 28 / 10.391), rel=1e-4)


def test_separation_of_places(of_table) -> None:
    # The distance of the literal places, over their pooled spread and what is required of 4 + 3 - 2 = 5.
    draws = np.random.default_rng(1)
    labels = np.array([0, 0, 0, 0, 1, 1, 1])
    table = np.where(labels, 1.0, -1.0) * draws.normal(size=(5, 1)) + 0.3 * draws.normal(size=(5, 7))
    of = estimate(of_table(table), labels, 2)
    places = np.array(literal_slopes(table, labels, of, 0, 1))
    low, high = places[:4], places[4:]
    spread = (((low - low.mean()) ** 2).sum() + ((high - high.mean()) ** 2).sum()) / 5
    distance = (high.mean() - low.mean()) / math.sqrt(spread)
    found = separate(of_table(table), Parts(labels, np.ones(7, dtype=bool)), of, 0.001)
    assert found == pytest.approx(distance / loss_traces.required(5, 0.001))


def test_the_nearest_two_parts_count_without_clients_that_joined_later(of_table) -> None:
    draws = np.random.default_rng(2)
    labels = np.repeat([0, 1, 2], 5)
    course = draws.normal(size=(8, 3))
    course[:, 2] = course[:, 1] + 0.3 * draws.normal(size=8)
    table = course[:, labels] + 0.1 * draws.normal(size=(8, 15))
    of = estimate(of_table(table), labels, 3)
    everybody = np.ones(15, dtype=bool)
    found = separate(of_table(table), Parts(labels, everybody), of, 0.001)
    # Cells hold one group's entries alone, so without the others the pair's distance is the same.
    near = of_table(table[:, 5:])
    pair = Parts(labels[5:] - 1, everybody[5:])
    assert found == pytest.approx(separate(near, pair, of._replace(constants=of.constants[5:]), 0.001))
    # A client far from everything, called one of part 0, changes nothing unless it is in the core.
    odd = np.column_stack([table, 100 * draws.normal(size=8)])
    joined = Parts(np.append(labels, 0), np.append(everybody, False))
    with_odd = of._replace(constants=np.append(of.constants, 0.0))
    assert separate(of_table(odd), joined, with_odd, 0.001) == pytest.approx(found)


def test_parts_without_spread_or_without_distance(of_table) -> None:
    table, labels = np.tile([-1.0, -1.0, 1.0, 1.0], (3, 1)), np.array([0, 0, 1, 1])
    of = Estimate(np.zeros(4), 1.0, 0.0)
    everybody = np.ones(4, dtype=bool)
    assert separate(of_table(table), Parts(labels, everybody), of, 0.001) > 1e3
    # No round has both parts: no client can be placed.
    apart = np.array([[-1.0, -1.0, np.nan, np.nan], [np.nan, np.nan, 1.0, 1.0]])
    assert separate(of_table(apart), Parts(labels, everybody), of, 0.001) == -math.inf


def test_half_a_continuum_is_not_apart(of_table) -> None:
    # Clients react to one course, each as strongly as its place on a line, without any noise: cut in the
    # middle their halves are about 2√3 = 3.46 apart, and more is required.
    place = np.linspace(-1, 1, 200)
    table = np.random.default_rng(0).normal(size=(10, 1)) * place
    labels = (place > 0).astype(int)
    of = estimate(of_table(table), labels, 2)
    found = separate(of_table(table), Parts(labels, np.ones(200, dtype=bool)), of, 0.001)
    assert found * loss_traces.required(198, 0.001) == pytest.approx(2 * math.sqrt(3), rel=0.05)
    assert found < 1


def test_small_groups_join_the_part_of_least_cost() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 3])
    costs = np.zeros((8, 4))
    costs[6] = [5.0, 4.0, 0.0, 3.0]  # of the two that remain, 1 costs less; 3 does not remain
    costs[7] = [1.0, 4.0, 0.0, 0.0]
    found = loss_traces.parts_of(loss_traces.Fit(labels, costs, Estimate(np.zeros(8), 1.0, 0.0), 0.0), 3)
    np.testing.assert_array_equal(found.labels, [0, 0, 0, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(found.core, [True] * 6 + [False] * 2)
    assert found.number == 2
    few = loss_traces.Fit(np.array([0, 0, 1, 1]), np.zeros((4, 2)), Estimate(np.zeros(4), 1.0, 0.0), 0.0)
    assert loss_traces.parts_of(few, 3) is None
