"""Sites that hold their own rows: what each says of them, and the encoding that all agree on.

See docs/OWN_DATA.md.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.data.sites.describe import wanted_of
    from fedclust.data.sites.encode import federated, prepare_site
    from fedclust.data.sites.own import Own, SiteError, sites_here
    from fedclust.data.sites.reading import SiteRows, builder_of, read_site
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = [
    "Own",
    "SiteError",
    "SiteRows",
    "builder_of",
    "federated",
    "prepare_site",
    "read_site",
    "sites_here",
    "wanted_of",
]
