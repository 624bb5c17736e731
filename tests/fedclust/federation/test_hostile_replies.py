"""A table of hostile replies: each excludes its client, by name, and changes nothing for the others."""

import copy
import io
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedTrimmedAvg, Krum

from fedclust.clustering import pacfl
from fedclust.federation import Clusters, Federation, FederationError, Measured, questions
from fedclust.grids.client_grid import ClientGrid, WrappedGrid, pack, unpack
from fedclust.messages import description, evaluation
from fedclust.messages.codec import BadReply
from fedclust.messages.training import Projection, UpdateQuestion
from fedclust.personal.layers import Prior
from fedclust.strategies import FMCL, PACFL, ClusteredStrategy, FedGWC
from fedclust.support.array_bytes import from_numpy, to_numpy

ATTACKER, CLIENTS, ROUNDS = 2, 7, 2
"""Who is hostile, of how many; a node each, so that the attacker's node speaks for nobody else."""

Damage = Callable[[RecordDict], Any]
"""Changes a reply in place, or returns what is sent in its stead."""


class Tampered(WrappedGrid):
    """A grid of nodes on which one client's answers to one kind of message are damaged, or never come."""

    def __init__(self, grid: Any, kind: str, damage: Damage | None, *, whole: bool = False) -> None:
        super().__init__(grid)
        self._kind, self._damage, self._whole = kind, damage, whole

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        for message in messages:
            (reply,) = self._grid.send_and_receive([message], timeout=timeout)
            if message.metadata.message_type == self._kind and ATTACKER in unpack(message.content)[0]:
                if self._damage is None:
                    continue
                mine = reply.content if self._whole else unpack(reply.content)[0][ATTACKER]
                changed = RecordDict(dict(mine.items()))
                returned = self._damage(changed)
                changed, reply = changed if returned is None else returned, copy.copy(reply)
                reply.content = changed if self._whole else pack({ATTACKER: changed})
            yield reply


# -- What can be done to a reply ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Set:
    """Replace a record's entry; None removes it."""

    record: str
    key: str
    value: Any

    def __call__(self, content: RecordDict) -> None:
        entries = dict(content[self.record].items())
        entries.pop(self.key, None)
        if self.value is not None:
            entries[self.key] = self.value
        content[self.record] = type(content[self.record])(entries)


@dataclass(frozen=True)
class Instead:
    """Put another record in a record's place; None removes it."""

    record: str
    other: Any

    def __call__(self, content: RecordDict) -> None:
        content.pop(self.record, None)
        if self.other is not None:
            content[self.record] = copy.copy(self.other)


@dataclass(frozen=True)
class Raw:
    """Replace an array with one made by hand."""

    record: str
    name: str
    array: Array

    def __call__(self, content: RecordDict) -> None:
        arrays = ArrayRecord(dict(content[self.record].items()))
        arrays[self.name] = self.array
        content[self.record] = arrays


def _values(record: str, name: str, values: Any) -> Raw:
    """Replace an array's values, bytes and declaration alike."""
    return Raw(record, name, from_numpy(np.asarray(values)))


def _declared(values: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """Make an array whose bytes are not what it declares."""
    made = from_numpy(np.asarray(values))
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=made.data)


def _wrong_arrays(record: str, name: str, good: np.ndarray) -> dict[str, Damage]:
    """List damages that any array of numbers can have."""
    data, shape, dtype = from_numpy(good).data, good.shape, str(good.dtype)
    header = data[: -good.nbytes]
    no_type = "{'descr': (), 'fortran_order': False, 'shape': ()}".ljust(len(header) - 11) + "\n"

    def array(raw: bytes, stype: str = "numpy.ndarray") -> Damage:
        return Raw(record, name, Array(dtype=dtype, shape=shape, stype=stype, data=raw))

    longer = np.concatenate([good, good])
    return {
        "no bytes": array(b""),
        "not npy": array(b"hello"),
        "cut off": array(data[:-3]),
        "header only": array(header),
        "trailing bytes": array(data + b"\0" * 8),
        "header of code": array(header.replace(b"{", b"(", 1) + data[len(header) :]),
        "header without a type": array(header[:10] + no_type.encode() + data[len(header) :]),
        "header of another version": array(data[:6] + b"\x07\x07" + data[8:]),
        "pickled": array(b"\x80\x04N.", "pickle"),
        "unknown stype": array(data, "no.such"),
        "bytes of another shape": Raw(record, name, _declared(longer, dtype, shape)),
        "a scalar": Raw(record, name, _declared(good.ravel()[0], dtype, shape)),
        "bytes of text": Raw(record, name, _declared(np.full(shape, "x"), dtype, shape)),
        "bytes of truth values": Raw(record, name, _declared(np.ones(shape, dtype=bool), dtype, shape)),
        "complex": Raw(record, name, _declared(np.full(shape, 1j), dtype, shape)),
        "negative shape": array(
            header.replace(str(shape).encode(), str((-1,)).encode().ljust(len(str(shape))))
            + data[len(header) :]
        ),
        "empty": _values(record, name, np.zeros((0, *shape[1:]), dtype=good.dtype)),
        "transposed": _values(record, name, good[np.newaxis]),
    }


