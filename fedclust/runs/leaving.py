"""Say in a line what has left the clients of a run."""

from collections.abc import Collection

from fedclust.messages.comparing import LossesQuestion, ProofQuestion
from fedclust.messages.description import DescriptionQuestion
from fedclust.messages.evaluation import ConfusionQuestion, PersonalQuestion
from fedclust.messages.prototypes import PrototypesQuestion, SubspacesQuestion
from fedclust.messages.training import UpdateQuestion
from fedclust.privacy.settings import ClientDP, Privacy

__all__ = ["leaving_line"]

# In the order of a run. docs/SECURITY.md says what each gives away.
_WHAT = {
    PrototypesQuestion.kind: "class prototypes",
    SubspacesQuestion.kind: "class subspaces",
    LossesQuestion.kind: "losses of models",
    UpdateQuestion.kind: "changes by training",
    ProofQuestion.kind: "how models compare on held-out rows",
    ConfusionQuestion.kind: "counts of label and prediction",
    PersonalQuestion.kind: "figures of personal layers",
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
    others = sorted(set(asked) - _WHAT.keys() - {DescriptionQuestion.kind, "evaluate"})
    everything = "; ".join([first, trained, "test figures", *further, *others])
    return f"left the clients: {everything} (docs/SECURITY.md)"
