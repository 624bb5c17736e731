"""What messages before round 1 refuse."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedclust.data.input_encoders import encoder_from
from fedclust.data.sites.agreement import Column, Moments, Statement
from fedclust.messages import description
from fedclust.messages.codec import BadReply, Reading, decode, encode
from tests.fedclust.messages.test_codec import COUNTS, OTHERS, STATEMENT

NODE = Reading(sender="a node's reply")


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (description.Hosted((0, 1), 2, steps=(7,)), r"steps must be 2 numbers, got \[7\]"),
        (description.Hosted((0, 1), 2, steps=(7, -1)), r"steps must be finite numbers in \[0, "),
        (description.Hosted((0, 2), 2), r"clients must be in \[0, 1\]"),
        (description.Hosted((0, 0), 2), "clients must name each client once"),
        (description.Hosted((0,), 2, "a\nb"), "name must be printable"),
        (description.Description.of(COUNTS, OTHERS, name="x" * 1001), "name must be at most 1000 characters"),
    ],
)
def test_messages_that_cannot_be(message: Any, rule: str) -> None:
    with pytest.raises(BadReply, match=f"^a node's reply: .*{rule}"):
        decode(type(message), encode(message), NODE)


def test_names_in_a_description_cannot_write_to_a_terminal() -> None:
    names = description.Names(("well", "ill\x1b[2J"), {"a\r\nb": 3})
    told = encode(description.Description.of(COUNTS, OTHERS, name="ward\x9b31m 7", names=names))
    read = decode(description.Description, told, Reading(7, asked=description.DescriptionQuestion()))
    assert (read.name, read.names.classes) == ("ward 31m 7", ("well", "ill [2J"))
    assert read.names.left_out == {"a  b": 3}


@pytest.mark.parametrize("cls", [description.Registered, description.Stated])
def test_a_node_that_says_nothing_has_not_answered(cls: type) -> None:
    for content in (RecordDict(), RecordDict({"registration": ConfigRecord(), "statements": ConfigRecord()})):
        with pytest.raises(BadReply, match="a node's reply: "):
            description.read_from_node(cls, content)
    (name,) = encode(cls())
    with pytest.raises(BadReply, match="no '.*' in reply"):
        description.read_from_node(cls, RecordDict({name: ConfigRecord()}))


def test_values_of_a_column_are_as_the_site_s_rows_have_them() -> None:
    values = ("a\tb", "a b", "a~", "a\x7f")
    column = Column("category", Moments(3), values, (True,) * 4)
    stated = description.Stated({"n": Statement(("x\ny", "x y"), {"c\x85": column}, (), {})})
    assert description.read_from_node(description.Stated, encode(stated)) == stated
    (body,) = encode(stated)["statements"]["bodies"]
    assert json.loads(body)["columns"]["c\x85"]["values"] == list(values)


def test_a_statement_that_makes_no_sense_is_refused_in_a_line() -> None:
    column = Column("number", Moments(3), (), ())
    content = encode(description.Stated({"n": Statement(("a", "b"), {"c": column}, (), {})}))
    (body,) = content["statements"]["bodies"]
    for bad in (body.replace('"mean": 0.0', f'"mean": {10**400}'), json.dumps({"k" * 10**6: 1})):
        assert bad != body
        content["statements"]["bodies"] = [bad]
        with pytest.raises(BadReply, match="a statement must describe a site's data") as error:
            description.read_from_node(description.Stated, content)
        assert len(str(error.value)) < 400


@pytest.mark.parametrize("changed", [{"labels": ["a", "\ud800"]}, {"warnings": ["\ud800"]}, {"\ud800": 1}])
def test_a_text_that_no_file_can_hold_is_refused(changed: dict[str, Any]) -> None:
    content = encode(description.Stated({"n": STATEMENT}))
    (body,) = content["statements"]["bodies"]
    content["statements"]["bodies"] = [json.dumps({**json.loads(body), **changed})]
    with pytest.raises(BadReply, match="UTF-8|must describe") as error:
        description.read_from_node(description.Stated, content)
    assert str(error.value).encode()  # the reason is written and printed


@pytest.mark.parametrize(("name", "refused"), [("dose", False), ("\ud800", True)])
def test_an_encoder_that_no_file_can_hold_is_refused(name: str, refused: bool) -> None:
    numbers = [{"name": name, "fill": 0.0, "mean": 0.0, "scale": 1.0}]
    table = encoder_from({"kind": "table", "numbers": numbers, "categories": [], "encoding": "onehot"})
    content = encode(description.Encoder(table))
    with pytest.raises(BadReply, match="surrogates") if refused else nullcontext():
        assert decode(description.Encoder, content, Reading()).encoder == table
