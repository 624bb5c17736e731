"""Wording of numbers in sentences that explain why clients were split or not."""

from collections.abc import Iterable


def alone(clients: Iterable[int]) -> str:
    """List clients that are like no other: ``client 7 stands alone``, ``clients 2, 7 and 9 stand alone``.

    Parameters
    ----------
    clients
        At least one client id.
    """
    *others, last = map(str, clients)
    return f"clients {', '.join(others)} and {last} stand alone" if others else f"client {last} stands alone"


def few(number: int, of: int) -> bool:
    """Return whether `number` of `of` clients are few: one, or up to a tenth."""
    return 0 < number <= max(1, of // 10)


def chance(p_value: float) -> str:
    """Write a p-value with two digits: ``p = 0.43``, ``p < 0.001``.

    Parameters
    ----------
    p_value
        In [0, 1].
    """
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def clusters(number: int) -> str:
    """Write a number of clusters: ``one cluster``, ``3 clusters``.

    Parameters
    ----------
    number
        Number of clusters, >= 1.
    """
    return "one cluster" if number == 1 else f"{number} clusters"
