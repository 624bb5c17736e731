"""Model cards of an export, made only from what the run measured and recorded."""

import re
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedclust.data.input_encoders import ImageEncoder, InputEncoder, TableEncoder, TextEncoder
from fedclust.personal.layers import FINETUNE, PRIOR
from fedclust.serving.served import CLUSTER, WEIGHTS, Served, cluster_folder
from fedclust.support.checks import few

if TYPE_CHECKING:
    from fedclust.results import SavedRun


_FIGURES = {
    "num_train": "training rows",
    "num_test": "test rows",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auc": "AUC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}
_MOST_ROWS = 100
# What Markdown shows as it stands: words of letters and digits, joined by one sign at most.
_PLAIN = re.compile(r"[^\W_]+(?:(?:, |\. |[ '_-])[^\W_]+)*")


def index_card(served: Served, run: "SavedRun") -> str:
    """Write the card of the whole export."""
    lines = [
        f"# Models of {_name(run.strategy)}",
        "",
        *_about(served, run),
        "",
        "## Which model serves whom",
        "",
    ]
    lines += list(_table(["cluster", "folder", "clients"], _clusters(served)))
    lines += ["", "## Figures of each client on its own test rows", "", *_figures(run, None), ""]
    return "\n".join([*lines, *_limits(served, run, None), "", *_use(served, None)]) + "\n"


def cluster_card(served: Served, run: "SavedRun", cluster: int) -> str:
    """Write the card of one cluster's model."""
    lines = [f"# Model of cluster {cluster} of {_name(run.strategy)}", "", *_about(served, run)]
    lines += ["", "## Figures of its clients on their own test rows", "", *_figures(run, cluster), ""]
    return "\n".join([*lines, *_limits(served, run, cluster), "", *_use(served, cluster)]) + "\n"


def _about(served: Served, run: "SavedRun") -> Iterator[str]:
    summary, config = run.summary, run.config
    choices = config.get("choices") or {}
    counts = run.label_counts
    yield "## Data and training"
    yield ""
    for name in ("dataset", "partition", "model", "aggregator"):
        if choices.get(name):
            yield f"- {name}: {_name(str(choices[name]))}"
    yield f"- inputs: {_inputs(served.encoder)}"
    if counts is not None:
        shares = zip(map(_name, served.class_names), counts.sum(axis=0).tolist(), strict=False)
        yield f"- classes (training rows): {', '.join(f'{name} ({rows:,})' for name, rows in shares)}"
        yield f"- clients: {len(counts):,}, with {int(counts.sum()):,} training rows"
    for name in ("rounds", "seed", "num_clusters"):
        if summary.get(name) is not None:
            yield f"- {name.replace('num_', '')}: {summary[name]}"
    if verdict := summary.get("verdict"):
        yield f"- verdict: {verdict['text']}"
    if summary.get("mean_client_accuracy") is not None:
        yield f"- accuracy, mean over clients: {summary['mean_client_accuracy']:.3f}"


def _inputs(encoder: InputEncoder) -> str:
    if isinstance(encoder, TableEncoder):
        numbers = ", ".join(_name(column.name) for column in encoder.numbers) or "none"
        categories = "; ".join(
            f"{_name(column.name)} ({few(map(_name, compress(column.values, column.known)), 20)})"
            for column in encoder.categories
        )
        return f"numbers {numbers}; categories {categories or 'none'}"
    if isinstance(encoder, TextEncoder):
        return f"texts, the first {encoder.length} tokens"
    if isinstance(encoder, ImageEncoder):
        return f"images of shape {encoder.shape} (channels, height, width), resize {encoder.resize}"
    return f"rows of {encoder.dtype}, shape {encoder.shape}, as they were trained on"


def _clusters(served: Served) -> Iterator[list[str]]:
    for cluster in served.clusters:
        who = [site.name or str(site.client) for site in served.sites if site.cluster == cluster]
        yield [str(cluster), f"`{cluster_folder(Path(), cluster)}`", few(map(_name, who), 20)]


