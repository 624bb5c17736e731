"""Inspect a partition without training: print its heterogeneity and plot the clients' labels."""

import numpy as np
from rich.console import Console
from rich.table import Table

from fedclust import metrics
from fedclust.federation import Descriptions
from fedclust.results import Recorder
from fedclust.results.charts.chart import save
from fedclust.results.charts.run import label_counts

_MEASURES = ("weighted_psi", "hellinger", "jensen_shannon", "earth_movers")


def inspect(
    recorder: Recorder, described: Descriptions, partition: str, seed: int, console: Console
) -> dict[str, object]:
    """Print and record the heterogeneity of a partition, and plot its clients' label counts.

    Parameters
    ----------
    recorder
        Writes the numbers and the plot.
    described
        Descriptions of the clients' data.
    partition
        Name of the partition, for the table.
    seed
        The run's seed.
    console
        Where to print.

    Returns
    -------
    The content of ``summary.json``.
    """
    counts = described.train_counts
    sizes = counts.sum(axis=1)
    tested = described.test_counts.sum(axis=1)
    summary: dict[str, object] = {
        "task": "inspect",
        "partition": partition,
        "seed": seed,
        "num_clients": len(counts),
        "num_classes": counts.shape[1],
        "num_train": int(sizes.sum()),
        **({"num_validation": int(held_out)} if (held_out := described.num_validation.sum()) else {}),
        "num_test": int(tested.sum()),
        "smallest_client": int(sizes.min()),
        "median_client": float(np.median(sizes)),
        "largest_client": int(sizes.max()),
        **{name: getattr(metrics, name)(counts) for name in _MEASURES},
    }
    recorder.summary(summary)
    drawn = label_counts(counts, described.groups, described.class_names or None, described.client_names)
    picture = save(drawn.chart, recorder.folder / "plots" / "label_counts.png", title=drawn.title)
    table = Table(title=f"{partition}, seed {seed}", show_header=False, title_justify="left")
    for key, value in summary.items():
        if key not in ("task", "partition", "seed"):
            table.add_row(key.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    console.print(f"picture: {picture}", soft_wrap=True, highlight=False)
    return summary
