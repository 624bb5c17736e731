"""Run federations from Python, and open their results."""

import copy
import dataclasses
import io
import logging
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TextIO, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from rich.console import Console
from torch import nn

from fedclust.aggregation.flower import check_aggregator
from fedclust.clustering.placement import most_confident, nearest_inputs, remoteness
from fedclust.clustering.shared.placement import Placement
from fedclust.data.arrays import from_arrays, to_inputs, to_truth
from fedclust.data.check import read_values
from fedclust.data.dataset import FederatedData
from fedclust.data.input_encoders import ImageEncoder, InputEncoder, TableEncoder, check_once, encoder_from
from fedclust.data.targets import Amounts, Target
from fedclust.federation import Federation, RunFailed
from fedclust.federation.questions import certainties, mean_embeddings
from fedclust.federation.run import RunState
from fedclust.layers.coalitions import Coalitions
from fedclust.layers.staying import Stayed, completed
from fedclust.messages.models import from_state, to_state
from fedclust.messages.packer import unpack
from fedclust.models import construction
from fedclust.models.embeddings import Embedder, embed
from fedclust.models.encoders import Encoder, PixelEncoder, maker
from fedclust.newcomers.placing import placed_by_losses, unpacked
from fedclust.newcomers.rows import mean_embedding, place_rows
from fedclust.personal.layers import FINETUNE, PRIOR, Auto, Personal
from fedclust.personal.staying import Own, named
from fedclust.privacy import DifferentialPrivacy, NoPrivacy, Privacy, named as named_privacy
from fedclust.results import Checkpoints, Recorder, SavedRun
from fedclust.results.page import write_page
from fedclust.runs.finetuned import Clients, clients_of, finetuned
from fedclust.runs.runner import OnRound
from fedclust.runs.server import (
    Plan,
    Session,
    check_network,
    clients_here,
    federate,
    make_engine,
)
from fedclust.serving import Served, Site, write_export
from fedclust.serving.left import Left, without
from fedclust.settings import folders, run_options
from fedclust.settings.allowed import EVERYTHING, check_folder
from fedclust.settings.checks import check, run_settings
from fedclust.settings.composition import ConfigError, build, compose, parameters_of, strategy_node
from fedclust.settings.run_options import COMMON, MIN_REPLIES, RunSettings
from fedclust.strategies import ClusteredStrategy
from fedclust.support.array_bytes import to_numpy
from fedclust.support.checks import DEFAULT_FRACTION, check_choice, check_value, few, none_of, plain
from fedclust.support.devices import check_device
from fedclust.support.streams import Lasting
from fedclust.training import LocalTraining
from fedclust.training.device_data import normalised
from fedclust.training.evaluation import Metric
from fedclust.training.losses import Loss, WeightedCrossEntropy, cross_entropy, example_losses
from fedclust.typing import FloatArray, IntArray

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

