"""A table of hostile replies: each excludes its client, by name, and changes nothing for the others."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedTrimmedAvg, Krum

from fedclust.clustering import pacfl
from fedclust.federation import ClientGrid, Clusters, Federation, FederationError, Measured, pack, unpack
from fedclust.federation.questions import Serving, ask_differences, ask_personal, confuse_clusters
from fedclust.grids.client_grid import WrappedGrid
from fedclust.messages.codec import BadReply
from fedclust.messages.description import (
    DescriptionQuestion,
    Hosted,
    PrototypesQuestion,
    SubspacesQuestion,
    read_from_node,
)
from fedclust.messages.evaluation import ConfusionQuestion, LossesQuestion, PersonalQuestion, ProofQuestion
from fedclust.messages.training import Projection, UpdateQuestion
from fedclust.personal.layers import Prior
from fedclust.strategies import FMCL, PACFL, ClusteredStrategy, ClustPSIPFL, FedGWC, auto
from fedclust.support.array_bytes import from_numpy

ATTACKER, CLIENTS, ROUNDS = 2, 7, 3
"""Who is hostile, of how many; a node each, so that the attacker's node speaks for nobody else."""

Damage = Callable[[RecordDict], Any]
"""Changes a reply in place, or returns what is sent in its stead."""


class Tampered(WrappedGrid):
    """A grid of nodes on which one client's answers to one kind of message are damaged, or never come."""

    def __init__(self, grid: Any, kind: str, damage: Damage | None, *, whole: bool = False) -> None:
        super().__init__(grid)
        self._kind, self._damage, self._whole = kind, damage, whole

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            (reply,) = self._grid.send_and_receive([message], timeout=timeout)
            if message.metadata.message_type == self._kind and self._of_attacker(message):
                if self._damage is None:
                    continue
                reply = copy.copy(reply)
                reply.content = self._damaged(reply.content)
            replies.append(reply)
        return replies

    @staticmethod
    def _of_attacker(message: Message) -> bool:
        return ATTACKER in unpack(message.content)[0]

    def _damaged(self, content: RecordDict) -> RecordDict:
        assert self._damage is not None
        mine = content if self._whole else unpack(content)[0][ATTACKER]
        changed = RecordDict(dict(mine.items()))
        returned = self._damage(changed)
        changed = changed if returned is None else returned
        return changed if self._whole else pack({ATTACKER: changed})


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
class Without:
    """Leave a record out."""

    record: str

    def __call__(self, content: RecordDict) -> None:
        del content[self.record]


@dataclass(frozen=True)
class Instead:
    """Put another record in a record's place."""

    record: str
    other: Callable[[], Any]

    def __call__(self, content: RecordDict) -> None:
        content[self.record] = self.other()


@dataclass(frozen=True)
class Values:
    """Replace an array's values, bytes and declaration alike."""

    record: str
    name: str
    values: Any

    def __call__(self, content: RecordDict) -> None:
        Raw(self.record, self.name, from_numpy(np.asarray(self.values)))(content)


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


def _declared(values: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """Make an array whose bytes are not what it declares."""
    made = from_numpy(np.asarray(values))
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=made.data)


def _bytes(data: bytes, stype: str = "numpy.ndarray", shape: tuple[int, ...] = (2,)) -> Array:
    return Array(dtype="float32", shape=shape, stype=stype, data=data)


def _wrong_arrays(record: str, name: str, good: np.ndarray) -> dict[str, Damage]:
    """List damages that any array of numbers can have."""
    data, shape, dtype = from_numpy(good).data, good.shape, str(good.dtype)
    header = data[: -good.nbytes]

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
        "empty": Values(record, name, np.zeros((0, *shape[1:]), dtype=good.dtype)),
        "transposed": Values(record, name, good[np.newaxis]),
    }


def _one_array(key: str, values: np.ndarray) -> ArrayRecord:
    return ArrayRecord({key: from_numpy(values)})


def _three_classes(content: RecordDict) -> None:
    """Make an answer about one class more than the others have."""
    for name, values in (("prototypes", np.eye(3, 2)), ("counts", np.ones(3, int)), ("scatter", np.ones(3))):
        Values("arrays", name, values)(content)


