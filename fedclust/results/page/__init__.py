"""The page that a run leaves: one HTML file with everything in it, made from the run's folder.

Not imported by :mod:`fedclust.results`: a run that leaves no page does not need it.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.results.page.data import RunView, view_run
    from fedclust.results.page.html import document, to_json
    from fedclust.results.page.live import LivePage
    from fedclust.results.page.sweep import SweepView, view_sweep
    from fedclust.results.page.write import PAGE, is_run, view_of, write_page, write_sweep_page
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = [
    "PAGE",
    "LivePage",
    "RunView",
    "SweepView",
    "document",
    "is_run",
    "to_json",
    "view_of",
    "view_run",
    "view_sweep",
    "write_page",
    "write_sweep_page",
]
