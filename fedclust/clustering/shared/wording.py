"""Wording of numbers in sentences that explain why clients were split or not."""


def chance(p_value: float) -> str:
    """Write a p-value with two digits.

    Parameters
    ----------
    p_value
        In [0, 1].

    Examples
    --------
    >>> chance(0.4321), chance(0.0004)
    ('p = 0.43', 'p < 0.001')
    """
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def number_of(what: str, number: int) -> str:
    """Write a number of things.

    Parameters
    ----------
    what
        One of them.
    number
        How many there are.

    Examples
    --------
    >>> number_of("cluster", 1), number_of("cluster", 3)
    ('one cluster', '3 clusters')
    """
    return f"one {what}" if number == 1 else f"{number} {what}s"
