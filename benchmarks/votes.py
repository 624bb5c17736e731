"""How often votes of anybody's ClientApp find groups where there are none: docs/YOUR_FLOWER_APP.md.

    python benchmarks/votes.py [--federations 100] [--write]

Logistic regression in NumPy, ten clients of 40 to 120 rows to train on and 40 to evaluate on, of one
distribution or of two whose labels contradict each other. The strategies run as in anybody's ServerApp.
"""

import logging
from collections.abc import Callable

import numpy as np
from common import arguments, show, side_by_side, table
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy.stats import binomtest

from fedclust.grids.local_grid import LocalGrid
from fedclust.strategies import CFL, FLHC, Auto, ClusteredStrategy, FedClustWeights, FeSEM

CLIENTS, INPUTS, ROUNDS = 10, 8, 20
METHODS: dict[str, Callable[[int], ClusteredStrategy]] = {
    "`Auto`": lambda seed: Auto(seed=seed),
    "`FLHC`": lambda seed: FLHC(seed=seed),
    "`FeSEM`": lambda seed: FeSEM(seed=seed),
    "`FedClustWeights`": lambda seed: FedClustWeights(seed=seed),
    "`CFL`": lambda seed: CFL(
        seed=seed, parameters=CFL.parameters_type(relative=True, eps_1=0.75, eps_2=0.5, min_rounds=5)
    ),
}


def federation(seed: int, groups: int) -> LocalGrid:
    """Make clients whose labels follow one rule, or as many rules as there are groups."""
    draws = np.random.default_rng([seed, groups])
    rule = draws.normal(size=INPUTS)
    rows = []
    for client in range(CLIENTS):
        inputs = draws.normal(size=(int(draws.integers(40, 121)) + 40, INPUTS))
        sign = -1 if client % groups else 1
        rows.append((inputs, (sign * inputs @ rule + draws.logistic(size=len(inputs)) > 0).astype(float)))
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        inputs, labels = rows[context.node_config["partition-id"]]
        training = message.metadata.message_type == "train"
        part = slice(40, None) if training else slice(40)
        inputs, labels = inputs[part], labels[part]
        ((weights,),) = message.content["arrays"].to_numpy_ndarrays()
        metrics, content = {"num-examples": len(labels)}, RecordDict()
        if training:
            for _ in range(5):
                chances = 1 / (1 + np.exp(-inputs @ weights))
                weights = weights - 0.5 * inputs.T @ (chances - labels) / len(labels)
            content["arrays"] = ArrayRecord([weights[None]])
        else:
            logits = inputs @ weights
            metrics["loss"] = float((np.logaddexp(0, logits) - labels * logits).mean())
        content["metrics"] = MetricRecord(metrics)
        return Message(content, reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    return LocalGrid(app, {}, CLIENTS)


def found_groups(name: str, groups: int, federations: int) -> str:
    """Count in how many federations a strategy's verdict is to train in groups."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    start, found = ArrayRecord([np.zeros((1, INPUTS))]), 0
    for seed in range(federations):
        verdict = METHODS[name](seed).start(federation(seed, groups), start, ROUNDS).verdict
        found += bool(verdict and verdict.grouped)
    ends = binomtest(found, federations).proportion_ci()
    return f"{found} ({100 * ends.low:.1f} to {100 * ends.high:.1f} %)"


def main() -> None:
    """Run, and print the table."""
    parser = arguments(__doc__, page="YOUR_FLOWER_APP")
    parser.add_argument("--federations", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    work = [(name, groups, given.federations) for name in METHODS for groups in (1, 2)]
    cells = {item[:2]: cell for _, item, cell in side_by_side(found_groups, work, given.workers)}
    rows = [[name, *(cells[name, groups] for groups in (1, 2))] for name in METHODS]
    head = ["", "one distribution", "two that contradict each other"]
    show("votes", f"{table(head, rows)}\n\nOf {given.federations} federations each.", given.write)


if __name__ == "__main__":
    main()