__all__ = ["Result", "describe_run", "load", "one_for_all", "run", "simulate", "strategy_of"]


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
    encoder
        Makes the frozen encoder that they used; None for the inputs themselves, or if it is unknown.
    clients
        Brings the run's clients together again; None where their rows are not on this machine.

    Raises
    ------
    FileNotFoundError
        If the folder does not hold a run.
    """

    def __init__(
        self,
        folder: Path | str,
        module: Callable[[Mapping[str, Sequence[int]]], nn.Module] | None = None,
        loss: Loss = cross_entropy,
        encoder: Callable[[], Encoder] | None = None,
        clients: Clients | None = None,
    ) -> None:
        self.saved = SavedRun(Path(folder))
        self._module, self._loss, self._encoder, self._clients = module, loss, encoder, clients
        self._tuned: dict[int, nn.Module] = {}

    def __repr__(self) -> str:
        summary = self.summary
        return (
            f"Result({summary.get('strategy')}, {summary.get('num_clients')} clients, "
            f"{summary.get('rounds')} rounds, clusters of {summary.get('cluster_sizes')}, "
            f"{self.target.words.share} {summary.get('mean_client_accuracy')})"
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
    def sites(self) -> pd.DataFrame:
        """A row per site: with whom it trains, and figures of its choice, of everyone's model and of its own.

        Empty unless ``strategy=auto`` had at most ten clients and trained their coalitions.
        """
        return pd.json_normalize(self.summary.get("sites") or [], sep="_")

    @property
    def target(self) -> Target:
        """What is predicted."""
        return self.saved.target

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
        return len(self.summary.get("choose_among") or np.unique(self.assignment))

    def model_for(self, client: int) -> nn.Module:
        """Get a copy of the network that serves a client, in evaluation mode.

        Raises
        ------
        IndexError
            If there is no such client.
        ValueError
            If each client chose its model for itself, and nothing records which.
        """
        known = isinstance(client, Integral) and not isinstance(client, bool)
        if not (known and 0 <= client < len(self.assignment)):
            raise IndexError(f"client must be in 0 to {len(self.assignment) - 1}, got {client!r}")
        if among := self.summary.get("choose_among"):
            rule = (
                f"client {client} must choose its model itself, as nothing records which of {among} it chose"
            )
            raise ValueError(f"{rule}: model_of(assign(inputs, targets))")
        network = self.model_of(cluster := int(self.assignment[client]))
        if (own := self._kept_for(cluster).get(client)) is not None:
            network.load_state_dict({**network.state_dict(), **own.serving(to_state(self._serving[cluster]))})
        return network

    def _kept_for(self, cluster: int) -> Mapping[int, Own]:
        """Return what clients keep of the run whose model serves a cluster; nothing if that is elsewhere."""
        return self._kept_in_common if cluster in self._with_common else self._kept

    @cached_property
    def _kept(self) -> Mapping[int, Own]:
        return _kept_in(self._state)

    @cached_property
    def _kept_in_common(self) -> Mapping[int, Own]:
        return _kept_in(_newest(Recorder.compared_folder(self.folder, COMMON)))

    def model_of(self, cluster: int) -> nn.Module:
        """Get a copy of a cluster's network, in evaluation mode.

        Raises
        ------
        IndexError
            If there is no such cluster.
        ValueError
            If part of the model stayed with its clients, and these were not in the run's own process.
        """
        if not 0 <= cluster < len(self._state.models):
            raise IndexError(f"cluster must be in 0 to {len(self._state.models) - 1}, got {cluster}")
        if "stays" not in self.saved.summary:
            return self._built(self._serving[cluster])
        if self._elsewhere:
            choice = self.saved.summary["stays"]["choice"]
            rule = (
                f"the run must have whole models here, {few(self._elsewhere)} stayed with each client at its"
            )
            raise ValueError(
                f"{rule} node (personal={choice}): export them, and add what a site's node keeps"
            )
        return self._whole(cluster)

    @cached_property
    def _elsewhere(self) -> tuple[str, ...]:
        """Entries of the network that are with the clients at their nodes, not here."""
        if "stays" not in self.saved.summary or self._kept:
            return ()
        return tuple(name for name in self._fresh().state_dict() if name not in self._serving[0])

    def _whole(self, cluster: int) -> nn.Module:
        """Build a cluster's network; entries that nobody keeps here are as the network begins."""
        members, own = np.where(self.assignment == cluster, 0, -1), self._kept_for(cluster)
        model = self._serving[cluster : cluster + 1]
        return self._built(*completed(model, members, own, self._fresh().state_dict()))

    def _fresh(self) -> nn.Module:
        if self._module is None:
            raise ValueError("model must be given to get networks: load(folder, model)")
        shapes = {name: to_numpy(array).shape for name, array in self._state.models[0].items()}
        return self._module(shapes)

    def _built(self, model: ArrayRecord) -> nn.Module:
        network = self._fresh()
        try:
            network.load_state_dict(to_state(model))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"model must be the network of the run in {self.folder}: {reason}") from error
        return network.eval()

    def predict(self, client: int, inputs: Any, times: Sequence[float] | None = None) -> torch.Tensor:
        """Predict class probabilities, amounts or survival for a client's rows, by the model that serves it.

        Where the client uses its correction (``personal=prior``, or ``auto`` that chose it), that is applied.
        Where it uses a fine-tuned model, that is made again from its rows, see :meth:`finetuned`; of sites
        whose rows never were on this machine, the model before fine-tuning predicts.

        Parameters
        ----------
        client
            Client id.
        inputs
            Rows in the format of the client's data, shape (n, *shape): uint8 images are normalised as in
            training.
        times
            Of models that predict times to an event: when survival is asked for, > 0, shape (m,); at the ends
            of the intervals unless given.

        Returns
        -------
        Probabilities, shape (n, C); (n, positions, C) where each position has its own label. Amounts in their
        unit, shape (n,); or probabilities of no event until each time, shape (n, m).

        Raises
        ------
        IndexError
            If there is no such client.
        ValueError
            As for :meth:`model_for`; if the inputs do not have the format of the training data.
        """
        network, table = self.model_for(client), self.saved.clients
        layer = None if table is None or "personal" not in table else table["personal"].iloc[client]
        if layer == FINETUNE and self._clients is not None:
            network = self.finetuned(client)
        with torch.no_grad():
            # A network may change its inputs, and compute in halves.
            logits: torch.Tensor = network(self._prepared(inputs).clone()).float()
            if table is not None and layer == PRIOR:
                shift = torch.as_tensor(np.array(table["prior_shift"].iloc[client])).to(logits)
                logits[..., : len(shift)] += shift  # as in training, where a network may have more outputs
            return self.target.predictions(logits, times, self._num_classes(inputs))

    def finetuned(self, client: int) -> nn.Module:
        """Fine-tune a client's model again, as the run did after its last round.

        A run keeps no fine-tuned models: all draws come from the seed, so the same rows give the same model,
        up to rounding. It is kept in this object.

        Returns
        -------
        The network, in evaluation mode.

        Raises
        ------
        ValueError
            If the run fine-tuned no models, or the client's rows are not on this machine or have changed.
        """
        if client not in self._tuned:
            network, model = self.model_for(client), self._serving[int(self.assignment[client])]
            network.load_state_dict(finetuned(self.saved, self._clients, client, model))
            self._tuned[client] = network
        return self._tuned[client]

    def served(self) -> Served:
        """Return the models that serve the clients, for raw rows: what :meth:`export` writes.

        Raises
        ------
        ValueError
            If the run is not finished, or its folder does not say how raw rows become inputs.
        """
        return Served.of_run(
            self.saved,
            self._network,
            tuned=bool(self._kept) if "stays" in self.saved.summary else self._clients is not None,
            embedder=self._embedder,
            stays=self._elsewhere,
        )

    def _network(self, site: Site) -> nn.Module:
        if not site.is_tuned:
            return self._whole(site.cluster) if self._elsewhere else self.model_of(site.cluster)
        return self.finetuned(site.client) if site.personal == FINETUNE else self.model_for(site.client)

    def export(
        self,
        target: Path | str,
        *,
        formats: Sequence[str] = (),
        example: torch.Tensor | None = None,
        sites: Sequence[str | int] | None = None,
        without: str | int | Left | None = None,
    ) -> Path:
        """Write the models for use without the run: a folder per cluster, with a model card each.

        A folder holds the weights, what turns raw rows into inputs, the names of the classes and how the
        network is built; :func:`fedclust.load_export` opens it, ``fedclust predict`` uses it.

        Parameters
        ----------
        target
            The folder; it must be new or empty.
        formats
            Further formats of each model: ``"onnx"``, ``"torch"`` (``torch.export``). Each takes encoded rows
            and returns probabilities, and is compared with the network after writing.
        example
            Encoded rows for the comparison, at least 2; random ones unless given.
        sites
            Names or ids of the clients whose fine-tuned models are written, see :meth:`finetuned`; unless
            given, all if they are at most 50, otherwise none.
        without
            Name or id of a site that leaves, or what :meth:`without` has returned.

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
            If the run is not finished, a format is unknown, or a file's predictions differ.
        """
        model = self.saved.config.get("model")
        known = model if isinstance(model, Mapping) else None
        encoder = self.saved.config.get("encoder")
        frozen = encoder if isinstance(encoder, Mapping) and self._embedder is not None else None
        served, run = self.served(), self.saved
        if without is not None:
            left = without if isinstance(without, Left) else self.without(without)
            served, run = left.served, left.run
        return write_export(served, run, Path(target), known, formats, example, sites, frozen)

    def without(self, site: str | int) -> Left:
        """Return what serves the other sites of a handful when one leaves; nothing trains again.

        Each chooses again by the cross-fitted scores of the run, among the coalitions that have trained
        without that site.

        Parameters
        ----------
        site
            Name of the site that leaves, with all its clients; or name or id of one client.

        Raises
        ------
        ValueError
            If the run is another, or there is no such site.
        """
        packed = self._state.layers.get(Coalitions.__name__)
        trained = None if packed is None else unpack(Coalitions.memory_type, packed)
        if trained is None:
            rule = "folder must hold a run in which a handful of sites chose with whom they train"
            raise ValueError(f"{rule}, by strategy=auto, got {self.folder}")
        return without(self.served(), self.saved, trained, self._built, site)

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

        Methods that cluster by clients' data (Clust-PSI-PFL by label counts, FMCL by prototypes, PACFL by
        subspaces) compare the new client's data with the clusters'. Other methods choose the cluster whose
        model has the least loss, unless no model beats guessing.

        Parameters
        ----------
        inputs
            Rows of the new client in the format of the others', shape (n, *shape); or raw rows: the path of a
            file or a folder of images, a DataFrame, or a list of texts or paths, see :meth:`Served.predict`.
        targets
            Their classes, shape (n,); of raw rows their names, or the name of the file's column. Amounts,
            shape (n,), or times and events, shape (n, 2), where the run predicts these; of raw rows also the
            name of the amounts' column, or a pair of those of times and events. None if they are unknown: the
            cluster on whose clients' rows the models are as certain, see
            :func:`~fedclust.clustering.placement.most_confident`; without classes, the one whose clients'
            inputs are nearest.

        Returns
        -------
        The cluster, or None if none fits; the reason; and the numbers behind it. Clusters without clients
        are not considered.

        Raises
        ------
        ValueError
            As for :meth:`losses`; if no model has a finite loss; or a label is not one of the run's.
        """
        if isinstance(inputs, str | Path | pd.DataFrame) or (
            isinstance(inputs, list) and inputs and isinstance(inputs[0], str | Path)
        ):
            inputs, targets = self._encoded(inputs, targets)
        serving, rule = self._candidates, unpacked(self.saved.placing)
        mean, std = (self.saved.inputs.get(name) or () for name in ("mean", "std"))
        if targets is None:
            rows = self._rows(inputs)
            if not len(rows):
                raise ValueError("rows must have at least one row, got none")
            x, remote, embeddings = self._normalised(rows), None, self._mean_embeddings
            if embeddings is not None:
                own = mean_embedding(rows, self._embedding_of(rows), mean, std)
                remote = remoteness(own, embeddings, self.assignment, serving)
            with torch.no_grad():
                models = map(self._grouped().model_of, map(int, serving))
                found = [self.target.log_chances(model(x.clone())) for model in models]
            logs = [each for each in found if each is not None]
            if not logs:
                return nearest_inputs(remote, serving)
            certain = np.stack([each.amax(-1).numpy() for each in logs]).astype(np.float64)
            predicted = np.stack([each.argmax(-1).bincount(minlength=each.shape[-1]) for each in logs])
            counts = {}
            if (table := self.saved.label_counts) is not None:
                having, members = table[: len(self.assignment)].any(axis=1), self.assignment
                of_cluster = {int(each): np.flatnonzero(having & (members == each)) for each in serving}
                counts = {each: table[clients] for each, clients in of_cluster.items() if len(clients)}
            there = self._certainties
            return most_confident(certain, serving, predicted, counts, remote=remote, known=there)
        truth, target = self._targets(inputs, targets), self.target
        if rule is None:
            losses = self._grouped().losses(inputs, targets)[serving]
            if not np.isfinite(losses).any():
                raise ValueError("some cluster's model must have a finite loss on the rows, none has")
            known = self._loss is cross_entropy
            chance = target.guess(truth, self._num_classes(inputs)) if known else np.inf
            return placed_by_losses(losses, serving, chance, target.loss_unit)
        rows = self._rows(inputs)
        self._normalised(rows)  # checks the format
        classes = self._num_classes(inputs)
        labels = torch.from_numpy(target.bins(truth.numpy()))
        return place_rows(rule, rows, labels, self._embedding_of(rows), classes, mean, std)

    def _encoded(self, rows: Any, labels: Any) -> tuple[torch.Tensor, Any]:
        """Encode raw rows as the run's, and labels as class indices; `labels` may name a column."""
        served = self.served()
        rows, _ = served.read(rows)
        if not len(rows):
            raise ValueError("rows must have at least one row, got none")
        if isinstance(labels, str | tuple):
            names, needed = [labels] if isinstance(labels, str) else list(labels), self.target.per_row
            for name in names:
                if name not in (there := getattr(rows, "columns", ())):
                    raise ValueError(none_of("targets", name, there, "must be a column of the rows, one of"))
            if not len({*names}) == len(names) == needed:
                what = "two columns, of times and of events" if needed > 1 else "one column"
                raise ValueError(f"targets must be {what}, got {few(names)}")
            inputs = served.encoder.names if isinstance(served.encoder, TableEncoder) else []
            if read := [name for name in names if name in inputs]:
                raise ValueError(f"targets must not be a column that the model reads, got {few(read)}")
            check_once(names, rows)
            labels = rows[names[0] if isinstance(labels, str) else names]
        if self.target.bin_names() and isinstance(labels, pd.Series | pd.DataFrame):
            labels = labels.reset_index(drop=True)
            columns = [labels] if isinstance(labels, pd.Series) else [labels[name] for name in labels]
            labels = read_values(type(self.target), *columns)
        if labels is not None:
            numbered = (self.saved.config.get("dataset") or {}).get("class_names") is not None
            labels = served.target.coded(labels, served.class_names, numbered)
        return torch.from_numpy(served.encoder.encode(rows).copy()), labels

    def losses(self, inputs: Any, targets: Any) -> FloatArray:
        """Measure the mean loss of every cluster's model on the rows, shape (clusters,).

        Raises
        ------
        ValueError
            If there are no rows, inputs and targets differ in number, or a target is not a class.
        """
        x, y = self._prepared(inputs), self._targets(inputs, targets)
        with torch.no_grad():
            outputs = (self.model_of(cluster)(x.clone()) for cluster in range(len(self._state.models)))
            if (loss := self.target.loss) is None:
                return np.array([float(example_losses(logits, y, self._loss).mean()) for logits in outputs])
            return np.array([float(loss(each, y).mean()) for each in outputs])

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
        return _newest(self.folder)

    @cached_property
    def _mean_embeddings(self) -> FloatArray | None:
        """Mean embedding of each client's rows, shape (K, d); None where it is not known.

        Unless the method kept it, it is computed of the rows of a simulation, which are on this machine.
        """
        found = next((each for name, each in self.saved.matrices() if name == "mean_embeddings"), None)
        if found is not None or self.num_clusters < 2:
            return found
        return self._asked(mean_embeddings)

    @cached_property
    def _certainties(self) -> list[FloatArray] | None:
        """How certain clusters' models are of their clients' test rows; None where these are not here."""
        if len(self._candidates) < 2:
            return None
        members = [np.flatnonzero(self.assignment == each) for each in self._candidates]
        own = self._grouped()
        models = [from_state(own.model_of(int(each)).state_dict()) for each in self._candidates]
        return self._asked(lambda federation: certainties(federation, members, models))

    def _asked(self, ask: Callable[[Federation], Answer]) -> Answer | None:
        """Ask a simulation's clients; None if they disclose less, or their data are no longer here."""
        if self._clients is None:
            return None
        try:
            with tempfile.TemporaryDirectory() as where, self._clients(Path(where)) as federation:
                return ask(federation) if federation.disclosed == "labels" else None
        except ValueError as error:
            logger.info("clients' rows cannot be asked: %s", error)
            return None

    @cached_property
    def _candidates(self) -> IntArray:
        """The clusters that a newcomer may be in."""
        # Where clients chose privately, the assignment does not record what they chose.
        return np.asarray(self.summary.get("choose_among") or np.unique(self.assignment))

    @cached_property
    def _serving(self) -> list[Any]:
        """The model that serves each cluster."""
        served = list(self._state.models)
        for cluster in self._with_common:
            served[cluster] = _newest(Recorder.compared_folder(self.folder, COMMON)).models[0]
        return served

    @cached_property
    def _with_common(self) -> frozenset[int]:
        """The clusters that the model for all serves."""
        table = self.saved.clients
        if table is None or "served" not in table:
            return frozenset()
        common = (table["served"] == "common") & (table["cluster"] >= 0)  # not of newcomers in no cluster
        return frozenset(map(int, np.unique(table.loc[common, "cluster"])))

    def _grouped(self) -> "Result":
        """Return the run with each cluster's own model, by which the run itself placed newcomers."""
        made = copy.copy(self)
        made.__dict__.pop("_serving", None)
        made.__dict__["_with_common"] = frozenset()
        return made

    def _num_classes(self, inputs: Any) -> int:
        if "label_counts" in self.clients:
            return len(self.clients["label_counts"].iloc[0])
        with torch.no_grad():  # clients did not report label counts: count the networks' outputs
            return int(self.model_of(0)(self._prepared(inputs)[:1]).shape[-1])

    def _targets(self, inputs: Any, targets: Any) -> torch.Tensor:
        y = to_truth(targets, self.target.kind, self._num_classes(inputs))
        if not len(inputs):
            raise ValueError("rows must have at least one row, got none")
        if len(inputs) != len(y):
            raise ValueError(f"inputs and targets must have one length, got {len(inputs)} and {len(y)}")
        return y

    @cached_property
    def _embedder(self) -> Embedder | None:
        """Embeds rows as the run did before its networks; None if it did not."""
        return Embedder.of(self.saved.inputs.get("embedded_by") or "", self._encoder, self._input_encoder)

    @cached_property
    def _input_encoder(self) -> InputEncoder | None:
        """Encodes raw rows as the run did; None if its clients did not say how."""
        given = self.saved.inputs.get("encoder")
        return None if given is None else encoder_from(given)

    def _embedding_of(self, rows: torch.Tensor) -> Callable[[], Encoder]:
        """Return what makes the encoder of rows of :meth:`_rows` that methods cluster by."""
        if self._encoder is None or self._embedder is not None:
            return lambda: PixelEncoder(tuple(rows.shape[1:]))
        return self._encoder

    def _rows(self, inputs: Any) -> torch.Tensor:
        """Return rows as the run's clients held them when it began: embedded, if it embedded them."""
        x, encoder = to_inputs(inputs), self._input_encoder
        if isinstance(encoder, ImageEncoder):
            if x.shape[2:] != encoder.shape[1:]:
                raise ValueError(f"inputs must be images of shape {encoder.shape}, got {tuple(x.shape[1:])}")
        elif encoder is not None:
            x = torch.from_numpy(encoder.encodes_to.encode(x))
        return x if self._embedder is None else self._embedder(x)

    def _prepared(self, inputs: Any) -> torch.Tensor:
        return self._normalised(self._rows(inputs))

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        if not (mean := self.saved.inputs.get("mean")):
            return x.float() if x.dtype == torch.uint8 else x
        if x.dtype != torch.uint8 or x.shape[1] != len(mean):
            got = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
            raise ValueError(f"inputs must be uint8 images (n, {len(mean)}, height, width), got {got}")
        return normalised(x, tuple(mean), tuple(self.saved.inputs["std"]))


