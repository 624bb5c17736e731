"""The sites of a node and the names of their clients, where every site holds its own data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, RecordDict

from fedclust.messages.bounds import check_keys, only_records, record_of, short
from fedclust.messages.keys import BadReply

__all__ = ["Registered", "read_registered", "registered_content"]

_RECORD = "registration"
_NAMES, _SITES, _REFUSED, _REASONS = "clients", "sites", "refused", "reasons"
_MOST = 10**6
_LONGEST = 300  # characters of a client's name: that of its site and a value of a column
_LONGEST_REASON = 900


@dataclass(frozen=True)
class Registered:
    """What a node says of its sites.

    Attributes
    ----------
    clients
        By site, the names of its clients, sorted.
    refused
        Why each other site of the node cannot take part.
    """

    clients: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def site_of(self) -> dict[str, str]:
        """Return the site of each client."""
        return {client: site for site, clients in self.clients.items() for client in clients}


def registered_content(registered: Registered) -> RecordDict:
    """Make a node's reply."""
    site_of = registered.site_of()
    config = ConfigRecord(
        {
            _NAMES: list(site_of),
            _SITES: list(site_of.values()),
            _REFUSED: list(registered.refused),
            _REASONS: list(registered.refused.values()),
        }
    )
    return RecordDict({_RECORD: config})


def read_registered(content: RecordDict) -> Registered:
    """Read a node's sites and clients.

    Raises
    ------
    BadReply
        If the reply lacks them, a name is no name, or a client is named twice or not after its site.
    """
    where = "a node's reply"
    only_records(content, {_RECORD}, where)
    config = record_of(content, _RECORD, ConfigRecord, where)
    check_keys(config, {_NAMES, _SITES, _REFUSED, _REASONS}, where, "entries")
    names, sites, refused = (_texts(config, key, _LONGEST, where) for key in (_NAMES, _SITES, _REFUSED))
    reasons = _texts(config, _REASONS, _LONGEST_REASON, where)
    if len(names) != len(sites) or len(refused) != len(reasons):
        raise BadReply(f"{where}: names and sites must be as many, got {len(names)} and {len(sites)}")
    clients: dict[str, list[str]] = {}
    for name, site in zip(names, sites, strict=True):
        if name != site and not name.startswith(f"{site}/"):
            raise BadReply(f"{where}: a client of {short(site)} must be named after it, got {short(name)}")
        clients.setdefault(site, []).append(name)
    if len(set(names)) < len(names) or clients.keys() & set(refused):
        raise BadReply(f"{where}: a name must occur once, got {short(names)}")
    return Registered(
        {site: tuple(sorted(each)) for site, each in clients.items()},
        dict(zip(refused, reasons, strict=True)),
    )


def _texts(config: ConfigRecord, key: str, longest: int, where: str) -> list[str]:
    values = config.get(key)
    if not isinstance(values, list | tuple) or len(values) > _MOST:
        raise BadReply(f"{where}: {key} must be a list of texts, got {short(values)}")
    texts: list[str] = []
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
            raise BadReply(f"{where}: {key} must be texts, at most {longest} long, got {short(value)}")
        texts.append(value)
    return texts