def _figures(run: "SavedRun", cluster: int | None) -> list[str]:
    clients = run.clients
    if clients is None:
        return ["The run has no figures per client."]
    if cluster is not None:
        clients = clients[clients["cluster"] == cluster]
    columns = [name for name in ("name", "client", "cluster") if name in clients]
    figures = [name for name in _FIGURES if name in clients and clients[name].notna().any()]
    layers = ["personal"] if "personal" in clients else []
    rows = [
        [*(_name(str(row[name])) for name in columns), *(_number(row[name]) for name in figures)]
        + [str(row[name]) for name in layers]
        for _, row in clients.head(_MOST_ROWS).iterrows()
    ]
    titles = [*columns, *(_FIGURES[name] for name in figures), *("personal layer" for _ in layers)]
    lines = list(_table(titles, rows))
    if len(clients) > _MOST_ROWS:
        lines += [
            "",
            f"The first {_MOST_ROWS} of {len(clients):,} clients; the run's clients.parquet has all.",
        ]
    return lines


def _limits(served: Served, run: "SavedRun", cluster: int | None) -> Iterator[str]:
    clients, config = run.clients, run.config
    yield "## Limits"
    yield ""
    yield "- Figures are of the test rows of the clients named here; no other site has been measured."
    if clients is not None:
        mine = clients if cluster is None else clients[clients["cluster"] == cluster]
        if silent := int(mine["accuracy"].isna().sum()):
            yield f"- {silent} of {len(mine)} clients have no figures: no answer, or no test rows."
        counts = np.stack([np.asarray(each) for each in mine["label_counts"]])
        absent = [
            name for name, rows in zip(served.class_names, counts.sum(axis=0), strict=False) if not rows
        ]
        if absent:
            yield f"- No client here has training rows of: {few(map(_name, absent), 20)}."
        lacking = int((counts == 0).any(axis=1).sum())
        if lacking:
            yield f"- {lacking} of {len(mine)} clients lack training rows of some class."
        if "served" in mine and (common := int((mine["served"] == "common").sum())):
            yield f"- {common} of {len(mine)} clients are served one model for all, trained on every cluster."
        yield from _layers(mine)
    shifted = (config.get("choices") or {}).get("partition")
    if shifted in ("conventions", "domains", "flipped_features"):
        yield (
            f"- The run changed inputs or labels of simulated clients (partition {shifted}); "
            "predictions here are for rows as they are given, without that change."
        )


def _layers(clients: pd.DataFrame) -> Iterator[str]:
    if "personal" not in clients:
        return
    if shifted := int((clients["personal"] == PRIOR).sum()):
        yield f"- {shifted} of {len(clients)} clients use a label-prior correction, applied for their site."
    if tuned := int((clients["personal"] == FINETUNE).sum()):
        yield (
            f"- {tuned} of {len(clients)} clients use a fine-tuned model, which stays with them; "
            "this export has the model without it."
        )


def _use(served: Served, cluster: int | None) -> list[str]:
    named = next((site.name for site in served.sites if site.name), None)
    how = "" if cluster is not None or not served.sites else f", site={named or served.sites[0].client!r}"
    return [
        "## Use",
        "",
        "```python",
        "import fedclust",
        'served = fedclust.load_export("this folder")',
        f"served.predict(rows{how})  # a column of probabilities per class",
        "```",
        "",
        f"Weights are in `{WEIGHTS}` (safetensors), `{CLUSTER}` says how the network is built and how rows "
        "are encoded.",
    ]


def _table(titles: Sequence[str], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"| {' | '.join('---' for _ in titles)} |"
    for row in rows:
        yield f"| {' | '.join(' '.join(text.split()).replace('|', '/') for text in row)} |"


def _name(text: str) -> str:
    """Write a name that comes from data such that Markdown shows it and makes nothing else of it.

    Within a code span there are no links, pictures, addresses or HTML, and nothing ends it but as many
    backticks as began it. In a table's row a bar would end the cell even there.
    """
    text = " ".join(text.split()).replace("|", "/")
    if not text or _PLAIN.fullmatch(text):
        return text
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{space}{text}{space}{fence}"


def _number(value: Any) -> str:
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return f"{value:.3f}" if np.isfinite(value) else "–"
