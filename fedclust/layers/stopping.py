"""Early stopping and the best round, both by held-out rows.

In rounds with an evaluation, clients compare their cluster's model with that of the best round so far, as in
the proof: by the Brier scores of their held-out rows, both with the label-prior correction, rows counting and
not clients. The better one is the best so far. Where clients have changed clusters, the round before is no
competitor, and the comparison begins anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedclust.federation.clusters import Clusters, Findings
from fedclust.federation.federation import FederationError
from fedclust.federation.questions import ask_differences
from fedclust.federation.run import Layer, Round, Run
from fedclust.typing import IntArray

Settled = Callable[[Clusters, int], bool]


@dataclass(frozen=True, eq=False)
class Best:
    """The best round so far.

    Attributes
    ----------
    server_round
        The round; 0 for none yet.
    assignment
        Cluster of each client, shape (K,).
    models
        Model of each cluster; of one that is among the current models, its index there.
    stopped
        Whether the run has stopped.
    """

    server_round: int
    assignment: IntArray
    models: tuple[Any, ...]  # ArrayRecord | int
    stopped: bool = False


class Stopping(Layer):
    """Ends a run that gets no better, and serves the best round's models.

    Parameters
    ----------
    patience
        Rounds without a better one after which the run stops, >= 1; None to never stop.
    serve_best
        Whether the models of the best round serve at the end, not those of the last.
    settled
        Whether a method may stop with these clusters after a round.
    """

    memory_type: ClassVar[Any] = Best

    def __init__(self, patience: int | None, *, serve_best: bool, settled: Settled) -> None:
        self._patience, self._serve_best, self._settled = patience, serve_best, settled

    def begin(self, run: Run, state: Best | None) -> Round:
        """Start without a best round, or go on; a run that had stopped has no further round.

        Raises
        ------
        FederationError
            If no client has held-out rows.
        """
        if not run.federation.describe().num_validation.any():
            rule = "stop=patience and serve_round=best must have clients with held-out rows"
            raise FederationError(f"{rule}, none has: partition.validation_fraction=0.1 holds some out")
        self._best = state or Best(0, np.zeros(0, dtype=np.int64), ())
        models = (run.clusters.models[each] if isinstance(each, int) else each for each in self._best.models)
        self._best = replace(self._best, models=tuple(models))
        if self._best.stopped:
            run.federation.num_rounds = run.server_round
        return run.now

    def before_evaluation(self, run: Run, now: Round) -> Round:
        """Compare this round with the best so far; at the end, return to that."""
        best, clusters = self._best, now.clusters
        if not np.array_equal(best.assignment, clusters.assignment) or self._better(run, clusters):
            best = Best(now.number, clusters.assignment, clusters.models)
        waited = now.number - best.server_round
        stops = self._patience is not None and waited >= self._patience
        stops &= now.number < run.federation.num_rounds and self._settled(clusters, now.number)
        if stops:
            run.federation.num_rounds = now.number
        self._best = replace(best, stopped=stops)
        if not self._serve_best or now.number < run.federation.num_rounds:
            return now
        return replace(now, clusters=replace(clusters, models=best.models))

    def _better(self, run: Run, clusters: Clusters) -> bool:
        """Return whether the current models predict held-out rows better than the best so far."""
        best = self._best
        pairs = (best.assignment, best.models), (clusters.assignment, clusters.models)
        answers, _ = ask_differences(run.federation, *pairs)
        return sum(float(each.sums[0]) for each in answers.values()) > 0

    def findings(self, run: Run) -> Findings:
        """Return the best round, and whether the run stopped before its last one."""
        return Findings({"best_round": self._best.server_round, "stopped_early": self._best.stopped})

    def state(self, run: Run) -> Best:
        """Return the best round; models that are the current ones are not saved twice."""
        places = {id(model): place for place, model in enumerate(run.clusters.models)}
        return replace(self._best, models=tuple(places.get(id(each), each) for each in self._best.models))
