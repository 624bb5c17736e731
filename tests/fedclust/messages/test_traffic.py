"""What questions and answers weigh as messages is counted without making any."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedclust.grids.client_grid import content_bytes
from fedclust.messages.codec import BadReply, Bounds, Reading, decode, encode, passed
from fedclust.messages.training import Instruction, Projected, TrainAnswer
from tests.fedclust.messages.test_codec import ANSWERS


@pytest.mark.parametrize(
    ("question", "answer"), [(question, each) for question, answers in ANSWERS for each in answers]
)
def test_bytes_are_those_of_the_message(question: Any, answer: Any) -> None:
    for message in (question, answer):
        if message is not None:
            assert sum(passed(message)[1].values()) == content_bytes(encode(message))


def _plain(content: Any) -> dict:
    """List a content's entries; arrays as their bytes."""
    return {
        name: {key: getattr(each, "data", each) for key, each in record.items()}
        for name, record in content.items()
    }


@pytest.mark.parametrize(
    ("question", "answer"), [(question, each) for question, answers in ANSWERS for each in answers]
)
def test_an_answer_is_received_as_it_would_be_read(question: Any, answer: Any) -> None:
    at = Reading(getattr(answer, "client", 7), asked=question)
    read = decode(type(answer), encode(answer), at)
    assert _plain(encode(passed(answer, at)[0])) == _plain(encode(read))


def test_what_is_refused_in_a_message_is_refused_without_one() -> None:
    at = Reading(3, 2, Bounds(least_loss=0.0))
    low = TrainAnswer(3, ArrayRecord(), 5, np.array([0.5, -1.0]))
    for way in (passed, lambda answer, at: decode(TrainAnswer, encode(answer), at)):
        with pytest.raises(BadReply, match=r"^client 3, round 2: losses must be finite numbers in \[0.0, "):
            way(low, at)


def test_numbers_have_the_precision_in_which_they_are_sent() -> None:
    at = Reading(3, asked=Instruction(ArrayRecord(), projection_size=1))
    answer = TrainAnswer(3, ArrayRecord(), 5, np.ones(1), projected=Projected(np.array([0.1]), 0.1))
    assert passed(answer, at)[0].projected.values.tolist() == [float(np.float32(0.1))]
