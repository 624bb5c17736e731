"""Predict raw rows with the models that serve a federation's clients.

An exported folder may come from anyone: nothing in it is executed or unpickled.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import torch
from hydra.errors import InstantiationException
from torch import nn

from fedclust.data.input_encoders import ImageEncoder, InputEncoder, TextEncoder, encoder_from
from fedclust.data.source import IMAGE_SUFFIXES, TABLE_SUFFIXES, Source, SourceError, table_of, walk
from fedclust.data.targets import CLASSES, Target, from_values
from fedclust.models import construction
from fedclust.models.embeddings import Embedder
from fedclust.models.encoders import Encoder, maker
from fedclust.personal.layers import FINETUNE, NONE, PRIOR, weights_file
from fedclust.personal.staying import CHOICES, KEPT, Own
from fedclust.settings.allowed import check_folder
from fedclust.settings.run_options import COMMON
from fedclust.support.checks import few, read_as
from fedclust.support.untrusted import read_json

if TYPE_CHECKING:
    import pandas as pd

    from fedclust.results import SavedRun
    from fedclust.typing import State


FORMAT = 1
INDEX = "index.json"
CLUSTER = "cluster.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"


def cluster_folder(root: Path, cluster: int) -> Path:
    """Return the folder of a cluster."""
    return root / f"cluster-{cluster}"


_BATCH = 1024
_OWN = (FINETUNE, *CHOICES)
_STAYS = "the client's own model stays with it; this is its cluster's"
_KEPT = (
    "what the client keeps is at its node, in the folder `run-…` of `models=` there: copy {0}.safetensors "
    "into the export as {1}"
)

_OF_A_RUN = re.compile(r"[;,] (?:or )?(?=(?:give|set its|leave out)\b[^;]*\bdataset\.)")
"""Where the advice to give a setting begins, which only a run has."""


@dataclass(frozen=True)
class Site:
    """A client of the run.

    Attributes
    ----------
    client
        Its id.
    cluster
        Cluster whose model serves it.
    name
        Its name in the data, or None.
    personal
        The personal layer that it used in the run, or None.
    prior_shift
        Values added to its network's outputs, shape (O,); None for none.
    note
        Why its fine-tuned model is not here; None if it is, or if there is none.
    margin
        As of :attr:`Served.margins`, with the personal layers of its cluster's clients; None without any.
    keeps
        What its node keeps for it, such as ``"client-7/fedavg"``; None if nothing is known to be kept there.
    """

    client: int
    cluster: int
    name: str | None = None
    personal: str | None = None
    prior_shift: tuple[float, ...] | None = None
    note: str | None = None
    margin: float | None = None
    keeps: str | None = None

    @classmethod
    def of_row(cls, client: int, row: "pd.Series[Any]") -> "Site":
        """Make a client from its row in a run's table of clients."""
        layer = row.get("personal", row.get("stays"))
        personal = layer if isinstance(layer, str) else None
        shift = tuple(map(float, row["prior_shift"])) if personal == PRIOR else None
        name = str(row["name"]) if "name" in row else None
        return cls(client, int(row["cluster"]), name, personal, shift)

    @property
    def is_tuned(self) -> bool:
        """Whether it has a model of its own, such as a fine-tuned one, and that is here."""
        return self.personal in _OWN and self.note is None

    def kept_by(self, run: str) -> "Site":
        """Note where its own model is: at its node, of a run of this name."""
        if self.personal not in CHOICES:
            return self.without_model()
        file = weights_file(Path(), self.client)
        keeps = file.with_name(run).as_posix()
        return replace(self.without_model(_KEPT.format(keeps, file.as_posix())), keeps=keeps)

    def without_model(self, why: str | None = _STAYS) -> "Site":
        """Note why its own model is not here, if it has one; None if it is here."""
        if self.personal not in _OWN:
            return self
        return replace(self, note=why)

    @property
    def label(self) -> str:
        """Its name, or its id if it has none."""
        return self.name or str(self.client)


