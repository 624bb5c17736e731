"""Trains every coalition of a handful of sites beside the model for all, and lets each site choose.

See :mod:`fedclust.proof.coalitions`. During the run the model for all serves, as without this layer. Before
the last evaluation each site chooses by its own cross-fitted scores; the clusters are then the coalitions
that somebody chose, with the models that trained on all rows. Nobody else's numbers have a part in a site's
choice: one that lies about its scores misleads itself, and one that sends bad models those who choose to
train with it.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.clustering import label_prior
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.data.targets import Target
from fedclust.federation.answering import Failure, failure_order
from fedclust.federation.clusters import Decided
from fedclust.federation.federation import Federation
from fedclust.federation.questions import prior_shifts
from fedclust.federation.run import Layer, Round, Run
from fedclust.layers.beside import TRIAL
from fedclust.layers.standard import within
from fedclust.messages.coalitions import (
    ALL_ROWS,
    ScoresAnswer,
    ScoresQuestion,
    SiteFigures,
    SiteFiguresQuestion,
    name_of,
    number_of,
)
from fedclust.messages.evaluation import FigureAnswer, FigureQuestion
from fedclust.messages.models import canonical, to_vector
from fedclust.messages.replies import LEAST_CAP, Caps, Reply, by_cluster, too_long, too_long_line
from fedclust.metrics import wilson
from fedclust.personal.layers import NONE, PRIOR
from fedclust.proof import sites as verdicts
from fedclust.proof.coalitions import (
    ALL_UP_TO,
    FOLDS,
    LEVEL,
    MOST_SITES,
    Arm,
    Choice,
    Coalition,
    Fit,
    Scores,
    at_own_shares,
    choose,
    coalitions,
    harmful_sites,
    partners,
    turned_sites,
    without_sites,
)
from fedclust.proof.figure import ENOUGH_ROWS, measure
from fedclust.proof.partners import gained_by_groups, lost_without, of_groups, worth
from fedclust.proof.units import Mend, gaining, other_units
from fedclust.proof.words import Words
from fedclust.support.reasons import FederationError
from fedclust.typing import BoolArray, FloatArray, IntArray

_EACH = FOLDS + 1
_FAR, _ROUNDS = 0.5, 6  # in cosines; and rounds of it that no labels at random make
_TURNED = "updates must point the same way as those without a fold of its rows, they point the other way"
MOST_BYTES, MOST_ROWS = 64e6, 200_000
"""By default a site's message is to be no larger, and it is to train on no more rows in an epoch."""


def num_bytes(model: ArrayRecord) -> int:
    """Count the bytes of a model's arrays."""
    return sum(len(array.data) for array in model.values())


def models_per_site(num_sites: int) -> int:
    """Count the models that a site trains in a round, but for those of proposed coalitions."""
    return _EACH * sum(0 in each for each in coalitions(num_sites)) - 1  # the run itself trains everyone's


def worthwhile(asked: str | None, num_train: IntArray, model: ArrayRecord) -> bool:
    """Return whether coalitions are to be trained.

    Parameters
    ----------
    asked
        ``"all"``, ``"none"``, or None to train them where a site's message stays below 64 MB and a site
        passes over at most 200,000 rows per epoch.
    num_train
        Training rows of each site, shape (K,).
    model
        A model.
    """
    if asked == "none" or not 2 <= len(num_train) <= MOST_SITES:
        return False
    models, size = models_per_site(len(num_train)), num_bytes(model)
    most = int(num_train.max())
    return asked == "all" or (models * size <= MOST_BYTES and models * most <= MOST_ROWS)


