import dataclasses
import itertools
import math

import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.manifold import SpectralEmbedding, spectral_embedding
from sklearn.metrics import davies_bouldin_score
from threadpoolctl import threadpool_limits

from fedclust.clustering import fedgwc
from fedclust.clustering.fedgwc import Interaction, Parameters, affinity, cautions, rewards, start, step


@pytest.mark.parametrize(
    ("participation", "step_size", "smallest"),
    [(0.1, 0.1, 30), (0.3, 0.3, 10), (0.5, 0.5, 6), (0.7, 0.5, 5), (1.0, 0.5, 3), (0.06, 0.06, 50)],
)
def test_participation_gives_step_size_and_smallest_cluster(participation, step_size, smallest) -> None:
    # Theorem A.5: 3 / rho, rounded up; 3 / 0.7 = 4.29. Theorem 5.2 needs a step size below 1: 1/2 at most.
    resolved = Parameters(min_cluster_size=None).resolve(participation)
    assert (resolved.step_size, resolved.min_cluster_size) == (step_size, smallest)
    set_before = Parameters(step_size=0.2, min_cluster_size=4).resolve(participation)
    assert (set_before.step_size, set_before.min_cluster_size) == (0.2, 4)


def test_fixed_cohorts_weigh_more_in_small_clusters() -> None:
    parameters = Parameters(cohort_size=10, patience=None).resolve(0.1)
    assert parameters.step_size is None
    assert [parameters.step_size_of(size) for size in (100, 40, 16, 8)] == [0.1, 0.25, 0.5, 0.5]
    assert [parameters.patience_of(size) for size in (100, 44, 46, 8)] == [10, 4, 5, 1]


def test_room_for_parts_and_size_of_the_cohort() -> None:
    limited = Parameters(cohort_size=10, max_clusters=4, min_cluster_size=1, limit_parts=True)
    assert [limited.max_clusters_of(size) for size in (100, 39, 20, 19, 10)] == [4, 3, 2, 1, 1]
    # The paper draws 10 of 823 users; that no cluster of fewer than 20 is split is the released code's rule.
    fixed = Parameters(cohort_size=10, max_clusters=4, min_cluster_size=1)
    assert [fixed.max_clusters_of(size) for size in (100, 19, 3, 2)] == [4, 4, 4, 1]
    assert [Parameters(min_cluster_size=6).max_clusters_of(size) for size in (12, 11)] == [5, 1]
    assert [fixed.cohort_size_of(*each) for each in ((823, 0.5), (7, 1))] == [10, 7]
    assert [Parameters().cohort_size_of(size, 0.1) for size in (100, 12)] == [10, 3]


def test_unresolved_parameters_are_refused() -> None:
    unset = Parameters(min_cluster_size=None)
    for name, ask in (("step_size", unset.step_size_of), ("min_cluster_size", unset.max_clusters_of)):
        with pytest.raises(ValueError, match=f"{name} must be set before the first round, as by resolve"):
            ask(10)
    with pytest.raises(ValueError, match=r"participation must be in \(0, 1\], got 1.1"):
        Parameters().resolve(1.1)


PAPER = Parameters()
# What the authors' released code does, with four clients a round.
COHORTS = {"max_clusters": 4, "cohort_size": 4, "limit_parts": True, "patience": None}
INTERACTION = {"kernel_width": 0.1, "reward_shares": True, "initial": "uniform", "change": "cohort"}
SCORING = {"compare": "columns", "score_on": "embedding", "assign_labels": "cluster_qr", "reset_change": True}
RELEASED = dataclasses.replace(PAPER, **COHORTS, **INTERACTION, **SCORING)


def said(parameters: Parameters, num_clients: int, participation: float, rounds: int) -> list[str]:
    return cautions(parameters.resolve(participation), num_clients, participation, rounds)


def test_the_papers_setting_needs_one_round_more_than_its_first_test() -> None:
    # alpha 0.1: 0.9^t < 1e-5 from t = 110 on. Chance: 2 * 0.01 / 1.9 * 0.00774 * 0.01 = 8e-7 < 1e-5.
    assert "no split can come" not in str(said(PAPER, 100, 0.1, 111))
    assert said(PAPER, 100, 0.1, 110) == [
        "no split can come before the last round: the first test is in round 110 or later, of 110 "
        "(tolerance is reached in round 110, min_pair_coverage in round 1 or later)"
    ]


