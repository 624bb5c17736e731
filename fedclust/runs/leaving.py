"""Say in a line what has left the clients of a run."""

from collections.abc import Collection

from fedclust.messages import (
    QUERY_CONFUSION,
    QUERY_DESCRIPTION,
    QUERY_LOSSES,
    QUERY_PERSONAL,
    QUERY_PROOF,
    QUERY_PROTOTYPES,
    QUERY_SUBSPACES,
    QUERY_UPDATE,
)
from fedclust.privacy.settings import ClientDP, Privacy

__all__ = ["leaving_line"]

# In the order of a run. docs/SECURITY.md says what each gives away.
_WHAT = {
    QUERY_PROTOTYPES: "class prototypes",
    QUERY_SUBSPACES: "class subspaces",
    QUERY_LOSSES: "losses of models",
    QUERY_UPDATE: "changes by training",
    QUERY_PROOF: "how models compare on held-out rows",
    QUERY_CONFUSION: "counts of label and prediction",
    QUERY_PERSONAL: "figures of personal layers",
}
_DESCRIBED = {
    "labels": "label counts",
    "sizes": "numbers of rows",
    "nothing": "that they take part, with names and known groups",
}


def leaving_line(asked: Collection[str], privacy: Privacy) -> str:
    """List what clients were asked for.

    Parameters
    ----------
    asked
        Types of the questions that were asked.
    privacy
        How clients answered them and trained.
    """
    first = _DESCRIBED[privacy.tells]
    private = isinstance(privacy, ClientDP)
    trained = (
        "updates clipped on their node, to a server that is trusted with them and adds the noise"
        if private
        else "models, a node's mean where the method allows it, with row counts and losses of each step"
    )
    further = [what for query, what in _WHAT.items() if query in asked]
    others = sorted(set(asked) - _WHAT.keys() - {QUERY_DESCRIPTION, "evaluate"})
    everything = "; ".join([first, trained, "test figures", *further, *others])
    return f"left the clients: {everything} (docs/SECURITY.md)"
