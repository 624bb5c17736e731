"""Anybody's ClientApp as the clients of a federation: one client a node, and plain Flower messages.

A node is asked nothing but what Flower's own strategies ask: to train and to evaluate. A reply to ``train``
has the model and the number of its rows, ``num-examples``; one to ``evaluate`` has a loss and that number. So
any ClientApp answers, whatever it is written in. Each question of a method becomes such messages:

- what training changes is the reply's model less the one that was sent;
- how several models fit a client's rows are its losses in several evaluations;
- whether one model is better than another is a client's vote by its two losses
  (:mod:`fedclust.proof.votes`).

What a method needs besides is a further record of the reply, which :mod:`fedclust.reporting` makes.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedclust.federation.answering import NO_REPLY, Answers, Failure
from fedclust.messages.codec import (
    ARRAYS,
    CONFIG,
    LARGEST_LOSS,
    LARGEST_NUMBER,
    MOST_EXAMPLES,
    AnyRecord,
    BadReply,
    Numbers,
    Reading,
    Whole,
    decode,
    least_loss,
    of_kind,
    record_bytes,
    short,
)
from fedclust.messages.description import Description, DescriptionQuestion, Prototypes, PrototypesQuestion
from fedclust.messages.evaluation import (
    EvaluateQuestion,
    Evaluation,
    Losses,
    LossesQuestion,
    ProofAnswer,
    ProofQuestion,
    WinsQuestion,
    diverged_last,
)
from fedclust.messages.models import canonical
from fedclust.messages.traffic import Meter, Traffic
from fedclust.messages.training import (
    LOSS,
    NUM_EXAMPLES,
    Instruction,
    Projected,
    Projection,
    TrainAnswer,
    Update,
    UpdateQuestion,
)
from fedclust.metrics import CLIENT_FIGURES
from fedclust.proof.sites import CLASSES, Words
from fedclust.proof.votes import LOSSES, vote
from fedclust.support.array_bytes import to_numpy
from fedclust.support.reasons import FederationError, one_line
from fedclust.typing import FloatArray, IntArray

logger = logging.getLogger("flwr")  # whose log `flwr run` shows

SERVER_ROUND, PROXIMAL = "server-round", "proximal-mu"  # as Flower's own strategies write them
_ROWS = Whole(1, MOST_EXAMPLES)
_LOSSES = Numbers(least_loss, LARGEST_LOSS, at_least=1)
_COUNTS = Numbers(0, MOST_EXAMPLES, np.int64, at_least=1, total=(1, MOST_EXAMPLES))
OWN = "own_"
DIFFERENCE, COMPARE_WITH = "difference", "compare-with"
_PAUSE = 1.0  # seconds between looks for further nodes


class Lacking(BadReply):
    """A reply is not what every ClientApp must send for a method; where a line is missing, it has that."""


@dataclass(frozen=True, eq=False)
class _Trained(TrainAnswer):
    """A reply to training, with the loss that the client gives as one number; NaN if it gives none."""

    reported: float = math.nan

    @property
    def loss(self) -> float:
        """Mean training loss, in nats."""
        return self.reported


class AnyApp:
    """The clients of anybody's ClientApp.

    Parameters
    ----------
    grid
        Flower's grid.
    model
        The model that all clients start from; they evaluate it once before round 1.
    instruction
        Returns what clients are told in a round of training; where a method asks for updates, they are told
        the same.
    evaluate_config
        The user's own settings for the clients, as Flower's strategies send them.
    buffers
        Names of the model's arrays that are not parameters.
    min_nodes
        Number of nodes to wait for before round 1. Nodes that come later join at the beginning of a round.
    compare_rows
        Whether clients compare two models row by row, by :func:`fedclust.reporting.comparison`; otherwise
        each has a vote by its losses.

    Attributes
    ----------
    nodes
        Flower's id of each client's node, shape (K,).
    words
        What a verdict says of these clients' comparisons.
    chose
        Clients whose cluster was chosen by their losses, by which they cannot also compare models.
    num_train
        Rows that each client has said it trained on, last.
    """

    plain = True
    all_rows = False
    keeps: tuple[str, ...] = ()
    keeps_of: Mapping[int, tuple[str, ...]] = MappingProxyType({})
    cautions: tuple[str, ...] = ()
    repeats: Mapping[tuple[str, int], int] = MappingProxyType({})
    kept = None
    simulated = False

    def __init__(
        self,
        grid: Grid,
        model: ArrayRecord,
        instruction: Callable[[int], Instruction],
        evaluate_config: Mapping[str, Any],
        *,
        buffers: Collection[str] = (),
        min_nodes: int = 2,
        compare_rows: bool = False,
    ) -> None:
        for name in ("rows", "margin") if compare_rows else ():
            if name in evaluate_config:
                rule = f"evaluate_config must not have {name}, which compare_rows=True sends"
                raise ValueError(f"{rule}, got {evaluate_config[name]!r}")
        self._compare_rows = compare_rows
        self.chose = set[int]()
        self.num_train = dict[int, int]()
        self.words: Words = CLASSES if compare_rows else LOSSES
        self._grid, self._model, self._buffers = grid, model, frozenset(buffers)
        self._instruction, self._evaluate_config = instruction, dict(evaluate_config)
        self._meter, self._refused = Meter(), set[int]()
        self._whole, self._lacking = set[str](), defaultdict[str, set[int]](set)  # by what reads the replies
        before = -1
        while (number := len(found := sorted(grid.get_node_ids()))) < min_nodes:
            if number != before:
                logger.info("%d of at least %d nodes are connected, waiting for more", number, min_nodes)
            before = number
            time.sleep(_PAUSE)
        self.nodes = found

    @property
    def num_clients(self) -> int:
        """Number of clients, online or not."""
        return len(self.nodes)

    @property
    def places(self) -> Sequence[int]:
        """Id of each client's node, shape (K,)."""
        return self.nodes

    @property
    def traffic(self) -> Traffic:
        """Bytes of the records sent and received so far."""
        return self._meter.read(self.num_clients)

    def online(self) -> set[int]:
        """Return the ids of the clients whose nodes are connected."""
        connected = set(self._grid.get_node_ids())
        return {client for client, node in enumerate(self.nodes) if node in connected}

    def named(self, client: int) -> str:
        """Name a client for its user."""
        return f"client {client} (node {self.nodes[client]})"

    def prefixed(self, client: int, reason: str) -> str:
        """Name a client and its node before the reason of its failure."""
        name = self.named(client)
        return reason if reason.startswith(name) else f"{name}: {reason.removeprefix(f'client {client}: ')}"

    def newcomers(self) -> list[int]:
        """List the connected nodes that are not clients yet."""
        return sorted({*self._grid.get_node_ids()} - {*self.nodes} - self._refused)

    def admit(self, places: Sequence[int]) -> list[int]:
        """Add nodes; return their clients' ids."""
        first = len(self.nodes)
        self.nodes += places
        return list(range(first, len(self.nodes)))

    def withdraw(self, number: int) -> None:
        """Remove the clients that joined last."""
        del self.nodes[len(self.nodes) - number :]

    def refuse(self, place: int, reason: str) -> None:
        """Leave out a node that does not fit."""
        logger.warning("node %d is left out: %s", place, reason)
        self._refused.add(place)

    def log_round(self, record: Mapping[str, Any], num_rounds: int) -> None:
        """Log a round's line in Flower's log, each client that failed, and each cluster that went back."""
        loss = f", loss {record['test_loss']:.4g}" if "test_loss" in record else ""
        sizes, round_ = record["cluster_sizes"], f"[ROUND {record['round']}/{num_rounds}]"
        failures = record["failures"]
        logger.info("%s clusters of %s clients, %d failures%s", round_, sizes, len(failures), loss)
        self.log_failures(failures)
        for each in record.get("went_back", ()):
            logger.warning("cluster %d went back to an earlier model: %s", each["cluster"], each["reason"])

    def log_failures(self, failures: Sequence[Failure], when: str = "") -> None:
        """Name each client that failed in Flower's log, after words for when it was."""
        for each in failures:
            logger.warning(
                "%s%s: %s", when, each["phase"], self.prefixed(int(each["client"]), str(each["reason"]))
            )

    # -- Questions ------------------------------------------------------------------------------------------

    def answer(self, asked: Mapping[int, Any], timeout: float, at: Callable[[int], Reading]) -> Answers[Any]:
        """Ask clients questions of one kind, in messages to train or to evaluate.

        Raises
        ------
        FederationError
            If the method asks what such messages cannot answer, or no client gives what it needs.
        """
        ways: dict[str, Callable[..., Answers[Any]]] = {
            Instruction.kind: self._train,
            UpdateQuestion.kind: self._updates,
            EvaluateQuestion.kind: self._evaluate,
            LossesQuestion.kind: self._losses,
            ProofQuestion.kind: self._votes,
            DescriptionQuestion.kind: self._describe,
            PrototypesQuestion.kind: self._prototypes,
        }
        if self._compare_rows:
            ways[ProofQuestion.kind] = self._compared
        question = next(iter(asked.values()))
        if question.kind not in ways or isinstance(question, WinsQuestion):
            raise FederationError(
                f"a ClientApp of your own can only train and evaluate, the method asks {question.kind!r}: "
                "it needs fedclust's own clients"
            )

        def named(client: int) -> Reading:
            found = at(client)
            where = "" if found.server_round is None else f", round {found.server_round}"
            return replace(found, sender=f"{self.named(client)}{where}")

        return ways[question.kind](asked, timeout, named)

    def _train(self, asked: Mapping[int, Instruction], timeout: float, at: Any) -> Answers[Any]:
        contents = {client: (each.arrays, self._settings(each)) for client, each in asked.items()}

        def read(content: RecordDict, client: int) -> _Trained:
            each, metrics = asked[client], _metrics(content, at(client))
            model, loss = _only_model(content, at(client)), _loss(metrics)
            projected = None
            if each.projection is not None:
                projected = self._projected(each.projection, model, each.arrays, at(client))
            self.num_train[client] = _rows(metrics, at(client))
            return _Trained(
                client,
                model,
                self.num_train[client],
                _step_losses(content, at(client)) if each.step_losses else np.zeros(0),
                projected=projected,
                reported=math.nan if loss is None else loss,
            )

        return self._ask(contents, MessageType.TRAIN, timeout, read)

    def _settings(self, asked: Instruction) -> dict[str, Any]:
        own = {} if asked.proximal_mu is None else {PROXIMAL: asked.proximal_mu}
        return {**asked.extra, **own, SERVER_ROUND: asked.server_round}

    def _updates(self, asked: Mapping[int, UpdateQuestion], timeout: float, at: Any) -> Answers[Any]:
        told = {
            number: self._instruction(number) for number in {each.server_round for each in asked.values()}
        }
        contents = {
            client: (each.arrays, self._settings(told[each.server_round])) for client, each in asked.items()
        }

        def read(content: RecordDict, client: int) -> Update:
            each, rows = asked[client], _rows(_metrics(content, at(client)), at(client))
            model = _only_model(content, at(client))
            changes = _changes(model, each.arrays, each.names, at(client)) if each.names else {}
            if each.projection is None:
                return Update(client, rows, changes)
            return Update(
                client, rows, changes, self._projected(each.projection, model, each.arrays, at(client))
            )

        return self._ask(contents, MessageType.TRAIN, timeout, read)

    def _projected(
        self, projection: Projection, model: ArrayRecord, start: ArrayRecord, at: Reading
    ) -> Projected:
        """Project what training has changed in a model's parameters."""
        names = [
            name
            for name, array in start.items()
            if name not in self._buffers and np.dtype(array.dtype).kind == "f"
        ]
        changes = _changes(model, start, names, at)
        norm = math.sqrt(sum(float(np.square(change).sum()) for change in changes.values()))
        return Projected(projection.of({name: change[None] for name, change in changes.items()})[0], norm)

    def _evaluate(self, asked: Mapping[int, EvaluateQuestion], timeout: float, at: Any) -> Answers[Any]:
        contents = {
            client: (each.arrays, {**each.extra, SERVER_ROUND: each.server_round})
            for client, each in asked.items()
        }
        beyond = set[str]()
        answers = self._ask(contents, MessageType.EVALUATE, timeout, _evaluation(at, beyond))
        replies = {client: _without(each, beyond) for client, each in answers.replies.items()}
        return Answers(replies, answers.failures)

    def _measured(self, models: Mapping[int, ArrayRecord], timeout: float, at: Any) -> Answers[Evaluation]:
        """Have clients evaluate a model each."""
        config = {**self._evaluate_config, SERVER_ROUND: at(next(iter(models))).server_round or 0}
        contents = {client: (model, config) for client, model in models.items()}
        return self._ask(contents, MessageType.EVALUATE, timeout, _evaluation(at))

    def _several(
        self, models: Mapping[int, Sequence[ArrayRecord]], timeout: float, at: Any
    ) -> tuple[dict[int, list[float]], dict[int, str]]:
        """Have clients evaluate several models; return the losses of those that evaluated all."""
        losses: dict[int, list[float]] = {client: [] for client in models}
        failures: dict[int, str] = {}
        for place in range(max(map(len, models.values()))):
            due = {client: models[client][place] for client in losses if place < len(models[client])}
            if not due:
                break
            measured = self._measured(due, timeout, at)
            for client, each in measured.replies.items():
                losses[client].append(each.metrics[LOSS])
            failures |= measured.failures
            losses = {client: each for client, each in losses.items() if client not in failures}
        return losses, failures

    def _losses(self, asked: Mapping[int, LossesQuestion], timeout: float, at: Any) -> Answers[Any]:
        models = {client: each.models for client, each in asked.items()}
        losses, failures = self._several(models, timeout, at)
        self.chose |= asked.keys()
        replies: dict[int, Losses] = {}
        for client, own in losses.items():
            if any(abs(loss) <= LARGEST_NUMBER for loss in own):  # NaN is not
                replies[client] = Losses(diverged_last(np.array(own)))
            else:
                failures[client] = str(at(client).bad(f"{LOSS} must be finite, got {own}"))
        return Answers(replies, dict(sorted(failures.items())))

    def _votes(self, asked: Mapping[int, ProofQuestion], timeout: float, at: Any) -> Answers[Any]:
        """Compare two models by each client's two losses."""
        models = {client: (each.model_a, each.model_b) for client, each in asked.items()}
        losses, failures = self._several(models, timeout, at)
        votes = {client: vote(own[0], own[1], asked[client].margin) for client, own in losses.items()}
        for client in [client for client, each in votes.items() if not each.count]:
            del votes[client]
            failures[client] = str(at(client).bad(f"{LOSS} must be finite, got {losses[client]}"))
        return Answers({client: ProofAnswer.of(each) for client, each in votes.items()}, failures)

    def _compared(self, asked: Mapping[int, ProofQuestion], timeout: float, at: Any) -> Answers[Any]:
        """Have clients compare two models row by row."""
        contents = {
            client: (
                each.model_b,
                {**self._evaluate_config, SERVER_ROUND: 0, "margin": each.margin, "rows": each.rows},
            )
            for client, each in asked.items()
        }

        def read(content: RecordDict, client: int) -> ProofAnswer:
            record = _further(content, DIFFERENCE, "comparison(other, own, labels, config)", at(client))
            answer: ProofAnswer = decode(ProofAnswer, {DIFFERENCE: record}, at(client))
            return answer

        others = {client: each.model_a for client, each in asked.items()}
        return self._ask(contents, MessageType.EVALUATE, timeout, read, others)

    def _prototypes(self, asked: Mapping[int, PrototypesQuestion], timeout: float, at: Any) -> Answers[Any]:
        """Have clients send class prototypes; a question that pools the classes gets them apart, too."""

        def read(content: RecordDict, client: int) -> Prototypes:
            record = _further(
                content, "prototypes", "prototypes(embeddings, labels, num_classes)", at(client)
            )
            apart = replace(at(client), asked=replace(asked[client], pooled=False))
            answer: Prototypes = decode(Prototypes, {ARRAYS: record}, apart)
            return answer

        return self._ask_first(asked, timeout, read)

    def _describe(self, asked: Mapping[int, DescriptionQuestion], timeout: float, at: Any) -> Answers[Any]:
        """Have clients evaluate the first model: who has a loss can compare models, by one vote or its rows.

        A client that fails takes part without a vote, unless label counts are needed.
        """
        counted = next(iter(asked.values())).disclosed == "labels"
        evaluation = _evaluation(at)

        def read(content: RecordDict, client: int) -> Description:
            rows = int(evaluation(content, client).metrics[NUM_EXAMPLES])
            votes = rows if self._compare_rows else 1
            counts = _label_counts(content, at(client)) if counted else np.zeros(1, dtype=np.int64)
            return _described(counts, rows, votes)

        found = self._ask_first(asked, timeout, read)
        if len(found.failures) == self.num_clients:  # not only those that come later
            first, why = next(iter(found.failures.items()))
            raise FederationError(f"no client evaluates the first model: {self.prefixed(first, why)}")
        if counted:
            return found
        for client, why in found.failures.items():
            logger.warning("a client has no vote: %s", self.prefixed(client, why))
        silent = dict.fromkeys(found.failures, _described(np.zeros(1, dtype=np.int64), 0, 0))
        return Answers(dict(sorted({**found.replies, **silent}.items())), {})

    def _ask_first(
        self, clients: Collection[int], timeout: float, read: Callable[[RecordDict, int], Any]
    ) -> Answers[Any]:
        """Have clients evaluate the first model."""
        sent = self._model, {**self._evaluate_config, SERVER_ROUND: 0}
        return self._ask(dict.fromkeys(clients, sent), MessageType.EVALUATE, timeout, read)

    # -- Messages -------------------------------------------------------------------------------------------

    def _ask(
        self,
        contents: Mapping[int, tuple[ArrayRecord, Mapping[str, Any]]],
        kind: str,
        timeout: float,
        read: Callable[[RecordDict, int], Any],
        others: Mapping[int, ArrayRecord] = MappingProxyType({}),
    ) -> Answers[Any]:
        """Send each client a model and settings, and maybe one to compare with; and read the replies."""
        messages, down = [], {}
        for client, (model, settings) in contents.items():
            content = RecordDict({ARRAYS: model, CONFIG: ConfigRecord(dict(settings))})
            if client in others:
                content[COMPARE_WITH] = others[client]
            messages.append(Message(content, self.nodes[client], kind))
            down[client] = sum(map(record_bytes, content.values()))
        self._meter.count("down", sum(down.values()), down)
        sent = self._grid.send_and_receive(messages, timeout=timeout)
        arrived = {message.metadata.src_node_id: message for message in sent}
        replies: dict[int, Any] = {}
        failures: dict[int, str] = {}
        up: dict[int, int] = {}
        lacking: dict[int, Lacking] = {}
        for client in contents:
            try:
                if (message := arrived.get(self.nodes[client])) is None:
                    raise BadReply(NO_REPLY)
                if message.has_error():
                    raise BadReply(one_line(str(message.error.reason)))
                up[client] = sum(map(record_bytes, message.content.values()))
                replies[client] = read(message.content, client)
            except BadReply as error:
                failures[client] = str(error)
                if isinstance(error, Lacking):
                    lacking[client] = error
        self._meter.count("up", sum(up.values()), up)
        what = read.__qualname__
        self._whole |= {what} if replies else set()
        self._lacking[what] |= lacking.keys()
        # One client does not end a run for others that were not asked; nobody does once a reply was whole.
        if lacking and what not in self._whole and len(self._lacking[what]) >= min(2, self.num_clients):
            raise FederationError(str(next(iter(lacking.values()))))
        return Answers(replies, failures)