def _one_array(key: str, values: np.ndarray) -> ArrayRecord:
    return ArrayRecord({key: from_numpy(values)})


def _three_classes(content: RecordDict) -> None:
    """Make an answer about one class more than the others have."""
    for name, values in (("prototypes", np.eye(3, 2)), ("counts", np.ones(3, int))):
        _values("arrays", name, values)(content)


NAN, INF = float("nan"), float("inf")


def _nothing(_: RecordDict) -> RecordDict:
    return RecordDict()


def _sets(record: str, key: str, *values: Any) -> dict[str, Damage]:
    """List damages that put a value in an entry's place; None removes it."""
    return {f"{key} {value!r:.70}": Set(record, key, value) for value in values}


def _puts(record: str, **others: Any) -> dict[str, Damage]:
    """List damages that put another record, or nothing, in a record's place."""
    return {f"{record} {name}": Instead(record, other) for name, other in others.items()}


_W = np.zeros(2, dtype=np.float32)
_MORE = ArrayRecord({"w": from_numpy(_W)})
ANY: dict[str, Damage] = {"nothing at all": _nothing, **_puts("more", arrays=_MORE)}
_WRONG_ROWS = (None, 0, -1, NAN, INF, 1.5, 2**40, ATTACKER + 3, [1, 2])  # ATTACKER + 2 are described
_WRONG_MODELS: dict[str, Damage] = {
    **_wrong_arrays("arrays", "w", _W),
    "nan": _values("arrays", "w", np.float32([np.nan, 0])),
    "inf": _values("arrays", "w", np.float32([np.inf, 0])),
    "float64 beyond float32": _values("arrays", "w", np.array([1e300, 0.0])),
    "one array more": _values("arrays", "v", _W),
    **_puts("arrays", empty=ArrayRecord(), metrics=MetricRecord({"w": 1.0})),
}
LOSSES: dict[str, Damage] = {
    **_sets("losses", "losses", "low", ["1.0", "0.5"], b"12345678", 1.0, None, [], [1.0, NAN], [INF, 1.0]),
    **_sets("losses", "losses", [1e300, 1.0], [-1.0, 1.0], [True, False]),
    **_sets("losses", "more", 1.0),
}
TRAIN: dict[str, Damage] = {
    **ANY,
    **_WRONG_MODELS,
    **{f"without {record}": Instead(record, None) for record in ("arrays", "metrics", "losses")},
    **_puts("metrics", config=ConfigRecord({"num-examples": 3, "loss": 1.0})),
    **_sets("metrics", "num-examples", *_WRONG_ROWS),
    **_sets("metrics", "f1", 1.0, [1.0, 2.0]),
    **LOSSES,
    "poison of 1e30": _values("arrays", "w", np.float32([1e30, 1e30])),
    "poison of 1e6": _values("arrays", "w", np.float32([1e6, -1e6])),
}
EVALUATE: dict[str, Damage] = {
    **ANY,
    **_puts("metrics", empty=MetricRecord(), config=ConfigRecord({"accuracy": 1.0}), arrays=_MORE),
    **_sets("metrics", "f1", 0.5),
    **_sets("metrics", "seconds", 0.5),  # a key of the round's record
    **_sets("metrics", "accuracy", None, [0.5, 0.5], -0.1, 1.1, INF, 1e300, NAN),
    **_sets("metrics", "balanced-accuracy", -0.1, 1.1, INF, 1e300),
    **_sets("metrics", "num-examples", None, -1.0, 0.5, 1e18, NAN, INF, float(ATTACKER + 3)),
    **_sets("metrics", "loss", None, -1.0, 1e300, INF, NAN),
    **_puts("outcomes", empty=ArrayRecord(), metrics=MetricRecord({"a": 1.0})),
    **{
        f"outcomes {name}": Instead("outcomes", _one_array(key, values))
        for name, key, values in (
            ("of three classes", "class-counts", np.ones((3, 3), dtype=np.uint8)),
            ("of more rows than described", "class-counts", np.full((3, 2), 200, dtype=np.uint8)),
            ("that overflow", "class-counts", np.full((3, 2), 2**63, dtype=np.uint64)),
            ("flat", "class-counts", np.ones(3, dtype=np.uint8)),
            ("of floats", "class-counts", np.ones((3, 2))),
            ("of another name", "counts", np.ones((3, 2), dtype=np.uint8)),
        )
    },
}


