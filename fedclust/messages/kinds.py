"""A message's records of one kind, without what Flower's own way leaves in memory.

``content.array_records`` and the like check every record again, and what they return refers to itself and to
`content`: a message's models would stay in memory until Python looks for circles, perhaps many rounds later.
"""

from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

__all__ = ["Content", "of_kind"]

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


def of_kind(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """Return the records of a kind by name."""
    return {name: record for name, record in content.items() if isinstance(record, kind)}


class Content(RecordDict):
    """Records for code that asks for one kind in Flower's way; what it gets is a copy, not a view."""

    @property
    def array_records(self) -> dict[str, ArrayRecord]:  # type: ignore[override]
        """The models."""
        return of_kind(self, ArrayRecord)

    @property
    def config_records(self) -> dict[str, ConfigRecord]:  # type: ignore[override]
        """The settings."""
        return of_kind(self, ConfigRecord)

    @property
    def metric_records(self) -> dict[str, MetricRecord]:  # type: ignore[override]
        """The figures."""
        return of_kind(self, MetricRecord)
