"""The clients that a node hosts."""

from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedclust.messages.bounds import check_keys, record_of, short, whole
from fedclust.messages.keys import _CLIENTS, _DATA, _NAME, _NUM_CLIENTS, _STEPS, BadReply

__all__ = ["Hosted", "clients_content", "read_hosted"]

_MOST_CLIENTS = 10**7  # a vector over clients is made of what one node says
_MOST_STEPS = 2**40  # sums over clients stay exact
_LONGEST = 200  # characters of a node's name, and of a digest


@dataclass(frozen=True)
class Hosted:
    """What a node says of itself.

    Attributes
    ----------
    clients
        Ids of the clients that it hosts.
    num_clients
        Number of clients in all.
    name
        Its name in its own configuration; empty if it has none.
    data
        Digest of the data that it holds, which all nodes of one dataset share; empty if there is none.
    steps
        Of each client, the local steps of a round, where any node may train any client; empty elsewhere.
    """

    clients: tuple[int, ...]
    num_clients: int
    name: str = ""
    data: str = ""
    steps: tuple[int, ...] = ()


def clients_content(
    clients: tuple[int, ...], num_clients: int, name: str = "", data: str = "", steps: Sequence[int] = ()
) -> RecordDict:
    """Make a node's reply of the values of :class:`Hosted`."""
    config = ConfigRecord({_CLIENTS: list(clients), _NUM_CLIENTS: num_clients})
    for key, text in ((_NAME, name), (_DATA, data)):
        if text:
            config[key] = text[:_LONGEST]
    if len(steps):
        config[_STEPS] = [int(number) for number in steps]
    return RecordDict({_CLIENTS: config})


def read_hosted(content: RecordDict) -> Hosted:
    """Read what a node says of itself.

    Raises
    ------
    BadReply
        If the reply lacks its clients, names a client twice or one that is not in 0…K−1, or has steps that
        are not one number >= 0 for each client.
    """
    where = "a node's reply"
    config = record_of(content, _CLIENTS, ConfigRecord, where)
    check_keys(config, (_CLIENTS, _NUM_CLIENTS, _NAME, _DATA, _STEPS), where, _CLIENTS)
    num_clients = whole(config.get(_NUM_CLIENTS), 1, _MOST_CLIENTS, where, _NUM_CLIENTS)
    listed = config.get(_CLIENTS)
    if not isinstance(listed, list | tuple):
        raise BadReply(f"{where}: {_CLIENTS} must be a list, got {short(listed)}")
    clients = tuple(whole(client, 0, num_clients - 1, where, _CLIENTS) for client in listed)
    if len(set(clients)) < len(clients):
        raise BadReply(f"{where}: {_CLIENTS} must name each client once, got {short(list(clients))}")
    texts = []
    for key in (_NAME, _DATA):
        text = config.get(key, "")
        if not isinstance(text, str) or len(text) > _LONGEST or not text.isprintable():
            raise BadReply(
                f"{where}: {key} must be a text of at most {_LONGEST} characters, got {short(text)}"
            )
        texts.append(text)
    listed = config.get(_STEPS, [])
    if not isinstance(listed, list | tuple) or len(listed) not in (0, len(clients)):
        raise BadReply(f"{where}: {_STEPS} must be a list of {len(clients)} numbers, got {short(listed)}")
    steps = tuple(whole(number, 0, _MOST_STEPS, where, _STEPS) for number in listed)
    return Hosted(clients, num_clients, texts[0], texts[1], steps)
