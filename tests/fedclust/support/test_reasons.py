"""What a failure says of itself, in the user's own process and from a deployed node."""

import logging

import pytest

from fedclust.support.reasons import Sendable, about, discreet, is_open, reason_of


def test_a_node_sends_no_text_of_an_error_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("row 3: Jane Doe")
    assert reason_of(error) == "ValueError: row 3: Jane Doe"
    with discreet():
        assert not is_open()
        fixed = "the client's work failed on this node with ValueError, its log has the reason"
        assert reason_of(error) == fixed
        assert reason_of(error, "the encoder") == fixed.replace("the client's work", "the encoder")
        with discreet(False):
            assert is_open()
        assert not is_open()
    assert is_open()
    assert [each.levelno for each in caplog.records] == [logging.ERROR] * 2
    assert "Jane Doe" in caplog.text


@pytest.mark.parametrize("wanted", [True, False])
def test_what_repeats_the_servers_own_words_is_sent(wanted: bool) -> None:
    with discreet(wanted):
        assert reason_of(Sendable("rounds must be >= 1")) == "rounds must be >= 1"


def test_the_innermost_setting_is_named_and_the_context_closed_after_an_error() -> None:
    with pytest.raises(OSError, match="gone") as caught, discreet(), about("data"), about("data.path"):
        raise OSError("gone")
    assert is_open()
    with discreet():
        assert reason_of(caught.value).startswith("data.path failed on this node with OSError")
