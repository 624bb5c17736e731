"""Write a run's page: one self-contained HTML file, made from the run's folder.

Not imported by :mod:`fedclust.results`: a run that leaves no page does not need it.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.results.page.write import (
        PAGE as PAGE,
        LivePage as LivePage,
        document as document,
        is_run as is_run,
        live_part as live_part,
        view_of as view_of,
        write_page as write_page,
        write_sweep_page as write_sweep_page,
    )
else:
    names = "PAGE LivePage document is_run live_part view_of write_page write_sweep_page"
    __getattr__, __dir__, __all__ = lazily(__name__, {"fedclust.results.page.write": names})