@dataclass(frozen=True, eq=False)
class Served:
    """The models that serve a federation's clients.

    Attributes
    ----------
    class_names
        Names of the classes in the order of the models' outputs, or of the target's bins, shape (C,).
    encoder
        How raw rows become a dataset's, as fitted in training.
    sites
        The run's clients.
    clusters
        Clusters that have a model.
    network
        Function that returns a client's network, in evaluation mode: its fine-tuned one if it is here, its
        cluster's otherwise.
    csv_options
        How the training's CSV files were read; see :class:`fedclust.data.source.Source`.
    embedder
        Embeds the dataset's rows for the networks; None if the networks take them as they are.
    target
        What is predicted.
    margins
        By cluster, within what a prediction is right nine times of ten, see
        :meth:`fedclust.data.targets.Target.margin`; without the clusters of which that is not known, as where
        a client was measured with a personal layer.
    stays
        Entries of the networks that stay with each client, at its node: only a client whose own model is here
        has a network that predicts.
    """

    class_names: tuple[str, ...]
    encoder: InputEncoder
    sites: tuple[Site, ...]
    clusters: tuple[int, ...]
    network: Callable[[Site], nn.Module] = field(repr=False)
    csv_options: Mapping[str, Any] = field(default_factory=dict)
    embedder: Embedder | None = None
    target: Target = CLASSES
    margins: Mapping[int, float] = field(default_factory=dict)
    stays: tuple[str, ...] = ()

    @classmethod
    def of_run(
        cls,
        run: "SavedRun",
        network: Callable[[Site], nn.Module],
        *,
        tuned: bool,
        embedder: Embedder | None = None,
        stays: Sequence[str] = (),
    ) -> "Served":
        """Make the models' description from a finished run's folder.

        Parameters
        ----------
        run
            The run.
        network
            Function that returns the network that serves a client, in evaluation mode.
        tuned
            Whether it returns clients' fine-tuned networks, too.
        embedder, stays
            See :attr:`embedder` and :attr:`stays`.

        Raises
        ------
        ValueError
            If the run is not finished, or its folder has no encoder of raw rows.
        """
        encoder = run.inputs.get("encoder")
        if encoder is None:
            must = f"inputs.json must have the encoder of the inputs, {run.folder} has none"
            raise ValueError(f"{must} (clients did not say, or privacy=client_dp, which asks for nothing)")
        names = next((array for name, array in run.matrices() if name == "class_names"), None)
        counts, table = run.label_counts, run.clients
        if table is None:
            raise ValueError(f"the run in {run.folder} must be finished, it has no clients.parquet")
        dataset = run.config.get("dataset") or {}
        number = dataset.get("num_classes", 0) if counts is None else counts.shape[1]
        every = map(str, range(number) if names is None else names.tolist())
        # Cluster -1: a newcomer that no cluster fits.
        rows = (table.iloc[client] for client in range(len(table)))
        sites = tuple(Site.of_row(client, row) for client, row in enumerate(rows) if row["cluster"] >= 0)
        if not tuned:
            by_common = set(table.loc[table["served"] == "common", "client"]) if "served" in table else set()
            sites = tuple(
                site.kept_by(COMMON if site.client in by_common else run.strategy) for site in sites
            )
        clusters = tuple(sorted({site.cluster for site in sites}))
        options = dataset.get("csv_options") or {}
        inputs = encoder_from(encoder)
        sites, margins = with_margins(sites, table, run.target)
        facts = options, embedder, run.target, margins, tuple(stays)
        return cls(tuple(every), inputs, sites, clusters, network, *facts)

    def site(self, site: str | int) -> Site:
        """Find a client by its name or its id.

        Raises
        ------
        ValueError
            If there is no such client.
        """
        return self._find(site)

    def _find(self, site: str | int, advice: str = "") -> Site:
        # The number 3 is an id; the text is one, too, unless sites have numbers as names.
        named = any(str(each.name).isdecimal() for each in self.sites) and not isinstance(site, int)
        by_id = {} if named else {str(each.client): each for each in self.sites}
        by_name: dict[str | int | None, Site] = {each.name: each for each in self.sites}
        # A file's name is in Unicode's decomposed form on some systems; who types it uses the other.
        alike = {normalize("NFC", str(each.name)): each for each in self.sites}
        if found := by_name.get(site) or by_id.get(str(site)) or alike.get(normalize("NFC", str(site))):
            return found
        if not self.sites:
            raise ValueError(f"site must not be given to the models of one cluster's folder, got {site}")
        known = few((each.label for each in self.sites), 20)
        raise ValueError(f"site must be one of {known}, got {site}{advice}")

    def predict(
        self,
        rows: Any,
        *,
        site: str | int | None = None,
        cluster: int | None = None,
        times: Sequence[float] | None = None,
    ) -> "pd.DataFrame":
        """Predict class probabilities, amounts or survival for raw rows.

        Parameters
        ----------
        rows
            A path of a CSV or Parquet file, or of an image or a folder of images; a pandas DataFrame; a list
            of texts; or arrays, for a run of arrays. As in training: missing numbers and categories are
            allowed, an unknown category is encoded as unknown, and columns that training did not use are
            ignored.
        site
            Name or id of the client whose rows they are: its fine-tuned model is used if it had one that is
            here; otherwise its cluster's model, with its label-prior correction if it had one.
        cluster
            Cluster whose model is used, for rows of a client that was not in the run.
        times
            Of models that predict times to an event: when survival is asked for, > 0; at the ends of the
            intervals unless given.

        Returns
        -------
        A column per class, named after it; or of the amount, in its unit, and of the ends of its 90 %
        interval by the errors on test rows of the cluster's clients; or of the survival at each time,
        ``survival at 90``, and the ``risk``, which is larger the sooner the event is expected. There is no
        interval if that is not known: where clients use personal layers, without `site`. A row per row,
        indexed as the DataFrame or from 0; for image files, by their path. Where each position has its own
        label, a row per row and position.

        Raises
        ------
        ValueError
            If rows are not like those of training, or it is unclear which model to use.
        """
        import pandas as pd

        rows, index = self.read(rows)
        outputs = self.outputs(rows, site=site, cluster=cluster)
        margin = self.margin(self._site(site, cluster))
        names, predicted = self.target.table(outputs, self.class_names, times, margin)
        chances = predicted.numpy()
        if chances.ndim == 3:
            places = pd.MultiIndex.from_product(
                [index or range(len(chances)), range(chances.shape[1])], names=["row", "position"]
            )
            return pd.DataFrame(chances.reshape(-1, chances.shape[-1]), places, names)
        kept = rows.index if isinstance(rows, pd.DataFrame) else index
        return pd.DataFrame(chances, kept, names)

    def probabilities(
        self, rows: Any, *, site: str | int | None = None, cluster: int | None = None
    ) -> torch.Tensor:
        """Predict like :meth:`predict`, but not from files; return shape (n, C) or (n, positions, C)."""
        outputs = self.outputs(rows, site=site, cluster=cluster)
        return self.target.table(outputs, self.class_names)[1]

    def outputs(
        self, rows: Any, *, site: str | int | None = None, cluster: int | None = None
    ) -> torch.Tensor:
        """Return the network's outputs, with a client's correction, shape (n, O) or (n, positions, O)."""
        chosen = self._site(site, cluster)
        if self.stays and not chosen.is_tuned:
            known = few((each.label for each in self.sites if each.is_tuned), 20) or "none"
            rule = f"site must be one whose own model is here, {known}, as {few(self.stays)} stay with each"
            raise ValueError(f"{rule}; {chosen.note or f'cluster {chosen.cluster} has no whole model'}")
        inputs = self.inputs(rows)
        network = self.network(chosen)
        with torch.no_grad():
            logits = torch.cat([self._logits(network, part) for part in inputs.split(_BATCH)])
            if chosen.prior_shift is not None:  # as in training, where a network may have more outputs
                logits[..., : len(chosen.prior_shift)] += torch.tensor(chosen.prior_shift).to(logits)
        if logits.isnan().any():
            what = "rows must have outputs of the network that are numbers, got some that are not"
            raise ValueError(f"{what}: values are extreme, or training has diverged")
        return logits

    def inputs(self, rows: Any) -> torch.Tensor:
        """Encode rows as inputs of the networks: images normalised, or all rows embedded, as in training.

        Raises
        ------
        ValueError
            If rows are not like those of training, or there are none.
        """
        from fedclust.training.device_data import normalised

        values = self.encoder.encode(rows)
        if not len(values):
            raise ValueError("rows must have at least one row, got none")
        if self.embedder is not None:
            return self.embedder(torch.from_numpy(values.copy()))
        if isinstance(self.encoder, ImageEncoder):
            return normalised(torch.from_numpy(values.copy()), self.encoder.mean, self.encoder.std)
        return torch.from_numpy(values)

    def read(
        self, rows: Any, csv_options: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[Any, list[str] | None]:
        """Open rows given as a path; for images, return their paths, too.

        Parameters
        ----------
        rows
            As for :meth:`predict`.
        csv_options
            How a CSV file is read where it is not written as the training's were, see :attr:`csv_options`.

        Raises
        ------
        ValueError
            If there is no such file, or it cannot be read.
        """
        if not isinstance(rows, str | Path):
            return rows, None
        path = Path(rows)
        if not path.exists():
            raise ValueError(f"rows must be a file or folder that exists, got {path}")
        if isinstance(self.encoder, ImageEncoder):
            if path.is_dir():
                names = [name for name in walk(path) if name.lower().endswith(IMAGE_SUFFIXES)]
                return [path / name for name in names], names
            return [path], [str(path)]
        if not path.is_file() or not path.name.lower().endswith(TABLE_SUFFIXES):
            raise ValueError(f"rows must be a file that ends in {', '.join(TABLE_SUFFIXES)}, got {path}")
        try:
            texts = [each.name for each in getattr(self.encoder, "categories", ())]
            texts += self.encoder.columns if isinstance(self.encoder, TextEncoder) else ()
            part, _ = Source(str(path), csv_options={**self.csv_options, **csv_options}).open(texts)
        except SourceError as error:
            what, *settings = _OF_A_RUN.split(str(error), maxsplit=1)
            ways = "write it as the training rows are, or give --sep, --decimal, --encoding or --csv"
            raise SourceError(f"{what}; {ways}" if settings else what) from error
        return table_of([part], part.rows.schema.names, slice(None)), None

    def _site(self, site: str | int | None, cluster: int | None) -> Site:
        if site is not None and cluster is not None:
            raise ValueError(f"site and cluster must not both be given, got {site} and {cluster}")
        if site is not None:
            return self._find(site, "; for another site choose a cluster")
        if cluster is None and len(self.clusters) == 1:
            (cluster,) = self.clusters
        if cluster not in self.clusters:
            known = ", ".join(map(str, self.clusters))
            raise ValueError(f"cluster must be one of {known}, or site must be given, got {cluster!r}")
        return Site(-1, cluster)

    def margin(self, site: Site) -> float | None:
        """Return the margin of a site's predictions: its own, or its cluster's; None if it is not known."""
        measured = site.personal not in _OWN or site.note is None  # with the model that predicts
        return site.margin if measured and site.margin is not None else self.margins.get(site.cluster)

    def _logits(self, network: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        try:
            logits: torch.Tensor = network(inputs.clone()).float()  # a network may change its inputs
        except (RuntimeError, IndexError) as error:
            shape, reason = tuple(inputs.shape[1:]), " ".join(str(error).split())
            raise ValueError(f"rows must fit the network, shape {shape} does not: {reason}") from error
        names, outputs = self.target.outputs(len(self.class_names)), logits.shape[-1]
        if outputs < names:
            raise ValueError(f"class_names must be at most the network's {outputs} outputs, got {names}")
        return logits


def with_margins(
    sites: Sequence[Site], table: "pd.DataFrame", target: Target
) -> tuple[tuple[Site, ...], dict[int, float]]:
    """Return sites with their margins, and those of clusters, by a table of clients with figures.

    Figures are of predictions with personal layers, so they hold for a cluster alone only if nobody has one.
    """
    members = {cluster: table[table["cluster"] == cluster] for cluster in {each.cluster for each in sites}}
    found = {
        cluster: target.margin({str(name): rows[name] for name in rows}, rows["num_test"])
        for cluster, rows in members.items()
    }
    known = {cluster: margin for cluster, margin in found.items() if margin is not None}
    layered = {site.cluster for site in sites if site.personal not in (None, NONE)}
    of_sites = {cluster: margin for cluster, margin in known.items() if cluster in layered}
    measured = (replace(each, margin=of_sites.get(each.cluster)) for each in sites)
    return tuple(measured), {cluster: known[cluster] for cluster in known.keys() - layered}


def load_export(
    folder: Path | str,
    model: Callable[[], nn.Module] | nn.Module | None = None,
    *,
    encoder: Encoder | None = None,
    allow: str = "",
) -> Served:
    """Open the models that :meth:`fedclust.Result.export` wrote.

    The folder may come from someone else: only networks on fedclust's own list of names are built (see
    :mod:`fedclust.settings.allowed`), weights are read from safetensors, and nothing is unpickled.

    Parameters
    ----------
    folder
        The exported folder, or the folder of one cluster in it.
    model
        The network, for a run of :func:`fedclust.simulate`, whose folder does not say how it is built; its
        weights do not matter.
    encoder
        The frozen encoder that embedded the rows in a run of :func:`fedclust.simulate`, whose folder does not
        say how it is built. In other runs the folder names it, and it is built when rows are predicted. It
        must have the run's fingerprint.
    allow
        Further names that the folder may build, separated by commas, such as ``"mine.models.Net"``; a name
        that ends in a dot allows all names below it.

    Raises
    ------
    FileNotFoundError
        If the folder holds no export.
    ValueError
        If a file is not that of an export, names something that is not allowed, or weights do not fit; when
        rows are predicted, if the frozen encoder cannot be built or is another than the run's.

    Examples
    --------
    >>> import fedclust, tempfile
    >>> network, training = nn.Linear(2, 2), fedclust.LocalTraining(learning_rate=0.1, batch_size=8, steps=1)
    >>> clients = [(torch.zeros(10, 2), torch.full((10,), label)) for label in (0, 0, 1, 1)]
    >>> result = fedclust.simulate("clust_psi_pfl", network, clients, rounds=1, training=training)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     served = fedclust.load_export(result.export(f"{folder}/export"), network)
    >>> [site.cluster for site in served.sites]
    [0, 0, 1, 1]
    """
    root = Path(folder)
    if (root / INDEX).is_file():
        index = _read(root / INDEX, _Index)
        clusters, sites = index.clusters, index.clients
        folders = {cluster: cluster_folder(root, cluster) for cluster in clusters}
    elif (root / CLUSTER).is_file():
        number = _read(root / CLUSTER, Part).cluster
        clusters, sites, folders = (number,), (), {number: root}
    else:
        raise FileNotFoundError(f"folder must hold an export ({INDEX}, or {CLUSTER} of one), got {root}")
    parts = {cluster: _read(folders[cluster] / CLUSTER, Part) for cluster in clusters}
    first = parts[clusters[0]]
    for cluster, part in parts.items():
        if part.cluster != cluster:
            raise ValueError(f"{folders[cluster] / CLUSTER}: cluster must be {cluster}, got {part.cluster}")
        if replace(part, cluster=first.cluster, model=first.model, margin=first.margin) != first:
            raise ValueError(f"{folders[cluster] / CLUSTER}: must agree with those of the other clusters")
    target = from_values(first.target)
    width = target.outputs(len(first.class_names))
    for site in sites:
        if site.prior_shift is not None and len(site.prior_shift) != width:
            raise ValueError(f"{root / INDEX}: prior_shift must have {width} values")

    @lru_cache(maxsize=8)
    def load(own: Path | None, cluster: int, keeps: str | None) -> nn.Module:
        return _network(folders[cluster], own, parts[cluster], model, allow, keeps)

    def network(site: Site) -> nn.Module:
        own = weights_file(root, site.client) if site.is_tuned else None
        return load(own, site.cluster, site.keeps if own else None)

    # A site may have added its own model, which no server has.
    there = {site.client: weights_file(root, site.client).is_file() for site in sites}
    sites = tuple(site.without_model(None if there[site.client] else site.note or _STAYS) for site in sites)
    # A network that does not load is refused now, not at a later prediction.
    for site in (*(Site(-1, cluster) for cluster in clusters), *(site for site in sites if site.is_tuned)):
        network(site)
    inputs = encoder_from(first.encoder)
    if encoder is None and first.frozen is not None:
        check_folder({"encoder": first.frozen}, allow, folders[clusters[0]] / CLUSTER, "load_export")
    make = maker(encoder, first.frozen)
    embedder = Embedder.of(first.embedded_by, make, inputs)
    margins = {each: part.margin for each, part in parts.items() if part.margin is not None}
    options = first.csv_options
    facts = options, embedder, target, margins, first.stays
    return Served(first.class_names, inputs, sites, clusters, network, *facts)


@dataclass(frozen=True)
class _Index:
    """Content of :data:`INDEX`."""

    format: int
    strategy: str
    clusters: tuple[int, ...]
    clients: tuple[Site, ...]

    def __post_init__(self) -> None:
        if not self.clusters or min(self.clusters) < 0:
            raise ValueError(f"clusters must be at least one, numbered from 0, got {list(self.clusters)}")
        for site in self.clients:
            if site.cluster not in self.clusters:
                raise ValueError(f"client {site.client} must have a cluster with a model, got {site.cluster}")


@dataclass(frozen=True)
class Part:
    """Content of :data:`CLUSTER`."""

    format: int
    cluster: int
    class_names: tuple[str, ...]
    encoder: Mapping[str, Any]
    csv_options: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None
    embedded_by: str = ""
    frozen: Mapping[str, Any] | None = None  # how the encoder of that fingerprint is built
    target: Mapping[str, Any] = field(default_factory=dict)  # unless it is classes
    margin: float | None = None  # see Target.margin
    stays: tuple[str, ...] = ()  # see Served.stays; the weights lack these

    def __post_init__(self) -> None:
        if len(self.class_names) < 2:
            raise ValueError(f"class_names must be at least two texts, got {list(self.class_names)}")
        encoder_from(self.encoder)
        from_values(self.target)


def _read(path: Path, kind: Any) -> Any:
    values = read_json(path)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"{path}: must be an export of format {FORMAT}")
    try:
        return read_as(kind, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _network(
    where: Path,
    own: Path | None,
    part: Part,
    model: Callable[[], nn.Module] | nn.Module | None,
    allow: str,
    keeps: str | None = None,
) -> nn.Module:
    """Build a cluster's network, with what a client keeps; without that, what stays is untrained."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    config, file, stays = part.model, own or where / WEIGHTS, set(part.stays)

    if isinstance(model, nn.Module):
        made = copy.deepcopy(model)
    elif model is not None:
        made = model()
    elif config is None:
        raise ValueError(f"{where}: the export does not say how its network is built, model must be given")
    else:
        made = None
    try:
        with safe_open(where / WEIGHTS, framework="pt") as weights:
            shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        if made is None:
            made = _built(where / CLUSTER, config, allow, shapes, partial=bool(stays))
        initial = made.state_dict()
        _check_names(shapes.keys(), initial.keys() - stays)
        state = load_file(where / WEIGHTS)
        if own is not None:
            state |= _kept(own, initial, stays, keeps).serving(state)
        made.load_state_dict({**initial, **state})
    except (SafetensorError, OSError, RuntimeError, construction.WeightsError) as error:
        reason = " ".join(str(error).split())[:500]
        raise ValueError(f"{file}: must hold the weights of the network: {reason}") from error
    if not all(torch.isfinite(value).all() for value in made.state_dict().values()):
        raise ValueError(f"{file}: weights must be finite, some are not")
    return made.eval()


def _kept(file: Path, initial: "State", stays: Set[str], keeps: str | None) -> Own:
    """Read what a client keeps, if it is of this client and of the run that serves it."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(file, framework="pt") as opened:
        about = (opened.metadata() or {}).get(KEPT)
    if None not in (about, keeps) and about != keeps:
        raise RuntimeError(f"it must be what was kept as {keeps}, got {about}")
    try:
        kept = Own.of_file(load_file(file))
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    _check_names(kept.tensors.keys(), stays or initial.keys())
    for name, tensor in kept.tensors.items():
        if tensor.shape != initial[name].shape:
            wanted, got = tuple(initial[name].shape), tuple(tensor.shape)
            raise RuntimeError(f"{name} must have shape {wanted}, got {got}")
    return kept


def _check_names(found: Set[str], wanted: Set[str]) -> None:
    if found != wanted:
        more, less = few(sorted(found - wanted)) or "none", few(sorted(wanted - found)) or "none"
        raise RuntimeError(f"unexpected are {more}, missing {less}")


def _built(
    path: Path, config: Any, allow: str, weights: Mapping[str, Sequence[int]], *, partial: bool
) -> nn.Module:
    if not isinstance(config, Mapping) or not isinstance(config.get("_target_"), str):
        raise ValueError(f"{path}: model must have a _target_, got {str(config)[:80]}")
    try:
        check_folder({"model": config}, allow, path, "load_export")
    except RecursionError as error:
        raise ValueError(f"{path}: model must not be nested so deeply") from error
    try:
        return construction.build_for(config, 0, weights, partial)
    except construction.WeightsError:
        raise
    except (
        InstantiationException,
        ValueError,
        TypeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:500]
        raise ValueError(f"{path}: model cannot be built: {reason}") from error
