"""Settings that other frameworks published times for; data are random: only their shapes matter here."""

from settings import Setting
from torch import nn


def lenet() -> nn.Module:
    """Build the CNN of PyTorch's CIFAR-10 tutorial: 62,006 parameters."""
    layers: list[nn.Module] = []
    for before, after in ((3, 6), (6, 16)):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def logistic_regression() -> nn.Module:
    """Build FedML's model for MNIST: 7,850 parameters, with its sigmoid."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Sigmoid())


def pfl_cnn() -> nn.Module:
    """Build the `simple_cnn` of pfl-research's benchmarks for CIFAR-10: 1,626,442 parameters."""
    convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*convolutions, *dense, nn.Linear(128, 10))


def pfllib_cnn() -> nn.Module:
    """Build PFLlib's `FedAvgCNN` for MNIST: 582,026 parameters."""
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


PUBLISHED = {
    "published-blazefl": Setting(
        "BlazeFL's CIFAR-10: 32×32×3, 100 clients, all in each of 5 rounds, 500 samples each, 5 "
        "epochs, batch 50, CNN of 62,006 parameters",
        clients=100,
        examples=500,
        side=32,
        channels=3,
        model="published.lenet",
        training={"learning_rate": 0.1, "batch_size": 50, "epochs": 5},
        report=(
            "BlazeFL's authors draw about 30 s for itself and 92 s for Flower (read off a figure); their "
            "[README](https://github.com/blazefl/blazefl) names an AMD EPYC 7542 with 32 cores and four "
            "Quadro RTX 6000. Their benchmark times the five rounds alone, without starting."
        ),
        ways=("fedclust-local", "fedclust-flower", "stock-flower"),
    ),
    "published-flute": Setting(
        "FLUTE's LR-MNIST: 28×28, 1,000 clients, 10 of them in each of 100 rounds, 60 samples each, 1 "
        "epoch, batch 10, logistic regression of 7,850 parameters",
        clients=1000,
        cohort=10,
        examples=60,
        side=28,
        model="published.logistic_regression",
        training={"learning_rate": 0.03, "batch_size": 10, "epochs": 1},
        report=(
            "FLUTE's [README](https://github.com/microsoft/msrflute) reports 3:20 min for itself and 30:14 "
            "min for Flower 1.0.0 on CPUs (1:26 and 56:45 on four GPUs) and does not say which. Its "
            "clients' sizes differ, and it tests the model every 20 rounds."
        ),
        ways=("fedclust-local", "fedclust-flower", "stock-flower"),
    ),
    "published-pfl": Setting(
        "pfl-research's CIFAR-10 baseline: 32×32×3, 1,000 users of 50 samples, 50 of them in each of "
        "1,500 rounds, 1 epoch, batch 10, CNN of 1,626,442 parameters",
        clients=1000,
        cohort=50,
        examples=50,
        side=32,
        channels=3,
        model="published.pfl_cnn",
        training={"learning_rate": 0.1, "batch_size": 10, "epochs": 1},
        report=(
            "The setting is `benchmarks/image_classification/configs/baseline.yaml` of "
            "[pfl-research](https://github.com/apple/pfl-research). Its paper (arXiv 2404.06430) times "
            "frameworks on CIFAR-10 with an A100 and 10 CPUs; here `pfl` itself runs beside us."
        ),
        ways=("fedclust-local", "fedclust-flower", "pfl", "pfl-2", "stock-flower"),
    ),
    "published-pfllib": Setting(
        "PFLlib's MNIST: 28×28, 20 clients, all in each of 2,000 rounds, 2,625 samples each, 1 epoch, "
        "batch 10, CNN of 582,026 parameters",
        clients=20,
        examples=2625,
        side=28,
        model="published.pfllib_cnn",
        training={"learning_rate": 0.005, "batch_size": 10, "epochs": 1},
        report=(
            "[PFLlib's issue 253](https://github.com/TsingZ0/PFLlib/issues/253) reports 17.2 s for round 0 "
            "and about 18 s for each, on an RTX 5090 that is used by 7 %. Its rounds also evaluate all "
            "clients, and its clients' sizes differ."
        ),
        ways=("fedclust-local", "fedclust-flower", "stock-flower"),
    ),
}
