"""Turn this app's run configuration into fedclust's, on the server and on every node."""

from flwr.app import Context

SETTINGS = {
    "strategy": "strategy",
    "num-clients": "partition.num_clients",
    "num-server-rounds": "rounds",
    "fraction-train": "participation",
    "local-epochs": "training.epochs",
    "batch-size": "training.batch_size",
    "learning-rate": "training.learning_rate",
    "seed": "seed",
}


def translated(context: Context) -> Context:
    """Return the context with the run configuration that fedclust's apps read."""
    given = context.run_config
    parts = ["experiment=clust_psi_pfl_fmnist", "compare=[]"]
    if float(given["similarity"]) >= 0:
        parts += ["partition=similarity", f"partition.similarity={given['similarity']}"]
    else:
        parts.append(f"partition.alpha={given['alpha']}")
    parts += [f"{ours}={given[name]}" for name, ours in SETTINGS.items()]
    if given["data"]:
        parts.append(f"dataset.path={given['data']}")
    config = {"overrides": " ".join([*parts, str(given["overrides"])]), "output-dir": given["output-dir"]}
    return Context(context.run_id, context.node_id, context.node_config, context.state, config)