def _kept_in(state: RunState) -> Mapping[int, Own]:
    """Return what clients keep, as saved with a run's state; nothing if they keep it elsewhere."""
    packed = state.layers.get("Stays")
    return {} if packed is None else unpack(Stayed, packed).own()


def _newest(folder: Path) -> RunState:
    state = Checkpoints(folder / "checkpoints", 1).newest()
    if state is None:
        raise FileNotFoundError(f"folder must hold a checkpoint of the run, got {folder}")
    return state


def strategy_of(
    strategy: ClusteredStrategy | str, model: nn.Module, data: FederatedData, seed: int
) -> tuple[str, ClusteredStrategy]:
    """Return a strategy and its name in results; one given by name is built with its defaults."""
    if isinstance(strategy, str):
        node = strategy_node(strategy)  # what refers to other nodes is given
        given: dict[str, Any] = {"device": "auto"} if "device" in node else {}
        if "network" in node:
            given |= {"network": model} | ({"input_shape": data.input_shape} if "input_shape" in node else {})
        if "vocabulary_size" in node:
            tokens = data.inputs.dtype == torch.int64
            given["vocabulary_size"] = int(data.inputs.max()) + 1 if tokens else None
        rest = {key: node[key] for key in node if key not in given}
        name, made = strategy, build(rest, seed=seed, **given)
    elif isinstance(strategy, ClusteredStrategy):
        name, made = type(strategy).__name__.lower(), strategy.with_options(seed=seed)  # a copy
        check_aggregator(made.make_aggregator())
    else:
        raise ValueError(f"strategy must be one of fedclust.strategies, or its name, got {strategy!r}")
    return name, made


