"""Settings of ``partition=own``, and which sites a node serves."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedclust.data.protocols import fraction_of
from fedclust.support.checks import check_choice

_LONGEST = 100  # characters of a name


class SiteError(ValueError):
    """A site cannot take part; the message holds no path and no row of its data."""


@dataclass(frozen=True, kw_only=True)
class Own:
    """Every node serves the rows that it has; nobody cuts a pooled dataset.

    Attributes
    ----------
    sites
        None: whoever registers. A list of names: these sites and no others. A mapping of names to files or
        folders, or a folder with one file or folder per site: the sites of a simulation.
    min_clients
        Fewest clients to start with.
    settle
        Without names, the run starts once `min_clients` are there and no client came for so many seconds.
    min_samples
        A client of the ``natural`` column with fewer rows is left out.
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
    min_clients: int = 2
    settle: float = 20.0
    min_samples: int = 2
    test: Literal["holdout", "official"] = "holdout"
    test_fraction: float = 0.2
    validation_fraction: float | Literal["auto"] = "auto"
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("min_clients", 1), ("settle", 0), ("min_samples", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"partition.{name} must be >= {least}, got {getattr(self, name)}")
        check_choice("partition.test", self.test, ("holdout", "official"))
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"partition.test_fraction must be in (0, 1), got {self.test_fraction}")
        fraction_of(self.validation_fraction)
        if self.sites is not None and not isinstance(self.sites, str | Mapping | list | tuple):
            raise ValueError(
                "partition.sites must be names, a mapping of names to files, or a folder, "
                f"got {type(self.sites).__name__}"
            )
        if self.sites is not None and not isinstance(self.sites, str):
            for name in self.sites:
                try:
                    check_name(name)
                except ValueError as error:
                    raise ValueError(f"partition.sites: {error}") from error
            if not self.sites:
                raise ValueError("partition.sites must name at least one site, got none")

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "Own":
        """Read a resolved ``partition`` node."""
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
            If `sites` does not say where they are, or the folder is missing or empty.
        """
        if isinstance(self.sites, Mapping):
            return {str(name): Path(str(self.sites[name])) for name in sorted(self.sites)}
        if not isinstance(self.sites, str):
            raise SiteError(
                "partition.sites must say where each site's data is in a simulation, such as "
                "'partition.sites={north: a.csv, south: b.csv}'; a deployed node says it in its own "
                "configuration: --node-config \"data='…' name='north'\""
            )
        folder = Path(self.sites).expanduser()
        if not folder.is_dir():
            raise SiteError(f"partition.sites must be a folder that exists, got {folder}")
        found = {
            entry.name if entry.is_dir() else entry.name.partition(".")[0]: entry
            for entry in sorted(folder.iterdir())
            if not entry.name.startswith(".")
        }
        if not found:
            raise SiteError(f"partition.sites must hold a file or folder per site, {folder} is empty")
        return dict(sorted(found.items()))

    def expected(self) -> frozenset[str] | None:
        """Return the names of all sites; None if whoever registers takes part.

        Raises
        ------
        SiteError
            If `sites` is a folder that cannot be read.
        """
        if self.sites is None:
            return None
        return frozenset(self.paths() if isinstance(self.sites, str) else map(str, self.sites))


def check_name(name: object) -> str:
    """Check a site's name.

    Raises
    ------
    ValueError
        If it is empty, too long, cannot be printed, or has a ``/``, which separates a site from its clients.
    """
    text = str(name).strip()
    if not text or len(text) > _LONGEST or "/" in text or not text.isprintable():
        raise ValueError(
            f"a site's name must be 1 to {_LONGEST} characters without '/', got {str(name)[:_LONGEST]!r}"
        )
    return text


def sites_here(node_config: Mapping[str, object], own: Own, *, simulated: bool) -> dict[str, Path]:
    """List the sites that a node serves.

    Parameters
    ----------
    node_config
        The node's own configuration: ``data`` and ``name``; or, in a simulation, ``partition-id`` and
        ``num-partitions``.
    own
        The run's settings.
    simulated
        Whether the node runs in a process of the user who wrote the run's configuration. Only then are the
        paths of that configuration read.

    Returns
    -------
    File or folder of each site by name: one of a deployed node; every n-th of a simulation's.

    Raises
    ------
    SiteError
        If the node's configuration does not say what it serves.
    """
    if "data" in node_config:
        if "name" not in node_config:
            raise SiteError("a node with data must have a name: --node-config \"data='…' name='north'\"")
        try:
            return {check_name(node_config["name"]): Path(str(node_config["data"])).expanduser()}
        except ValueError as error:
            raise SiteError(str(error)) from error
    if not simulated:
        raise SiteError(
            "a node must say what it serves with partition=own: --node-config \"data='…' name='north'\", "
            f"got keys {sorted(node_config)}"
        )
    paths = list(own.paths().items())
    try:
        node, num_nodes = (int(str(node_config[key])) for key in ("partition-id", "num-partitions"))
    except KeyError as error:
        raise SiteError(f"a simulated node must have {error}, got keys {sorted(node_config)}") from error
    return dict(paths[node::num_nodes])