def test_the_matrix_fills_from_zero_before_a_first_test() -> None:
    # A slow loop over the expected square of every entry: of 100 clients ten meet in a round.
    step, met, entry, mean, rounds = 0.1, 45 / 4950, 0.5, 1.0, 0
    while mean >= 1e-5:
        mean = 0.9 * mean + 0.1 * step**2 * entry * 10 * 9 / 100**2
        entry, rounds = (1 - met) * entry + met * 0.9**2 * entry, rounds + 1
    assert rounds == fedgwc.fills(PAPER.resolve(0.1), 10, 100, 1e-5, 10**4)
    # Measured on Fashion-MNIST with 100 clients: the first tests come in rounds 906 to 928.
    assert 850 < rounds < 928
    assert said(dataclasses.replace(PAPER, min_cluster_size=2), 100, 0.1, rounds + 1) == []
    (caution,) = said(PAPER, 100, 0.1, rounds)
    assert caution.startswith(f"no split is likely before the last round, {rounds}: the matrix fills")


def test_splits_that_go_on_to_single_clients_are_named() -> None:
    assert said(PAPER, 100, 0.1, 10**4) == [fedgwc._LONELY]
    # Corners of a regular simplex of side √2. One apart: the others are √((n − 2)/(n − 1)) from their mean,
    # the one is √(n/(n − 1)) from it: √((n − 2)/n). Two pairs: (√½ + √½) / 1.
    for number in (3, 4, 20):
        score = davies_bouldin_score(np.eye(number), np.arange(number) == 0)
        assert score == pytest.approx(math.sqrt((number - 2) / number))
        assert score < PAPER.max_davies_bouldin
    score = davies_bouldin_score(np.eye(4), np.array([0, 0, 1, 1]))
    assert score == pytest.approx(math.sqrt(2))
    assert score > PAPER.max_davies_bouldin


def test_federations_that_are_too_small_are_named() -> None:
    no_split = "no split can come: {} clients, fewer than {}"
    assert said(PAPER, 2, 1.0, 10**6) == [no_split.format(2, "3")]
    # 3 / 0.1 clients in each
    sizes = Parameters(min_cluster_size=None)
    assert said(sizes, 59, 0.1, 10**6) == [no_split.format(59, "two clusters of min_cluster_size 30")]
    assert said(RELEASED, 7, 0.1, 10**6) == [no_split.format(7, "two cohorts of cohort_size 4")]


def test_patience_and_coverage_put_the_first_test_off() -> None:
    # 0.5^t < 0.2 from t = 3 on. 30 clients have 435 pairs, 0.9 of them are 391.5; three a round have 3 pairs:
    # 130.5, so round 131. Ten rounds in a row end in round 140.
    parameters = Parameters(
        step_size=0.5, tolerance=0.2, min_cluster_size=3, patience=10, min_pair_coverage=0.9
    )
    assert said(parameters, 30, 0.1, 141) == []
    (caution,) = said(parameters, 30, 0.1, 140)
    assert "the first test is in round 140 or later, of 140" in caution
    assert "(tolerance is reached in round 3, min_pair_coverage in round 131 or later)" in caution


def test_full_participation_is_named_with_the_change_by_chance() -> None:
    # alpha 1/2, all of 30: 2 * 0.25 / 1.5 * (0.57735 - 0.5) / 10 = 0.00258.
    assert said(PAPER, 30, 1.0, 1000) == [
        "no split is likely: chance alone keeps the mean squared change near 0.003, above tolerance 1e-05, "
        "with 10 local steps and more with fewer; strategy.parameters.tolerance=auto sets it to a tenth "
        "of that"
    ]


def test_a_tolerance_of_auto_is_a_tenth_of_what_chance_leaves() -> None:
    # For normal losses E ω = 1/√2 and E ω² = 1/√3, so ω varies by 0.57735 − 0.5 = 0.07735, over S steps by a
    # share 1/S of that; α 1/2, all of 30: 2 · 0.25 / 1.5 · 0.07735 / S. With 15 of 30, a quarter.
    # ε is a tenth.
    auto = dataclasses.replace(PAPER, tolerance="auto").resolve(1.0)
    assert fedgwc.tolerance_of(auto, 30, 30, steps=10) == pytest.approx(0.00025784, rel=1e-3)
    assert fedgwc.tolerance_of(auto, 30, 30, steps=5) == pytest.approx(2 * 0.00025784, rel=1e-3)
    assert fedgwc.tolerance_of(auto, 15, 30, steps=10) == pytest.approx(0.00025784 / 4, rel=1e-3)
    assert fedgwc.tolerance_of(PAPER.resolve(1.0), 30, 30) == 1e-5
    # Shares of the rewards' sum, about 10/√2 in a cohort of ten: 2/100 of the variance, whatever the cluster.
    shares = dataclasses.replace(RELEASED, cohort_size=10)
    assert fedgwc.change_by_chance(shares, 10, 20) == pytest.approx(0.02 * 0.0025784, rel=1e-3)
    assert cautions(dataclasses.replace(auto, min_cluster_size=3), 30, 1.0, 1000) == []


