"""What the server makes of clipped updates: sensitivity, scale of the noise, and what is recorded."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from hypothesis import given, strategies as st
from scipy.stats import chi2

from fedclust.federation import Reply
from fedclust.layers.client_dp import ClientPrivacy
from fedclust.messages.evaluation import Evaluation
from fedclust.messages.packer import pack, unpack
from fedclust.privacy import ClientDP
from fedclust.privacy.accountant import epsilon_of
from fedclust.support.flower import assume_identity
from fedclust.support.reasons import RunFailed

assume_identity()
NO_MESSAGE = Message(RecordDict(), dst_node_id=1, message_type="train")


def _model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype=np.float64)), "steps": Array(np.array([7]))})


START = _model(1.0, 2.0)
MODELS = [START, START]
RUN: Any = SimpleNamespace(federation=SimpleNamespace(), now=None)  # the layer reads nothing of it


def _reply(client: int, model: ArrayRecord, cluster: int = 0, within: bool | None = None) -> Reply:
    return Reply(client, cluster, START, model, 1, 0.0, np.zeros(1), NO_MESSAGE, within=within)


def _guard(num_clients: int = 10, seed: int = 0, simulated: bool = True, **settings) -> ClientPrivacy:
    return ClientPrivacy(ClientDP(**{"delta": 1e-3, **settings}), num_clients, seed, simulated, ["w"])


def _values(replies: list[Reply]) -> np.ndarray:
    return replies[0].model["w"].numpy()


def _mean(updates, asked: int, clip: float = 1.0) -> np.ndarray:
    """Return a cluster's private mean update, whose noise is the same for all updates."""
    guard = _guard(clip=clip)
    replies = [_reply(k, _model(1.0 + x, 2.0 + y)) for k, (x, y) in enumerate(updates)]
    return _values(guard.private(replies, dict.fromkeys(range(asked), 0), MODELS, 1)) - [1.0, 2.0]


UPDATES = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=8)


@given(UPDATES, st.floats(0.01, 100), st.data())
def test_without_one_client_the_sum_moves_by_at_most_the_clip(updates, clip: float, data) -> None:
    # Even of nodes that do not clip: neighbours differ in a client whose update is zero, or does not arrive.
    asked = len(updates)
    left_out = data.draw(st.integers(0, asked - 1))
    zeroed = [(0.0, 0.0) if k == left_out else update for k, update in enumerate(updates)]
    silent = [update for k, update in enumerate(updates) if k != left_out]
    whole = _mean(updates, asked, clip)
    for neighbour in (zeroed, silent):
        moved = asked * np.linalg.norm(whole - _mean(neighbour, asked, clip))
        assert moved <= clip * (1 + 1e-5)


def test_a_mean_of_several_clients_counts_for_each_of_them() -> None:
    shared = _model(1.3, 2.4)  # of two clients: together twice (0.3, 0.4); the third moved by (0.5, 0)
    replies = [_reply(0, shared), _reply(1, shared), _reply(2, _model(1.5, 2.0))]
    apart = [_reply(k, _model(1.3, 2.4)) for k in (0, 1)] + [_reply(2, _model(1.5, 2.0))]
    cohort = dict.fromkeys(range(3), 0)
    together = _values(_guard().private(replies, cohort, MODELS, 1))
    np.testing.assert_allclose(together, _values(_guard().private(apart, cohort, MODELS, 1)), rtol=1e-12)
    # Without noise: (2 · 0.3 + 0.5)/3 and 2 · 0.4/3.
    silent = _guard(noise_multiplier=1e-12)
    expected = [1 + 1.1 / 3, 2 + 0.8 / 3]
    np.testing.assert_allclose(_values(silent.private(replies, cohort, MODELS, 1)), expected, rtol=1e-9)


def test_the_noise_has_the_scale_of_each_clusters_cohort() -> None:
    # z C / n, with n the clients that were asked: 4 in cluster 0, of whom 2 answer, and 1 in cluster 1.
    cohort, drawn = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1}, {0: [], 1: []}
    guard = _guard(clip=2.0, noise_multiplier=1.5)
    replies = [_reply(0, START), _reply(1, START), _reply(4, START, 1)]
    for server_round in range(1, 1001):
        found = guard.private(replies, cohort, MODELS, server_round)
        for reply in (found[0], found[2]):
            drawn[reply.cluster].append(reply.model["w"].numpy() - [1.0, 2.0])
    for cluster, asked in ((0, 4), (1, 1)):
        values = np.concatenate(drawn[cluster]) / (1.5 * 2.0 / asked)
        # Σ of n squared standard normals: chi-square, outside of these bounds once in a million draws.
        low, high = chi2.ppf([5e-7, 1 - 5e-7], len(values))
        assert low < np.square(values).sum() < high
    assert np.corrcoef(np.concatenate(drawn[0]), np.concatenate(drawn[1]))[0, 1] == pytest.approx(0, abs=0.12)


