"""Clients here are numbers: a reply, a refusal, or a loss is what the test says."""

from collections.abc import Collection, Sequence

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode

from fedclust.grids.identity import assume_identity
from fedclust.grids.outages import Outages

QUICK = {"poll": 0.0, "settle": 0.0}


@pytest.fixture(autouse=True)
def _server() -> None:
    assume_identity(1)  # Flower's messages ask who makes them


class Clients:
    """Clients that lose their next replies, and are offline for so many looks."""

    def __init__(
        self, lost: dict[int, int], offline_for: int = 0, code: int = ErrorCode.NODE_UNAVAILABLE
    ) -> None:
        self.lost, self.offline_for, self.code = dict(lost), offline_for, code
        self.asked: list[list[int]] = []

    def ask(self, messages: Sequence[Message]) -> list[Message]:
        self.asked.append([each.metadata.dst_node_id for each in messages])
        return [self._reply(each) for each in messages]

    def _reply(self, message: Message) -> Message:
        client = message.metadata.dst_node_id
        if self.lost.get(client, 0):
            self.lost[client] -= 1
            return Message(Error(self.code, "gone"), reply_to=message)
        return Message(RecordDict(), reply_to=message)

    def online(self) -> Collection[int]:
        self.offline_for -= 1
        return range(100) if self.offline_for < 0 else ()


def _messages(number: int, kind: str = MessageType.TRAIN) -> list[Message]:
    return [Message(RecordDict(), dst_node_id=client, message_type=kind) for client in range(number)]


def _failed(replies: Sequence[Message]) -> list[int]:
    return sorted(each.metadata.src_node_id for each in replies if each.has_error())


def test_those_that_were_lost_are_asked_again_and_nobody_else() -> None:
    # 1 of 10 answers, ceil(0.2 x 10) = 2 must.
    clients = Clients(dict.fromkeys(range(9), 1), offline_for=3)
    said: list[str] = []
    outages = Outages(60, 0.2, say=said.append, **QUICK)
    assert _failed(outages.exchange(clients.ask, _messages(10), clients.online, 10)) == []
    assert clients.asked == [list(range(10)), list(range(9))]
    assert said == [
        "waiting for clients: 0 of 9 online, 1 must answer (min_replies=0.2), for 1 minutes at most"
    ]


def test_where_enough_have_answered_nobody_is_waited_for() -> None:
    clients = Clients(dict.fromkeys(range(8), 1), offline_for=10**9)
    assert _failed(Outages(60, 0.2).exchange(clients.ask, _messages(10), clients.online, 10)) == list(
        range(8)
    )
    assert len(clients.asked) == 1


@pytest.mark.parametrize("outages", [Outages(0, 0.2), Outages(60, 0.0), Outages()])
def test_without_time_or_a_least_number_everybody_is_asked_once(outages: Outages) -> None:
    clients = Clients(dict.fromkeys(range(10), 1), offline_for=10**9)
    assert _failed(outages.exchange(clients.ask, _messages(10), clients.online, 10)) == list(range(10))
    assert len(clients.asked) == 1


def test_a_client_that_raises_is_not_asked_again() -> None:
    clients = Clients(dict.fromkeys(range(10), 1), code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
    Outages(60, 0.2, **QUICK).exchange(clients.ask, _messages(10), clients.online, 10)
    assert len(clients.asked) == 1


def test_a_question_that_kills_its_nodes_is_not_repeated_for_ever() -> None:
    clients = Clients(dict.fromkeys(range(4), 10**9))
    replies = Outages(3600, 0.2, **QUICK).exchange(clients.ask, _messages(4), clients.online, 4)
    assert _failed(replies) == [0, 1, 2, 3]
    assert len(clients.asked) == 1 + 5


def test_when_the_time_is_up_the_losses_stay() -> None:
    clients = Clients(dict.fromkeys(range(4), 1), offline_for=10**9)
    replies = Outages(0.01, 0.2, **QUICK).exchange(clients.ask, _messages(4), clients.online, 4)
    assert _failed(replies) == [0, 1, 2, 3]
    assert len(clients.asked) == 1


@pytest.mark.parametrize(("number", "times"), [(5, 1), (6, 2)])
def test_a_question_besides_training_is_repeated_if_most_clients_are_asked(number: int, times: int) -> None:
    # Of ten clients: half of them, such as those that have just joined, can be done without.
    clients = Clients(dict.fromkeys(range(number), 1))
    messages = _messages(number, "query.losses")
    Outages(60, 0.2, **QUICK).exchange(clients.ask, messages, clients.online, 10)
    assert len(clients.asked) == times


def test_once_enough_are_back_the_others_have_some_time() -> None:
    looks = iter([set(), {0}, {0, 1}, {0, 1, 2}])  # one is needed, and the last one comes within `settle`
    assert Outages(60, 0.2, poll=0.0, settle=30.0).wait_for(range(3), 1, lambda: next(looks))
    assert list(looks) == []


def test_once_enough_are_back_the_others_are_not_waited_for_long() -> None:
    looks = iter([set(), {0}, *[{0}] * 1000])
    assert Outages(60, 0.2, poll=0.001, settle=0.01).wait_for(range(3), 1, lambda: next(looks))
    assert len(list(looks)) > 0
