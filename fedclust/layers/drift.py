"""Clients whose data has changed: another cluster's model now serves them better than their own.

At a look every client compares two models on its held-out rows: its cluster's, and the best of the other
clusters', which with more than one other is the one of least loss on its training rows. The test is that of
docs/PROOF.md, both models with the label-prior correction, one client a test. All tests of all looks share
one level: look i = 1, 2, … has level/(i (i + 1)), which adds up to `level` however many there are, and the
clients of a look share it by Holm's correction. So a run in which nobody drifts names anybody with
probability `level` at most, as far as the test's own assumptions hold.

Label counts are those of the descriptions before round 1: a client whose labels have changed has the
correction of its old ones, for both models.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from fedclust.clustering import proposals
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.federation.questions import shifts_for
from fedclust.federation.run import Layer, Round, Run
from fedclust.messages.evaluation import ProofQuestion
from fedclust.proof import compare, holm
from fedclust.typing import IntArray

LEVEL = 0.05
"""Of all tests of a run together."""


@dataclass(frozen=True)
class Drifted:
    """A client that another cluster's model serves better than its own.

    Attributes
    ----------
    client
        Its id.
    cluster, better
        Its cluster, and the one whose model is better.
    gain
        By how much, in Brier score.
    p_value
        Corrected for the other clients of the look.
    """

    client: int
    cluster: int
    better: int
    gain: float
    p_value: float


class Drift(Layer):
    """Looks for drifted clients in rounds with an evaluation, and moves them if the method allows it.

    Parameters
    ----------
    every
        Rounds between looks, >= 1.
    moves
        Whether the method allows it; else they are only noted in the round's record.
    """

    def __init__(self, every: int, *, moves: bool) -> None:
        self._every, self._moves = every, moves

    def before_evaluation(self, run: Run, now: Round) -> Round:
        """Look for drifted clients in every so many rounds."""
        if now.number % self._every:
            return now
        drifted = look_for_drift(now.clusters, run.federation, now.number // self._every)
        if not drifted:
            return now
        noted = now.noting(drift=[{**asdict(each), "moved": self._moves} for each in drifted])
        return replace(noted, clusters=moved(now.clusters, drifted)) if self._moves else noted


def level_of_look(look: int, level: float = LEVEL) -> float:
    """Compute the level of one look, so that those of all looks add up to `level`: level/(i (i + 1)).

    Parameters
    ----------
    look
        Its number i, from 1.
    level
        Level of all looks together.
    """
    return level / (look * (look + 1))


def look_for_drift(
    clusters: Clusters, federation: Federation, look: int, level: float = LEVEL
) -> list[Drifted]:
    """Find the clients that another cluster's model serves better than their own.

    Parameters
    ----------
    clusters
        The clusters; those without clients are left out.
    federation
        The clients. One that does not answer, or has no held-out rows, has no test.
    look
        Number of the look, from 1.
    level
        Level of all looks together.
    """
    serving = np.flatnonzero(clusters.sizes)
    if len(serving) < 2:
        return []
    others = _others(clusters, federation, serving)
    clients = np.flatnonzero(others >= 0)
    described = federation.describe()
    counts, fitted = described.train_counts, described.target.fits_correction
    shifts = {
        int(each): shifts_for(counts, counts[clusters.members(int(each))], fitted=fitted) for each in serving
    }
    questions: dict[int, ProofQuestion] = {}
    for client in clients.tolist():
        own, other = int(clusters.assignment[client]), int(others[client])
        questions[client] = ProofQuestion(
            clusters.models[own], clusters.models[other], shifts[own][client], shifts[other][client]
        )
    answers = federation.ask(questions).replies
    tests = {client: compare([each.evidence]) for client, each in answers.items() if each.count}
    corrected = holm([each.p_value for each in tests.values()])
    return [
        Drifted(client, int(clusters.assignment[client]), int(others[client]), test.gain, float(p_value))
        for (client, test), p_value in zip(tests.items(), corrected, strict=True)
        if p_value <= level_of_look(look, level)
    ]


def moved(clusters: Clusters, drifted: Sequence[Drifted]) -> Clusters:
    """Move clients to the clusters whose models serve them better; models stay as they are."""
    assignment = proposals.moved(clusters.assignment, {each.client: each.better for each in drifted})
    words = ", ".join(f"client {each.client} drifted to cluster {each.better}" for each in drifted)
    return clusters.because(words, assignment=assignment)


def _others(clusters: Clusters, federation: Federation, serving: IntArray) -> IntArray:
    """Choose the other cluster that each client compares its own with; −1 for one that did not answer."""
    everyone = np.arange(clusters.num_clients)
    others = np.full(len(everyone), -1, dtype=np.int64)
    if len(serving) == 2:
        return np.where(clusters.assignment == serving[0], serving[1], serving[0])
    losses = federation.losses([clusters.models[each] for each in serving], everyone)
    for client, values in losses.items():
        foreign = np.where((serving != clusters.assignment[client]) & np.isfinite(values), values, np.inf)
        if np.isfinite(foreign).any():
            others[client] = serving[foreign.argmin()]
    return others
