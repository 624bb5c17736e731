"""A node's own sites: which clients they hold, how their data look, and their encoding as agreed."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import ConfigRecord, Context, RecordDict

from fedclust.data import cache
from fedclust.data.sites import UNKNOWING, OwnSitesPartition, SiteError, site_here, sites_in_turn
from fedclust.data.sites.rules import Rules, RulesError
from fedclust.data.source import CSV_OPTIONS
from fedclust.messages.codec import SERVER, decode
from fedclust.messages.description import Agreed, Registered, Stated
from fedclust.settings import allowed
from fedclust.support.reasons import RAISED, reason_of

if TYPE_CHECKING:
    from fedclust.data.sites.agreement import Embedding, Statement
    from fedclust.data.sites.rows import SiteRows

Result = TypeVar("Result")

# Modules that read and encode rows are imported only by nodes with their own data: they need pandas.

_LISTS = ("keep", "exclude")
_READING = (*CSV_OPTIONS, *_LISTS, "label_pattern", "image_path")
"""Keys of the node's own configuration that say how its files are read."""

_KEYS = (
    *(*_READING, "data", "name", "rules", "allow", "encoder", "models", "predictions"),
    *("clients", "partition-id", "num-partitions", "shared"),
)
"""All keys of a deployed node's configuration that fedclust reads; a user's ClientApp may have others."""

_PREPARED = "prepared"  # in `context.state`: the folder of each site's encoded rows
_INPUTS, _LABELS, _NOTE = "inputs.npy", "labels.npy", "rows.json"
_UNCHANGED = "must not change during a run, or a model would be tested on rows that it was trained on"
_UNDER = "rules"  # in `context.state`: what the rules allowed when the rows were encoded


