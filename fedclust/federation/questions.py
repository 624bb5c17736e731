"""Ask every client for a run's results: the proof, personal layers, predictions, and more."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import label_prior
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.federation.run import Measured
from fedclust.messages import description, evaluation
from fedclust.personal.layers import FINETUNE, NONE, OWN_ROWS, PRIOR, Auto, Personal, choose_together
from fedclust.proof.figure import ENOUGH_ROWS, Rows
from fedclust.proof.paired import Evidence, most_rows, num_set_aside, unlikely
from fedclust.support.checks import plural
from fedclust.typing import BoolArray, FloatArray, IntArray

# -- The proof ----------------------------------------------------------------------------------------------

Models = tuple[IntArray, Sequence[ArrayRecord]]
"""Cluster of each client, shape (K,), and each cluster's model."""


def ask_differences(
    federation: Federation,
    common: Models,
    grouped: Models,
    clients: Iterable[int] | None = None,
    margin: float = 0.0,
) -> tuple[dict[int, Evidence], dict[int, str]]:
    """Ask clients how much better the model of their group predicts their held-out rows.

    Both models get the label-prior correction, each for the class shares that it was trained on, so that a
    grouping must gain more than the clients' label shares explain. Each model is sent once per node.

    Parameters
    ----------
    federation
        The clients.
    common
        Model A of each client: the one for all.
    grouped
        Model B of each client.
    clients
        Who is asked, everyone by default. A client of cluster −1 is in none: it must not be asked, and its
        labels do not count among those that a model was trained on.
    margin
        What B's Brier score must be lower by.

    Returns
    -------
    Of each client that answered, the evidence about A's Brier scores minus B's; and the reasons of the
    others, among them clients whose vote is :func:`~fedclust.proof.paired.unlikely` next to those of the
    clients that compared the same two models.
    """
    asked = range(federation.num_clients) if clients is None else list(map(int, clients))
    pairs = _pairs(federation, common, grouped, asked)
    rows = most_rows(federation.describe().num_validation[list(asked)])
    answers = federation.ask(
        {client: evaluation.ProofQuestion(*pair, margin, rows) for client, pair in pairs.items()}
    )
    measured = {client: each.evidence for client, each in answers.replies.items()}
    failures, peers = dict(answers.failures), dict[tuple[int, int], list[int]]()
    for client in measured:
        peers.setdefault((int(common[0][client]), int(grouped[0][client])), []).append(client)
    for same in peers.values():
        for client in [same[place] for place in unlikely([measured[each] for each in same])]:
            vote = measured.pop(client)
            failures[client] = (
                f"client {client}: vote must be likely next to those of the {len(same) - 1} others with the "
                f"same models, got {vote.mean:+.2f} on {plural(vote.count, 'row')}"
            )
            federation.failed(client, evaluation.ProofQuestion.kind, failures[client])
    return measured, failures


def ask_figures(
    federation: Federation, common: Models, grouped: Models, shifts: FloatArray | None = None
) -> dict[int, Rows]:
    """Ask clients how well the model of their group, and the one for all, predict their test rows.

    Clients of groups with few test rows bet on the margins of an interval; where others did not answer, the
    rows of those that did may be few, and they are asked once more.

    Parameters
    ----------
    federation, common, grouped
        As for :func:`ask_differences`.
    shifts
        What corrects each client's model B, where it chose that for itself, shape (K, C).
    """
    everyone, assignment = range(federation.num_clients), np.asarray(grouped[0])
    tested = federation.describe().num_test
    rows = most_rows(tested)
    pairs = _pairs(federation, common, grouped, everyone, shifts)

    def few(counts: Mapping[int, int]) -> BoolArray:
        """Return of each group whether its clients have too few rows together for an interval of Hall's."""
        clients, each = [*counts], [*counts.values()]
        return np.bincount(assignment[clients], each, len(grouped[1])) < ENOUGH_ROWS

    def ask(clients: Iterable[int], bets: BoolArray) -> Mapping[int, evaluation.FigureAnswer]:
        asked = {
            client: evaluation.FigureQuestion(*pairs[client], rows, bool(bets[assignment[client]]))
            for client in clients
        }
        return federation.ask(asked).replies

    expected = few(dict(enumerate(np.minimum(tested, rows).tolist())))
    found = dict(ask(everyone, expected))
    fewer = few({client: each.count for client, each in found.items()})
    if again := [client for client in found if fewer[assignment[client]] > expected[assignment[client]]]:
        bet = ask(again, fewer)
        found = {client: each for client, each in found.items() if client not in again} | dict(bet)
    return {client: each.rows for client, each in found.items()}


