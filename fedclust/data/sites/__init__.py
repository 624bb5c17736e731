"""Sites that hold their own rows: the settings of ``partition=own``, and the sites that a node serves.

See docs/OWN_DATA.md. This module is light to import; :mod:`~fedclust.data.sites.rows` and
:mod:`~fedclust.data.sites.agreement` describe sites' rows and agree on an encoding.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from unicodedata import normalize

from fedclust.data.partition import fraction_of
from fedclust.support.checks import Checked
from fedclust.support.reasons import Sendable

_LONGEST = 100  # characters of a name
_SUFFIX = re.compile(r"\.(parquet|arrow|csv|csv\.gz)$", re.IGNORECASE)  # other kinds of file keep their name
_NODE = "--node-config \"data='…' name='north'\""


UNKNOWING = "a node must be sent the encoding before anything else"
"""How the error of a node begins that has started again since, and has nothing of the run."""


class SiteError(Sendable):
    """A site cannot take part; the message holds no path and no row of its data."""


@dataclass(frozen=True, kw_only=True)
class OwnSitesPartition(Checked):
    """Settings of ``partition=own``: every node serves its own rows; no pooled dataset is partitioned.

    Attributes
    ----------
    sites
        None: all that register. A list of names: these sites and no others. A mapping of names to files or
        folders, or a folder with one file or folder per site: the sites of a simulation.
    min_clients
        Least number of clients with which the run starts.
    settle
        Seconds: without names, the run starts once there are `min_clients` and no new one came for so long.
    min_samples
        A client of the ``natural`` column with fewer rows is left out.
    group
        Column with the key of the person that a row belongs to; None: every row is a person of its own. A
        person's rows all train, or all test, or are all held out. The column is not an input.
    test
        ``"holdout"``: `test_fraction` of each client's rows, drawn from (seed, client's name).
        ``"official"``: the site's own test file.
    test_fraction, validation_fraction, seed
        As in :class:`fedclust.data.partition.Protocol`.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    sites: Any = None
    min_clients: Annotated[int, ">= 1"] = 2
    settle: Annotated[float, ">= 0"] = 20.0
    min_samples: Annotated[int, ">= 2"] = 2
    group: str | None = None
    test: Literal["holdout", "official"] = "holdout"
    test_fraction: Annotated[float, "in (0, 1)"] = 0.2
    validation_fraction: float | Literal["auto"] = "auto"
    seed: int | None = None

    node = "partition."

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction_of(self.validation_fraction)
        if self.sites is None or isinstance(self.sites, str):
            return
        if not isinstance(self.sites, Mapping | list | tuple) or not self.sites:
            rule = "partition.sites must be names, a mapping of names to files, or a folder"
            raise ValueError(f"{rule}, got {self.sites!r}")
        names: list[str] = []
        for name in self.sites:
            if not isinstance(self.sites, Mapping) and "/" in str(name):
                rule = "partition.sites must be names, or names with paths as {north: a.csv, south: b.csv}"
                raise ValueError(f"{rule}, got the path {name}")
            names.append(check_name(name, "partition.sites: "))
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"partition.sites must have different names, got {twice} twice")

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "OwnSitesPartition":
        """Create the settings from a resolved ``partition`` node."""
        return cls(**{key: value for key, value in node.items() if not key.startswith("_")})

    @property
    def fraction(self) -> float:
        """Share of a client's training rows that is held out for the proof."""
        return fraction_of(self.validation_fraction)

    def paths(self) -> dict[str, Path]:
        """List the files or folders of a simulation's sites, by name, sorted.

        Raises
        ------
        SiteError
            If `sites` has no paths, or the folder is missing or empty.
        """
        if isinstance(self.sites, Mapping):
            return {check_name(name): Path(str(self.sites[name])) for name in sorted(self.sites)}
        if not isinstance(self.sites, str):
            rule = "partition.sites must give the path of each site's data in a simulation, such as"
            example = "'partition.sites={north: a.csv, south: b.csv}'"
            raise SiteError(f"{rule} {example}, got {self.sites!r}; a deployed node sets its own: {_NODE}")
        folder = Path(self.sites).expanduser()
        if not folder.is_dir():
            raise SiteError(f"partition.sites must be a folder that exists, got {folder}")
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        if not entries:
            raise SiteError(f"partition.sites must hold a file or folder per site, {folder} is empty")
        files = [_SUFFIX.sub("", entry.name) if entry.is_file() else entry.name for entry in entries]
        names = [normalize("NFC", name) for name in files]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SiteError(f"partition.sites must hold one file per site, {folder} has two for {twice[0]}")
        return dict(sorted(zip(names, entries, strict=True)))

    def expected(self) -> frozenset[str] | None:
        """Return the names of all sites; None if all that register take part.

        Raises
        ------
        SiteError
            If `sites` is a folder that cannot be read.
        """
        if self.sites is None:
            return None
        return frozenset(self.paths() if isinstance(self.sites, str) else map(check_name, self.sites))


def check_name(name: object, where: str = "") -> str:
    """Check a site's name, and return it in Unicode's composed form; `where` begins the error's message.

    Raises
    ------
    SiteError
        If it is empty, too long, cannot be printed, or has a ``/``, which separates a site from its clients.
    """
    text = normalize("NFC", str(name).strip())
    if not text or len(text) > _LONGEST or "/" in text or not text.isprintable():
        rule = f"{where}a site's name must be 1 to {_LONGEST} characters without '/'"
        raise SiteError(f"{rule}, got {str(name)[:_LONGEST]!r}")
    return text


def site_here(node_config: Mapping[str, object]) -> dict[str, Path]:
    """Return the file or folder of the site that a deployed node serves, by its name.

    Parameters
    ----------
    node_config
        The node's own configuration: ``data`` and ``name``.

    Raises
    ------
    SiteError
        If it lacks one, or the name is none.
    """
    if "data" not in node_config:
        keys = sorted(node_config)
        raise SiteError(f"a node must have data and a name with partition=own: {_NODE}, got keys {keys}")
    if "name" not in node_config:
        raise SiteError(f"a node with data must have a name: {_NODE}")
    return {check_name(node_config["name"]): Path(str(node_config["data"])).expanduser()}


def sites_in_turn(node_config: Mapping[str, object], own: OwnSitesPartition) -> dict[str, Path]:
    """List the sites that a node of a simulation serves: every n-th.

    Parameters
    ----------
    node_config
        The node's configuration: ``partition-id`` and ``num-partitions``.
    own
        The run's settings, with the sites' paths: the node runs in a process of the user who wrote them.

    Returns
    -------
    File or folder of each site by name.

    Raises
    ------
    SiteError
        If the node's configuration does not number the node.
    """
    paths = list(own.paths().items())
    try:
        node, num_nodes = (int(str(node_config[key])) for key in ("partition-id", "num-partitions"))
    except KeyError as error:
        raise SiteError(f"a simulated node must have {error}, got keys {sorted(node_config)}") from error
    return dict(paths[node::num_nodes])
