"""Selection policies: which clients of a cluster take part in a round.

Every strategy works with every policy; ``selection=`` chooses one on the command line.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.selection.fedcls import FedCLS
    from fedclust.selection.haccs import HACCS
    from fedclust.selection.least_sampled import LeastSampled
    from fedclust.selection.poc import PowerOfChoice
    from fedclust.selection.policy import Candidates, Selection
    from fedclust.selection.uniform import Uniform
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = ["HACCS", "Candidates", "FedCLS", "LeastSampled", "PowerOfChoice", "Selection", "Uniform"]