def _pairs(
    federation: Federation,
    common: Models,
    grouped: Models,
    clients: Iterable[int],
    own: FloatArray | None = None,
) -> dict[int, tuple[ArrayRecord, ArrayRecord, FloatArray, FloatArray]]:
    """Return models A and B of each client, and what corrects each for its class shares."""
    described, plain = federation.describe(), federation.clients.plain
    counts = described.num_train[:, None] if plain else described.train_counts
    # Clients that only train and evaluate correct nothing.
    fitted = described.target.fits_correction and not plain
    shifts = [prior_shifts(counts, assignment, fitted=fitted) for assignment, _ in (common, grouped)]
    shifts[1] = shifts[1] if own is None else own
    pairs = {}
    for client in clients:
        first, second = (models[int(assignment[client])] for assignment, models in (common, grouped))
        pairs[client] = first, second, shifts[0][client], shifts[1][client]
    return pairs


def shifts_for(counts: IntArray, trained: IntArray, *, fitted: bool = False) -> FloatArray:
    """Compute the label-prior correction of clients for a model that they may not have trained.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (n, C).
    trained
        The same for the clients that trained the model, shape (m, C).
    fitted
        Whether each client fits its own correction, by its training examples; then 1 for those that have any.

    Returns
    -------
    Shifts of the logits, shape (n, C); 0 if a client, or all that trained, have no examples.
    """
    if fitted:
        return prior_shifts(counts, np.zeros(len(counts), dtype=int), fitted=True)
    having = trained[np.any(trained, axis=1)]
    if not len(having):
        return np.zeros(np.shape(counts))
    examples = label_prior.pseudo_examples(having)
    return label_prior.correction(counts, having.sum(axis=0), examples)


def prior_shifts(counts: IntArray, assignment: IntArray, *, fitted: bool = False) -> FloatArray:
    """Compute the label-prior correction of each client for its cluster's model.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, shape (K,); −1 for none.
    fitted
        Whether each client fits its own correction, by its training examples.

    Returns
    -------
    Shifts of the logits, shape (K, C); 0 for a client without training examples or of cluster −1. 1 for all
    others if they are `fitted`.
    """
    shifts = np.zeros(np.shape(counts))
    known = (np.sum(counts, axis=1) > 0) & (np.asarray(assignment) >= 0)
    if fitted:
        shifts[known] = 1
    elif known.any():
        table, clusters = limit_sizes(np.asarray(counts)[known]), np.asarray(assignment)[known]
        shifts[known] = label_prior.assign(table, clusters)
    return shifts


# -- Personal layers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Serving:
    """Which model serves each client, before any personal layer.

    Attributes
    ----------
    measured
        The clients' measurements of these models.
    clusters
        Cluster of each client, and each cluster's model.
    common
        The same for one model for all; `clusters` again if there is none.
    by_common
        Whether the model for all serves each client, shape (K,).
    """

    measured: Measured
    clusters: Models
    common: Models
    by_common: BoolArray


@dataclass(frozen=True, eq=False)
class Layered:
    """The clients' measurements with personal layers.

    Attributes
    ----------
    measured
        Each client's measurements under each choice: every layer that was asked for, and the choice between
        them. A client that could not make a layer, or did not answer, uses none.
    used
        The layer that each client uses under each choice, shape (K,).
    losses
        Mean loss of each client's validation rows with each layer and with none, NaN where unknown, each of
        shape (K,).
    shifts
        The label-prior correction of each client's logits, shape (K, C); None if not asked for.
    failures
        Why clients could not make a layer or did not answer, by client id.
    """

    measured: Mapping[str, Measured]
    used: Mapping[str, np.ndarray]
    losses: Mapping[str, FloatArray]
    shifts: FloatArray | None
    failures: Mapping[int, str]


