"""Charts: one Altair specification each, which a run's page, its ``plots/`` and a paper's pictures share."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.results.charts.chart import (
        Line as Line,
        Picture as Picture,
        cells as cells,
        curves as curves,
        points as points,
        save as save,
    )
    from fedclust.results.charts.run import draw as draw, pictures as pictures
else:
    NAMES = {
        "fedclust.results.charts.chart": "Line Picture cells curves points save",
        "fedclust.results.charts.run": "draw pictures",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