def one_for_all(strategy: ClusteredStrategy) -> ClusteredStrategy:
    """Make the strategy that trains one model for all with the same settings as another strategy."""
    # A policy that is the method's own stays with the method, as on the command line.
    return ClusteredStrategy(options=dataclasses.replace(strategy.options, drift_every=0))


def describe_run(name: str, strategy: ClusteredStrategy, **rest: Any) -> dict[str, Any]:
    """Describe a run of objects, for ``config.yaml``; different runs have different descriptions."""
    described: dict[str, Any] = plain(
        {
            "settings": _settings(strategy),
            "selection": _settings(strategy.selection),
            "aggregator": _settings(strategy.make_aggregator()),
            **rest,
        }
    )
    described["choices"]["strategy"] = name
    return described


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _settings(thing: object) -> dict[str, Any]:
    """List an object's settings that are numbers, words or parameters."""
    settings: dict[str, Any] = {"of": type(thing).__name__}
    given = vars(thing)
    options = vars(given["options"]) if "options" in given else {}
    for key, value in {**options, **given}.items():
        if key.startswith("_") or key in ("device", "options"):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            settings[key] = dataclasses.asdict(value)
        elif isinstance(value, tuple) and all(isinstance(each, int | float) for each in value):
            settings[key] = list(value)
        elif isinstance(value, bool | int | float | str):
            settings[key] = value
    return settings