def test_what_training_does_not_change_gets_no_noise_and_nothing_else_is_kept() -> None:
    reply = Reply(0, 0, START, START, 33, 1.5, np.array([1.5, 2.5]), NO_MESSAGE)
    (found,) = _guard().private([reply], {0: 0}, MODELS, 1)
    assert found.model["steps"].numpy().tolist() == [7]
    assert (found.num_examples, found.losses.tolist()) == (1, [0.0])
    assert math.isnan(found.loss)


def test_noise_of_the_seed_only_where_clients_are_simulated() -> None:
    def noise(guard: ClientPrivacy) -> list[float]:
        return _values(guard.private([_reply(0, START)], {0: 0}, MODELS, 1)).tolist()

    assert noise(_guard(seed=1)) == noise(_guard(seed=1))
    assert noise(_guard(seed=1)) != noise(_guard(seed=2))
    assert noise(_guard(simulated=False)) != noise(_guard(simulated=False))


def test_the_clip_follows_a_quantile() -> None:
    # Of 4 asked, 3 were short enough and 1 was not: share 3/4; C = 2 exp(-0.5 (0.75 - 0.25)).
    guard = _guard(clip=2.0, adaptive=True, quantile=0.25, clip_rate=0.5, count_noise=1e-12)
    replies = [_reply(k, START, within=k != 3) for k in range(4)]
    guard.private(replies, dict.fromkeys(range(4), 0), MODELS, 1)
    assert guard.clip == pytest.approx(2 * math.exp(-0.25))
    # With noise 3 · g on the sum of ±1/2: the share is moved by 3 g/4.
    noisy = _guard(clip=2.0, adaptive=True, quantile=0.25, clip_rate=0.5, count_noise=3.0)
    drawn = float(noisy._noise("count", 1, 0, 1)[0])
    noisy.private(replies, dict.fromkeys(range(4), 0), MODELS, 1)
    assert noisy.clip == pytest.approx(2 * math.exp(-0.5 * (0.75 + 3 * drawn / 4 - 0.25)))


def test_epsilon_counts_the_rounds_that_a_client_took_part_in() -> None:
    guard = _guard(4, noise_multiplier=2.0, adaptive=True, count_noise=5.0)
    guard.private([_reply(0, START)], {0: 0, 1: 0}, MODELS, 1)  # client 1 does not answer: it counts
    guard.private([_reply(0, START)], {0: 0}, MODELS, 2)
    # Means with multiplier 2; counts of ±1/2 with noise 5, so with multiplier 10.
    expected = [epsilon_of([(2.0, n), (10.0, n)], 1e-3) for n in (2, 1, 0, 0)]
    np.testing.assert_allclose(guard.epsilons(), expected)
    assert guard.record()["epsilon"] == pytest.approx(expected[0])
    assert guard.findings(RUN).clients["rounds_trained"].tolist() == [2, 1, 0, 0]


def _evaluations(accuracies: list[float]) -> list[Evaluation]:
    figures = {"balanced-accuracy": 0.5, "loss": 0.1, "num-examples": 9}
    return [Evaluation(k, {"accuracy": value, **figures}) for k, value in enumerate(accuracies)]


def test_evaluations_become_one_noisy_mean_that_is_accounted_for() -> None:
    guard = _guard(4, evaluation="noised", evaluation_noise=0.5)
    drawn = float(guard._noise("accuracy", 3, 0, 1)[0])
    found = guard.evaluations(_evaluations([0.5, 0.75, 0.25]), 3)  # the fourth does not answer
    assert len(found) == 4
    mean = min(1.0, max(0.0, (1.5 + 0.5 * drawn) / 4))
    for each in found:
        assert each.metrics["accuracy"] == pytest.approx(mean)
        assert math.isnan(each.metrics["loss"])
        assert math.isnan(each.metrics["balanced-accuracy"])
        assert each.metrics["num-examples"] == 1.0
    np.testing.assert_allclose(guard.epsilons(), epsilon_of([(0.5, 1)], 1e-3))


def test_exact_evaluations_only_of_simulated_clients() -> None:
    evaluations = _evaluations([0.5])
    assert _guard(evaluation="auto").evaluations(evaluations, 1) == evaluations
    assert _guard(evaluation="auto", simulated=False).evaluations(evaluations, 1) != evaluations
    with pytest.raises(ValueError, match="^privacy.evaluation must be noised unless all clients are sim"):
        _guard(evaluation="exact", simulated=False)


def test_a_cluster_in_which_nobody_answers_gets_noise_all_the_same() -> None:
    # Its model without noise would say that none of its clients answered.
    cohort = {0: 0, 3: 1, 5: 1}
    found = _guard(clip=2.0).private([_reply(0, START)], cohort, MODELS, 1)
    assert [(reply.client, reply.cluster) for reply in found] == [(0, 0), (3, 1)]
    noise = _guard()._noise("mean", 1, 1, 2)
    np.testing.assert_allclose(found[1].model["w"].numpy(), [1.0, 2.0] + 2.0 * noise / 2)  # z C / 2 clients


# -- Groups that clients choose -----------------------------------------------------------------------------

