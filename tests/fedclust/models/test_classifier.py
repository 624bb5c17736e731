import pytest
import torch
from torch import nn

from fedclust.models.classifier import Classifier
from fedclust.models.options import image_shape, num_columns, num_positions


def test_the_head_scores_what_the_body_computes() -> None:
    model = Classifier(nn.Flatten(), width=4, num_classes=2)
    nn.init.ones_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    torch.testing.assert_close(model.features(images), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    torch.testing.assert_close(model(images), torch.tensor([[10.0, 10.0]]))
    assert model.width == 4


def test_refuses_a_single_class() -> None:
    with pytest.raises(ValueError, match="num_classes must be >= 2, got 1"):
        Classifier(nn.Flatten(), width=4, num_classes=1)


def test_reads_shapes() -> None:
    assert image_shape([3, 4, 5]) == (3, 4, 5)
    assert num_positions([7]) == 7
    assert num_columns([3, 4, 5]) == 60


@pytest.mark.parametrize("shape", [[], [28, 28], [1, 0, 28]])
def test_refuses_what_is_no_image(shape: list[int]) -> None:
    with pytest.raises(ValueError, match=r"input_shape must be \(channels, height, width\), each >= 1, got"):
        image_shape(shape)


@pytest.mark.parametrize("shape", [[], [0], [1, 28, 28]])
def test_refuses_what_is_no_sequence(shape: list[int]) -> None:
    with pytest.raises(ValueError, match=r"input_shape must be \(positions,\), at least 1, got"):
        num_positions(shape)


@pytest.mark.parametrize("shape", [[], [0], [1, -1]])
def test_refuses_an_example_without_numbers(shape: list[int]) -> None:
    with pytest.raises(ValueError, match="input_shape must be one or more sizes, each >= 1, got"):
        num_columns(shape)
