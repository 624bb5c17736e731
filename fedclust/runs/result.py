"""The results of a run: its figures, its clusters, and the models that serve its clients."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from flwr.app import ArrayRecord
from torch import nn

from fedclust.clustering.shared.placement import Placement
from fedclust.data.arrays import to_inputs, to_targets
from fedclust.federation.run import RunState
from fedclust.messages.models import to_state
from fedclust.models.encoders import Encoder, PixelEncoder
from fedclust.newcomers.placing import placed_by_losses, unpacked
from fedclust.newcomers.rows import place_rows
from fedclust.personal.layers import PRIOR
from fedclust.results import Checkpoints, Recorder, SavedRun
from fedclust.results.page import write_page
from fedclust.serving import Served, write_export
from fedclust.settings.run_options import COMMON
from fedclust.training.device_data import normalised
from fedclust.training.losses import Loss, cross_entropy, example_losses
from fedclust.typing import FloatArray, IntArray


class Result:
    """The results of a run: its figures, its clusters, and the models that serve its clients.

    If the run had a proof and ``serve="best"``, a cluster's model here is the one that serves its clients:
    its own, or the one for all.

    Parameters
    ----------
    folder
        The run's folder.
    module
        Makes the network that the run trained; its weights do not matter. None if no models are needed.
    loss
        Loss that the run's clients trained with.

    Raises
    ------
    FileNotFoundError
        If the folder does not hold a run.
    """

    def __init__(
        self,
        folder: Path | str,
        module: Callable[[], nn.Module] | None = None,
        loss: Loss = cross_entropy,
    ) -> None:
        self.saved = SavedRun(Path(folder))
        self._module = module
        self._loss = loss
        self._encoder: Callable[[], Encoder] | None = None

    def __repr__(self) -> str:
        summary = self.summary
        return (
            f"Result({summary.get('strategy')}, {summary.get('num_clients')} clients, "
            f"{summary.get('rounds')} rounds, clusters of {summary.get('cluster_sizes')}, "
            f"accuracy {summary.get('mean_client_accuracy')})"
        )

    @property
    def folder(self) -> Path:
        """The run's folder; if the run was given none, a temporary one that is deleted with this object."""
        return self.saved.folder

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of ``summary.json``."""
        return self.saved.summary

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round."""
        return pd.DataFrame(self.saved.rounds)

    @property
    def clients(self) -> pd.DataFrame:
        """A row per client."""
        if self.saved.clients is None:
            raise ValueError(f"the run in {self.folder} must be finished, it has no clients.parquet")
        return self.saved.clients

    @property
    def verdict(self) -> dict[str, Any] | None:
        """Whether to train in groups, and how certain that is; None for a run without proof.

        The keys are ``text``, ``grouped``, ``gain``, ``interval``, ``p_value`` and ``better_for``.
        """
        return self.summary.get("verdict")

    @property
    def assignment(self) -> IntArray:
        """Cluster of each client, shape (K,)."""
        saved = self.saved.assignment
        return self._state.assignment if saved is None else saved.copy()

    @property
    def num_clusters(self) -> int:
        """Number of clusters that have clients."""
        return len(np.unique(self.assignment))

    @property
    def serving(self) -> tuple[IntArray, list[ArrayRecord]]:
        """Cluster of each client, shape (K,), and the model that serves each cluster."""
        return self.assignment, self._serving

    def model_for(self, client: int) -> nn.Module:
        """Get a copy of the network that serves a client, in evaluation mode.

        Raises
        ------
        IndexError
            If there is no such client.
        """
        if not 0 <= client < len(self.assignment):
            raise IndexError(f"client must be in 0 to {len(self.assignment) - 1}, got {client}")
        return self.model_of(int(self.assignment[client]))

    def model_of(self, cluster: int) -> nn.Module:
        """Get a copy of a cluster's network, in evaluation mode.

        Raises
        ------
        IndexError
            If there is no such cluster.
        """
        if not 0 <= cluster < len(self._state.models):
            raise IndexError(f"cluster must be in 0 to {len(self._state.models) - 1}, got {cluster}")
        if self._module is None:
            raise ValueError("model must be given to get networks: load(folder, model)")
        network = self._module()
        network.load_state_dict(to_state(self._serving[cluster]))
        return network.eval()

    def predict(self, client: int, inputs: Any) -> torch.Tensor:
        """Predict class probabilities for rows of a client, with the model that serves it.

        Where the client uses the label-prior correction (``personal=prior``, or ``auto`` that chose it), that
        is applied. A fine-tuned model stays with its client: for such a client this is the model without it.

        Parameters
        ----------
        client
            Client id.
        inputs
            Rows in the format of the client's own, shape (n, *shape): uint8 images are normalised as in
            training.

        Returns
        -------
        Probabilities, shape (n, C); (n, positions, C) where each position has its own label.

        Raises
        ------
        IndexError
            If there is no such client.
        ValueError
            If the inputs do not have the format of the training data.
        """
        with torch.no_grad():
            logits: torch.Tensor = self.model_for(client)(self._prepared(inputs))
            table = self.saved.clients
            if table is not None and "prior_shift" in table and table["personal"].iloc[client] == PRIOR:
                logits = logits + torch.as_tensor(np.array(table["prior_shift"].iloc[client])).to(logits)
            return logits.softmax(-1)

    def served(self) -> Served:
        """Return the models that serve the clients, for raw rows: what :meth:`export` writes.

        Raises
        ------
        ValueError
            If the run is not finished, or its folder does not say how raw rows become inputs.
        """
        return Served.of_run(self.saved, self.model_of)

    def export(
        self, target: Path | str, *, formats: Sequence[str] = (), example: torch.Tensor | None = None
    ) -> Path:
        """Write the models for use without the run: a folder per cluster, with a model card each.

        A folder holds the weights, what turns raw rows into inputs, the names of the classes and how the
        network is built; :func:`fedclust.load_export` opens it, ``fedclust predict`` uses it.

        Parameters
        ----------
        target
            The folder; it must not exist, or be empty.
        formats
            Further formats of each model: ``"onnx"``, ``"torch"`` (``torch.export``). Each takes encoded rows
            and returns probabilities, and is compared with the network after writing.
        example
            Encoded rows to compare on, at least 2; random ones unless given.

        Returns
        -------
        The folder.

        Raises
        ------
        FileExistsError
            If the folder is not empty.
        ModuleNotFoundError
            If a format needs packages that are not installed.
        ValueError
            If the run is not finished, a format is unknown, or a file predicts something else.
        """
        model = self.saved.config.get("model")
        known = model if isinstance(model, Mapping) else None
        return write_export(self.served(), self.saved, Path(target), known, formats, example)

    def assign(self, inputs: Any, targets: Any = None) -> int | None:
        """Find the cluster of a client that was not in the run, by the method's own rule; see :meth:`place`.

        Parameters
        ----------
        inputs, targets
            As for :meth:`place`.

        Returns
        -------
        Cluster index; None if no cluster fits the client.

        Raises
        ------
        ValueError
            As for :meth:`place`.
        """
        return self.place(inputs, targets).cluster

    def place(self, inputs: Any, targets: Any = None) -> Placement:
        """Find the cluster of a client that was not in the run, by the method's own rule, with the evidence.

        Methods that formed clusters by what clients told of their data (Clust-PSI-PFL by label counts, FMCL
        by prototypes, PACFL by subspaces) compare the client's with theirs. For others it is the cluster
        whose model has the least loss, unless all are no better than guessing.

        Parameters
        ----------
        inputs
            Rows of the new client in the format of the others', shape (n, *shape).
        targets
            Their classes, shape (n,); None if they are not known, which only FMCL's rule can do without.

        Returns
        -------
        The cluster, None for none of them; the reason; and the numbers behind it. Clusters without clients
        do not count.

        Raises
        ------
        ValueError
            As :meth:`losses`; if no model has a finite loss; or if the rule needs targets.
        """
        # Where clients chose privately, none of them is recorded in what it chose.
        serving = np.asarray(self.summary.get("choose_among") or np.unique(self.assignment))
        rule = unpacked(self.saved.placing)
        if targets is None:
            if rule is None:
                raise ValueError("targets must be given: the loss of a model needs the rows' classes")
            labels = None
        else:
            labels = self._targets(inputs, targets)
        if rule is None:
            losses = self.losses(inputs, targets)[serving]
            if not np.isfinite(losses).any():
                raise ValueError("some cluster's model must have a finite loss on the rows, none has")
            known = self._loss is cross_entropy
            chance = float(np.log(self._num_classes(inputs))) if known else np.inf
            return placed_by_losses(losses, serving, chance)
        self._prepared(inputs)  # checks the format
        x = to_inputs(inputs)
        mean, std = (self.saved.inputs.get(name) or () for name in ("mean", "std"))
        make = self._encoder or (lambda: PixelEncoder(tuple(x.shape[1:])))
        return place_rows(rule, x, labels, make, self._num_classes(inputs), mean, std)

    def losses(self, inputs: Any, targets: Any) -> FloatArray:
        """Measure the mean loss of every cluster's model on some rows, shape (clusters,).

        Raises
        ------
        ValueError
            If there are no rows, inputs and targets differ in number, or a target is not a class.
        """
        x, y = self._prepared(inputs), to_targets(targets)
        if len(x) != len(y) or not len(y):
            raise ValueError(f"inputs and targets must have equally many rows, got {len(x)} and {len(y)}")
        found = []
        with torch.no_grad():
            for cluster in range(len(self._state.models)):
                logits = self.model_of(cluster)(x)
                if int(y.max()) >= logits.shape[-1]:
                    raise ValueError(f"targets must be below {logits.shape[-1]}, got {int(y.max())}")
                found.append(float(example_losses(logits, y, self._loss).mean()))
        return np.array(found)

    def report(self, folder: Path | str) -> Path:
        """Write the run's tables and pictures into a folder.

        Raises
        ------
        FileExistsError
            If the folder holds another run.
        ValueError
            If it is inside the run's own.
        """
        target = Path(folder)
        if target.resolve() != self.folder.resolve():
            if self.folder.resolve() in target.resolve().parents:
                raise ValueError(f"folder must not be inside the run's own, got {target}")
            if (target / "rounds.jsonl").exists():
                raise FileExistsError(f"folder must not hold another run, got {target}")
            shutil.copytree(self.folder, target, dirs_exist_ok=True)
        from fedclust.results.charts import draw  # Altair takes half a second to import

        draw(target)
        write_page(target)
        return target

    @cached_property
    def _state(self) -> RunState:
        state = Checkpoints(self.folder / "checkpoints", 1).newest()
        if state is None:
            raise FileNotFoundError(f"folder must hold a checkpoint of the run, got {self.folder}")
        return state

    @cached_property
    def _serving(self) -> list[Any]:
        """The model that serves each cluster."""
        models = list(self._state.models)
        table = self.saved.clients
        if table is None or "served" not in table:
            return models
        by_common = np.unique(table.loc[table["served"] == "common", "cluster"])
        if len(by_common):
            beside = Recorder.compared_folder(self.folder, COMMON) / "checkpoints"
            common = Checkpoints(beside, 1).newest()
            if common is None:
                raise FileNotFoundError(
                    f"folder must hold the model for all, there is no checkpoint in {beside}"
                )
            for cluster in by_common:
                models[int(cluster)] = common.models[0]
        return models

    def _num_classes(self, inputs: Any) -> int:
        if "label_counts" in self.clients:
            return len(self.clients["label_counts"].iloc[0])
        with torch.no_grad():  # clients did not tell: what the networks tell apart
            return int(self.model_of(0)(self._prepared(inputs)[:1]).shape[-1])

    def _targets(self, inputs: Any, targets: Any) -> torch.Tensor:
        y = to_targets(targets)
        if len(inputs) != len(y) or not len(y):
            raise ValueError(
                f"inputs and targets must have equally many rows, got {len(inputs)} and {len(y)}"
            )
        if int(y.max()) >= (number := self._num_classes(inputs)):
            raise ValueError(f"targets must be below {number}, got {int(y.max())}")
        return y

    def _prepared(self, inputs: Any) -> torch.Tensor:
        x = to_inputs(inputs)
        if not (mean := self.saved.inputs.get("mean")):
            return x.float() if x.dtype == torch.uint8 else x
        if x.dtype != torch.uint8 or x.shape[1] != len(mean):
            raise ValueError(
                f"inputs must be uint8 images (n, {len(mean)}, height, width), as in training, "
                f"got {str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
            )
        return normalised(x, tuple(mean), tuple(self.saved.inputs["std"]))
