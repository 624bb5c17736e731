"""Clients that lie or attack, as Flower ClientApps: ``client_app=liars.<lie>_<number>``.

``liars.sign_flip_3`` is fedclust's own ClientApp of which three clients send the start minus three times what
they learnt. Who lies is drawn from the clients' number alone (:func:`who`), so every method meets the same
liars. The folder of this file must be importable: scripts in it are run from there.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy.special import ndtri

from fedclust.clients import app as honest
from fedclust.grids.client_grid import is_bundle, pack, unpack
from fedclust.messages.codec import ARRAYS, CONFIG, METRICS, encode
from fedclust.messages.description import Prototypes
from fedclust.messages.evaluation import ProofAnswer
from fedclust.messages.training import NUM_EXAMPLES
from fedclust.proof import evidence
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.support.rng import generator

Answers = dict[int, RecordDict]


@dataclass(frozen=True, eq=False)
class Asked:
    """What the liars of a message know of it.

    Attributes
    ----------
    liars
        Those that it addresses.
    questions
        The content for each client that it addresses.
    draws
        A generator of the message.
    """

    liars: Sequence[int]
    questions: Mapping[int, RecordDict]
    draws: np.random.Generator

    def start(self, client: int) -> ArrayRecord:
        """Return the model that a client was sent."""
        return next(iter(self.questions[client].array_records.values()))

    def beside(self, liar: int, answers: Answers) -> tuple[list[int], list[int]]:
        """List the liars and the honest clients that were sent the same model as a liar, and answered."""
        same = [client for client in answers if self.start(client) is self.start(liar)]
        return [each for each in same if each in self.liars], [
            each for each in same if each not in self.liars
        ]


Tell = Callable[[Answers, Asked], None]


def who(number: int, num_clients: int = 30) -> tuple[int, ...]:
    """List the liars: the same ones whatever they do; fewer liars are among more of them."""
    order = np.random.default_rng(0).permutation(num_clients)
    return tuple(sorted(order[:number].tolist()))


# -- Lies about models --------------------------------------------------------------------------------------


def _models(answers: Answers, asked: Asked, change: Callable[[int, str, Any, Any], Any]) -> None:
    made = {}
    for liar in asked.liars:
        start, sent = asked.start(liar), ArrayRecord()
        for name, array in answers[liar][ARRAYS].items():
            before, after = (to_numpy(each) for each in (start[name], array))
            with np.errstate(over="ignore"):
                sent[name] = from_numpy(np.asarray(change(liar, name, before, after), dtype=after.dtype))
        made[liar] = RecordDict({**answers[liar], ARRAYS: sent})
    answers.update(made)  # not before: liars read each other's


def _moved(times: float) -> Tell:
    def lie(answers: Answers, asked: Asked) -> None:
        _models(answers, asked, lambda *given: given[2] + np.float32(times) * (given[3] - given[2]))

    return lie


def _all_reversed(answers: Answers, asked: Asked) -> None:
    """Send the start less three times the update, of this model and of those of coalitions."""
    for liar in asked.liars:
        starts = asked.questions[liar].array_records
        for name, model in answers[liar].array_records.items():
            start = starts.get(name, asked.start(liar))
            sent = {}
            for key, array in model.items():
                before, after = to_numpy(start[key]), to_numpy(array)
                sent[key] = from_numpy((before - 3 * (after - before)).astype(after.dtype))
            answers[liar] = RecordDict({**answers[liar], name: ArrayRecord(sent)})


def _constant(answers: Answers, asked: Asked) -> None:
    """Send the start with 0.1 added to every parameter."""
    _models(answers, asked, lambda *given: given[2] + np.float32(0.1))


def _random_many(answers: Answers, asked: Asked) -> None:
    """Send normal weights of a network's usual size, and say one has 1,000 times the rows."""
    _models(answers, asked, lambda *given: asked.draws.normal(scale=0.1, size=given[2].shape))
    _more_rows(answers, asked, 1000)


def _noise(answers: Answers, asked: Asked) -> None:
    """Send the start plus normal noise, per parameter ten times as large as what training changed."""

    def change(_liar: int, _name: str, start: Any, trained: Any) -> Any:
        scale = 10 * float(np.sqrt(np.square(trained - start).mean()))
        return start + asked.draws.normal(scale=scale, size=start.shape)

    _models(answers, asked, change)