def _described(counts: IntArray, tested: int, votes: int) -> Description:
    """Describe a client by its label counts, 0 if nobody asked, and the rows by which it compares models."""
    test = np.zeros_like(counts)
    test[0] = tested
    return Description.of(counts, test, "labels" if counts.any() else "sizes", num_validation=votes)


def _lacks(what: str, line: str, found: Any, at: Reading) -> NoReturn:
    bad = at.bad(f"no {what} in reply, add: {line}; its keys are {short([*found])}")
    raise Lacking(str(bad))


def _further(content: RecordDict, name: str, made_by: str, at: Reading) -> Any:
    """Return a record that a method needs besides; `made_by` is the call of ``reporting`` that makes it."""
    if name not in content:
        _lacks(f'content["{name}"]', f"content.update(reporting.{made_by})", content, at)
    return content[name]


def _numbers(content: RecordDict, name: str, made_by: str, how: Numbers, at: Reading) -> Any:
    """Read the numbers of a further record, which has their name."""
    record = _further(content, name, made_by, at)
    return how.read(record.get(name) if isinstance(record, ConfigRecord) else None, name, at)


def _step_losses(content: RecordDict, at: Reading) -> FloatArray:
    losses: FloatArray = _numbers(content, "losses", "losses(loss_of_each_step)", _LOSSES, at)
    return losses


