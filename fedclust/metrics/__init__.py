"""What a federation is judged by: accuracy and fairness, cluster quality, heterogeneity.

Arrays in, numbers out.
"""

from fedclust.metrics.accuracy import (
    balanced_accuracy,
    classification,
    classification_by_client,
    fairness,
    global_accuracy,
)
from fedclust.metrics.clusters import (
    rand_index,
    wasserstein_adjusted_davies_bouldin,
    wasserstein_adjusted_silhouette,
)
from fedclust.metrics.heterogeneity import earth_movers, hellinger, jensen_shannon, weighted_psi

__all__ = [
    "balanced_accuracy",
    "classification",
    "classification_by_client",
    "earth_movers",
    "fairness",
    "global_accuracy",
    "hellinger",
    "jensen_shannon",
    "rand_index",
    "wasserstein_adjusted_davies_bouldin",
    "wasserstein_adjusted_silhouette",
    "weighted_psi",
]