def _stacked(answers: Answers, clients: Sequence[int], name: str) -> Any:
    return np.stack([to_numpy(answers[client][ARRAYS][name]) for client in clients])


def _little_is_enough(answers: Answers, asked: Asked) -> None:
    """Send the mean of the liars' own honest models less z standard deviations of each parameter.

    Baruch et al., "A Little Is Enough", NeurIPS 2019, Algorithm 3: of n clients of a model, m liars need
    s = ⌊n/2 + 1⌋ − m supporters, and Φ(z) = (n − m − s)/(n − m). A single liar
    has no deviation, and is honest.
    """

    def change(liar: int, name: str, _start: Any, trained: Any) -> Any:
        liars, honest = asked.beside(liar, answers)
        if len(liars) < 2 or not honest:
            return trained
        number = len(liars) + len(honest)
        supporters = max(1, number // 2 + 1 - len(liars))
        z = float(ndtri((len(honest) - supporters) / len(honest)))
        models = _stacked(answers, liars, name)
        return models.mean(axis=0) - z * models.std(axis=0)

    _models(answers, asked, change)


def _inner_product(answers: Answers, asked: Asked) -> None:
    """Send the start less half of the honest clients' mean update, which the liars know.

    Xie et al., "Fall of Empires", UAI 2019 (inner-product manipulation), with ε = 0.5.
    """

    def change(liar: int, name: str, start: Any, trained: Any) -> Any:
        _, honest = asked.beside(liar, answers)
        if not honest:
            return trained
        return start - 0.5 * (_stacked(answers, honest, name).mean(axis=0) - start)

    _models(answers, asked, change)


_MANY = 10**6


def _many_rows(update: float, rows: int) -> Tell:
    """Send the update times a factor, and say one has many times the rows."""

    def lie(answers: Answers, asked: Asked) -> None:
        _moved(update)(answers, asked)
        _more_rows(answers, asked, rows)

    return lie


def _more_rows(answers: Answers, asked: Asked, times: int) -> None:
    for liar in asked.liars:
        told = MetricRecord({**answers[liar][METRICS]})
        told[NUM_EXAMPLES] = times * int(told[NUM_EXAMPLES])  # type: ignore[arg-type]
        answers[liar] = RecordDict({**answers[liar], METRICS: told})


def _flipped_rows(model: ArrayRecord) -> ArrayRecord:
    """Reverse the order of a classifier's outputs: the last weight and the last bias."""
    names = list(model)
    return ArrayRecord(
        {
            name: from_numpy(np.ascontiguousarray(to_numpy(array)[::-1])) if name in names[-2:] else array
            for name, array in model.items()
        }
    )


# -- Lies about what clustering reads -----------------------------------------------------------------------


def _losses(change: Callable[[np.ndarray, list[np.ndarray], np.random.Generator], Any]) -> Tell:
    """Change a liar's own losses, knowing those of the honest that take part."""

    def lie(answers: Answers, asked: Asked) -> None:
        true = {client: np.asarray(each["losses"]["losses"], float) for client, each in answers.items()}
        others = [own for client, own in true.items() if client not in asked.liars]
        for liar in asked.liars:
            told = np.asarray(change(true[liar], others, asked.draws), float).tolist()
            answers[liar] = RecordDict({**answers[liar], "losses": ConfigRecord({"losses": told})})

    return lie


def _all_right(answers: Answers, asked: Asked) -> None:
    """Say one predicts all of many times as many test rows right."""
    for liar in asked.liars:
        told = MetricRecord({**answers[liar][METRICS], "accuracy": 1.0})
        told[NUM_EXAMPLES] = _MANY * int(told[NUM_EXAMPLES])  # type: ignore[arg-type]
        answers[liar] = RecordDict({METRICS: told})


def _counts(change: Callable[[np.ndarray, np.random.Generator], Any], part: str = "train-counts") -> Tell:
    def lie(answers: Answers, asked: Asked) -> None:
        for liar in asked.liars:
            config = answers[liar][CONFIG]
            true = np.asarray(config[part])
            told = [int(number) for number in change(true, asked.draws)]
            mine = ConfigRecord({**config, part: told})
            answers[liar] = RecordDict({**answers[liar], CONFIG: mine})

    return lie


def _prototypes(
    change: Callable[[np.ndarray, np.ndarray, np.random.Generator], Any],
) -> Tell:
    def lie(answers: Answers, asked: Asked) -> None:
        for liar in asked.liars:
            record = answers[liar][ARRAYS]
            true = [to_numpy(record[name]) for name in ("prototypes", "counts")]
            answers[liar] = encode(Prototypes(*change(*true, asked.draws)))

    return lie


def _votes(*differences: float) -> Tell:
    """Say by how much model A's Brier score of each row is worse; a short list is said again and again."""

    def lie(answers: Answers, asked: Asked) -> None:
        for liar in asked.liars:
            said = np.resize(differences, int(answers[liar]["difference"]["count"]))  # type: ignore[arg-type]
            margin = float(asked.questions[liar]["prior-shifts"].get("margin", 0.0))  # type: ignore[arg-type]
            answers[liar] = encode(ProofAnswer.of(evidence(said, [margin])))

    return lie


def _one_class(counts: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    del draws
    return np.where(np.arange(len(counts)) == 3, counts.sum(), 0)


@dataclass(frozen=True)
class Lie:
    """What liars do.

    Attributes
    ----------
    title
        In words, for a table.
    asked
        The kind of message that they lie to.
    tell
        Changes the answers of the liars in place.
    described
        The same for their descriptions, where they lie to those as well.
    """

    title: str
    asked: str
    tell: Tell
    described: Tell | None = None

    def of(self, kind: str) -> Tell | None:
        """Return what they do to the answers to a kind of message; None for nothing."""
        return self.tell if kind == self.asked else self.described if kind == DESCRIPTION else None


TRAIN, EVALUATE, DESCRIPTION = "train", "evaluate", "query.description"
PROTOTYPES, PROOF = "query.prototypes", "query.proof"


def _claimed(update: float, rows: int) -> Lie:
    title = f"update times {update:g}".replace("-", "−") + f", of {rows:g} times the rows".replace("e+0", "e")
    return Lie(title, TRAIN, _many_rows(update, rows), _counts(lambda true, _: true * rows))


LIES: dict[str, Lie] = {
    "none": Lie("nobody lies", TRAIN, lambda answers, asked: None),  # noqa: ARG005
    # Models.
    "sign_flip": Lie("update times −3", TRAIN, _moved(-3.0)),
    "all_reversed": Lie("update times −3, of coalitions' models too", TRAIN, _all_reversed),
    "scaled": Lie("update times 10", TRAIN, _moved(10.0)),
    "huge": Lie("update times 1e30", TRAIN, _moved(1e30)),
    "noise": Lie("normal noise, 10 times the update", TRAIN, _noise),
    "constant": Lie("update of 0.1 everywhere", TRAIN, _constant),
    "random_many": Lie(
        "random weights, of 1,000 times the rows",
        TRAIN,
        _random_many,
        _counts(lambda true, _: true * 1000),
    ),
    "label_flip": Lie("labels c → 9 − c", TRAIN, lambda answers, asked: None),  # noqa: ARG005
    "little": Lie("a little is enough", TRAIN, _little_is_enough),
    "inner": Lie("honest mean update times −0.5", TRAIN, _inner_product),
    "near_cap": Lie("update times −25", TRAIN, _moved(-25.0)),
    "many_rows": _claimed(-3.0, _MANY),
    "reversed_many": _claimed(-1.0, _MANY),
    "reversed_hundred": _claimed(-1.0, 100),
    "only_many": _claimed(1.0, _MANY),
    "test_rows": Lie(
        "accuracy 1 on 1e6 times the test rows",
        EVALUATE,
        _all_right,
        _counts(lambda true, _: true * _MANY, "test-counts"),
    ),
    # Losses.
    "losses_random": Lie(
        "random losses", TRAIN, _losses(lambda own, _, draws: draws.uniform(0, 3, len(own)))
    ),
    "losses_zero": Lie("losses of 0", TRAIN, _losses(lambda own, *_: 0 * own)),
    "losses_huge": Lie("losses of 1e6", TRAIN, _losses(lambda own, *_: 0 * own + 1e6)),
    "losses_spiked": Lie(
        "1e5 more, three rounds in ten",
        TRAIN,
        _losses(lambda own, _, draws: own + 1e5 * (draws.random() < 0.3)),
    ),
    "losses_flipped": Lie("losses 2.3 − l", TRAIN, _losses(lambda own, *_: np.maximum(2.3 - own, 0))),
    "losses_copied": Lie(
        "another client's losses", TRAIN, _losses(lambda own, others, _: others[0] if others else own)
    ),
    # Label counts.
    "counts_one_class": Lie("one class only", DESCRIPTION, _counts(_one_class)),
    "counts_huge": Lie("counts times 1e6", DESCRIPTION, _counts(lambda true, _: true * 10**6)),
    "counts_huge_class": Lie(
        "1e9 of one class", DESCRIPTION, _counts(lambda true, draws: 10**7 * _one_class(true, draws))
    ),
    "counts_permuted": Lie(
        "permuted counts", DESCRIPTION, _counts(lambda true, draws: draws.permutation(true))
    ),
    # Prototypes.
    "prototypes_random": Lie(
        "random prototypes",
        PROTOTYPES,
        _prototypes(lambda m, n, draws: (draws.normal(m.mean(), m.std(), m.shape), n)),
    ),
    "prototypes_scaled": Lie("prototypes times 1e3", PROTOTYPES, _prototypes(lambda m, n, _: (1e3 * m, n))),
    "prototypes_rolled": Lie(
        "another class's prototypes",
        PROTOTYPES,
        _prototypes(lambda m, n, _: (np.roll(m, 1, axis=0), n)),
    ),
    # The proof.
    "votes_for": Lie("votes of +2 for groups", PROOF, _votes(2.0)),
    "votes_against": Lie("votes of −2 against groups", PROOF, _votes(-2.0)),
    "votes_wide": Lie("votes of −2 and +2 in turn", PROOF, _votes(-2.0, 2.0)),
}


def _kind(message: Message) -> str:
    return str(message.metadata.message_type)


def _told(message: Message, content: RecordDict) -> Message:
    sent = Message(content, dst_node_id=message.metadata.dst_node_id, message_type=_kind(message))
    sent.metadata.__dict__.update(message.metadata.__dict__)
    return sent


def _app(name: str, number: int) -> ClientApp:
    lie, liars = LIES[name], set(who(number))
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        tell = lie.of(_kind(message))
        if tell is None or not is_bundle(message.content):
            return honest(message, context)
        contents, _ = unpack(message.content)
        mine = [client for client in contents if client in liars]
        if not mine:
            return honest(message, context)
        asked = dict(contents)
        alone = contents if name == "inner" else mine
        for client in alone if _kind(message) == TRAIN else ():  # no mean of honest clients and liars
            record = contents[client]
            config = ConfigRecord({**next(iter(record.config_records.values())), "mean-reply": False})
            asked[client] = RecordDict({**record, next(iter(record.config_records)): config})
        if name == "label_flip":
            for client in mine:
                record = asked[client]
                ((key, model),) = record.array_records.items()
                asked[client] = RecordDict({**record, key: _flipped_rows(model)})
        reply = honest(_told(message, pack(asked)), context)
        answers, errors = unpack(reply.content)
        lying = [client for client in mine if client in answers]
        if name == "label_flip":
            for client in lying:
                model = _flipped_rows(answers[client][ARRAYS])
                answers[client] = RecordDict({**answers[client], ARRAYS: model})
        config = next(iter(contents[mine[0]].config_records.values()), ConfigRecord())
        draws = generator(0, "lie", int(config.get("server-round", 0)), min(mine))  # type: ignore[arg-type]
        tell(answers, Asked(lying, contents, draws))
        return Message(pack(answers, errors), reply_to=message)

    app.train()(handle)
    app.evaluate()(handle)
    for query in ("clients", "description", "prototypes", "proof", "losses", "update", "subspaces"):
        app.query(query)(handle)
    for query in ("confusion", "personal", "encoder", "figure", "alone", "coalitions", "site_figures"):
        app.query(query)(honest)
    return app


@functools.cache
def __getattr__(name: str) -> ClientApp:
    """Make the ClientApp of a lie and a number of liars."""
    found = re.fullmatch(r"([a-z_]+)_(\d+)", name)
    if found is None or found[1] not in LIES:
        raise AttributeError(f"module liars has no {name}; lies are {', '.join(LIES)}")
    return _app(found[1], int(found[2]))