def simulate(
    strategy: ClusteredStrategy | str,
    model: nn.Module,
    clients: Sequence[Any] | FederatedData,
    *,
    rounds: int,
    training: LocalTraining,
    seed: int = 0,
    num_classes: int | None = None,
    target: Target | Literal["auto", "classes", "amounts", "times"] = "auto",
    encoder: Encoder | None = None,
    features: Literal["inputs", "encoder"] = "inputs",
    metrics: Mapping[str, Metric] = MappingProxyType({}),
    device: str = "auto",
    on_round: OnRound | Sequence[OnRound] = (),
    progress: bool = False,
    folder: Path | str | None = None,
    checkpoint_every: int | str = "1min",
    resume: bool = False,
    proof: bool = False,
    serve: Literal["cluster", "best", "auto"] = "auto",
    personal: Personal | str | None = None,
    privacy: Privacy | str = "none",
    timeout: float = 3600.0,
    min_replies: float = MIN_REPLIES,
    keep_matrices: bool | Literal["auto"] = "auto",
    groups: Sequence[str] | None = None,
) -> Result:
    """Train a federation of your own arrays with your own network, in this process.

    Parameters
    ----------
    strategy
        A strategy that has not run yet, such as ``FedGWC(participation=0.5)``; or the name of one in
        ``conf/strategy``, for its defaults.
    model
        The network; all clients start from its weights. It is copied, not changed. Its outputs are logits,
        shape (n, C).
    clients
        For each client ``(inputs, targets)`` or ``(train, validation, test)``, see
        :func:`fedclust.data.arrays.from_arrays`; or prepared data.
    rounds
        Rounds of training.
    training
        Hyperparameters of local training; its ``loss`` may be your own function of outputs and targets that
        returns one number per example, shape (n,).
    seed
        Seed of all random draws, those of the strategy too. Same seed, same result.
    num_classes
        Number of classes C; the largest target plus one unless given.
    target
        What is predicted: ``"classes"``, ``"amounts"`` (one output of the network) or ``"times"`` (an output
        per interval, 8 at most), or a :class:`~fedclust.data.targets.Target`. With ``"auto"``, whole numbers
        are classes, and floats are amounts, or times and events where a row has two.
    encoder
        Frozen encoder for FMCL and `features`; the inputs themselves unless given.
    features
        What the network is trained on: ``"inputs"`` or, with ``"encoder"``, their embeddings by `encoder`,
        computed once and kept in the cache; see :mod:`fedclust.models.embeddings`.
    metrics
        Your own metrics, measured on every client's test part: by name, a function of outputs and targets
        that returns a number, or one per example, shape (n,), which are averaged. ``result.clients`` has a
        column of each, ``result.rounds`` and ``result.summary`` the mean over clients.
    device
        ``"auto"`` for a GPU if there is one, or a torch device.
    on_round
        Called after every round that counts with its record; what it takes is none of the run's time.
    progress
        Whether to print the progress and, at the end, the report.
    folder
        Folder for the results; it must not hold another run. Unless given, a temporary folder that is deleted
        together with the returned result.
    checkpoint_every
        See :func:`fedclust.settings.run_options.parse_interval`.
    resume
        Whether to resume the run in `folder` from its newest checkpoint; results equal those of an
        uninterrupted run bit by bit. Give the same arguments again; `rounds` may be larger.
    proof
        Whether to train one model for all, too, and to test whether the clusters' models are better; the
        result then has a ``verdict``. It is measured on validation rows; where nobody has any, on test rows.
        Of clients given as ``(inputs, targets)``, a tenth of the training rows is held out for validation if
        something decides on it: strategy ``"auto"`` or ``"private_groups"``, ``serve="best"``, or
        ``personal="auto"``.
    serve
        With `proof`: ``"best"`` to serve a cluster the model for all unless its own was shown to be better,
        ``"cluster"`` to serve it its own, ``"auto"`` for the strategy's own rule: ``"best"`` for strategy
        ``"auto"``, ``"cluster"`` for all others.
    personal
        What clients finally use on top of the model that serves them: ``"none"``, ``"prior"``, ``"finetune"``
        or ``"auto"``, or one of :mod:`fedclust.personal.layers` such as ``Finetune(epochs=3)``; None for the
        strategy's own. For ``"auto"``, which chooses on validation rows, rows are held out as for `proof`.
    privacy
        What leaves the clients: ``"none"``, ``"client_dp"``, ``"patient_dp"``, or one of
        :mod:`fedclust.privacy` such as ``ClientDP(noise_multiplier=2.0)``; see docs/PRIVACY.md.
    timeout
        Seconds that a round's clients have to answer, > 0; see :mod:`fedclust.support.time_limit`.
    min_replies
        Share of a round's clients that must answer, in [0, 1]; 0 to continue however few do.
    keep_matrices
        Whether to keep client-by-client matrices; ``"auto"`` keeps those of up to 500 clients.
    groups
        Name of the group that people put each client in, such as a vendor, shape (K,); ``auto`` tests whether
        training by it helps.

    Raises
    ------
    ValueError
        If an argument is outside its range, the clients' arrays do not fit together, or the run to resume had
        other arguments.
    FileExistsError
        If the folder holds another run, or another process is writing the run to resume.
    RunFailed
        If too few clients of a round answered or have an accuracy at the end, a round took longer than
        `timeout`, or the folder can no longer be written.

    Examples
    --------
    >>> import fedclust
    >>> training = fedclust.LocalTraining(learning_rate=0.1, batch_size=8, epochs=1)
    >>> clients = [(torch.zeros(10, 2), torch.full((10,), label)) for label in (0, 0, 1, 1)]
    >>> result = fedclust.simulate("clust_psi_pfl", nn.Linear(2, 2), clients, rounds=1, training=training)
    >>> result.assignment  # by the clients' labels
    array([0, 0, 1, 1])
    """
    for label, value, least in (("rounds", rounds, 1), ("seed", seed, 0)):
        check_value(label, value, f"a whole number >= {least}")
    rounds, seed = int(rounds), int(seed)  # of NumPy, too
    if not isinstance(training, LocalTraining):
        raise ValueError(f"training must be a LocalTraining, got {type(training).__name__}")
    if resume and folder is None:
        raise ValueError("folder must be that of the run to resume, got None")
    check_device(device)
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise ValueError(f"metrics must be functions by name, got {metrics!r}")
    callbacks = [on_round] if callable(on_round) else on_round
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise ValueError(f"on_round must be a function, or several, got {on_round!r}")
    check_choice("serve", serve, run_options.SERVE)
    check_choice("features", features, ("inputs", "encoder"))
    compare = (COMMON,) if proof else ()
    limits: dict[str, Any] = {"wait": 1.0, "timeout": timeout, "min_replies": min_replies}
    limits |= {"checkpoint_every": checkpoint_every, "keep_matrices": keep_matrices}
    given = {"seed": seed, "rounds": rounds, "proof": proof, "serve": serve, "compare": compare, **limits}
    settings = RunSettings(task="train", **given)
    layer = None if personal is None else named(personal)
    data, fraction = clients, None
    if not isinstance(data, FederatedData):
        decides = isinstance(layer, Auto)
        if isinstance(strategy, ClusteredStrategy):
            decides |= strategy.holds_out_rows or strategy.options.compares_rounds
        elif isinstance(strategy, str):
            decides |= hasattr(parameters_of(strategy), "held_out_rows")
        serves = serve if serve != run_options.AUTO else getattr(strategy, "serves", "cluster")
        fraction = DEFAULT_FRACTION if decides or (proof and serves == "best") else 0.0
        data = from_arrays(
            data,
            num_classes=num_classes,
            seed=seed,
            validation_fraction=fraction,
            target=target,
            groups=groups,
        )
    if features == "encoder":
        data = _embedded(data, encoder, training, device, print if progress else logger.info)
    _check_model(model, data)
    name, made = strategy_of(strategy, model, data, seed)
    layer = made.own_personal() if layer is None else layer
    chosen = named_privacy(privacy)
    check_network(chosen, model)
    balanced = getattr(training.loss, "class_weights", None) == "balanced"
    if isinstance(chosen, DifferentialPrivacy) and balanced:
        raise ValueError(f"loss.class_weights must be numbers with privacy={chosen.choice}, got balanced")
    if proof and chosen.disclosed != "labels":
        raise ValueError(f"proof must be False with privacy={chosen.choice} without label counts, got True")
    strategies = {name: made, **({COMMON: one_for_all(made)} if proof else {})}
    rules = dataclasses.asdict(dataclasses.replace(training, loss=cross_entropy))
    facts = {
        "choices": {"dataset": data.name, "personal": "own" if personal is None else layer.choice},
        "personal": {"choice": layer.choice, **dataclasses.asdict(layer)},
        "seed": seed,
        "rounds": rounds,
        "training": {**rules, "loss": _name(training.loss)},
        "metrics": {each: _name(metric) for each, metric in metrics.items()},
        "clients": data.num_clients,
        "data": data.fingerprint,
        "content": data.content,
        "rows": len(data.labels),
        "validation_fraction": fraction,
        "encoder": None,
    }
    described = {each: describe_run(each, built, **facts) for each, built in strategies.items()}
    for each in described.values() if data.embedded_by else [described[name]]:
        each["encoder"] = None if encoder is None else encoder.fingerprint
    if chosen != NoPrivacy():
        described[name]["privacy"] = {"choice": chosen.choice, **dataclasses.asdict(chosen)}
    layers = {each: built.own_personal() if personal is None else layer for each, built in strategies.items()}
    plan = Plan(settings, described, strategies, layers, chosen)
    where = Path(tempfile.mkdtemp(prefix="fedclust-") if folder is None else folder)
    console = Console(file=cast(TextIO, Lasting(sys.stdout))) if progress and sys.stdout else None
    from fedclust.clients.node import node_of_objects  # takes as long to import as the server's side

    network = copy.deepcopy(model)  # the caller may change the original

    @contextmanager
    def together(models: Path | None = None) -> Iterator[Federation]:
        node = node_of_objects(data, network, training, seed, device, encoder, metrics)
        own = *data.target.figure_ranges, *metrics
        yield plan.federation(clients_here(node, models), node.trainer.training.loss, own)

    session = Session(where, resume, console, page=folder is not None)
    try:
        with together() as federation, session.opened():
            if resume:
                folders.check_same_run(described[name], where)
            session.carry_out(plan, federation, model, on_round=callbacks)
    except BaseException as error:
        # A failed run's message names the folder with its rounds.
        if folder is None and not isinstance(error, RunFailed):
            shutil.rmtree(where, ignore_errors=True)
        raise
    loss = training.loss
    if isinstance(loss, WeightedCrossEntropy):
        loss = loss.fitted(data.label_counts().sum(axis=0).tolist())
    make_encoder = None if encoder is None else lambda: encoder
    result = Result(where, lambda _: copy.deepcopy(network), loss, make_encoder, together)
    if folder is None:
        weakref.finalize(result, shutil.rmtree, where, ignore_errors=True)
    return result


