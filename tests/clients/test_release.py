"""What leaves a node with rules, answer by answer."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedclust.clients import release
from fedclust.clients.coalitions import _answer as scored
from fedclust.clients.release import Release, charge, check_question
from fedclust.data.cache import cache_root
from fedclust.data.sites.rules import Rules, RulesError
from fedclust.data.targets import CLASSES, Target, Times
from fedclust.messages import coalitions, description, evaluation, mixtures, training
from fedclust.messages.models import from_state, to_state
from fedclust.metrics import Outcomes
from fedclust.privacy.accountant import epsilon_of
from fedclust.proof.coalitions import Fit
from fedclust.support.reasons import discreet, reason_of

NONE = np.zeros(0, dtype=np.int64)
RULES = Rules(min_cell=5)


def node(
    rules: Rules | None = RULES,
    *,
    train: int = 20,
    test: int = 6,
    held_out: int = 2,
    batch: int = 8,
    target: Target = CLASSES,
    tested: Sequence[int] | None = None,
    held_by_class: Sequence[int] = (0, 0),
):
    """A node with one client; of its training rows, 18 are of class 0, the others of class 1.

    Its test rows are of class 0, unless it is said how many are of each.
    """
    counts = {"train": [[18, train - 18]], "test": [tested or (test, 0)], "validation": [held_by_class]}
    data = SimpleNamespace(
        train=[np.arange(train)],
        test=[np.arange(test)],
        validation=[np.arange(held_out)],
        label_counts=lambda part: np.array(counts[part]),
        target=target,
    )
    how = SimpleNamespace(batch_size=batch, epochs=None, steps=2)
    trainer = SimpleNamespace(training=how, trainable_names=("w",))
    return SimpleNamespace(rules=rules, data=data, trainer=trainer, config={"name": "north"}, keeps=())


def released(answer, question=None, **options):
    return Release(node(**options)).of(0, question, answer)


def model(*values: float) -> ArrayRecord:
    import torch

    return from_state({"w": torch.tensor(values)})


def weights(record: ArrayRecord) -> list[float]:
    return to_state(record)["w"].tolist()


def figures(rows: int, **more: float) -> dict[str, float]:
    return {"num-examples": rows, "loss": 0.5, "accuracy": 0.75, "balanced-accuracy": 0.7, **more}


def test_a_node_without_rules_sends_what_was_made() -> None:
    answer = description.Prototypes(np.ones((2, 3), np.float32), np.array([1, 1]))
    assert released(answer, rules=None) is answer


def test_counts_of_a_few_rows_are_raised_and_parts_of_a_few_rows_count_as_none() -> None:
    answer = description.Description.of(np.array([18, 2, 0]), np.array([5, 1, 0]), num_validation=4)
    sent = released(answer)
    assert sent.label_counts.tolist() == [15, 5, 0]  # of 20, as the number of rows says
    assert sent.test_label_counts.tolist() == [6, 0, 0]  # of 6, which cannot be 5 and 5
    assert sent.num_validation == 0
    few = released(description.Description.of(np.array([18, 2]), np.array([2, 2]), num_validation=5))
    assert few.test_label_counts.tolist() == [0, 0]
    assert few.num_validation == 5
    sizes = released(description.Description.of(np.array([18, 2]), np.array([2, 2]), "sizes"))
    assert (sizes.num_train, sizes.num_test) == (20, 0)


@pytest.mark.parametrize(
    ("train", "held", "sent"),
    [
        ([18, 12], (6, 5), [18, 12]),
        ([18, 12], (3, 3), [15, 15]),  # of 21 and 15; the held-out ones count as 6 and 0
        ([18, 12], (2, 2), [20, 14]),  # these count as none
        ([18, 5], (5, 4), [14, 9]),  # of 23 and 9; the held-out ones count as 9 and 0
        ([18, 1], (0, 6), [14, 5]),  # of 18 and 7, less 6: 18 and 1, of which one class of five
    ],
)
def test_counts_with_and_without_held_out_rows_do_not_tell_how_many_are_held_out_of_each_class(
    train: list[int], held: tuple[int, int], sent: list[int]
) -> None:
    answer = description.Description.of(np.array(train), np.zeros(2, int), num_validation=sum(held))
    told = released(answer, held_out=sum(held), held_by_class=held)
    assert told.label_counts.tolist() == sent
    whole = description.Description.of(np.add(train, held), np.zeros(2, int))
    assert released(whole).label_counts.tolist() == np.add(train, held).tolist()
    sizes = description.Description.of(np.array(train), np.zeros(2, int), "sizes")
    few = sum(held) * (sum(held) < 5)
    assert released(sizes, held_out=sum(held), held_by_class=held).num_train == sum(train) + few


def test_counts_of_a_few_rows_leave_the_number_of_rows_as_it_is() -> None:
    counts = np.array([8, 7, 2, 1])  # 18 rows
    sent = released(description.Description.of(counts, counts))
    # Four classes of five are 20: a client keeps its classes, its test rows their number.
    assert sent.label_counts.tolist() == [5, 5, 5, 5]
    assert sent.test_label_counts.tolist() == [6, 7, 5, 0]
    counts = np.array([8, 9, 4, 1])  # 22 rows; the first two are lowered by 5 together
    assert released(description.Description.of(counts, counts)).label_counts.tolist() == [6, 6, 5, 5]


def test_counts_of_times_leave_the_number_of_events_as_it_is() -> None:
    # In turn without and with the event: 10 + 4 + 4 and 3 + 2 + 1 rows in three intervals.
    counts = np.array([10, 3, 4, 2, 4, 1])
    times = Times((10.0, 20.0), 30.0)
    sent = released(description.Description.of(counts, counts), target=times)
    assert sent.label_counts.tolist() == sent.test_label_counts.tolist() == [8, 6, 5, 0, 5, 0]
    few = np.array([12, 2, 9, 1, 0, 0])  # 21 and 3 rows, of which 5 are said to have the event
    sent = released(description.Description.of(few, few), target=times)
    assert sent.test_label_counts.tolist() == [10, 5, 9, 0, 0, 0]
    assert times.words.counted(24, sent.test_label_counts) == 5


def test_prototypes_of_a_few_rows_stay() -> None:
    means = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    sent = released(description.Prototypes(means, np.array([18, 4])))
    assert sent.counts.tolist() == [18, 0]
    assert sent.prototypes.tolist() == [[1, 2], [0, 0]]
    with pytest.raises(RulesError, match="^this site sends no figure of fewer than 5 rows$"):
        released(description.Prototypes(means, np.array([4, 4])))


def test_directions_of_a_few_rows_stay() -> None:
    bases = np.stack([np.eye(4)[:, :2], np.eye(4)[:, 2:]]).astype(np.float32)
    sent = released(description.Subspaces(bases)).subspaces  # 18 rows of class 0, 2 of class 1
    assert (sent[0] == bases[0]).all()
    assert not sent[1].any()


@pytest.mark.parametrize(
    ("there", "predicted", "stay"),
    [
        ([10, 10], [12, 8], ()),
        # Of one row of class 1, balanced accuracy says whether it is right, and the area its score's rank.
        ([16, 4], [10, 10], ("balanced-accuracy", "macro-f1", "auc")),
        ([10, 10], [17, 3], ("macro-f1",)),
        ([20, 0], [20, 0], ()),
    ],
)
def test_figures_by_class_need_enough_rows_of_each(
    there: list[int], predicted: list[int], stay: tuple[str, ...]
) -> None:
    hits = np.minimum(there, predicted)
    counts = Outcomes(*map(np.array, (there, predicted)), hits, np.array([0]), np.array([1]), NONE, np.eye(2))
    every = figures(20, **{"macro-f1": 0.6, "auc": 0.8})
    about = {"test": 20, "tested": there}
    sent = released(evaluation.Evaluation(0, every, counts), **about)
    # In other rounds than the last, and of a site's own figures, there are no counts.
    brief = released(evaluation.Evaluation(0, every, None), **about).metrics
    sites = released(coalitions.SiteFigures({"0": every}, np.zeros(1)), **about).figures["0"]
    for each in (brief, sites):
        assert {name for name, value in each.items() if math.isnan(value)} == set(
            stay[:3] if there[1] == 4 else ()
        )
    assert {name for name, value in sent.metrics.items() if math.isnan(value)} == set(stay)
    assert all(sent.metrics[name] == value for name, value in every.items() if name not in stay)
    assert (sent.outcomes is None) == bool(stay)
    if not stay:
        # Scores of single rows, and pairs of label and prediction, stay in any case.
        assert sent.outcomes.hits is hits
        assert sent.outcomes.bins is None
        assert sent.outcomes.confusion is None
        assert sent.outcomes.positives.size == 0


def test_figures_of_a_few_test_rows_stay() -> None:
    sent = released(evaluation.Evaluation(0, figures(4), None), test=4).metrics
    assert sent.pop("num-examples") == 0
    assert all(map(math.isnan, sent.values()))
    layers = evaluation.PersonalAnswer(0, {"prior": figures(4)}, losses={"none": 1.0}, chosen="prior")
    kept = released(layers, test=4, held_out=4)
    assert math.isnan(kept.figures["prior"]["accuracy"])
    assert (kept.losses, kept.chosen) == ({}, "none")
    kept = released(layers, test=5, held_out=5)
    assert (kept.figures, kept.losses, kept.chosen) == (layers.figures, layers.losses, "prior")


def _measured(classes: int, predicted: int, rare: Sequence[int], kept: int = 38) -> coalitions.ScoresAnswer:
    """A model that is right of 18 and 18 rows, and calls the 2 of the last class something."""
    labels, fold = np.repeat(np.arange(classes), [18] * (classes - 1) + [2])[:kept], np.arange(kept) % 5
    named = np.where(labels == classes - 1, predicted, labels)
    outputs, arms = 5.0 * np.eye(classes)[named[: len(labels)]], np.full((2, len(labels)), 0.25)
    fold = fold[: len(labels)]
    crossed = [[(outputs[fold == part], labels[fold == part]) for part in range(5)]]
    question = SimpleNamespace(num_classes=classes, weights=np.ones(1))
    about = CLASSES, arms, arms, crossed, [(outputs, labels)], fold, question, np.array(rare, dtype=int)
    return scored(*about)


def test_which_classes_are_of_a_few_rows() -> None:
    for rows, few in ((23, []), (20, [1])):  # 18 of class 0, and 5 or 2 of class 1
        assert release.rare_classes(node(train=rows), 0, "train").tolist() == few
    assert release.rare_classes(node(None, train=20), 0, "train").tolist() == []


@pytest.mark.parametrize("classes", [2, 3])
def test_what_weighs_a_class_of_a_few_rows_like_others_is_unknown(classes: int) -> None:
    whole, sent = (_measured(classes, 0, rare) for rare in ([], [classes - 1]))
    assert whole.balanced_error.tolist() != [1.0, 1.0]
    assert (sent.auc.tolist(), sent.auc_error.tolist()) == ([0.5], [1.0])
    assert (sent.balanced.tolist(), sent.balanced_error.tolist()) == ([0.5, 0.5], [1.0, 1.0])
    assert (sent.means.tolist(), sent.count) == (whole.means.tolist(), whole.count)
    if classes == 2:  # an area under the curve
        assert sent.fits.tolist() == Fit().values * 3


def test_rows_of_a_class_of_a_few_count_for_no_fit() -> None:
    fits = {
        key: _measured(3, *key).fits.tolist() for key in ((1, ()), (2, ()), (1, (2,)), (2, (2,)), (2, (), 36))
    }
    assert fits[1, ()] != fits[2, ()]
    assert fits[1, (2,)] == fits[2, (2,)] == fits[2, (), 36]


def test_the_number_of_a_few_predictions_stays() -> None:
    assert [released(evaluation.Predictions(rows)).num_examples for rows in (4, 5)] == [0, 5]
    # As a node in the user's own process makes them; the operator's folder may be called the same, "reply".
    made = evaluation.Predictions(5, np.arange(5), np.ones(5), np.ones((5, 2), np.float32))
    sent = released(made)
    assert (sent.num_examples, sent.rows, sent.truth, sent.predicted) == (5, None, None, None)


def test_a_comparison_of_a_few_rows_stays() -> None:
    proof = evaluation.ProofAnswer(4, np.zeros(3), np.zeros(8))
    with pytest.raises(RulesError, match="fewer than 5 rows"):
        released(proof)
    assert released(replace(proof, count=5)).count == 5
    with pytest.raises(RulesError, match="fewer than 5 rows"):
        released(coalitions.SiteFigures({}, np.zeros(1)), test=4)
    with pytest.raises(RulesError, match="trains on fewer than 5 rows"):
        released(evaluation.Losses(np.zeros(1), np.array([4])), train=4)


def test_how_often_each_model_wins_and_cells_of_a_few_rows_stay() -> None:
    losses = evaluation.Losses(np.array([1.0, 2.0, 3.0]), np.array([14, 4, 2]))
    assert released(losses).wins.tolist() == [14, 0, 0]
    cells = released(evaluation.Confusion(np.array([[9, 1], [4, 6]])))
    assert cells.confusion.tolist() == [[9, 0], [0, 6]]
    # 10, 4.5 and 5 rows by class.
    sums = released(mixtures.Responsibilities(np.array([[9.0, 2.5, 0.5], [1.0, 2.0, 4.5]])))
    assert sums.sums.tolist() == [[9.0, 0.0, 0.5], [1.0, 0.0, 4.5]]
    with pytest.raises(RulesError, match="fewer than 5 rows"):
        released(mixtures.Responsibilities(np.array([[2.0, 2.0, 2.0]])))


def trained(**more) -> training.TrainAnswer:
    return training.TrainAnswer(0, model(3.0, 4.0), 20, np.array([1.0, 3.0]), **more)


def test_the_loss_of_a_batch_of_a_few_rows_stays() -> None:
    question = training.Instruction(model(0.0, 0.0))
    assert released(trained(), question).losses.tolist() == [1, 3]
    assert released(trained(), question, batch=4).losses.tolist() == [2, 2]
    # Of 20 rows, an epoch's last batch of 16 has 4, of 15 it has 5; two of 9 are only 18 of them.
    assert released(trained(), question, batch=16).losses.tolist() == [2, 2]
    assert released(trained(), question, batch=15).losses.tolist() == [1, 3]
    assert released(trained(), question, batch=9).losses.tolist() == [1, 3]


def test_a_change_by_a_few_rows_stays() -> None:
    # Two steps of two rows are four.
    for question, answer in (
        (training.Instruction(model(0.0, 0.0)), trained()),
        (training.UpdateQuestion(model(0.0, 0.0), 1), training.Update(0, 20, {})),
    ):
        with pytest.raises(RulesError, match="^training must take at least 5 rows a round at this site$"):
            released(answer, question, batch=2)
        assert released(answer, question, batch=3) is not None


def test_a_change_by_a_few_rows_of_another_client_stays() -> None:
    ours, question = node(), training.Instruction(model(0.0, 0.0), pooled=(0,))
    ours.data.train.append(np.arange(4))
    assert Release(ours).of(0, question, trained()) is not None  # on the rows of both
    with pytest.raises(RulesError, match="^training must take at least 5 rows a round at this site$"):
        Release(ours).of(0, replace(question, pooled_rows=(1,)), trained())


def test_models_that_travel_stay_if_the_operator_says_so() -> None:
    question = training.Instruction(model(0.0, 0.0), arms={"arm/0": model(0.0, 0.0)})
    answer = trained(arms={"arm/0": model(1.0, 1.0)})
    assert list(released(answer, question).arms) == ["arm/0"]
    assert released(answer, question, rules=Rules(own_models=False)).arms == {}


def test_the_change_is_clipped_whatever_the_run_says() -> None:
    # The change is (3, 4), of length 5; clipped to 2.5 it is (1.5, 2).
    question = training.Instruction(model(1.0, 1.0), clip=None, projection_size=8, projection_seed=1)
    answer = trained(projected=training.Projected(np.zeros(8), 5.0), update_norm=5.0)
    answer = replace(answer, arrays=model(4.0, 5.0))
    sent = released(answer, question, rules=Rules(clip=2.5))
    np.testing.assert_allclose(weights(sent.arrays), [2.5, 3.0])
    assert sent.projected.norm == pytest.approx(2.5)
    expected = question.projection.of({"w": np.array([[1.5, 2.0]])})[0]
    np.testing.assert_allclose(sent.projected.values, expected)
    assert sent.update_norm == pytest.approx(2.5)
    short = released(replace(answer, arrays=model(1.0, 2.0)), question, rules=Rules(clip=2.5))
    assert weights(short.arrays) == [1.0, 2.0]


def test_the_noise_has_its_size_and_is_one_for_clients_that_share_a_model() -> None:
    import torch

    rules = Rules(clip=2.0, noise=0.5)
    start = from_state({"w": torch.zeros(20_000)})
    question = training.Instruction(start)
    answer = training.TrainAnswer(0, from_state({"w": torch.zeros(20_000)}), 20, np.ones(1))
    release_ = Release(node(rules))
    first, second = (release_.of(0, question, replace(answer, client=client)) for client in (0, 1))
    assert first.arrays is second.arrays
    values = np.array(weights(first.arrays))
    # Standard deviation 0.5 · 2 = 1, of 20,000 draws known to about 0.005.
    assert abs(values.std() - 1) < 0.03
    again = Release(node(rules)).of(0, question, answer)
    assert weights(again.arrays) != weights(first.arrays)


def test_a_length_without_noise_stays() -> None:
    question = training.Instruction(model(0.0, 0.0))
    answer = trained(update_norm=5.0)
    assert released(answer, question, rules=Rules(clip=9.0)).update_norm == 5
    sent = released(answer, question, rules=Rules(clip=9.0, noise=1.0))
    assert sent.update_norm == pytest.approx(np.linalg.norm(weights(sent.arrays)))


def test_changes_that_are_asked_for_are_clipped_too() -> None:
    question = training.UpdateQuestion(model(0.0, 0.0), 1, ("w",), 4, 0)
    answer = training.Update(0, 20, {"w": np.array([3.0, 4.0])}, training.Projected(np.ones(4), 10.0))
    sent = released(answer, question, rules=Rules(clip=5.0))
    # The longest of change and projection, 10, is halved, and with it all that is sent.
    assert sent.changes["w"].tolist() == [1.5, 2.0]
    assert sent.projected.values.tolist() == [0.5] * 4
    assert sent.projected.norm == 5
    assert released(answer, question).projected.norm == 10


def test_sums_of_changes_have_the_noise_of_each_parameter_however_many_they_are() -> None:
    # 20 parameters in 100,000 sums: with noise on each sum alone, a parameter would have none of its own.
    start = model(*[0.0] * 20)
    question = training.UpdateQuestion(start, 1, (), 100_000, 0)
    answer = training.Update(0, 20, {}, training.Projected(np.zeros(100_000), 0.0))
    sums = released(answer, question, rules=Rules(clip=0.1, noise=5.0)).projected.values
    noisy = sums[sums != 0]
    assert 15 <= len(noisy) <= 20  # two of the 20 may share a sum
    assert 0.05 < np.square(noisy).mean() < 0.8  # (5 · 0.1)² = 0.25, of 20 draws


def test_a_question_that_is_not_answered_is_refused_before_any_work() -> None:
    check_question(node(), "query.prototypes")
    check_question(node(rules=None), "query.anything")
    with pytest.raises(RulesError, match="^this site does not answer prototypes, by the rules"):
        check_question(node(Rules(questions=("train",))), "query.prototypes")


def test_a_site_trains_as_often_a_day_as_its_operator_allows(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDCLUST_ACCOUNTS", str(tmp_path))
    day = ["2026-01-01"]
    monkeypatch.setattr(release.time, "strftime", lambda _: day[0])
    limited = node(Rules(rounds_per_day=2))
    for kind in ("train", "query.update", "evaluate"):
        check_question(limited, kind)
    with pytest.raises(RulesError, match="^this site trains 2 times a day"):
        check_question(limited, "train")
    day[0] = "2026-01-02"
    check_question(limited, "train")


def test_a_clock_that_is_set_back_over_midnight_gives_no_further_training(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDCLUST_ACCOUNTS", str(tmp_path))
    day = ["2026-01-02"]
    monkeypatch.setattr(release.time, "strftime", lambda _: day[0])
    limited = node(Rules(rounds_per_day=1))
    check_question(limited, "train")
    day[0] = "2026-01-01"
    check_question(limited, "train")
    day[0] = "2026-01-02"
    with pytest.raises(RulesError, match="^this site trains 1 times a day"):
        check_question(limited, "train")


@pytest.mark.parametrize(
    ("text", "rule"), [("", "be JSON"), ("null", "hold a JSON {}, got None"), ("0", "hold a JSON {}, got 0")]
)
def test_an_account_that_cannot_be_read_is_named_and_nothing_is_trained(
    tmp_path, monkeypatch, text: str, rule: str
) -> None:
    monkeypatch.setenv("FEDCLUST_ACCOUNTS", str(tmp_path))
    limited = node(Rules(rounds_per_day=2, patient_noise=1.0, patient_epsilon=9.0))
    train = training.Instruction(model(0.0), patient_clip=1.0, patient_noise=4.0)
    limited.trainer.training.steps = 1
    check_question(limited, "train")
    charge(limited, [train])
    (account,) = tmp_path.glob("patients-*.json")
    account.write_text(text)
    with pytest.raises(ValueError, match=f"^{account} must {rule.format('list')}"):
        charge(limited, [train])
    (account,) = tmp_path.glob("rounds-*.json")
    account.write_text(text)
    with pytest.raises(ValueError, match=f"^{account} must {rule.format('dict')}") as caught:
        check_question(limited, "train")
    with discreet():
        said = reason_of(caught.value, "a message of type train")
    assert said == "the site's account failed on this node with ValueError, its log has the reason"


def test_runs_that_train_at_the_same_time_are_counted_one_by_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDCLUST_ACCOUNTS", str(tmp_path))
    limited, write, answers = node(Rules(rounds_per_day=1)), release.replace_file, []

    def slowly(*args: object) -> None:
        time.sleep(0.2)  # in which the other one reads
        write(*args)

    def ask() -> None:
        try:
            answers.append(check_question(limited, "train"))
        except RulesError:
            answers.append("refused")

    monkeypatch.setattr(release, "replace_file", slowly)
    runs = [threading.Thread(target=ask) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(map(str, answers)) == ["None", "refused"]


PATIENTS = Rules(patient_noise=1.5, patient_clip=1.0)


@pytest.mark.parametrize(
    ("noise", "clip", "reason"),
    [
        (1.5, 1.0, ""),
        (1.49, 1.0, "patient_noise must be at least 1.5 at this site, got 1.49"),
        (2.0, 1.1, "patient_clip must be at most 1 at this site, got 1.1"),
        (2.0, None, "privacy must be patient_dp at this site, by the rules of its operator"),
    ],
)
def test_a_model_leaves_only_with_the_noise_for_patients_that_the_operator_demands(
    noise: float, clip: float | None, reason: str
) -> None:
    question = training.Instruction(model(0.0), patient_clip=clip, patient_noise=noise)
    answer = training.TrainAnswer(0, model(1.0), 20, np.zeros(1))
    assert PATIENTS.unprotected(None if clip is None else noise, clip) == (reason or None)
    if not reason:
        assert released(answer, question, rules=PATIENTS, batch=1).num_examples == 20
        return
    with pytest.raises(RulesError, match=f"^{reason}$"):
        released(answer, question, rules=PATIENTS)


def test_with_noise_for_patients_nothing_else_of_them_leaves() -> None:
    start, few = model(0.0), {"rules": PATIENTS}
    measured = evaluation.Evaluation(0, figures(6))
    assert released(measured, evaluation.EvaluateQuestion(start, noise=1.5), **few) is not None
    nothing = description.Description(num_classes=2)
    assert released(nothing, description.DescriptionQuestion("nothing"), **few).num_classes == 2
    for answer, question in (
        (measured, evaluation.EvaluateQuestion(start)),
        (measured, evaluation.EvaluateQuestion(start, noise=1.4)),
        (description.Description.of(np.array([18, 2]), np.array([5, 1])), description.DescriptionQuestion()),
        (description.Description.of(np.array([18, 2]), np.array([5, 1]), "sizes"), None),
        (description.Prototypes(np.ones((2, 2), np.float32), np.array([18, 9])), None),
        (training.Update(0, 20, {}), None),
        (
            training.TrainAnswer(0, start, 20, np.zeros(1), arms={"arm/0": start}),
            training.Instruction(start, patient_clip=1.0, patient_noise=2.0, arms={"arm/0": start}),
        ),
        (
            training.TrainAnswer(0, start, 20, np.zeros(1)),
            training.Instruction(start, patient_clip=1.0, patient_noise=2.0, stays="ditto"),
        ),
    ):
        with pytest.raises(RulesError, match="at this site"):
            released(answer, question, **few)


@pytest.mark.parametrize("name", ["patient_clip", "patient_epsilon"])
def test_what_limits_patients_needs_their_noise(name: str) -> None:
    with pytest.raises(ValueError, match=f"^site.toml: {name} needs a patient_noise, got 1.0"):
        Rules(**{name: 1.0})


def test_a_site_keeps_account_of_what_its_patients_spend_in_all_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("FEDCLUST_ACCOUNTS")
    monkeypatch.setenv("HOME", str(tmp_path))
    # One step of noise 4 and one figure of noise 4 are a release of 4 / √2; two and one would be of 4 / √3.
    allowed = epsilon_of([(4 / 2**0.5, 1)], 1e-5) + 1e-6
    rules = Rules(patient_noise=1.0, patient_epsilon=allowed)
    start = model(0.0)
    train = training.Instruction(start, patient_clip=1.0, patient_noise=4.0)
    measure = evaluation.EvaluateQuestion(start, noise=4.0)
    limited = node(rules)
    limited.trainer.training.steps = 1
    charge(limited, [description.DescriptionQuestion("nothing"), description.EncoderQuestion()])
    for refused in (
        replace(measure, noise=None),
        evaluation.PredictionsQuestion(start),
        SimpleNamespace(kind="query.any"),  # an error would say whether a row makes it fail
        training.Instruction(start),
        training.UpdateQuestion(start, 1),
        replace(train, patient_noise=0.9),
        replace(train, stays="ditto"),
        replace(train, arms={"arm/0": start}),
        replace(train, pooled=(0,)),
    ):
        with pytest.raises(RulesError, match="at this site"):  # before any work, of which something is kept
            charge(limited, [train, refused])
    limited.keeps = ("auto",)  # a layer that trained without noise would be measured
    with pytest.raises(RulesError, match="privacy must be patient_dp at this site"):
        charge(limited, [measure])
    limited.keeps = ()
    with pytest.raises(RulesError, match="^this site's patients spend at most ε = "):
        charge(limited, [train, train, measure])  # of three clients, whose patients may be the same
    charge(limited, [train])
    charge(limited, [measure])  # of another run, for which the first is a test patient
    (account,) = (tmp_path / ".local" / "state" / "fedclust").glob("patients-*.json")
    assert cache_root() not in account.parents  # which may be deleted
    said = "in all runs, by the rules of its operator\nthe site's account$"
    for more in (train, measure):
        with pytest.raises(RulesError, match=said):
            charge(limited, [more])
    limited.config["name"] = "south"
    charge(limited, [train])
