"""Selection policies: which clients of a cluster take part in a round.

Every strategy works with every policy; ``selection=`` chooses one on the command line.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.selection.by_labels import HACCS as HACCS, FedCLS as FedCLS
    from fedclust.selection.policies import (
        Candidates as Candidates,
        LeastSampled as LeastSampled,
        PowerOfChoice as PowerOfChoice,
        Selection as Selection,
        Uniform as Uniform,
    )
else:
    NAMES = {
        "fedclust.selection.by_labels": "HACCS FedCLS",
        "fedclust.selection.policies": "Candidates LeastSampled PowerOfChoice Selection Uniform",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
