import numpy as np
import pandas as pd

from fedclust.federation import Measured
from fedclust.federation.personal import Layered
from fedclust.personal.layers import Auto
from fedclust.results.personal import personal_figure, personal_line, personal_summary, personal_table

LAYERED = Layered(
    measured={
        "prior": Measured({"accuracy": np.array([0.5, 0.75])}),
        "finetune": Measured({"accuracy": np.array([0.25, 1.0])}),
        "auto": Measured({"accuracy": np.array([0.25, 1.0])}),
    },
    used={
        "prior": np.array(["prior", "prior"]),
        "finetune": np.array(["none", "finetune"]),
        "auto": np.array(["none", "finetune"]),
    },
    losses={
        "none": np.array([0.5, 0.5]),
        "prior": np.array([0.6, 0.4]),
        "finetune": np.array([np.nan, 0.3]),
    },
    shifts=np.array([[0.0, 1.0], [1.0, 0.0]]),
    failures={0: "finetune: non-finite loss at step 3"},
)


def _summary(measured: Measured) -> dict[str, object]:
    return {"mean_client_accuracy": float(measured.figures["accuracy"].mean()), "top_two": 0.5, "seed": 3}


def test_what_stands_in_a_summary() -> None:
    none = {"mean_client_accuracy": 0.375, "top_two": 0.25, "seed": 3}
    found = personal_summary(Auto(), LAYERED, none, _summary, ("top_two",))
    assert found["choice"] == "auto"
    means = {choice: each["mean_client_accuracy"] for choice, each in found["figures"].items()}
    assert means == {"none": 0.375, "prior": 0.625, "finetune": 0.625, "auto": 0.625}
    assert list(means) == ["none", "prior", "finetune", "auto"]
    assert found["figures"]["none"]["top_two"] == 0.25
    assert "seed" not in found["figures"]["prior"]
    assert found["clients"] == {"none": 1, "prior": 0, "finetune": 1}
    assert found["failures"] == [{"client": 0, "reason": "finetune: non-finite loss at step 3"}]
    assert personal_figure({"personal": found}, "mean_client_accuracy") == 0.625
    assert personal_line({"personal": found}) == (
        "Personal layer: auto (clients: 1 none, 1 finetune); "
        "failed: client 0: finetune: non-finite loss at step 3"
    )


def test_a_run_without_a_layer_has_nothing_to_say() -> None:
    assert personal_figure({"mean_client_accuracy": 0.5}, "mean_client_accuracy") is None
    assert personal_line({}) is None


def test_columns_of_the_clients() -> None:
    table = personal_table(pd.DataFrame({"client": [0, 1]}), Auto(), LAYERED)
    assert table["personal"].tolist() == ["none", "finetune"]
    assert table["personal_accuracy"].tolist() == [0.25, 1.0]
    assert table["accuracy_prior"].tolist() == [0.5, 0.75]
    # Who could not fine-tune has no accuracy of it, though its figures under finetune are those without.
    assert np.isnan(table["accuracy_finetune"][0])
    assert table["accuracy_finetune"][1] == 1.0
    assert np.isnan(table["validation_loss_finetune"][0])
    assert table["prior_shift"].tolist() == [[0.0, 1.0], [1.0, 0.0]]