def _bundles() -> dict[str, Damage]:
    """List damages to the bundle that a node's clients answer in."""

    def index(text: Any) -> Damage:
        return Set("fedclust-bundle", "index", text)

    def failed(clients: Any, reasons: Any, text: str = '{"clients":[],"layout":[],"layouts":[]}') -> Damage:
        entries = {"index": text, "failed": clients, "reasons": reasons}
        return Instead("fedclust-bundle", ConfigRecord(entries))

    good = '{"clients":[%s],"layout":[%s],"layouts":[%s]}'
    return {
        "no bundle": _nothing,
        **_sets("fedclust-bundle", "index", None, 1.5, "{", "null", "[]", "1", "{}"),
        "index deep": index("[" * 100_000),
        "index is an array": Instead("fedclust-bundle", ArrayRecord({"index": from_numpy(_W)})),
        "clients a number": index('{"clients":1,"layout":[0],"layouts":[{}]}'),
        "client null": index(good % ("null", "0", "{}")),
        "client a list": index(good % ("[2]", "0", "{}")),
        "no such layout": index(good % (ATTACKER, "7", "{}")),
        "layout -1": index(good % (ATTACKER, "-1", "{}")),
        "layout too short": index(good % (ATTACKER, "", "{}")),
        "layout of unknown records": index(good % (ATTACKER, "0", '{"arrays":"99"}')),
        "layout a number": index(good % (ATTACKER, "0", "3")),
        "layout of lists": index(good % (ATTACKER, "0", '{"arrays":["0"]}')),
        "more layouts than clients": index(good % (ATTACKER, "0", "{},{}")),
        "layouts of a megabyte": index(good % (ATTACKER, "0", ",".join(["{}"] * 350_000))),
        "layout of a megabyte": index(good % (ATTACKER, "0", f'{{"arrays":"{"0" * 1_000_000}"}}')),
        "client twice": index(good % (f"{ATTACKER},{ATTACKER}", "0,0", "{}")),
        "for another client": index(good % (0, "0", "{}")),
        "more records than clients have": lambda content: content.update(
            {str(number + 10): ConfigRecord() for number in range(2**14)}
        ),
        "errors a number": failed(3, ["a"]),
        "error without a client": failed([], ["a"]),
        "error twice": failed([ATTACKER, ATTACKER], ["a", "b"]),
        "error a number": failed([ATTACKER], [3]),
        "error of a text": failed(["2"], ["a"]),
        "error and content": failed([ATTACKER], ["a"], good % (ATTACKER, "0", "{}")),
        "error of markup": failed([ATTACKER], ["[/red] [bold"]),
        "error of a megabyte": failed([ATTACKER], ["x" * 1_000_000]),
    }


