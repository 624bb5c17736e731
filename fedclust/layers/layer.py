"""What may happen in a round beside the method."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from fedclust.federation.clusters import Findings
from fedclust.federation.run import Round, Run
from fedclust.messages.training import Instruction


def amended(asked: Mapping[int, Instruction], **fields: Any) -> dict[int, Instruction]:
    """Change fields of instructions; clients that share one still do."""
    changed = {
        key: replace(each, **fields) for key, each in {id(each): each for each in asked.values()}.items()
    }
    return {client: changed[id(each)] for client, each in asked.items()}


class Layer:
    """One thing that happens in every round beside the method.

    Four functions are called in every round, one after each of its steps: they take the round so far and
    return it, changed or as it is. All that a layer tells the loop or another layer is in that value; the
    loop calls the layers in the order of their list and does not know which they are.

    Attributes
    ----------
    needs_client_models
        Whether it needs each client's model, not a node's mean.
    memory_type
        Type of what :meth:`state` returns; None for a layer that remembers nothing.
    """

    needs_client_models: bool = False
    memory_type: ClassVar[Any] = None

    def begin(self, run: Run, state: Any) -> Round:
        """Prepare for a new run, or go on from what :meth:`state` returned before an interruption."""
        return run.now

    def instruct(self, run: Run, now: Round) -> Round:
        """Change who trains in the round, and by what instruction: ``now.asked``."""
        return now

    def screen(self, run: Run, now: Round) -> Round:
        """Leave out or change replies before they are aggregated, and name the failures."""
        return now

    def before_evaluation(self, run: Run, now: Round) -> Round:
        """Change the clusters before clients evaluate, in rounds with an evaluation."""
        return now

    def after_evaluation(self, run: Run, now: Round) -> Round:
        """Leave out or change what clients measured; without an evaluation, ``now.online`` is None."""
        return now

    def findings(self, run: Run) -> Findings:
        """Return entries of the run's summary, and columns of the clients' table, each of shape (K,)."""
        return Findings()

    def state(self, run: Run) -> Any:
        """Return what is remembered after a round: a frozen dataclass of arrays, numbers and names."""
        return None
