"""Differential privacy of patients in a run: what sites are instructed to do, and a record of what it costs.

Sites clip and add the noise themselves, see :mod:`fedclust.training.patients`; the server adds none and is
trusted with nothing. Two runs are neighbours if one patient's rows at a site are not there. All that leaves
the site of its training rows is what its private steps make, so whatever the server and others make of the
models, groups or robust means, costs nothing more. A patient of the test part is in no step; what is measured
on it has noise of its own, which is such that it spends the same ε.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedclust.federation.clusters import Findings, padded
from fedclust.federation.run import Layer, Round, Run, amended
from fedclust.layers.client_dp import check_simulated, privacy_summary
from fedclust.messages.evaluation import EvaluateQuestion
from fedclust.messages.training import Instruction
from fedclust.privacy import PatientDP
from fedclust.privacy.accountant import epsilon_of, epsilon_of_steps, multiplier_of
from fedclust.support.reasons import RunFailed
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Planned:
    """What a run is to spend.

    Attributes
    ----------
    noise
        z of each step.
    steps
        Steps of a round.
    evaluation_noise
        Standard deviation of the noise on the sum of a site's test patients' accuracies; None for none.
    epsilon
        ε of a patient who takes part in all rounds.
    """

    noise: float
    steps: int
    evaluation_noise: float | None
    epsilon: float

    @classmethod
    def of(cls, settings: PatientDP, rounds: int, steps: int, evaluations: int) -> "Planned":
        """Plan a run.

        Parameters
        ----------
        settings
            Clip, δ, and ε or noise.
        rounds, steps
            Number of rounds, and of steps in each.
        evaluations
            How often accuracies are measured, with noise.

        Examples
        --------
        >>> planned = Planned.of(PatientDP(epsilon=2.0, sampling=1.0), rounds=4, steps=25, evaluations=4)
        >>> round(planned.noise / planned.evaluation_noise, 6)  # 100 releases of one, 4 of the other
        5.0
        """
        facts = settings.sampling, rounds * steps, settings.delta
        noise = settings.noise_multiplier
        if noise is None:
            noise = multiplier_of(float(settings.epsilon or 0), *facts)
        epsilon = epsilon_of_steps(noise, *facts)
        own = multiplier_of(epsilon, 1.0, evaluations, settings.delta) if evaluations else None
        return cls(noise, steps, own, epsilon)


@dataclass(frozen=True, eq=False)
class Took:
    """What the clients of a run have taken part in so far.

    Attributes
    ----------
    noise, evaluation_noise
        z of its steps, and the noise of its evaluations; None for none.
    trained, measured
        Rounds that each client trained in, and evaluations that it answered, shape (K,).
    simulated
        Whether all clients were simulated.
    """

    noise: float
    evaluation_noise: float | None
    trained: IntArray
    measured: IntArray
    simulated: bool


@dataclass(frozen=True, eq=False)
class Ledger:
    """Counts as in :class:`Took`, kept apart from checkpoints: a resumed run goes on from an earlier round.

    Attributes
    ----------
    before
        Rounds and evaluations of each client as they were kept, shape (K,) each; None for a new run.
    write
        Keeps them. Called before clients are asked, too, so what is kept is not less than what was sent.
    """

    before: tuple[IntArray, IntArray] | None
    write: Callable[[IntArray, IntArray], None]


def _most(first: IntArray, second: IntArray) -> IntArray:
    """Return the larger of each client's counts; one may be of fewer clients."""
    size = max(len(first), len(second))
    return np.maximum(*(padded(each, size - len(each), 0) for each in (first, second)))


