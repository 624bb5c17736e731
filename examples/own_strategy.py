"""Use a clustering method from your own package, here the folder own_package next to this script.

    python examples/own_strategy.py

The method is one class. With a YAML file in own_package/conf/ it also works on the command line, next to
fedclust's own methods:

    cd examples
    python -m fedclust --config-dir own_package/conf strategy=by_majority partition=dirichlet
    python -m fedclust --config-dir own_package/conf experiment=own_experiment
"""

import numpy as np
import torch
from own_package import ByMajority
from torch import nn

import fedclust


def shop(generator: np.random.Generator, bestseller: int) -> tuple[np.ndarray, np.ndarray]:
    """Make 100 sales, shape (100, 6), of 3 products, shape (100,), of which one sells best."""
    shares = np.full(3, 0.1)
    shares[bestseller] = 0.8
    products = generator.choice(3, size=100, p=shares)
    return (np.eye(3, 6)[products] + 0.4 * generator.normal(size=(100, 6))).astype(np.float32), products


def main() -> fedclust.Result:
    """Run the example; print the clusters."""
    generator = np.random.default_rng(0)
    clients = [shop(generator, bestseller=number % 3) for number in range(9)]
    torch.manual_seed(0)  # for the network's first weights
    result = fedclust.simulate(
        ByMajority(min_share=0.6),
        nn.Linear(6, 3),
        clients,
        rounds=5,
        training=fedclust.LocalTraining(learning_rate=0.2, batch_size=10, epochs=1),
    )
    print("clusters:", result.assignment)
    print("accuracy:", round(result.summary["mean_client_accuracy"], 3))
    return result


if __name__ == "__main__":
    main()
