import numpy as np
import pandas as pd
import pytest

from fedclust.data.targets import Amounts, Times
from fedclust.federation import Measured
from fedclust.federation.questions import Layered
from fedclust.metrics import outcomes
from fedclust.personal.layers import Auto
from fedclust.results import client_table, summarise, summary as module


@pytest.mark.parametrize(
    ("keep", "clients", "left_out"),
    [
        ("auto", 6, []),
        ("auto", module.MOST_CLIENTS, []),
        ("auto", module.MOST_CLIENTS + 1, ["affinity", "scores"]),
        (True, module.MOST_CLIENTS + 1, []),
        (False, 6, ["affinity", "scores"]),
    ],
)
def test_matrices_of_many_clients_are_left_out(keep: bool | str, clients: int, left_out: list[str]) -> None:
    shapes = {"affinity": (clients, clients), "scores": (clients, clients, 2), "losses": (clients, 3)}
    arrays = {name: np.zeros(shape) for name, shape in shapes.items()} | {"names": np.array(["a", "b"])}
    kept, found = module.without_large(arrays, keep, clients)
    assert found == left_out
    assert kept.keys() == arrays.keys() - set(left_out)


def counted(labels, predicted, num_classes):
    return outcomes(np.array(labels), np.array(predicted), np.eye(num_classes)[predicted] * 0.98 + 0.01)


def test_columns_of_three_classes_by_hand() -> None:
    clients = {0: counted([0, 0, 1, 2], [0, 1, 1, 1], 3), 2: counted([1], [1], 3)}
    found = module.client_decisions(clients, 3)
    # Client 0: sensitivities 1/2, 1, 0; specificities 2/2, 1/3, 3/3.
    assert found["sensitivity"][0] == pytest.approx(0.5)
    assert found["specificity"][0] == pytest.approx(7 / 9)
    assert found["confusion"] == [[1, 1, 0, 0, 1, 0, 0, 1, 0], None, [0, 0, 0, 0, 1, 0, 0, 0, 0]]
    assert 0 <= found["accuracy_low"][0] < 0.5 < found["accuracy_high"][0] <= 1
    assert np.isnan(found["accuracy_low"][1])
    assert found["accuracy_low"][2] == pytest.approx(1 / (1 + 1.959964**2))  # 1 of 1, by Wilson
    assert found["accuracy_high"][2] == 1
    assert "sensitivity_low" not in found
    assert module.client_decisions({}, 3) == {}


def test_the_summary_and_its_lines_by_hand() -> None:
    clients = {0: counted([0, 0, 1, 2], [0, 1, 1, 1], 3), 1: counted([2, 2], [2, 0], 3)}
    found = module.summarise_decisions(clients, np.array([1, 0]), ("a", "b", "c"))
    assert found["confusion"] == [[1, 1, 0], [0, 1, 0], [1, 1, 1]]
    assert [each["sensitivity"] for each in found["classes"]] == pytest.approx([1 / 2, 1, 1 / 3])
    assert [each["specificity"] for each in found["classes"]] == pytest.approx([3 / 4, 3 / 5, 1])
    assert [each["cluster"] for each in found["clusters"]] == [0, 1]
    assert found["clusters"][0]["confusion"] == [[0, 0, 0], [0, 0, 0], [1, 0, 1]]
    assert found["positive"] is None
    first, second = module.decision_lines({"decisions": found})
    assert first == "least sensitivity: c, 0.333 [0.061, 0.792], of 3 test rows"
    assert second.startswith("Brier score ")
    assert module.summarise_decisions({}, np.array([0]), ()) is None
    assert module.decision_lines({}) == []


@pytest.mark.parametrize(("brier", "lost"), [(0.5, True), (0.491, True), (0.489, False), (np.nan, True)])
def test_models_that_predict_no_better_than_class_shares(brier: float, lost: bool) -> None:
    # Two classes, one training row each: shares of 1/2 have a Brier score of 1/4 + 1/4 on every row. Nobody
    # counts that has no test rows; of ten clients, the best and the worst do not.
    none = np.zeros(0, dtype=int)
    here, nobody = counted([0, 1], [0, 1], 2), outcomes(none, none, np.zeros((0, 2)))
    clients = pd.DataFrame({"label_counts": [[1, 1]] * 11, "brier": [0.0, 2.0, *[brier] * 8, 0.0]})
    clients["balanced_accuracy"] = 0.5
    of_rows = dict.fromkeys(range(10), here) | {10: nobody}
    assert module.collapsed(clients, of_rows) is lost
    # Balanced accuracy of guessing is 1/2, and of 20 coins up to 1/√20 = 0.22 more.
    assert module.collapsed(clients.assign(balanced_accuracy=0.72), of_rows) is lost
    assert not module.collapsed(clients.assign(balanced_accuracy=0.73), of_rows)
    assert not module.collapsed(clients, {10: nobody})
    assert not module.collapsed(clients.drop(columns="label_counts"), of_rows)
    # Of training rows 3 : 1 and test rows 1 : 1, shares have the mean of 2/16 and 18/16: 0.625.
    skewed = pd.DataFrame({"label_counts": [[3, 1]], "brier": [0.62], "balanced_accuracy": [0.5]})
    assert module.collapsed(skewed, {0: here})
    assert not module.collapsed(skewed.assign(brier=0.61), {0: here})


