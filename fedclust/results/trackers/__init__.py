"""Send a run's metrics to TensorBoard, MLflow, Weights & Biases or a tracker of your own."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.results.trackers.mlflow import MLflow
    from fedclust.results.trackers.protocol import TrackedRun, Tracker
    from fedclust.results.trackers.tensorboard import TensorBoard
    from fedclust.results.trackers.tracking import Tracking
    from fedclust.results.trackers.wandb import WandB
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = ["MLflow", "TensorBoard", "TrackedRun", "Tracker", "Tracking", "WandB"]