def _label_counts(content: RecordDict, at: Reading) -> IntArray:
    made_by = "label_counts(labels, num_classes)"
    counts: IntArray = _numbers(content, "label-counts", made_by, _COUNTS, at)
    return counts


def _only_model(content: RecordDict, at: Reading) -> ArrayRecord:
    return _only_record(content, ArrayRecord, 'content["arrays"]', "ArrayRecord(…)", at)


def _metrics(content: RecordDict, at: Reading) -> dict[str, Any]:
    made = 'MetricRecord({"num-examples": …})'
    return dict(_only_record(content, MetricRecord, 'content["metrics"]', made, at).items())


def _only_record(content: RecordDict, kind: type[AnyRecord], usual: str, made: str, at: Reading) -> AnyRecord:
    """Return the only record of a kind; Flower's own strategies read no other replies either."""
    found: dict[str, AnyRecord] = of_kind(content, kind)
    if not found:
        _lacks(usual, f"{usual} = {made}", content, at)
    if len(found) > 1:
        raise Lacking(str(at.bad(f"reply must have one {kind.__name__}, got {short([*found])}")))
    return next(iter(found.values()))


def _rows(metrics: Mapping[str, Any], at: Reading) -> int:
    if NUM_EXAMPLES not in metrics:
        _lacks('metrics["num-examples"]', 'metrics["num-examples"] = len(rows)', metrics, at)
    return _ROWS.read(metrics[NUM_EXAMPLES], NUM_EXAMPLES, at)


