"""Wording of numbers in sentences that explain why clients were split or not."""

from collections.abc import Iterable


def alone(clients: Iterable[int]) -> str:
    """List clients that are unlike all others.

    Parameters
    ----------
    clients
        At least one client id.

    Examples
    --------
    >>> alone([7]), alone([2, 7, 9])
    ('client 7 stands alone', 'clients 2, 7 and 9 stand alone')
    """
    *others, last = map(str, clients)
    return f"clients {', '.join(others)} and {last} stand alone" if others else f"client {last} stands alone"


def few(number: int, of: int) -> bool:
    """Return whether `number` of `of` clients are few: one, or up to a tenth.

    Examples
    --------
    >>> few(1, of=5), few(2, of=5), few(2, of=20)
    (True, False, True)
    """
    return 0 < number <= max(1, of // 10)


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


def clusters(number: int) -> str:
    """Write a number of clusters.

    Parameters
    ----------
    number
        Number of clusters, >= 1.

    Examples
    --------
    >>> clusters(1), clusters(3)
    ('one cluster', '3 clusters')
    """
    return "one cluster" if number == 1 else f"{number} clusters"
