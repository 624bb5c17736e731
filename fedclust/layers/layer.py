"""What may happen in a round beside the method."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from fedclust.aggregation.replies import Reply
from fedclust.federation.asking import Failure
from fedclust.federation.clusters import Clusters
from fedclust.federation.run import Run
from fedclust.messages.training import Instruction


def amended(asked: Mapping[int, Instruction], **fields: Any) -> dict[int, Instruction]:
    """Change fields of instructions; clients that share one still do."""
    changed = {
        key: replace(each, **fields) for key, each in {id(each): each for each in asked.values()}.items()
    }
    return {client: changed[id(each)] for client, each in asked.items()}


class Layer:
    """One thing that happens in every round beside the method; every function does nothing unless overridden.

    The core calls its layers in the order of their list, and does not know which they are. They read and
    change the run in progress; whoever changes the clusters returns the new ones.

    Attributes
    ----------
    needs_client_models
        Whether it needs each client's model, not a node's mean.
    memory_type
        Type of what :meth:`state` returns; None for a layer that remembers nothing.
    """

    needs_client_models: bool = False
    memory_type: ClassVar[Any] = None

    def begin(self, run: Run) -> None:
        """Prepare for a run, before its first round or before :meth:`restore`."""

    def before_round(self, run: Run) -> Clusters:
        """Change the clusters before the cohort is chosen."""
        return run.clusters

    def instruct(self, run: Run, asked: dict[int, Instruction]) -> dict[int, Instruction]:
        """Change who trains in the round, and by what instruction, by client id."""
        return asked

    def screen(
        self,
        run: Run,
        replies: list[Reply],
        failures: list[Failure],
    ) -> tuple[list[Reply], list[Failure]]:
        """Leave out or change replies before they are aggregated, and name the failures."""
        return replies, failures

    def after_aggregation(self, run: Run) -> Clusters:
        """Change the clusters once each has its next model, before the method does."""
        return run.clusters

    def before_evaluation(self, run: Run) -> Clusters:
        """Change the clusters before clients evaluate, in rounds with an evaluation."""
        return run.clusters

    def measured(self, run: Run) -> Clusters:
        """Leave out or change what clients measured, in every round; `run.online` is None in one without."""
        return run.clusters

    def columns(self, run: Run) -> dict[str, Any]:
        """Return columns of the clients' table, by name, each of shape (K,)."""
        return {}

    def summary(self, run: Run) -> dict[str, Any]:
        """Return entries of the run's summary."""
        return {}

    def state(self, run: Run) -> Any:
        """Return what is remembered after a round: a frozen dataclass of arrays, numbers and names."""
        return None

    def restore(self, run: Run, state: Any) -> None:
        """Take up what :meth:`state` returned."""
