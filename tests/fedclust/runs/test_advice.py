"""What is advised, and asking real clients for it."""

import numpy as np
import pytest

from fedclust.federation import ClientGrid, Federation
from fedclust.messages.models import from_state
from fedclust.models import construction
from fedclust.runs.advice import Seen, advise, agreement_text, look, summarise
from fedclust.runs.shifts import Looks, Shift, agreement
from fedclust.settings.composition import compose, plain
from tests.strategies.helpers import nodes_of

HALVES = np.repeat([0, 1], 3)
ONE = np.zeros(6, dtype=np.int64)
OTHER = np.array([0, 1, 0, 1, 0, 1])


def _shift(kind: str, seen: bool) -> Shift:
    return Shift(kind, seen, 0.5 if seen else 0.0, 0.01, "evidence")


def _seen(label=False, feature=False, concept=False, looks=ONE, labels=ONE) -> Seen:
    feature_shift, concept_shift = _shift("feature", feature), _shift("concept", concept)
    shifts = _shift("label", label), _shift("quantity", False), feature_shift, concept_shift
    seen = Looks(feature_shift, concept_shift, looks)
    return Seen(shifts, seen, None, labels, None, np.zeros(0, dtype=np.int64))


@pytest.mark.parametrize(
    ("seen", "grouped", "assignment", "strategy", "personal"),
    [
        (_seen(), False, ONE, "fedavg", "none"),
        (_seen(label=True), False, ONE, "fedavg", "prior"),
        (_seen(feature=True), False, ONE, "fedavg", "auto"),
        (_seen(concept=True), False, ONE, "auto", "none"),  # not one model against its own evidence
        (_seen(feature=True, looks=HALVES), True, HALVES, "fmcl", "none"),
        (_seen(concept=True, looks=HALVES), True, 1 - HALVES, "fmcl", "none"),  # numbers are only names
        (_seen(label=True, labels=HALVES), True, HALVES, "clust_psi_pfl", "prior"),
        (_seen(), True, HALVES, "auto", "none"),
        (_seen(feature=True, looks=OTHER, labels=OTHER), True, HALVES, "auto", "none"),
    ],
)
def test_what_is_advised(seen, grouped, assignment, strategy, personal) -> None:
    advice = advise(seen, {"grouped": grouped}, assignment)
    assert (advice.strategy, advice.personal) == (strategy, personal)
    expected = [f"strategy={strategy}", *([f"personal={personal}"] if personal != "none" else [])]
    assert advice.overrides == expected
    assert summarise(seen, advice)["advice"]["overrides"] == expected


def test_a_handful_of_sites_choose_for_themselves() -> None:
    verdict = {"grouped": False, "text": "Train one model for all: no site gains by leaving it"}
    advice = advise(_seen(concept=True, looks=HALVES), verdict, ONE, [{"client": 0}])
    assert advice.strategy == "auto"
    assert advice.reason.endswith(verdict["text"])


def test_prototypes_that_could_not_be_had_do_not_decide() -> None:
    seen = _seen()
    without = Seen(seen.shifts, None, None, seen.label_groups, None, seen.answered)
    assert advise(without, {"grouped": True}, HALVES).strategy == "auto"
    assert agreement_text(without) == "not measured: fewer than two clients sent updates"


def test_agreement_in_words() -> None:
    seen = _seen()
    told = agreement([[1, 0], [0, 1]], [[1, 0], [0, 1]])
    words = agreement_text(Seen(seen.shifts, None, None, ONE, told, seen.answered))
    assert words.startswith("two clients' updates agree 0.00 times as much as two updates of one client")
    nothing = agreement(np.eye(4)[:2], np.eye(4)[2:])
    words = agreement_text(Seen(seen.shifts, None, None, ONE, nothing, seen.answered))
    assert "those of two clients cannot be compared" in words


def _look(*overrides: str) -> Seen:
    config = compose(["strategy=fedavg", *overrides])
    grid = ClientGrid(nodes_of(config))
    grid.connect()
    model = construction.build(plain(config.model), config.seed)
    return look(Federation(grid), from_state(model.state_dict()), 1, config.seed)


@pytest.mark.parametrize(
    ("overrides", "kinds"),
    [
        (["partition=conventions"], ["concept"]),
        (["partition=iid"], []),
        (["partition=dirichlet", "partition.alpha=0.1"], ["label", "quantity"]),
        (["partition=quantity_skew"], ["quantity"]),
    ],
)
def test_the_kinds_of_shift_on_digits(overrides: list[str], kinds: list[str]) -> None:
    seen = _look("partition.num_clients=20", *overrides, *_groups(overrides))
    assert [shift.kind for shift in seen.shifts if shift.seen] == kinds
    assert len(seen.answered) == 20
    assert seen.updates.own > 0.3


def _groups(overrides: list[str]) -> list[str]:
    return ["partition.groups=[12,8]"] if "partition=conventions" in overrides else []
