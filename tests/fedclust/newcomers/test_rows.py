"""Rows on this machine are placed as the same rows of a client are that answers the rule's question."""

import numpy as np
import pytest
import torch

from fedclust.clustering import clust_psi_pfl, fmcl
from fedclust.clustering.placement import DistanceRule, LabelRule, SubspaceRule
from fedclust.models.encoders import PixelEncoder
from fedclust.newcomers.rows import mean_embedding, place_rows

ROWS = torch.tensor([[[[4.0, 0.0]]], [[[2.0, 0.0]]], [[[0.0, 6.0]]]])  # three images of 1 × 2 pixels
LABELS = torch.tensor([0, 0, 1])


class Doubled(PixelEncoder):
    """Twice the pixels, so it matters which encoder is asked."""

    def encode(self, inputs: torch.Tensor, *more: object) -> torch.Tensor:
        return 2 * super().encode(inputs, *more)


def _place(rule, encoder=Doubled):
    return place_rows(rule, ROWS, LABELS, lambda: encoder((1, 1, 2)), 3, [], [])


def test_mean_embeddings() -> None:
    found = mean_embedding(ROWS, lambda: Doubled((1, 1, 2)), [], [])
    np.testing.assert_allclose(found, [4, 4])  # twice (4 + 2 + 0)/3 and 6/3


def test_label_counts_are_those_of_all_classes() -> None:
    # Two rows of class 0, one of class 1, none of class 2.
    rule = LabelRule(np.array([[20, 10, 0], [0, 10, 20]]), np.array([1, 0]), clust_psi_pfl.Parameters())
    assert _place(rule) == rule.place(np.array([2, 1, 0]))
    assert _place(rule).cluster == 1


def test_prototypes_are_of_the_runs_encoder() -> None:
    means = np.array([[[6.0, 0.0], [0.0, 12.0], [0.0, 0.0]], [[0.0, 6.0], [12.0, 0.0], [0.0, 0.0]]])
    rule = DistanceRule(means, np.full((2, 3), 0.5), fmcl.Parameters())
    found = _place(rule)
    assert found == rule.place(means[0], np.array([2, 1, 0]))
    assert found.cluster == 0


@pytest.mark.parametrize("kind", ["pixels", "embeddings"])
def test_subspaces_are_of_the_pixels_or_of_the_embeddings(kind: str) -> None:
    class Turned(PixelEncoder):
        def encode(self, inputs: torch.Tensor, *more: object) -> torch.Tensor:
            return super().encode(inputs, *more).flip(-1)

    first, second = np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])
    # Class 0 spans the first pixel, class 1 the second; class 2 has no rows.
    own = np.stack([first, second, np.zeros((2, 1))])
    turned = np.stack([second, first, np.zeros((2, 1))])
    rule = SubspaceRule(np.stack([own, turned]), np.array([0, 1]), "mean", kind)
    assert _place(rule, Turned).cluster == (0 if kind == "pixels" else 1)
