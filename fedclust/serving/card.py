"""Write an export's model cards, only from what the run recorded; ``card.md`` is their template."""

import re
from importlib import resources
from itertools import compress
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from fedclust.personal.layers import FINETUNE, PRIOR
from fedclust.serving.served import Served
from fedclust.support.checks import few

if TYPE_CHECKING:
    from fedclust.results import SavedRun


_NAMES = ("name", "client", "cluster", "personal")
_COLUMNS = {
    "name": "name",
    "client": "client",
    "cluster": "cluster",
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
    "personal": "personal layer",
}
_MOST_ROWS = 100
# Text that Markdown shows unchanged: words of letters and digits, joined by at most one sign.
_PLAIN = re.compile(r"[^\W_]+(?:(?:, |\. |[ '_-])[^\W_]+)*")


def card(served: Served, run: "SavedRun", cluster: int | None = None) -> str:
    """Write the card of one cluster's model, or of the whole export."""
    clients, of_clients = run.clients, {}
    if clients is not None:
        clients = clients if cluster is None else clients[clients["cluster"] == cluster]
        columns = [name for name in _COLUMNS if name in clients and clients[name].notna().any()]
        rows = clients[columns].head(_MOST_ROWS).to_dict("records")
        counts = np.stack([np.asarray(each) for each in clients["label_counts"]])
        of_clients = {
            "titles": [_COLUMNS[name] for name in columns],
            "rows": [[(_name if k in _NAMES else _number)(v) for k, v in row.items()] for row in rows],
            "silent": int(clients["accuracy"].isna().sum()),
            "absent": list(compress(served.class_names, counts.sum(axis=0) == 0)),
            "lacking": int((counts == 0).any(axis=1).sum()),
            "common": int(np.sum(clients.get("served") == "common")),
            "prior": int(np.sum(clients.get("personal") == PRIOR)),
            "finetune": int(np.sum(clients.get("personal") == FINETUNE)),
            "own": sum(site.is_tuned and cluster in (None, site.cluster) for site in served.sites),
        }
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"plain": _name, "number": _number, "few": few}
    environment.filters |= {"compress": compress, "repr": repr}
    text = (resources.files("fedclust.serving") / "card.md").read_text(encoding="utf-8")
    choices = run.config.get("choices") or {}
    return environment.from_string(text).render(
        served=served, run=run, cluster=cluster, clients=clients, choices=choices, **of_clients
    )


def _name(value: Any) -> str:
    """Escape a name from data so that Markdown only shows it.

    A code span has no links, pictures, addresses or HTML, and only as many backticks as began it end it. In a
    table's row a bar would end the cell even there.
    """
    text = " ".join(str(value).split()).replace("|", "/")
    if not text or _PLAIN.fullmatch(text):
        return text
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{space}{text}{space}{fence}"


def _number(value: Any) -> str:
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return f"{value:.3f}" if np.isfinite(value) else "–"
