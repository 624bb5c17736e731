"""Compare strategies on your own arrays, and draw the accuracy of each over the rounds.

Ten clinics read the same kind of instrument; four of the instruments are calibrated differently.

    python examples/compare_strategies.py [picture.png]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedclust
from fedclust.results.charts import Line, curves, save
from fedclust.strategies import Auto, ClusteredStrategy, ClustPSIPFL

ROUNDS = 20


def clinic(generator: np.random.Generator, recalibrated: bool) -> tuple[np.ndarray, np.ndarray]:
    """Make 90 measurements, shape (90, 8), and their diagnoses of 0, 1 and 2, shape (90,)."""
    diagnoses = generator.integers(0, 3, 90)
    measured = 1.5 * np.eye(3, 8)[diagnoses] + 0.5 * generator.normal(size=(90, 8))
    return measured.astype(np.float32), (diagnoses + 1) % 3 if recalibrated else diagnoses


def main(picture: str = "comparison.png") -> dict[str, fedclust.Result]:
    """Run the example; print a line per strategy and save the picture."""
    generator = np.random.default_rng(0)
    clients = [clinic(generator, recalibrated=number >= 6) for number in range(10)]
    torch.manual_seed(0)  # for the network's first weights
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    training = fedclust.LocalTraining(learning_rate=0.2, batch_size=10, epochs=1)
    strategies = {
        "one model for all": ClusteredStrategy(),
        "by label counts": ClustPSIPFL(),
        "groups that prove better": Auto(),
    }
    results = {
        name: fedclust.simulate(strategy, network, clients, rounds=ROUNDS, training=training)
        for name, strategy in strategies.items()
    }
    for name, result in results.items():
        print(f"{name}: {result.num_clusters} clusters, {result.summary['mean_client_accuracy']:.3f}")
    lines = [
        Line(name, each.rounds["round"], each.rounds["mean_client_accuracy"])
        for name, each in results.items()
    ]
    save(curves(lines, "round", "mean client accuracy"), Path(picture))  # an Altair chart, as SVG, PDF or PNG
    return results


if __name__ == "__main__":
    main(*sys.argv[1:])
