"""Sites that hold their own rows: how each describes them, and the encoding that all agree on.

See docs/OWN_DATA.md. The names here are light to import.
"""

from fedclust.data.sites.own import Own, SiteError, check_name, sites_here

__all__ = ["Own", "SiteError", "check_name", "sites_here"]