@dataclass(frozen=True, eq=False)
class OwnSites:
    """A node's own sites.

    Attributes
    ----------
    paths
        File or folder of each site, by name.
    settings
        The run's settings that are known before the agreement.
    reading
        How a deployed node's files are read, as JSON: its own settings of the ``dataset`` node.
    rules
        What a deployed node's site lets leave it; None in the user's own process.
    forbidden
        Why these rules let no site take part in the run; empty if they do.
    """

    paths: Mapping[str, Path]
    settings: allowed.SiteSettings
    reading: str = "{}"
    rules: Rules | None = None
    forbidden: str = ""

    def check(self) -> None:
        """Check that the rules let the node's sites take part in the run.

        Raises
        ------
        SiteError
            If they do not.
        """
        if self.forbidden:
            raise SiteError(self.forbidden)

    def rows(self, site: str) -> "SiteRows":
        """Read a site's rows, once per process and version of its files.

        Raises
        ------
        SiteError
            If the site cannot take part.
        """
        from fedclust.data.sites.rows import builder_of, of_a_node, private

        self.check()
        dataset = self.settings["dataset"]
        if self.rules:
            dataset = of_a_node(dataset, json.loads(self.reading))
        builder = builder_of(dataset, self.paths[site])
        with private(builder):
            version = json.dumps(builder.identity())
        written = [json.dumps(each, sort_keys=True) for each in (dataset, self.settings["partition"])]
        rows = _rows(site, str(self.paths[site]), *written, self.settings["seed"], self.rules, version)
        if self.settings["patients"] and rows.shared_persons:
            raise SiteError(
                "a patient must have rows in one client of the site with privacy=patient_dp, some have in "
                "several, and would spend ε in each: set dataset.natural=null"
            )
        return rows

    def registered(self) -> Registered:
        """List the clients of each site, and why other sites cannot take part."""
        rules = {} if self.rules is None else dict.fromkeys(self.paths, self.rules)
        return Registered.of(*_each(self.paths, lambda site: self.rows(site).clients), rules)

    def stated(self, key: str = "") -> Stated:
        """Describe each site for the common encoding, or explain why it cannot take part.

        A site with rules that has taken part in the run with this key describes itself as it did, or not at
        all: the difference of two statements is that of their rows.
        """
        from fedclust.data.sites.rows import describe

        def stated(site: str) -> "Statement":
            found = describe(self.rows(site))
            if key and self.rules is not None and not _stated(found, key, site).fits:
                raise SiteError(f"its data, and the rules by which it states them, {_UNCHANGED}")
            return replace(found, embedding=self._embedding())

        return Stated(*_each(self.paths, stated))

    def _embedding(self) -> "Embedding | None":
        """Describe the frozen encoder that embeds the rows, as built here; None if none does.

        Raises
        ------
        SiteError
            If it cannot be built here.
        """
        if (node := self.settings["encoder"]) is None:
            return None
        try:
            return _embedding(json.dumps(node, sort_keys=True))
        except RAISED as error:
            raise SiteError(reason_of(error, "building the encoder")) from error

    def agree(self, context: Context, content: RecordDict) -> Stated:
        """Encode each site's rows as agreed, and remember their folders for later messages.

        Flower starts a process for each message, and passes `context.state` on.

        Returns
        -------
        Why sites cannot be encoded like this, by site.
        """
        agreed = decode(Agreed, content, SERVER)
        named = [site for site in self.paths if any(f"{name}/".startswith(f"{site}/") for name in agreed.ids)]
        prepared, refused = _each(
            named, lambda site: self._same_rows(site, self._prepare(site, agreed), agreed)
        )
        for key in content:
            context.state[key] = content[key]
        context.state[_PREPARED] = ConfigRecord(dict(prepared))
        context.state[_UNDER] = ConfigRecord({_UNDER: self._allowed()})
        return Stated(refused=refused)

    def held(self, context: Context) -> tuple[Agreed, dict[str, str]]:
        """Return the agreement and the folder of each site's encoded rows, which :meth:`agree` has kept.

        Raises
        ------
        SiteError
            If the node has no agreement yet, or its rows have changed since.
        """
        self.check()
        where = context.state.get(_PREPARED)
        if not isinstance(where, ConfigRecord):
            raise SiteError(f"{UNKNOWING}, this one was not")
        under = context.state.get(_UNDER)
        if not isinstance(under, ConfigRecord) or under.get(_UNDER) != self._allowed():
            raise SiteError("the columns that a site's rules allow must not change during a run")
        agreed = decode(Agreed, context.state, SERVER)
        folders = {site: str(folder) for site, folder in where.items()}
        for site, folder in folders.items():
            # The cache may be emptied at any time.
            if not Path(folder).is_dir() and self._prepare(site, agreed) != folder:
                raise SiteError(f"the data of {site} {_UNCHANGED}")
        return agreed, folders

    def _same_rows(self, site: str, folder: str, agreed: Agreed) -> str:
        """Return the folder of a site's encoded rows, if they are those with which it came into the run.

        Rows in another order would be divided otherwise, and a model tested on rows that it was trained on.
        The cache notes what the site had: its parts and amounts, its classes or bins under one encoding, and
        its inputs under that and the site's rules.
        """
        if agreed.key and self.rules is not None:  # in the user's own process resuming is refused
            from fedclust.data.sites.rows import describe

            parts, encoding = cache.checksums(Path(folder)), agreed.agreement.digest()
            labels, inputs = ({name: parts.pop(name)} for name in (_LABELS, _INPUTS))
            notes = [
                _stated(describe(self.rows(site)), agreed.key, site),
                _Note.of(parts, agreed.key, site, "parts"),
                _Note.of(labels, agreed.key, site, encoding, "labels"),
                _Note.of(inputs, agreed.key, site, encoding, self.rules.to_json()),
            ]
            if not all(note.fits for note in notes):  # then what is new of them is not noted either
                raise SiteError(f"its data {_UNCHANGED}")
            for note in notes:
                note.write()
        return folder

    def _allowed(self) -> str:
        """Write which columns the rules allow, by which rows are read and encoded."""
        rules = self.rules or Rules()
        return json.dumps([rules.labels, rules.inputs, rules.groups, rules.group, rules.patient])

    def _prepare(self, site: str, agreed: Agreed) -> str:
        from fedclust.data.sites.rows import prepare_site

        dataset, partition = self.settings["dataset"], self.settings["partition"]
        partition.pop("sites", None)
        asked = [dataset, partition, self.settings["seed"], self.reading]
        asked += [] if self.rules is None else [self.rules.to_json()]
        return prepare_site(self.rows(site), agreed.agreement, str(dataset["name"]), asked)


