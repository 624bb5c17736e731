"""Charts as Altair specifications, shared by a run's page, its ``plots/`` and a paper's pictures."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.results.charts.chart import Line as Line, curves as curves, save as save
    from fedclust.results.charts.run import draw as draw
else:
    NAMES = {"fedclust.results.charts.chart": "Line curves save", "fedclust.results.charts.run": "draw"}
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
