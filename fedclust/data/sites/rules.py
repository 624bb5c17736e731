"""What a site lets leave it: its operator's ``site.toml``, which nothing in a run changes.

    flower-supernode … --node-config "data='/data/patients.csv' name='north' rules='/data/site.toml'"

Without a file the defaults of :class:`Rules` hold on every node with ``data`` of its own. See
docs/SECURITY.md; ``fedclust check FILE --rules`` writes a first file.
"""

import dataclasses
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fedclust.support.checks import Checked, few, read_as, suggestion
from fedclust.support.layout import CONF
from fedclust.support.reasons import Sendable, reason_of


@dataclass(frozen=True, kw_only=True)
class Rules(Checked):
    """A site's rules about what leaves it.

    Attributes
    ----------
    labels, inputs, groups
        Columns that a run may name as ``dataset.label``, as inputs, and as ``dataset.natural`` or
        ``dataset.groups``, whose values name clients or their groups; None: all that do not look like
        identifiers or dates. Others are not described.
    group
        Name of the group that the site is in, such as a vendor, which strategy=auto then tests; None: none.
    patient
        Column with a patient's key, which each run must then name as ``partition.group``; None: a run may
        name any column that the lists have, or none, so that each row is a patient.
    questions
        Names of the questions that the site answers, such as ``train`` and ``prototypes``; None: all of
        fedclust. A question of the user's own must be listed.
    methods, layers
        Choices of ``strategy=`` (and ``compare=``) and of ``personal=`` with which the site takes part; None:
        any.
    encoders
        Encoders that may embed the site's data, as in ``--node-config "encoder=…"``; None: as that says.
    own_models
        Whether the site sends models that the server may pass on to other sites, which coalitions do.
    rounds_per_day
        Most messages a day that ask for training (``train`` and ``update``), of all runs together; None: any
        number.
    min_cell
        Least number of rows that a count, class, category, mean or figure is of: 1, or 3 or more, as a mean
        and a spread of two rows tell both.
    max_values
        Most classes of the label, and most categories of a column.
    clip
        Length to which the change by training is clipped before it leaves; None: it is not.
    noise
        Standard deviation of the normal noise on each parameter of that change, as a multiple of `clip`.
    patient_noise, patient_clip
        Least noise and largest length of ``privacy=patient_dp``, without which the site then neither trains
        nor sends a figure; None: any, and any run.
    patient_epsilon, patient_delta
        Most ε that a patient spends in all runs together, at this δ; None: any.

    Raises
    ------
    ValueError
        If a rule is out of range.

    Examples
    --------
    >>> Rules(questions=("train", "evaluate")).line
    'questions = ["train", "evaluate"]; min_cell = 5; max_values = 100'
    """

    labels: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    group: str | None = None
    patient: str | None = None
    questions: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    layers: tuple[str, ...] | None = None
    encoders: tuple[str, ...] | None = None
    own_models: bool = True
    rounds_per_day: Annotated[int, ">= 1"] | None = None
    min_cell: Annotated[int, ">= 1"] = 5
    max_values: Annotated[int, ">= 2"] = 100
    clip: Annotated[float, "> 0"] | None = None
    noise: Annotated[float, ">= 0"] = 0.0
    patient_noise: Annotated[float, "> 0"] | None = None
    patient_clip: Annotated[float, "> 0"] | None = None
    patient_epsilon: Annotated[float, "> 0"] | None = None
    patient_delta: Annotated[float, "in (0, 1)"] = 1e-5

    node = "site.toml: "

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_cell == 2:
            raise ValueError("site.toml: min_cell must be 1, or >= 3: mean and spread of two rows tell both")
        if self.noise and self.clip is None:
            raise ValueError(f"site.toml: noise needs a clip, which bounds what it hides, got {self.noise}")
        for name in ("patient_clip", "patient_epsilon"):
            if (value := getattr(self, name)) and self.patient_noise is None:
                raise ValueError(f"site.toml: {name} needs a patient_noise, got {value}")

    @classmethod
    def read(cls, path: Path) -> "Rules":
        """Read the rules of a ``site.toml``.

        Raises
        ------
        RulesError
            If it cannot be read; its own words stay in the log.
        """
        try:
            rules: Rules = read_as(cls, tomllib.loads(path.read_text(encoding="utf-8-sig")))
        except (OSError, ValueError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
            raise RulesError(reason_of(error, "reading the site's rules")) from error
        return rules

    @classmethod
    def from_json(cls, text: str) -> "Rules":
        """Read the rules that a site sends.

        Raises
        ------
        ValueError
            If they are anything else.
        """
        rules: Rules = read_as(cls, json.loads(text))
        return rules

    @property
    def limits(self) -> dict[str, object]:
        """The rules that limit something, by name."""
        values = dataclasses.asdict(self)
        lists = {name: list(each) for name, each in values.items() if isinstance(each, tuple)}
        idle = {"own_models": True, "noise": 0.0, "patient_delta": 1e-5}
        return {
            name: each
            for name, each in (values | lists).items()
            if each is not None and each != idle.get(name)
        }

    def to_json(self) -> str:
        """Write the rules as the site sends them."""
        return json.dumps(self.limits)

    @property
    def line(self) -> str:
        """The rules in one line, as in the file."""
        return "; ".join(f"{name} = {json.dumps(value)}" for name, value in self.limits.items())

    @property
    def of_statement(self) -> str:
        """The rules by which a site states what rows it has, in one line."""
        by = ("labels", "inputs", "groups", "group", "patient", "min_cell", "max_values")
        return "; ".join(f"{name} = {json.dumps(self.limits[name])}" for name in by if name in self.limits)

    def answers(self, kind: str) -> bool:
        """Return whether the site answers a type of question; ``"arm/"`` stands for models that travel."""
        if kind == "arm/":
            return self.own_models
        name = kind.removeprefix("query.")
        if name == "descriptor":  # which has a feature of a single row
            return False
        return name in OURS if self.questions is None else name in self.questions

    def unprotected(self, noise: float | None, clip: float | None) -> str | None:
        """Explain why the site does not train with a protection of patients; None if it does.

        Parameters
        ----------
        noise, clip
            Those of ``privacy=patient_dp``; None without it.

        Examples
        --------
        >>> Rules(patient_noise=1.5).unprotected(1.0, 1.0)
        'patient_noise must be at least 1.5 at this site, got 1'
        """
        if self.patient_noise is None:
            return None
        if noise is None or clip is None:
            return "privacy must be patient_dp at this site, by the rules of its operator"
        if noise < self.patient_noise:
            return f"patient_noise must be at least {self.patient_noise:g} at this site, got {noise:.4g}"
        if self.patient_clip is not None and clip > self.patient_clip:
            return f"patient_clip must be at most {self.patient_clip:g} at this site, got {clip:g}"
        return None

    def check_choices(self, strategies: Iterable[str], personal: str) -> None:
        """Check the methods and the layer of a run.

        Parameters
        ----------
        strategies
            The names of the run's strategies.
        personal
            The name of its layer; ``"none"`` without one.

        Raises
        ------
        RulesError
            If the site does not take part in one.
        """
        if self.methods is not None and (others := [each for each in strategies if each not in self.methods]):
            rule = f"strategy and compare must be {few(self.methods, 20)} for this site, got {others[0]}"
            raise RulesError(rule + _misspelt("methods", self.methods, "strategy"))
        if self.layers is not None and personal not in {"none", *self.layers}:
            allowed = few(dict.fromkeys([*self.layers, "none"]), 20)
            rule = f"personal must be one of {allowed} for this site, got {personal}"
            raise RulesError(rule + _misspelt("layers", self.layers, "personal"))


def _misspelt(rule: str, names: Iterable[str], group: str) -> str:
    """Name the first of a rule's names that is none of `conf/`, but like one; empty if there is none."""
    known = {path.stem for path in (CONF / group).glob("*.yaml")}
    hints = [
        f"; {rule} of its site.toml has {each}{hint}" for each in names if (hint := suggestion(each, known))
    ]
    return hints[0] if hints else ""


OURS = (
    *("description", "encoder", "train", "evaluate", "update", "losses", "prototypes", "subspaces"),
    *("personal", "proof", "alone", "figure", "coalitions", "site_figures", "confusion", "predictions"),
    *("responsibilities", "descriptor"),
)
"""Names of the questions that fedclust asks of clients."""


class RulesError(Sendable):
    """A site's rules cannot be read, or forbid what a run asks; the text has nothing of the site's data."""
