"""Personal layers: each client's own adaptation of the model that serves it.

They are applied after the last round, with any strategy; ``personal=`` chooses one on the command line. They
do not affect the clusters, the models or the metrics of the rounds. Those that are part of every round are in
:mod:`fedclust.personal.staying`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedclust.support.checks import Checked
from fedclust.typing import FloatArray, IntArray

NONE, PRIOR, FINETUNE = "none", "prior", "finetune"
_ERRORS = 2.0  # standard errors by which a layer must be worse than the best not to be chosen

Layers = Literal["all", "last"]

MODELS = "models"
"""Key of a node's own configuration: the folder into which it writes its clients' fine-tuned models."""


def weights_file(root: Path, client: int) -> Path:
    """Return the file of a client's fine-tuned model, on a node and in an export.

    Examples
    --------
    >>> weights_file(Path("export"), client=3).as_posix()
    'export/client-3/model.safetensors'
    """
    return root / f"client-{client}" / "model.safetensors"


@dataclass(frozen=True)
class Personal:
    """A choice of personal layers.

    Attributes
    ----------
    choice
        Name of the choice.
    asked
        The layers that clients try, in addition to none; the first one wins a tie.
    """

    choice: ClassVar[str] = NONE
    asked: ClassVar[tuple[str, ...]] = ()

    @property
    def finetune(self) -> "Finetune | None":
        """Settings of fine-tuning; None if clients do not fine-tune."""
        return self if isinstance(self, Finetune) else None


@dataclass(frozen=True)
class NoLayer(Personal):
    """Every client uses the model that serves it unchanged."""


@dataclass(frozen=True)
class Prior(Personal):
    """The label-prior correction: the logarithm of two class shares is added to the logits.

    Source: :mod:`fedclust.clustering.label_prior`.

    Examples
    --------
    >>> Prior().asked
    ('prior',)
    """

    choice: ClassVar[str] = PRIOR
    asked: ClassVar[tuple[str, ...]] = (PRIOR,)


@dataclass(frozen=True)
class Finetune(Personal, Checked):
    """Every client trains the model that serves it on its own training part, and keeps the result.

    Optimiser, batch size, augmentation and loss are those of training, without its schedule and without a
    proximal term.

    Attributes
    ----------
    epochs
        Passes over the client's training part.
    layers
        ``"all"``, or ``"last"`` for the parameters of the last layer only. BatchNorm's statistics adapt to
        the client's rows in both cases.
    learning_rate
        Learning rate; None for that of round 1 in training.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Finetune(epochs=0)
    Traceback (most recent call last):
        ...
    ValueError: epochs must be a whole number >= 1, got 0
    """

    choice: ClassVar[str] = FINETUNE
    asked: ClassVar[tuple[str, ...]] = (FINETUNE,)

    epochs: Annotated[int, "a whole number >= 1"] = 5
    layers: Layers = "all"
    learning_rate: Annotated[float | None, "> 0 and finite or None"] = None


@dataclass(frozen=True)
class Auto(Finetune):
    """Every client uses the layer that its validation rows favour; see :func:`choose`.

    Examples
    --------
    >>> Auto(epochs=3).asked
    ('prior', 'finetune')
    """

    choice: ClassVar[str] = "auto"
    asked: ClassVar[tuple[str, ...]] = (PRIOR, FINETUNE)


def check_validation(personal: Personal, num_validation: IntArray) -> None:
    """Check that there are validation rows if clients must choose between layers.

    Parameters
    ----------
    personal
        The layers.
    num_validation
        Validation rows of each client, shape (K,).

    Raises
    ------
    ValueError
        If layers are to be chosen on validation rows and no client has validation rows.

    Examples
    --------
    >>> check_validation(Auto(), np.array([0, 3]))  # one client can choose
    >>> check_validation(Prior(), np.array([0, 0]))  # nobody has to
    """
    if isinstance(personal, Auto) and not np.any(num_validation):
        raise ValueError(
            "personal=auto must have validation rows to choose on, no client has any: "
            "hold out more, or choose personal=none, prior or finetune"
        )


def choose(losses: Mapping[str, FloatArray]) -> str:
    """Choose a client's layer: the first of prior, none and fine-tuning that is not shown to be worse.

    A layer is shown to be worse than the best one if its mean is higher by more than two standard errors of
    the mean difference, row by row. The label-prior correction is first: it learns nothing from the rows but
    shares, which are shrunk already. ``"none"`` is chosen where it corrects nothing, and with one row, whose
    standard error is unknown.

    Source: after the rule of one standard error, Breiman, Friedman, Olshen and Stone, "Classification and
    Regression Trees", 1984, Section 3.4.3, on paired differences.

    Parameters
    ----------
    losses
        By layer, ``"none"`` included, the Brier score of each of the client's validation rows, each of shape
        (n,).

    Returns
    -------
    The layer. Layers with a loss that is not finite are not chosen; if ``"none"`` has one, it is returned.

    Examples
    --------
    >>> none = np.array([1.0, 1.0, 1.0, 1.0])
    >>> choose({"none": none, "prior": none + [0.4, -0.2, 0.4, -0.2]})  # worse by chance
    'prior'
    >>> choose({"none": none, "prior": none + [0.1, 0.2, 0.1, 0.2]})  # worse on every row
    'none'
    """
    known = {each: losses[each] for each in _first(losses)}
    known = {each: values for each, values in known.items() if np.isfinite(values).all()}
    if NONE not in known or len(known[NONE]) < 2:
        return NONE
    best = min(known.values(), key=np.mean)
    more = {each: values - best for each, values in known.items()}
    return next(
        each
        for each, values in more.items()
        if values.mean() <= _ERRORS * values.std(ddof=1) / math.sqrt(len(values))
    )


def _first(losses: Mapping[str, FloatArray]) -> list[str]:
    """List layers as they are preferred, without a correction that corrects nothing."""
    idle = PRIOR in losses and np.array_equal(losses[PRIOR], losses[NONE], equal_nan=True)
    return [each for each in (PRIOR, NONE, FINETUNE) if each in losses and not (idle and each == PRIOR)]


OWN_ROWS = 50
"""Validation rows from which a client's own decide; with fewer, those of all clients do."""


