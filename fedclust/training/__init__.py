"""Local training and evaluation of whole cohorts, one client after another or all in one pass."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.training.cohort import CohortUpdate as CohortUpdate, Job as Job, ModelMean as ModelMean
    from fedclust.training.parameters import LocalTraining as LocalTraining
    from fedclust.training.trainer import Trainer as Trainer
else:
    NAMES = {
        "fedclust.training.cohort": "CohortUpdate Job ModelMean",
        "fedclust.training.parameters": "LocalTraining",
        "fedclust.training.trainer": "Trainer",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
