"""What a choice of privacy cannot hold, refused before any client is asked; and what has left the clients."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from flwr.serverapp import strategy as flower
from torch import nn

from fedclust.aggregation.fairavg import FairAvg
from fedclust.messages.description import DescriptionQuestion, PrototypesQuestion, SubspacesQuestion
from fedclust.messages.evaluation import ConfusionQuestion, LossesQuestion, PersonalQuestion, ProofQuestion
from fedclust.messages.training import UpdateQuestion
from fedclust.personal.layers import Personal
from fedclust.privacy import ClientDP, Privacy
from fedclust.privacy.accountant import require
from fedclust.selection import LeastSampled, Uniform

if TYPE_CHECKING:  # strategies import fedclust, so fedclust may name their types but not import them
    from fedclust.strategies import ClusteredStrategy


# They need no more of the replies than their mean, which is what gets the noise.
_MEANS = (
    flower.FedAvg, flower.FedAvgM, flower.FedProx, flower.FedAdam, flower.FedYogi, flower.FedAdagrad, FairAvg,
)  # fmt: skip
_SELECTIONS = (Uniform, LeastSampled)  # they look at no client's data


def check_strategy(
    privacy: Privacy,
    name: str,
    strategy: "ClusteredStrategy",
    personal: Personal,
    compare: Sequence[str] = (),
) -> None:
    """Check that a strategy, and what comes with it, can keep what a choice of privacy promises.

    Parameters
    ----------
    privacy
        The choice.
    name
        The strategy's name, for messages.
    strategy
        The strategy.
    personal
        The personal layers after the last round.
    compare
        Names of further strategies that are run on the same clients.

    Raises
    ------
    ValueError
        If it cannot.
    ModuleNotFoundError
        If the accountant's package is missing.
    """
    if privacy.tells == "labels":
        return
    said = setting(privacy)
    if personal.asked:
        raise ValueError(f"personal must be none with {said}, got {personal.choice} for {name}")
    if not isinstance(privacy, ClientDP):
        for thing in (strategy, strategy.selection):
            if getattr(thing, "needs_label_counts", False):
                raise ValueError(f"{said} cannot hold {name}: {type(thing).__name__} needs label counts")
        return
    if vars(type(strategy)).get("holds_client_dp") is None:
        raise ValueError(
            f"{said} cannot hold strategy {name}: it reads more of single clients than a noisy mean of "
            "their updates; fedavg, known_groups and private_groups can"
        )
    if type(strategy.selection) not in _SELECTIONS:
        raise ValueError(
            f"{said} cannot hold selection {type(strategy.selection).__name__}, which chooses clients by "
            "what they say; uniform and least_sampled can"
        )
    aggregator = type(strategy.make_aggregator())
    if aggregator not in _MEANS:
        raise ValueError(
            f"{said} cannot hold aggregator {aggregator.__name__}, which needs single clients' models; "
            f"{', '.join(each.__name__ for each in _MEANS)} can"
        )
    if compare:
        raise ValueError(
            f"compare must be [] with {said}, got {list(compare)}: a second run on the same clients "
            "spends as much again, so start it on its own and add what both cost"
        )
    if strategy.options.evaluate_clients is not None:
        raise ValueError(
            f"evaluate_clients must be null with {said}, whose noise is for the mean over all clients, "
            f"got {strategy.options.evaluate_clients}"
        )
    if strategy.options.drift_every:
        raise ValueError(
            f"drift_every must be 0 with {said}: it compares models on single clients' rows, "
            f"got {strategy.options.drift_every}"
        )
    require()


def setting(privacy: Privacy) -> str:
    """Name a choice that keeps label counts as the command line does."""
    return "privacy=client_dp" if isinstance(privacy, ClientDP) else "privacy.label_counts=false"


def check_delta(privacy: Privacy, num_clients: int) -> None:
    """Check that δ is below one over the number of clients.

    Raises
    ------
    ValueError
        If it is not: publishing all of one client, drawn at random, would pass for private.
    """
    if isinstance(privacy, ClientDP) and privacy.delta * num_clients >= 1:
        raise ValueError(
            f"privacy.delta must be below one over the number of clients, {1 / num_clients:.3g}, "
            f"got {privacy.delta:g}"
        )


def check_loss(privacy: Privacy, loss: object) -> None:
    """Check that the loss is no function of all clients' labels.

    Raises
    ------
    ValueError
        If it weighs classes by how often they are, of which ε says nothing.
    """
    if isinstance(privacy, ClientDP) and getattr(loss, "class_weights", None) == "balanced":
        raise ValueError(
            "loss.class_weights must be numbers with privacy=client_dp, got balanced: it weighs classes by "
            "all clients' label counts"
        )


def check_network(privacy: Privacy, network: nn.Module) -> None:
    """Check that all that training changes in a network can be clipped and get noise.

    Raises
    ------
    ValueError
        If it keeps statistics of the clients' batches, shares parameters between layers, or trains none.
    """
    if not isinstance(privacy, ClientDP):
        return
    for name, module in network.named_modules():
        if getattr(module, "track_running_stats", False):
            raise ValueError(
                f"privacy=client_dp cannot hold a network with batch statistics, {name} is a "
                f"{type(module).__name__}: use GroupNorm"
            )
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(network.named_parameters())):
        raise ValueError("privacy=client_dp cannot hold a network whose layers share parameters")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError("privacy=client_dp must have a network with parameters to train, this has none")


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
