"""Options of the server and of every strategy, for any method; imports only the standard library."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from fedclust.support.checks import Checked, check, check_held_out

COMMON = "fedavg"
"""The strategy that trains one model for all, which a grouping must beat."""

NO_BETTER_THAN = "The models that serve predict no better than"
"""Begins the last line of such a run, by which it is recognised where only its log arrives."""

AUTO = "auto"
"""Default of ``serve``: each strategy's own rule."""

SERVE = ("cluster", "best", AUTO)

DEFAULT_CAP = 30.0
"""Default of ``update_norm_cap``; see docs/SECURITY.md for what honest clients reach."""

DEFAULT_ROW_CAP = 3.0
"""``row_cap`` of strategies that prove their splits; see docs/ATTACKS.md for what it costs honest clients."""

CAP = "> 1 and finite or None"
"""Rule of ``update_norm_cap``, ``update_pull_cap`` and ``row_cap``."""

VALIDATION = "validation_brier"
"""The objective, and key of ``summary.json``, that is measured on held-out rows."""

KEEP = "auto"
"""Default of ``keep_matrices``."""

MIN_REPLIES = 0.2
"""Default share of the asked clients that must answer: half of a small cohort may be missing by chance."""

MAX_OUTAGE = 14_400.0
"""Default number of seconds to wait for clients if too few answer, such as after a power cut."""

_CLIENTS = "a whole number >= 1 or a share in (0, 1] or None"
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class _Rounds(Checked):
    """Options that the server and its strategies share."""

    participation: Annotated[float, "in (0, 1]"] = 1.0
    seed: Annotated[int, ">= 0"] = 0
    evaluate_every: Annotated[int, ">= 1"] = 1
    evaluate_clients: Annotated[int | float | None, _CLIENTS] = None
    update_norm_cap: Annotated[float | None, CAP] = DEFAULT_CAP
    update_pull_cap: Annotated[float | None, CAP] = None
    row_cap: Annotated[float | None, CAP] = None
    drift_every: Annotated[int, ">= 0"] = 0
    patience: int | None = None
    serve_round: Literal["best", "last"] = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "stop.", patience=">= 1 or None")
        if self.drift_every % self.evaluate_every:  # clients are asked in rounds with an evaluation
            got = f"evaluate_every={self.evaluate_every}, got {self.drift_every}"
            raise ValueError(f"drift_every must be a multiple of {got}")

    @property
    def compares_rounds(self) -> bool:
        """Whether rounds are compared on held-out rows."""
        return self.patience is not None or self.serve_round == "best"


@dataclass(frozen=True, kw_only=True)
class RunOptions(_Rounds):
    """Options that the run passes to a strategy; ``FedGWC(participation=0.5)`` makes them, too.

    Attributes
    ----------
    participation
        Share ρ of each cluster's clients that takes part in a round, in (0, 1].
    seed
        The run's seed.
    aggregator
        Makes the Flower strategy that aggregates within a cluster; None for FedAvg.
    selection
        Policy that chooses a cluster's clients, see :mod:`fedclust.selection`; None for the method's own.
    evaluate_every
        Rounds between evaluations, >= 1; the last round is always evaluated.
    evaluate_clients
        Number of clients that evaluate, or their share of all in (0, 1], drawn anew each time from those
        online; None for all. In the last round, all do.
    update_norm_cap
        Largest length of an update, > 1, in multiples of the round's median; a longer one is left out and its
        client named. Lower where ten clients or more are alike, see
        :func:`fedclust.messages.replies.too_long`. None for any length.
    update_pull_cap
        Largest pull (rows times length) of an update, > 1, in multiples of the round's median; a larger one
        is weighted down; nodes then send each client's model, not a mean. None for any pull.
    row_cap
        Most rows that a client counts for, > 1, in multiples of the median client's: in means of models and
        in the global accuracy; half of that where hardly a tenth says more, see
        :func:`fedclust.proof.counted`. None for as many as it says, as papers weight; ``auto`` has 3.
    drift_every
        Rounds between searches, among clients that evaluate, for those that another cluster's model serves
        better, a multiple of `evaluate_every`; 0 for never. See :mod:`fedclust.layers.drift`.
    patience
        Rounds without a better one on held-out rows after which the run stops, >= 1; None to never stop. See
        :mod:`fedclust.layers.stopping`.
    serve_round
        Whether the models of the round that is best on held-out rows serve at the end, or of the last one.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """

    aggregator: Callable[[], Any] | None = None
    selection: Any = None


@dataclass(frozen=True, kw_only=True)
class RunSettings(_Rounds):
    """The server's settings other than objects; ``conf/config.yaml`` explains them.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """

    task: Literal["train", "inspect", "partition"]
    rounds: Annotated[int, ">= 1"]
    checkpoint_every: int | str
    compare: tuple[str, ...]
    wait: Annotated[float, "> 0"]
    timeout: Annotated[float, "> 0"]
    proof: bool = False
    serve: str = AUTO
    save_predictions: bool = False
    min_clients: Annotated[int | None, ">= 1 or None"] = None
    hosts: str | None = None
    holdout_clients: float = 0
    min_replies: Annotated[float, "in [0, 1]"] = MIN_REPLIES
    max_outage: Annotated[float, ">= 0"] = MAX_OUTAGE
    keep_matrices: Annotated[bool | str, "True or False or auto"] = KEEP
    objective: str = "mean_client_accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_held_out(self.holdout_clients)
        parse_interval(self.checkpoint_every)

    @property
    def validates(self) -> bool:
        """Whether the models that serve are measured on held-out rows at the end."""
        return self.objective == VALIDATION

    def options(self, aggregator: Callable[[], Any], selection: Any) -> RunOptions:
        """Return the options of every strategy of the run."""
        shared = {field.name: getattr(self, field.name) for field in fields(_Rounds)}
        return RunOptions(**shared, aggregator=aggregator, selection=selection)


def parse_interval(every: int | str) -> tuple[int, float]:
    """Parse how often checkpoints are written.

    Parameters
    ----------
    every
        A number of rounds, 0 for the end only; or a time such as ``"30s"``, ``"1min"`` or ``"2h"``.

    Returns
    -------
    Rounds, 0 if a time is given; and seconds, 0 if rounds are.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if isinstance(every, int) and not isinstance(every, bool) and every >= 0:
        return every, 0.0
    match = _INTERVAL.fullmatch(str(every).strip())
    if match and (seconds := float(match[1]) * _SECONDS[match[2]]) > 0:
        return 0, seconds
    raise ValueError(
        f"checkpoint_every must be rounds >= 0, or a time such as 30s, 1min or 2h, got {every!r}"
    )