def ask_personal(
    federation: Federation,
    serving: Serving,
    personal: Personal,
    server_round: int,
    chosen: tuple[np.ndarray, FloatArray] | None = None,
) -> Layered:
    """Ask every client how well personal layers serve it, in one message; no model comes back.

    Parameters
    ----------
    federation
        The clients.
    serving
        Which model serves each client. The label-prior correction uses the class shares of the clients that
        trained this model.
    personal
        The layers to try.
    server_round
        The round whose batches fine-tuning draws: the one after the last.
    chosen
        The layer that each client has chosen already, none or the label-prior correction, and the latter.
    """
    clients = range(federation.num_clients)
    shifts = None
    if PRIOR in personal.asked:
        counts, both = federation.describe().train_counts, (serving.clusters, serving.common)
        fitted = federation.describe().target.fits_correction
        own, common = (prior_shifts(counts, assignment, fitted=fitted) for assignment, _ in both)
        shifts = np.where(serving.by_common[:, None], common, own) if chosen is None else chosen[1]
    questions: dict[int, evaluation.PersonalQuestion] = {}
    for client in clients:
        assignment, models = serving.common if serving.by_common[client] else serving.clusters
        shift = None if shifts is None else shifts[client]
        model = models[int(assignment[client])]
        questions[client] = evaluation.PersonalQuestion.of(model, server_round, shift, personal.finetune)
    answers = federation.ask(questions)
    failures, replies = dict(answers.failures), dict(answers.replies)
    tests: dict[str, list[evaluation.Evaluation]] = {layer: [] for layer in personal.asked}
    losses = {layer: np.full(len(clients), np.nan) for layer in (NONE, *personal.asked)}
    own_shifts = {client: each.shift for client, each in replies.items() if each.shift is not None}
    if own_shifts and shifts is not None:  # clients fitted theirs
        described = federation.describe()
        shifts = np.zeros((len(clients), described.target.outputs(described.num_classes)))
        for client, own_shift in own_shifts.items():
            if len(own_shift) == shifts.shape[1]:
                shifts[client] = own_shift
            else:
                failures[client] = f"shift must have {shifts.shape[1]} values, got {len(own_shift)}"
                del replies[client]
    for client, answer in replies.items():
        for layer, reason in answer.failed.items():
            failures[client] = f"{layer}: {reason}"
        for layer, test in answer.tests.items():
            tests[layer].append(test)
        for layer, loss in answer.losses.items():
            losses[layer][client] = loss
    used = {}
    for layer in personal.asked:  # clients that could not make a layer use none
        used[layer] = np.full(len(clients), NONE, dtype="<U16")
        used[layer][[test.client for test in tests[layer]]] = layer
    layers = {layer: Measured.of(tests[layer], len(clients)) for layer in personal.asked}
    if isinstance(personal, Auto):
        rows, own = federation.describe().num_validation, np.full(len(clients), NONE, dtype="<U16")
        own[list(replies)] = [answer.chosen for answer in replies.values()]
        together = choose_together(losses, rows, num_set_aside(int(np.count_nonzero(rows))))
        used[personal.choice] = np.where(rows >= OWN_ROWS, own, used.get(together, NONE))
    if chosen is not None and PRIOR in personal.asked:  # who can use it and has chosen it
        used[personal.choice] = np.where(used[PRIOR] == PRIOR, chosen[0], NONE)
    measured = dict.fromkeys(used, serving.measured)
    for choice, who in used.items():
        for layer, with_layer in layers.items():
            measured[choice] = measured[choice].served(with_layer, who == layer)
    return Layered(measured, used, losses, shifts, dict(sorted(failures.items())))


_MOST_ALONE = 100
ALONE_EPOCHS = 20
"""At most so many epochs does a client train a model of its own, to compare it with what serves it."""