BUNDLE = _bundles()
DESCRIPTION: dict[str, Damage] = {
    "nothing at all": _nothing,
    **_puts("config", metrics=MetricRecord({"train-counts": 1})),
    **_sets("config", "train-counts", None, [0, 0], [5, -1], ["5", "1"], 5, [1.5, 1.5], [2**62, 2**62], []),
    **_sets("config", "train-counts", [3, 1, 1]),
    **_sets("config", "test-counts", None),
    **_sets("config", "group", "three", -7),
    **_sets("config", "mean", "0.5", [NAN]),
    **_sets("config", "std", [0.0]),
    **_sets("config", "name", 5),
    **_sets("config", "validation", "many", -1),
    **_sets("config", "more", 1),
    **_puts("names", arrays=_MORE),
    **_sets("names", "class-names", 3),
    **_sets("names", "left-out-rows", ["many"]),
}
_P = np.eye(2, dtype=np.float32)
PROTOTYPES: dict[str, Damage] = {
    **_wrong_arrays("arrays", "prototypes", _P),
    "nan": _values("arrays", "prototypes", np.full((2, 2), np.nan, dtype=np.float32)),
    "wider than the others": _values("arrays", "prototypes", np.ones((2, 3), dtype=np.float32)),
    "one class more": _three_classes,
    "counts below 0": _values("arrays", "counts", np.array([-1, 1])),
    "counts all zero": _values("arrays", "counts", np.array([0, 0])),
    "counts more than described": _values("arrays", "counts", np.array([2**40, 1])),
    "counts of floats": _values("arrays", "counts", np.array([1.5, 1.0])),
    "1e300": _values("arrays", "prototypes", np.full((2, 2), 1e300)),
    "nothing at all": _nothing,
}
LOSSES = LOSSES | {"nothing at all": _nothing, **_sets("losses", "losses", [1.0, 2.0, 3.0])}
PROOF: dict[str, Damage] = {
    "nothing at all": _nothing,
    **_sets("difference", "sums", None, [0.3, NAN, 0.0], [7.0, 12.0, 12.0], [0.3, 0.05, 3.0], [0.3], "0.1"),
    **_sets("difference", "log-wealth", None, [NAN] * 8, [1.0] * 8, [-5.0] * 8, [0.0] * 8, [0.0]),
    **_sets("difference", "count", None, -1, 1.5, True, 0, 2**40, "3"),
    **_sets("difference", "more", 1.0),
}
_SUMS = np.array([[0.3, 0.05, 0.009], [1.0, 1.0, 1.0], [0.6, 0.2, 0.072]])
FIGURE: dict[str, Damage] = {
    **_wrong_arrays("figure", "sums", _SUMS),
    "more hits of B than rows": _values("figure", "hits", np.array([1.0, 3.0])),
    "hits that are not those of the sums": _values("figure", "hits", np.array([0.0, 2.0])),
    "nan": _values("figure", "sums", np.full((3, 3), np.nan)),
    "cubes beyond their squares": _values("figure", "sums", _SUMS + np.outer([1, 0, 0], [0, 0, 1.0])),
    "shares beyond 2": _values("figure", "sums", _SUMS + np.array([[0, 0, 0], [0, 0, 0], [9.0, 0, 0]])),
    "no bets": _values("figure", "bets", np.zeros((1, 8))),
    "bets on other rows": _values("figure", "bets", np.ones((325, 8))),
    "bets of inf": _values("figure", "bets", np.full((325, 8), np.inf)),
    **_sets("metrics", "count", None, 0, 1, 3, 1.5, 2**40),
}
CONFUSION: dict[str, Damage] = {
    **_wrong_arrays("arrays", "confusion", np.array([[2, 0], [1, 0]])),
    "below 0": _values("arrays", "confusion", np.array([[-1, 0], [0, 1]])),
    "floats": _values("arrays", "confusion", np.ones((2, 2))),
    "three classes": _values("arrays", "confusion", np.ones((3, 3), dtype=int)),
    "more rows than described": _values("arrays", "confusion", np.full((2, 2), 100)),
    "nothing at all": _nothing,
}
SIZE = 4


def _floats(value: float) -> bytes:
    return np.full(SIZE, value, "<f4").tobytes()


_BYTES = _floats(1)
PROJECTED: dict[str, Damage] = {
    "without a projection": Instead("projection", None),
    **_puts("projection", arrays=_MORE, metrics=MetricRecord({"norm": 1.0})),
    **_sets("projection", "projection", None, [1.0] * SIZE, "1111" * SIZE, b"", _BYTES[:-1], _BYTES[:-4]),
    **_sets("projection", "projection", _floats(NAN), _floats(INF)),
    "projection one number more": Set("projection", "projection", _BYTES + _BYTES[:4]),
    **_sets("projection", "more", 1.0),
    **_sets("projection", "norm", None, -1.0, NAN, INF, 1e300, 1, True, "1", [1.0]),
}
ROUND_PROJECTED = PROJECTED | {
    "projection of 1e30": Set("projection", "projection", _floats(1e30)),
    "norm 1e30": Set("projection", "norm", 1e30),
}
UPDATE: dict[str, Damage] = {
    **ANY,
    **_WRONG_MODELS,
    **PROJECTED,
    "whole numbers": _values("arrays", "w", np.array([1, 2])),
    "without metrics": Instead("metrics", None),
    **_puts("metrics", config=ConfigRecord({"num-examples": 3})),
    **_sets("metrics", "loss", 1.0),
    **_sets("metrics", "num-examples", *_WRONG_ROWS),
}
WINS: dict[str, Damage] = {
    **ANY,
    **_puts("losses", metrics=MetricRecord({"wins": [1, 1]})),
    **_sets("losses", "more", 1.0),
    **_sets("losses", "wins", None, 3, "21", b"21", [2], [1, 1, 1], [-1, 2], [0, 0], [0.5, 1.5], [NAN, 1.0]),
    **_sets("losses", "wins", [True, False], ["2", "1"], [2**40, 1], [ATTACKER + 2, 1], [2**62, 2**62]),
}
PERSONAL: dict[str, Damage] = {
    **ANY,
    **{
        name: replace(damage, record={"metrics": "figures", "outcomes": "outcomes"}[damage.record] + "/prior")
        for name, damage in EVALUATE.items()
        if isinstance(damage, Set | Instead) and damage.record != "more"
        if name not in ("loss inf", "loss nan")  # the layer's own
    },
    **_puts("figures/finetune", metrics=MetricRecord({"accuracy": 1.0})),
    **_puts("failed", metrics=MetricRecord({"prior": 1.0})),
    **_sets("failed", "finetune", 5),
    **_puts("validation-losses", config=ConfigRecord({"prior": 0.5})),
    **_sets("validation-losses", "better", 0.5),
    **_sets("validation-losses", "prior", -1.0, 1e300, 1, [0.5, 0.5]),
    **_puts("chosen", config=ConfigRecord({"layer": "finetune"})),
}
SUBSPACES: dict[str, Damage] = {
    **_wrong_arrays("arrays", "subspaces", np.ones((2, 2, 1), dtype=np.float32) / np.float32(2) ** 0.5),
    "nan": _values("arrays", "subspaces", np.full((2, 2, 1), np.nan)),
    "1e300": _values("arrays", "subspaces", np.full((2, 2, 1), 1e300)),
    "not of length 1": _values("arrays", "subspaces", np.full((2, 2, 1), 0.5)),
    "two vectors": _values("arrays", "subspaces", np.stack([np.eye(2)] * 2)),
    "wider than the others": _values("arrays", "subspaces", np.stack([np.eye(3, 1)] * 2)),
    "three classes": _values("arrays", "subspaces", np.stack([np.eye(2, 1)] * 3)),
    "whole numbers": _values("arrays", "subspaces", np.stack([np.eye(2, 1, dtype=int)] * 2)),
    "nothing at all": _nothing,
}


