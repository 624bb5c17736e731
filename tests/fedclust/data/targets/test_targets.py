"""Targets as text, and what all of them have in common."""

import json
import re

import numpy as np
import pytest
import torch

from fedclust.data.targets import CLASSES, KINDS, Amounts, Block, Target, Times, from_text, to_text

AMOUNTS = Amounts.agreed(np.random.default_rng(0).normal(50, 10, 500))
TIMES = Times.agreed(
    np.stack([np.random.default_rng(1).exponential(30, 500), np.tile([1, 1, 0], 167)[:500]], 1)
)


def drawn(target: Target, size: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Draw outputs and values."""
    draws = np.random.default_rng(7)
    outputs = draws.normal(size=(size, target.outputs(4)))
    if target == CLASSES:
        return outputs, draws.integers(0, 4, size)
    if isinstance(target, Amounts):
        return outputs, draws.normal(50, 20, size)
    return outputs, np.stack([draws.exponential(40, size), draws.integers(0, 2, size)], axis=1)


ALL = pytest.mark.parametrize("target", [CLASSES, AMOUNTS, TIMES], ids=[*KINDS])


@ALL
def test_text_brings_a_target_back(target: Target) -> None:
    assert from_text(to_text(target)) == target
    assert (to_text(target) == "") == (target == CLASSES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "ranks"}, "target.kind must be one of classes, amounts, times, got 'ranks'"),
        ({"kind": "amounts", "low": 0.0}, "must have the values edges, error, high, low, unit, got low"),
        (
            {"kind": "amounts", "low": 1.0, "high": 1.0, "edges": []},
            "target.low must be < target.high, got 1 and 1",
        ),
        ({"kind": "amounts", "low": 0.0, "high": 1.0, "edges": [0.5, 0.5]}, "target.edges must increase"),
        ({"kind": "times", "cuts": [], "last": 1.0}, "target.cuts must be at least one time"),
        (
            {"kind": "times", "cuts": [3.0, 2.0], "last": 9.0},
            "target.cuts must be at least one time, increase",
        ),
        (
            {"kind": "times", "cuts": [3.0], "last": 9.0, "base": [0.0]},
            "target.base must be 2 finite numbers",
        ),
    ],
)
def test_text_that_is_no_target(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_text(json.dumps(values))


@pytest.mark.parametrize("kind", [Amounts, Times])
@pytest.mark.parametrize("floor", [1, 2, 5, 20])
def test_sites_agree_on_the_target_of_all_rows(kind: type[Target], floor: int) -> None:
    draws, sites = np.random.default_rng(5), []
    for size, scale in ((150, 20.0), (90, 30.0), (200, 25.0)):
        first = draws.exponential(scale, size)
        events = draws.random(size) < 0.7
        sites.append(first if kind is Amounts else np.stack([first, events], axis=1))
    blocks = [block for values in sites for block in kind.stated(values, floor)]
    assert min(block.rows for block in blocks) >= floor
    found, wanted = kind.from_stated(blocks, unit="days"), kind.agreed(np.concatenate(sites), unit="days")
    ends = [each.edges if kind is Amounts else (*each.cuts, each.last) for each in (found, wanted)]
    assert len(found.bin_names()) == len(wanted.bin_names())
    # Within a tenth of a bin for blocks of up to 20 rows; exact for one or two.
    apart = np.abs(np.subtract(*ends)) / np.minimum(np.diff(ends[1], prepend=0), np.diff(ends[1], append=1e9))
    assert apart.max() < (1e-9 if floor < 3 else 0.3), apart


def test_blocks_of_too_few_rows_stay_at_the_site() -> None:
    rows = np.array([[1.0, 0], [2, 0], [3, 0], [4, 1], [9, 1]])
    assert Times.stated(rows, 3) == (Block(3, (2.0, 0.0), np.sqrt(2 / 3)),)
    assert Times.stated(rows, 4) == ()
    with pytest.raises(ValueError, match="no site has enough rows"):
        Times.from_stated(())


def test_a_site_that_claims_to_hold_very_many_rows_takes_no_memory() -> None:
    claimed = Amounts.from_stated([Block(2**40, (5.0,), 1.0), Block(10, (90.0,))])
    assert 3 < claimed.low < claimed.high < 7


@ALL
def test_bins_are_named(target: Target) -> None:
    _, values = drawn(target)
    bins, names = target.bins(values), target.bin_names()
    assert bins.shape == (len(values),)
    assert target == CLASSES or (len({*names}) == len(names) and 0 <= bins.min() <= bins.max() < len(names))


@ALL
def test_scores_are_bounded_and_hits_are_shares(target: Target) -> None:
    outputs, values = drawn(target)
    for scale in (0.0, 1.0, 100.0):
        scores, hits = target.scores(scale * outputs, values), target.hits(scale * outputs, values)
        assert scores.shape == hits.shape == (len(values),)
        assert 0 <= scores.min() <= scores.max() <= 2
        assert 0 <= hits.min() <= hits.max() <= 1


@ALL
def test_a_correction_is_added_to_outputs(target: Target) -> None:
    outputs, values = drawn(target)
    shift = np.random.default_rng(3).normal(size=outputs.shape[1])
    for score in (target.scores, target.hits):
        np.testing.assert_allclose(score(outputs, values, shift), score(outputs + shift, values))


@ALL
def test_evaluation_of_clients_by_hand(target: Target) -> None:
    outputs, values = drawn(target)
    counts = np.array([15, 0, 25])
    losses = np.arange(40.0)
    kept = [each.numpy() for each in target.kept(torch.from_numpy(outputs), outputs.shape[1], False)]
    first, none, last = target.measured(counts, losses, values, kept, len(target.bin_names()) or 4, False)
    assert np.isnan(none.figures["accuracy"])
    for found, part in ((first, slice(0, 15)), (last, slice(15, 40))):
        hits, bins = target.hits(outputs[part], values[part]), target.bins(values[part])
        by_bin = [hits[bins == each].mean() for each in np.unique(bins)]
        wanted = {
            "num-examples": part.stop - part.start,
            "loss": losses[part].mean(),
            "accuracy": hits.mean(),
            "balanced-accuracy": np.mean(by_bin),
        }
        assert found.figures == pytest.approx(wanted)
        assert found.outcomes is None


@pytest.mark.parametrize("target", [AMOUNTS, TIMES], ids=["amounts", "times"])
def test_its_words_are_not_of_classes(target: Target) -> None:
    words = target.words
    nouns = [name for name, value in vars(type(CLASSES.words)).items() if isinstance(value, str)]
    texts = [getattr(words, name) for name in nouns if not name.startswith("_")]
    texts += [title for _, title in words.columns] + [words.title("mean_client_accuracy")]
    assert not [text for text in texts if re.search("class|label|accurac|probabilit|AUC", text)]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("classes", [0, 3], "targets must be below 3, got 3"),
        ("classes", [0.5], "targets must be class indices, whole numbers >= 0, got 0.5"),
        ("classes", [-1], "targets must be class indices, whole numbers >= 0, got -1"),
        ("amounts", [1.0, np.inf], "targets must be finite as float32, got inf"),
        ("amounts", [1.0, 1e300], "targets must be finite as float32, got inf"),
        ("times", [1.0, 2.0], "targets must be times and events, shape (N, 2), got (2,)"),
        ("times", [[5, 1], [0, 1]], "times must be > 0, got 0"),
        ("times", [[5, 1], [5, 2]], "events must be 1, or 0 for a row that is censored, got 2"),
        ("times", [[np.nan, 1], [5, 1]], "targets must be finite as float32, got nan"),
    ],
)
def test_what_people_give_is_checked(kind: str, values: list, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        KINDS[kind].read(np.array(values), 3)


def test_what_people_give_is_converted() -> None:
    assert KINDS["classes"].read(np.zeros((0,))).tolist() == []
    assert KINDS["amounts"].read(np.array([[1], [1]])).tolist() == [1.0, 1.0]  # all alike at one client
    assert KINDS["times"].read(np.array([[3, 0]])).tolist() == [[3.0, 0.0]]  # nor need an event happen there


@pytest.mark.parametrize("target", [AMOUNTS, TIMES], ids=["amounts", "times"])
def test_errors_of_figures_and_counts_of_rows_as_a_slow_loop_has_them(target: Target) -> None:
    outputs, values = drawn(target)
    number = len(target.bin_names())
    (found,) = target.measured(np.array([40]), np.ones(40), values, [outputs], number, True)
    for name in target.figure_ranges:
        without = [
            target.figures(
                *(each[[row for row in range(40) if row % 10 != left]] for each in (outputs, values))
            )
            for left in range(10)
        ]
        parts = [each[name] for each in without]
        wanted = (9 / 10 * sum((each - sum(parts) / 10) ** 2 for each in parts)) ** 0.5
        least = (1 / 12 / values[:, 1].sum()) ** 0.5 if name == "concordance" else 0.0  # that of chance
        assert found.figures[f"{name}_error"] == pytest.approx(max(wanted, least))
    counted = found.outcomes
    assert counted is not None
    assert counted.sums is not None
    assert counted.confusion is not None
    predicted = target.predictions(torch.from_numpy(outputs), None if target == AMOUNTS else [target.horizon])
    for row, (value, mean) in enumerate(zip(values, predicted.ravel().tolist(), strict=True)):
        if target == AMOUNTS:
            answer, known = int(target.bins([mean])[0]), value
        else:
            answer, known = min(int(mean * number), number - 1), 0.0
        counted.confusion[target.bins(values[[row]])[0], answer] -= 1
        counted.sums[:, answer] -= known, mean, (known - mean) ** 2
    assert not counted.confusion.any()
    np.testing.assert_allclose(counted.sums, 0, atol=1e-6)


@ALL
def test_saved_rows_have_what_is_known_and_what_is_predicted(target: Target) -> None:
    outputs, values = drawn(target)
    names = target.bin_names() or ("a", "b", "c", "d")
    columns, predicted = target.table(torch.from_numpy(outputs), names)
    saved = target.saved(values.astype(float), predicted.numpy(), names)
    known = len(saved) - len(columns)
    np.testing.assert_allclose(np.stack(list(saved.values())[known:], axis=1), predicted)
    assert known == {"classes": 2, "amounts": 1, "times": 2}[target.kind]
    for wrong in (predicted.numpy()[:, :0], np.zeros((40, 2, 3))):
        with pytest.raises(ValueError, match="predictions must be of"):
            target.saved(values.astype(float), wrong, names)


@pytest.mark.parametrize("target", [AMOUNTS, TIMES], ids=["amounts", "times"])
def test_a_diverged_model_has_no_hits(target: Target) -> None:
    outputs, values = drawn(target)
    outputs[3] = np.nan
    (found,) = target.measured(np.array([40]), np.ones(40), values, [outputs], len(target.bin_names()), True)
    assert found.figures["accuracy"] == 0.0
    assert all(np.isnan(found.figures[name]) for name in target.figure_ranges)


@ALL
def test_what_needs_no_inputs_is_best_on_average(target: Target) -> None:
    _, values = drawn(target, 4000)
    best = target.without_inputs(values, 4)
    draws = np.random.default_rng(5)

    def score(outputs: np.ndarray) -> float:
        return float(target.scores(np.tile(outputs, (len(values), 1)), values).mean())

    finite = np.where(np.isfinite(best), best, -30)
    for _ in range(20):
        assert score(finite) < score(finite + draws.normal(0, 0.3, len(best))) + 1e-4


@pytest.mark.parametrize(
    ("labels", "names", "numbered", "unknown"),
    [
        ([1, 2, 0], ["1", "2"], False, "0"),  # of classes 1 and 2, 0 is none, not the first
        ([1, 2, 0], ["1", "2"], True, "0"),
        ([1.0, 0.0], ["sick", "well"], False, "0, 1"),  # whether sick is 1 nobody has said
        ([True, False], ["sick", "well"], False, "0, 1"),
        ([2], ["sick", "well"], True, "2"),
    ],
)
def test_a_number_is_the_place_of_a_class_only_where_the_run_has_named_them(
    labels: list, names: list[str], numbered: bool, unknown: str
) -> None:
    with pytest.raises(ValueError, match=f"^labels must be among {', '.join(names)}, got {unknown}$"):
        CLASSES.coded(labels, names, numbered)


def test_labels_of_a_table_are_found_however_numbers_are_written() -> None:
    written = [np.float32(1), 1.0, "1", True, np.True_, np.int64(1)]
    assert CLASSES.coded(written, ["0", "1"]) == [1] * 6
    assert CLASSES.coded([1, 0.0, "well"], ["sick", "well"], numbered=True) == [1, 0, 1]
