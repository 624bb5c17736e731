"""Shares that settings give, of rows and of clients; without an import, for a light start."""

__all__ = ["DEFAULT_FRACTION", "check_fraction", "check_held_out", "check_number_or_share"]

DEFAULT_FRACTION = 0.1
"""Share of a client's training rows held out for the proof (docs/PROOF.md), where nothing else is said."""


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


def check_held_out(held_out: float) -> None:
    """Check how many clients are to be left out.

    Raises
    ------
    ValueError
        If it is neither a share in [0, 1) nor a whole number >= 0.
    """
    number = isinstance(held_out, int | float) and not isinstance(held_out, bool)
    if not number or not held_out >= 0 or (held_out >= 1 and held_out != int(held_out)):
        raise ValueError(
            f"holdout_clients must be a share in [0, 1) or a number of clients, got {held_out!r}"
        )


def check_number_or_share(name: str, value: int | float | None) -> None:
    """Check a setting that is a number of clients, a share of them, or None for all.

    Raises
    ------
    ValueError
        If it is a whole number below 1, another number outside (0, 1], or no number.
    """
    if value is None:
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and value >= 1) and not (isinstance(value, float) and 0 < value <= 1):
        raise ValueError(
            f"{name} must be a number of clients >= 1, a share of them in (0, 1], or null, got {value!r}"
        )
