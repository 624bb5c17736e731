"""Local training and evaluation of whole cohorts, one client after another or all in one pass."""

from fedclust.training.parameters import LocalTraining

__all__ = ["LocalTraining"]
