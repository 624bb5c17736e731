"""What holds for every network in conf/model: shapes, parameter counts, training, alone and vectorised."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedclust.models.construction import Classifier, build
from fedclust.settings.composition import plain

CONF = Path(__file__).parents[3] / "conf" / "model"


# Name in conf: shape of one example, classes, vocabulary, and parameters as the classes' docstrings work
# them out. The shape is that of the paper's data where parameters depend on it, else a small one.
MODELS: dict[str, tuple[list[int], int, int | None, int]] = {
    "linear": ([64], 10, None, 650),
    "mlp": ([1, 8, 8], 10, None, 4_810),
    "mlp_500": ([64], 10, None, 538_510),
    # 6 numbers and 8 categories of 110 values in all, each embedded in 8 numbers: 70 columns
    "table_embedding": ([14], 2, None, 5_554),
    # 28 → 26 → 13 → 11 → 5 → 3 → 1 pixels: 80 + 1,168 + 4,640, then 33 · 2,048 + 2,049 · 10
    "cnn_fmnist": ([1, 28, 28], 10, None, 93_962),
    # 32 → 16 → 8 → 4 pixels
    "cnn_cifar10": ([3, 32, 32], 10, None, 551_722),
    # 32 → 28 → 14 → 10 → 5 pixels: 4,864 + 102,464, then 1,601 · 384 + 385 · 192 + 193 · 100
    "cnn_fedgwc": ([3, 32, 32], 100, None, 815_332),
    # 28 → 26 → 13 → 11 → 5 pixels: 160 + 4,640, then 801 · 128 + 129 · 62
    "cnn_emnist": ([1, 28, 28], 62, None, 115_326),
    # 28 (padded to 32) → 28 → 14 → 10 → 5 pixels: 156 + 2,416, then 401 · 120 + 121 · 84 + 85 · 47
    "lenet5": ([1, 28, 28], 47, None, 64_851),
    "resnet9": ([3, 8, 8], 10, None, 6_573_130),
    # torchvision publishes 11,689,512 for ImageNet's 1,000 classes, of 513 each
    "resnet18": ([3, 16, 16], 10, None, 11_689_512 - 1_000 * 513 + 10 * 513),
    # torchvision publishes 3,504,872 for ImageNet's 1,000 classes, of 1,281 each
    "mobilenet_v2": ([3, 16, 16], 10, None, 3_504_872 - 1_000 * 1_281 + 10 * 1_281),
    "embedding_lstm": ([12], 2, 1000, 33_782),
    "embedding_dense": ([60], 2, 1000, 47_386),
    "bilstm_tagger": ([15], 2, 1025, 54_418),
}
CATEGORY_SIZES = [10, 17, 8, 16, 7, 6, 3, 43]


def config(name: str) -> dict:
    shape, classes, vocabulary, _ = MODELS[name]
    dataset: dict = {"input_shape": shape, "num_classes": classes, "vocabulary_size": vocabulary}
    if name == "table_embedding":
        dataset["category_sizes"] = CATEGORY_SIZES
    whole = OmegaConf.create(
        {
            "dataset": dataset,
            "features": {"input_shape": shape},
            "model": OmegaConf.load(CONF / f"{name}.yaml"),
        }
    )
    return dict(plain(whole)["model"])


def batch(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape, classes, vocabulary, _ = MODELS[name]
    generator = torch.Generator().manual_seed(7)
    if vocabulary is None:
        inputs = torch.randn(size, *shape, generator=generator)
        if name == "table_embedding":
            columns = [torch.randint(count, (size,), generator=generator) for count in CATEGORY_SIZES]
            inputs[:, 6:] = torch.stack(columns, dim=1)
    else:
        inputs = torch.randint(1, vocabulary, (size, *shape), generator=generator)
    labels = (size, *shape) if name == "bilstm_tagger" else (size,)
    return inputs, torch.randint(classes, labels, generator=generator)


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_every_configuration_is_tested() -> None:
    assert set(MODELS) == {path.stem for path in CONF.glob("*.yaml")}


@pytest.mark.parametrize("name", MODELS)
def test_scores_every_class_and_trains_on_a_batch(name: str) -> None:
    model = without_dropout(build(config(name), seed=0))
    assert isinstance(model, Classifier)
    assert sum(parameter.numel() for parameter in model.parameters()) == MODELS[name][3]
    inputs, labels = batch(name, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        logits = model(inputs)
        assert logits.shape == (*labels.shape, MODELS[name][1])
        losses.append(loss(logits, labels))
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    torch.testing.assert_close(model.head(model.features(inputs)), model(inputs))
    assert model.features(inputs).shape == (*labels.shape, model.width)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # LSTM, known and accepted
def test_two_clients_at_once_get_the_gradients_and_statistics_of_one_after_the_other(name: str) -> None:
    # In double precision, so that rounding does not hide a difference that matters.
    clients = [without_dropout(build(config(name), seed)).double() for seed in (1, 2)]
    inputs, labels = (torch.stack(parts) for parts in zip(*[batch(name, 3), batch(name, 3)], strict=True))
    inputs[1], labels[1] = inputs[1].flip(0), labels[1].roll(1, 0)
    if inputs.is_floating_point():
        inputs = inputs.double()
    parameters, buffers = stack_module_state(clients)  # type: ignore[arg-type]

    def client_loss(parameters, buffers, inputs, labels) -> torch.Tensor:
        return loss(functional_call(clients[0], (parameters, buffers), (inputs,)), labels)

    together = vmap(grad(client_loss), randomness="same")(parameters, buffers, inputs, labels)

    for index, model in enumerate(clients):
        loss(model(inputs[index]), labels[index]).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(together[key][index], parameter.grad)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[key][index], buffer)


REFUSALS: list[tuple[str, dict, str]] = [
    ("linear", {"num_classes": 0}, "num_classes must be >= 1, got 0"),
    ("mlp", {"hidden": [5, 0]}, r"^hidden must be numbers >= 1, got \[5, 0\]$"),
    *(
        ("mlp", {"input_shape": shape}, "input_shape must be one or more sizes, each >= 1, got")
        for shape in ([], [0], [1, -1])
    ),
    *(
        ("table_embedding", {"category_sizes": sizes}, "category_sizes must be 1 to 14 sizes >= 1")
        for sizes in (None, [], [2, 0], [2] * 15)
    ),
    ("table_embedding", {"embedding": 0}, "embedding must be >= 1, got 0"),
    *(
        (name, {"input_shape": shape}, r"input_shape must be \(channels, height, width\), each >= 1, got")
        for name in ("cnn_fedgwc", "cnn_cifar10", "resnet9", "resnet18", "mobilenet_v2")
        for shape in ([64], [0, 16, 16])
    ),
    # 15 → 11 → 5 → 1 → 0
    ("cnn_fedgwc", {"input_shape": [3, 15, 15]}, r"one pixel after pooling 2, got \(3, 15, 15\)"),
    ("cnn_fedgwc", {"channels": []}, r"channels and padding must be lists of one length >= 1, got \[\] and"),
    ("cnn_fedgwc", {"hidden": [0]}, r"hidden must be numbers >= 1, got \[0\]"),
    ("cnn_fedgwc", {"kernel_size": 0}, "kernel_size must be >= 1, got 0"),
    ("cnn_fedgwc", {"padding": [0]}, r"channels and padding must be lists of one length .* and \[0\]"),
    ("cnn_fedgwc", {"padding": [-1, 0]}, r"padding must be numbers >= 0, got \[-1, 0\]"),
    ("cnn_cifar10", {"input_shape": [3, 8, 7]}, r"one pixel after pooling 3, got \(3, 8, 7\)"),
    ("cnn_cifar10", {"channels": [0, 3, 3]}, r"channels must be numbers >= 1, got \[0, 3, 3\]"),
    ("cnn_cifar10", {"hidden": 0}, "hidden must be >= 1, got 0"),
    ("cnn_cifar10", {"dropout": [0.2]}, r"channels and dropout must be lists of one length .* and \[0.2\]"),
    ("resnet9", {"input_shape": [3, 8, 7]}, r"input_shape must be at least 8 × 8 pixels, got \(3, 8, 7\)"),
    ("resnet18", {"stem": "mnist"}, "stem must be one of imagenet, cifar, got 'mnist'"),
    *(
        (name, {"input_shape": shape}, r"input_shape must be \(positions,\), each >= 1, got")
        for name in ("embedding_lstm", "embedding_dense", "bilstm_tagger")
        for shape in ([], [0], [1, 8, 8])
    ),
    *(
        (name, {size: 0}, f"{size} must be >= 1, got 0")
        for name in ("embedding_lstm", "embedding_dense", "bilstm_tagger")
        for size in ("vocabulary_size", "embedding", "hidden")
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSALS)
def test_refuses(name: str, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(config(name) | change, seed=0)