def _loss(metrics: Mapping[str, Any]) -> float | None:
    """Return the loss: ``loss``, or the only entry whose name ends so, such as Flower's ``eval_loss``."""
    return _only(_numbers_of(metrics), LOSS, LOSS)


def _only(numbers: Mapping[str, float], name: str, *endings: str) -> float | None:
    """Return a number by its name, or the only one whose name ends in one of some words."""
    ending = [name] if name in numbers else [each for each in numbers if each.endswith(endings)]
    return numbers[ending[0]] if len(ending) == 1 else None


def _numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries that are one number each; one that is not finite, or nearly so, is NaN."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return {name: float(value) if abs(value) < 1e300 else math.nan for name, value in numbers.items()}


def _without(evaluation: Evaluation, beyond: Collection[str]) -> Evaluation:
    """Return figures without those that are no shares of others; what was sent stays, as the app's own."""
    figures = {name for name in evaluation.metrics if not name.startswith(OWN)} - {*beyond}
    metrics = {
        name: each
        for name, each in evaluation.metrics.items()
        if name in figures or (name.startswith(OWN) and name.removeprefix(OWN) not in figures)
    }
    return replace(evaluation, metrics=metrics)


def _evaluation(
    at: Callable[[int], Reading], beyond: set[str] | None = None
) -> Callable[[RecordDict, int], Evaluation]:
    """Return what reads a reply to an evaluation.

    Numbers that are not figures of every client's get :data:`OWN` before their names, so that none takes the
    place of what a round's record or a summary has by that name. Figures above 1, as accuracies in percent,
    are added to `beyond`: those of the others are no shares either.
    """

    def read(content: RecordDict, client: int) -> Evaluation:
        metrics = _metrics(content, at(client))
        rows, loss, numbers = _rows(metrics, at(client)), _loss(metrics), _numbers_of(metrics)
        lists = [name for name, each in metrics.items() if name.endswith(LOSS) and isinstance(each, list)]
        if loss is None and lists:
            given = LOSS if LOSS in lists else lists[0]
            raise Lacking(str(at(client).bad(f"{given} must be one number, got {short(metrics[given])}")))
        if loss is None:
            _lacks('metrics["loss"]', 'metrics["loss"] = loss', metrics, at(client))
        if math.isfinite(loss) and abs(loss) > LARGEST_NUMBER:  # one that is not may be the model's fault
            raise at(client).bad(f"{LOSS} must be at most {LARGEST_NUMBER:g}, got {loss}")
        usual: dict[str, float | None] = {
            name: numbers[name] for name in CLIENT_FIGURES[2:] if name in numbers
        }
        usual["accuracy"] = _only(numbers, "accuracy", "accuracy", "acc")
        shares = {name: each for name, each in usual.items() if each is not None and 0 <= each <= 1}
        if beyond is not None:
            beyond.update(name for name, each in usual.items() if each is not None and each > 1)
        figures = {**shares, NUM_EXAMPLES: rows, LOSS: loss}
        keeps = {NUM_EXAMPLES, LOSS} if beyond is not None else {*figures}  # the others may have to go
        own = {f"{OWN}{name}": each for name, each in numbers.items() if name not in keeps}
        return Evaluation(client, {**own, **figures})

    return read


def _changes(
    model: ArrayRecord, start: ArrayRecord, names: Sequence[str], at: Reading
) -> dict[str, FloatArray]:
    """Compute what training has changed in arrays of a model, in float64."""
    try:
        checked: Mapping[str, Array] = canonical(model, start)
    except ValueError as error:
        raise at.bad(str(error)) from error
    changes: dict[str, FloatArray] = {
        name: to_numpy(checked[name]).astype(np.float64) - to_numpy(start[name]).astype(np.float64)
        for name in names
    }
    for name, change in changes.items():
        if not (np.abs(change) <= LARGEST_NUMBER).all():
            raise at.bad(f"array {name!r} must have changed by at most {LARGEST_NUMBER:g}")
    return changes
