"""Charts: one Altair specification each, which a run's page, its ``plots/`` and a paper's pictures share."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.results.charts.chart import Line, Picture, cells, curves, points, save
    from fedclust.results.charts.run import draw, pictures
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = ["Line", "Picture", "cells", "curves", "draw", "pictures", "points", "save"]
