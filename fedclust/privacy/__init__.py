"""Choices of what leaves a client, and how much that reveals; ``privacy=`` chooses one on the command line.

docs/PRIVACY.md describes the guarantee of each choice.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedclust.support.checks import check

__all__ = ["FROM_SEED", "ClientDP", "Disclosed", "NoPrivacy", "Privacy", "named"]

Disclosed = Literal["labels", "sizes", "nothing"]
"""What clients disclose about their rows before round 1: number per class, total number, or nothing."""

Evaluation = Literal["auto", "exact", "noised"]
FROM_SEED = "the run's seed, which config.yaml publishes, as clients are simulated: it protects nobody"
"""Source of a simulation's noise, as written to ``summary.json``."""

_POSITIVE = "> 0 and finite"


@dataclass(frozen=True)
class Privacy:
    """A choice of what leaves a client.

    Attributes
    ----------
    choice
        Name of the choice.
    """

    choice: ClassVar[str] = "none"

    @property
    def disclosed(self) -> Disclosed:
        """What clients disclose about their rows before round 1."""
        return "labels"


@dataclass(frozen=True)
class NoPrivacy(Privacy):
    """Clients answer all questions, without noise and without any guarantee for a single client.

    Attributes
    ----------
    label_counts
        Whether clients are asked for their number of rows of each class. Metrics and plots of labels need
        these, and so do some methods, which are otherwise refused.

    Raises
    ------
    ValueError
        If `label_counts` is not True or False.

    Examples
    --------
    >>> NoPrivacy().disclosed, NoPrivacy(label_counts=False).disclosed
    ('labels', 'sizes')
    """

    label_counts: bool = True

    def __post_init__(self) -> None:
        check(self, label_counts="True or False")

    @property
    def disclosed(self) -> Disclosed:
        """What clients disclose about their rows before round 1."""
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
        C, largest length of an update, > 0; if it adapts, C of round 1.
    delta
        δ, in (0, 1) and below one over the number of clients.
    adaptive
        Whether C follows a quantile of the updates' lengths.
    quantile
        γ, target share of updates that are not clipped, in [0, 1].
    clip_rate
        η, how fast C adapts: C ← C · exp(−η (share − γ)), >= 0.
    count_noise
        σ_b, standard deviation of the noise on the number of updates that were not clipped, > 0.
    evaluation
        ``"exact"`` to collect the clients' test metrics, which is refused unless clients are simulated;
        ``"noised"`` for only the mean accuracy with noise; ``"auto"`` for ``"exact"`` with simulated clients
        and ``"noised"`` with others.
    evaluation_noise
        Standard deviation of the noise on the sum of all clients' accuracies, > 0; used if noised.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> ClientDP(noise_multiplier=2.0).disclosed
    'nothing'
    >>> ClientDP(delta=1.0)
    Traceback (most recent call last):
        ...
    ValueError: delta must be in (0, 1), got 1.0
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
    def disclosed(self) -> Disclosed:
        """What clients disclose about their rows before round 1."""
        return "nothing"


def named(privacy: "Privacy | str") -> Privacy:
    """Create a choice by name, with its defaults; return an object unchanged.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> named("client_dp").choice
    'client_dp'
    """
    choices: dict[str, type[Privacy]] = {each.choice: each for each in (NoPrivacy, ClientDP)}
    if isinstance(privacy, Privacy):
        return privacy
    if privacy not in choices:
        raise ValueError(f"privacy must be one of {', '.join(choices)} or an object, got {privacy!r}")
    return choices[privacy]()
