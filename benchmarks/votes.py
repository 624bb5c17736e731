"""How often votes of anybody's ClientApp find groups where there are none: docs/YOUR_FLOWER_APP.md.

    python benchmarks/votes.py [--federations 100] [--write]

Logistic regression in NumPy, ten clients of 40 to 120 rows to train on and 40 to evaluate on, of one
distribution or of two whose labels contradict each other. The strategies run as in anybody's ServerApp.
"""

from collections.abc import Callable

import numpy as np
from common import arguments, show, table
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


def main() -> None:
    """Run, and print the table."""
    parser = arguments(__doc__, page="YOUR_FLOWER_APP")
    parser.add_argument("--federations", type=int, default=100)
    given = parser.parse_args()
    rows, start = [], ArrayRecord([np.zeros((1, INPUTS))])
    for name, make in METHODS.items():
        row = [name]
        for groups in (1, 2):
            grids = ((seed, federation(seed, groups)) for seed in range(given.federations))
            verdicts = [make(seed).start(grid, start, ROUNDS).verdict for seed, grid in grids]
            found = sum(bool(each and each.grouped) for each in verdicts)
            ends = binomtest(found, given.federations).proportion_ci()
            row.append(f"{found} ({100 * ends.low:.1f} to {100 * ends.high:.1f} %)")
        rows.append(row)
    head = ["", "one distribution", "two that contradict each other"]
    show("votes", f"{table(head, rows)}\n\nOf {given.federations} federations each.", given.write)


if __name__ == "__main__":
    main()
