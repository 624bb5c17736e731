"""Projections of raw inputs."""

import numpy as np
import pytest
import torch

from fedclust.data.partition import features


def draws() -> np.random.Generator:
    return np.random.default_rng(0)


def test_images_on_one_line_keep_their_distances() -> None:
    # Images a·255 on four pixels: after division by 255 they lie on a line, 2 apart from a = 0 to a = 1.
    images = torch.tensor([0, 255, 0, 255], dtype=torch.uint8)[:, None, None, None].expand(4, 1, 2, 2)
    found = features(images, 1, draws())
    assert found.shape == (4, 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.abs(found[0] - found[1]), 2.0, rtol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_numbers_are_rotated_not_rescaled() -> None:
    numbers = torch.from_numpy(draws().normal(size=(30, 3)).astype(np.float32))
    found = features(numbers, 3, draws())
    for projected, given in zip(found[1:] - found[0], (numbers[1:] - numbers[0]).numpy(), strict=True):
        assert np.linalg.norm(projected) == pytest.approx(np.linalg.norm(given), rel=1e-4)


def test_tokens_count_whatever_their_order() -> None:
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0], [3, 3, 3], [0, 0, 3]])
    found = features(tokens, 3, draws())
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    assert np.abs(found[0] - found[2]).max() > 0.1


def test_no_more_components_than_there_can_be() -> None:
    assert features(torch.eye(5)[:, :2], 32, draws()).shape == (5, 2)
    assert features(torch.zeros(5, 3, dtype=torch.int64), 32, draws()).shape == (5, 1)  # a single token
