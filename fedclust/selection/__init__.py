"""Selection policies: which clients of a cluster take part in a round.

Every strategy works with every policy; ``selection=`` chooses one on the command line.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.selection.by_labels import HACCS, FedCLS
    from fedclust.selection.policies import Candidates, LeastSampled, PowerOfChoice, Selection, Uniform
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = ["HACCS", "Candidates", "FedCLS", "LeastSampled", "PowerOfChoice", "Selection", "Uniform"]
