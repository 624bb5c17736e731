"""Expected values are worked out by hand from what two or three sites say."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedclust.data.input_encoders import CategoryColumn, NumberColumn
from fedclust.data.sites import agreement
from fedclust.data.sites.agreement import (
    Agreement,
    Column,
    Embedding,
    Moments,
    Pixels,
    Statement,
    Wanted,
    agree,
    unfit_for,
)
from fedclust.data.targets import Block, from_text

_LIKE = "looks like an identifier or a date (its name); leave it out"
_LIKE += ", or give a person's key with partition.group="
TABLE, UNFIT = Wanted(columns=True), Column("number", unfit="its name")


def _number(*values: float) -> Column:
    return Column("number", Moments.of(np.array(values, dtype=float)))


def _category(*values: str, untrained: str = "") -> Column:
    return Column("category", values=values, trained=tuple(value != untrained for value in values))


def _site(labels: tuple[int | str, ...] = ("ill", "well"), **columns: Column) -> Statement:
    return Statement(labels, columns)


def test_mean_and_scale_are_those_of_all_rows() -> None:
    # 1, 3 and 8: mean 4, squared differences 9 + 1 + 16 = 26; a missing value counts as the mean: 26 / 4.
    outcome = agree({"a": _site(x=_number(1, 3, math.nan)), "b": _site(x=_number(8))}, TABLE)
    # Root mean squares √5 and 8; the typical one is √(8√5). 8 is not ten times √5.
    size = pytest.approx(math.sqrt(8 * math.sqrt(5)))
    assert outcome.agreement.numbers == (NumberColumn("x", 4.0, 4.0, math.sqrt(26 / 4), size),)


def test_moments_keep_the_digits_of_large_numbers() -> None:
    # 1.6e9 ± 1: float64 sums of squares, 2.56e18, are multiples of 512 and would lose the variance of 1.
    parts = [np.array([1.6e9 - 1]), np.array([1.6e9 + 1])]
    assert sum(map(Moments.of, parts), Moments()).scale == 1.0


@pytest.mark.parametrize("values", [(), (7.0, 7.0), (0.1, 0.1, 0.1)])
def test_a_column_without_variance_is_not_scaled(values: tuple[float, ...]) -> None:
    assert Moments.of(np.array(values)).scale == 1.0


def test_categories_and_classes_are_the_sorted_union() -> None:
    outcome = agree(
        {
            "b": _site(("well", "dying"), stage=_category("II", "III", untrained="III")),
            "a": _site(("ill", "well"), stage=_category("I", "II")),
            "c": _site(("ill",), stage=Column("empty")),
        },
        TABLE,
    )
    assert outcome.agreement.class_names == ("dying", "ill", "well")
    values = ("(missing)", "I", "II", "III")
    assert outcome.agreement.categories == (CategoryColumn("stage", values, (True, True, True, False)),)
    assert outcome.agreement.input_shape == (4,)


def test_who_lacks_a_column_or_has_another_kind_is_refused_and_the_others_agree() -> None:
    outcome = agree(
        {
            "a": _site(age=_number(1, 2), sex=_category("f", "m")),
            "b": _site(age=_number(3, 4), sex=_category("f")),
            "c": _site(age=_number(5, 9)),
            "d": _site(age=_category("old", "young"), sex=_category("m"), extra=_number(1)),
            "e": _site((0, 1), age=_number(5, 9), sex=_category("f", "x")),
        },
        TABLE,
    )
    assert outcome.refused == {
        "c": "it lacks the columns sex, which most sites have",
        "d": "column age must hold numbers as at most sites, got texts",
        "e": "labels must be texts as at most sites, got numbers",
    }
    assert outcome.agreement.numbers[0].mean == 2.5  # of 1, 2, 3 and 4
    assert outcome.agreement.categories[0].values == ("f", "m")  # x is of a site that is refused
    assert "d: not used, as half of the sites or more lack it: extra" in outcome.cautions


@pytest.mark.parametrize(
    ("settings", "labels", "expected", "names"),
    [
        # A configured list of classes decides the order.
        ({"class_names": ("well", "ill")}, ("ill",), ("well", "ill"), ("well", "ill")),
        ({"class_names": ("well", "ill")}, (0, 1), (0, 1), ("well", "ill")),
        # Class indices keep their place where their number is given.
        ({"num_classes": 4}, (0, 3), (0, 1, 2, 3), ("0", "1", "2", "3")),
        ({}, (0, 3), (0, 3), ("0", "3")),
    ],
)
def test_classes_are_those_configured(settings: dict, labels: tuple, expected: tuple, names: tuple) -> None:
    sites = {"a": _site(labels, x=_number(1, 2)), "b": _site(("dead", "ill"), x=_number(1, 2))}
    outcome = agree(sites if "ill" in labels else {"a": sites["a"]}, Wanted(columns=True, **settings))
    assert (outcome.agreement.labels, outcome.agreement.class_names) == (expected, names)
    refused = {"b": "labels must be among well, ill, got dead"} if "ill" in labels else {}
    assert outcome.refused == refused


@pytest.mark.parametrize(
    ("statements", "wanted", "message"),
    [
        ({"a": _site(x=_number(1, 2))}, Wanted(num_classes=3, columns=True), "num_classes must be 2"),
        ({"a": _site(("ill",), x=_number(1, 2))}, TABLE, "at least 2 different labels, got ill"),
        ({"a": _site(id=UNFIT)}, TABLE, r"got id \(its name\).*ignore=\[id\]"),
        # An identifier at half of the sites: it would not be used, and persons be divided.
        (
            {name: _site(x=_number(1, 2), **{"case": UNFIT} if name < "c" else {}) for name in "abcd"},
            TABLE,
            r"got case \(its name\).*keep=\[case\]', in a deployment .*, or give .*partition.group=case",
        ),
        ({"a": _site(x=_number(1)), "b": _site(y=_number(1))}, TABLE, "must have a column besides the label"),
    ],
)
def test_what_nobody_can_mend_is_an_error(statements, wanted, message) -> None:
    with pytest.raises(ValueError, match=message):
        agree(statements, wanted)


def test_an_identifier_at_one_of_three_sites_refuses_that_site() -> None:
    sites = {name: _site(code=_category("a", "b")) for name in "ab"}
    outcome = agree(
        {**sites, "c": _site(code=Column("category", unfit="30 distinct texts in 30 rows"))}, TABLE
    )
    assert list(outcome.refused) == ["c"]
    assert "30 distinct texts in 30 rows" in outcome.refused["c"]


def test_sites_agree_on_times_and_refuse_what_are_none() -> None:
    blocks = tuple(Block(1, (float(time), float(time % 2))) for time in range(1, 9))
    sites = {
        "east": Statement((), values=blocks[:4]),
        "north": Statement((), values=blocks[4:]),
        "amounts": Statement((), values=(Block(3, (5.0,)),)),
        "classes": Statement((1, 2), values=()),
        "late": Statement((), values=(Block(3, (-5.0, 1.0)),)),
        "coded": Statement((), values=(Block(3, (5.0, 2.0)),)),
    }
    outcome = agree(sites, Wanted(kind="times", chosen={"unit": "days"}, input_shape=(1,)))
    assert set(outcome.refused) == set(sites) - {"east", "north"}
    assert set(outcome.refused.values()) == {"its values must be times, as those of the run"}
    # Events at 1, 3, 5, 7: eighths of them, from 1.75 on.
    target = from_text(outcome.agreement.target)
    assert target.cuts == (1.75, 2.5, 3.25, 4.0, 4.75, 5.5, 6.25)
    assert (target.unit, outcome.agreement.labels) == ("days", ())
    assert outcome.agreement.settings()["dataset.num_classes"] == 16 == len(outcome.agreement.class_names)
    assert Agreement.from_json(outcome.agreement.to_json()) == outcome.agreement
    refused = unfit_for(sites["amounts"], outcome.agreement)
    assert refused == "its values must be times, as those of the run"
    assert unfit_for(sites["east"], outcome.agreement) is None


def test_another_unit_is_said() -> None:
    # Metres where others have centimetres: a hundredth.
    sites = {"a": _site(height=_number(170, 180)), "b": _site(height=_number(160, 171))}
    assert agree(sites, TABLE).cautions == ()
    (caution,) = agree({**sites, "c": _site(height=_number(1.7, 1.8))}, TABLE).cautions
    assert caution.startswith("c: column height may be in another unit: its values are about 1.75")
    # Micrometres: far from the others, and no other is far from most.
    (caution,) = agree({**sites, "c": _site(height=_number(1.7e6, 1.8e6))}, TABLE).cautions
    assert caution.startswith("c: column height may be in another unit: its values are about 1.75e+06")
    # The encoding holds c's root mean square, and the middle one of the three, a's.
    (height,) = agree({**sites, "c": _site(height=_number(1.7e6, 1.8e6))}, TABLE).agreement.numbers
    assert height.sizes == {"c": pytest.approx(math.sqrt((1.7e6**2 + 1.8e6**2) / 2))}
    assert height.size == pytest.approx(math.sqrt((170**2 + 180**2) / 2))


def test_zeros_and_ones_have_no_unit() -> None:
    # Of 1,000 rows 3 are ones at a, all but 3 at b: root mean squares 0.05 and 1.
    sites = {"a": _site(fever=_number(*[1] * 3, *[0] * 997)), "b": _site(fever=_number(*[0] * 3, *[1] * 997))}
    outcome = agree(sites, TABLE)
    assert outcome.cautions == ()
    assert outcome.agreement.numbers[0].size == 0


def test_channels_are_those_of_all_pixels() -> None:
    # Values 0 and 2 at one site, 4 and 6 at the other: mean 3, variance (9 + 1 + 1 + 9) / 4 = 5.
    pixels = {"a": Pixels(2, 2, 4), "b": Pixels(2, 10, 52)}
    sites = {name: Statement(("x", "y"), pixels=(each,)) for name, each in pixels.items()}
    found = agree(sites, Wanted(input_shape=(1, 1, 2))).agreement
    assert found.mean == (3 / 255,)
    assert found.std == pytest.approx((math.sqrt(5) / 255,))
    assert found.settings() == {"dataset.num_classes": 2, "dataset.input_shape": [1, 1, 2]}


def _embedded(fingerprint: str | None) -> Statement:
    return Statement(("x", "y"), embedding=None if fingerprint is None else Embedding(fingerprint, 7))


@pytest.mark.parametrize(("other", "shown"), [("net-2", "net-2"), (None, "none")])
def test_a_site_with_another_encoder_than_most_is_refused(other: str | None, shown: str) -> None:
    sites = {"a": _embedded("net-1"), "b": _embedded(other), "c": _embedded("net-1")}
    outcome = agree(sites, Wanted(input_shape=(5,)))
    assert outcome.refused == {"b": f"its encoder must be net-1 as at most sites, got {shown}"}
    assert outcome.agreement.settings()["features.input_shape"] == [7]
    late = agreement.unfit_for(_embedded(other), outcome.agreement)
    assert late == f"its encoder must be net-1 as in the run, got {shown}"
    assert agreement.unfit_for(_embedded("net-1"), outcome.agreement) is None
    with pytest.raises(ValueError, match=f"sites must have the same encoder, got net-1 at a, {shown} at b"):
        agree({site: sites[site] for site in "ab"}, Wanted(input_shape=(5,)))


@pytest.mark.parametrize(("fingerprint", "dimension"), [("", 1), ("x" * 201, 1), ("a\nb", 1), ("net", 0)])
def test_an_encoder_has_a_printable_name_and_a_size(fingerprint: str, dimension: int) -> None:
    with pytest.raises(ValueError, match="fingerprint must be 1 to 200 printable characters"):
        Embedding(fingerprint, dimension)


def test_words_are_ranked_by_their_counts_in_all_sites() -> None:
    # b: 3 + 2, c: 4, a: 4, and room for two besides padding and unknown; ties go by the alphabet.
    counts = {"x": {"b": 3, "c": 4}, "y": {"a": 4, "b": 2}}
    sites = {name: Statement(("p", "n"), words=words) for name, words in counts.items()}
    found = agree(sites, Wanted(vocabulary_size=4, input_shape=(5,))).agreement
    assert found.words == ("b", "a")


def test_an_agreement_is_the_same_after_it_was_sent() -> None:
    site = replace(_site(x=_number(0.1, 0.7), stage=_category("I")), embedding=Embedding("net", 3))
    found = agree({"a": site}, TABLE).agreement
    assert Agreement.from_json(found.to_json()) == found
    assert Agreement.from_json(found.to_json()).digest() == found.digest()


TREATED = (NumberColumn("dose", 0.0, 0.0, 1.0),), (CategoryColumn("ward", ("a",), (True,)),)
AGREED = Agreement(("no", "yes"), ("no", "yes"), (3,), *TREATED)
DOSE, WARD = Column("number"), Column("category", values=("a", "c"), trained=(True, True))


@pytest.mark.parametrize(
    ("labels", "columns", "reason"),
    [
        (("no", "yes"), {"dose": DOSE, "ward": WARD}, None),  # ward c is new, and no reason
        (("yes",), {"dose": DOSE, "ward": Column("empty"), "more": DOSE}, None),
        (("no", "perhaps"), {"dose": DOSE, "ward": WARD}, "labels must be among no, yes, got perhaps"),
        (("no",), {"ward": WARD}, "it lacks the columns dose, which the run uses"),
        (("no",), {"dose": WARD, "ward": WARD}, "column dose must hold numbers as in the run, got texts"),
        (("no",), {"dose": UNFIT, "ward": WARD}, f"column dose {_LIKE}dose"),
        (("no",), {"dose": DOSE, "ward": WARD, "case": UNFIT}, f"column case {_LIKE}case"),  # unused
    ],
)
def test_a_late_table(labels: tuple, columns: dict, reason: str | None) -> None:
    assert agreement.unfit_for(Statement(labels, columns), AGREED) == reason


@pytest.mark.parametrize(("channels", "reason"), [(3, None), (1, "images must have 3 channels, got 1")])
def test_late_images(channels: int, reason: str | None) -> None:
    colour = Agreement(("a", "b"), ("a", "b"), (3, 8, 8), mean=(0.1,) * 3, std=(0.2,) * 3)
    assert agreement.unfit_for(Statement(("a",), pixels=(Pixels(1, 2, 4),) * channels), colour) == reason


def test_a_column_in_another_unit_is_pointed_out() -> None:
    agreed = Agreement(("a", "b"), ("a", "b"), (1,), (NumberColumn("age", 40.0, 40.0, 30.0, 50.0),))

    def cautions(*ages: float) -> list[str]:
        return agreement.late_units("west", _site(("a",), age=_number(*ages)), agreed)

    assert cautions(10.0, 70.0) == []  # root mean square 50
    assert cautions(480.0, 360.0) == []  # 424 / 50 is less than 10
    sizes = "its values are about 600, those of the training rows 50"
    assert cautions(600.0, 600.0) == [f"west: column age may be in another unit: {sizes}"]
    assert len(cautions(4.0, 4.0)) == 1  # less than a tenth
    assert cautions(0.0, 0.0) == []  # of zeros no unit is known


def test_dates_by_type_are_not_advised_to_be_kept_which_they_cannot() -> None:
    dated = _site(born=Column("category", unfit="its type"), dose=DOSE)
    leave = "^columns must not be identifiers or dates, got born .its type.; leave them out with"
    with pytest.raises(ValueError, match=f"{leave} 'dataset.ignore=.born.', or give a person's key with"):
        agree({"a": dated, "b": dated}, TABLE)
    coded = _site(born=Column("category", unfit="its type"), code=UNFIT)
    with pytest.raises(
        ValueError, match=r"ignore=\[born,code\]' or use them with 'dataset.keep=\[code\]', in a"
    ):
        agree({"a": coded, "b": coded}, TABLE)