def ask_alone(
    federation: Federation,
    serving: Serving,
    initial: ArrayRecord,
    personal: Personal,
    layered: Layered | None,
    server_round: int,
) -> tuple[int, int]:
    """Ask clients whether a model that each trains alone is better for it than what serves it.

    Up to 100 clients, evenly spaced, train for an epoch per round of the run, but at most 20, from the model
    that all started from; the models stay with them.

    Parameters
    ----------
    federation
        The clients.
    serving
        Which model serves each client.
    initial
        The model that all started from.
    personal, layered
        The personal layers, and which of them each client uses; None without any.
    server_round
        As for :func:`ask_personal`.

    Returns
    -------
    For how many the own model's Brier score of held-out rows is lower by more than two standard errors, and
    how many answered with at least two rows.
    """
    voting = np.flatnonzero(federation.describe().num_validation > 1)
    spaced = np.linspace(0, len(voting) - 1, min(len(voting), _MOST_ALONE)).astype(int)
    used = None if layered is None else layered.used[personal.choice]
    no_shift, how = np.zeros(0), personal.finetune
    epochs = min(federation.num_rounds, ALONE_EPOCHS)
    questions = {}
    for client in voting[spaced].tolist():
        assignment, models = serving.common if serving.by_common[client] else serving.clusters
        model, layer = models[int(assignment[client])], NONE if used is None else used[client]
        shifts = None if layered is None or layer != PRIOR else layered.shifts
        tuned: dict[str, Any] = {}
        if layer == FINETUNE and how is not None:
            tuned = {"server_round": server_round, "tuning_epochs": how.epochs}
            tuned |= {"layers_tuned": how.layers, "learning_rate": how.learning_rate}
        shift = no_shift if shifts is None else shifts[client]
        pair = model, initial, shift, np.zeros(0)
        questions[client] = evaluation.AloneQuestion(*pair, epochs=epochs, **tuned)
    answers = federation.ask(questions)
    found = [each.evidence for each in answers.replies.values() if each.count > 1]
    variances = [max(each.sums[1] / each.count - each.mean**2, 0.0) / (each.count - 1) for each in found]
    better = [each.mean > 2 * np.sqrt(variance) for each, variance in zip(found, variances, strict=True)]
    return sum(better), len(found)


# -- Confusion between clusters -----------------------------------------------------------------------------

# More would be hard to read in a picture, and each model takes a pass over the test parts.
_MOST_CLUSTERS, _MOST_CLIENTS = 4, 50


def confuse_clusters(federation: Federation, clusters: Clusters) -> dict[str, IntArray]:
    """Count what each cluster's model predicts on the test parts of each cluster's clients.

    This shows differences between clusters that label counts do not, such as different names for the same
    things. The four largest clusters and up to 50 evenly spaced clients of each are used; a client that does
    not answer is left out.

    Parameters
    ----------
    federation
        The clients.
    clusters
        The clusters and their models.

    Returns
    -------
    ``confusion_clusters``, shape (m,), and ``confusion``, shape (m, m, C, C): clusters of the clients,
    clusters of the models, labels, predictions. Empty if there is only one cluster, or no client of a
    cluster answered.
    """
    largest = np.argsort(-clusters.sizes, kind="stable")[:_MOST_CLUSTERS]
    shown = np.sort(largest[clusters.sizes[largest] > 0])
    if len(shown) < 2:
        return {}
    clients = {}
    for cluster in shown:
        members = clusters.members(int(cluster))
        spaced = np.linspace(0, len(members) - 1, min(len(members), _MOST_CLIENTS))
        clients[int(cluster)] = members[spaced.astype(int)]
    everyone = np.concatenate(list(clients.values()))
    table: list[list[IntArray]] = [[] for _ in shown]
    for model in shown:
        # A client that fails is recorded: a missing picture must not end a run.
        counts = federation.ask(evaluation.ConfusionQuestion(clusters.models[int(model)]), everyone).replies
        for row, members in zip(table, clients.values(), strict=True):
            answered = [counts[int(client)].confusion for client in members if int(client) in counts]
            if not answered:
                return {}
            row.append(np.sum(answered, axis=0))
    return {"confusion_clusters": shown, "confusion": np.array(table)}


_MOST_MEANS = 500  # clients
_MOST_OF_CLUSTER = 10
FEWEST_ROWS = 5
"""Training rows of a client whose mean embedding is kept: one of fewer would reveal single rows."""


def mean_embeddings(federation: Federation) -> FloatArray | None:
    """Ask clients for the mean embedding of their training rows, by which later ones are placed unlabelled.

    Parameters
    ----------
    federation
        The clients; of those with at least five training rows, up to 500, evenly spaced, are asked.

    Returns
    -------
    Shape (K, d), NaN for clients without; None if no client answered.
    """
    having = np.flatnonzero(federation.describe().num_train >= FEWEST_ROWS)
    question = description.PrototypesQuestion(pooled=True)
    means = {
        client: each.prototypes[0]
        for client, each in federation.ask(question, _spread(having, _MOST_MEANS)).replies.items()
    }
    width = len(next(iter(means.values()), ()))
    table = np.full((federation.num_clients, width), np.nan, dtype=np.float32)
    for client, row in means.items():
        if len(row) == width:
            table[client] = row
    return table if width else None