def test_what_kept_a_run_from_training() -> None:
    failed = [{"client": 3, "phase": phase, "reason": "x"} for phase in ("train", "evaluate")]
    rounds = [{"failures": failed}, {"failures": failed[:1], "went_back": [{"cluster": 0}]}, {"failures": []}]
    assert module.trouble(rounds) == "client 3 failed in 2, it went back to an earlier model in 1 of 3 rounds"
    assert module.trouble(rounds[2:]) == module.trouble([]) == ""


CHOSEN = np.array(["none", "finetune"])
LAYERED = Layered(
    measured={
        name: Measured({"accuracy": np.array(values)})
        for name, values in (("prior", [0.5, 0.75]), ("finetune", [0.25, 1.0]), ("auto", [0.25, 1.0]))
    },
    used={"prior": np.array(["prior", "prior"]), "finetune": CHOSEN, "auto": CHOSEN},
    losses={"none": np.array([0.5, 0.5]), "prior": np.array([0.6, 0.4]), "finetune": np.array([np.nan, 0.3])},
    shifts=np.array([[0.0, 1.0], [1.0, 0.0]]),
    failures={0: "finetune: non-finite loss at step 3"},
)


def _summary(measured: Measured) -> dict[str, object]:
    return {"mean_client_accuracy": float(measured.figures["accuracy"].mean()), "top_two": 0.5, "seed": 3}


def test_what_stands_in_a_summary() -> None:
    none = {"mean_client_accuracy": 0.375, "top_two": 0.25, "seed": 3}
    found = module.personal_summary(Auto(), LAYERED, none, _summary, ("top_two",))
    assert found["choice"] == "auto"
    means = {choice: each["mean_client_accuracy"] for choice, each in found["figures"].items()}
    assert means == {"none": 0.375, "prior": 0.625, "finetune": 0.625, "auto": 0.625}
    assert list(means) == ["none", "prior", "finetune", "auto"]
    assert found["figures"]["none"]["top_two"] == 0.25
    assert "seed" not in found["figures"]["prior"]
    assert found["clients"] == {"none": 1, "prior": 0, "finetune": 1}
    assert found["failures"] == [{"client": 0, "reason": "finetune: non-finite loss at step 3"}]
    assert module.personal_line({"personal": found}) == (
        "Personal layer: auto (clients: 1 none, 1 finetune); "
        "failed: client 0: finetune: non-finite loss at step 3"
    )
    assert module.personal_line({}) is None


def test_columns_of_the_clients() -> None:
    without = pd.DataFrame({"accuracy": [0.5, 0.75], "brier": [0.4, 0.3], "macro_f1": [0.1, 0.2]})
    table = module.personal_table(pd.DataFrame({"client": [0, 1]}), without, Auto(), LAYERED)
    assert table["personal"].tolist() == ["none", "finetune"]
    assert table["accuracy_none"].tolist() == [0.5, 0.75]
    assert table["brier_none"].tolist() == [0.4, 0.3]
    assert "macro_f1_none" not in table
    assert table["accuracy_prior"].tolist() == [0.5, 0.75]
    # Who could not fine-tune has no accuracy of it, though its figures under finetune are those without.
    assert np.isnan(table["accuracy_finetune"][0])
    assert table["accuracy_finetune"][1] == 1.0
    assert np.isnan(table["validation_brier_finetune"][0])
    assert table["prior_shift"].tolist() == [[0.0, 1.0], [1.0, 0.0]]