def choose_together(losses: Mapping[str, FloatArray], rows: IntArray, aside: int = 0) -> str:
    """Choose one layer for all clients with few validation rows, in the order of :func:`choose`.

    Five rows favour fine-tuning in one client of four where no layer helps, and rows of all clients show it.
    A client counts for its rows; the standard error is that of the weighted mean of the clients' differences
    from the best layer.

    Parameters
    ----------
    losses
        By layer, ``"none"`` included, the mean Brier score of each client's validation rows, NaN if it is
        not finite or not known, each of shape (K,).
    rows
        Validation rows of each client, shape (K,).
    aside
        Number of the most and of the least favourable clients that do not count, as in a proof; fewer where
        that would leave less than two.

    Returns
    -------
    The layer; ``"none"`` if fewer than two clients have rows. A layer is not chosen if it has no finite loss
    for more clients than are set aside.

    Examples
    --------
    >>> losses = {"none": np.array([1.0, 1.2, 0.9]), "prior": np.array([0.8, 1.1, 0.7])}
    >>> choose_together(losses, rows=np.array([5, 5, 5]))
    'prior'
    """
    having = np.flatnonzero((rows > 0) & np.isfinite(losses[NONE]))
    if len(having) < 2:
        return NONE
    aside = min(aside, len(having) // 2 - 1)
    weights = rows[having].astype(float)
    means = {}
    for layer in _first(losses):
        more = np.nan_to_num((losses[layer] - losses[NONE])[having], nan=np.inf)
        middle = np.argsort(more)[aside : len(having) - aside]
        if np.isfinite(more[middle]).all():
            means[layer] = float(np.average(more[middle], weights=weights[middle]))
    best = min(means, key=lambda each: means[each])
    for layer in means:
        apart = (losses[layer] - losses[best])[having]
        middle = np.argsort(np.nan_to_num(apart, nan=np.inf))[aside : len(having) - aside]
        share = weights[middle] / weights[middle].sum()
        mean = float(share @ apart[middle])
        error = math.sqrt(
            float(np.square(share) @ np.square(apart[middle] - mean)) * len(middle) / (len(middle) - 1)
        )
        if mean <= _ERRORS * error:
            return layer
    return best
