"""Turn this app's run configuration into fedclust's, on the server and on every node."""

from flwr.app import Context

SETTINGS = {
    "strategy": "strategy",
    "alpha": "partition.alpha",
    "num-server-rounds": "rounds",
    "fraction-train": "participation",
    "local-steps": "training.steps",
    "batch-size": "training.batch_size",
    "learning-rate": "training.learning_rate",
    "seed": "seed",
}
HEAD = ("features=encoder", "encoder=efficientnet_lite0", "model=linear", "training.augmentation=none")


def translated(context: Context) -> Context:
    """Return the context with the run configuration that fedclust's apps read."""
    given = context.run_config
    parts = ["experiment=fedgwc_cifar100", "compare=[]"]
    if given["network"] == "head":
        parts += HEAD
    elif given["network"] != "own":
        raise ValueError(f"network must be 'head' or 'own', but it is {given['network']!r}")
    parts += [f"{ours}={given[name]}" for name, ours in SETTINGS.items()]
    if given["data"]:
        parts.append(f"dataset.path={given['data']}")
    config = {"overrides": " ".join([*parts, str(given["overrides"])]), "output-dir": given["output-dir"]}
    return Context(context.run_id, context.node_id, context.node_config, context.state, config)
