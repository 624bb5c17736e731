"""Choices of what leaves a client, and how much that reveals; ``privacy=`` chooses one on the command line.

docs/PRIVACY.md describes the guarantee of each choice.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedclust.support.checks import check

__all__ = [
    "FROM_SEED",
    "OF_ALL",
    "ClientDP",
    "DifferentialPrivacy",
    "Disclosed",
    "NoPrivacy",
    "PatientDP",
    "Privacy",
    "named",
]

Disclosed = Literal["labels", "sizes", "nothing"]
"""What clients disclose about their rows before round 1: number per class, total number, or nothing."""

Evaluation = Literal["auto", "exact", "noised"]
OF_ALL = "the mean accuracy of all clients"
"""All that is measured of a run whose clients' figures stay with them."""

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


class DifferentialPrivacy(Privacy):
    """A choice that limits what anybody can learn of a client, or of a patient; nothing else is disclosed."""

    evaluation: Evaluation

    @property
    def disclosed(self) -> Disclosed:
        """What clients disclose about their rows before round 1."""
        return "nothing"

    def exact(self, simulated: bool) -> bool:
        """Return whether figures are collected without noise.

        Raises
        ------
        ValueError
            If they should be, of clients that are not simulated.
        """
        if self.evaluation == "exact" and not simulated:
            raise ValueError("privacy.evaluation must be noised unless all clients are simulated, got exact")
        return self.evaluation == "exact" or (self.evaluation == "auto" and simulated)


@dataclass(frozen=True)
class ClientDP(DifferentialPrivacy):
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


@dataclass(frozen=True)
class PatientDP(DifferentialPrivacy):
    """Differential privacy of each patient, with noise that their site adds: nobody else is trusted.

    A step of local training draws each patient of the site with the same probability. The mean loss of a
    patient's rows has a gradient, which is shortened to length C; noise of standard deviation z · C is added
    to the sum of these, which is divided by the expected number of patients.

    Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1, with a patient's
    rows as one example.

    Attributes
    ----------
    epsilon
        ε that a patient spends who takes part in all rounds, > 0: the noise follows from it. None if
        `noise_multiplier` is given.
    noise_multiplier
        z, > 0; None if `epsilon` is given.
    clip
        C, largest length of a patient's gradient, > 0.
    delta
        δ, in (0, 1); should be below one over a site's number of patients.
    sampling
        Probability that a step draws a patient, in (0, 1].
    evaluation
        ``"exact"`` for test figures without noise, which is refused unless clients are simulated;
        ``"noised"`` for each site's accuracy with noise, by which its test patients spend ε, too; ``"auto"``
        for ``"exact"`` with simulated clients and ``"noised"`` with others.

    Raises
    ------
    ValueError
        If an attribute is outside its range, or both or none of `epsilon` and `noise_multiplier` are given.

    Examples
    --------
    >>> PatientDP(epsilon=1.0).disclosed
    'nothing'
    >>> PatientDP(noise_multiplier=2.0)
    Traceback (most recent call last):
        ...
    ValueError: one of epsilon and noise_multiplier must be given, the other null, got 3.0 and 2.0
    """

    choice: ClassVar[str] = "patient_dp"

    epsilon: float | None = 3.0
    noise_multiplier: float | None = None
    clip: float = 1.0
    delta: float = 1e-5
    sampling: float = 0.25
    evaluation: Evaluation = "auto"

    def __post_init__(self) -> None:
        check(self, epsilon=f"{_POSITIVE} or None", noise_multiplier=f"{_POSITIVE} or None", clip=_POSITIVE)
        check(self, delta="in (0, 1)", sampling="in (0, 1]", evaluation=Evaluation)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            got = f"got {self.epsilon} and {self.noise_multiplier}"
            raise ValueError(f"one of epsilon and noise_multiplier must be given, the other null, {got}")


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
    choices: dict[str, type[Privacy]] = {each.choice: each for each in (NoPrivacy, ClientDP, PatientDP)}
    if isinstance(privacy, Privacy):
        return privacy
    if privacy not in choices:
        raise ValueError(f"privacy must be one of {', '.join(choices)} or an object, got {privacy!r}")
    return choices[privacy]()
