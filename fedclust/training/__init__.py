"""Local training and evaluation of whole cohorts, one client after another or all in one pass."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.training.cohort import CohortUpdate, Job, ModelMean
    from fedclust.training.parameters import LocalTraining
    from fedclust.training.trainer import Trainer
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = ["CohortUpdate", "Job", "LocalTraining", "ModelMean", "Trainer"]
