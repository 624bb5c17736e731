"""The sites of a node that holds its own data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, RecordDict

from fedclust.data import FederatedData
from fedclust.data.sites.agreement import Statement
from fedclust.data.sites.own import Own, SiteError, sites_here
from fedclust.messages.codec import SERVER, decode
from fedclust.messages.sites import Agreed, Registered, Stated
from fedclust.settings import SiteSettings, site_settings
from fedclust.settings.allowed import EVERYTHING, NotAllowed, allowed_here

if TYPE_CHECKING:
    from fedclust.data.sites.rows import SiteRows

# What reads and encodes rows is imported where a node has its own: every other process does without pandas.


_CSV = ("sep", "decimal", "encoding")
"""How this site's CSV is written, in the node's own configuration."""


_PREPARED, _SITES, _FOLDERS = "prepared", "sites", "folders"


@dataclass(frozen=True, eq=False)
class Held:
    """What a node keeps between messages: Flower starts a process for each, and hands `context.state` on.

    Attributes
    ----------
    agreed
        The encoding, and the ids of the node's clients.
    folders
        Where the encoded rows of each site are.
    dataset
        The run's ``dataset`` node.
    """

    agreed: Agreed
    folders: Mapping[str, str]
    dataset: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What the data depends on, as a text."""
        return json.dumps([self.agreed.agreement.digest(), dict(self.agreed.ids), dict(self.folders)])

    def data(self) -> FederatedData:
        """Read the encoded rows."""
        from fedclust.data.sites.encode import federated

        agreed = self.agreed
        folders = list(self.folders.values())
        return federated(folders, agreed.agreement, agreed.ids, agreed.num_clients, self.dataset)


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

    def rows(self, site: str) -> "SiteRows":
        """Read a site's rows; once per process and version of its files.

        Raises
        ------
        SiteError
            If the site cannot take part.
        """
        from fedclust.data.sites.rows import builder_of, private

        dataset = self.settings["dataset"]
        if options := json.loads(self.csv_options):
            dataset["csv_options"] = {**dataset.get("csv_options", {}), **options}
        builder = builder_of(dataset, self.paths[site])
        with private(builder):
            version = json.dumps(builder.identity())
        return _rows(site, str(self.paths[site]), json.dumps(dataset, sort_keys=True), self.settings, version)

    def stated(self) -> Stated:
        """Say of each site what all must know to encode their rows alike, or why it cannot take part."""
        from fedclust.data.sites.rows import describe

        statements: dict[str, Statement] = {}
        refused: dict[str, str] = {}
        for site in self.paths:
            try:
                statements[site] = describe(self.rows(site))
            except SiteError as error:
                refused[site] = _reason(error)
        return Stated(statements, refused)

    def agree(self, context: Context, content: RecordDict) -> Stated:
        """Encode each site's rows as agreed, and keep where they are for the messages that follow.

        Returns
        -------
        Why each site that cannot be encoded like this cannot.
        """
        agreed = decode(Agreed, content, SERVER)
        prepared: dict[str, str] = {}
        refused: dict[str, str] = {}
        for site in self._of(agreed):
            try:
                prepared[site] = self._prepare(site, agreed)
            except SiteError as error:
                refused[site] = _reason(error)
        for key in content:
            context.state[key] = content[key]
        context.state[_PREPARED] = ConfigRecord({_SITES: list(prepared), _FOLDERS: list(prepared.values())})
        return Stated(refused=refused)

    def held(self, context: Context) -> "Held":
        """Return what :meth:`agree` has kept.

        Raises
        ------
        SiteError
            If the node has not been told how to encode its rows, or they have changed since.
        """
        where = context.state.get(_PREPARED)
        if not isinstance(where, ConfigRecord):
            raise SiteError("a node must be told the encoding before anything else, this one was not")
        agreed = decode(Agreed, context.state, SERVER)
        folders = dict(zip(map(str, where[_SITES]), map(str, where[_FOLDERS]), strict=True))  # type: ignore[arg-type]
        for site, folder in folders.items():
            # The cache may be emptied at any time.
            if not Path(folder).is_dir() and self._prepare(site, agreed) != folder:
                raise SiteError(f"the data of {site} must not change during a run")
        return Held(agreed, folders, self.settings["dataset"])

    def _of(self, agreed: Agreed) -> list[str]:
        return [
            site
            for site in self.paths
            if any(name == site or name.startswith(f"{site}/") for name in agreed.ids)
        ]

    def _prepare(self, site: str, agreed: Agreed) -> str:
        from fedclust.data.sites.encode import prepare_site

        dataset, partition = self.settings["dataset"], self.settings["partition"]
        partition.pop("sites", None)
        asked = [dataset, partition, self.settings["seed"], self.csv_options]
        return prepare_site(self.rows(site), agreed.agreement, str(dataset["name"]), asked)

    def registered(self) -> Registered:
        """Name the clients of each site, and say why each other site cannot take part."""
        clients: dict[str, tuple[str, ...]] = {}
        refused: dict[str, str] = {}
        for site in self.paths:
            try:
                clients[site] = self.rows(site).clients
            except SiteError as error:
                refused[site] = _reason(error)
        return Registered.of(clients, refused)


def _reason(error: SiteError) -> str:
    """Write an error in one line that can be printed, whatever the names in it."""
    line = " ".join(str(error).split())[:900]
    return "".join(character if character.isprintable() else "?" for character in line) or "unknown"


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
def _rows(site: str, path: str, dataset: str, settings: SiteSettings, version: str) -> "SiteRows":  # noqa: ARG001
    from fedclust.data.sites.rows import builder_of, read_site

    builder = builder_of(json.loads(dataset), Path(path))
    return read_site(site, builder, Own.of(settings["partition"]), settings["seed"])
