from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedclust.data.dataset import SourceError
from fedclust.data.digits import Digits


def digits_builder(**changes) -> Digits:
    return Digits(**({"name": "digits", "num_classes": 10, "input_shape": [1, 8, 8]} | changes))


def test_digits_are_grey_images_of_the_full_range(tmp_path: Path) -> None:
    data = digits_builder().load(tmp_path)
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert data.inputs.dtype == torch.uint8
    assert data.num_train == 1797
    assert data.class_names == tuple("0123456789")
    source = load_digits()
    np.testing.assert_array_equal(data.labels, source.target)
    # 0 to 16 became 0 to 255, so dividing by 255 gives back sixteenths, to half a grey level
    np.testing.assert_allclose(data.inputs[:, 0].numpy() / 255, source.images / 16, atol=0.5 / 255)
    assert data.mean == pytest.approx([source.images.mean() / 16], abs=1e-3)
    assert data.std == pytest.approx([source.images.std() / 16], abs=1e-3)


@pytest.mark.parametrize("changes", [{"path": "somewhere"}, {"hub": "someone/digits"}])
def test_a_source_is_refused(changes: dict) -> None:
    with pytest.raises(SourceError, match=r"so dataset\.path and \.hub must be null, got some"):
        digits_builder(**changes)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"input_shape must be \[1, 8, 8\], .* got \[64\]"):
        digits_builder(input_shape=[64]).load(tmp_path)
    with pytest.raises(ValueError, match="num_classes must be 10, got 9"):
        digits_builder(num_classes=9).load(tmp_path)
