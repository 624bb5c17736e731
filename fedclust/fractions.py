"""The share of a client's training rows that is held out for the proof; see docs/PROOF.md."""

__all__ = ["DEFAULT_FRACTION", "check_fraction"]

DEFAULT_FRACTION = 0.1
"""Share of a client's training rows, where the proof is on and nothing else is said."""


def check_fraction(fraction: float) -> None:
    """Check a share of rows to hold out.

    Raises
    ------
    ValueError
        If it is not in [0, 1).
    """
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not number or not 0 <= fraction < 1:
        raise ValueError(f"validation_fraction must be in [0, 1), got {fraction!r}")
