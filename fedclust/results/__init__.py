"""The results of a run: its folder, its figures, and how they are shown.

Charts are in :mod:`fedclust.results.charts`, the page in :mod:`fedclust.results.page`.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.results.checkpoints import Checkpoints as Checkpoints
    from fedclust.results.progress import Progress as Progress
    from fedclust.results.recorder import Recorder as Recorder, comparable as comparable
    from fedclust.results.report import print_report as print_report
    from fedclust.results.saved_run import SavedRun as SavedRun
    from fedclust.results.summary import client_table as client_table, summarise as summarise
else:
    NAMES = {
        "fedclust.results.checkpoints": "Checkpoints",
        "fedclust.results.progress": "Progress",
        "fedclust.results.recorder": "Recorder comparable",
        "fedclust.results.report": "print_report",
        "fedclust.results.saved_run": "SavedRun",
        "fedclust.results.summary": "client_table summarise",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