# -- The runs -----------------------------------------------------------------------------------------------


def _grid(toy: Any, kind: str, damage: Damage | None, *, whole: bool = False, **options: Any) -> ClientGrid:
    nodes = toy(num_clients=CLIENTS, **options).nodes(CLIENTS)
    grid = ClientGrid(Tampered(nodes, kind, damage, whole=whole))
    grid.connect()
    return grid


class _Projecting(ClusteredStrategy):
    """Asks for projections, and lists what it was told."""

    def instruction(self, clusters: Clusters) -> Any:
        return self.ask_for_projection(SIZE)

    def after_round(self, clusters: Clusters, replies: Any, federation: Federation) -> Clusters:
        told = {reply.client: (*reply.projected.values.tolist(), reply.projected.norm) for reply in replies}
        return clusters.with_report(projected=told)


def _of(aggregator: type, **options: Any) -> Callable[[], ClusteredStrategy]:
    make = partial(aggregator, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, **options)
    return partial(ClusteredStrategy, aggregator=make, seed=1)


STRATEGIES: dict[str, Callable[[], ClusteredStrategy]] = {
    "fedavg": _of(FedAvg),
    "fedadam": _of(FedAdam, beta_1=0.9, beta_2=0.99),
    "krum": _of(Krum, num_malicious_nodes=1),
    "fedmedian": _of(FedMedian),
    "fedtrimmedavg": _of(FedTrimmedAvg),
    "fedgwc": partial(FedGWC, seed=1),
    "projecting": lambda: _Projecting(seed=1),
}


def _run(grid: ClientGrid, toy: Any, watch: Any, strategy: ClusteredStrategy) -> tuple[Any, list[dict]]:
    """Run, and return what others see of it, to the bit, and the failures."""
    strategy.observer = watch
    federation = Federation(grid, ROUNDS, least_loss=0.0)
    federation.describe()
    strategy.start(grid, toy.model(), num_rounds=ROUNDS, federation=federation)
    seen = [
        {key: value for key, value in record.items() if key not in ("failures", "seconds")}
        for record in watch.rounds
    ]
    models = [{name: array.data for name, array in model.items()} for model in strategy.clusters.models]
    figures = {name: values.tobytes() for name, values in strategy.measured.figures.items()}
    outcome = (seen, models, figures, strategy.assignment.tolist())
    return outcome, [failure for record in watch.rounds for failure in record["failures"]]


@cache
def _without(toy: Any, new_watch: Any, kind: str, strategy: str) -> tuple[str, int]:
    """Return what others see where the attacker never answers, and how often that is recorded."""
    seen, silent = _run(_grid(toy, kind, None), toy, new_watch(), STRATEGIES[strategy]())
    return repr(seen), len(silent)  # the text of NaN equals itself


def _claims_all_rows(content: RecordDict) -> None:
    content["pooled"] = ConfigRecord({"pooled": CLIENTS})
    Set("metrics", "num-examples", 20)(content)


UNASKED: dict[str, Damage] = {
    "a projection": Instead("projection", ConfigRecord({"projection": _BYTES, "norm": 1.0})),
    "rows of all": _claims_all_rows,
}
OTHERS = ("f1 1.0", "a scalar", "bytes of another shape", "float64 beyond float32", "poison of 1e30")
TRACES = ("losses ['1.0', '0.5']", "losses [1e+300, 1.0]", "one array more")


