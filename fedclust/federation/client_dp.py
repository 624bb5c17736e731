"""Differential privacy of clients in a run: noise on what is made of their replies, and a record of its cost.

The server is trusted; what is promised is about all that it lets out: models, and what it records. Two runs
are neighbours if they differ in one client whose contributions are replaced by zeros. The sum of a cluster's
clipped updates then differs by at most C, whatever else is in it.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust import records
from fedclust.array_bytes import from_numpy, to_numpy
from fedclust.federation.optimiser_state import StateValue
from fedclust.federation.replies import Reply, by_cluster
from fedclust.privacy import ClientDP
from fedclust.privacy.accountant import epsilon_of
from fedclust.privacy.noise import Noise, seeded, system
from fedclust.records import Evaluation
from fedclust.typing import FloatArray, IntArray

__all__ = ["Guard"]

_ROUNDING = 1e-6  # an honest client's update, sent as a difference of rounded models, may be longer by this
_CLIP, _TRAINED, _EVALUATED = "client_dp/clip", "client_dp/trained", "client_dp/evaluated"
_ACCURACY, _BALANCED = "accuracy", "balanced-accuracy"


class Guard:
    """Makes a run differentially private for its clients.

    Parameters
    ----------
    settings
        Clip, noise and δ.
    num_clients
        Number of clients K.
    seed
        The run's seed.
    simulated
        Whether all clients are simulated in processes of the user. Only then does noise come from the seed.
    trained
        Names of the parameters that training changes; nothing else gets noise.

    Attributes
    ----------
    clip
        C of the next round.

    Raises
    ------
    ValueError
        If exact evaluations are asked of clients that are not simulated.
    """

    def __init__(
        self, settings: ClientDP, num_clients: int, seed: int, simulated: bool, trained: Collection[str]
    ) -> None:
        if settings.evaluation == "exact" and not simulated:
            raise ValueError("privacy.evaluation must be noised unless all clients are simulated, got exact")
        self.settings, self.clip = settings, float(settings.clip)
        self.exact = settings.evaluation == "exact" or (settings.evaluation == "auto" and simulated)
        self._trained_names = frozenset(trained)
        self._simulated = simulated
        self._noise: Noise = seeded(seed) if simulated else system
        self._trained: IntArray = np.zeros(num_clients, dtype=np.int64)
        self._evaluated: IntArray = np.zeros(num_clients, dtype=np.int64)

    @property
    def told(self) -> dict[str, float]:
        """What clients are told with each model to train."""
        return {
            records.CLIP: self.clip,
            records.CLIP_TELLS: self.settings.adaptive,
            records.EQUAL_WEIGHTS: True,
        }

    def private(self, replies: Sequence[Reply], cohort: Mapping[int, int], server_round: int) -> list[Reply]:
        """Replace each reply's model by its cluster's private mean, and everything else by what says nothing.

        Parameters
        ----------
        replies
            The valid replies.
        cohort
            The cluster of each client that was asked, by client id. A mean is over all that were asked: one
            who did not answer counts as an update of zero, or a silent client would change the others'
            weights.
        server_round
            The round, from 1.

        Returns
        -------
        The replies. All of a cluster share one model: start + (Σ clipped updates + N(0, (zC)²)) / n, in
        float64.
        """
        self._trained[list(cohort)] += 1
        asked = list(cohort.values())
        made = []
        for cluster, members in by_cluster(replies).items():
            model = self._mean(members, asked.count(cluster), cluster, server_round)
            made += [
                dataclasses.replace(
                    reply, model=model, num_examples=1, loss=0.0, losses=np.zeros(1), projected=None
                )
                for reply in members
            ]
        if self.settings.adaptive:
            self._adapt([reply.within for reply in replies], len(cohort), server_round)
        return sorted(made, key=lambda reply: reply.client)

    def _mean(self, replies: Sequence[Reply], asked: int, cluster: int, server_round: int) -> ArrayRecord:
        start = {name: to_numpy(array) for name, array in replies[0].start.items()}
        names = [name for name in start if name in self._trained_names]
        before = np.concatenate([start[name].astype(np.float64).ravel() for name in names])
        models: dict[int, tuple[ArrayRecord, int]] = {}
        for reply in replies:
            models[id(reply.model)] = reply.model, models.get(id(reply.model), (None, 0))[1] + 1
        total = np.zeros_like(before)
        for model, sharing in models.values():
            after = np.concatenate([to_numpy(model[name]).astype(np.float64).ravel() for name in names])
            change = after - before
            # Done already by honest nodes, also for a mean; a node that does not is held to it.
            length = float(np.linalg.norm(change))
            longest = self.clip * (1 + _ROUNDING)
            total += sharing * change * (1.0 if length <= longest else self.clip / length)
        noise = self._noise("mean", server_round, cluster, len(total))
        ended = before + (total + self.settings.noise_multiplier * self.clip * noise) / asked
        arrays, first = {}, 0
        for name, array in start.items():
            if name not in self._trained_names:
                arrays[name] = replies[0].start[name]
                continue
            arrays[name] = from_numpy(ended[first : first + array.size].reshape(array.shape))
            first += array.size
        return ArrayRecord(arrays, keep_input=False)

    def _adapt(self, within: Sequence[bool | None], asked: int, server_round: int) -> None:
        """Move the clip towards a quantile of the updates' lengths; who did not say counts as half."""
        given = self.settings
        # ±1/2 rather than 0 and 1: replaced by zero, a client's share changes the sum by 1/2 (Section 3).
        total = sum((0.5 if each else -0.5) for each in within if each is not None)
        noisy = total + given.count_noise * float(self._noise("count", server_round, 0, 1)[0])
        share = noisy / asked + 0.5
        self.clip *= math.exp(-given.clip_rate * (share - given.quantile))

    def evaluations(self, found: Sequence[Evaluation], server_round: int) -> list[Evaluation]:
        """Replace what clients measured by a noisy mean accuracy, unless exact figures are kept."""
        if self.exact or not found:
            return list(found)
        clients = len(self._evaluated)
        self._evaluated += 1
        total = sum(
            float(np.clip(each.metrics[_ACCURACY], 0, 1))
            for each in found
            if each.metrics[records.NUM_EXAMPLES]
        )
        noise = self.settings.evaluation_noise * float(self._noise("accuracy", server_round, 0, 1)[0])
        mean = float(np.clip((total + noise) / clients, 0, 1))
        figures = {_ACCURACY: mean, _BALANCED: math.nan, records.LOSS: math.nan, records.NUM_EXAMPLES: 1.0}
        return [Evaluation(client, dict(figures)) for client in range(clients)]

    def epsilons(self) -> FloatArray:
        """Compute ε of each client for what it has taken part in so far, at the settings' δ, shape (K,)."""
        given, known = self.settings, {}
        pairs = list(zip(self._trained.tolist(), self._evaluated.tolist(), strict=True))
        for trained, evaluated in set(pairs):
            releases = [(given.noise_multiplier, trained), (given.evaluation_noise, evaluated)]
            if given.adaptive:
                releases.append((2 * given.count_noise, trained))
            known[trained, evaluated] = epsilon_of(releases, given.delta)
        return np.array([known[pair] for pair in pairs])

    def record(self) -> dict[str, Any]:
        """Return what a round's line says: the largest ε so far, and C of the next round."""
        return {"epsilon": float(self.epsilons().max()), "delta": self.settings.delta, "clip": self.clip}

    def summary(self) -> dict[str, Any]:
        """Return what the run's summary says."""
        epsilons = self.epsilons()
        return {
            "epsilon": float(epsilons.max()),
            "delta": self.settings.delta,
            "privacy": {
                **dataclasses.asdict(self.settings),
                "epsilon_median": float(np.median(epsilons)),
                "final_clip": self.clip,
                "neighbours": "one client's contributions replaced by zeros",
                "noise_from": "the run's seed, as clients are simulated" if self._simulated else "the system",
                "figures": (
                    "exact, of simulated clients: not covered by epsilon"
                    if self.exact
                    else "the mean accuracy of all clients, with noise, covered by epsilon"
                ),
            },
        }

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns of the clients' table."""
        return {"epsilon": self.epsilons(), "rounds_trained": self._trained.copy()}

    def pack(self) -> dict[str, StateValue]:
        """List the clip and what was spent, for a checkpoint."""
        return {_CLIP: self.clip, _TRAINED: self._trained.copy(), _EVALUATED: self._evaluated.copy()}

    def restore(self, memory: Mapping[str, StateValue]) -> dict[str, StateValue]:
        """Take up what :meth:`pack` listed, and return the rest of the memory."""
        self.clip = float(np.asarray(memory[_CLIP]))
        self._trained = np.array(memory[_TRAINED], dtype=np.int64)
        self._evaluated = np.array(memory[_EVALUATED], dtype=np.int64)
        mine = (_CLIP, _TRAINED, _EVALUATED)
        return {name: value for name, value in memory.items() if name not in mine}
