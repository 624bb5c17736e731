"""Cluster your own clients: arrays per client, your own network, a model per group.

Twelve sensors report the same four states, but five of them are wired in reverse.

    python examples/own_arrays.py [folder for the report]
"""

import sys

import numpy as np
import torch
from torch import nn

import fedclust

ROUNDS = 20


def sensor(generator: np.random.Generator, reversed_wiring: bool) -> tuple[np.ndarray, np.ndarray]:
    """Make 80 readings of 8 channels, shape (80, 8), and their states, shape (80,)."""
    states = generator.integers(0, 4, 80)
    readings = 2 * np.eye(4, 8)[states] + 0.4 * generator.normal(size=(80, 8))
    return readings.astype(np.float32), 3 - states if reversed_wiring else states


def main(folder: str | None = None) -> fedclust.Result:
    """Run the example; print the clusters."""
    generator = np.random.default_rng(0)
    clients = [sensor(generator, reversed_wiring=number >= 7) for number in range(12)]
    torch.manual_seed(0)  # for the network's first weights
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    result = fedclust.simulate(
        "auto",
        network,
        clients,
        rounds=ROUNDS,
        training=fedclust.LocalTraining(learning_rate=0.2, batch_size=16, epochs=2),
        on_round=lambda record: print(record["round"], record["cluster_sizes"]),
    )
    print("clusters:", result.assignment)
    print("accuracy:", round(result.summary["mean_client_accuracy"], 3))
    print("client 0 is in state:", result.predict(0, clients[0][0][:5]).argmax(dim=1).tolist())
    newcomer = sensor(generator, reversed_wiring=True)
    print("a new sensor belongs to cluster", result.assign(*newcomer))
    if folder is not None:
        print("tables and pictures:", result.report(folder))
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
