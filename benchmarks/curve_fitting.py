"""How long FedGMCC takes to fit, score and average the models of one round.

    python benchmarks/curve_fitting.py [--device cuda] [--clients 10] [--pairs-per-batch auto 1 16]

Target for 10 clients of a convolutional network of 100,000 parameters on 28 × 28 images, with 1,024 Monte
Carlo inputs and 50 steps, on two cores: 60 s. On a busy machine read the CPU seconds, with OMP_NUM_THREADS=1.
"""

import argparse
import time

import torch
from torch import nn

from fedclust.clustering import fedgmcc
from fedclust.models.dense import MLP
from fedclust.models.images import ConvNet


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Name the networks: conf/model/cnn_emnist.yaml on EMNIST62 and conf/model/mlp.yaml on the digits."""
    shape, digits = (1, 28, 28), (1, 8, 8)
    return {
        "cnn_emnist": (
            ConvNet(shape, 62, channels=(16, 32), kernel_size=3, padding=(0, 0), hidden=(128,)),
            shape,
        ),
        "mlp": (MLP(digits, 10, hidden=(64,)), digits),
    }


def main() -> None:
    """Print seconds per round, per network and number of pairs per batch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--pairs-per-batch", nargs="+", default=["auto"])
    arguments = parser.parse_args()
    for name, (network, shape) in networks().items():
        size = sum(parameter.numel() for parameter in network.parameters())
        draws = torch.Generator().manual_seed(0)
        # As after some local training: a common model and a change of each client.
        models = {
            key: tensor + 0.02 * torch.randn((arguments.clients, *tensor.shape), generator=draws)
            for key, tensor in network.state_dict().items()
        }
        for asked in arguments.pairs_per_batch:
            parameters = fedgmcc.Parameters(pairs_per_batch=asked if asked == "auto" else int(asked))
            begin, begin_cpu = time.perf_counter(), time.process_time()
            inputs = fedgmcc.draw_inputs(parameters.num_inputs, shape, draws)
            fedgmcc.step(
                fedgmcc.start(parameters), network, models, inputs, parameters, draws, arguments.device
            )
            seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
            print(
                f"{name}, {size} parameters, {arguments.clients} clients, {asked} pairs at a time: "
                f"{seconds:.1f} s, {cpu:.1f} CPU s",
                flush=True,
            )


if __name__ == "__main__":
    main()