# As listed on the architecture page, "Results of a run".
KEYS = [
    "strategy", "seed", "rounds", "num_clients", "num_clusters", "cluster_sizes", "assignment",
    "global_accuracy", "mean_client_accuracy", "balanced_accuracy", "share_weighted_accuracy", "macro_f1",
    "auc", "pooled_macro_f1", "pooled_auc", "ad", "sdad", "was", "wadb", "rand_index", "adjusted_rand_index",
    "weighted_psi", "seconds", "failed_replies", "bytes_down", "bytes_up", "bytes_down_unbundled",
    "bytes_up_unbundled", "compare",
]  # fmt: skip


def table(accuracy, assignment: list[int], groups: list[int] | None, **columns: object) -> pd.DataFrame:
    clients = len(accuracy)
    evaluation = [
        {"loss": 1.0, "accuracy": value, "balanced-accuracy": value / 2, "macro-f1": value / 4, "auc": np.nan}
        for value in accuracy
    ]
    counts = [[4, 0], [0, 4], [2, 2], [3, 1]][:clients]
    return client_table(
        assignment, [4] * clients, range(1, clients + 1), counts, evaluation, groups, **columns
    )


def figures(clients: pd.DataFrame, **more: object) -> dict:
    return summarise(clients, strategy="fedgwc", seed=3, rounds=10, seconds=1.5, **more)


def test_the_keys_others_read() -> None:
    assert list(figures(table([1.0, 0.5, 0.5, 0.0], [0, 0, 1, 1], [0, 0, 1, 1]))) == KEYS


def test_figures_worked_out_by_hand() -> None:
    summary = figures(table([1.0, 0.5, 0.5, 0.0], [0, 0, 0, 2], [5, 5, 6, 6]), failed_replies=4)
    assert summary["num_clients"] == 4
    assert summary["num_clusters"] == 2
    assert summary["cluster_sizes"] == [3, 0, 1]
    assert summary["assignment"] == [0, 0, 0, 2]
    # Test sizes 1, 2, 3, 4: (1*1 + 2*0.5 + 3*0.5 + 4*0) / 10.
    assert summary["global_accuracy"] == pytest.approx(0.35)
    assert summary["mean_client_accuracy"] == pytest.approx(0.5)
    assert summary["balanced_accuracy"] == pytest.approx(0.25)
    assert summary["macro_f1"] == pytest.approx(0.125)
    assert summary["auc"] is None
    # Distances from 1: 0, 0.5, 0.5, 1; mean 0.5, squares of what is left 0.25, 0, 0, 0.25.
    assert summary["ad"] == pytest.approx(0.5)
    assert summary["sdad"] == pytest.approx(np.sqrt(0.125))
    # Pairs 01 (together), 03 and 13 (apart) agree; 23 only in the groups, 02 and 12 only in clusters.
    assert summary["rand_index"] == pytest.approx(3 / 6)
    # Pairs together: 3 among clusters, 2 among groups, 1 in both, of 6; expected 3·2 / 6 = 1: none is beyond.
    assert summary["adjusted_rand_index"] == pytest.approx(0.0)
    assert summary["failed_replies"] == 4


def test_without_a_known_grouping_or_a_second_cluster() -> None:
    summary = figures(table([1.0, 0.5], [0, 0], None))
    for key in ("rand_index", "adjusted_rand_index", "was", "wadb"):
        assert summary[key] is None


def test_figures_from_counts_of_all_test_rows() -> None:
    # Both clients have two test rows; the third did not answer. Client 0: labels 0 1, predicted 0 0;
    # client 1: labels 0 1, predicted 1 1.
    counted = {
        0: outcomes(np.array([0, 1]), np.array([0, 0]), np.array([[0.9, 0.1], [0.6, 0.4]])),
        1: outcomes(np.array([0, 1]), np.array([1, 1]), np.array([[0.3, 0.7], [0.2, 0.8]])),
    }
    label_counts = [[9, 1], [1, 1], [1, 3]]
    clients = client_table([0] * 3, [10, 2, 4], [2] * 3, label_counts, [None] * 3, outcomes=counted)
    # Shares 0.9 and 0.1, one row of each class, the first right; then 0.5 and 0.5, the second right.
    np.testing.assert_allclose(clients["share_weighted_accuracy"], [0.9, 0.5, np.nan])
    summary = figures(clients, outcomes=counted.values())
    assert summary["share_weighted_accuracy"] == pytest.approx(0.7)
    # Two rows of either class, each predicted twice, one of them right: 2·1 / (2 + 2).
    assert summary["pooled_macro_f1"] == pytest.approx(0.5)
    # Scores of class 1: 0.1 and 0.7 against 0.4 and 0.8; only 0.4 > 0.7 fails. The same for class 0.
    assert summary["pooled_auc"] == pytest.approx(3 / 4)


