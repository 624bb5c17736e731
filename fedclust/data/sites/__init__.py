"""Sites that hold their own rows: what each says of them, and the encoding that all agree on.

See docs/OWN_DATA.md.
"""

from fedclust.data.sites.own import Own, SiteError, sites_here
from fedclust.data.sites.reading import SiteRows, read_site

__all__ = ["Own", "SiteError", "SiteRows", "read_site", "sites_here"]