@dataclass(frozen=True)
class _Note:
    """Checksums, and where the cache has them or will have."""

    text: str
    folder: Path

    @classmethod
    def of(cls, now: Mapping[str, str], *key: str) -> "_Note":
        text = json.dumps(now, sort_keys=True)
        return cls(text, cache.cache_folder("sites", "rows", cache.digest(*key)))

    @property
    def fits(self) -> bool:
        """Whether the cache has the same, or nothing."""
        file = self.folder / _NOTE
        return not file.is_file() or file.read_text(encoding="utf-8") == self.text

    def write(self) -> None:
        """Write them, unless they are there."""
        cache.prepared(self.folder, lambda scratch: (scratch / _NOTE).write_text(self.text, encoding="utf-8"))


def _stated(statement: "Statement", key: str, site: str) -> _Note:
    """Note what a site has said of its rows in a run."""
    return _Note.of({"statement": cache.digest(asdict(statement))}, key, site, "statement")


def _each(sites: Iterable[str], work: Callable[[str], Result]) -> tuple[dict[str, Result], dict[str, str]]:
    """Work on sites; return their results, and in one printable line why other sites cannot take part."""
    done: dict[str, Result] = {}
    refused: dict[str, str] = {}
    for site in sites:
        try:
            done[site] = work(site)
        except SiteError as error:
            line = " ".join(str(error).split())[:900]
            refused[site] = "".join(each if each.isprintable() else "?" for each in line) or "unknown"
    return done, refused


@lru_cache(maxsize=2)  # for all sites of a node
def _embedding(encoder: str) -> "Embedding":
    from fedclust.data.sites.agreement import Embedding
    from fedclust.models.encoders import build_encoder

    built = build_encoder(json.loads(encoder))
    return Embedding(built.fingerprint, built.dimension)


def own_sites(context: Context) -> OwnSites | None:
    """Return the node's own sites; None for a run over a pooled dataset.

    Raises
    ------
    NotAllowed
        If a node that serves its own data is asked for the run's dataset.
    SiteError
        If the node's configuration does not name the data that it serves.
    """
    node, run = context.node_config, context.run_config
    allow, encoders = allowed.allowed_here(node), allowed.encoders_here(node)
    if not allowed.asks_sites(run, allow):
        if "data" in node:
            raise allowed.NotAllowed("partition must be own on this node, which serves only its own data")
        if "rules" in node:
            raise allowed.NotAllowed("rules must be given with data on this node, they are of its own rows")
        return None
    if "data" not in node and allow.strip() == allowed.EVERYTHING:
        settings = allowed.site_settings(run, allow, encoders)
        return OwnSites(sites_in_turn(node, OwnSitesPartition.of(settings["partition"])), settings)
    paths = site_here(node)
    rules, settings, forbidden = None, allowed.SiteSettings("{}"), ""
    try:
        _check_keys(node)
        rules = Rules.read(Path(str(node["rules"])).expanduser()) if "rules" in node else Rules()
        settings = allowed.site_settings(run, allow, encoders)
        rules.check_choices(*allowed.chosen(run, allow, encoders))
        if settings["encoder"] is not None:
            allowed.check_encoder(settings["encoder"], rules.encoders)
    except (RulesError, allowed.NotAllowed) as error:
        forbidden = str(error)
    reading = json.dumps(_reading(node), sort_keys=True)
    return OwnSites(paths, settings, reading, rules, forbidden)


def _check_keys(node_config: Mapping[str, object]) -> None:
    """Raise RulesError for a misspelt key, as ``rule`` for ``rules``: the node would go on without it."""
    for key in node_config:
        if key not in _KEYS and (near := difflib.get_close_matches(key.lower(), _KEYS, 1, cutoff=0.75)):
            raise RulesError(f"--node-config of this site has {key}: did you mean {near[0]}?")


def _reading(node_config: Mapping[str, object]) -> dict[str, Any]:
    """Return a node's own settings of the ``dataset`` node."""
    own: dict[str, Any] = {key: node_config[key] for key in _READING if key in node_config}
    options = {key: own.pop(key) for key in CSV_OPTIONS if key in own}
    listed = {key: [part.strip() for part in str(own[key]).split(",")] for key in _LISTS if key in own}
    return own | listed | ({"csv_options": options} if options else {})


@lru_cache(maxsize=64)
def _rows(
    site: str,
    path: str,
    dataset: str,
    partition: str,
    seed: int,
    rules: Rules | None,
    _version: str,
) -> "SiteRows":
    from fedclust.data.sites.rows import builder_of, read_site

    builder = builder_of(json.loads(dataset), Path(path))
    return read_site(site, builder, OwnSitesPartition.of(json.loads(partition)), seed, rules)