@pytest.mark.parametrize(
    ("kind", "strategy", "table", "name"),
    [
        *(("train", "fedavg", TRAIN, name) for name in TRAIN),
        *(("train", each, TRAIN, name) for each in [*STRATEGIES][1:5] for name in OTHERS),
        *(("train", "fedgwc", TRAIN, name) for name in TRACES),
        *(("train", "projecting", ROUND_PROJECTED, name) for name in ROUND_PROJECTED),
        *(("train", "fedavg", UNASKED, name) for name in UNASKED),
        *(("train", "fedavg", BUNDLE, name) for name in BUNDLE),
        *(("evaluate", "fedavg", EVALUATE, name) for name in EVALUATE),
    ],
)
def test_rounds(kind: str, strategy: str, table: Any, name: str, toy, watch) -> None:
    """The attacker alone is named, once a round, and the others see what they would without it."""
    grid = _grid(toy, kind, table[name], whole=table is BUNDLE)
    seen, failures = _run(grid, toy, watch, STRATEGIES[strategy]())
    assert [(each["client"], each["phase"]) for each in failures] == [(ATTACKER, kind)] * ROUNDS
    assert all("\n" not in each["reason"] and len(each["reason"]) < 1000 for each in failures)
    assert (repr(seen), ROUNDS) == _without(toy, type(watch), kind, strategy)


def _differences(federation: Federation, toy: Any) -> Any:
    models = (np.zeros(CLIENTS, dtype=int), [toy.model()])
    measured, failures = questions.ask_differences(federation, models, models)
    assert measured.keys() & failures.keys() == set()
    return measured


def _figures(federation: Federation, toy: Any) -> Any:
    models = (np.zeros(CLIENTS, dtype=int), [toy.model()])
    return questions.ask_figures(federation, models, models)


def _confusion(federation: Federation, toy: Any) -> Any:
    clusters = Clusters(np.array([0, 0, 0, 0, 1, 1, 1]), (toy.model(), toy.model()))
    found = questions.confuse_clusters(federation, clusters)["confusion"]
    # Client k says that all of its k + 1 rows of class 0 and the one of class 1 are predicted as class 0.
    # Of clients 0, 1 and 3: 1 + 2 + 4 = 7 rows; of clients 4, 5 and 6: 5 + 6 + 7 = 18.
    assert found[:, 0].tolist() == [[[7, 0], [3, 0]], [[18, 0], [3, 0]]]
    return dict.fromkeys(set(range(CLIENTS)) - {ATTACKER}, found.tolist())


def _personal(federation: Federation, toy: Any) -> Any:
    one = np.zeros(CLIENTS, dtype=int), (toy.model(),)
    nothing = Measured({"accuracy": np.full(CLIENTS, 0.1)})
    found = questions.ask_personal(
        federation, questions.Serving(nothing, one, one, np.zeros(CLIENTS, dtype=bool)), Prior(), ROUNDS
    )
    assert list(found.failures) == [ATTACKER]
    told = {**found.measured["prior"].figures, **found.losses}
    columns = np.stack([found.used["prior"] == "prior", *told.values()], axis=1)
    return {client: (tuple(told), values) for client, values in enumerate(columns.tolist()) if values[0]}


def _updates(federation: Federation, toy: Any) -> Any:
    projection = Projection(SIZE, 0)
    return federation.updates(toy.model(), range(CLIENTS), 1, projection=projection, names=["w"])


def _losses(federation: Federation, toy: Any) -> Any:
    return federation.losses([toy.model(), toy.model()], range(CLIENTS))


def _wins(federation: Federation, toy: Any) -> Any:
    return federation.wins([toy.model(), toy.model()], range(CLIENTS))


Ask = Callable[[Federation, Any], Any]
ASKED: dict[str, tuple[str, dict[str, Damage], Ask]] = {
    "losses": (evaluation.LossesQuestion.kind, LOSSES, _losses),
    "wins": (evaluation.LossesQuestion.kind, WINS, _wins),
    "updates": (UpdateQuestion.kind, UPDATE, _updates),
    "personal": (evaluation.PersonalQuestion.kind, PERSONAL, _personal),
    "proof": (evaluation.ProofQuestion.kind, PROOF, _differences),
    "figure": (evaluation.FigureQuestion.kind, FIGURE, _figures),
    "confusion": (evaluation.ConfusionQuestion.kind, CONFUSION, _confusion),
}


def _told(what: str, damage: Damage | None, toy: Any) -> tuple[Any, list[Any]]:
    kind, _, ask = ASKED[what]
    wins = (lambda client: [client + 1, 1]) if what == "wins" else lambda _: None
    federation = Federation(_grid(toy, kind, damage, wins=wins), least_loss=0.0)
    federation.describe()
    return ask(federation, toy), federation.take_failures()


