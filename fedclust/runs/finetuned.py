"""Fine-tune clients of a finished run again: it keeps no fine-tuned models, its draws are seeded."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedclust.data.dataset import num_held_out
from fedclust.federation import Federation
from fedclust.federation.answering import Answering, Flower
from fedclust.grids.local_grid import LocalGrid
from fedclust.messages.evaluation import PersonalQuestion
from fedclust.personal.layers import FINETUNE, MODELS, Finetune
from fedclust.results import Checkpoints, SavedRun
from fedclust.runs.own_data import join_sites
from fedclust.runs.server import USER_ERRORS, connect
from fedclust.settings.allowed import check_folder
from fedclust.settings.checks import run_settings
from fedclust.settings.composition import to_run_config

Clients = Callable[[Path], AbstractContextManager[Federation]]
"""Brings a finished run's clients together again; they write fine-tuned models into the given folder."""

_ROWS = "clients' rows must be on this machine to fine-tune their models again"


def clients_of(saved: SavedRun, allow: str) -> Clients | None:
    """Return a function that brings a run's clients together again; None if their rows are elsewhere.

    Parameters
    ----------
    saved
        The run.
    allow
        Further names that its folder may build, see :func:`fedclust.load`.
    """
    given, groups = saved.config, ("dataset", "partition", "model", "training")
    if not all(isinstance(given.get(name), Mapping) for name in groups):
        return None
    choices, sites = given.get("choices") or {}, given["partition"].get("sites")
    own = choices.get("partition") == "own"
    if choices.get("engine") == "superlink" or (own and not isinstance(sites, str | Mapping)):
        return None

    @contextmanager
    def together(models: Path) -> Iterator[Federation]:
        built = {name: given.get(name) or {} for name in (*groups, "encoder", "metrics")}
        check_folder(built, allow, saved.folder / "config.yaml", "load")
        from fedclust.clients.app import app

        config: Any = OmegaConf.create({**given, "hosts": None, "resume": str(saved.folder)})
        settings, state = run_settings(config), Checkpoints(saved.folder / "checkpoints", 1).newest()
        places = [] if state is None or settings.holdout_clients else list(state.roster.places)
        try:
            nodes = LocalGrid(app, to_run_config(config))
            if own:
                nodes.configure({MODELS: str(models)})
                _, sites = join_sites(config, nodes, settings, saved.folder, {"say": str}, places)
                clients: Answering = Flower(sites)
            else:
                clients = connect(config, nodes, settings, lambda _: None, places, models)
            late = num_held_out(clients.num_clients, settings.holdout_clients)
            yield Federation(
                clients,
                own_metrics=(*saved.target.figure_ranges, *built["metrics"]),
                num_newcomers=late,
            )
        except USER_ERRORS as error:
            raise ValueError(f"{_ROWS}: {error}; an export with sites=[] (--sites) has none") from error

    return together


def finetuned(
    saved: SavedRun, clients: Clients | None, client: int, model: ArrayRecord
) -> dict[str, torch.Tensor]:
    """Fine-tune a client's model as the run did after its last round; the result is equal up to rounding.

    Parameters
    ----------
    saved
        The run.
    clients
        Brings its clients together; None if their rows are elsewhere.
    client
        Client id.
    model
        The model that serves it.

    Returns
    -------
    The fine-tuned model, by name of its tensors.

    Raises
    ------
    ValueError
        If the run fine-tuned no models, or the client's rows are not on this machine or have changed.
    """
    table, config = saved.clients, saved.config
    if table is None or "accuracy_finetune" not in table:
        raise ValueError("personal must have been finetune or auto to fine-tune again, it was not")
    if clients is None:
        raise ValueError(f"{_ROWS}, they stayed with the clients")
    given = config.get("personal") or {}  # a strategy's own choice has the defaults
    how = Finetune(**{key: given[key] for key in ("epochs", "layers", "learning_rate") if key in given})
    with tempfile.TemporaryDirectory() as where, clients(Path(where)) as federation:
        rows = np.stack(table["label_counts"].iloc[: federation.num_clients].to_list())
        if not np.array_equal(federation.describe().train_counts, rows):
            federation.train_on_all_rows()  # as where nothing is decided on held-out rows
        if not np.array_equal(federation.describe().train_counts, rows):
            raise ValueError(f"{_ROWS}, as they were in the run: label counts differ")
        last = int(config["rounds"]) + 1
        answers = federation.ask({client: PersonalQuestion.of(model, last, None, how)})
        answer = answers.replies.get(client)
        if answer is None or answer.failed:
            raise ValueError(f"client {client}: {answers.failures if answer is None else answer.failed}")
        (file,) = Path(where).glob("*/*/*")
        state = load_file(file)
    was, now = table["accuracy_finetune"].iloc[client], answer.figures[FINETUNE].get("accuracy", np.nan)
    if abs(now - was) > max(0.02, 1.5 / max(1, table["num_test"].iloc[client])):  # rounding moves a row
        raise ValueError(f"{_ROWS}, as they were in the run: accuracy was {was:.3f}, is {now:.3f}")
    return state