def _embedded(
    data: FederatedData,
    encoder: Encoder | None,
    training: LocalTraining,
    device: str,
    say: Callable[[str], object],
) -> FederatedData:
    if encoder is None:
        raise ValueError("encoder must be given with features='encoder', got None")
    if training.augmentation != "none":
        rule = "training.augmentation must be none with features='encoder'"
        raise ValueError(f"{rule}: rows are encoded once, before training, got {training.augmentation}")
    from fedclust.clients.node import device_here

    return embed(data, encoder, device_here(device), say=say)


def run(overrides: Sequence[str] = (), console: Console | None = None) -> Result:
    """Run with the overrides of a command line, such as ``run(["strategy=fmcl", "seed=3"])``.

    Raises
    ------
    ConfigError
        If the overrides name something that does not exist, or a value that is not allowed.
    FederationError
        If the federation cannot start.
    FileExistsError
        If the results' folder holds another run.

    Examples
    --------
    >>> import fedclust
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = fedclust.run(["strategy=fedavg", "rounds=1", f"output_dir={folder}/run"])
    ...     print(result.num_clusters, len(result.clients))  # partition.num_clients is 30
    1 30
    """
    if isinstance(overrides, str | Mapping) or not all(isinstance(each, str) for each in overrides or ()):
        raise ConfigError(f"overrides must be a list of texts, such as ['rounds=3'], got {overrides!r}")
    if options := [each for each in overrides if each.startswith("-")]:
        raise ConfigError(f"overrides must be settings, {options[0]} is an option of the command line")
    for each in overrides:
        if re.match(r"[+~]*hydra\b(?!\.searchpath)", each):
            rule = f"overrides must be settings, {each} is of Hydra's own command line"
            raise ConfigError(f"{rule}; output_dir= says where results go")
    config = compose(folders.expand(overrides))
    check(config)
    if run_settings(config).task != "train":
        raise ConfigError(f"task must be train to get a result, got {config.task}")
    grid = make_engine(config)
    if not isinstance(grid, Grid):
        raise ConfigError(f"engine must be local or ray to get a result, got {config.choices.engine}")
    new = folders.named_by_time(config)
    with folders.results_folder(Path(config.output_dir).absolute(), new=new) as folder:
        federate(config, grid, folder, console or Console(file=io.StringIO()))
    return load(folder, allow=EVERYTHING)


