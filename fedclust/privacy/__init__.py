"""What leaves a client, and how much it says about it; ``privacy=`` chooses one on the command line.

docs/PRIVACY.md says what each choice promises.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedclust.support.checks import check

__all__ = ["ClientDP", "NoPrivacy", "Privacy", "Tells", "named"]

Tells = Literal["labels", "sizes", "nothing"]
"""What clients say of their rows before round 1: how many of each class, how many, or nothing."""

Evaluation = Literal["auto", "exact", "noised"]
_POSITIVE = "> 0 and finite"


@dataclass(frozen=True)
class Privacy:
    """A choice of what leaves a client.

    Attributes
    ----------
    choice
        Its name.
    """

    choice: ClassVar[str] = "none"

    @property
    def tells(self) -> Tells:
        """What clients say of their rows before round 1."""
        return "labels"


@dataclass(frozen=True)
class NoPrivacy(Privacy):
    """Clients answer what is asked: no noise, and no promise about a single client.

    Attributes
    ----------
    label_counts
        Whether clients are asked for the number of their rows of each class. Figures and pictures of labels
        need them, and some methods; without them, a method that needs them is refused.

    Raises
    ------
    ValueError
        If it is not a truth value.
    """

    label_counts: bool = True

    def __post_init__(self) -> None:
        check(self, label_counts="True or False")

    @property
    def tells(self) -> Tells:
        """What clients say of their rows before round 1."""
        return "labels" if self.label_counts else "sizes"


@dataclass(frozen=True)
class ClientDP(Privacy):
    """Differential privacy of whole clients, with a trusted server.

    Every client's update is clipped on its node to length C; the server adds Gaussian noise of standard
    deviation z · C / n to the mean of each cluster's n chosen clients, once.

    Source: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models",
    ICLR 2018, with fixed cohorts and equal weights. Adaptive C: Andrew, Thakkar, McMahan and Ramaswamy,
    "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021, Algorithm 1.

    Attributes
    ----------
    noise_multiplier
        z, > 0.
    clip
        C, the most that an update may be long, > 0; where it adapts, C of round 1.
    delta
        δ, in (0, 1) and below one over the number of clients.
    adaptive
        Whether C follows a quantile of the updates' lengths.
    quantile
        γ, the share of updates that shall not be clipped, in [0, 1].
    clip_rate
        η, how fast C follows: C ← C · exp(−η (share − γ)), >= 0.
    count_noise
        σ_b, standard deviation of the noise on the number of updates that were not clipped, > 0.
    evaluation
        ``"exact"`` to collect the clients' test figures, which is refused where the clients are not
        simulated; ``"noised"`` for the mean accuracy with noise, and nothing else; ``"auto"`` for exact
        figures of simulated clients and noised ones of others.
    evaluation_noise
        Standard deviation of the noise on the sum of all clients' accuracies, > 0, where it is noised.

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    choice: ClassVar[str] = "client_dp"

    noise_multiplier: float = 1.0
    clip: float = 1.0
    delta: float = 1e-5
    adaptive: bool = False
    quantile: float = 0.5
    clip_rate: float = 0.2
    count_noise: float = 10.0
    evaluation: Evaluation = "auto"
    evaluation_noise: float = 10.0

    def __post_init__(self) -> None:
        check(self, noise_multiplier=_POSITIVE, clip=_POSITIVE, count_noise=_POSITIVE)
        check(self, evaluation_noise=_POSITIVE, delta="in (0, 1)", quantile="in [0, 1]")
        check(self, clip_rate=">= 0 and finite", adaptive="True or False", evaluation=Evaluation)

    @property
    def tells(self) -> Tells:
        """What clients say of their rows before round 1."""
        return "nothing"


def named(privacy: "Privacy | str") -> Privacy:
    """Make a choice from its name, at its defaults; a made one stays as it is.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    choices: dict[str, type[Privacy]] = {each.choice: each for each in (NoPrivacy, ClientDP)}
    if isinstance(privacy, Privacy):
        return privacy
    if privacy not in choices:
        raise ValueError(f"privacy must be one of {', '.join(choices)} or an object, got {privacy!r}")
    return choices[privacy]()