_W = np.zeros(2, dtype=np.float32)
TRAIN: dict[str, Damage] = {
    **_wrong_arrays("arrays", "w", _W),
    "nan": Values("arrays", "w", np.float32([np.nan, 0])),
    "inf": Values("arrays", "w", np.float32([np.inf, 0])),
    "float64 beyond float32": Values("arrays", "w", np.array([1e300, 0.0])),
    "one array more": Values("arrays", "v", _W),
    "no arrays": Instead("arrays", ArrayRecord),
    "arrays are metrics": Instead("arrays", lambda: MetricRecord({"w": 1.0})),
    "without arrays": Without("arrays"),
    "without metrics": Without("metrics"),
    "without losses": Without("losses"),
    "nothing at all": lambda _: RecordDict(),
    "one record more": Instead("more", lambda: ArrayRecord({"w": from_numpy(_W)})),
    "metrics are config": Instead("metrics", lambda: ConfigRecord({"num-examples": 3, "loss": 1.0})),
    "no num-examples": Set("metrics", "num-examples", None),
    "num-examples 0": Set("metrics", "num-examples", 0),
    "num-examples -1": Set("metrics", "num-examples", -1),
    "num-examples nan": Set("metrics", "num-examples", float("nan")),
    "num-examples inf": Set("metrics", "num-examples", float("inf")),
    "num-examples half": Set("metrics", "num-examples", 1.5),
    "num-examples 2**40": Set("metrics", "num-examples", 2**40),
    "num-examples one more than described": Set("metrics", "num-examples", ATTACKER + 3),
    "num-examples a list": Set("metrics", "num-examples", [1, 2]),
    "an extra metric": Set("metrics", "f1", 1.0),
    "an extra list": Set("metrics", "f1", [1.0, 2.0]),
    "losses text": Set("losses", "losses", "low"),
    "losses texts": Set("losses", "losses", ["1.0", "0.5"]),
    "losses bytes": Set("losses", "losses", b"12345678"),
    "losses a number": Set("losses", "losses", 1.0),
    "losses none": Set("losses", "losses", None),
    "losses empty": Set("losses", "losses", []),
    "losses nan": Set("losses", "losses", [1.0, float("nan")]),
    "losses inf": Set("losses", "losses", [float("inf"), 1.0]),
    "losses 1e300": Set("losses", "losses", [1e300, 1.0]),
    "losses below 0": Set("losses", "losses", [-1.0, 1.0]),
    "losses truth values": Set("losses", "losses", [True, False]),
    "losses with more": Set("losses", "more", 1.0),
    "poison of 1e30": Values("arrays", "w", np.float32([1e30, 1e30])),
    "poison of 1e6": Values("arrays", "w", np.float32([1e6, -1e6])),
}
EVALUATE: dict[str, Damage] = {
    "nothing at all": lambda _: RecordDict(),
    "metrics empty": Instead("metrics", MetricRecord),
    "metrics are config": Instead("metrics", lambda: ConfigRecord({"accuracy": 1.0})),
    "metrics are arrays": Instead("metrics", lambda: ArrayRecord({"accuracy": from_numpy(_W)})),
    "a list": Set("metrics", "accuracy", [0.5, 0.5]),
    "an extra key": Set("metrics", "f1", 0.5),
    "a key of the round's record": Set("metrics", "seconds", 0.5),
    "one record more": Instead("more", lambda: ConfigRecord({"a": 1})),
    **{f"no {key}": Set("metrics", key, None) for key in ("num-examples", "loss", "accuracy")},
    **{
        f"{key} {value}": Set("metrics", key, value)
        for key in ("accuracy", "balanced-accuracy")
        for value in (-0.1, 1.1, float("inf"), 1e300)
    },
    "accuracy nan": Set("metrics", "accuracy", float("nan")),
    **{
        f"num-examples {value}": Set("metrics", "num-examples", value)
        for value in (-1.0, 0.5, 1e18, float("nan"), float("inf"), float(ATTACKER + 3))
    },
    **{f"loss {value}": Set("metrics", "loss", value) for value in (-1.0, 1e300, float("inf"), float("nan"))},
    "outcomes empty": Instead("outcomes", ArrayRecord),
    "outcomes are metrics": Instead("outcomes", lambda: MetricRecord({"a": 1.0})),
    **{
        f"outcomes {name}": Instead("outcomes", partial(_one_array, key, values))
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

    good = '{"clients":[%s],"layout":[%s],"layouts":[%s],"errors":[%s]}'
    return {
        "no bundle": lambda _: RecordDict(),
        "index gone": index(None),
        "index no text": index(1.5),
        "index no JSON": index("{"),
        "index null": index("null"),
        "index a list": index("[]"),
        "index a number": index("1"),
        "index empty": index("{}"),
        "index deep": index("[" * 100_000),
        "index is an array": Instead("fedclust-bundle", lambda: ArrayRecord({"index": from_numpy(_W)})),
        "clients a number": index('{"clients":1,"layout":[0],"layouts":[{}],"errors":[]}'),
        "client null": index(good % ("null", "0", "{}", "")),
        "client a list": index(good % ("[2]", "0", "{}", "")),
        "no such layout": index(good % (ATTACKER, "7", "{}", "")),
        "layout -1": index(good % (ATTACKER, "-1", "{}", "")),
        "layout too short": index(good % (ATTACKER, "", "{}", "")),
        "layout of unknown records": index(good % (ATTACKER, "0", '{"arrays":"99"}', "")),
        "layout a number": index(good % (ATTACKER, "0", "3", "")),
        "layout of lists": index(good % (ATTACKER, "0", '{"arrays":["0"]}', "")),
        "more layouts than clients": index(good % (ATTACKER, "0", "{},{}", "")),
        "client twice": index(good % (f"{ATTACKER},{ATTACKER}", "0,0", "{}", "")),
        "for another client": index(good % (0, "0", "{}", "")),
        "errors a number": index('{"clients":[],"layout":[],"layouts":[],"errors":3}'),
        "error of three": index(good % ("", "", "", '[2,"a","b"]')),
        "error null": index(good % ("", "", "", f"[{ATTACKER},null]")),
        "error and content": index(good % (ATTACKER, "0", "{}", f'[{ATTACKER},"a"]')),
        "error of markup": index(good % ("", "", "", f'[{ATTACKER},"[/red] [bold"]')),
        "error of a megabyte": index(good % ("", "", "", f'[{ATTACKER},"{"x" * 1_000_000}"]')),
    }


BUNDLE = _bundles()
DESCRIPTION: dict[str, Damage] = {
    "nothing at all": lambda _: RecordDict(),
    "config is metrics": Instead("config", lambda: MetricRecord({"train-counts": 1})),
    "no train-counts": Set("config", "train-counts", None),
    "no test-counts": Set("config", "test-counts", None),
    "counts all zero": Set("config", "train-counts", [0, 0]),
    "counts below 0": Set("config", "train-counts", [5, -1]),
    "counts of text": Set("config", "train-counts", ["5", "1"]),
    "counts a number": Set("config", "train-counts", 5),
    "counts of halves": Set("config", "train-counts", [1.5, 1.5]),
    "counts of 2**62": Set("config", "train-counts", [2**62, 2**62]),
    "counts empty": Set("config", "train-counts", []),
    "one class more": Set("config", "train-counts", [3, 1, 1]),
    "group a text": Set("config", "group", "three"),
    "group -7": Set("config", "group", -7),
    "mean a text": Set("config", "mean", "0.5"),
    "mean nan": Set("config", "mean", [float("nan")]),
    "std 0": Set("config", "std", [0.0]),
    "name a number": Set("config", "name", 5),
    "validation a text": Set("config", "validation", "many"),
    "validation -1": Set("config", "validation", -1),
    "an extra key": Set("config", "more", 1),
    "names are arrays": Instead("names", lambda: ArrayRecord({"w": from_numpy(_W)})),
    "class names a number": Set("names", "class-names", 3),
    "left out rows of text": Set("names", "left-out-rows", ["many"]),
}
_P, _C, _S = np.eye(2, dtype=np.float32), np.array([3, 1]), np.ones(2)
PROTOTYPES: dict[str, Damage] = {
    **_wrong_arrays("arrays", "prototypes", _P),
    "nan": Values("arrays", "prototypes", np.full((2, 2), np.nan, dtype=np.float32)),
    "wider than the others": Values("arrays", "prototypes", np.ones((2, 3), dtype=np.float32)),
    "one class more": _three_classes,
    "counts below 0": Values("arrays", "counts", np.array([-1, 1])),
    "counts all zero": Values("arrays", "counts", np.array([0, 0])),
    "counts more than described": Values("arrays", "counts", np.array([2**40, 1])),
    "counts of floats": Values("arrays", "counts", np.array([1.5, 1.0])),
    "scatter below 0": Values("arrays", "scatter", np.array([-1.0, 1.0])),
    "scatter inf": Values("arrays", "scatter", np.array([np.inf, 1.0])),
    "1e300": Values("arrays", "prototypes", np.full((2, 2), 1e300)),
    "nothing at all": lambda _: RecordDict(),
}
LOSSES: dict[str, Damage] = {
    name.removeprefix("losses "): damage for name, damage in TRAIN.items() if name.startswith("losses ")
} | {"too many": Set("losses", "losses", [1.0, 2.0, 3.0]), "nothing at all": lambda _: RecordDict()}
PROOF: dict[str, Damage] = {
    "nothing at all": lambda _: RecordDict(),
    **{
        f"{key} {value}": Set("difference", key, value)
        for key, values in (
            ("mean", (None, float("nan"), 3.0, "0.1", [0.1])),
            ("variance", (None, float("nan"), -1.0, 9.0, "0.1")),
            ("count", (None, -1, 1.5, True, 2**40, "3")),
        )
        for value in values
    },
    "an extra key": Set("difference", "more", 1.0),
}
CONFUSION: dict[str, Damage] = {
    **_wrong_arrays("arrays", "confusion", np.array([[2, 0], [1, 0]])),
    "below 0": Values("arrays", "confusion", np.array([[-1, 0], [0, 1]])),
    "floats": Values("arrays", "confusion", np.ones((2, 2))),
    "three classes": Values("arrays", "confusion", np.ones((3, 3), dtype=int)),
    "more rows than described": Values("arrays", "confusion", np.full((2, 2), 100)),
    "nothing at all": lambda _: RecordDict(),
}
SIZE = 4
_BYTES = np.ones(SIZE, dtype="<f4").tobytes()
PROJECTED: dict[str, Damage] = {
    "without a projection": Without("projection"),
    "projection is arrays": Instead("projection", lambda: ArrayRecord({"w": from_numpy(_W)})),
    "projection is metrics": Instead("projection", lambda: MetricRecord({"norm": 1.0})),
    "projection none": Set("projection", "projection", None),
    "projection a list": Set("projection", "projection", [1.0] * SIZE),
    "projection a text": Set("projection", "projection", "1111" * SIZE),
    "projection empty": Set("projection", "projection", b""),
    "projection cut off": Set("projection", "projection", _BYTES[:-1]),
    "projection one number short": Set("projection", "projection", _BYTES[:-4]),
    "projection one number more": Set("projection", "projection", _BYTES + _BYTES[:4]),
    "projection nan": Set("projection", "projection", np.full(SIZE, np.nan, "<f4").tobytes()),
    "projection inf": Set("projection", "projection", np.full(SIZE, np.inf, "<f4").tobytes()),
    "projection with more": Set("projection", "more", 1.0),
    **{
        f"norm {value}": Set("projection", "norm", value)
        for value in (None, -1.0, float("nan"), float("inf"), 1e300, 1, True, "1", [1.0])
    },
}
ROUND_PROJECTED = PROJECTED | {
    "projection of 1e30": Set("projection", "projection", np.full(SIZE, 1e30, "<f4").tobytes()),
    "norm 1e30": Set("projection", "norm", 1e30),
}
UPDATE: dict[str, Damage] = {
    **_wrong_arrays("arrays", "w", _W),
    **PROJECTED,
    "nan": Values("arrays", "w", np.float32([np.nan, 0])),
    "inf": Values("arrays", "w", np.float32([np.inf, 0])),
    "float64 beyond float32": Values("arrays", "w", np.array([1e300, 0.0])),
    "whole numbers": Values("arrays", "w", np.array([1, 2])),
    "one array more": Values("arrays", "v", _W),
    "no arrays": Instead("arrays", ArrayRecord),
    "arrays are metrics": Instead("arrays", lambda: MetricRecord({"w": 1.0})),
    "nothing at all": lambda _: RecordDict(),
    "without metrics": Without("metrics"),
    "metrics are config": Instead("metrics", lambda: ConfigRecord({"num-examples": 3})),
    "an extra metric": Set("metrics", "loss", 1.0),
    "one record more": Instead("more", lambda: ArrayRecord({"w": from_numpy(_W)})),
    **{
        f"num-examples {value}": Set("metrics", "num-examples", value)
        for value in (None, 0, -1, float("nan"), float("inf"), 1.5, 2**40, ATTACKER + 3, [1, 2])
    },
}
WINS: dict[str, Damage] = {
    "nothing at all": lambda _: RecordDict(),
    "losses are metrics": Instead("losses", lambda: MetricRecord({"wins": [1, 1]})),
    "an extra key": Set("losses", "more", 1.0),
    "one record more": Instead("more", lambda: ConfigRecord({"a": 1})),
    **{
        f"wins {value}": Set("losses", "wins", value)
        for value in (
            None, 3, "21", b"21", [2], [1, 1, 1], [-1, 2], [0, 0], [0.5, 1.5], [float("nan"), 1.0],
            [True, False], ["2", "1"], [2**40, 1], [ATTACKER + 2, 1], [2**62, 2**62],
        )
    },
}  # fmt: skip
PERSONAL: dict[str, Damage] = {
    **{
        name: damage
        for name, damage in {
            name: replace(damage, record="figures/prior")
            for name, damage in EVALUATE.items()
            if isinstance(damage, Set | Instead) and damage.record == "metrics"
        }.items()
        if name not in ("loss inf", "loss nan")  # the layer's own
    },
    **{
        name: replace(damage, record="outcomes/prior")
        for name, damage in EVALUATE.items()
        if isinstance(damage, Instead) and damage.record == "outcomes"
    },
    "nothing at all": lambda _: RecordDict(),
    "one record more": Instead("more", lambda: ConfigRecord({"a": 1})),
    "figures of another layer": Instead("figures/finetune", lambda: MetricRecord({"accuracy": 1.0})),
    "reasons are metrics": Instead("failed", lambda: MetricRecord({"prior": 1.0})),
    "a reason is a number": Set("failed", "finetune", 5),
    "losses are config": Instead("validation-losses", lambda: ConfigRecord({"prior": 0.5})),
    "loss of another layer": Set("validation-losses", "better", 0.5),
    **{
        f"validation loss {value}": Set("validation-losses", "prior", value)
        for value in (-1.0, 1e300, 1, [0.5, 0.5])
    },
}
SUBSPACES: dict[str, Damage] = {
    **_wrong_arrays("arrays", "subspaces", np.ones((2, 2, 1), dtype=np.float32) / np.float32(2) ** 0.5),
    "nan": Values("arrays", "subspaces", np.full((2, 2, 1), np.nan)),
    "1e300": Values("arrays", "subspaces", np.full((2, 2, 1), 1e300)),
    "not of length 1": Values("arrays", "subspaces", np.full((2, 2, 1), 0.5)),
    "two vectors": Values("arrays", "subspaces", np.stack([np.eye(2)] * 2)),
    "wider than the others": Values("arrays", "subspaces", np.stack([np.eye(3, 1)] * 2)),
    "three classes": Values("arrays", "subspaces", np.stack([np.eye(2, 1)] * 3)),
    "whole numbers": Values("arrays", "subspaces", np.stack([np.eye(2, 1, dtype=int)] * 2)),
    "nothing at all": lambda _: RecordDict(),
}


# -- The runs -----------------------------------------------------------------------------------------------


def _grid(toy: Any, kind: str, damage: Damage | None, *, whole: bool = False, **options: Any) -> ClientGrid:
    nodes = toy(num_clients=CLIENTS, **options).nodes(CLIENTS)
    grid = ClientGrid(Tampered(nodes, kind, damage, whole=whole))
    grid.connect()
    return grid


def _of(aggregator: type, **options: Any) -> Callable[[], Any]:
    return lambda: aggregator(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, **options)


AGGREGATORS = {
    "fedavg": _of(FedAvg),
    "fedadam": _of(FedAdam, beta_1=0.9, beta_2=0.99),
    "krum": _of(Krum, num_malicious_nodes=1),
    "fedmedian": _of(FedMedian),
    "fedtrimmedavg": _of(FedTrimmedAvg),
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


def _excluded(
    toy: Any, new_watch: Any, kind: str, phase: str, damage: Damage, make: Any, **options: Any
) -> None:
    """Check that the attacker alone is named, once a round, and the others see what they would without it."""
    without, silent = _run(_grid(toy, kind, None), toy, new_watch(), make())
    seen, failures = _run(_grid(toy, kind, damage, **options), toy, new_watch(), make())
    assert [(each["client"], each["phase"]) for each in failures] == [(ATTACKER, phase)] * ROUNDS
    assert all("\n" not in each["reason"] and len(each["reason"]) < 1000 for each in failures)
    assert len(silent) == ROUNDS
    assert repr(seen) == repr(without)  # the text of NaN equals itself


@pytest.mark.parametrize("damage", TRAIN.values(), ids=TRAIN)
def test_training(damage: Damage, toy, watch) -> None:
    _excluded(toy, type(watch), "train", "train", damage, lambda: ClusteredStrategy(seed=1))


@pytest.mark.parametrize("aggregator", ["fedadam", "krum", "fedmedian", "fedtrimmedavg"])
@pytest.mark.parametrize(
    "name",
    ["an extra metric", "a scalar", "bytes of another shape", "float64 beyond float32", "poison of 1e30"],
)
def test_training_under_other_aggregators(name: str, aggregator: str, toy, watch) -> None:
    make = AGGREGATORS[aggregator]
    _excluded(toy, type(watch), "train", "train", TRAIN[name], lambda: ClusteredStrategy(aggregator=make))


@pytest.mark.parametrize("name", ["losses texts", "losses 1e300", "one array more"])
def test_training_under_fedgwc(name: str, toy, watch) -> None:
    _excluded(toy, type(watch), "train", "train", TRAIN[name], lambda: FedGWC(seed=1))


@pytest.mark.parametrize("damage", EVALUATE.values(), ids=EVALUATE)
def test_evaluation(damage: Damage, toy, watch) -> None:
    _excluded(toy, type(watch), "evaluate", "evaluate", damage, lambda: ClusteredStrategy(seed=1))


@pytest.mark.parametrize("damage", BUNDLE.values(), ids=BUNDLE)
def test_bundle(damage: Damage, toy, watch) -> None:
    _excluded(toy, type(watch), "train", "train", damage, lambda: ClusteredStrategy(), whole=True)


@pytest.mark.parametrize("damage", DESCRIPTION.values(), ids=DESCRIPTION)
def test_description(damage: Damage, toy) -> None:
    # Every method needs everyone's: a run that cannot have it is refused before round 1, in one line.
    with pytest.raises(FederationError, match=f"client {ATTACKER}[ :]") as caught:
        Federation(_grid(toy, DescriptionQuestion.kind, damage)).describe()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", PROTOTYPES.values(), ids=PROTOTYPES)
def test_prototypes(damage: Damage, toy) -> None:
    federation = Federation(_grid(toy, PrototypesQuestion.kind, damage))
    federation.describe()
    with pytest.raises(FederationError, match=f"client {ATTACKER}[ :]") as caught:
        FMCL().begin(federation, toy.model())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", PROTOTYPES.values(), ids=PROTOTYPES)
def test_prototypes_of_a_look(damage: Damage, toy) -> None:
    federation = Federation(_grid(toy, PrototypesQuestion.kind, damage))
    federation.describe()
    found = auto.prototypes(federation, np.arange(CLIENTS))
    assert sorted(found) == [client for client in range(CLIENTS) if client != ATTACKER]
    assert [(each["client"], each["phase"]) for each in federation.take_failures()] == [
        (ATTACKER, PrototypesQuestion.kind)
    ]


@pytest.mark.parametrize("damage", LOSSES.values(), ids=LOSSES)
def test_losses(damage: Damage, toy) -> None:
    federation = Federation(_grid(toy, LossesQuestion.kind, damage), least_loss=0.0)
    found = federation.losses([toy.model(), toy.model()], range(CLIENTS))
    # The toy's loss is |client - first entry|, and both models are zero.
    others = [client for client in range(CLIENTS) if client != ATTACKER]
    assert {client: values.tolist() for client, values in found.items()} == {
        client: [client, client] for client in others
    }
    assert [(each["client"], each["phase"]) for each in federation.take_failures()] == [
        (ATTACKER, LossesQuestion.kind)
    ]


class _Projecting(ClusteredStrategy):
    """Asks for projections, and lists what it was told."""

    def told(self, clusters: Clusters) -> Any:
        return self.ask_for_projection(SIZE)

    def after_round(self, clusters: Clusters, replies: Any, federation: Federation) -> Clusters:
        told = {reply.client: (*reply.projected.values.tolist(), reply.projected.norm) for reply in replies}
        return clusters.with_report(projected=told)


@pytest.mark.parametrize("damage", ROUND_PROJECTED.values(), ids=ROUND_PROJECTED)
def test_projections_of_a_round(damage: Damage, toy, watch) -> None:
    _excluded(toy, type(watch), "train", "train", damage, lambda: _Projecting(seed=1))


def test_a_projection_that_nobody_asked_for(toy, watch) -> None:
    damage = Instead("projection", lambda: ConfigRecord({"projection": _BYTES, "norm": 1.0}))
    _excluded(toy, type(watch), "train", "train", damage, lambda: ClusteredStrategy(seed=1))


def test_rows_of_all_that_nobody_asked_for(toy, watch) -> None:
    def claim(content: RecordDict) -> None:
        content["pooled"] = ConfigRecord({"pooled": CLIENTS})
        Set("metrics", "num-examples", 20)(content)

    _excluded(toy, type(watch), "train", "train", claim, lambda: ClusteredStrategy(seed=1))


@pytest.mark.parametrize("damage", UPDATE.values(), ids=UPDATE)
def test_updates(damage: Damage, toy) -> None:
    def told(damage: Damage | None) -> tuple[dict, list]:
        federation = Federation(_grid(toy, UpdateQuestion.kind, damage), least_loss=0.0)
        federation.describe()
        found = federation.updates(
            toy.model(), range(CLIENTS), 1, projection=Projection(SIZE, 0), names=["w"]
        )
        seen = {
            client: (
                each.num_examples,
                each.changes["w"].tobytes(),
                each.projected.values.tobytes(),
                each.projected.norm,
            )
            for client, each in found.items()
        }
        return seen, federation.take_failures()

    found, failures = told(damage)
    assert sorted(found) == [client for client in range(CLIENTS) if client != ATTACKER]
    assert found == told(None)[0]
    assert [(each["client"], each["phase"]) for each in failures] == [(ATTACKER, UpdateQuestion.kind)]
    assert all("\n" not in each["reason"] and len(each["reason"]) < 1000 for each in failures)


@pytest.mark.parametrize("damage", WINS.values(), ids=WINS)
def test_wins(damage: Damage, toy) -> None:
    grid = _grid(toy, LossesQuestion.kind, damage, wins=lambda client: [client + 1, 1])
    federation = Federation(grid)
    federation.describe()
    found = federation.wins([toy.model(), toy.model()], range(CLIENTS))
    others = [client for client in range(CLIENTS) if client != ATTACKER]
    assert {client: rows.tolist() for client, rows in found.items()} == {
        client: [client + 1, 1] for client in others
    }
    assert [(each["client"], each["phase"]) for each in federation.take_failures()] == [
        (ATTACKER, LossesQuestion.kind)
    ]


@pytest.mark.parametrize("damage", PERSONAL.values(), ids=PERSONAL)
def test_personal(damage: Damage, toy) -> None:
    def told(damage: Damage | None) -> Any:
        federation = Federation(_grid(toy, PersonalQuestion.kind, damage), least_loss=0.0)
        federation.describe()
        one = np.zeros(CLIENTS, dtype=int), (toy.model(),)
        nothing = Measured({"accuracy": np.full(CLIENTS, 0.1)})
        serving = Serving(nothing, one, one, np.zeros(CLIENTS, dtype=bool))
        return ask_personal(federation, serving, Prior(), ROUNDS)

    found, without = told(damage), told(None)
    assert list(found.failures) == [ATTACKER]
    assert "\n" not in found.failures[ATTACKER]
    assert len(found.failures[ATTACKER]) < 1000
    assert found.used["prior"].tolist() == without.used["prior"].tolist()
    assert found.used["prior"].tolist().count("prior") == CLIENTS - 1
    for name, values in without.measured["prior"].figures.items():
        assert found.measured["prior"].figures[name].tobytes() == values.tobytes()
    assert {layer: losses.tobytes() for layer, losses in found.losses.items()} == {
        layer: losses.tobytes() for layer, losses in without.losses.items()
    }


@pytest.mark.parametrize("damage", SUBSPACES.values(), ids=SUBSPACES)
def test_subspaces(damage: Damage, toy) -> None:
    both = np.stack([np.eye(2, 1)] * 2)
    federation = Federation(_grid(toy, SubspacesQuestion.kind, damage, subspaces=lambda _: both))
    federation.describe()
    with pytest.raises(FederationError, match=f"client {ATTACKER}[ :]") as caught:
        PACFL(parameters=pacfl.Parameters(vectors=1)).begin(federation, toy.model())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", PROOF.values(), ids=PROOF)
def test_proof(damage: Damage, toy) -> None:
    federation = Federation(_grid(toy, ProofQuestion.kind, damage))
    models = (np.zeros(CLIENTS, dtype=int), [toy.model()])
    measured, failures = ask_differences(federation, models, models)
    assert sorted(measured) == [client for client in range(CLIENTS) if client != ATTACKER]
    assert list(failures) == [ATTACKER]


@pytest.mark.parametrize("damage", CONFUSION.values(), ids=CONFUSION)
def test_confusion(damage: Damage, toy) -> None:
    federation = Federation(_grid(toy, ConfusionQuestion.kind, damage))
    federation.describe()
    clusters = Clusters(np.array([0, 0, 0, 0, 1, 1, 1]), (toy.model(), toy.model()))
    found = confuse_clusters(federation, clusters)["confusion"]
    # Client k says that all of its k + 1 rows of class 0 and the one of class 1 are predicted as class 0.
    # Of clients 0, 1 and 3: 1 + 2 + 4 = 7 rows; of clients 4, 5 and 6: 5 + 6 + 7 = 18.
    assert found[:, 0].tolist() == [[[7, 0], [3, 0]], [[18, 0], [3, 0]]]
    assert {(each["client"], each["phase"]) for each in federation.take_failures()} == {
        (ATTACKER, ConfusionQuestion.kind)
    }


@pytest.mark.parametrize(
    ("clients", "num_clients"),
    [
        ([0, 1], 0), ([0, 1], -3), ([-1], 3), ([3], 3), ([0, 0], 3), (["a"], 3), ("0,1", 3), ([0], "3"),
        ([0.5], 3), ([True], 3), (None, 3), ([0], None), ([0], 2**40),
    ],
)  # fmt: skip
def test_hosted(clients: Any, num_clients: Any) -> None:
    said = {"clients": clients, "num-clients": num_clients}
    config = ConfigRecord({key: value for key, value in said.items() if value is not None})
    with pytest.raises(BadReply):
        read_from_node(Hosted, RecordDict({"clients": config}))


def test_hosted_must_be_a_config() -> None:
    with pytest.raises(BadReply):
        read_from_node(Hosted, RecordDict({"clients": MetricRecord({"clients": 1})}))


def test_label_counts_of_zero_are_named_before_round_1(toy) -> None:
    counts = lambda client: [0, 0] if client == ATTACKER else [client + 1, 1]  # noqa: E731
    grid = toy(num_clients=CLIENTS, counts=counts).grid(1)
    with pytest.raises(FederationError, match=f"client {ATTACKER}: train-counts"):
        ClustPSIPFL().begin(Federation(grid), toy.model())


def test_there_are_at_least_120_hostile_replies() -> None:
    tables = (TRAIN, EVALUATE, BUNDLE, DESCRIPTION, PROTOTYPES, LOSSES, PROOF, CONFUSION)
    later = (ROUND_PROJECTED, UPDATE, WINS, PERSONAL, SUBSPACES)
    assert sum(map(len, tables)) >= 120
    assert all(len(table) >= 15 for table in later)