@dataclass(frozen=True, eq=False)
class Chosen:
    """What the sites chose.

    Attributes
    ----------
    common, aggregator
        The model for all before that, and what its aggregator remembers, for a run that goes on.
    choices
        Of each site, its arm, by index of the coalition; None of one that joined late.
    shifts
        Label-prior correction of each site's logits for its coalition's model, shape (K, C).
    harmful
        Ids of sites with which nobody trains because they harm the others.
    mends
        Conversions of units by which sites would gain, by site.
    fits, together
        How the model of each site alone (rows) fits the rows of each other (columns), its own cross-fitted,
        the numbers of a :class:`~fedclust.proof.coalitions.Fit`, shape (K, K, 5 or more); and how all others'
        models together fit each site's, shape (K, 5 or more).
    figures, compared
        Of each site that answered, how its arm, everyone's and its own predict its test rows; and how its arm
        compares with its own, or if that was chosen with everyone's.
    scores
        The cross-fitted scores of each site that answered.
    informing
        How many of its rows tell models apart, by site.
    """

    common: ArrayRecord
    aggregator: Mapping[str, Any]
    choices: tuple[Choice | None, ...]
    shifts: FloatArray
    fits: FloatArray
    together: FloatArray
    harmful: IntArray
    figures: Mapping[str, SiteFigures] = field(default_factory=dict)
    compared: Mapping[str, FigureAnswer] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    mends: Mapping[str, tuple[Mend, ...]] = field(default_factory=dict)
    informing: Mapping[str, int] = field(default_factory=dict)

    @property
    def corrects(self) -> list[bool]:
        """Whether each site's model is corrected; where sites are alike, the correction is zero."""
        return [
            choice is not None and choice.arm.corrected and bool(shift.any())
            for choice, shift in zip(self.choices, self.shifts, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class CoalitionModels:
    """The coalitions and their models.

    Attributes
    ----------
    coalitions
        Ids of each coalition's sites, everyone first.
    models
        Of each coalition, the model without each fold, and the one on all rows: of everyone the run's own,
        known after the last round.
    aggregators
        What the aggregator of each model remembers.
    suspicion
        Rounds in which a site's update of the model for all pointed away from those without a fold of its
        rows, less those in which it did not, at least 0, shape (K,).
    contradicted
        Rounds in which a site's update of the model for all was left out because it contradicted these, shape
        (K,).
    chosen
        What the sites chose after the last round.
    """

    coalitions: tuple[Coalition, ...]
    models: tuple[ArrayRecord, ...]
    suspicion: IntArray
    contradicted: IntArray
    aggregators: tuple[Mapping[str, Any], ...] = ()
    chosen: Chosen | None = None

    def of(self, site: int) -> list[int]:
        """List the indices of the coalitions that contain a site."""
        return [place for place, sites in enumerate(self.coalitions) if site in sites]

    @property
    def trained_with(self) -> tuple[Coalition, ...]:
        """The sites whose rows are in each coalition's model on all rows.

        Everyone's is the run's own, which sites that came after round 1 train, too.
        """
        founders = self.coalitions[0]
        late = range(len(founders), len(self.chosen.choices) if self.chosen else 0)
        return ((*founders, *late), *self.coalitions[1:])

    def on_all_rows(self, coalition: int) -> ArrayRecord:
        """Return the model of a coalition that trained on all rows."""
        return self.models[coalition * _EACH + ALL_ROWS]


def notes(num_sites: int, rounds: float, model: ArrayRecord, trained: bool) -> list[str]:
    """Describe, for users before round 1, what coalitions cost and give away, or why none are trained.

    Parameters
    ----------
    num_sites
        Number of sites.
    rounds
        Mean number of rounds in which a site trains.
    model
        A model.
    trained
        Whether coalitions are trained.
    """
    number, size = models_per_site(num_sites), num_bytes(model)
    each = f"{number} models, {number * size / 1e6:.2g} MB each way in the round's one message"
    if not trained:
        return [
            f"no coalitions are trained: each of {num_sites} sites would train {each} "
            "(strategy.parameters.coalitions=all trains them)"
        ]
    return [
        f"{len(coalitions(num_sites))} coalitions of {num_sites} sites: in each of its rounds a site trains "
        f"{each}, {FOLDS} folds and all rows of each coalition; {round(rounds * number):,} trainings of a "
        "site in all",
        "models of small coalitions and each site's own travel to the server, and to the other sites "
        "(strategy.parameters.coalitions=none trains none)",
    ]


class Coalitions(Layer):
    """Trains coalitions, and lets sites choose.

    Parameters
    ----------
    wanted
        Whether coalitions are to be trained in a federation, from this model.
    propose
        Proposes further coalitions before round 1, where there are too many sites to train all.
    caps
        How far updates may move a model.
    may_correct
        Whether sites may choose the label-prior correction.
    """

    memory_type: ClassVar[Any] = CoalitionModels | None

    def __init__(
        self,
        wanted: Callable[[IntArray, ArrayRecord], bool],
        propose: Callable[[Federation, ArrayRecord], Iterable[Coalition]],
        caps: Caps,
        may_correct: Callable[[], bool],
    ) -> None:
        self._wanted, self._propose, self._caps = wanted, propose, caps
        self._may_correct = may_correct
        self.trained: CoalitionModels | None = None
        self._aggregators: list[Strategy] = []

    def begin(self, run: Run, state: CoalitionModels | None) -> Round:
        """Start without coalitions, or go on; after a choice, a run goes on with the one model for all.

        Raises
        ------
        FederationError
            If a finished run is to serve without the corrections that its sites have chosen.
        """
        self.trained, now = state, run.now
        if state is None:
            return now
        self._aggregators = [
            aggregation.restored(run.make_aggregator(), copy.deepcopy(each)) for each in state.aggregators
        ]
        if (chosen := state.chosen) is None:
            return now
        if run.over:
            if not self._may_correct() and any(chosen.corrects):
                raise FederationError(
                    "personal must include the label-prior correction (auto or prior), with which sites of "
                    "the finished run chose their models; rounds= lets them choose anew after further rounds"
                )
            return now
        self.trained = replace(state, chosen=None)
        together = replace(
            now.clusters,
            assignment=np.zeros(now.clusters.num_clients, dtype=np.int64),
            models=(chosen.common,),
            aggregators=(aggregation.restored(run.make_aggregator(), chosen.aggregator),),
            reason="the run goes on",
        )
        return replace(now, clusters=together)

    def instruct(self, run: Run, now: Round) -> Round:
        """List the coalitions in round 1; add the models of all that contain a site to what it trains."""
        able = now.number == 1 and not run.federation.clients.plain  # to train several models in a round
        if able and self._wanted(run.federation.describe().rows, run.initial):
            number, model = now.clusters.num_clients, run.initial
            further = list(self._propose(run.federation, model)) if number > ALL_UP_TO else []
            further += without_sites(run.federation.describe().client_names or ())
            listed = coalitions(number, further)
            nothing = (np.zeros(number, dtype=np.int64),) * 2
            self.trained = CoalitionModels(listed, (model,) * (_EACH * len(listed)), *nothing)
            self._aggregators = [run.make_aggregator() for _ in self.trained.models]
        if self.trained is None:
            return now
        arms: dict[int, dict[str, ArrayRecord]] = {client: {} for client in now.asked}
        for coalition, sites in enumerate(self.trained.coalitions):
            members = [site for site in sites if site in arms]
            # Everyone's model on all rows is the run's own.
            for fold in range(_EACH if coalition else FOLDS) if members else ():
                name = name_of(coalition, fold)
                place = number_of(name)
                aggregator, model = self._aggregators[place], self.trained.models[place]
                if aggregation.remembers(aggregator):  # it keeps the model that it is about to change
                    aggregation.instructions(aggregator, now.number, model, members, run.buffers)
                for site in members:
                    arms[site][name] = model
        return replace(
            now, asked={client: replace(each, arms=arms[client]) for client, each in now.asked.items()}
        )

    def screen(self, run: Run, now: Round) -> Round:
        """Average each coalition's models; one that cannot be used is left out, and its site named."""
        if self.trained is None:
            return now
        federation, rows = run.federation, run.federation.describe().num_train
        found: list[Reply] = []
        for reply in now.replies:
            for name, model in now.asked[reply.client].arms.items():
                try:
                    if (received := reply.arms.get(name)) is None:
                        raise ValueError("no model in reply")
                    own = canonical(received, model)
                except ValueError as error:
                    reason = f"client {reply.client}, round {now.number}: {name}: {error}"
                    federation.failed(reply.client, TRIAL, reason)
                    continue
                weight = max(1, int(rows[reply.client]))
                beside = replace(reply, cluster=number_of(name), start=model, model=own, num_examples=weight)
                found.append(replace(beside, projected=None, update_norm=None))
        replies, long = within(found, now.number, self._caps, rows)
        for failure in sorted(long, key=failure_order):
            federation.failed(int(failure["client"]), TRIAL, str(failure["reason"]))
        models = list(self.trained.models)
        for place, cohort in by_cluster(replies).items():
            aggregator = self._aggregators[place]
            means = aggregation.needs_only_mean(aggregator)
            facts = aggregator, now.number, models[place], cohort, run.buffers
            try:
                models[place] = aggregation.aggregate(*facts, shared_means=means)
            except aggregation.NotFinite as error:
                for reply in cohort:
                    federation.failed(reply.client, TRIAL, str(error))
        self.trained = replace(self.trained, models=tuple(models))
        return self._consistent(now)

    def _consistent(self, now: Round) -> Round:
        """Leave out updates of the model for all that contradict those of the same model without a fold.

        A site makes these of four fifths of the same rows. An update that is ten times as long as their
        median is not of its rows; nor are those of a site that point away from them in six rounds more than
        they do not. A single one may by chance, where labels hardly depend on inputs. An update does so if
        its cosine with them is negative and 0.5 below that of each of them with the others. Nothing is known
        of a site whose node answers with a mean.
        """
        if self.trained is None:
            return now
        shared = Counter(id(reply.model) for reply in now.replies)
        folds, kept, failures = [name_of(0, fold) for fold in range(FOLDS)], list[Reply](), list[Failure]()
        suspicion, contradicted = self.trained.suspicion.copy(), self.trained.contradicted.copy()
        for reply in now.replies:
            starts = now.asked[reply.client].arms
            both = [name for name in folds if name in reply.arms and name in starts]
            pairs = [(reply.arms[name], starts[name]) for name in both]
            if shared[id(reply.model)] > 1 or len(pairs) < FOLDS:
                kept.append(reply)
                continue
            try:
                pairs = [(canonical(model, start), start) for model, start in pairs]
            except ValueError:  # named with the models of coalitions
                kept.append(reply)
                continue
            why, turned = _contradiction(reply, pairs)
            suspicion[reply.client] = max(0, suspicion[reply.client] + (1 if turned else -1))
            if suspicion[reply.client] >= _ROUNDS:
                why = why or _TURNED
            if not why:
                kept.append(reply)
                continue
            contradicted[reply.client] += 1
            reason = f"client {reply.client}, round {now.number}: {why}"
            failures.append({"client": reply.client, "phase": "train", "reason": reason})
        self.trained = replace(self.trained, suspicion=suspicion, contradicted=contradicted)
        return replace(now, replies=kept, failures=sorted([*now.failures, *failures], key=failure_order))

    # -- The choice -----------------------------------------------------------------------------------------

    def before_evaluation(self, run: Run, now: Round) -> Round:
        """After the last round, let each site choose, and make the coalitions that were chosen clusters."""
        if self.trained is None or now.number < run.federation.num_rounds:
            return now
        models = list(self.trained.models)
        models[ALL_ROWS] = now.clusters.models[0]
        self._aggregators[ALL_ROWS] = now.clusters.aggregators[0]
        self.trained = replace(self.trained, models=tuple(models))
        trained, federation = self.trained, run.federation
        clients, counts = now.clusters.num_clients, federation.describe().train_counts
        may_correct = self._may_correct()
        target, sites = federation.describe().target, range(len(trained.coalitions[0]))
        shifts = [
            may_correct
            * (
                np.ones((clients, target.outputs(counts.shape[1])))  # each site fits its own
                if target.fits_correction
                else prior_shifts(counts, np.where(np.isin(np.arange(clients), members), 0, -1))
            )
            for members in trained.coalitions
        ]
        asked = {site: _question(trained, site, counts, may_correct, target) for site in sites}
        answers = federation.ask(asked, server_round=now.number).replies
        fits = np.full((len(sites), len(sites), Fit.width(target.fit_classes(counts.shape[1]))), np.nan)
        together, ratios = np.full(fits.shape[1:], np.nan), np.full((len(sites), len(sites), 2), np.nan)
        for site, answer in answers.items():
            others = [other for other in sites if other != site]
            if answer.ratios:
                ratios[[*others, site], site] = np.reshape(answer.ratios, (-1, 2))
            *fits[others, site], together[site], fits[site, site] = answer.fits.reshape(len(sites) + 1, -1)
        words, mends = target.words, _mends(answers, ratios)
        scored = {site: each.scores for site, each in answers.items() if not words.few(counts[site])}
        informing = {str(site): words.counted(each.count, counts[site]) for site, each in scored.items()}
        harmful = np.union1d(harmful_sites(trained.coalitions, scored), np.flatnonzero(trained.contradicted))
        may = _partners(fits, together, counts, words, mends, harmful)
        choices: list[Choice | None] = [None] * clients
        for site in sites:
            own = trained.of(site)
            listed = [trained.coalitions[place] for place in own]
            refused = np.flatnonzero(~may[site]).tolist()
            found = choose(listed, scored.get(site), refused, informing.get(str(site)) or None)
            arm, everyone = (
                Arm(own[each.coalition], each.corrected and may_correct)
                for each in (found.arm, found.everyone)
            )
            choices[site] = replace(found, arm=arm, everyone=everyone)
        taken = [Arm(0, False) if each is None else each.arm for each in choices]
        serving = sorted({each.coalition for each in taken})
        corrected = np.array([shifts[each.coalition][site] for site, each in enumerate(taken)])
        measured = self._figures(federation, choices, shifts)
        for name, found_there in measured[0].items():
            if found_there.shifts is not None:
                corrected[int(name)] = found_there.shifts.reshape(len(verdicts.SERVED), -1)[0]
        fresh = run.make_aggregator()
        before = now.clusters.models[0], aggregation.pack_state(now.clusters.aggregators[0], fresh)
        kept = {str(site): each for site, each in scored.items()}
        units = {str(site): tuple(each) for site, each in mends.items()}
        chosen = Chosen(
            *before, tuple(choices), corrected, fits, together, harmful, *measured, kept, units, informing
        )
        self.trained = replace(trained, chosen=chosen)
        clusters = replace(
            now.clusters,
            assignment=np.array([serving.index(each.coalition) for each in taken]),
            models=tuple(trained.on_all_rows(each) for each in serving),
            aggregators=tuple(copy.deepcopy(self._aggregators[_EACH * each + ALL_ROWS]) for each in serving),
            reason="each site chose by its cross-fitted scores",
        )
        return replace(now, clusters=clusters)

    def _figures(
        self, federation: Federation, choices: Sequence[Choice | None], shifts: Sequence[FloatArray]
    ) -> tuple[dict[str, SiteFigures], dict[str, FigureAnswer]]:
        """Ask how well the chosen arm, everyone's and each site's own predict test rows, and compare two."""
        asked, pairs = {}, {}
        rows = federation.describe().num_test
        for site, choice in enumerate(choices):
            if choice is None or self.trained is None:
                continue
            alone = self.trained.coalitions.index((site,))
            arms = choice.arm, choice.everyone, Arm(alone, False)
            own = [shifts[each.coalition][site] * each.corrected for each in arms]
            models = tuple(self.trained.on_all_rows(each.coalition) for each in arms)
            asked[site] = SiteFiguresQuestion(models, np.concatenate(own))
            if rows[site]:
                rival = 1 if choice.arm.coalition == alone else 2
                pair = models[rival], models[0], own[rival], own[0]
                pairs[site] = FigureQuestion(*pair, int(rows[site]), bool(rows[site] < ENOUGH_ROWS))
        number = federation.server_round
        figures = federation.ask(asked, server_round=number).replies
        compared = federation.ask(pairs, server_round=number).replies
        return (
            {str(site): each for site, each in figures.items()},
            {str(site): each for site, each in compared.items()},
        )

    def cost(self) -> str:
        """Return in words what trained."""
        number = 0 if self.trained is None else len(self.trained.coalitions)
        return (
            f"Cross-fitted: {number} coalitions, each trained without each of {FOLDS} folds and on all rows"
        )

    def decided(self, run: Run) -> Decided | None:
        """Return what the sites chose, once they have."""
        if self.trained is None or (chosen := self.trained.chosen) is None:
            return None
        described, listed = run.federation.describe(), self.trained.coalitions
        trained_with = self.trained.trained_with
        names = described.client_names or [f"site {client}" for client in range(len(described.num_train))]
        classes = described.class_names or [str(each) for each in range(described.num_classes)]
        counts, tests = described.train_counts, described.test_counts
        sites, words = [], described.target.words
        for client, taken in enumerate(chosen.choices):
            if taken is not None:
                choice = replace(taken, arm=Arm(taken.arm.coalition, chosen.corrects[client]))
                answer = chosen.compared.get(str(client))
                figures = _figures_of(chosen.figures.get(str(client)), tests[client], words)
                rows = int(described.num_test[client]), tests[client]
                coalitions_of = trained_with[choice.arm.coalition], choice, figures, *rows
                everyone = trained_with[choice.everyone.coalition]
                over = None if answer is None else measure([answer.rows], of_pairs=words.of_pairs)
                shares = math.nan if answer is None else answer.rows.by_shares_less_b.mean
                about = everyone, over, shares, words
                sites.append(verdicts.Site(client, names[client], *coalitions_of, *about))
        mends = {int(site): each for site, each in chosen.mends.items()}
        learnt = verdicts.have_learnt(sites, counts)
        crossed = chosen.fits, chosen.together, counts, classes
        found = verdicts.findings(sites, *crossed, chosen.harmful.tolist(), mends, learnt=learnt)
        layers = [PRIOR if corrects else NONE for corrects in chosen.corrects]
        table = []
        for site in sites:
            odd = {one["kind"]: one["text"] for one in found if one["client"] == site.client}
            stop = " ".join(filter(None, (odd.pop(kind, "") for kind in ("unit", "turned"))))
            text = verdicts.advice(site, names, classes, stop, learnt)
            table.append(site.summary(names, classes, " ".join([text, *odd.values()])))
        facts = listed, chosen.choices, {int(site): each for site, each in chosen.scores.items()}
        for row in table:
            if (lost := lost_without(row["client"], *facts)) is not None:
                row["others_lose"], row["others_lose_interval"] = lost.mean, [lost.low, lost.high]
                row["worth"] = f"{worth(row['name'], lost)}."
        turned, units = ([one["name"] for one in found if one["kind"] == kind] for kind in ("turned", "unit"))
        text = verdicts.headline(sites, names, turned, learnt=learnt, units=units)
        named = gained_by_groups(described.named_groups, *facts) if described.named_groups else None
        if named is not None:
            text += f"; {of_groups(described.grouped_by, named)}"
        if late := names[len(chosen.fits) :]:
            text += f"; no advice on {verdicts.joined(late)}, which trained with everyone after round 1"
        apart = any(each.arm.coalition for each in chosen.choices if each is not None)
        summary = {"sites": table, "site_findings": found}
        picture = np.pad(chosen.fits[:, :, 0], (0, len(late)), constant_values=np.nan)
        np.fill_diagonal(picture, np.nan)  # what others' models do
        return Decided(text, apart, np.array(layers), chosen.shifts, summary, picture)

    # -- What is shown and kept -----------------------------------------------------------------------------

    def state(self, run: Run) -> CoalitionModels | None:
        """Return the models, what their aggregators remember, and the choice."""
        if self.trained is None:
            return None
        fresh = run.make_aggregator()
        packed = tuple(aggregation.pack_state(each, fresh) for each in self._aggregators)
        return replace(self.trained, aggregators=packed)


def chosen_without(
    trained: CoalitionModels, gone: Collection[int], counts: IntArray, words: Words, *, fitted: bool = False
) -> dict[int, Arm]:
    """Let sites choose again, by the scores that they have reported, among coalitions without some of them.

    With a site that nobody was to train with, nobody trains now, either.

    Parameters
    ----------
    trained
        The coalitions, after the sites' choice.
    gone
        Ids of the clients that leave.
    counts
        Training rows of each client and class, shape (K, C).
    words
        What is predicted, in words.
    fitted
        Whether sites fit their corrections: then a model has one only if it is the one that served the site.

    Returns
    -------
    The arm of each other site, by index of the coalition.

    Raises
    ------
    ValueError
        If the sites have not chosen, or their scores were not kept.
    """
    if (chosen := trained.chosen) is None or not chosen.scores:
        raise ValueError("run must be one in which a handful of sites chose with whom they train")
    arms: dict[int, Arm] = {}
    mends = {int(site): each for site, each in chosen.mends.items()}
    may = _partners(chosen.fits, chosen.together, counts, words, mends, chosen.harmful)
    for site, choice in enumerate(chosen.choices):
        if choice is None or site in gone:
            continue
        own, refused = trained.of(site), np.flatnonzero(~may[site]).tolist()
        listed = [trained.trained_with[place] for place in own]
        name = str(site)
        scores, apart = chosen.scores.get(name), {*refused, *gone}
        informing = chosen.informing.get(name) or None
        arm = choose(listed, scores, apart, informing).arm
        arms[site] = replace(arm, coalition=own[arm.coalition])
        if fitted and arm.corrected and arms[site] != choice.arm:
            plain = None if scores is None else scores.uncorrected()
            arm = choose(listed, plain, apart, informing).arm
            served = own[arm.coalition] == choice.arm.coalition
            arms[site] = choice.arm if served else Arm(own[arm.coalition], corrected=False)
    return arms


def _partners(
    fits: FloatArray,
    together: FloatArray,
    counts: IntArray,
    words: Words,
    mends: Mapping[int, Sequence[Mend]],
    harmful: IntArray,
) -> BoolArray:
    """Return which sites may train with each other, by what is odd about their rows."""
    rows = counts[: len(fits)]  # the others joined late
    tested = at_own_shares(words.tested(fits), words.tested(together), rows)
    turned = {*turned_sites(*tested), *words.miscoded(rows)}
    turned |= {site for site, some in mends.items() if not all(each.column for each in some)}
    return partners(tested[0], turned, harmful.tolist())


def _mends(answers: Mapping[int, ScoresAnswer], ratios: FloatArray) -> dict[int, list[Mend]]:
    """Return the conversions of units by which sites gain; of amounts, where most others' models agree."""
    apart = other_units(ratios)
    found = {
        site: [each for each in answer.mended if each.column or site in apart]
        for site, answer in answers.items()
    }
    return gaining(found, LEVEL)


def _cosine(one: FloatArray, other: FloatArray) -> float:
    return float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12)


def _contradiction(reply: Reply, folds: Sequence[tuple[ArrayRecord, ArrayRecord]]) -> tuple[str, bool]:
    """Compare a site's update with those of the same model without a fold.

    Parameters
    ----------
    reply
        The site's reply.
    folds
        Model and start of each fold.

    Returns
    -------
    Why it is too long, empty if it is not; and whether it points away from them.
    """
    names = [name for name, array in reply.start.items() if np.dtype(array.dtype).kind == "f"]
    own = to_vector(reply.model, names) - to_vector(reply.start, names)
    others = [to_vector(model, names) - to_vector(start, names) for model, start in folds]
    total = np.sum(others, axis=0)
    turned = _cosine(own, total) < min(0.0, min(_cosine(each, total - each) for each in others) - _FAR)
    lengths = [float(np.linalg.norm(each)) for each in (own, *others)]
    start = float(np.linalg.norm(to_vector(reply.start, names)))
    long = too_long(lengths, lengths, [0] * len(lengths), LEAST_CAP, [start] * len(lengths)).get(0)
    if long is None:
        return "", turned
    why = f"update must be as long as those without a fold of its rows: {too_long_line(lengths[0], *long)}"
    return why, turned


def _question(
    trained: CoalitionModels, site: int, counts: IntArray, may_correct: bool, target: Target
) -> ScoresQuestion:
    """Ask a site how its arms predict its rows, and how the others' own models fit them."""
    own, others = trained.of(site), [other for other in trained.coalitions[0] if other != site]
    models = [trained.models[_EACH * place + fold] for place in own for fold in range(FOLDS)]
    models += [trained.on_all_rows(trained.coalitions.index((other,))) for other in others]
    tables = [limit_sizes(counts[list(trained.coalitions[place])]) for place in own]
    shares = [table.sum(axis=0) / max(1, table.sum()) for table in tables]
    examples = [label_prior.pseudo_examples(each[each.any(axis=1)]) for each in tables]
    pseudo = [each if may_correct else math.inf for each in examples]
    weights = counts[others].sum(axis=1) / max(1, counts[others].sum())
    ordered = target.fit_classes(counts.shape[1]) != counts.shape[1]
    return ScoresQuestion.of(models, np.concatenate(shares), pseudo, weights, ordered)


def _figures_of(answer: SiteFigures | None, counts: IntArray, words: Words) -> dict[str, dict[str, Any]]:
    """Return a site's figures of each arm; empty if it did not answer."""
    if answer is None:
        return {}
    return {
        arm: verdicts.figures_of(
            answer.figures[str(place)], float(answer.brier[place]), counts, wilson, words
        )
        for place, arm in enumerate(verdicts.SERVED)
    }