@cache
def _silent(what: str, toy: Any) -> str:
    return repr(_told(what, None, toy)[0])


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, each in ASKED.items() for name in each[1]])
def test_questions(what: str, name: str, toy) -> None:
    found, failures = _told(what, ASKED[what][1][name], toy)
    assert sorted(found) == [client for client in range(CLIENTS) if client != ATTACKER]
    assert repr(found) == _silent(what, toy)
    assert {(each["client"], each["phase"]) for each in failures} == {(ATTACKER, ASKED[what][0])}
    assert all("\n" not in each["reason"] and len(each["reason"]) < 1000 for each in failures)


def _described(federation: Federation, _: Any) -> None:
    federation.describe()


def _fmcl(federation: Federation, toy: Any) -> None:
    FMCL().begin(federation, toy.model())


def _pacfl(federation: Federation, toy: Any) -> None:
    PACFL(parameters=pacfl.Parameters(vectors=1)).begin(federation, toy.model())


BEGUN: dict[str, tuple[str, dict[str, Damage], Ask]] = {
    # Every method needs everyone's: a run that cannot have it is refused before round 1, in one line.
    "description": (description.DescriptionQuestion.kind, DESCRIPTION, _described),
    "prototypes": (description.PrototypesQuestion.kind, PROTOTYPES, _fmcl),
    "subspaces": (description.SubspacesQuestion.kind, SUBSPACES, _pacfl),
}


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, each in BEGUN.items() for name in each[1]])
def test_what_all_must_answer(what: str, name: str, toy) -> None:
    kind, table, begin = BEGUN[what]
    both = np.stack([np.eye(2, 1)] * 2)
    federation = Federation(_grid(toy, kind, table[name], subspaces=lambda _: both))
    if what != "description":
        federation.describe()
    with pytest.raises(FederationError, match=f"client {ATTACKER}[ :]") as caught:
        begin(federation, toy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("clients", "number"),
    [
        *(([0, 1], number) for number in (0, -3, "3", None, 2**40)),
        *((clients, 3) for clients in ([-1], [3], [0, 0], ["a"], "0,1", [0.5], [True], None)),
    ],
)
def test_hosted(clients: Any, number: Any) -> None:
    said = {"clients": clients, "num-clients": number}
    config = ConfigRecord({key: value for key, value in said.items() if value is not None})
    for content in ({"clients": config}, {"clients": MetricRecord({"clients": 1})}):
        with pytest.raises(BadReply):
            description.read_from_node(description.Hosted, RecordDict(content))


class Bad(WrappedGrid):
    """Nodes of which one answers the question for its clients with something else, or with an error."""

    reply: Any = None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        for reply in self._grid.send_and_receive(messages, timeout=timeout):
            bad = reply.metadata.src_node_id == [*self.get_node_ids()][ATTACKER]
            answered = reply
            if bad and isinstance(self.reply, RecordDict):
                answered = copy.copy(reply)
                answered.content = self.reply
            elif bad:
                answered = Message(self.reply, reply_to=reply)
                answered.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
            yield answered


def _bad_clients() -> list[Any]:
    """List answers that no honest node gives."""
    said = {"clients": [ATTACKER], "num-clients": CLIENTS}
    wrong: list[Any] = [-1, 2**40, NAN, INF, -INF, 1.5, "", "x" * 10_000, b"x", True, [], [""], [NAN]]
    wrong += [["a", "b"], [-1], [2**62], [1.5], [True], [ATTACKER] * 2, [b"x"], "\n[red]"]
    allowed = {("clients", "[]"), ("name", "''"), ("data", "''"), ("steps", "[]")}
    changed = [{k: v} for k in ("clients", "num-clients", "name", "data", "steps", "more") for v in wrong]
    records = [
        ConfigRecord({**said, **each})
        for each in changed
        if not any((key, repr(value)) in allowed for key, value in each.items())
    ]
    records += [ConfigRecord({key: said[key]}) for key in said] + [ConfigRecord()]
    records += [
        ConfigRecord({**said, "clients": [CLIENTS]}),
        ConfigRecord({**said, "num-clients": 2 * CLIENTS}),
    ]
    others = [MetricRecord({"clients": 1}), _MORE, ArrayRecord()]
    contents = [RecordDict({"clients": record}) for record in [*records, *others]]
    contents += [RecordDict(), RecordDict({"more": records[0]}), pack({ATTACKER: RecordDict()})]
    contents += [RecordDict({"clients": ConfigRecord(said), "more": each}) for each in others]
    return [*contents, Error(2, "x" * 10_000), Error(2, "[/red]\n\x1b[2J"), Error(99), Error(0, "")]


