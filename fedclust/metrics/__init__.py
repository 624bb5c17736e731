"""Metrics of a federation: accuracy and fairness, cluster quality, heterogeneity.

All functions take arrays and return numbers or arrays.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.metrics.accuracy import (
        CLIENT_FIGURES,
        classification,
        classification_by_client,
        fairness,
        global_accuracy,
    )
    from fedclust.metrics.clusters import (
        adjusted_rand_index,
        rand_index,
        wasserstein_adjusted_davies_bouldin,
        wasserstein_adjusted_silhouette,
    )
    from fedclust.metrics.heterogeneity import (
        earth_movers,
        hellinger,
        jensen_shannon,
        stability_index,
        weighted_psi,
    )
    from fedclust.metrics.pooled import (
        Outcomes,
        outcomes,
        pooled_auc,
        pooled_macro_f1,
        share_weighted_accuracy,
    )
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = [
    "CLIENT_FIGURES",
    "Outcomes",
    "adjusted_rand_index",
    "classification",
    "classification_by_client",
    "earth_movers",
    "fairness",
    "global_accuracy",
    "hellinger",
    "jensen_shannon",
    "outcomes",
    "pooled_auc",
    "pooled_macro_f1",
    "rand_index",
    "share_weighted_accuracy",
    "stability_index",
    "wasserstein_adjusted_davies_bouldin",
    "wasserstein_adjusted_silhouette",
    "weighted_psi",
]
