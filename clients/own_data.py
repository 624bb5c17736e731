"""The sites of a node that holds its own data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flwr.app import Context

from fedclust.data.sites import Own, SiteError, SiteRows, read_site, sites_here
from fedclust.data.sites.reading import builder_of, private
from fedclust.records import Registered
from fedclust.settings import SiteSettings, site_settings
from fedclust.settings.allowed import EVERYTHING, NotAllowed, allowed_here

__all__ = ["OwnSites", "own_sites"]

_CSV = ("sep", "decimal", "encoding")
"""How this site's CSV is written, in the node's own configuration."""


@dataclass(frozen=True, eq=False)
class OwnSites:
    """A node's own sites.

    Attributes
    ----------
    paths
        File or folder of each site, by name.
    settings
        The run's settings as far as they are known before all sites agree.
    csv_options
        How the node's CSV files are written, as JSON.
    """

    paths: Mapping[str, Path]
    settings: SiteSettings
    csv_options: str

    def rows(self, site: str) -> SiteRows:
        """Read a site's rows; once per process and version of its files.

        Raises
        ------
        SiteError
            If the site cannot take part.
        """
        dataset = self.settings["dataset"]
        if options := json.loads(self.csv_options):
            dataset["csv_options"] = {**dataset.get("csv_options", {}), **options}
        builder = builder_of(dataset, self.paths[site])
        with private(builder):
            version = json.dumps(builder.identity())
        return _rows(site, str(self.paths[site]), json.dumps(dataset, sort_keys=True), self.settings, version)

    def registered(self) -> Registered:
        """Name the clients of each site, and say why each other site cannot take part."""
        clients: dict[str, tuple[str, ...]] = {}
        refused: dict[str, str] = {}
        for site in self.paths:
            try:
                clients[site] = self.rows(site).clients
            except SiteError as error:
                refused[site] = str(error)[:900]
        return Registered(clients, refused)


def own_sites(context: Context) -> OwnSites | None:
    """Return the node's own sites; None if the run is one over a pooled dataset.

    Raises
    ------
    NotAllowed
        If a node that serves its own data is asked for a dataset of the run's.
    SiteError
        If the node's configuration does not say what it serves.
    """
    allow = allowed_here(context.node_config)
    settings = site_settings(context.run_config, allow) if "objects" not in context.run_config else None
    if settings is None:
        if "data" in context.node_config:
            raise NotAllowed("partition must be own on this node, which serves its own data and nothing else")
        return None
    own = Own.of(settings["partition"])
    paths = sites_here(context.node_config, own, simulated=allow.strip() == EVERYTHING)
    options = {key: str(context.node_config[key]) for key in _CSV if key in context.node_config}
    return OwnSites(paths, settings, json.dumps(options, sort_keys=True))


@lru_cache(maxsize=64)
def _rows(site: str, path: str, dataset: str, settings: SiteSettings, version: str) -> SiteRows:  # noqa: ARG001
    builder = builder_of(json.loads(dataset), Path(path))
    return read_site(site, builder, Own.of(settings["partition"]), settings["seed"])