def test_no_bad_answer_to_the_question_for_clients_ends_a_run_unnamed(toy) -> None:
    answers = _bad_clients()
    assert len(answers) > 109
    nodes = Bad(_grid(toy, "train", None)._grid)
    named = f"node {[*nodes.get_node_ids()][ATTACKER]}"
    for nodes.reply in answers:
        said: list[str] = []
        grid = ClientGrid(nodes, say=said.append, min_clients=CLIENTS - 1, wait=0.0)
        assert grid.connect() == CLIENTS - 1, nodes.reply
        assert ATTACKER not in grid.places
        (line,) = said
        assert line.startswith(f"{named} is left out: "), line
        assert len(line) < 1100
        assert line.isprintable()
        with pytest.raises(FederationError, match=named):
            ClientGrid(nodes, say=said.append, wait=0.0).connect()


# -- Random damage ------------------------------------------------------------------------------------------

FUZZED = int(os.environ.get("FEDCLUST_FUZZED", "8"))
"""Replies of each kind that are damaged at random; 300 make 2,100."""
_ODD: list[Any] = [NAN, INF, -INF, -1, 0, 1, 0.5, -0.0, 1e300, 1e-300, 2**62, "", "x" * 5000, b"", b"\0" * 9]
_ODD += [True, [], [NAN], [1.0], [0, 0], [-1, 2**62], [""], ["\n"], [b"x"], [1.0] * 999]


def _fuzz(draws: np.random.Generator) -> Damage:
    """Draw what happens to a reply: one to three changes of records, entries, numbers and bytes."""

    def number(value: float) -> Any:
        return [NAN, INF, -value, value + 1, value * 1e6, value * (1 + 1e-9), 0.0][draws.integers(7)]

    def listed(values: list[Any]) -> list[Any]:
        changed = list(values)
        if changed and isinstance(changed[0], int | float) and draws.random() < 0.7:
            place = int(draws.integers(len(changed)))
            changed[place] = number(float(changed[place]))
            return list(map(float, changed))
        return [changed * 2, changed[:-1], changed[::-1]][draws.integers(3)]

    def array(old: Array) -> Array:
        data = bytearray(old.data)
        match draws.integers(4):
            case 0:
                for place in draws.integers(len(data), size=draws.integers(1, 9)):
                    data[place] = draws.integers(256)
            case 1:
                del data[int(draws.integers(len(data))) :]
            case 2:
                values = to_numpy(old).copy()
                if values.size:
                    with np.errstate(all="ignore"):
                        place = draws.integers(values.size)
                        odd = np.array(number(float(values.flat[place]))).astype(values.dtype)
                        values.flat[place] = odd
                return from_numpy(values)
            case _:
                values = to_numpy(old)
                shaped = [values[None], values.ravel(), values.astype("f8"), values * 2]
                return from_numpy(shaped[draws.integers(4)])
        return Array(old.dtype, old.shape, old.stype, bytes(data))

    def once(content: RecordDict) -> None:
        name = str(draws.choice([*content]))
        record = content[name]
        chance = draws.random()
        if chance < 0.1 or not len(record):
            del content[name]
        elif chance < 0.15:
            content[f"{name}2"] = copy.copy(record)
        else:
            entries = dict(record.items())
            key = str(draws.choice([*entries]))
            old = entries.pop(key)
            if draws.random() < 0.85:
                if isinstance(old, Array):
                    with suppress(ValueError):  # it is damaged already
                        old = array(old)
                elif draws.random() < 0.4:
                    old = _ODD[draws.integers(len(_ODD))]
                elif isinstance(old, list):
                    old = listed(old)
                elif isinstance(old, int | float):
                    old = number(float(old))
                entries[key if draws.random() < 0.9 else f"{key}2"] = old
            with suppress(TypeError, ValueError):  # Flower's own records refuse it
                content[name] = type(record)(entries)

    def damage(content: RecordDict) -> None:
        for _ in range(draws.integers(1, 4)):
            if len(content):
                once(content)

    return damage


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("what", ["train", "evaluate", *sorted(ASKED.keys() - {"personal", "confusion"})])
def test_random_damage_blames_and_harms_nobody_else(what: str, toy, watch) -> None:
    unharmed = 0
    for number in range(FUZZED):
        damage = _fuzz(np.random.default_rng([42, number]))
        if what in ASKED:
            found, failures = _told(what, damage, toy)
            assert set(found) >= set(range(CLIENTS)) - {ATTACKER}, number
        else:
            watch.rounds.clear()
            (_, models, *_), failures = _run(_grid(toy, what, damage), toy, watch, STRATEGIES["fedavg"]())
            for data in (data for model in models for data in model.values()):
                assert np.isfinite(np.load(io.BytesIO(data))).all(), number
        assert {each["client"] for each in failures} <= {ATTACKER}, number
        assert all("\n" not in each["reason"] and len(each["reason"]) < 1000 for each in failures), number
        unharmed += not failures
    assert unharmed < FUZZED * 0.9
