"""Metrics of a federation: accuracy and fairness, cluster quality, heterogeneity.

All functions take arrays and return numbers or arrays.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.metrics.accuracy import (
        CLIENT_FIGURES as CLIENT_FIGURES,
        classification as classification,
        classification_by_client as classification_by_client,
        fairness as fairness,
        global_accuracy as global_accuracy,
    )
    from fedclust.metrics.clusters import (
        adjusted_rand_index as adjusted_rand_index,
        rand_index as rand_index,
        wasserstein_adjusted_davies_bouldin as wasserstein_adjusted_davies_bouldin,
        wasserstein_adjusted_silhouette as wasserstein_adjusted_silhouette,
    )
    from fedclust.metrics.heterogeneity import (
        earth_movers as earth_movers,
        hellinger as hellinger,
        jensen_shannon as jensen_shannon,
        stability_index as stability_index,
        weighted_psi as weighted_psi,
    )
    from fedclust.metrics.pooled import (
        Outcomes as Outcomes,
        outcomes as outcomes,
        pooled_auc as pooled_auc,
        pooled_macro_f1 as pooled_macro_f1,
        share_weighted_accuracy as share_weighted_accuracy,
    )
else:
    NAMES = {
        "fedclust.metrics.accuracy": (
            "CLIENT_FIGURES classification classification_by_client fairness global_accuracy"
        ),
        "fedclust.metrics.clusters": (
            "adjusted_rand_index rand_index "
            "wasserstein_adjusted_davies_bouldin "
            "wasserstein_adjusted_silhouette"
        ),
        "fedclust.metrics.heterogeneity": (
            "earth_movers hellinger jensen_shannon stability_index weighted_psi"
        ),
        "fedclust.metrics.pooled": "Outcomes outcomes pooled_auc pooled_macro_f1 share_weighted_accuracy",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
