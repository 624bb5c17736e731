"""Write an export's model cards, only from what the run recorded; ``card.md`` is their template."""

import re
from collections.abc import Collection, Sequence
from functools import cache, partial
from html import escape
from importlib import resources
from itertools import compress
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from fedclust.personal.layers import FINETUNE, NONE, PRIOR
from fedclust.personal.staying import CHOICES
from fedclust.privacy import FROM_SEED
from fedclust.serving.served import Served
from fedclust.support.checks import few

if TYPE_CHECKING:
    import pandas as pd

    from fedclust.results import SavedRun


_NAMES = ("name", "client", "cluster", "answer", "personal")
_COLUMNS = {
    "name": "name",
    "client": "client",
    "cluster": "cluster",
    "num_train": "training rows",
    "num_test": "test rows",
    "answer": "most frequent answer",
    "accuracy": "{0.share}",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auc": "AUC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "brier": "{0.score}",
    "calibration_error": "calibration error",
    "personal": "personal layer",
}
_FIGURES = (
    *("confusion", "accuracy", "balanced_accuracy", "macro_f1", "auc", "sensitivity", "specificity"),
    *("brier", "calibration_error"),
)
_MOST_ROWS = 100
# Text that Markdown shows unchanged: words of letters and digits, joined by at most one sign.
_PLAIN = re.compile(r"[^\W_]+(?:(?:, |\. |[ '_-])[^\W_]+)*")


def card(served: Served, run: "SavedRun", cluster: int | None = None) -> str:
    """Write the card of one cluster's model, or of the whole export.

    Figures are of what this folder answers for a client's rows: without its personal layer where that is not
    here, and in a cluster's folder, to which no site is given.
    """
    clients, of_clients, words = run.clients, {}, served.target.words
    titles = {key: title.format(words) for key, title in _COLUMNS.items() if key not in words.without}
    titles |= {key: title for key, title, _ in words.figures}
    if clients is not None:
        clients = clients[clients["cluster"] >= 0 if cluster is None else clients["cluster"] == cluster]
        clients = clients.rename(columns={"stays": "personal"})
        here = [each.client for each in served.sites if each.is_tuned or each.prior_shift is not None]
        layered, silent = clients.get("personal"), int(clients["accuracy"].isna().sum())
        names = [*_FIGURES, *(key for key, _, _ in words.figures)]
        clients = _as_answered(clients, here if cluster is None else [], names)
        if "confusion" in clients and clients["confusion"].notna().any():
            clients = clients.assign(
                answer=[_answer(each, served.class_names) for each in clients["confusion"]]
            )
        known_sizes = bool(clients["num_train"].any())  # not in private runs
        columns = [name for name in titles if name in clients and clients[name].notna().any()]
        columns = [name for name in columns if name != "num_train" or known_sizes]
        rows = clients[columns].head(_MOST_ROWS).to_dict("records")
        known = clients.get("label_counts", ())  # private runs have none
        counts = np.array([np.asarray(each) for each in known]).reshape(len(known), len(served.class_names))
        of_clients = {
            "titles": [titles[name] for name in columns],
            "rows": [[(_name if k in _NAMES else _number)(v) for k, v in row.items()] for row in rows],
            "silent": silent,
            "absent": list(compress(served.class_names, counts.sum(axis=0) == 0)) if len(known) else [],
            "lacking": int((counts == 0).any(axis=1).sum()),
            "common": int(np.sum(clients.get("served") == "common")),
            "prior": int(np.sum(layered == PRIOR)),
            "finetune": int(np.sum(layered == FINETUNE)),
            "staying": 0 if layered is None else int(layered.isin(list(CHOICES)).sum()),
            "own": sum(site.is_tuned and cluster in (None, site.cluster) for site in served.sites),
        }
    choices = run.config.get("choices") or {}
    return _template().render(
        served=served,
        run=run,
        cluster=cluster,
        clients=clients,
        choices=choices,
        words=words,
        published=(run.summary.get("privacy") or {}).get("noise_from") == FROM_SEED,
        **of_clients,
    )


@cache
def _template() -> jinja2.Template:
    """Compile the card's template once: an export has a card for each cluster."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"plain": _name, "number": _number, "few": few}
    environment.filters |= {"compress": compress, "repr": repr, "escaped": partial(escape, quote=False)}
    text = (resources.files("fedclust.serving") / "card.md").read_text(encoding="utf-8")
    return environment.from_string(text)


def _as_answered(clients: "pd.DataFrame", here: Collection[int], names: Sequence[str]) -> "pd.DataFrame":
    """Replace the figures of clients whose layer is not here by those without one, where these are known."""
    if "personal" not in clients:
        return clients
    same = (clients["personal"] == NONE) | clients["client"].isin(here)
    figures = {
        name: clients[name].where(same, clients.get(f"{name}_none", np.nan))
        for name in names
        if name in clients
    }
    return clients.assign(**figures, personal=clients["personal"].where(same, NONE))


def _answer(confusion: Any, class_names: Sequence[str]) -> str:
    """Return the class that most rows are answered, with their share; – if it is not known."""
    if np.ndim(confusion) != 1 or not np.any(confusion):  # None, or NaN of a client without
        return "–"
    answers = np.reshape(confusion, (len(class_names), -1)).sum(axis=0)
    return f"{class_names[answers.argmax()]} ({answers.max() / answers.sum():.1%})"


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