def test_bytes_of_the_run() -> None:
    traffic = {"bytes_down": 5, "bytes_up": 6, "bytes_down_unbundled": 7, "bytes_up_unbundled": 8}
    summary = figures(table([1.0], [0], None), traffic=traffic)
    assert {key: summary[key] for key in traffic} == traffic
    assert figures(table([1.0], [0], None))["bytes_down"] is None


def test_failures_bear_the_client_s_name() -> None:
    failures = [{"client": 1, "phase": "train", "reason": "no reply"}]
    assert module.named(failures, ("Mercy", "St. Anna")) == [
        {"client": 1, "name": "St. Anna", "phase": "train", "reason": "no reply"}
    ]
    assert module.named(failures, None) == failures


def test_clients_without_an_answer_are_left_out_of_the_means() -> None:
    summary = figures(table([1.0, np.nan, 0.5, np.nan], [0, 0, 0, 0], None))
    # Test sizes 1 and 3 remain: (1*1 + 3*0.5) / 4.
    found = [summary[key] for key in ("global_accuracy", "mean_client_accuracy", "ad")]
    assert found == pytest.approx([0.625, 0.75, 0.25])
    nobody = figures(table([np.nan, np.nan], [0, 0], None))
    for key in ("global_accuracy", "mean_client_accuracy", "balanced_accuracy", "macro_f1", "ad", "sdad"):
        assert nobody[key] is None


def test_details_follow_the_common_keys() -> None:
    summary = figures(table([1.0], [0], None), silhouette=0.5)
    assert list(summary) == [*KEYS, "silhouette"]
    with pytest.raises(ValueError, match=r"details must not use the common keys, got \['auc'\]"):
        figures(table([1.0], [0], None), auc=1.0)


def test_client_table_columns() -> None:
    clients = table([1.0, 0.5], [1, 0], None, gaussian_weight=[0.2, 0.3])
    assert list(clients.columns) == [
        "client", "cluster", "group", "num_train", "num_test", "label_counts", "loss", "accuracy",
        "balanced_accuracy", "macro_f1", "auc", "share_weighted_accuracy", "gaussian_weight",
    ]  # fmt: skip
    assert clients["group"].isna().all()
    assert clients["label_counts"].tolist() == [[4, 0], [0, 4]]
    assert clients["balanced_accuracy"].tolist() == [0.5, 0.25]


def test_a_silent_client_and_names() -> None:
    names = ["Mercy", "St. Anna"]
    clients = client_table([0, 0], [1, 1], [1, 1], [[1], [1]], [{"accuracy": 1.0}, None], [0, 1], names)
    np.testing.assert_array_equal(clients["accuracy"], [1.0, np.nan])
    assert clients["group"].tolist() == [0, 1]
    assert list(clients.columns[:3]) == ["client", "name", "cluster"]
    assert clients["name"].tolist() == names


def test_an_entry_per_client_and_at_least_one() -> None:
    cases = ("num_test", (2, 1, 2), None), ("loss", (2, 2, 1), None), ("name", (2, 2, 2), ["Mercy"])
    for name, lengths, given in cases:
        trained, tested, answers = lengths
        with pytest.raises(ValueError, match=f"{name} must have an entry per client, 2, got 1"):
            client_table([0, 0], [1] * trained, [1] * tested, [[1], [1]], [None] * answers, names=given)
    with pytest.raises(ValueError, match="clients must have at least one row"):
        figures(table([], [], None))


@pytest.mark.parametrize(
    ("target", "name", "values", "lost"),
    [
        (Amounts(0.0, 10.0, (5.0,)), "r2", [0.02, -3.0, np.nan], True),  # mean of 0.02 and −1
        (Amounts(0.0, 10.0, (5.0,)), "r2", [0.06, 0.0, np.nan], False),  # mean 0.03
        (Times((10.0,), 90.0), "concordance", [0.5, 0.5, 0.55], True),  # mean 0.017 above one half
        (Times((10.0,), 90.0), "concordance", [0.53, 0.53, 0.53], False),
        (Times((10.0,), 90.0), "concordance", [np.nan] * 3, False),  # nothing is known
    ],
)
def test_amounts_and_times_collapse_by_a_figure_of_their_own(target, name, values, lost) -> None:
    tested = [900, 900, 900]
    clients = pd.DataFrame({"num_test": tested, name: values})
    assert module.collapsed(clients, {}, target) is lost
