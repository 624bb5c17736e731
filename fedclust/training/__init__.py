"""Local training and evaluation of whole cohorts, one client after another or all in one pass."""

from fedclust.training.cohort import CohortUpdate, Job, ModelMean
from fedclust.training.parameters import LocalTraining
from fedclust.training.trainer import Trainer

__all__ = ["CohortUpdate", "Job", "LocalTraining", "ModelMean", "Trainer"]