def literal_affinity(matrix: np.ndarray, kernel_width: float) -> np.ndarray:
    result = np.ones_like(matrix)
    for k, j in itertools.permutations(range(len(matrix)), 2):
        others = np.delete(matrix[k] - matrix[j], [k, j])
        result[k, j] = math.exp(-kernel_width * sum(others**2))
    return result


@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_affinity_of_many_clients_matches_a_literal_loop_whatever_the_tiles(precision, monkeypatch) -> None:
    matrix = np.random.default_rng(1).random((60, 60)).astype(precision)
    before = matrix.copy()
    expected = literal_affinity(matrix.astype(float), 0.05)
    for rows, tile in ((1024, 256), (32, 8), (24, 6)):
        monkeypatch.setattr(fedgwc, "_ROWS", rows)
        monkeypatch.setattr(fedgwc, "_BLOCK", tile)
        with threadpool_limits(3):
            found = affinity(matrix, 0.05)
        assert found.dtype == precision
        np.testing.assert_allclose(found, expected, rtol=1e-11 if precision is np.float64 else 2e-4)
        np.testing.assert_array_equal(found, found.T)
        with threadpool_limits(1):  # the number of threads changes nothing
            np.testing.assert_array_equal(affinity(matrix, 0.05), found)
    np.testing.assert_array_equal(matrix, before)


def test_one_and_two_clients_are_affine() -> None:
    np.testing.assert_array_equal(affinity(np.array([[0.7]]), 0.5), 1.0)
    np.testing.assert_allclose(affinity(np.array([[0.7, 0.1], [0.9, 0.3]]), 0.5), 1.0)  # no other clients


def test_released_code_compares_scaled_columns() -> None:
    matrix = np.random.default_rng(2).random((6, 6)) / 36
    scaled = (matrix - matrix.min()) / (matrix.max() - matrix.min())
    state = dataclasses.replace(start(np.arange(6), RELEASED), rows=tuple(matrix))
    np.testing.assert_allclose(
        fedgwc.affinity_of(state, RELEASED), literal_affinity(scaled.T, 0.1), rtol=1e-11
    )


def test_a_constant_matrix_needs_no_scaling() -> None:
    np.testing.assert_allclose(fedgwc.affinity_of(start(np.arange(4), RELEASED), RELEASED), 1.0)


# Three groups of clients by loss. With all twenty in the cohort: mean (0 * 10 + 1 * 5 + 3 * 5) / 20 = 1,
# sample variance (10 * 1 + 0 + 5 * 4) / 19 = 30 / 19, so rewards exp(-19/60), 1 and exp(-4 * 19/60).
GROUPS = np.array([0] * 10 + [1] * 5 + [2] * 5)
LOSS = np.array([0.0, 1.0, 3.0])
IDS = 7 * np.arange(20) + 3  # client ids are not positions

# Every round is tested: after the first, the mean squared change is 1/2 * 1 + 1/2 * d with d <= (1/2)² < 0.9.
AT_ONCE = dataclasses.replace(PAPER, step_size=0.5, tolerance=0.9)


def literal_rewards(losses: np.ndarray) -> np.ndarray:
    result = np.zeros(len(losses))
    for values in losses.T:
        squares = (values - sum(values) / len(values)) ** 2
        variance = sum(squares) / (len(values) - 1)
        result += np.exp(-squares / (2 * variance)) / losses.shape[1]
    return result


def losses_of(clients: np.ndarray) -> np.ndarray:
    return LOSS[GROUPS[np.searchsorted(IDS, clients)]][:, None]


def whole_round(state: Interaction, parameters: Parameters) -> tuple[Interaction, fedgwc.Outcome]:
    return step(state, state.members, losses_of(state.members), parameters, seed=0)


# -- Eq. 1 --------------------------------------------------------------------------------------------------


