"""Names of methods as their papers write them."""

import re

_PAPERS = (
    "CFL CLoVE Clust-PSI-PFL FECFL FedAvg FedDrift FedGMCC FedGWC FedRC FedSoft FeSEM FL+HC FLUX FMCL IFCA "
    "PACFL"
)
_PAPER_NAMES = {re.sub(r"\W", "", name).lower(): name for name in _PAPERS.split()}
_PAPER_NAMES["fedclustweights"] = "FedClust"


def paper_name(strategy: str) -> str:
    """Return a method's name as its paper writes it; a name without a paper stays as it is."""
    base = strategy.removesuffix("_released")
    name = _PAPER_NAMES.get(base.replace("_", ""))
    return strategy if name is None else name + " (released)" * (base != strategy)
