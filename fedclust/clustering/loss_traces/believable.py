"""Leave out entries of a trace that no other client's come near, and name the clients they are of.

A client may report any loss, by mistake or on purpose. One that is far from everybody else's moves the
cohort's mean, the noise σ² and the constants' variance τ², and then no group is found. Clients of one group
are near each other in every round, wherever the group is; so an entry that has no neighbours says nothing
about groups. It becomes missing, which the model allows for any entry.
"""

import numpy as np

from fedclust.clustering.loss_traces.trace import Entries, entries
from fedclust.typing import BoolArray, IntArray

__all__ = ["believable", "unlike_others"]

_FAR = 5.0  # times the range of the cohort's middle half: 6.7 standard deviations of normal entries
_FEWEST = 5  # of fewer entries, one moves the middle half
_NEIGHBOURS = 2


def unlike_others(of: Entries) -> BoolArray:
    """Find the entries whose second nearest other entry of the round is far away.

    Far is more than 5 times the distance of the round's quartiles. In rounds of fewer than five entries, or
    with equal quartiles, none is.

    Parameters
    ----------
    of
        The trace, sorted by round.

    Returns
    -------
    Whether each entry is far from the others, shape (N,).
    """
    found = np.zeros(len(of.values), dtype=bool)
    ends = np.cumsum(np.bincount(of.rounds, minlength=of.num_rounds))[:-1]
    for places in np.split(np.arange(len(of.values)), ends):
        if len(places) < _FEWEST:
            continue
        values = of.values[places]
        low, high = np.percentile(values, [25, 75])
        if high == low:
            continue
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        padded = np.concatenate([np.full(_NEIGHBOURS, -np.inf), ordered, np.full(_NEIGHBOURS, np.inf)])
        # In order of size, the two nearest are among the two before and the two after.
        apart = np.stack(
            [
                np.abs(padded[_NEIGHBOURS + step : len(padded) - _NEIGHBOURS + step] - ordered)
                for step in (-2, -1, 1, 2)
            ]
        )
        second = np.sort(apart, axis=0)[_NEIGHBOURS - 1]
        found[places[order]] = second > _FAR * (high - low)
    return found


def believable(of: Entries) -> tuple[Entries, IntArray, IntArray]:
    """Leave out the entries that are unlike all others, and centre every round on what is left.

    A client that has more entries left out than kept is left out altogether.

    Parameters
    ----------
    of
        The trace.

    Returns
    -------
    left
        The entries that are left; the trace itself if that is all of them.
    kept
        Numbers in `of` of the clients of `left`, ascending: their numbers there are their positions here.
    alone
        Numbers of the clients that were left out, ascending.
    """
    odd = unlike_others(of)
    everyone = np.arange(of.num_clients)
    if not odd.any():
        return of, everyone, everyone[:0]
    without = of.sum_by_client(odd.astype(np.float64))
    alone = np.flatnonzero(2 * without > of.lengths)
    odd |= np.isin(of.clients, alone)
    kept = np.setdiff1d(everyone, alone)
    rounds, clients, values = of.rounds[~odd], of.clients[~odd], of.values[~odd]
    numbers = np.bincount(rounds, minlength=of.num_rounds)
    means = np.bincount(rounds, values, of.num_rounds) / np.maximum(numbers, 1)
    return entries(rounds, np.searchsorted(kept, clients), values - means[rounds]), kept, alone