def test_equal_losses_reward_everyone_fully() -> None:
    # The mean of three times 0.1 is not 0.1 in floating point; the reward is 1 all the same.
    np.testing.assert_array_equal(rewards(np.full((3, 2), 0.1)), 1.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_rewards_do_not_depend_on_the_unit_of_losses(scale: float) -> None:
    # Losses 1, 2, 3: mean 2, sample variance 1; one standard deviation away gives exp(-1/2).
    np.testing.assert_allclose(rewards(np.array([[1.0], [2.0], [3.0]]) * scale), [0.60653066, 1, 0.60653066])


@pytest.mark.parametrize("losses", [np.ones((0, 3)), np.ones((4, 0)), np.ones(4), [[1.0], [np.nan]]])
def test_rewards_refuse(losses) -> None:
    with pytest.raises(ValueError, match=r"must (have shape \(clients, steps\), got|be finite, got nan)"):
        rewards(np.array(losses))


# -- Eqs. 2 and 3 -------------------------------------------------------------------------------------------


def split_of(affinities: np.ndarray, max_clusters: int = 5, **changed) -> tuple:
    return fedgwc.split(affinities, max_clusters, dataclasses.replace(PAPER, **changed), seed=0)


# -- Algorithm 1 --------------------------------------------------------------------------------------------


def blocks(groups: np.ndarray, across: float = 0.05) -> np.ndarray:
    alike = groups[:, None] == groups
    noise = np.random.default_rng(3).uniform(0.9, 1.0, alike.shape)
    result = np.where(alike, (noise + noise.T) / 2, across)
    np.fill_diagonal(result, 1.0)
    return result


@pytest.mark.parametrize("num_groups", [2, 3, 4, 5])
def test_split_finds_the_groups_and_their_number(num_groups: int) -> None:
    groups = np.arange(24) % num_groups  # already numbered in order of first appearance
    np.testing.assert_array_equal(split_of(blocks(groups))[0], groups)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_clients_all_alike_are_not_split(size: int, value: float) -> None:
    affinities = np.full((size, size), value)
    np.fill_diagonal(affinities, 1.0)
    assert split_of(affinities) == (None, {})


def test_clients_alike_but_for_round_off_are_not_split() -> None:
    affinities = np.full((10, 10), 1.0)
    affinities[:5, 5:] = affinities[5:, :5] = 1 - 1e-9
    assert split_of(affinities)[0] is None


def test_split_needs_a_good_score() -> None:
    # Random affinities have no groups: every candidate's score is above 1.
    noise = np.random.default_rng(4).random((30, 30))
    affinities = (noise + noise.T) / 2
    np.fill_diagonal(affinities, 1.0)
    labels, scores = split_of(affinities)
    assert labels is None
    assert min(scores.values()) > 1
    assert split_of(affinities, max_davies_bouldin=1e9)[0] is not None


def test_affinities_near_the_smallest_number_do_no_harm() -> None:
    affinities = np.full((12, 12), 1e-310)
    affinities[:6, :6] = affinities[6:11, 6:11] = 0.9  # the last client is alone
    np.fill_diagonal(affinities, 1.0)
    labels, _ = split_of(affinities)
    assert (labels[:6] == labels[0]).all()
    assert (labels[6:11] == labels[6]).all()


# -- Algorithm 2 --------------------------------------------------------------------------------------------


PRINTED = Parameters(step_size=0.3, patience=10**6, min_cluster_size=1)


@pytest.mark.parametrize(("parameters", "size"), [(PRINTED, 3), (PRINTED, 12), (PRINTED, 40), (RELEASED, 10)])
def test_rounds_match_a_literal_loop(parameters: Parameters, size: int) -> None:
    released = parameters is RELEASED
    alpha, ids = 4 / size if released else 0.3, 3 * np.arange(size) + 1
    before = state = start(ids[::-1], parameters)
    first = 1 / size**2 if released else 0.0
    matrix, weights, mse = np.full((size, size), first), np.zeros(size), 1.0
    met: set[tuple[int, int]] = set()
    draws = np.random.default_rng(5)
    for _ in range(12):
        cohort = draws.choice(size, 4 if released else draws.integers(2, size + 1), replace=False)
        losses = draws.random((len(cohort), 4))
        state, outcome = step(state, ids[cohort], losses, parameters, seed=0)

        omega, squares = literal_rewards(losses), 0.0
        for row, k in enumerate(cohort):
            weights[k] = (1 - alpha) * weights[k] + alpha * omega[row]
            for j in cohort:
                reward = omega[row] / sum(omega) if released else omega[row]
                new = (1 - alpha) * matrix[k, j] + alpha * reward
                squares += (new - matrix[k, j]) ** 2
                matrix[k, j] = new
                if k < j:
                    met.add((k, j))
        mse = (1 - alpha) * mse + alpha * squares / (16 if released else size**2)
        np.testing.assert_allclose(outcome.rewards, omega, rtol=1e-9)
        np.testing.assert_allclose(state.matrix, matrix, rtol=1e-9)
        np.testing.assert_allclose(state.weights, weights, rtol=1e-9)
        np.testing.assert_allclose([outcome.mse, state.mse], mse, rtol=1e-9)
        assert outcome.pair_coverage == len(met) / (size * (size - 1) / 2)
    np.testing.assert_array_equal(before.members, ids)  # sorted
    np.testing.assert_array_equal(before.matrix, first)  # a round does not change the previous state
    np.testing.assert_array_equal(before.weights, 0.0)


def test_steps_beyond_the_shortest_client_do_not_count() -> None:
    losses = [np.array([1.0, 9.0, 4.0]), np.array([2.0]), np.array([3.0, 5.0])]
    _, outcome = step(start(np.arange(3), AT_ONCE), np.arange(3), losses, AT_ONCE, seed=0)
    np.testing.assert_allclose(outcome.rewards, [0.60653066, 1.0, 0.60653066])


@pytest.mark.parametrize("cohort", [[], [4]])
def test_fewer_than_two_replies_change_nothing(cohort: list[int]) -> None:
    state = start(np.array([4, 6]), AT_ONCE)
    after, outcome = step(state, np.array(cohort), [np.array([1.0])] * len(cohort), AT_ONCE, seed=0)
    assert after is state
    found = outcome.rewards.size, outcome.mse, outcome.settled, outcome.tried, outcome.labels
    assert found == (0, 1.0, False, False, None)


def test_settled_matrix_is_split_by_how_clients_are_perceived() -> None:
    state, outcome = whole_round(start(IDS, AT_ONCE), AT_ONCE)
    omega = np.exp(-19 / 60 * np.array([1.0, 0.0, 4.0]))[GROUPS]
    np.testing.assert_allclose(state.matrix, np.tile(omega[:, None] / 2, 20))
    np.testing.assert_allclose(outcome.mse, 1 / 2 + (omega**2 / 4).mean() / 2)  # from 0, every row
    assert (outcome.settled, outcome.tried) == (True, True)
    np.testing.assert_array_equal(outcome.labels, GROUPS)
    # Clients of a group are perceived alike to the last bit: three groups have no width at all.
    assert outcome.davies_bouldin[3] == pytest.approx(0.0, abs=1e-6)
    assert outcome.davies_bouldin[2] > 0.1


def test_matrix_must_stay_settled_for_patience_rounds() -> None:
    parameters = dataclasses.replace(AT_ONCE, patience=3, tolerance=0.2, max_davies_bouldin=1e-9)
    state = start(IDS, parameters)
    tried, settled, mses = [], [], []
    for server_round in range(1, 11):
        # In round 5 the matrix is made to change, by what has gone before it: entries of 0 become rewards.
        state = state if server_round != 5 else dataclasses.replace(state, mse=0.5)
        state, outcome = step(state, IDS, losses_of(IDS), parameters, seed=0)
        tried.append(outcome.tried)
        settled.append(outcome.settled)
        mses.append(outcome.mse)
    # With P_t = (1 - 2^-t) omega round t changes entries by omega / 2^t: d_t = m / 4^t, where m, the mean of
    # omega², is (10 exp(-38/60) + 5 + 5 exp(-152/60)) / 20 = 0.5353. From 1: 1/2 + m/8 = 0.567, then
    # 0.283 + m/32 = 0.300, 0.150 + m/128 = 0.154 < 0.2, 0.077 + m/512 = 0.078; from 1/2: 0.2503, then 0.1252.
    np.testing.assert_allclose(mses[:6], [0.5669, 0.3002, 0.1543, 0.0782, 0.2503, 0.1252], atol=1e-4)
    assert settled == [False, False, True, True, False, True, True, True, True, True]
    # Rounds 6 to 8 are three in a row; the test finds nothing that good, and 9 and 10 are not three again.
    assert tried == [False] * 7 + [True, False, False]
    assert state.rounds_settled == 2


def test_a_tolerance_of_auto_follows_the_number_of_steps() -> None:
    # With one step ε is a tenth of 2 · 0.25 / 1.5 · 0.07735: 0.002578. As above d_t = m / 4^t, so the mean is
    # 2^-t (1 + m/2 (1 - 2^-t)): 0.00494 after round 8, 0.00247 after round 9.
    parameters = dataclasses.replace(AT_ONCE, tolerance="auto")
    state, settled = start(IDS, parameters), []
    for _ in range(9):
        state, outcome = whole_round(state, parameters)
        settled.append(outcome.settled)
    assert settled == [False] * 8 + [True]


def test_matrix_is_not_settled_before_enough_pairs_have_met() -> None:
    parameters = dataclasses.replace(AT_ONCE, min_pair_coverage=0.5)
    state = start(np.arange(4), parameters)
    coverage, settled = [], []
    for cohort in ([0, 1], [0, 1], [0, 1, 2], [0, 1, 2]):
        losses = np.full((len(cohort), 1), 1.0)  # everyone is rewarded with 1
        state, outcome = step(state, np.array(cohort), losses, parameters, seed=0)
        coverage.append(outcome.pair_coverage)
        settled.append(outcome.settled)
    assert coverage == [1 / 6, 1 / 6, 3 / 6, 3 / 6]
    assert start(np.array([7]), parameters).pair_coverage == 1.0  # a single client has no pairs to meet
    assert settled == [False, False, True, True]


def test_one_odd_client_does_not_block_a_split() -> None:
    # 20 clients, 9, and one: affinity 0.9 to 1 within the groups, 0.05 between them, of the odd client 0.3 to
    # the nine and 0.05 to the others. [20, 9, 1] splits as [20, 10], where the odd one is of the ten, does.
    groups = np.repeat([0, 1], [20, 10])
    affinities = blocks(groups)
    affinities[29, 20:29] = affinities[20:29, 29] = 0.3
    labels, _ = split_of(affinities, min_cluster_size=4)
    np.testing.assert_array_equal(labels, groups)
    np.testing.assert_array_equal(split_of(blocks(groups), min_cluster_size=4)[0], groups)
    # Three groups are what the paper, which refuses no part for its size, makes of it.
    found, scores = split_of(affinities)
    assert sorted(np.bincount(found)) == [1, 9, 20]
    assert min(scores, key=scores.__getitem__) == 3


def test_step_splits_into_parts_of_min_cluster_size_and_as_many_as_cohorts_fit() -> None:
    # Three groups of 10, 5 and 5: no two parts of 6 or more are left when those of 5 are dissolved.
    for smallest, parts in ((5, 3), (6, None)):
        _, outcome = whole_round(start(IDS, AT_ONCE), dataclasses.replace(AT_ONCE, min_cluster_size=smallest))
        assert outcome.tried
        assert (None if outcome.labels is None else outcome.labels.max() + 1) == parts
    _, outcome = whole_round(start(IDS, AT_ONCE), dataclasses.replace(AT_ONCE, min_cluster_size=11))
    assert (outcome.settled, outcome.tried) == (True, False)  # no room for two parts
    by_cohort = dataclasses.replace(AT_ONCE, cohort_size=9, limit_parts=True)
    _, outcome = whole_round(start(IDS, AT_ONCE), by_cohort)
    assert set(outcome.davies_bouldin) == {2}  # 20 // 9


def test_failed_test_resets_the_change_of_the_released_code() -> None:
    # Equal losses leave nothing to tell clients apart. Twelve clients, four a round: 12 / 4 = 3 rounds.
    ones = np.ones((12, 1))
    state = start(np.arange(12), RELEASED)
    changes = []
    for _ in range(60):
        state, outcome = step(state, np.arange(12), ones, RELEASED, seed=0)
        changes.append((outcome.settled, outcome.tried, state.mse))
    first = next(index for index, (_, tried, _) in enumerate(changes) if tried)
    assert [settled for settled, _, _ in changes[first - 3 : first + 2]] == [False, True, True, True, False]
    assert changes[first][2] == 1.0
    # Then 1 - 4/12 of it is left each round, plus next to nothing.
    assert changes[first + 1][2] == pytest.approx(2 / 3)


def test_children_take_over_what_is_known_of_their_members() -> None:
    parameters = Parameters(step_size=0.5, min_cluster_size=1)
    state = start(np.array([2, 5, 7, 11]), parameters)
    for cohort in ([2, 5, 11], [7, 11]):
        losses = np.arange(len(cohort), dtype=float)[:, None]
        state, _ = step(state, np.array(cohort), losses, parameters, seed=0)
    first, second = fedgwc.children(state, np.array([1, 0, 0, 1]))
    np.testing.assert_array_equal(first.members, [5, 7])
    np.testing.assert_array_equal(second.members, [2, 11])
    np.testing.assert_array_equal(first.matrix, state.matrix[1:3, 1:3])
    np.testing.assert_array_equal(second.matrix, state.matrix[np.ix_([0, 3], [0, 3])])
    np.testing.assert_array_equal(second.weights, state.weights[[0, 3]])
    assert (first.pair_coverage, second.pair_coverage) == (0.0, 1.0)  # 5 and 7 never met, 2 and 11 did
    assert (first.mse, first.rounds_settled) == (1.0, 0)


def test_step_refuses_a_stranger_and_a_client_without_losses() -> None:
    state = start(np.arange(3), AT_ONCE)
    with pytest.raises(ValueError, match="clients must be members of the cluster, got client 9"):
        step(state, np.array([0, 9]), np.ones((2, 1)), AT_ONCE, seed=0)
    with pytest.raises(ValueError, match=r"losses must have shape \(clients, steps\), got \(2, 0\)"):
        step(state, np.array([0, 1]), [np.ones(2), np.ones(0)], AT_ONCE, seed=0)


def test_a_run_of_a_cluster_of_many_is_that_of_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 clients of one kind and 16 of another, all in every round, until they are split."""
    parameters = Parameters(tolerance=0.01, patience=1, min_cluster_size=3).resolve(0.5)
    losses = np.where(np.arange(24) % 3, 2.0, 0.5)[:, None] + np.arange(24)[:, None] * 0.01

    def rounds() -> tuple[np.ndarray, Interaction]:
        state = start(np.arange(24), parameters)
        for _ in range(60):
            state, outcome = step(state, np.arange(24), losses, parameters, seed=0)
            if outcome.labels is not None:
                return outcome.labels, state
        raise AssertionError("never split")

    labels, double = rounds()
    monkeypatch.setattr(fedgwc, "MANY", 20)
    found, single = rounds()
    np.testing.assert_array_equal(found, labels)
    assert single.matrix.dtype == np.float32
    assert fedgwc.children(single, found)[0].matrix.dtype == np.float64  # they are few
    np.testing.assert_allclose(single.matrix, double.matrix, rtol=1e-6)


# How clients of three kinds perceive each other: so nearly alike that no kind is cut off from the others,
# for then the eigenvalues would be equal, and the vectors any rotation of each other.
PERCEPTION = 0.5 + 0.1 * np.array([[0.9, 0.3, 0.2], [0.4, 0.8, 0.2], [0.2, 0.3, 0.6]])


def candidates(affinities: np.ndarray, max_clusters: int, seed: int, **how) -> dict[int, tuple]:
    return fedgwc.candidates(affinities, max_clusters, Parameters(min_cluster_size=1, **how), seed)


def perceived(size: int, seed: int = 0, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Draw the kinds of clients, and an interaction matrix after many rounds."""
    draws = np.random.default_rng(seed)
    kinds = draws.integers(0, 3, size)
    matrix = PERCEPTION[np.ix_(kinds, kinds)] + noise * draws.standard_normal((size, size))
    return kinds, np.clip(matrix, 0, 1)


def test_eigenvectors_span_what_scikit_learn_finds() -> None:
    affinities = affinity(perceived(600)[1], 0.1)
    found = fedgwc.few_eigenvectors(affinities.astype(np.float32), 3, seed=0)
    wanted = spectral_embedding(affinities, n_components=3, drop_first=False, random_state=0)
    # Cosines of the angles between the two spaces of three vectors, which three kinds span.
    angles = np.linalg.svd(np.linalg.qr(found)[0].T @ np.linalg.qr(wanted)[0], compute_uv=False)
    np.testing.assert_allclose(angles, 1, atol=1e-5)
    assert np.ptp(found[:, 0]) <= 1e-4 * found[0, 0]  # connected clients: the first is constant


@pytest.mark.filterwarnings("error")
def test_clients_alike_are_found_among_those_that_are_like_nobody() -> None:
    affinities = np.eye(300, dtype=np.float32)
    affinities[:10, :10] = 1
    found = candidates(affinities, 2, seed=0)
    assert found[2][0].tolist() == [0] * 10 + [1] * 290
    # The ten rows are the same: width 0. The others are unit vectors, √(1 − 1/290) from their mean, and the
    # two means √(10 + 1/290) apart: 0.998 / 3.163.
    assert found[2][1] == pytest.approx(np.sqrt((1 - 1 / 290) / (10 + 1 / 290)), rel=1e-4)


def noisy_groups(num_groups: int, size: int, seed: int) -> np.ndarray:
    draws = np.random.default_rng(seed)
    groups = draws.integers(0, num_groups, size)
    noise = draws.uniform(0.0, 0.3, (size, size))
    result = 0.3 + 0.4 * (groups[:, None] == groups) + (noise + noise.T) / 2
    np.fill_diagonal(result, 1.0)
    return result


def same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(((a[:, None] == a) == (b[:, None] == b)).all())


# Where scores are of the embedding, its labels are compared for any number; k-means needs the right one.
@pytest.mark.parametrize(
    ("numbers", "how"),
    [([2], {}), ([3], {}), ([5], {}), ([2, 3, 4], {"score_on": "embedding", "assign_labels": "cluster_qr"})],
)
def test_labels_and_scores_are_those_of_scikit_learn(numbers: list[int], how: dict) -> None:
    affinities = noisy_groups(3 if how else numbers[0], 40, seed=1 if how else numbers[0])
    found = candidates(affinities, 4 if how else 5, seed=0, **how)
    same = {"affinity": "precomputed", "random_state": 0}
    for number in numbers:
        model = SpectralClustering(number, assign_labels=how.get("assign_labels", "kmeans"), **same)
        expected = model.fit_predict(affinities)
        rows = SpectralEmbedding(number, **same).fit_transform(affinities) if how else affinities
        assert same_partition(found[number][0], expected)
        assert found[number][1] == pytest.approx(davies_bouldin_score(rows, expected), rel=1e-6)


def test_numbers_stop_below_the_number_of_clients() -> None:
    affinities = noisy_groups(2, 4, seed=3)
    assert max(candidates(affinities, 10, seed=0)) <= 3
    assert candidates(affinities[:2, :2], 10, seed=0) == {}
    assert max(candidates(affinities, 10, seed=0, score_on="embedding")) <= 2


@pytest.mark.filterwarnings("error")
def test_fewer_distinct_clusters_than_asked_for_are_left_out() -> None:
    # Two groups without any noise: their members are identical.
    affinities = np.where(np.arange(12)[:, None] % 2 == np.arange(12) % 2, 1.0, 0.2)
    found = candidates(affinities, 2, seed=2**63 - 1)  # beyond what scikit-learn takes
    assert list(found) == [2]
    assert found[2][1] == pytest.approx(0.0)


# Two pairs and a single client, nearer to the second pair: with rows a = [1, 1, 0, 0, 0.1] of clients 0 and 1
# and b = [0, 0, 1, 1, 0.4] of 2 and 3, its own [0.1, 0.1, 0.4, 0.4, 1] is at a squared distance of
# 2 * 0.9² + 2 * 0.4² + 0.9² = 2.75 from a and 2 * 0.1² + 2 * 0.6² + 0.6² = 1.1 from b.
A, B = [1.0, 1.0, 0.0, 0.0, 0.1], [0.0, 0.0, 1.0, 1.0, 0.4]
PAIRS = np.array([A, A, B, B, [0.1, 0.1, 0.4, 0.4, 1.0]])


@pytest.mark.parametrize(
    ("labels", "smallest", "expected"),
    [
        ([0, 0, 1, 1, 2], 1, [0, 0, 1, 1, 2]),
        ([0, 0, 1, 1, 2], 2, [0, 0, 1, 1, 1]),
        ([7, 7, 3, 3, 5], 2, [0, 0, 1, 1, 1]),  # whatever their numbers
        # The single client first; of [2, 3] the pair of clients 0 and 1 is too small then, and one is left.
        ([0, 0, 1, 1, 2], 3, [0, 0, 0, 0, 0]),
        # Client 4 goes to [2, 3], client 1 to client 0: its row is client 0's.
        ([0, 1, 2, 2, 3], 2, [0, 0, 1, 1, 1]),
        ([0, 0, 0, 0, 0], 9, [0, 0, 0, 0, 0]),
    ],
)
def test_small_clusters_join_those_nearest_to_their_clients(labels, smallest, expected) -> None:
    before = np.array(labels)
    np.testing.assert_array_equal(fedgwc.join_small(PAIRS, before, smallest), expected)
    np.testing.assert_array_equal(before, labels)
