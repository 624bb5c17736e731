"""The names of records and of their entries, and the error of a reply that cannot be used."""

from collections.abc import Mapping

__all__ = [
    "ARRAYS",
    "CLIP",
    "CLIP_TELLS",
    "CONFIG",
    "EQUAL_WEIGHTS",
    "FULL",
    "LOSS",
    "LOSSES",
    "MEAN_REPLY",
    "METRICS",
    "NUM_EXAMPLES",
    "POOLED",
    "POOLED_ROWS",
    "PROJECTION",
    "PROJECTION_SEED",
    "PROJECTION_SIZE",
    "PROXIMAL_MU",
    "QUERY_AGREEMENT",
    "QUERY_CLIENTS",
    "QUERY_CONFUSION",
    "QUERY_DESCRIPTION",
    "QUERY_ENCODER",
    "QUERY_LOSSES",
    "QUERY_PERSONAL",
    "QUERY_PREDICTIONS",
    "QUERY_PROOF",
    "QUERY_PROTOTYPES",
    "QUERY_STATEMENT",
    "QUERY_SUBSPACES",
    "QUERY_UPDATE",
    "ROUND",
    "UPDATE_NORM",
    "UPDATE_NORM_CAP",
    "WITHIN_CLIP",
    "_CLASS_NAMES",
    "_CLIENTS",
    "_CONFUSION",
    "_COUNTS",
    "_DATA",
    "_GROUP",
    "_INPUT",
    "_LEFT_OUT",
    "_LEFT_OUT_ROWS",
    "_MAX_NORM",
    "_MEAN",
    "_MIN_EXAMPLES",
    "_NAME",
    "_NAMES",
    "_NORM",
    "_NO_GROUP",
    "_NUM_CLASSES",
    "_NUM_CLIENTS",
    "_NUM_TEST",
    "_NUM_TRAIN",
    "_OUTCOMES",
    "_POOLED",
    "_PROTOTYPES",
    "_SCATTER",
    "_STD",
    "_STEPS",
    "_SUBSPACES",
    "_TELLS",
    "_TEST_COUNTS",
    "_TRAIN_COUNTS",
    "_VALIDATION",
    "_VECTORS",
    "_VOCABULARY",
    "_WINS",
    "BadReply",
    "_lacks",
]

QUERY_AGREEMENT = "query.agreement"
QUERY_CLIENTS = "query.clients"
QUERY_DESCRIPTION = "query.description"
QUERY_ENCODER = "query.encoder"
QUERY_LOSSES = "query.losses"
QUERY_PERSONAL = "query.personal"
QUERY_PREDICTIONS = "query.predictions"
QUERY_PROOF = "query.proof"
QUERY_PROTOTYPES = "query.prototypes"
QUERY_CONFUSION = "query.confusion"
QUERY_STATEMENT = "query.statement"
QUERY_SUBSPACES = "query.subspaces"
QUERY_UPDATE = "query.update"
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # as Flower's own strategies name them
ROUND, NUM_EXAMPLES, LOSS = "server-round", "num-examples", "loss"
PROXIMAL_MU = "proximal-mu"  # as Flower's FedProx names it
MEAN_REPLY = "mean-reply"
UPDATE_NORM, UPDATE_NORM_CAP = "update-norm", "update-norm-cap"
EQUAL_WEIGHTS = "equal-weights"
CLIP, CLIP_TELLS, WITHIN_CLIP = "clip", "clip-tells", "within-clip"
POOLED = "pooled"
POOLED_ROWS = "pooled-rows"
FULL = "full-metrics"
LOSSES = "losses"
PROJECTION, PROJECTION_SIZE, PROJECTION_SEED = "projection", "projection-size", "projection-seed"
_CLIENTS, _NUM_CLIENTS, _DATA, _STEPS = "clients", "num-clients", "data", "steps"
_TELLS, _NUM_CLASSES, _NUM_TRAIN, _NUM_TEST = "tells", "num-classes", "num-train", "num-test"
_TRAIN_COUNTS, _TEST_COUNTS, _GROUP = "train-counts", "test-counts", "group"
_MEAN, _STD = "mean", "std"
_NAME, _NAMES, _CLASS_NAMES = "name", "names", "class-names"
_LEFT_OUT, _LEFT_OUT_ROWS = "left-out", "left-out-rows"
_PROTOTYPES, _COUNTS, _SCATTER = "prototypes", "counts", "scatter"
_MIN_EXAMPLES, _MAX_NORM = "min-examples", "max-norm"
_INPUT, _VOCABULARY, _POOLED = "input", "vocabulary-size", "pooled"
_SUBSPACES, _VECTORS = "subspaces", "vectors"
_CONFUSION = "confusion"
_NORM = "norm"
_OUTCOMES = "outcomes"
_NO_GROUP = -1
_VALIDATION = "validation"
_WINS = "wins"


class BadReply(ValueError):
    """A client's reply lacks something or holds values that must not be aggregated."""


def _lacks(client: int, server_round: int, key: str, found: Mapping[str, object]) -> str:
    return f"client {client}, round {server_round}: no {key!r} in reply, keys are {list(found)}"
