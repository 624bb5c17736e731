"""Keep the page of a run up to date while it runs."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fedclust.results.page.write import write_page
from fedclust.results.recorder import CannotWrite

__all__ = ["LivePage"]

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN = 30.0
_SHARE = 50  # the page takes at most one part in so many of a run's time


class LivePage:
    """The page of a run that goes on.

    A call after each round writes it every 30 seconds; where that takes more than 0.6 s, as for a run of many
    thousand rounds, less often, so that it costs at most 2 % of the run's time. As a context it also writes
    it when a run fails. A page that cannot be written is a warning and does not end the run.

    Parameters
    ----------
    folder
        The run's folder; also while a compared strategy runs.
    clock
        Returns the time in seconds; for tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._due = clock() + 1.0  # a first page soon, without one for each of many short runs

    def __call__(self, record: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Write the page if it is time; called after every round."""
        if self._clock() >= self._due:
            self.write()

    def __enter__(self) -> "LivePage":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and not issubclass(kind, CannotWrite):
            self.write()

    def write(self) -> None:
        """Write the page now."""
        began = self._clock()
        try:
            write_page(self._folder)
        except FileNotFoundError:
            pass  # it failed before its first round
        except Exception as error:  # whatever is wrong with the page, the run is worth more
            logger.warning("the page of %s could not be written: %s", self._folder, error)
        ended = self._clock()
        self._due = ended + max(_SECONDS_BETWEEN, _SHARE * (ended - began))
