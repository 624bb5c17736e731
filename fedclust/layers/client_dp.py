"""Differential privacy of clients in a run: noise on what is made of their replies, and a record of its cost.

The server is trusted; what is promised is about all that it lets out: models, and what it records. Two runs
are neighbours if they differ in one client whose contributions are replaced by zeros. The sum of a cluster's
clipped updates then differs by at most C, whatever else is in it.

Where clients choose their group themselves, by the models that are published and their own rows, a client's
contribution to a round is one clipped update in the sum of one of k groups, and nothing in those of the
others: of all k sums together, seen as one vector, one client changes C at most. So a round in which k groups
train costs what a round costs in which one model does. All k get noise, chosen or not.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from fedclust.federation.clusters import Findings, padded
from fedclust.federation.run import Layer, Round, Run, amended
from fedclust.layers.standard import lost
from fedclust.messages.evaluation import Evaluation
from fedclust.messages.models import to_vector, with_vector
from fedclust.messages.replies import Reply, by_cluster
from fedclust.messages.training import LOSS, NUM_EXAMPLES
from fedclust.privacy import FROM_SEED, OF_ALL, ClientDP, PatientDP
from fedclust.privacy.accountant import Noise, epsilon_of, seeded, system
from fedclust.support.reasons import RunFailed
from fedclust.typing import FloatArray, IntArray

_ROUNDING = 1e-6  # an honest client's update, sent as a difference of rounded models, may be longer by this
_ACCURACY, _BALANCED = "accuracy", "balanced-accuracy"


@dataclass(frozen=True, eq=False)
class Spent:
    """What a run has cost so far.

    Attributes
    ----------
    clip
        C of the next round.
    trained
        Rounds that each client took part in, shape (K,).
    spent
        Of each client, the sum of the squares of sensitivity over noise, see
        :mod:`fedclust.privacy.accountant`, shape (K,).
    simulated
        Whether all clients were simulated.
    """

    clip: float
    trained: IntArray
    spent: FloatArray
    simulated: bool


class ClientPrivacy(Layer):
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
    covered
        Types of the questions that the method may ask, as ε covers what becomes of the answers.

    Attributes
    ----------
    clip
        C of the next round.
    simulated
        As given.

    Raises
    ------
    ValueError
        If exact evaluations are asked of clients that are not simulated.
    """

    memory_type: ClassVar[Any] = Spent

    def __init__(
        self,
        settings: ClientDP,
        num_clients: int,
        seed: int,
        simulated: bool,
        trained: Collection[str],
        covered: Collection[str] = (),
    ) -> None:
        self.settings, self.clip, self.exact = settings, float(settings.clip), settings.exact(simulated)
        self._trained_names = frozenset(trained)
        self.simulated, self._covered = simulated, frozenset(covered)
        self._noise: Noise = seeded(seed) if simulated else system
        self._trained: IntArray = np.zeros(num_clients, dtype=np.int64)
        # Of each client, the sum of the squares of sensitivity over noise, see fedclust.privacy.accountant.
        self._spent: FloatArray = np.zeros(num_clients)

    def begin(self, run: Run, state: Spent | None) -> Round:
        """Allow the method the questions that ε covers, and go on with what was spent.

        Raises
        ------
        RunFailed
            As for :func:`check_simulated`.
        """
        run.federation.covered = self._covered
        if state is not None:
            check_simulated(state.simulated, self.simulated)
            self.clip, self._trained, self._spent = state.clip, state.trained.copy(), state.spent.copy()
        return run.now

    def instruct(self, run: Run, now: Round) -> Round:
        """Instruct nodes to clip updates; clients that have joined have spent nothing yet."""
        number = now.clusters.num_clients - len(self._spent)
        self._trained, self._spent = padded(self._trained, number, 0), padded(self._spent, number, 0.0)
        return replace(now, asked=amended(now.asked, **self.instruction))

    def screen(self, run: Run, now: Round) -> Round:
        """Replace replies by private means."""
        return replace(now, replies=self.private(now.replies, now.cohort, now.sent, now.number))

    def after_evaluation(self, run: Run, now: Round) -> Round:
        """Replace figures by a noisy mean; a client whose loss is not finite has no say in the others'."""
        known = [each for each in now.evaluations if not lost(each)]
        return replace(now, evaluations=self.evaluations(known, now.number)).noting(privacy=self.record())

    @property
    def instruction(self) -> dict[str, Any]:
        """Fields of every instruction to train."""
        return {"clip": self.clip, "clip_tells": self.settings.adaptive, "equal_weights": True}

    def private(
        self,
        replies: Sequence[Reply],
        cohort: Mapping[int, int],
        models: Sequence[ArrayRecord],
        server_round: int,
    ) -> list[Reply]:
        """Replace each reply's model by its cluster's private mean, and everything else by what says nothing.

        Parameters
        ----------
        replies
            The valid replies.
        cohort
            The cluster of each client that was asked, by client id. A mean is over all that were asked: one
            who did not answer counts as an update of zero, or a silent client would change the others'
            weights.
        models
            The model that each cluster's clients started from.
        server_round
            The round, from 1.

        Returns
        -------
        The replies; of a cluster that was asked and in which nobody answered, one in the name of a client of
        it. All of a cluster share one model: start + (Σ clipped updates + N(0, (zC)²)) / n, in float64.
        """
        self._trained[list(cohort)] += 1
        self._spend(list(cohort), self.settings.noise_multiplier)
        found, made = by_cluster(replies), list[Reply]()
        public: dict[str, Any] = {
            "num_examples": 1,
            "loss": math.nan,
            "losses": np.zeros(1),
            "projected": None,
        }
        for cluster, asked in sorted(Counter(cohort.values()).items()):
            members, start = found.get(cluster, []), models[cluster]
            model = self._mean(members, start, asked, ("mean", server_round, cluster))
            if not members:  # a model without noise would say that nobody answered
                first = min(client for client, own in cohort.items() if own == cluster)
                made.append(_reply(first, cluster, start, model))
            made += [replace(reply, model=model, **public) for reply in members]
        if self.settings.adaptive:
            self._spend(list(cohort), 2 * self.settings.count_noise)
            self._adapt([reply.within for reply in replies], len(cohort), server_round)
        return sorted(made, key=lambda reply: reply.client)

    def groups(
        self,
        replies: Sequence[Reply],
        cohort: Collection[int],
        models: Sequence[ArrayRecord],
        server_round: int,
    ) -> tuple[list[Reply], list[float]]:
        """Compute the private means of groups that clients have chosen for themselves.

        Parameters
        ----------
        replies
            The valid replies; a reply's cluster is the group that the server knows the client to have chosen.
        cohort
            The clients that might have been in a group, n of them, whether or not they chose or answered:
            who did not counts as an update of zero and as 1/k of a client in each group.
        models
            The model of each of the k groups, k >= 2.
        server_round
            The round, from 1.

        Returns
        -------
        replies
            One for each group, also for one that nobody chose, in the name of no client (−1), with the model
            start + (Σ clipped updates + N(0, (zC)²)) / max(ñ, n/2k), in float64.
        sizes
            ñ, how many clients trained each group, with noise of standard deviation `count_noise`, (k,).
        """
        found, number = by_cluster(replies), len(models)
        # A client counts 1 in its group and 0 in the others; counted from 1/k of the public n, its share of
        # the sum is a vector of length √(1 − 1/k), zero for one that did not choose.
        noise = self.settings.count_noise * self._noise("group sizes", server_round, 0, number)
        exact = np.array([len(found.get(group, [])) for group in range(number)], dtype=np.float64)
        sizes = exact + (len(cohort) - exact.sum()) / number + noise
        self._spend(list(cohort), self.settings.count_noise / math.sqrt(1 - 1 / number))
        self._spend(list(cohort), self.settings.noise_multiplier)
        made = []
        for group, start in enumerate(models):
            # Half an equal share at least: of a group that hardly anybody chose, noise would be most of it.
            by = max(float(sizes[group]), len(cohort) / (2 * number))
            model = self._mean(found.get(group, []), start, by, ("group mean", server_round, group))
            made.append(_reply(-1, group, start, model))
        return made, sizes.tolist()

    def vote(self, votes: Mapping[int, float], server_round: int) -> float:
        """Add up votes of clients in [−1, 1], with noise; who does not vote counts as 0.

        Parameters
        ----------
        votes
            By client id; a vote outside the range is brought into it.
        server_round
            The round, from 1.

        Returns
        -------
        Σ votes + N(0, σ²), with σ = ``evaluation_noise``.
        """
        self._spend(list(range(len(self._spent))), self.settings.evaluation_noise)
        noise = self.settings.evaluation_noise * float(self._noise("vote", server_round, 0, 1)[0])
        return math.fsum(float(np.clip(vote, -1, 1)) for vote in votes.values()) + noise

    def _spend(self, clients: Sequence[int], multiplier: float) -> None:
        """Charge clients for a Gaussian release of this noise over sensitivity."""
        self._spent[clients] += multiplier**-2

    def _mean(
        self, replies: Sequence[Reply], model: ArrayRecord, by: float, noise: tuple[str, int, int]
    ) -> ArrayRecord:
        """Compute model + (Σ clipped updates + noise) / `by`; `noise` is its purpose, round and cluster."""
        names = [name for name in model if name in self._trained_names]
        before = to_vector(model, names)
        total, longest = np.zeros_like(before), self.clip * (1 + _ROUNDING)
        sharing = Counter(id(reply.model) for reply in replies)
        for key, record in {id(reply.model): reply.model for reply in replies}.items():
            change = to_vector(record, names) - before
            # Done already by honest nodes, also for a mean; a node that does not is held to it.
            length = float(np.linalg.norm(change))
            total += sharing[key] * change * (1.0 if length <= longest else self.clip / length)
        added = self.settings.noise_multiplier * self.clip * self._noise(*noise, len(total))
        return with_vector(model, names, before + (total + added) / by)

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
        clients = len(self._spent)
        self._spend(list(range(clients)), self.settings.evaluation_noise)
        known = [each.metrics[_ACCURACY] for each in found if each.metrics[NUM_EXAMPLES]]
        total = sum(float(np.clip(accuracy, 0, 1)) for accuracy in known)
        noise = self.settings.evaluation_noise * float(self._noise("accuracy", server_round, 0, 1)[0])
        mean = float(np.clip((total + noise) / clients, 0, 1))
        figures = {_ACCURACY: mean, _BALANCED: math.nan, LOSS: math.nan, NUM_EXAMPLES: 1.0}
        return [Evaluation(client, dict(figures)) for client in range(clients)]

    def epsilons(self) -> FloatArray:
        """Compute ε of each client for what it has taken part in so far, at the settings' δ, shape (K,)."""
        known = {
            spent: 0.0 if spent == 0 else epsilon_of([(spent**-0.5, 1)], self.settings.delta)
            for spent in set(self._spent.tolist())
        }
        return np.array([known[spent] for spent in self._spent.tolist()])

    def record(self) -> dict[str, Any]:
        """Return what a round's line says: the largest ε so far, and C of the next round."""
        return {"epsilon": float(self.epsilons().max()), "delta": self.settings.delta, "clip": self.clip}

    def findings(self, run: Run) -> Findings:
        """Return each client's ε and rounds, and what the run's summary says of privacy."""
        epsilons = self.epsilons()
        summary = privacy_summary(
            self.settings,
            epsilons,
            "" if self.exact else OF_ALL,
            self.simulated,
            final_clip=self.clip,
            neighbours="one client's contributions replaced by zeros",
        )
        return Findings(summary, clients={"epsilon": epsilons, "rounds_trained": self._trained.copy()})

    def state(self, run: Run) -> Spent:
        """Return the clip and what was spent."""
        return Spent(self.clip, self._trained.copy(), self._spent.copy(), self.simulated)


