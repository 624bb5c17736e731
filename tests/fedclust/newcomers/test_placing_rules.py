import io

import numpy as np
import pytest

from fedclust.clustering import clust_psi_pfl, fmcl
from fedclust.clustering.placement import DistanceRule, LabelRule, SubspaceRule
from fedclust.newcomers.placing import packed, unpacked

COUNTS, CLUSTERS = np.array([[30, 10], [10, 30], [5, 5]]), np.array([0, 1, 1])
MEANS = np.array([[[0.0, 0.0], [10.0, 0.0]], [[10.0, 0.0], [0.0, 0.0]]])
BY_LABELS = (np.array([5, 1]),)
BY_PROTOTYPES = (MEANS[0] + 1, np.array([9, 9]))


@pytest.mark.parametrize(
    ("rule", "sent"),
    [
        (LabelRule(COUNTS, CLUSTERS, clust_psi_pfl.Parameters(1e-3, "add", max_clusters=None)), BY_LABELS),
        (DistanceRule(MEANS, np.full((2, 2), 0.5), fmcl.Parameters()), BY_PROTOTYPES),
        (
            SubspaceRule(np.eye(3)[:, None, :, None], CLUSTERS, "mean", "pixels"),
            (np.ones((1, 3, 1)) / 3**0.5,),
        ),
    ],
)
def test_a_rule_that_is_read_back_from_a_file_places_alike(rule, sent) -> None:
    file = io.BytesIO()
    np.savez(file, **packed(rule))
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        again = unpacked({name: arrays[name] for name in arrays.files})
    assert type(again) is type(rule)
    assert again.place(*sent) == rule.place(*sent)
    assert getattr(again, "paper", None) == getattr(rule, "paper", None)


def test_nothing_is_no_rule() -> None:
    assert unpacked({}) is None