CHOICES = st.lists(
    st.tuples(st.integers(0, 2), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=7
)


def _grouped(chosen, number: int = 8, clip: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of three groups and their sizes; noise is always the same."""
    guard = _guard(clip=clip)
    replies = [_reply(k, _model(1.0 + x, 2.0 + y), group) for k, (group, x, y) in chosen]
    found, sizes = guard.groups(replies, range(number), [START] * 3, 1)
    by = np.maximum(sizes, number / 6)[:, None]  # half an equal share of three at least
    return (np.stack([reply.model["w"].numpy() for reply in found]) - [1.0, 2.0]) * by, np.array(sizes)


@given(CHOICES, st.floats(0.01, 100), st.data())
def test_without_one_client_all_groups_together_move_by_at_most_the_clip(choices, clip: float, data) -> None:
    # The neighbour has a silent client; the sums of all groups are one vector, and so are the sizes.
    given_, left_out = dict(enumerate(choices)), data.draw(st.integers(0, len(choices) - 1))
    silent = {k: choice for k, choice in given_.items() if k != left_out}
    (whole, sizes), (without, fewer) = (_grouped(each.items(), clip=clip) for each in (given_, silent))
    assert np.linalg.norm(whole - without) <= clip * (1 + 1e-5) + 1e-9
    # 1 in its group and 0 in the others, against 1/3 in each: √((2/3)² + 2 (1/3)²) = √(2/3).
    assert np.linalg.norm(sizes - fewer) == pytest.approx(math.sqrt(2 / 3))


def test_a_client_that_lies_about_its_choice_moves_no_more_than_one_that_does_not() -> None:
    # The server knows which group's model it sent, so a client is in one; of a longer update, C is left.
    honest = dict(enumerate([(0, 0.1, 0.0), (1, 0.0, 0.2), (2, 0.1, 0.1)]))
    none, sizes = _grouped(honest.items())
    for group in (0, 1, 2):
        moved, more = _grouped({**honest, 3: (group, 300.0, -400.0)}.items())
        change = moved - none
        np.testing.assert_allclose(change[group], [0.6, -0.8], rtol=1e-5)  # (300, −400) of length 1
        np.testing.assert_allclose(np.delete(change, group, axis=0), 0, atol=1e-9)
        expected = np.full(3, -1 / 3)
        expected[group] = 2 / 3
        np.testing.assert_allclose(more - sizes, expected)


def test_every_group_gets_noise_of_its_noisy_size() -> None:
    guard = _guard(20, clip=2.0, noise_multiplier=1.5)
    found, sizes = guard.groups([_reply(k, START, k % 2) for k in range(10)], range(20), [START] * 3, 1)
    # 5, 5 and 0 chose; the 10 who did not count 1/3 in each; sizes have noise 10, and each sum z C = 3.
    told = np.array([5, 5, 0]) + 10 / 3 + 10 * guard._noise("group sizes", 1, 0, 3)
    np.testing.assert_allclose(sizes, told)
    for group, reply in enumerate(found):
        noise = 3 * guard._noise("group mean", 1, group, 2) / max(told[group], 20 / 6)
        np.testing.assert_allclose(reply.model["w"].numpy(), np.add([1.0, 2.0], noise))
    assert {reply.client for reply in found} == {-1}


def test_a_vote_counts_1_at_most_and_all_are_charged_for_it() -> None:
    guard = _guard(4, evaluation_noise=2.0)
    noise = 2 * float(guard._noise("vote", 7, 0, 1)[0])
    assert guard.vote({0: 0.25, 1: 50.0, 3: -0.5}, 7) == pytest.approx(0.25 + 1 - 0.5 + noise)
    np.testing.assert_allclose(guard.epsilons(), epsilon_of([(2.0, 1)], 1e-3))


def test_epsilon_counts_groups_and_their_sizes() -> None:
    guard = _guard(3, noise_multiplier=2.0, count_noise=5.0)
    guard.private([], {0: 0, 1: 0}, MODELS, 1)
    guard.groups([], [0, 1], MODELS, 1)
    guard.groups([], [0], MODELS, 2)
    # Sizes of two groups have sensitivity √(1 − 1/2), so a multiplier of 5 √2.
    counted = [epsilon_of([(2.0, 1 + groups), (5 * math.sqrt(2), groups)], 1e-3) for groups in (2, 1)]
    np.testing.assert_allclose(guard.epsilons(), [*counted, 0.0])


def test_the_state_goes_into_a_checkpoint_and_back() -> None:
    guard = _guard(3, adaptive=True)
    guard.private([_reply(0, START, within=True)], {0: 0}, MODELS, 1)
    other = _guard(3, adaptive=True)
    other.begin(RUN, unpack(other.memory_type, pack(guard.state(RUN))))
    assert other.clip == guard.clip
    np.testing.assert_array_equal(other.epsilons(), guard.epsilons())


def test_a_simulated_run_is_not_resumed_with_deployed_clients_nor_the_other_way() -> None:
    for before, words in ((True, "simulated"), (False, "deployed")):
        state = _guard(3, simulated=before).state(RUN)
        with pytest.raises(RunFailed, match=f"a private run must be resumed with its clients {words}"):
            _guard(3, simulated=not before).begin(RUN, state)