def load(
    folder: Path | str,
    model: nn.Module | None = None,
    *,
    encoder: Encoder | None = None,
    allow: str = "",
) -> Result:
    """Open a run from its folder, which may come from someone else.

    Of the names in its ``config.yaml``, only those on fedclust's own list are built, see
    :mod:`fedclust.settings.allowed`; weights are read from safetensors, and nothing is unpickled.

    Parameters
    ----------
    folder
        The run's folder.
    model
        The network that it trained, with any weights; unless given, the one that the run's ``config.yaml``
        names. Runs of :func:`simulate` do not name one.
    encoder
        The frozen encoder that it used; unless given, the one that its ``config.yaml`` names. Runs of
        :func:`simulate` do not name one.
    allow
        Further names that the folder may build, separated by commas, such as ``"mine.models.Net"``; a name
        that ends in a dot allows all names below it, and ``"*"`` everything, for a run of your own.

    Raises
    ------
    FileNotFoundError
        If the folder does not hold a run.
    ValueError
        If its configuration names something that is not allowed, or `model` is no network.

    Examples
    --------
    >>> import fedclust
    >>> network, training = nn.Linear(2, 2), fedclust.LocalTraining(learning_rate=0.1, batch_size=8, steps=1)
    >>> clients = [(torch.zeros(10, 2), torch.full((10,), label)) for label in (0, 0, 1, 1)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rest = {"rounds": 1, "training": training, "folder": f"{folder}/run"}
    ...     _ = fedclust.simulate("clust_psi_pfl", network, clients, **rest)
    ...     print(fedclust.load(f"{folder}/run", network).assignment)
    [0 0 1 1]
    """
    if not (model is None or isinstance(model, nn.Module)):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    saved = SavedRun(Path(folder))
    config = saved.config
    built = [*(("model", "training") if model is None else ()), *(("encoder",) if encoder is None else ())]
    given = {name: config[name] for name in built if isinstance(config.get(name), Mapping)}
    check_folder(given, allow, saved.folder / "config.yaml", "load")
    kept, loss = copy.deepcopy(model), cross_entropy
    module: Any = None if model is None else lambda _: copy.deepcopy(kept)
    if "model" in given:
        stays, seed = "stays" in saved.summary, int(config.get("seed", 0))
        module = partial(construction.build_for, given["model"], seed, partial=stays)
        counts = saved.label_counts
        loss = build(config["training"]).loss
        if isinstance(loss, WeightedCrossEntropy) and counts is not None:
            loss = loss.fitted(counts.sum(axis=0).tolist())
    return Result(folder, module, loss, maker(encoder, given.get("encoder")), clients_of(saved, allow))


def _check_model(model: nn.Module, data: FederatedData) -> None:
    """Check that a network accepts the data; for tokens, the rows with the smallest and the largest."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    outputs = construction.check_outputs(model, data.inputs[:1], data.labels[:1], data.num_outputs)
    if data.target.kind == Amounts.kind and outputs > 1:  # targets 0.0 and 1.0, and a network of two classes
        hint = 'floats are amounts unless target="classes" is given'
        raise ValueError(f"model must have one output for amounts, got {outputs}; {hint}")
    if data.inputs.dtype == torch.int64:
        tokens = data.inputs.flatten(1)
        for row in (tokens.amin(1).argmin(), tokens.amax(1).argmax()):
            try:
                own = data.inputs[row : row + 1], data.labels[row : row + 1]
                construction.check_outputs(model, *own, data.num_outputs)
            except ValueError as error:
                low, high = int(tokens.min()), int(tokens.max())
                raise ValueError(f"model must take tokens from {low} to {high}: {error}") from error
