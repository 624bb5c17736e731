"""Selection policies: which clients of a cluster take part in a round.

Every strategy works with every policy; ``selection=`` chooses one on the command line.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.selection.policies import (
        HACCS as HACCS,
        Candidates as Candidates,
        FedCLS as FedCLS,
        LeastSampled as LeastSampled,
        PowerOfChoice as PowerOfChoice,
        Selection as Selection,
        Uniform as Uniform,
    )
else:
    NAMES = {
        "fedclust.selection.policies": (
            "HACCS Candidates FedCLS LeastSampled PowerOfChoice Selection Uniform"
        )
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