class PatientPrivacy(Layer):
    """Makes a run differentially private for the patients of its clients.

    Parameters
    ----------
    settings
        Clip, sampling and δ.
    planned
        What the run is to spend.
    simulated
        Whether all clients are simulated in processes of the user. Only then does noise come from the seed.
    ledger
        Where counts are kept that no checkpoint can put back; None where noise is from the seed, and the same
        again.
    """

    memory_type: ClassVar[Any] = Took

    def __init__(
        self,
        settings: PatientDP,
        planned: Planned,
        simulated: bool,
        ledger: Ledger | None = None,
    ) -> None:
        self.settings, self.planned, self.simulated = settings, planned, simulated
        self._ledger, self._seen = ledger, Counter[tuple[str, int]]()
        self.exact = settings.exact(simulated)
        self._trained: IntArray = np.zeros(0, dtype=np.int64)
        self._measured: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def note(self) -> str:
        """What the run is to spend, in one line."""
        given, planned = self.settings, self.planned
        line = (
            f"each patient spends at most ε = {planned.epsilon:.3g} at δ = {given.delta:g}: gradients of "
            f"length {given.clip:g}, noise {planned.noise:.3g} times that, {planned.steps} steps a round "
            f"with {given.sampling:.0%} of a site's patients each"
        )
        if planned.evaluation_noise is not None:
            line += f"; accuracies with noise ± {planned.evaluation_noise:.2g} / test patients"
        return line

    def begin(self, run: Run, state: Took | None) -> Round:
        """Ask for noise in evaluations, and go on with what was spent.

        A resumed run keeps the noise that its evaluations began with, whatever its number of rounds is now:
        ε is computed from their number.

        Raises
        ------
        RunFailed
            If a run to resume had other noise: ε would be more than it was planned for. Also as for
            :func:`~fedclust.layers.client_dp.check_simulated`.
        """
        if state is not None:
            check_simulated(state.simulated, self.simulated)
            if not math.isclose(state.noise, self.planned.noise, rel_tol=1e-9):
                must = f"be resumed with the noise it began with, {state.noise:.4g}"
                raise RunFailed(
                    f"a private run must {must}, got {self.planned.noise:.4g}: privacy.epsilon= is for one "
                    "number of rounds"
                )
            self._trained, self._measured = state.trained.copy(), state.measured.copy()
            self.planned = replace(self.planned, evaluation_noise=state.evaluation_noise)
        if self.planned.evaluation_noise is not None:
            noise = {"noise": self.planned.evaluation_noise, "published_noise": self.simulated}
            run.federation.evaluation = noise
        if self._ledger is not None:
            self._seen = Counter(run.federation.clients.repeats)
            if self._ledger.before is not None:
                trained, measured = self._ledger.before
                self._trained, self._measured = _most(self._trained, trained), _most(self._measured, measured)
        return run.now

    def instruct(self, run: Run, now: Round) -> Round:
        """Instruct sites to clip and to add noise; clients that have joined have spent nothing yet."""
        number = now.clusters.num_clients - len(self._trained)
        self._trained, self._measured = (padded(each, number, 0) for each in (self._trained, self._measured))
        self._trained[list(now.asked)] += 1  # also of one that will not answer
        self._keep(self._measured)
        fields: Mapping[str, Any] = {
            "patient_clip": self.settings.clip,
            "patient_noise": self.planned.noise,
            "patient_sampling": self.settings.sampling,
            "published_noise": self.simulated,
        }
        return replace(now, asked=amended(now.asked, **fields))

    def screen(self, run: Run, now: Round) -> Round:
        """Note that losses are unknown.

        Raises
        ------
        RunFailed
            If δ is not below one over a site's number of patients, which is known only now: publishing one of
            them, drawn at random, would pass for private.
        """
        most = max((each.num_examples for each in now.replies), default=1)
        if self.settings.delta * most >= 1:
            rule = f"below one over a site's patients, {1 / most:.3g}"
            raise RunFailed(f"privacy.delta must be {rule}, got {self.settings.delta:g}")
        self._add_repeats(run, Instruction.kind, self._trained)
        self._keep(self._measured)
        return replace(now, replies=[replace(each, loss=math.nan) for each in now.replies])

    def before_evaluation(self, run: Run, now: Round) -> Round:
        """Keep the evaluation as counted for all, as the run may be killed before they have answered."""
        self._keep(self._measured + (not self.exact))
        return now

    def after_evaluation(self, run: Run, now: Round) -> Round:
        """Count the evaluation for all that may have answered it."""
        if now.online is not None and not self.exact:
            self._measured[[each for each in now.online if each < len(self._measured)]] += 1
            self._add_repeats(run, EvaluateQuestion.kind, self._measured)
            self._keep(self._measured)
        return now.noting(privacy={"epsilon": float(self.epsilons().max()), "delta": self.settings.delta})

    def _add_repeats(self, run: Run, kind: str, counts: IntArray) -> None:
        """Count what clients were asked again since the last time: a lost reply has noise of its own."""
        if self._ledger is None:
            return
        for (asked, client), times in run.federation.clients.repeats.items():
            if asked == kind and client < len(counts):
                counts[client] += times - self._seen[asked, client]
                self._seen[asked, client] = times

    def _keep(self, measured: IntArray) -> None:
        if self._ledger is not None:
            self._ledger.write(self._trained, measured)

    def epsilons(self) -> FloatArray:
        """Compute ε of a patient of each client for what it has taken part in so far, shape (K,)."""
        given, planned = self.settings, self.planned
        trained = {
            rounds: epsilon_of_steps(planned.noise, given.sampling, rounds * planned.steps, given.delta)
            for rounds in set(self._trained.tolist())
        }
        measured = {
            times: epsilon_of([(planned.evaluation_noise or math.inf, times)], given.delta)
            for times in set(self._measured.tolist())
        }
        pairs = zip(self._trained.tolist(), self._measured.tolist(), strict=True)
        # No patient is in both parts.
        return np.array([max(trained[rounds], measured[times]) for rounds, times in pairs])

    def findings(self, run: Run) -> Findings:
        """Return ε of each client's patients and its rounds, and what the run's summary says of privacy."""
        epsilons = self.epsilons()
        summary = privacy_summary(
            self.settings,
            epsilons,
            "" if self.exact else "each site's accuracy",
            self.simulated,
            neighbours="one patient's rows at one site are not there",
            noise_multiplier=self.planned.noise,
            steps_a_round=self.planned.steps,
            evaluation_noise=self.planned.evaluation_noise,
            epsilon_planned=self.planned.epsilon,
        )
        return Findings(summary, clients={"epsilon": epsilons, "rounds_trained": self._trained.copy()})

    def state(self, run: Run) -> Took:
        """Return what was spent."""
        noise = self.planned.noise, self.planned.evaluation_noise
        return Took(*noise, self._trained.copy(), self._measured.copy(), self.simulated)
