from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from fedclust.models import build
from fedclust.models.mobilenet import MobileNetV2

NODE = {
    "_target_": "fedclust.models.mobilenet.MobileNetV2",
    "input_shape": [3, 16, 16],
    "num_classes": 5,
    "pretrained": None,
    "dropout": 0.2,
}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A narrow MobileNetV2 with a head for 1,001 classes, as those on the hub have."""
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, finegrained_output=False, num_labels=1001)
    folder = tmp_path_factory.mktemp("mobilenet")
    transformers.MobileNetV2ForImageClassification(config).save_pretrained(folder)
    return str(folder)


def test_starts_from_the_body_of_a_saved_classifier(classifier: str) -> None:
    model = build(NODE | {"pretrained": classifier}, seed=0).eval()
    saved = transformers.MobileNetV2ForImageClassification.from_pretrained(classifier).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = saved.mobilenet_v2(images).pooler_output
        torch.testing.assert_close(model.features(images), expected)  # type: ignore[operator]
        assert model(images).shape == (2, 5)


def test_the_head_is_new_and_depends_on_the_seed(classifier: str) -> None:
    first, same, other = (build(NODE | {"pretrained": classifier}, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(first["head.weight"], same["head.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])
    bodies = [name for name in first if name.startswith("body")]
    assert all(torch.equal(first[name], other[name]) for name in bodies)


def test_running_statistics_move_a_tenth_of_the_way() -> None:
    model = build(NODE, seed=0)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {norm.momentum for norm in norms} == {0.1}


def test_grey_images_can_be_learned_from_scratch() -> None:
    assert build(NODE | {"input_shape": [1, 16, 16]}, seed=0)(torch.zeros(2, 1, 16, 16)).shape == (2, 5)


def test_refuses_channels_the_weights_do_not_expect(classifier: str) -> None:
    with pytest.raises(
        ValueError, match=r"input_shape must have the 3 channels .* expects, got \(1, 16, 16\)"
    ):
        MobileNetV2([1, 16, 16], 5, classifier, dropout=0.2)


def test_refuses_another_kind_of_network(tmp_path: Path) -> None:
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pretrained must name a mobilenet_v2, got .*, a vit"):
        MobileNetV2([3, 16, 16], 5, str(tmp_path), dropout=0.2)


def test_refuses_a_wrong_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MobileNetV2: path must be a hub id, or a local folder"):
        MobileNetV2([3, 16, 16], 5, str(tmp_path / "none"), dropout=0.2)


def test_refuses_what_is_no_image_and_a_single_class() -> None:
    with pytest.raises(ValueError, match=r"input_shape must be \(channels, height, width\)"):
        MobileNetV2([64], 5, None, dropout=0.2)
    with pytest.raises(ValueError, match="num_classes must be >= 2, got 1"):
        MobileNetV2([3, 16, 16], 1, None, dropout=0.2)
