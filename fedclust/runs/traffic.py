"""The bytes of a run, over all the processes that it was resumed in."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from flwr.serverapp import Grid

from fedclust.federation import Descriptions, Traffic
from fedclust.federation.run_state import RunState

if TYPE_CHECKING:  # strategies import fedclust, so fedclust may name their types but not import them
    from fedclust.strategies import ClusteredStrategy

__all__ = ["meter"]


def meter(
    grid: Grid,
    described: Descriptions,
    resume: RunState | None,
    strategy: "ClusteredStrategy | None" = None,
    *,
    separate: bool = False,
) -> Callable[[], Traffic]:
    """Make what reads the bytes of this run so far, those before it was resumed included.

    So are those of clients' descriptions, which were asked for before the run, if the strategy uses them: in
    round 1 at the latest, so that a run that goes on has counted them.

    With `separate`, totals too are counted as if every client had messages of its own: a model that clients
    of one node share is sent once, so the bytes as sent would say whether they are in one cluster.
    """
    nothing = np.zeros(len(described.num_train), dtype=np.int64)
    begin = getattr(grid, "traffic", Traffic(0, 0, nothing, nothing))  # of newcomers, too
    none = begin.since(begin)
    earlier = getattr(resume, "traffic", None) or none

    def read() -> Traffic:
        now = earlier.plus(getattr(grid, "traffic", none).since(begin))
        asked = None if strategy is None or resume is not None else strategy.description_traffic
        now = now if asked is None else now.plus(asked)
        if not separate:
            return now
        each = now.down_by_client, now.up_by_client
        return Traffic(int(each[0].sum()), int(each[1].sum()), *each)

    return read