def _spread(clients: IntArray, most: int) -> list[int]:
    """Choose at most `most` of clients, evenly spaced."""
    places = np.linspace(0, len(clients) - 1, min(len(clients), most)).astype(int)
    return np.unique(clients[places]).tolist()


def certainties(
    federation: Federation, members: Sequence[IntArray], models: Sequence[ArrayRecord]
) -> list[FloatArray] | None:
    """Ask clients in a simulation how certain every cluster's model is of their test rows.

    Parameters
    ----------
    federation
        The clients; of those with test rows, up to ten of each cluster and 500 in all are asked.
    members
        Ids of each cluster's clients.
    models
        Each cluster's model.

    Returns
    -------
    For each cluster, the logarithm of the largest class probability of its clients' rows by every model,
    shape (G, rows); None if nobody of some cluster answers, or the rows are elsewhere.
    """
    tested = federation.describe().num_test > 0
    most = min(_MOST_OF_CLUSTER, max(1, _MOST_MEANS // len(models)))
    asked = [_spread(clients[tested[clients]], most) for clients in members]
    found: dict[int, list[FloatArray]] = {client: [] for clients in asked for client in clients}
    for model in models:
        replies = federation.ask(evaluation.PredictionsQuestion(model), [*found]).replies
        found = {
            client: [*found[client], np.log(each.predicted.max(axis=-1)).ravel()]
            for client, each in replies.items()
            if each.predicted is not None
        }
    answered = [[np.stack(found[client]) for client in clients if client in found] for clients in asked]
    return [np.concatenate(each, axis=1) for each in answered] if all(answered) else None


# -- Predictions --------------------------------------------------------------------------------------------

FILE = "predictions.parquet"


def save_predictions(
    federation: Federation, assignment: IntArray, models: Sequence[ArrayRecord], folder: Path
) -> str:
    """Ask clients for predictions: a simulation writes ``predictions.parquet``, deployed nodes keep theirs.

    Parameters
    ----------
    federation
        The clients.
    assignment
        Cluster of each client, shape (K,).
    models
        The model that serves each cluster.
    folder
        The run's folder.

    Returns
    -------
    A line on what was saved and where.
    """
    import pandas as pd  # takes a second, and few runs save predictions

    questions = {
        client: evaluation.PredictionsQuestion(models[int(cluster)])
        for client, cluster in enumerate(assignment.tolist())
    }
    answers = federation.ask(questions)
    failures, described = dict(answers.failures), federation.describe()
    names = described.client_names
    classes = described.class_names or tuple(map(str, range(described.num_classes)))
    tables: list[pd.DataFrame] = []
    kept = 0
    for client, answer in answers.replies.items():
        if answer.rows is None or answer.truth is None or answer.predicted is None:
            kept += answer.num_examples
            continue
        name = None if names is None else names[client]
        try:
            tables.append(answer.table(client, name, described.target, classes))
        except ValueError as error:
            failures[client] = f"client {client}: {error}"
    parts = []
    if tables:
        partial = folder / f"{FILE}.partial"  # replaced, as a sweep's other job may have a link to it
        pd.concat(tables, ignore_index=True).to_parquet(partial, index=False)
        partial.replace(folder / FILE)
        parts.append(f"{plural(sum(map(len, tables)), 'row')} in {FILE}")
    if kept:
        parts.append(f"{plural(kept, 'row')} on the clients' own nodes")
    if failures:
        client = min(failures)
        parts.append(f"none of {plural(len(failures), 'client')}, such as {client}: {failures[client]}")
    return f"predictions of test rows: {'; '.join(parts)}"


# -- The encoder --------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)


def ask_encoder(federation: Federation) -> description.Encoder | None:
    """Ask the first client how it encodes its inputs; all have the same encoder.

    Only for the run's folder, outside of rounds: a client that fails is not recorded, and the next is asked.

    Returns
    -------
    The encoder; None if three clients did not answer.
    """
    for client in range(min(3, federation.num_clients)):
        answers = federation.unrecorded(description.EncoderQuestion(), client)
        for answer in answers.replies.values():
            encoder: description.Encoder = answer
            return encoder
        logger.warning("%s", answers.failures[client])
    return None
