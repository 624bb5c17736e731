"""A ServerApp as Flower's quickstart has it, with clusters."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedclust import strategies

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print which clients belong together."""
    config = context.run_config
    strategy = getattr(strategies, config["strategy"])()
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        min_available_nodes=config["num-nodes"],
    )
    if config["report"]:
        result.report(config["report"])
    print(f"clusters: {result.assignment.tolist()}")
    print(f"verdict: {result.verdict.text if result.verdict else None}")
