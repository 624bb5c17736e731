"""When sites that hold their own data start, and which node speaks for which of them."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedclust.grids.claims import Host
from fedclust.records import Registered

__all__ = ["Rules", "read_site_hosts"]


@dataclass(frozen=True)
class Rules:
    """When the sites that are there start.

    Attributes
    ----------
    min_clients
        Fewest clients to start with.
    settle
        Where no names are expected: seconds without another client, after which they start.
    expected
        Names of the sites; they start as soon as all are there, refused or not, and no other takes part.
    hosts
        The file of hosts: by site, the registered name or key fingerprint of its node; None without one.
    """

    min_clients: int = 2
    settle: float = 20.0
    expected: Collection[str] | None = None
    hosts: Mapping[str, str] | None = None

    def ready(self, clients: int, sites: Collection[str], quiet: float) -> bool:
        """Say whether to start: with so many clients, these sites, and no change for `quiet` seconds."""
        if self.expected is not None:
            return set(self.expected) <= set(sites)
        return clients >= self.min_clients and quiet >= self.settle

    def divided(self, registered: Registered, host: Host) -> tuple[Registered, list[str]]:
        """Divide what a node says of its sites into what is its own and what belongs to another node.

        Parameters
        ----------
        registered
            What the node says.
        host
            What Flower knows of the node: its key, and the name under which that was registered.

        Returns
        -------
        What the node says of its own sites; and why it does not get each other one, a line each.
        """
        if self.hosts is None:
            return registered, []
        claimed = sorted({*registered.clients, *registered.refused})
        others = [site for site in claimed if not host.is_meant(self.hosts.get(site, ""))]
        lines = []
        for site in others:
            wanted = self.hosts.get(site)
            whose = f"{wanted!r} by the file of hosts" if wanted else "no node of the file of hosts"
            lines.append(f"{host.label} claims site {site}, which belongs to {whose}: refused")
        clients = {site: names for site, names in registered.clients.items() if site not in others}
        refused = {site: why for site, why in registered.refused.items() if site not in others}
        return Registered(clients, refused), lines


def read_site_hosts(path: Path) -> dict[str, str]:
    """Read a file of hosts for sites with their own data: which site each node may serve.

    Parameters
    ----------
    path
        A TOML file with a line per node: its registered name or its key's fingerprint, and its site, such as
        ``"site-a" = "north"``.

    Returns
    -------
    By site, the name or fingerprint of its node.

    Raises
    ------
    ValueError
        If the file cannot be read or is not of this form, or names a site twice or none.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"hosts must be a TOML file, got {path}: {error}") from error
    found: dict[str, str] = {}
    for name, site in entries.items():
        if not isinstance(site, str) or not site:
            raise ValueError(f"hosts must give each node a site such as 'north', got {site!r} for {name!r}")
        if site in found:
            raise ValueError(f"hosts must name each site once, {site} is of {found[site]!r} and {name!r}")
        found[site] = name
    if not found:
        raise ValueError(f"hosts must name at least one node, {path} names none")
    return found
