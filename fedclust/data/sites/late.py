"""Whether a site that comes after the others have agreed can use their encoding."""

from fedclust.data.sites.agreement import Agreement
from fedclust.data.sites.statement import CATEGORY, NUMBER, Statement

__all__ = ["unfit_for"]

_HOLDING = {NUMBER: "numbers", CATEGORY: "texts"}


def unfit_for(statement: Statement, agreement: Agreement) -> str | None:
    """Explain why a site cannot use an encoding; None if it can.

    Categories that the others lack are encoded like any value that no training row had, columns that the
    others lack are not used, and the numbers keep the others' mean and scale: models are trained already.

    Parameters
    ----------
    statement
        What the site says of its data.
    agreement
        The encoding.
    """
    known = {*agreement.labels, *agreement.class_names}
    if unknown := [str(label) for label in statement.labels if label not in known]:
        classes = ", ".join(agreement.class_names[:10])
        return f"labels must be among {classes}, got {', '.join(unknown[:10])}"
    kinds = {
        **{each.name: NUMBER for each in agreement.numbers},
        **{each.name: CATEGORY for each in agreement.categories},
    }
    if missing := [name for name in kinds if name not in statement.columns]:
        return f"it lacks the columns {', '.join(missing)}, which the run uses"
    for name, kind in kinds.items():
        found = statement.columns[name]
        if found.unfit:
            return f"column {name} looks like an identifier or a date ({found.unfit})"
        if found.kind in _HOLDING and found.kind != kind:
            return f"column {name} must hold {_HOLDING[kind]} as in the run, got {_HOLDING[found.kind]}"
    if len(statement.pixels) != len(agreement.mean):
        return f"images must have {len(agreement.mean)} channels, got {len(statement.pixels)}"
    return None