def check_simulated(before: bool, now: bool) -> None:
    """Check that a resumed run's noise comes from where it came from before.

    Raises
    ------
    RunFailed
        If it does not: what is recorded of noise and figures would be true of a part of the run only.
    """
    if before != now:
        words = {True: "simulated", False: "deployed"}
        rule = f"a private run must be resumed with its clients {words[before]}, as it began"
        raise RunFailed(
            f"{rule}, got them {words[now]}: noise and figures of its rounds would differ in kind"
        )


def privacy_summary(
    settings: ClientDP | PatientDP, epsilons: FloatArray, noised: str, simulated: bool, **further: Any
) -> dict[str, Any]:
    """Summarise a private run.

    Parameters
    ----------
    settings
        Its settings.
    epsilons
        ε of each client, shape (K,).
    noised
        The figures that have noise, in words; empty if figures are exact.
    simulated
        Whether all clients are simulated, so that noise comes from the seed.
    further
        Further entries.
    """
    exact = "exact, of simulated clients: not covered by epsilon"
    described = {
        "noise_from": FROM_SEED if simulated else "the system",
        "figures": f"{noised}, with noise, covered by epsilon" if noised else exact,
        "epsilon_median": float(np.median(epsilons)),
    }
    summary = {"epsilon": float(epsilons.max()), "delta": settings.delta}
    return summary | {"privacy": {**asdict(settings), **described, **further}}


def _reply(client: int, cluster: int, start: ArrayRecord, model: ArrayRecord) -> Reply:
    """Make a reply of a cluster rather than of a client."""
    return Reply(client, cluster, start, model, 1, math.nan, np.zeros(1))
